"""Parameters; rows as cell indices.

All parties of a study build `SDQParams` from the manifest: scripts, peers, the aggregator and the
simulation read nothing else about the study. Everything in it is public. `CellTable` holds the
private rows of one database, or the rows of all databases in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.errors import SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.privacy.events import Relation, Scope, Unit
from shoal.text import format_count

Ints = npt.NDArray[np.int64]

Noise = Literal["all-contribute", "two-selected"]
Choice = Literal["mpc", "sums"]
Learner = Literal["tree", "naive-bayes"]

CELLS_OF_A_NUMBER = 8
"""Number of equal-width bins of a numeric feature without public bins; independent of the data."""
MAX_COMMITTEE = 21
"""Most databases that compute jointly: their traffic grows with the square of their number."""


MAX_SCORES = 300_000
"""Most scores of all databases together that one committee member receives: one message."""


def compute_committee_size(max_colluders: int) -> int:
    """Return the smallest committee in which colluders are a minority; at least three."""
    return 2 * max(1, max_colluders) + 1


def compute_default_choice(n_databases: int, max_colluders: int) -> Choice:
    """Return how splits are chosen by default.

    The choice is joint (``"mpc"``) if a committee with an honest majority is possible, otherwise it
    uses sums only.
    """
    return (
        "mpc"
        if compute_committee_size(max_colluders) <= min(n_databases, MAX_COMMITTEE)
        else "sums"
    )


def add_bins(feature: Feature) -> Feature:
    """Return the feature with public bins: its declared ones, or equal widths of its range.

    There are fewer bins if floats cannot distinguish the cut points.

    Examples
    --------
    >>> add_bins(Numeric("age", 0, 80)).bins, add_bins(Numeric("big", 1e16, 1e16 + 2)).bins
    ((10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0), (1e+16,))
    """
    if isinstance(feature, Numeric) and feature.bins is None:
        step = (feature.high - feature.low) / CELLS_OF_A_NUMBER
        cuts = {feature.low + step * i for i in range(1, CELLS_OF_A_NUMBER)}
        return replace(feature, bins=tuple(sorted(cut for cut in cuts if cut < feature.high)))
    return feature


@dataclass(frozen=True)
class SDQParams:
    """The public parameters of a study.

    Parameters
    ----------
    schema
        Features and a categorical label; numeric features without public bins get equal widths.
    epsilon
        B: the whole budget of one unit for the model. Infinite means no noise, which only a
        simulation may use.
    size
        Expected total number of rows; a public estimate.
    n_databases, minimum
        N, and the fewest databases that a sum needs: N - D, if D may drop out.
    max_colluders
        C: databases that may collude with the aggregator (the miner).
    variant, trust
        ``"paper"`` with trust ``"local"`` is distributed SuLQ: every database adds all of the
        noise.
    noise
        Who adds noise: every database adds a share, or two selected databases add all of it.
    choice, learner
        Variant plus: how splits are chosen, and which model is learned.
    depth
        d: most attributes on a path of the tree.
    unit, max_rows
        What epsilon protects, and most rows of one unit that a database uses.

    Notes
    -----
    Ref: SDQ §IV; errata S-02, S-04, S-13.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 0, 100)], label=Categorical("ill", ["no", "yes"]))
    >>> params = SDQParams(
    ...     schema, epsilon=1.0, size=10_000, n_databases=10, minimum=9, max_colluders=3
    ... )
    >>> params.arities, params.n_honest, str(params.scope)
    ((9,), 6, 'record, add-remove, against the miner and up to 3 colluding databases')
    """

    schema: Schema
    epsilon: float
    size: int
    n_databases: int = 10
    minimum: int = 10
    max_colluders: int = 0
    variant: Literal["plus", "paper"] = "plus"
    trust: Literal["secure-sum", "local"] = "secure-sum"
    noise: Noise = "all-contribute"
    choice: Choice = "mpc"
    learner: Learner = "tree"
    depth: int = 8
    unit: Literal["record", "person"] = "record"
    max_rows: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.schema.label, Categorical):
            raise SpecError(
                "SCHEMA-001",
                "SDQ predicts a category, but the schema has no categorical label.",
                fix="Add a categorical label: Schema(..., label=Categorical(...)).",
            )
        if not self.is_noiseless:
            check_epsilon(self.epsilon)
        object.__setattr__(
            self,
            "schema",
            replace(self.schema, features=tuple(map(add_bins, self.schema.features))),
        )

    @property
    def is_noiseless(self) -> bool:
        """Whether epsilon is infinite: sums carry no noise, which only a simulation may use."""
        return self.epsilon == math.inf

    @property
    def label(self) -> Categorical:
        """The predicted column."""
        assert isinstance(self.schema.label, Categorical)
        return self.schema.label

    @property
    def n_classes(self) -> int:
        """Number of label values."""
        return len(self.label.values)

    @cached_property
    def arities(self) -> tuple[int, ...]:
        """Number of cells of each feature, including the cell for missing values."""
        return tuple(feature.n_bins or 0 for feature in self.schema.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that an answer depends on."""
        return (*self.schema.names, self.label.name)

    @property
    def n_honest(self) -> int:
        """N - C - D: noise shares that every sum contains and the miner does not know.

        Each share is scaled for this number.
        """
        return 1 if self.trust == "local" else self.minimum - self.max_colluders

    @property
    def scope(self) -> Scope:
        """The scope of the epsilon of a release: unit, relation and adversary."""
        return Scope(Unit(self.unit), Relation.ADD_REMOVE, self._adversary)

    @property
    def _adversary(self) -> str:
        if self.trust == "local":
            return "the miner and all other databases"
        if self.noise == "two-selected":
            return "the miner, if no database tells it anything"
        if self.max_colluders == 0:
            # A database that reads the model and subtracts its own share of the noise is a
            # single colluder.
            return "the miner and everyone who holds none of the databases"
        return f"the miner and up to {format_count(self.max_colluders, 'colluding database')}"


@dataclass(frozen=True)
class CellTable:
    """Rows as cell indices: those of one database, or of several in a simulation.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each feature.
    labels
        ``(n,)`` class indices.
    owners
        ``(n,)`` the database of each row, counted from 0; None if all rows are of one database.
    """

    cells: Ints
    labels: Ints
    owners: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def from_columns(
        cls,
        params: SDQParams,
        columns: Mapping[str, npt.NDArray[Any]],
        labels: Ints,
        owners: Ints | None = None,
    ) -> CellTable:
        """Make a table from the results of ``schema.encode`` and ``schema.encode_label``."""
        return cls(encode_cells(params.schema, columns), np.asarray(labels, np.int64), owners)


def encode_cells(schema: Schema, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """Return the cell of each feature, ``(n, k)``; undeclared categories become the last cell."""
    cut = [
        np.minimum(feature.cut(columns[feature.name]), (feature.n_bins or 1) - 1)
        for feature in schema.features
    ]
    return np.stack(cut, axis=1).astype(np.int64)


def assign_rows(n_rows: int, n_databases: int, entropy: Entropy) -> Ints:
    """Assign rows to databases at random; the sizes of two databases differ by at most one.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> np.bincount(assign_rows(11, 3, SeededEntropy(1))).tolist()
    [4, 4, 3]
    """
    owners = np.empty(n_rows, np.int64)
    owners[np.argsort(entropy.words(n_rows, np.uint64), kind="stable")] = (
        np.arange(n_rows) % n_databases
    )
    return owners
