"""A starter study from a file of data: its columns, written down with a warning that ranges were read from it.

A study is public and rows are not. A column that tells rows apart is left out, or named in a warning where it is a number; a column whose
texts cannot stand in a study is left out too (`shoal.study.infer_columns`). Errors give numbers of columns and rows, and no cell.
"""

from __future__ import annotations

import difflib
import shlex
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import to_number, to_texts, where
from shoal.domain import Categorical, Columns, Feature, numbers_of, range_of
from shoal.errors import SpecError
from shoal.features import is_name
from shoal.names import counted, shown
from shoal.study.infer_columns import MAX_CLASSES, MAX_VALUES, are_own, judge
from shoal.study.load import MAX_BYTES
from shoal.study.spec import MAX_FEATURES
from shoal.study.templates.drafts import draft
from shoal.study.values import MAX_TEXT, is_line
from shoal.tables import n_rows

__all__ = ["are_own", "study_like"]

LEAST_ROWS, FEW_ROWS = 8, 100
"""Fewer rows make no study; from few, which a simulation divides, nothing can be learned but by chance."""

WARNING = "Ranges and values were read from the data, which is not a private act. Replace them by public knowledge before use."
_OWN_NUMBERS = "Kept, though most rows have a number of their own, as identifiers do"
_FIX_LABEL = "Fill in, correct or remove the rows, or name another column: --label COLUMN"


def study_like(columns: Columns, protocol: str, label: str | None = None) -> tuple[str, list[str]]:
    """The starter study of a protocol with the columns of a table, as TOML, and what its reader has to be warned of.

    Rows do not enter the text, but ranges and lists of values do, and about how many rows there are.

    Parameters
    ----------
    columns, protocol
        The table, and whose starter it is.
    label
        Which column is predicted; by default the last.

    Raises
    ------
    SpecError
        ``DATA-001``, ``DATA-004``, ``DATA-005`` or ``DATA-007``: no study can be made of this table.
    """
    if label is not None and label.strip() not in columns:
        what, why = f"The data has no column {shown(label)}.", f"Columns in the data: {len(list(columns))}."
        # The names that are there may be cells of a table without a header: only what was all but typed is repeated.
        close = difflib.get_close_matches(label.strip()[:60], [name for name in columns if is_name(name)], n=1, cutoff=0.8)
        fix = f"--label {shlex.quote(close[0])}" if close else "Give a name from the first line of the file: --label COLUMN"
        raise SpecError("DATA-001", what, why=why, fix=fix)
    _check_table(columns)
    predicted = list(columns)[-1] if label is None else label.strip()
    names = [name for name in columns if name != predicted]
    judged = {name: judge(name, columns[name]) for name in names}
    suspects = [i for i, name in enumerate(columns) if name in judged and judged[name].is_named_like_a_cell]
    if len(suspects) > 1:
        raise _no_header(suspects[0])
    features = [one.feature for one in judged.values() if one.feature is not None]
    if not features:
        what = f"Of {counted(len(names), 'column')} beside the label, none is a number or a category of at most {MAX_VALUES} values."
        why = " ".join(f"Column {list(columns).index(name) + 1}: {one.why}." for name, one in list(judged.items())[:3])
        raise _refusal(what, "Give a table with more rows, or with other columns.", why)
    left_out: dict[str, list[str]] = {}
    for name, one in judged.items():
        if one.feature is None:
            left_out.setdefault(one.why, []).append(name)
    given = "The last column is taken for the label" if label is None else "The column that is named as the label cannot be one"
    text = draft(protocol, _label(given, predicted, columns[predicted], protocol), features, left_out, n_rows(columns))
    if len(text.encode()) > MAX_BYTES:
        raise _refusal(f"The study would have {len(text.encode()):,} bytes; at most {MAX_BYTES:,} are allowed.", "Remove columns.")
    own = [name for name, one in judged.items() if one.is_own]
    warnings = {_OWN_NUMBERS: own} if own else {}
    warnings |= {f"Left out, because {why}": named for why, named in left_out.items()}
    few = f"The file has {counted(n_rows(columns), 'row')}: what a simulation on so few says is mostly chance."
    told = [WARNING, few] if n_rows(columns) < FEW_ROWS else [WARNING]
    return text, [*told, *(f"{what}: {', '.join(named)}." for what, named in warnings.items())]


def _check_table(columns: Columns) -> None:
    if len(columns) < 2:
        raise _refusal("The file has a single column.", "Give one column per feature, and one for the label.")
    if len(columns) - 1 > MAX_FEATURES:
        raise _refusal(f"The file has {len(columns):,} columns; a study has at most {MAX_FEATURES:,} features.", "Remove columns.")
    if n_rows(columns) < LEAST_ROWS:
        what = "The file has no rows." if n_rows(columns) == 0 else f"The file has {counted(n_rows(columns), 'row')}."
        raise _refusal(what, f"Give {LEAST_ROWS} rows or more, from which ranges and values can be read.")
    for position, name in enumerate(columns):
        if not is_name(name):
            raise _refusal(f"Column {position + 1} has a name that no feature can have.", "Give it a short, printable name.")
        if to_number(name) is not None:
            raise _no_header(position)


def _no_header(position: int) -> SpecError:
    """A first row in the place of the names would be published with the study."""
    what = f"Column {position + 1} has a name that looks like a cell."
    return _refusal(what, "Name the columns in the first line; if this is its name, choose another.")


def _label(given: str, name: str, column: npt.NDArray[Any], protocol: str) -> Feature:
    """The label's column, which an error does not name: in a table without a line of names that would be a cell."""
    texts = to_texts("label", column)
    known = [text for text in texts if text is not None]
    n_values = len(set(known))
    _check_label(given, [text is None for text in texts], "missing")
    if 2 <= n_values <= MAX_CLASSES and not are_own(known):
        _check_label(given, [not is_line(text) for text in known], f"not a plain line of at most {MAX_TEXT} characters")
        return Categorical(name, sorted(set(known)), missing=False)
    numbers = numbers_of(name, column) if n_values >= 2 else None
    if numbers is not None and protocol in ("ddml", "pfds"):
        _check_label(given, np.isnan(numbers).tolist(), "missing")
        return range_of(name, numbers)
    raise SpecError(
        "DATA-007",
        f"{given}: it has {counted(n_values, 'different value')} in {counted(len(known), 'row')}.",
        why=f"A label has 2 to {MAX_CLASSES} classes, each of two or more rows on average; ddml and pfds can also predict a number.",
        fix=_FIX_LABEL if numbers is None else "It is a number: --protocol ddml or --protocol pfds; or name another column: --label COLUMN",
    )


def _check_label(given: str, strange: list[bool], what: str) -> None:
    if any(strange):
        raise SpecError("DATA-005" if what == "missing" else "DATA-007", f"{given}: {where(np.array(strange))} {what}.", fix=_FIX_LABEL)


def _refusal(what: str, fix: str, why: str | None = None) -> SpecError:
    return SpecError("DATA-007", what, why=why, fix=fix)
