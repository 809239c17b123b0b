"""A starter study with other columns: its own words are taken out, and its figures are put in proportion to a number of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from shoal.domain import Feature, Numeric
from shoal.study.templates import study_text

MARK = "READ FROM THE DATA"
"""What stands beside a value that is not public knowledge yet."""
PLACEHOLDERS = {
    "purpose": "(write what the model is for, in words that a participant reads before consenting)",
    "contact": "(write whom to ask)",
}
"""What stands for words that only a person can write, by key."""

_READ = f"{MARK}: replace by public knowledge"
_FULL = f"{MARK}: no cell is empty; remove the line if a participant's may be"
_GUESS = "about the rows of the file; write a public guess"

_TITLE = 100
"""Characters of a label's name that its title has."""
_OPEN = timedelta(days=30)
_INSTANCES, _HOLDERS, _FEWEST_HOLDERS, _ROWS_OF_A_HOLDER = 20, 20, 3, 100


def draft(protocol: str, label: Feature, features: Sequence[Feature], left_out: Mapping[str, Sequence[str]], n_rows: int) -> str:
    """The starter study of a protocol with other columns, as TOML.

    Parameters
    ----------
    protocol
        Whose starter it is.
    label, features
        What the columns are, as they were read from rows.
    left_out
        Names of columns that are none of them, by the reason.
    n_rows
        How many rows there were; about so many are declared, and not exactly.
    """
    head, _, rest = study_text(protocol).partition("\n[label]\n")
    tail = rest.partition("\n[privacy]\n")[2]
    head = _put(head, "title", _text(f"Predict {label.name[:_TITLE]}"), "write a title")
    for key, placeholder in PLACEHOLDERS.items():
        head = _put(head, key, _text(placeholder))
    # The starter's remark beside epsilon speaks about its own unit, and its crosses are of its own features.
    tail = re.sub(r"^(epsilon = \S+).*$", r"\1", tail, flags=re.MULTILINE)
    tail = re.sub(r"^crosses = .*\n", "", tail, flags=re.MULTILINE)
    for key, (value, remark) in _figures(protocol, n_rows).items():
        tail = _put(tail, key, str(value), remark)
    warning = f"# What is marked {MARK} is not public knowledge, and a study is public: shoal serve refuses it until no mark is left."
    blocks = "".join(f"\n[[feature]]\n{_keys(feature)}{_missing(feature)}" for feature in features)
    omitted = "".join(f"# Left out, because {why}: {', '.join(map(_text, names))}\n" for why, names in left_out.items())
    return f"{head}\n{warning}\n\n[label]\n{_keys(label)}{blocks}{omitted and chr(10) + omitted}\n[privacy]\n{tail}"


def closing_later(text: str, now: datetime) -> str:
    """The text of a starter with the closing time, where it has one, thirty days from now at noon in UTC.

    The phases of a study share the time until it closes, so that a distant one would make each of them last for months.
    """
    return _put(text, "closes", f"{now + _OPEN:%Y-%m-%d}T12:00:00Z", "30 days from the day this was written; all phases share that time")


def about(n: int) -> int:
    """A number of rows with two digits that count.

    Examples
    --------
    >>> about(48_842), about(600), about(7)
    (48000, 600, 7)
    """
    unit = int(10 ** max(0, len(str(n)) - 2))
    return n // unit * unit


def _figures(protocol: str, n_rows: int) -> dict[str, tuple[int, str]]:
    """Who takes part, by the keys of the starter: as many as there are rows for."""
    size = max(1, about(n_rows))
    found = {"size": (size, _GUESS)}
    if protocol == "pfds":
        n_holders = max(_FEWEST_HOLDERS, min(_HOLDERS, size // _ROWS_OF_A_HOLDER))
        return found | {"minimum": (-(-3 * n_holders // 4), "organisations that must share"), "n_holders": (n_holders, "m")}
    if protocol == "sdq":
        return found
    minimum = max(1, size // 2)
    found |= {"minimum": (minimum, "half of the rows: change it as you like; with fewer the study gives up")}
    if protocol == "ddml":
        found |= {"n_instances": (min(_INSTANCES, minimum), "k"), "batch_size": (1, "N_c: rows of a device; here each row is one")}
    return found


def _put(text: str, key: str, value: str, remark: str = "") -> str:
    """The text with another value of a key."""
    line = f"{key} = {value}"
    return re.sub(rf"^{key} = .*$", lambda _: f"{line:<36}# {remark}" if remark else line, text, count=1, flags=re.MULTILINE)


def _keys(feature: Feature) -> str:
    """The lines of a feature or label."""
    if isinstance(feature, Numeric):
        known = f"range = [{_figure(feature.low)}, {_figure(feature.high)}]"
    else:
        known = f"values = {json.dumps(list(feature.values), ensure_ascii=False)}"
    return f"name = {_text(feature.name)}\n{known}    # {_READ}\n"


def _missing(feature: Feature) -> str:
    return "" if feature.missing else f"missing = false    # {_FULL}\n"


def _figure(value: float) -> str:
    """A whole number without a point, where it has few digits."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _text(text: str) -> str:
    """A text in quotes: JSON's strings are TOML's."""
    return json.dumps(text, ensure_ascii=False)
