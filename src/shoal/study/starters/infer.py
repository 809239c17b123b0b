"""Infer features from a table.

``shoal new --from`` and the estimators call it. A column becomes a number, a category, or is left
out with a reason: columns that identify rows (identifiers, names, dates, free text), columns
without information, and columns with values that a study cannot contain.

A study is public and rows are not. Reasons are the same for all columns of a kind and repeat no
cell. Errors give numbers of columns and rows, and no cell. Ranges, values and the number of rows
are read from the data, so a draft has a warning.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.cells import describe_rows, to_number, to_texts
from shoal.data.features import is_name
from shoal.data.schema import (
    Categorical,
    Columns,
    Feature,
    infer_categorical,
    infer_numeric,
    try_parse_numbers,
)
from shoal.data.tables import count_rows
from shoal.errors import SpecError
from shoal.study.loader import MAX_STUDY_BYTES
from shoal.study.registry import PROTOCOLS
from shoal.study.settings import MAX_TEXT, is_line
from shoal.study.spec import MAX_FEATURES
from shoal.study.starters.drafts import make_draft
from shoal.text import escape_text, format_count

Floats = npt.NDArray[np.float64]

MAX_VALUES = 100
"""A text column with more values looks like names or identifiers, and is left out."""

EMPTY = "they have no values"
CONSTANT = "every row has the same value"
NUMBERED = "most rows have a different number, as in identifiers"
NAMES = "they look like names or identifiers"
WORDS = "they are free text"
DATES = "they are dates or times"
COMMAS = "their numbers have a decimal comma (write 3.5 for 3,5)"
MIXED = "they mix numbers with other text (leave a cell empty if the number is missing)"
NO_LINES = f"a value is not a plain line of at most {MAX_TEXT} characters"

MAX_CLASSES = 20
"""Most values of a category of numbers."""
_MIN_IDENTIFIER_ROWS = 50
"""Rows from which on different whole numbers in all of them are not a coincidence."""
_MAJORITY = 0.9
"""Share of the cells that decides what a column is."""
_MIN_SENTENCE_WORDS = 4
"""Words in a cell of free text, on average."""
_IDENTIFIERS = frozenset(
    ("id", "ids", "uuid", "guid", "key", "nr", "no", "number", "index", "idx", "row")
)
_COMMA = re.compile(r"[+-]?\d+,\d+")
_DAY = re.compile(r"(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))(?=$|[ T])")
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


@dataclass(frozen=True)
class InferredColumn:
    """The inferred role of a column.

    Parameters
    ----------
    feature
        The feature; None if the column is left out.
    exclusion_reason
        Why it is left out.
    is_mostly_distinct
        True if it is kept although most rows have a different number.
    has_cell_as_name
        True if its name is also one of its cells, as in a table without a header.
    """

    feature: Feature | None = None
    exclusion_reason: str = ""
    is_mostly_distinct: bool = False
    has_cell_as_name: bool = False


def infer_column(name: str, column: npt.NDArray[Any]) -> InferredColumn:
    """Return the role of a column in a study.

    Examples
    --------
    >>> infer_column("id", np.arange(100)).exclusion_reason
    'most rows have a different number, as in identifiers'
    >>> infer_column("age", np.arange(100) % 7).feature
    Numeric(name='age', low=0.0, high=6.0, bins=None, missing=False)
    """
    numbers = try_parse_numbers(name, column)
    if numbers is not None:
        return _infer_number(name, numbers)
    try:
        texts = to_texts(name, column)
    except SpecError:
        return InferredColumn(exclusion_reason=NO_LINES)
    known = [text for text in texts if text is not None]
    reason = _find_exclusion_reason(known, has_gaps=len(known) < len(texts))
    feature = None if reason else infer_categorical(name, texts)
    return InferredColumn(feature, reason, has_cell_as_name=name in known)


def are_mostly_distinct(values: list[str]) -> bool:
    """Return whether there are fewer than two rows for each value."""
    return 2 * len(set(values)) > len(values)


def _infer_number(name: str, numbers: Floats) -> InferredColumn:
    known = numbers[~np.isnan(numbers)]
    n_values = np.unique(known).size
    if n_values == 1 and known.size == numbers.size:
        return InferredColumn(exclusion_reason=CONSTANT)
    is_distinct = bool((known == np.floor(known)).all()) and 2 * n_values > known.size
    if is_distinct and (
        _is_row_counter(known)
        or _is_identifier(name)
        or (n_values == known.size >= _MIN_IDENTIFIER_ROWS)
    ):
        return InferredColumn(exclusion_reason=NUMBERED)
    return InferredColumn(
        infer_numeric(name, numbers),
        is_mostly_distinct=is_distinct and known.size >= _MIN_IDENTIFIER_ROWS,
    )


def _is_row_counter(known: Floats) -> bool:
    """Return whether each number is the one before it plus 1."""
    return known.size > 2 and bool((np.diff(known) == 1).all())


def _is_identifier(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return not _IDENTIFIERS.isdisjoint(word.lower() for word in words)


def _find_exclusion_reason(known: list[str], *, has_gaps: bool) -> str:
    """Return why texts are not a category; empty if they are one."""
    values = set(known)
    if not values:
        return EMPTY
    if len(values) == 1 and not has_gaps:
        return CONSTANT
    if _compute_share(known, _is_datetime) >= _MAJORITY:
        return DATES
    if _compute_share(
        known, lambda text: _COMMA.fullmatch(text) is not None or to_number(text) is not None
    ) >= _MAJORITY and any(map(_COMMA.fullmatch, values)):
        return COMMAS
    if (
        len(values) > MAX_CLASSES
        and _compute_share(known, lambda text: to_number(text) is not None) >= _MAJORITY
    ):
        return MIXED
    if len(values) > MAX_VALUES or are_mostly_distinct(known):
        return (
            WORDS
            if sum(len(text.split()) for text in known) >= _MIN_SENTENCE_WORDS * len(known)
            else NAMES
        )
    return "" if all(map(is_line, values)) else NO_LINES


def _is_datetime(text: str) -> bool:
    if _TIME.fullmatch(text) or _DAY.match(text):
        return True
    # Digits alone are a number.
    if text.isdigit():
        return False
    for kind in (date, datetime):
        try:
            kind.fromisoformat(text)
        except ValueError:
            continue
        return True
    return False


def _compute_share(known: list[str], predicate: Callable[[str], bool]) -> float:
    """Return the share of cells with a property, which is computed once for each value."""
    matches = {text: predicate(text) for text in set(known)}
    return sum(matches[text] for text in known) / len(known)


__all__ = ["are_mostly_distinct", "infer_study"]

MIN_ROWS, FEW_ROWS = 8, 100
"""Fewest rows for a study, and the number below which a simulation shows mostly chance."""

WARNING = (
    "Ranges, values, the number of rows and the reasons to leave columns out were read from the "
    "data, without any protection. Replace them by public knowledge before use."
)
_DISTINCT_NUMBERS = "Kept, although most rows have a different number, as in identifiers"
_FIX_LABEL = "Fill in, correct or remove the rows, or name another column: --label COLUMN"


def infer_study(columns: Columns, protocol: str, label: str | None = None) -> tuple[str, list[str]]:
    """Return a starter study with the columns of a table, as TOML, and warnings about it.

    The text contains no rows, but ranges, lists of values and a rounded number of rows.

    Parameters
    ----------
    label
        The column to predict; by default the last.

    Raises
    ------
    SpecError
        ``DATA-001``, ``DATA-004``, ``DATA-005`` or ``DATA-007``: the table cannot become a study.
    """
    if label is not None and label.strip() not in columns:
        what, why = (
            f"The data has no column {escape_text(label)}.",
            f"Columns in the data: {len(list(columns))}.",
        )
        # Names may be cells of a table without a header. Only a name that is almost the typed one
        # is repeated.
        close = difflib.get_close_matches(
            label.strip()[:60], [name for name in columns if is_name(name)], n=1, cutoff=0.8
        )
        fix = (
            f"--label {shlex.quote(close[0])}"
            if close
            else "Give a name from the first line of the file: --label COLUMN"
        )
        raise SpecError("DATA-001", what, why=why, fix=fix)
    _check_table(columns)
    predicted = list(columns)[-1] if label is None else label.strip()
    names = [name for name in columns if name != predicted]
    inferred = {name: infer_column(name, columns[name]) for name in names}
    suspects = [
        i for i, name in enumerate(columns) if name in inferred and inferred[name].has_cell_as_name
    ]
    if len(suspects) > 1:
        raise _make_header_error(suspects[0])
    features = [guess.feature for guess in inferred.values() if guess.feature is not None]
    if not features:
        what = (
            f"Of {format_count(len(names), 'column')} apart from the label, none is a number or a "
            f"category of at most {MAX_VALUES} values."
        )
        why = " ".join(
            f"Column {list(columns).index(name) + 1}: {guess.exclusion_reason}."
            for name, guess in list(inferred.items())[:3]
        )
        raise _make_table_error(what, "Give a table with more rows, or with other columns.", why)
    left_out: dict[str, list[str]] = {}
    for name, guess in inferred.items():
        if guess.feature is None:
            left_out.setdefault(guess.exclusion_reason, []).append(name)
    column = "last column" if label is None else "column of --label"
    prefix = f"The {column} cannot be the label"
    text = make_draft(
        protocol,
        _infer_label(prefix, predicted, columns[predicted], protocol),
        features,
        left_out,
        count_rows(columns),
    )
    if len(text.encode()) > MAX_STUDY_BYTES:
        raise _make_table_error(
            f"The study would have {len(text.encode()):,} bytes; at most {MAX_STUDY_BYTES:,} are "
            "allowed.",
            "Remove columns.",
        )
    distinct = [name for name, guess in inferred.items() if guess.is_mostly_distinct]
    named = {_DISTINCT_NUMBERS: distinct} if distinct else {}
    named |= {f"Left out, because {reason}": names for reason, names in left_out.items()}
    warnings = [WARNING]
    if count_rows(columns) < FEW_ROWS:
        warnings.append(
            f"The file has {format_count(count_rows(columns), 'row')}: the result of a simulation "
            "on this number of rows is mostly chance."
        )
    return text, [*warnings, *(f"{what}: {', '.join(names)}." for what, names in named.items())]


def _check_table(columns: Columns) -> None:
    if len(columns) < 2:
        raise _make_table_error(
            "The file has a single column.", "Give one column per feature, and one for the label."
        )
    if len(columns) - 1 > MAX_FEATURES:
        raise _make_table_error(
            f"The file has {len(columns):,} columns; a study has at most {MAX_FEATURES:,} "
            "features.",
            "Remove columns.",
        )
    if count_rows(columns) < MIN_ROWS:
        what = (
            "The file has no rows."
            if count_rows(columns) == 0
            else f"The file has {format_count(count_rows(columns), 'row')}."
        )
        raise _make_table_error(
            what, f"Give {MIN_ROWS} rows or more, from which ranges and values can be read."
        )
    for position, name in enumerate(columns):
        if not is_name(name):
            raise _make_table_error(
                f"Column {position + 1} has a name that no feature can have.",
                "Give it a short, printable name.",
            )
        if to_number(name) is not None:
            raise _make_header_error(position)


def _make_header_error(position: int) -> SpecError:
    """Return the error for a first row that may have replaced the names.

    Such a row would be published with the study.
    """
    what = f"Column {position + 1} has a name that looks like a cell."
    return _make_table_error(
        what, "Name the columns in the first line; if this is the column's name, choose another."
    )


def _infer_label(prefix: str, name: str, column: npt.NDArray[Any], protocol: str) -> Feature:
    """Return the label's column.

    Errors do not name it: in a table without a header the name would be a cell.
    """
    texts = to_texts("label", column)
    known = [text for text in texts if text is not None]
    n_values = len(set(known))
    _check_label(prefix, [text is None for text in texts], "missing")
    if 2 <= n_values <= MAX_CLASSES and not are_mostly_distinct(known):
        _check_label(
            prefix,
            [not is_line(text) for text in known],
            f"not a plain line of at most {MAX_TEXT} characters",
        )
        return Categorical(name, sorted(set(known)), missing=False)
    numbers = try_parse_numbers(name, column) if n_values >= 2 else None
    if numbers is not None and PROTOCOLS[protocol].predicts_numbers:
        _check_label(prefix, np.isnan(numbers).tolist(), "missing")
        return infer_numeric(name, numbers)
    numeric = [
        name for name, implementation in PROTOCOLS.items() if implementation.predicts_numbers
    ]
    raise SpecError(
        "DATA-007",
        f"{prefix}: it has {format_count(n_values, 'different value')} in "
        f"{format_count(len(known), 'row')}.",
        why=f"A label has 2 to {MAX_CLASSES} classes, each of two or more rows on average; "
        f"{' and '.join(numeric)} can also predict a number.",
        fix=_FIX_LABEL
        if numbers is None
        else f"It is a number: {' or '.join(f'--protocol {name}' for name in numeric)}; or name "
        "another column: --label COLUMN",
    )


def _check_label(prefix: str, is_wrong: list[bool], what: str) -> None:
    if any(is_wrong):
        raise SpecError(
            "DATA-005" if what == "missing" else "DATA-007",
            f"{prefix}: {describe_rows(np.array(is_wrong))} {what}.",
            fix=_FIX_LABEL,
        )


def _make_table_error(what: str, fix: str, why: str | None = None) -> SpecError:
    return SpecError("DATA-007", what, why=why, fix=fix)
