"""What all parties of an SDQ study agree on: the public figures from which everything else follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.errors import SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.names import counted
from shoal.privacy.events import Relation, Scope, Unit

Ints = npt.NDArray[np.int64]

Noise = Literal["all-contribute", "two-selected"]
Choice = Literal["mpc", "sums"]
Learner = Literal["tree", "naive-bayes"]

CELLS_OF_A_NUMBER = 8
"""Equal widths into which a number without public bins is cut, by a rule that looks at nothing private."""
MAX_COMMITTEE = 21
"""Most databases that compute jointly: what they send each other grows with the square of their number."""


MAX_SCORES = 300_000
"""Most scores of all databases together that a party of a committee is dealt at once: they travel in one message."""


def committee_size(max_colluders: int) -> int:
    """The fewest databases among which those that collude are a minority; never fewer than three."""
    return 2 * max(1, max_colluders) + 1


def default_choice(n_databases: int, max_colluders: int) -> Choice:
    """How splits are chosen: jointly where an honest majority of a committee is sure, otherwise from sums alone."""
    return "mpc" if committee_size(max_colluders) <= min(n_databases, MAX_COMMITTEE) else "sums"


def with_bins(feature: Feature) -> Feature:
    """The feature with public bins: its own, or equal widths of its range; fewer where floats cannot tell the cut points apart.

    Examples
    --------
    >>> with_bins(Numeric("age", 0, 80)).bins, with_bins(Numeric("big", 1e16, 1e16 + 2)).bins
    ((10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0), (1e+16,))
    """
    if isinstance(feature, Numeric) and feature.bins is None:
        step = (feature.high - feature.low) / CELLS_OF_A_NUMBER
        cuts = {feature.low + step * i for i in range(1, CELLS_OF_A_NUMBER)}
        return replace(feature, bins=tuple(sorted(cut for cut in cuts if cut < feature.high)))
    return feature


@dataclass(frozen=True)
class Params:
    """The public figures of a study.

    Parameters
    ----------
    schema
        Features and a categorical label; numbers without public bins get equal widths.
    epsilon
        B: the whole budget of one unit for what is learned. Infinite: no noise at all, which only a simulation may do.
    size
        Rows in all that are expected; a public guess.
    n_databases, minimum
        N, and the fewest databases whose answers make a sum: N - D, where D may drop out.
    max_colluders
        C: databases that may side with the miner.
    variant, trust
        ``"paper"`` with trust ``"local"`` is distributed SuLQ: every database adds all of the noise.
    noise
        Who adds it: a share from every database, or two selected ones.
    choice, learner
        Variant plus: how splits are chosen, and what is learned.
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
    >>> params = Params(schema, epsilon=1.0, size=10_000, n_databases=10, minimum=9, max_colluders=3)
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
            raise SpecError("SCHEMA-001", "SDQ predicts a category; the schema's label is none.", fix="Schema(..., label=Categorical(...))")
        if not self.is_bare:
            check_epsilon(self.epsilon)
        object.__setattr__(self, "schema", replace(self.schema, features=tuple(map(with_bins, self.schema.features))))

    @property
    def is_bare(self) -> bool:
        """Whether sums carry no noise at all, which only a simulation may do: epsilon is infinite."""
        return self.epsilon == math.inf

    @property
    def label(self) -> Categorical:
        """What is predicted."""
        assert isinstance(self.schema.label, Categorical)
        return self.schema.label

    @property
    def n_classes(self) -> int:
        """Values of the label."""
        return len(self.label.values)

    @cached_property
    def arities(self) -> tuple[int, ...]:
        """Cells of each feature, the one for missing values included."""
        return tuple(feature.n_bins or 0 for feature in self.schema.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that an answer depends on."""
        return (*self.schema.names, self.label.name)

    @property
    def n_honest(self) -> int:
        """Shares of noise that are sure to be in a sum and unknown to the miner, for which each share is made: N - C - D."""
        return 1 if self.trust == "local" else self.minimum - self.max_colluders

    @property
    def scope(self) -> Scope:
        """What the epsilon of a release speaks about."""
        return Scope(Unit(self.unit), Relation.ADD_REMOVE, self._adversary)

    @property
    def _adversary(self) -> str:
        if self.trust == "local":
            return "the miner and all other databases"
        if self.noise == "two-selected":
            return "the miner, if no database tells it anything"
        if self.max_colluders == 0:
            # A database that reads the model and takes its own share of the noise away is a colluder of one.
            return "the miner and everyone who holds none of the databases"
        return f"the miner and up to {counted(self.max_colluders, 'colluding database')}"


@dataclass(frozen=True)
class Table:
    """Rows as positions of cells: those of one database, or of several in a simulation.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each feature.
    labels
        ``(n,)`` positions of the classes.
    whose
        ``(n,)`` the database of each row, counted from 0; None where all are of one.
    """

    cells: Ints
    labels: Ints
    whose: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, params: Params, columns: Mapping[str, npt.NDArray[Any]], labels: Ints, whose: Ints | None = None) -> Table:
        """Rows as ``schema.encode`` and ``schema.encode_label`` give them."""
        return cls(cells_of(params.schema, columns), np.asarray(labels, np.int64), whose)


def cells_of(schema: Schema, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """The cell of each feature, ``(n, k)``; a category that nobody declared is taken for the last one."""
    cut = [np.minimum(feature.cut(columns[feature.name]), (feature.n_bins or 1) - 1) for feature in schema.features]
    return np.stack(cut, axis=1).astype(np.int64)
