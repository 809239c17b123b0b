"""A starter study from a file of data: its columns, written down with a warning that ranges were read from it.

A study is public and rows are not. A column in which most rows have a value of their own is left out, or named in a warning where it is a
number; a column whose texts cannot stand in a study is left out too. Errors give numbers of columns and rows, and no cell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import to_number, to_texts, where
from shoal.domain import Categorical, Columns, Feature, Numeric, categories_of, numbers_of, range_of
from shoal.errors import SpecError
from shoal.features import is_name
from shoal.names import counted
from shoal.study.load import MAX_BYTES
from shoal.study.spec import MAX_FEATURES
from shoal.study.templates import study_text
from shoal.study.values import MAX_TEXT, is_line
from shoal.tables import n_rows

MAX_VALUES = 100
"""A text column of more values than this looks like names or identifiers, and is left out."""
MAX_CLASSES = 20

WARNING = "Ranges and values were read from the data, which is not a private act. Replace them by public knowledge before use."

_PLACEHOLDERS = {
    "title": "(write a title)",
    "purpose": "(write what the model is for, in words that a participant reads before consenting)",
    "contact": "(write whom to ask)",
}
_OWN_NUMBERS = "Kept, though most rows have a number of their own, as identifiers do"
_OWN_TEXTS = "Left out, because they look like names or identifiers"
_EMPTY = "Left out, because they hold no value at all"
_NO_LINES = f"Left out, because a value is not a plain line of at most {MAX_TEXT} characters"
# Without its name, which may be a cell.
_TAKEN = "The last column is taken for the label"
_FIX_LABEL = "Fill in, correct or remove the rows, or put the label in the last column."


@dataclass
class _Draft:
    """What is found column by column: features, what to warn of, and the columns whose name stands among their cells."""

    features: list[Feature] = field(default_factory=list)
    warned: dict[str, list[str]] = field(default_factory=dict)
    named_like_a_cell: list[int] = field(default_factory=list)

    def add(self, position: int, name: str, column: npt.NDArray[Any]) -> None:
        """Take a column for a feature, or say why not."""
        numbers = numbers_of(name, column)
        if numbers is not None:
            self.features.append(range_of(name, numbers))
            known = numbers[~np.isnan(numbers)]
            if (known == np.floor(known)).all() and 2 * np.unique(known).size > known.size:
                self._warn(_OWN_NUMBERS, name)
            return
        try:
            texts = to_texts(name, column)
        except SpecError:
            self._warn(_NO_LINES, name)
            return
        known_texts = [text for text in texts if text is not None]
        values = set(known_texts)
        self.named_like_a_cell += [position] if name in values else []
        if not values:
            self._warn(_EMPTY, name)
        elif len(values) > MAX_VALUES or are_own(known_texts):
            self._warn(_OWN_TEXTS, name)
        elif not all(map(is_line, values)):
            self._warn(_NO_LINES, name)
        else:
            self.features.append(categories_of(name, texts))

    def _warn(self, what: str, name: str) -> None:
        self.warned.setdefault(what, []).append(name)


def study_like(columns: Columns, protocol: str) -> tuple[str, list[str]]:
    """The starter study of a protocol with the columns of a table, as TOML, and what its reader has to be warned of.

    The last column is the label. Rows do not enter the text, but ranges and lists of values do.
    """
    _check_table(columns)
    *names, label_name = columns
    draft = _Draft()
    for position, name in enumerate(names):
        draft.add(position, name, columns[name])
    if len(draft.named_like_a_cell) > 1:
        raise _no_header(draft.named_like_a_cell[0])
    if not draft.features:
        what = f"Of {counted(len(names), 'column')} before the label, none is a number or a category of at most {MAX_VALUES} values."
        raise _refusal(what, "Give a table with more rows, or with other columns.")
    text = _write(protocol, _label(label_name, columns[label_name], protocol), draft.features)
    return text, [WARNING, *(f"{what}: {', '.join(named)}." for what, named in draft.warned.items())]


def _check_table(columns: Columns) -> None:
    if len(columns) < 2:
        raise _refusal("The file has a single column.", "Give one column per feature, and the label as the last one.")
    if len(columns) - 1 > MAX_FEATURES:
        raise _refusal(f"The file has {len(columns):,} columns; a study has at most {MAX_FEATURES:,} features.", "Remove columns.")
    if n_rows(columns) == 0:
        raise _refusal("The file has no rows.", "Give some rows, from which ranges and values can be read.")
    for position, name in enumerate(columns):
        if not is_name(name):
            raise _refusal(f"Column {position + 1} has a name that no feature can have.", "Give it a short, printable name.")
        if to_number(name) is not None:
            raise _no_header(position)


def _no_header(position: int) -> SpecError:
    """A first row in the place of the names would be published with the study."""
    what = f"Column {position + 1} has a name that looks like a cell."
    return _refusal(what, "Name the columns in the first line; if this is its name, choose another.")


def are_own(values: list[str]) -> bool:
    """Whether most rows have a value of their own: fewer than two rows to a value."""
    return 2 * len(set(values)) > len(values)


def _label(name: str, column: npt.NDArray[Any], protocol: str) -> Feature:
    texts = to_texts(name, column)
    known = [text for text in texts if text is not None]
    n_values = len(set(known))
    _check_label([text is None for text in texts], "missing")
    if 2 <= n_values <= MAX_CLASSES and not are_own(known):
        _check_label([not is_line(text) for text in known], f"not a plain line of at most {MAX_TEXT} characters")
        return Categorical(name, sorted(set(known)), missing=False)
    numbers = numbers_of(name, column) if protocol in ("ddml", "pfds") and n_values >= 2 else None
    if numbers is not None:
        _check_label(np.isnan(numbers).tolist(), "missing")
        return range_of(name, numbers)
    raise SpecError(
        "DATA-007",
        f"{_TAKEN}, and has {counted(n_values, 'different value')} in {counted(len(known), 'row')}.",
        why=f"A label has 2 to {MAX_CLASSES} classes, each of two or more rows on average; ddml and pfds can also predict a number.",
        fix=_FIX_LABEL,
    )


def _check_label(strange: list[bool], what: str) -> None:
    if any(strange):
        raise SpecError("DATA-005" if what == "missing" else "DATA-007", f"{_TAKEN}: {where(np.array(strange))} {what}.", fix=_FIX_LABEL)


def _write(protocol: str, label: Feature, features: list[Feature]) -> str:
    head, _, rest = study_text(protocol).partition("\n[label]\n")
    tail = rest.partition("\n[privacy]\n")[2]
    for key, words in _PLACEHOLDERS.items():
        head = re.sub(rf"^{key} = .*$", f'{key} = "{words}"', head, flags=re.MULTILINE)
    # The starter's remark beside epsilon speaks about its own unit.
    tail = re.sub(r"^(epsilon = \S+).*$", r"\1", tail, flags=re.MULTILINE)
    # Its crosses are of its own features.
    tail = re.sub(r"^crosses = .*\n", "", tail, flags=re.MULTILINE)
    blocks = "".join(f"\n[[feature]]\n{_keys(feature)}" for feature in features)
    text = f"{head}\n\n# READ FROM THE DATA: {WARNING}\n\n[label]\n{_keys(label)}{blocks}\n[privacy]\n{tail}"
    if len(text.encode()) > MAX_BYTES:
        raise _refusal(f"The study would have {len(text.encode()):,} bytes; at most {MAX_BYTES:,} are allowed.", "Remove columns.")
    return text


def _keys(feature: Feature) -> str:
    """The lines of a feature or label; JSON's strings are TOML's."""
    lines = [f"name = {json.dumps(feature.name, ensure_ascii=False)}"]
    if isinstance(feature, Numeric):
        lines.append(f"range = [{feature.low!r}, {feature.high!r}]    # READ FROM THE DATA")
    else:
        lines.append(f"values = {json.dumps(list(feature.values), ensure_ascii=False)}    # READ FROM THE DATA")
    return "\n".join(lines) + "\n"


def _refusal(what: str, fix: str) -> SpecError:
    return SpecError("DATA-007", what, fix=fix)
