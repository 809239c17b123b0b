"""Public tables of each feature and the label, such as a census prints, and made-up rows that have them.

It is TOML: a block for the label, and one for each feature of the study::

    [[table]]
    label = "passed"
    shares = { no = 0.3, yes = 0.7 }

    [[table]]
    feature = "country"
    shares.no = { DE = 0.2, FR = 0.3, NO = 0.1, PL = 0.2, other = 0.2 }
    shares.yes = { DE = 0.3, FR = 0.3, NO = 0.1, PL = 0.2, other = 0.1 }

    [[table]]
    feature = "hours_watched"
    cuts = [10, 30, 60]                        # by default the study's bins
    shares.no = [0.5, 0.3, 0.1, 0.1]           # up to 10, up to 30, up to 60, and above; one more for missing values
    shares.yes = [0.1, 0.2, 0.3, 0.4]

Shares add up to 1 in each class; whole numbers are counts. The name of a group stands for its values, in equal parts, and ``missing`` for
missing values. Nothing is said about features together, and so they are taken as independent given the label.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Numeric
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError
from shoal.names import shown
from shoal.sim.runs import Split
from shoal.sim.scores import Floats, Ints
from shoal.study.spec import Study
from shoal.study.toml_files import Kind, read_blocks

N_UNSEEN = 10_000
"""Made-up rows on which models are tried."""

_MISSING = "missing"
_NEARLY = 0.01
_NAMED = 8
_TABLES = Kind(
    "FORECAST-001",
    "file of public tables",
    "table",
    '[[table]] with label = "passed" and shares = { no = 0.3, yes = 0.7 }, and one with feature = "country" and '
    "shares.no = { DE = 0.5, FR = 0.5 } for each class; the words are the study's own.",
    1_000_000,
)


@dataclass(frozen=True, eq=False)
class Law:
    """How the values of a feature are spread in each class.

    Parameters
    ----------
    shares
        ``(n_classes, n_cells)``; each row adds up to 1.
    lows, highs
        ``(n_cells,)`` between which numbers of a cell lie, evenly; of a category both are the position of its value.
    is_number
        Whether it is one.
    """

    shares: Floats
    lows: Floats
    highs: Floats
    is_number: bool

    def draw(self, labels: Ints, entropy: Entropy) -> npt.NDArray[Any]:
        """A value for each of some people whose label is known."""
        cells = pick(self.shares, labels, entropy)
        lows, highs = self.lows[cells], self.highs[cells]
        if not self.is_number:
            return lows.astype(np.int64)
        return highs - _uniform(len(labels), entropy) * (highs - lows)


@dataclass(frozen=True, eq=False)
class DeclaredTables:
    """A population of which public tables are all that is known; rows are drawn from it without end.

    Parameters
    ----------
    classes
        ``(n_classes,)`` shares of the label.
    laws
        Of each feature.
    seed
        Decides which rows are drawn.
    """

    classes: Floats = field(repr=False)
    laws: Mapping[str, Law] = field(repr=False)
    seed: int
    n_folds: int = 1

    def n_apart(self, n_rows: int) -> float:  # noqa: ARG002 - however large it is
        """There is no end of them."""
        return math.inf

    def is_repeated(self, n_rows: int) -> bool:  # noqa: ARG002 - however large it is
        """Never."""
        return False

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:  # noqa: ARG002 - there is no end of them
        """Rows to learn from, fresh for each repeat, and the rows to test on, always the same."""
        entropy = SeededEntropy(self.seed).spawn("forecast")
        return Split(*self._rows(n_rows, entropy.spawn("rows", n_rows, repeat)), *self._rows(N_UNSEEN, entropy.spawn("unseen")))

    def _rows(self, n: int, entropy: Entropy) -> tuple[dict[str, npt.NDArray[Any]], Ints]:
        labels = pick(self.classes[np.newaxis], np.zeros(n, np.int64), entropy)
        return {name: law.draw(labels, entropy) for name, law in self.laws.items()}, labels


def pick(shares: Floats, rows: Ints, entropy: Entropy) -> Ints:
    """For each of some rows of a table of shares one of its cells, by chance."""
    ends = np.cumsum(shares, axis=1)
    ends[:, -1] = np.inf  # whatever was lost in rounding
    drawn = _uniform(len(rows), entropy)
    cells = np.zeros(len(rows), np.int64)
    for column in ends.T[:-1]:
        cells += drawn >= column[rows]
    return cells


def _uniform(n: int, entropy: Entropy) -> Floats:
    numbers: Floats = entropy.words(n, np.uint32) / 2.0**32
    return numbers


def load_tables(path: str | os.PathLike[str], study: Study, seed: int) -> DeclaredTables:
    """The tables in a file; `SpecError` ``FORECAST-001`` where they are not those of the study's label and of all its features."""
    schema = study.schema()
    if not isinstance(schema.label, Categorical) or schema.texts:
        what = "This study has texts" if schema.texts else "This study predicts a number"
        fix = "Give rows of the same kind: --like public.csv"
        raise SpecError("FORECAST-001", f"{what}, of which public tables say nothing: no forecast can be made from them.", fix=fix)
    found, classes = read_blocks(path, _TABLES), schema.label.values
    label: Floats | None = None
    laws: dict[str, Law] = {}
    for position, block in enumerate(found.blocks):
        where = found.where(position)
        match block:
            case {"label": schema.label.name, "shares": dict(shares), **rest} if not rest and label is None:
                label = _shares(where, _of_each(where, shares, classes))
            case {"feature": str(name), "shares": dict(shares), **rest} if name in {*schema.names} - {*laws} and rest.keys() <= {"cuts"}:
                laws[name] = _law(where, schema[name], _of_each(where, shares, classes), rest.get("cuts"))
            case _:
                raise _TABLES.error(where, f"Table {position + 1} is not of the label or of a feature, each once.")
    lacking = [name for name in schema.names if name not in laws] + ([schema.label.name] if label is None else [])
    if label is None or lacking:
        raise _TABLES.error(found.name, f"There is no table of {_listed(lacking)}.")
    return DeclaredTables(label, {name: laws[name] for name in schema.names}, seed)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_NAMED])) + (" and others" if len(names) > _NAMED else "")


