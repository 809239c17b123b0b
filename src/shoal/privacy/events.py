"""A release as frozen data: everything an accountant needs to know, and nothing about how it was computed.

The names of mechanisms and the meaning of fields never change once released; an unknown mechanism is refused by the
accountant, not guessed at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shoal.errors import SpecError

Parameter = int | float | str


class Unit(StrEnum):
    """What one guarantee protects as a whole."""

    PERSON = "person"
    """All rows of one person."""
    RECORD = "record"
    """One row of a database."""
    UPDATE = "update"
    """Everything that one model update reveals."""
    WEIGHT = "weight"
    """One coordinate of one model update (the reading of the DDML paper)."""


class Relation(StrEnum):
    """Which two inputs must look alike."""

    REPLACE = "replace"
    """The unit's data is changed to any other value of the domain."""
    ADD_REMOVE = "add-remove"
    """The unit's data is there, or is not there at all."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a figure called epsilon speaks about; without it the figure means nothing.

    Parameters
    ----------
    unit, relation
        What is protected, and between which neighbours.
    adversary
        Against whom, in words that can follow "protected against".
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
        What the mechanism was run with, enough to price it again.
    scope
        Unit, neighbouring relation, adversary.
    epsilon, delta
        The guarantee of this release alone, rounded up.
    rho
        The zero-concentrated guarantee where there is one; None leaves the accountant to derive it from epsilon.
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
        fair = math.isfinite(self.epsilon) and self.epsilon > 0 and 0 <= self.delta < 1
        if not fair or (self.rho is not None and not (math.isfinite(self.rho) and self.rho > 0)):
            raise SpecError(
                "EVENT-001",
                f"A release of {self.mechanism} is priced at epsilon {self.epsilon}, delta {self.delta}, rho {self.rho}.",
                why="Epsilon must be positive and finite, delta in [0, 1), and rho positive where it is given.",
            )

    def reading(self, *features: str) -> Event:
        """The same event, marked as depending on these features."""
        return replace(self, reads=tuple(sorted(features)))

    def to_dict(self) -> dict[str, object]:
        """Plain data, for the ledger and for reports."""
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
