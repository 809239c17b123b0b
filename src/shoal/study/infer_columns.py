"""What a column of a table can be in a study: a number, a category, or nothing, and why.

Left out is what tells rows apart rather than kinds of rows (identifiers, names, dates, free text), what tells nothing at all, and what a
study cannot hold as it is. Reasons are the same for all columns of a kind, and repeat no cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import to_number, to_texts
from shoal.domain import Feature, categories_of, numbers_of, range_of
from shoal.errors import SpecError
from shoal.study.values import MAX_TEXT, is_line

Floats = npt.NDArray[np.float64]

MAX_VALUES = 100
"""A text column of more values than this looks like names or identifiers, and is left out."""

EMPTY = "they hold no value at all"
CONSTANT = "every row has the same value"
NUMBERED = "most rows have a number of their own, as identifiers do"
NAMES = "they look like names or identifiers"
WORDS = "they are free text"
DATES = "they are dates or times"
COMMAS = "their numbers have a decimal comma (write 3.5 for 3,5)"
MIXED = "they are numbers with something else among them (leave a cell empty where the number is missing)"
NO_LINES = f"a value is not a plain line of at most {MAX_TEXT} characters"

MAX_CLASSES = 20
"""Most values of a category that a number may be."""
_MANY = 50
"""From so many rows on it is no chance that each has a whole number of its own."""
_MOST = 0.9
"""A column is what this part of its cells is."""
_SENTENCE = 4
"""Words of a cell of free text, on average."""
_IDENTIFIERS = frozenset(("id", "ids", "uuid", "guid", "key", "nr", "no", "number", "index", "idx", "row"))
_COMMA = re.compile(r"[+-]?\d+,\d+")
_DAY = re.compile(r"(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))(?=$|[ T])")
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


@dataclass(frozen=True)
class Judged:
    """What a column is.

    Parameters
    ----------
    feature
        The feature that it makes; None where it is left out.
    why
        Why it is left out.
    is_own
        Whether it is kept, though most rows have a number of their own.
    is_named_like_a_cell
        Whether its name stands among its cells, as it does in a table without a line of names.
    """

    feature: Feature | None = None
    why: str = ""
    is_own: bool = False
    is_named_like_a_cell: bool = False


def judge(name: str, column: npt.NDArray[Any]) -> Judged:
    """What a column can be in a study.

    Examples
    --------
    >>> judge("id", np.arange(100)).why
    'most rows have a number of their own, as identifiers do'
    >>> judge("age", np.arange(100) % 7).feature
    Numeric(name='age', low=0.0, high=6.0, bins=None, missing=False)
    """
    numbers = numbers_of(name, column)
    if numbers is not None:
        return _number(name, numbers)
    try:
        texts = to_texts(name, column)
    except SpecError:
        return Judged(why=NO_LINES)
    known = [text for text in texts if text is not None]
    why = _why_no_category(known, has_gaps=len(known) < len(texts))
    feature = None if why else categories_of(name, texts)
    return Judged(feature, why, is_named_like_a_cell=name in known)


def are_own(values: list[str]) -> bool:
    """Whether most rows have a value of their own: fewer than two rows to a value."""
    return 2 * len(set(values)) > len(values)


def _number(name: str, numbers: Floats) -> Judged:
    known = numbers[~np.isnan(numbers)]
    n_values = np.unique(known).size
    if n_values == 1 and known.size == numbers.size:
        return Judged(why=CONSTANT)
    is_own = bool((known == np.floor(known)).all()) and 2 * n_values > known.size
    if is_own and (_counts_rows(known) or _is_identifier(name) or (n_values == known.size >= _MANY)):
        return Judged(why=NUMBERED)
    return Judged(range_of(name, numbers), is_own=is_own and known.size >= _MANY)


def _counts_rows(known: Floats) -> bool:
    """Whether they are 1, 2, 3 and so on, from wherever they begin."""
    return known.size > 2 and bool((np.diff(known) == 1).all())


def _is_identifier(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return not _IDENTIFIERS.isdisjoint(word.lower() for word in words)


def _why_no_category(known: list[str], *, has_gaps: bool) -> str:
    """Why texts make no category; empty where they do."""
    values = set(known)
    if not values:
        return EMPTY
    if len(values) == 1 and not has_gaps:
        return CONSTANT
    if _share(known, _is_moment) >= _MOST:
        return DATES
    if _share(known, lambda text: _COMMA.fullmatch(text) is not None or to_number(text) is not None) >= _MOST and any(
        map(_COMMA.fullmatch, values)
    ):
        return COMMAS
    if len(values) > MAX_CLASSES and _share(known, lambda text: to_number(text) is not None) >= _MOST:
        return MIXED
    if len(values) > MAX_VALUES or are_own(known):
        return WORDS if sum(len(text.split()) for text in known) >= _SENTENCE * len(known) else NAMES
    return "" if all(map(is_line, values)) else NO_LINES


def _is_moment(text: str) -> bool:
    if _TIME.fullmatch(text) or _DAY.match(text):
        return True
    # Digits alone are a number to whoever wrote them.
    if text.isdigit():
        return False
    for kind in (date, datetime):
        try:
            kind.fromisoformat(text)
        except ValueError:
            continue
        return True
    return False


def _share(known: list[str], holds: Callable[[str], bool]) -> float:
    """Of which part of the cells something holds; it is asked once about each different one."""
    said = {text: holds(text) for text in set(known)}
    return sum(said[text] for text in known) / len(known)
