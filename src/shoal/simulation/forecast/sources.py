"""Populations of a forecast: public rows, or rows drawn from public tables.

`shoal.simulation.forecast` draws from a `PopulationSource` and tests each model on rows that the
model has not learnt from; a change must keep the two sets of rows apart.

Public tables give each feature by the label, as a census prints them. The file is TOML, with one
block for the label and one for each feature of the study::

    [[table]]
    label = "passed"
    shares = { no = 0.3, yes = 0.7 }

    [[table]]
    feature = "country"
    shares.no = { DE = 0.2, FR = 0.3, NO = 0.1, PL = 0.2, other = 0.2 }
    shares.yes = { DE = 0.3, FR = 0.3, NO = 0.1, PL = 0.2, other = 0.1 }

    [[table]]
    feature = "hours_watched"
    cuts = [10, 30, 60]                # by default the study's bins
    shares.no = [0.5, 0.3, 0.1, 0.1]   # up to 10, 30, 60, and above; one more for missing values
    shares.yes = [0.1, 0.2, 0.3, 0.4]

Shares add up to 1 in each class; whole numbers are counts. The name of a group means its values,
in equal parts, and ``missing`` means missing values. Tables do not describe several features
together, so features are assumed independent given the label.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Columns, Feature, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError
from shoal.simulation.metrics import EncodedColumns, Floats, Ints
from shoal.simulation.run import Split, number_names
from shoal.study.loader import TomlFileFormat, read_blocks
from shoal.study.spec import Study
from shoal.text import escape_text, format_count

N_FOLDS = 4
"""Parts of the public rows; each in turn is the test set of the others."""
MAX_TEST_ROWS = 5_000
"""Most rows of a part to test a model on; more would hardly change the scores."""
N_GROUPS = 6
"""Groups of test rows. Each is left out once, to estimate how scores depend on the test rows."""


def assign_groups(n: int) -> Ints:
    """Return the group of each of n test rows.

    Groups are consecutive rows, so that the rows of a person are together.
    """
    return np.arange(n) * N_GROUPS // max(n, 1)


class PopulationSource(Protocol):
    """The source of the rows of a forecast."""

    @property
    def n_folds(self) -> int:
        """Sets of rows to test on; run r uses set r modulo this number."""
        ...

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:
        """Return rows of a population of this size, and test rows, from ``part`` of the source."""
        ...

    def count_populations(self, n_rows: int) -> float:
        """Return the number of disjoint populations of this size; may be infinite.

        It limits how well a draw represents a fresh population.
        """
        ...

    def is_repeated(self, n_rows: int) -> bool:
        """Return whether a row can be drawn more than once."""
        ...


@dataclass(frozen=True, eq=False)
class PublicRows:
    """A public table: three quarters are the population, one quarter the test set, in turn.

    Parameters
    ----------
    columns, labels
        Encoded rows.
    units
        ``(n,)`` the person of each row: a person's rows stay together.
    seed
        Determines the rows of each part, and the rows that are drawn.

    Notes
    -----
    A population of at most half of the available rows is drawn without replacement, and is as good
    as a fresh one. A larger one is drawn with replacement: its model can learn only what the table
    contains, and is a little worse than a real one.
    """

    columns: EncodedColumns = field(repr=False)
    labels: npt.NDArray[np.generic] = field(repr=False)
    units: Ints = field(repr=False)
    seed: int
    has_people: bool = False
    n_folds: int = N_FOLDS

    @classmethod
    def from_table(cls, study: Study, table: Columns, seed: int) -> PublicRows:
        """Return the rows of a public table that fits a study.

        Raises
        ------
        SpecError
            The table does not fit the schema, or is too small: ``SIM-003``.
        """
        schema: Schema = study.schema()
        encoded, labels = schema.encode(table), schema.encode_label(table)
        person = None if study.data is None else study.data.person
        units = np.arange(len(labels)) if person is None else number_names(table, person)
        rows = cls(encoded, labels, units, seed, person is not None)
        rows._check_labels()
        return rows

    def _check_labels(self) -> None:
        for fold in range(self.n_folds):
            labels = self.labels[self._select_test_rows(fold)]
            group = assign_groups(len(labels))
            if any(len(np.unique(labels[group != one])) < 2 for one in range(N_GROUPS)):
                raise SpecError(
                    "SIM-003",
                    f"{format_count(len(self.labels), 'public row')}, in {self.n_folds} parts, "
                    "are too few, or one label is too rare among them.",
                    why="A forecast tests models on each part in turn, and each part needs rows "
                    "with two labels.",
                    fix="Give more public rows, or another --seed.",
                )

    @property
    def n_units(self) -> int:
        """Number of people, or of rows if rows are not grouped by person."""
        return int(self.units.max(initial=-1)) + 1

    @cached_property
    def _ranks(self) -> Ints:
        """The rank of each unit in a random order."""
        ranks = np.empty(self.n_units, np.int64)
        words = SeededEntropy(self.seed).spawn("forecast", "folds").words(self.n_units, np.uint64)
        ranks[np.argsort(words, kind="stable")] = np.arange(self.n_units)
        return ranks

    def _select_test_rows(self, fold: int) -> Ints:
        """Return the test rows of a part, in a random order that keeps a person's rows together."""
        row_ranks = self._ranks[self.units]
        rows = np.flatnonzero(row_ranks % self.n_folds == fold)
        return rows[np.argsort(row_ranks[rows], kind="stable")][:MAX_TEST_ROWS]

    @property
    def n_pool(self) -> float:
        """Rows available for a population, on average over the parts."""
        return len(self.labels) * (1 - 1 / self.n_folds)

    def count_populations(self, n_rows: int) -> float:
        """Return the number of populations of this size in the available rows."""
        return self.n_pool / n_rows

    def is_repeated(self, n_rows: int) -> bool:
        """Return whether rows are drawn with replacement: if fewer than two populations exist."""
        return self.count_populations(n_rows) < 2

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:
        """Return the population and the test rows; they depend only on size, repeat and part."""
        fold = repeat % self.n_folds
        entropy = SeededEntropy(self.seed).spawn("forecast", "rows", n_rows, repeat)
        pool = np.flatnonzero(self._ranks % self.n_folds != fold)
        pool = pool[np.argsort(entropy.words(len(pool), np.uint64), kind="stable")]
        pool = pool[: max(1, round(part * len(pool)))]
        n_units = max(1, round(n_rows * self.n_units / len(self.labels)))
        chosen = (
            pool[entropy.below_many(len(pool), n_units)]
            if self.is_repeated(n_rows)
            else pool[:n_units]
        )
        rows, people = self._select_rows(chosen)
        test_rows = self._select_test_rows(fold)
        train, test = (
            {name: column[which] for name, column in self.columns.items()}
            for which in (rows, test_rows)
        )
        return Split(
            train,
            self.labels[rows],
            test,
            self.labels[test_rows],
            people=people if self.has_people else None,
        )

    def _select_rows(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Return the rows of the chosen units, and the number of the draw of each row.

        A person who is drawn twice counts as two people.
        """
        order = np.argsort(self.units, kind="stable")
        counts = np.bincount(self.units, minlength=self.n_units)
        starts, lengths = (np.cumsum(counts) - counts)[chosen], counts[chosen]
        draws = np.repeat(np.arange(len(chosen)), lengths)
        within = np.arange(len(draws)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return order[starts[draws] + within], draws


N_TEST_ROWS = 10_000
"""Drawn rows to test models on."""

_MISSING = "missing"
_TOLERANCE = 0.01
_MAX_NAMES = 8
_TABLES = TomlFileFormat(
    "FORECAST-001",
    "file of public tables",
    "table",
    '[[table]] with label = "passed" and shares = { no = 0.3, yes = 0.7 }, and one with feature = '
    '"country" and '
    "shares.no = { DE = 0.5, FR = 0.5 } for each class; use the names of the study file.",
    1_000_000,
)


@dataclass(frozen=True, eq=False)
class FeatureDistribution:
    """The distribution of a feature in each class.

    Parameters
    ----------
    shares
        ``(n_classes, n_cells)``; each row adds up to 1.
    lows, highs
        ``(n_cells,)`` the bounds of each cell; numbers are uniform between them. For a category
        both are the position of its value.
    is_number
        Whether the feature is a number.
    """

    shares: Floats
    lows: Floats
    highs: Floats
    is_number: bool

    def draw(self, labels: Ints, entropy: Entropy) -> npt.NDArray[Any]:
        """Return a value for each label."""
        cells = draw_cells(self.shares, labels, entropy)
        lows, highs = self.lows[cells], self.highs[cells]
        if not self.is_number:
            return lows.astype(np.int64)
        return highs - _draw_uniform(len(labels), entropy) * (highs - lows)


@dataclass(frozen=True, eq=False)
class DeclaredTables:
    """A population that is known only by public tables; it has no limit of rows.

    Parameters
    ----------
    classes
        ``(n_classes,)`` shares of the label.
    distributions
        Name of a feature -> its distribution.
    seed
        Determines the rows that are drawn.
    """

    classes: Floats = field(repr=False)
    distributions: Mapping[str, FeatureDistribution] = field(repr=False)
    seed: int
    n_folds: int = 1

    def count_populations(self, n_rows: int) -> float:  # noqa: ARG002 - the same for each size
        """Return infinity: each draw is fresh."""
        return math.inf

    def is_repeated(self, n_rows: int) -> bool:  # noqa: ARG002 - the same for each size
        """Return False: each row is drawn once."""
        return False

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:  # noqa: ARG002 - the source has no end
        """Return rows to learn from, fresh for each repeat, and always the same test rows."""
        entropy = SeededEntropy(self.seed).spawn("forecast")
        return Split(
            *self._draw_rows(n_rows, entropy.spawn("rows", n_rows, repeat)),
            *self._draw_rows(N_TEST_ROWS, entropy.spawn("unseen")),
        )

    def _draw_rows(self, n: int, entropy: Entropy) -> tuple[dict[str, npt.NDArray[Any]], Ints]:
        labels = draw_cells(self.classes[np.newaxis], np.zeros(n, np.int64), entropy)
        columns = {
            name: distribution.draw(labels, entropy)
            for name, distribution in self.distributions.items()
        }
        return columns, labels


def draw_cells(shares: Floats, rows: Ints, entropy: Entropy) -> Ints:
    """Return a random cell for each row index of a table of shares."""
    ends = np.cumsum(shares, axis=1)
    ends[:, -1] = np.inf  # rounding may have left it below 1
    drawn = _draw_uniform(len(rows), entropy)
    cells = np.zeros(len(rows), np.int64)
    for column in ends.T[:-1]:
        cells += drawn >= column[rows]
    return cells


def _draw_uniform(n: int, entropy: Entropy) -> Floats:
    numbers: Floats = entropy.words(n, np.uint32) / 2.0**32
    return numbers


def load_tables(path: str | os.PathLike[str], study: Study, seed: int) -> DeclaredTables:
    """Read the tables of a study's label and of all its features from a file.

    Raises
    ------
    SpecError
        A table is missing or unknown, or the study has texts or a numeric label: ``FORECAST-001``.
    """
    schema = study.schema()
    if not isinstance(schema.label, Categorical) or schema.texts:
        kind = "has texts" if schema.texts else "predicts a number"
        fix = "Give rows of the same kind: --like public.csv"
        raise SpecError(
            "FORECAST-001",
            f"This study {kind}, which public tables cannot describe.",
            fix=fix,
        )
    blocks, classes = read_blocks(path, _TABLES), schema.label.values
    label: Floats | None = None
    distributions: dict[str, FeatureDistribution] = {}
    for position, block in enumerate(blocks.blocks):
        where = blocks.locate_block(position)
        match block:
            case {"label": schema.label.name, "shares": dict(shares), **rest} if (
                not rest and label is None
            ):
                label = _parse_shares(where, _read_each(where, shares, classes))
            case {"feature": str(name), "shares": dict(shares), **rest} if name in {
                *schema.names
            } - {*distributions} and rest.keys() <= {"cuts"}:
                distributions[name] = _make_distribution(
                    where, schema[name], _read_each(where, shares, classes), rest.get("cuts")
                )
            case _:
                raise _TABLES.make_error(
                    where,
                    f"Table {position + 1} does not name the label or a feature, or repeats one.",
                )
    missing = [name for name in schema.names if name not in distributions] + (
        [schema.label.name] if label is None else []
    )
    if label is None or missing:
        raise _TABLES.make_error(blocks.name, f"The table of {_format_names(missing)} is missing.")
    return DeclaredTables(label, {name: distributions[name] for name in schema.names}, seed)


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(map(escape_text, names[:_MAX_NAMES])) + (
        " and others" if len(names) > _MAX_NAMES else ""
    )


def _read_each(where: str, given: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return the given value of each name, in the order of the names."""
    if set(given) != set(names):
        raise _TABLES.make_error(where, f"The shares do not name {_format_names(names)} once each.")
    return [given[name] for name in names]


def _parse_shares(where: str, numbers: Sequence[Any]) -> Floats:
    """Return shares that add up to 1, from shares or counts."""
    if not all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf
        for number in numbers
    ):
        raise _TABLES.make_error(where, "A share is not a number of 0 or more.")
    total = math.fsum(numbers)
    if total <= 0 or not (
        all(isinstance(number, int) for number in numbers) or abs(total - 1) <= _TOLERANCE
    ):
        raise _TABLES.make_error(where, f"The shares add up to {total:g}, not to 1.")
    return np.array(numbers, np.float64) / total


