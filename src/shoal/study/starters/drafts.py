"""Starter studies for other columns; checks for unfinished drafts.

``shoal new --from`` makes a draft here: the starter study of a protocol without its own words, with
the columns of a table and figures in proportion to its rows. All that was read from the table
(ranges, values, figures, and why columns are left out) has a remark until a person replaces it.
``shoal check`` warns of such values, and ``shoal serve`` refuses them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from shoal.data.schema import Feature, Numeric
from shoal.study.loader import parse_study_text, read_study_text
from shoal.study.positions import KeyPositions
from shoal.study.protocol import MARK
from shoal.study.registry import PROTOCOLS
from shoal.study.starters import read_starter

PLACEHOLDERS = {
    "purpose": "(write what the model is for, in words that a participant reads before consenting)",
    "contact": "(write whom to ask)",
}
"""Key -> placeholder for words that a person has to write."""

_READ_REMARK = f"{MARK}: replace by public knowledge"
_FULL_REMARK = f"{MARK}: no cell is empty; remove the line if a participant's may be"
_SIZE_REMARK = f"{MARK}: about the rows of the file; write a public guess"

_MAX_TITLE = 100
"""Characters of a label's name that its title has."""
_OPEN_TIME = timedelta(days=30)


def make_draft(
    protocol: str,
    label: Feature,
    features: Sequence[Feature],
    left_out: Mapping[str, Sequence[str]],
    n_rows: int,
) -> str:
    """Return the starter study of a protocol with other columns, as TOML.

    Parameters
    ----------
    label, features
        The columns, inferred from rows.
    left_out
        Reason -> names of the columns that are not in the study.
    n_rows
        Number of rows; the study declares a rounded number.
    """
    head, _, rest = read_starter(protocol).partition("\n[label]\n")
    tail = rest.partition("\n[privacy]\n")[2]
    head = _replace_value(
        head, "title", _quote_text(f"Predict {label.name[:_MAX_TITLE]}"), "write a title"
    )
    for key, placeholder in PLACEHOLDERS.items():
        head = _replace_value(head, key, _quote_text(placeholder))
    # The starter's remark on epsilon is about its own unit, and its crosses about its own features.
    tail = re.sub(r"^(epsilon = \S+).*$", r"\1", tail, flags=re.MULTILINE)
    tail = re.sub(r"^crosses = .*\n", "", tail, flags=re.MULTILINE)
    size = max(1, round_count(n_rows))
    figures = {"size": (size, _SIZE_REMARK), **PROTOCOLS[protocol].scale_starter(size)}
    for key, (value, remark) in figures.items():
        tail = _replace_value(tail, key, str(value), remark)
    warning = (
        f"# Values marked {MARK} are not public knowledge, and a study is public: shoal "
        "serve refuses it until each mark is removed."
    )
    blocks = "".join(
        f"\n[[feature]]\n{_format_feature(feature)}{_format_missing(feature)}"
        for feature in features
    )
    omitted = "".join(
        f"# {MARK}: left out, because {why}: {', '.join(map(_quote_text, names))}\n"
        for why, names in left_out.items()
    )
    omitted = f"\n{omitted}" if omitted else ""
    columns = f"[label]\n{_format_feature(label)}{blocks}{omitted}"
    return f"{head}\n{warning}\n\n{columns}\n[privacy]\n{tail}"


def set_closing_time(text: str, now: datetime) -> str:
    """Return a starter's text with its closing time, if any, at noon UTC in thirty days.

    The phases of a study share the time until it closes: with a distant closing time each of them
    would last for months.
    """
    return _replace_value(
        text,
        "closes",
        f"{now + _OPEN_TIME:%Y-%m-%d}T12:00:00Z",
        "30 days from the day this was written; all phases share that time",
    )


def round_count(n: int) -> int:
    """Return a number of rows with two significant digits, rounded down.

    Examples
    --------
    >>> round_count(48_842), round_count(600), round_count(7)
    (48000, 600, 7)
    """
    unit = int(10 ** max(0, len(str(n)) - 2))
    return n // unit * unit


def _replace_value(text: str, key: str, value: str, remark: str = "") -> str:
    """Return the text with another value of a key."""
    line = f"{key} = {value}"
    return re.sub(
        rf"^{key} = .*$",
        lambda _: f"{line:<36}# {remark}" if remark else line,
        text,
        count=1,
        flags=re.MULTILINE,
    )


def _format_feature(feature: Feature) -> str:
    """Return the lines of a feature or label."""
    if isinstance(feature, Numeric):
        known = f"range = [{_format_number(feature.low)}, {_format_number(feature.high)}]"
    else:
        known = f"values = {json.dumps(list(feature.values), ensure_ascii=False)}"
    return f"name = {_quote_text(feature.name)}\n{known}    # {_READ_REMARK}\n"


def _format_missing(feature: Feature) -> str:
    return "" if feature.missing else f"missing = false    # {_FULL_REMARK}\n"


def _format_number(value: float) -> str:
    """Return a number; a whole number of few digits has no point."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _quote_text(text: str) -> str:
    """Return a text in quotes; a JSON string is a TOML string."""
    return json.dumps(text, ensure_ascii=False)


DRAFT_FIX = (
    f"Replace each value marked {MARK} by public knowledge and remove the remark; write "
    f"{' and '.join(PLACEHOLDERS)}, which participants read before they agree."
)

# A remark that begins with the mark is about the value in front of it, or, alone on its line, about
# the columns that it names. The draft's own explanation of the mark begins with other words.
_MARKED = re.compile(rf"(?:[ \t]*[^#\s].*|[ \t]*)#[ \t]*{MARK}")
_MAX_LINES_SHOWN = 5


def find_unfinished(path: str | os.PathLike[str]) -> list[str]:
    """Return a sentence for each part of a study file that is still a draft.

    They repeat no value. A finished study has none.

    Raises
    ------
    SpecError
        The file is not a study.
    """
    return find_unfinished_in_text(read_study_text(path))


def find_unfinished_in_text(text: str) -> list[str]:
    """Return the sentences of `find_unfinished` for a text.

    Examples
    --------
    >>> from shoal.study.starters import read_starter
    >>> find_unfinished_in_text(read_starter("anonml"))
    []
    >>> find_unfinished_in_text(
    ...     read_starter("anonml").replace("# public knowledge", "# READ FROM THE DATA")
    ... )
    ['The value on line 17 was read from data that may be private, and a study is public.']
    """
    study = parse_study_text(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if _MARKED.match(line)]
    unwritten = [
        key
        for key, placeholder in PLACEHOLDERS.items()
        if getattr(study, key).strip() == placeholder
    ]
    unfinished = (
        [
            f"The {'value' if len(marked) == 1 else 'values'} on {_format_lines(marked)} "
            f"{'was' if len(marked) == 1 else 'were'} read from data that may be private, and a "
            "study is public."
        ]
        if marked
        else []
    )
    if unwritten:
        lines = KeyPositions(text)
        unfinished.append(
            f"The {' and the '.join(unwritten)} still "
            f"{'has its placeholder' if len(unwritten) == 1 else 'have their placeholders'} "
            f"({_format_lines([lines.find_line((key,)) for key in unwritten])})."
        )
    return unfinished


def _format_lines(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _MAX_LINES_SHOWN} more" if len(numbers) > _MAX_LINES_SHOWN else ""
    return (
        f"line{'s' if len(numbers) > 1 else ''} "
        f"{', '.join(map(str, numbers[:_MAX_LINES_SHOWN]))}{more}"
    )
