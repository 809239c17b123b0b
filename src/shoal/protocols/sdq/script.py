"""The course of an SDQ study: which sums are asked in which order, what each costs, and what the miner makes of them.

A script is public. The miner (the aggregator) advances it by what it has learned; every database follows it, and so knows by itself
which counts belong to a round and what they cost. What the miner decides (where to split, what is a leaf) needs no trust: whichever way
it decides, a round costs what it costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.messages.base import Record
from shoal.privacy.events import Event
from shoal.protocols.sdq.params import Ints, Params, Table


class Course(Record):
    """What has been decided so far; all of it is public.

    Parameters
    ----------
    step
        Rounds that have been answered.
    choices
        Attributes by their position: paper, of every node in order of breadth, -1 for none; plus, one for each choice that was asked.
    leaves
        Paper: of every open node whether it is a leaf; empty where that is not decided yet.
    """

    step: int = 0
    choices: tuple[int, ...] = ()
    leaves: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Part:
    """Counts of a round that share one law of noise.

    Parameters
    ----------
    count
        What a database counts: ``(size,)`` integers.
    size
        How many.
    epsilon
        What all of them together cost one unit: the noise of each is made for it. Infinite in a simulation without noise.
    n_tables
        In how many of them a row may count, each time in one cell: it sets the sensitivity, with the most rows of a unit.
    """

    count: Callable[[Table], Ints]
    size: int
    epsilon: float
    n_tables: int = 1


@dataclass(frozen=True)
class Round:
    """What is asked of every database at once.

    Parameters
    ----------
    question
        Its name in the ledger; it fixes the price.
    parts
        What is summed, in order; a choice has one part, the scores of its candidates.
    is_choice
        Whether only the candidate with the largest noisy score is learned, and not the sums.
    """

    question: str
    parts: tuple[Part, ...]
    is_choice: bool = False

    @property
    def size(self) -> int:
        """Numbers that a database answers with."""
        return sum(part.size for part in self.parts)


Answers = tuple[Ints, ...]
"""What has been learned: the noisy sums of every round so far, ``(size,)`` each; of a choice the position of the chosen candidate."""


class Script(ABC):
    """One learner's course.

    Parameters
    ----------
    params
        The public figures of the study.
    """

    def __init__(self, params: Params) -> None:
        self.params = params

    @property
    @abstractmethod
    def prices(self) -> Mapping[str, Event]:
        """Every question that may be asked and what it costs one unit.

        A database answers each at most once, on whichever course, so all of them together must cost no more than the budget.
        """

    @property
    @abstractmethod
    def dearest(self) -> tuple[tuple[str, int], ...]:
        """The course that costs most, for the label: kinds of questions by a question of each, and how many of the same price there are."""

    @abstractmethod
    def round(self, course: Course) -> Round | None:
        """What is asked next; None at the end. `RemoteProtocolError` where no answers lead to such a course."""

    @abstractmethod
    def advance(self, course: Course, answers: Answers) -> Course:
        """The course after its round was answered, by all answers so far."""

    @abstractmethod
    def model(self, course: Course, answers: Answers) -> Any:
        """What was learned, at the end."""