def _make_distribution(
    where: str, feature: Feature, given: Sequence[Any], cuts: Any
) -> FeatureDistribution:
    """Return the distribution of a feature from the given shares of each class."""
    if isinstance(feature, Numeric):
        return _make_numeric_distribution(where, feature, given, cuts)
    if cuts is not None or not all(isinstance(one, dict) for one in given):
        raise _TABLES.make_error(
            where,
            f"{escape_text(feature.name)} is a category: give the share of each value, without "
            "cuts.",
        )
    positions = {value: [i] for i, value in enumerate(feature.values)}
    groups = {
        name: [feature.values.index(one) for one in members]
        for name, members in (feature.groups or {}).items()
    }
    cells: Mapping[str, list[int]] = (
        groups if groups and set(given[0]) - {_MISSING} == set(groups) else positions
    )
    if feature.missing and any(_MISSING in one for one in given):
        cells = {_MISSING: [-1], **cells}
    rows = [_parse_shares(where, _read_each(where, one, list(cells))) for one in given]
    parts = np.array(
        [
            [
                share / len(cell)
                for share, cell in zip(row, cells.values(), strict=True)
                for _ in cell
            ]
            for row in rows
        ]
    )
    codes = np.array([code for cell in cells.values() for code in cell], np.float64)
    return FeatureDistribution(parts, codes, codes, is_number=False)


def _make_numeric_distribution(
    where: str, feature: Numeric, given: Sequence[Any], cuts: Any
) -> FeatureDistribution:
    inner = feature.bins if cuts is None else cuts
    try:
        bins = Numeric(feature.name, feature.low, feature.high, bins=inner or ()).bins or ()
    except SpecError as error:
        raise _TABLES.make_error(where, error.what, error.fix) from None
    ends = [float(feature.low), *map(float, bins), float(feature.high)]
    lengths = {len(one) if isinstance(one, list) else 0 for one in given}
    n_cells = len(ends) - 1
    if lengths != {n_cells} and not (feature.missing and lengths == {n_cells + 1}):
        more = f", or {n_cells + 1} with the share of missing values" if feature.missing else ""
        raise _TABLES.make_error(
            where,
            f"{escape_text(feature.name)} has {n_cells} cells: give a list of {n_cells} shares "
            f"for each class{more}.",
        )
    no_number = [math.nan] * (lengths.pop() - n_cells)
    return FeatureDistribution(
        np.array([_parse_shares(where, one) for one in given]),
        np.array(ends[:-1] + no_number),
        np.array(ends[1:] + no_number),
        is_number=True,
    )
