"""Frozen descriptions of one release: mechanism, parameters, unit, relation, adversary.

Mechanisms make events; the accountant and the ledger read them. An event has everything that an
accountant needs, and nothing about how the release was computed.

Names of mechanisms and the meaning of fields never change after a version was published. The
accountant rejects an unknown mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shoal.errors import SpecError

Parameter = int | float | str


class Unit(StrEnum):
    """The unit that a guarantee protects as a whole."""

    PERSON = "person"
    """All rows of one person."""
    RECORD = "record"
    """One row of a database."""
    UPDATE = "update"
    """Everything that one model update reveals."""
    WEIGHT = "weight"
    """One coordinate of one model update (the reading of the DDML paper)."""


class Relation(StrEnum):
    """The pairs of inputs that must be hard to distinguish."""

    REPLACE = "replace"
    """The unit's data is changed to any other value of the domain."""
    ADD_REMOVE = "add-remove"
    """The unit's data is present or absent."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The unit, relation and adversary of an epsilon, which has no meaning without them.

    Parameters
    ----------
    adversary
        A phrase that can follow "protected against".
    """

    unit: Unit
    relation: Relation
    adversary: str

    def __str__(self) -> str:
        return f"{self.unit}, {self.relation}, against {self.adversary}"


LOCAL_PERSON = Scope(Unit.PERSON, Relation.REPLACE, "everyone")
"""The scope of a randomised answer that leaves one person's device."""


@dataclass(frozen=True, slots=True)
class Event:
    """One release, priced.

    Parameters
    ----------
    mechanism
        Stable name, such as ``"random-response"``.
    parameters
        Parameters of the mechanism, enough to price the release again.
    epsilon, delta
        The guarantee of this release alone, rounded up.
    rho
        The zero-concentrated guarantee, if there is one; with None the accountant derives it from
        epsilon.
    reads
        The features that the release depends on, for caps per feature.
    """

    mechanism: str
    parameters: Mapping[str, Parameter] = field(hash=False)
    scope: Scope
    epsilon: float
    delta: float = 0.0
    rho: float | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_valid = math.isfinite(self.epsilon) and self.epsilon > 0 and 0 <= self.delta < 1
        if not is_valid or (
            self.rho is not None and not (math.isfinite(self.rho) and self.rho > 0)
        ):
            raise SpecError(
                "EVENT-001",
                f"A release of {self.mechanism} is priced at epsilon {self.epsilon}, delta "
                f"{self.delta}, rho {self.rho}.",
                why="Epsilon must be positive and finite, delta in [0, 1), and rho positive if it "
                "is given.",
            )

    def with_reads(self, *features: str) -> Event:
        """Return the event marked as depending on these features."""
        return replace(self, reads=tuple(sorted(features)))

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for the ledger and for reports."""
        return {
            "mechanism": self.mechanism,
            "parameters": dict(sorted(self.parameters.items())),
            "unit": self.scope.unit.value,
            "relation": self.scope.relation.value,
            "adversary": self.scope.adversary,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rho": self.rho,
            "reads": list(self.reads),
        }