def _of_each(where: str, given: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """What is given for each of some names, in their order."""
    if set(given) != set(names):
        raise _TABLES.error(where, f"The shares are not those of {_listed(names)}, each once.")
    return [given[name] for name in names]


def _shares(where: str, numbers: Sequence[Any]) -> Floats:
    """Shares that add up to 1, or counts."""
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < math.inf for one in numbers):
        raise _TABLES.error(where, "A share is not a number of 0 or more.")
    total = math.fsum(numbers)
    if total <= 0 or not (all(isinstance(one, int) for one in numbers) or abs(total - 1) <= _NEARLY):
        raise _TABLES.error(where, f"The shares add up to {total:g}, not to 1.")
    return np.array(numbers, np.float64) / total


def _law(where: str, feature: Feature, given: Sequence[Any], cuts: Any) -> Law:
    """The law of a feature, by what is given for each class."""
    if isinstance(feature, Numeric):
        return _law_of_number(where, feature, given, cuts)
    if cuts is not None or not all(isinstance(one, dict) for one in given):
        raise _TABLES.error(where, f"{shown(feature.name)} is a category: give the share of each value, and no cuts.")
    positions = {value: [i] for i, value in enumerate(feature.values)}
    groups = {name: [feature.values.index(one) for one in members] for name, members in (feature.groups or {}).items()}
    cells: Mapping[str, list[int]] = groups if groups and set(given[0]) - {_MISSING} == set(groups) else positions
    if feature.missing and any(_MISSING in one for one in given):
        cells = {_MISSING: [-1], **cells}
    rows = [_shares(where, _of_each(where, one, list(cells))) for one in given]
    parts = np.array([[share / len(cell) for share, cell in zip(row, cells.values(), strict=True) for _ in cell] for row in rows])
    codes = np.array([code for cell in cells.values() for code in cell], np.float64)
    return Law(parts, codes, codes, is_number=False)


def _law_of_number(where: str, feature: Numeric, given: Sequence[Any], cuts: Any) -> Law:
    inner = feature.bins if cuts is None else cuts
    try:
        bins = Numeric(feature.name, feature.low, feature.high, bins=inner or ()).bins or ()
    except SpecError as error:
        raise _TABLES.error(where, error.what, error.fix) from None
    ends = [float(feature.low), *map(float, bins), float(feature.high)]
    lengths = {len(one) if isinstance(one, list) else 0 for one in given}
    n_cells = len(ends) - 1
    if lengths != {n_cells} and not (feature.missing and lengths == {n_cells + 1}):
        more = f", or {n_cells + 1} with the share of missing values" if feature.missing else ""
        raise _TABLES.error(where, f"{shown(feature.name)} has {n_cells} cells: give a list of so many shares for each class{more}.")
    gone = [math.nan] * (lengths.pop() - n_cells)
    return Law(np.array([_shares(where, one) for one in given]), np.array(ends[:-1] + gone), np.array(ends[1:] + gone), is_number=True)
