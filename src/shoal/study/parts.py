"""The parts of a label that carry figures: releases, what a crowd adds, and the participant's own limit.

What was spent is rounded up, what is allowed is rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import SpecError
from shoal.privacy.events import Event
from shoal.privacy.rounding import show, show_allowed
from shoal.study.typeset import clean


@dataclass(frozen=True, slots=True)
class Release:
    """One kind of release of a study.

    Parameters
    ----------
    name
        What is released, in a few words.
    event
        The price of one.
    count
        How many of them one unit pays for.
    """

    name: str
    event: Event
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", clean(self.name))
        if self.count < 1:
            raise SpecError("LABEL-001", f"{self.count} releases of {self.name!r} cannot be stated.", why="Each is made at least once.")

    def __str__(self) -> str:
        times, each = (f"{self.count} x ", " each") if self.count > 1 else ("", "")
        delta = f", delta {show(self.event.delta)}" if self.event.delta else ""
        return f"{times}{self.name} ({clean(self.event.mechanism)}): epsilon {show(self.event.epsilon)}{delta}{each}"


@dataclass(frozen=True, slots=True)
class Amplified:
    """What shuffling adds: the central guarantee against those who see only the batch (see `shoal.privacy.shuffle`).

    Parameters
    ----------
    n
        Honest messages that are released at once.
    epsilon, delta
        The central guarantee, for the same unit and relation.
    """

    n: int
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """The participant's own limit beside what is used of it.

    Parameters
    ----------
    limit, used, after
        Epsilons: allowed, spent before, spent when this study is done.
    period
        Such as ``"a year"`` or ``"in all"``.
    """

    limit: float
    used: float
    after: float
    period: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", clean(self.period))

    def __str__(self) -> str:
        line = f"epsilon {show_allowed(self.limit)} {self.period}; used {show(self.used)}; after this {show(self.after)}"
        return f"{line}. That is over your limit: the ledger will refuse." if self.after > self.limit else line
