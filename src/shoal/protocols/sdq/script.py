"""Base class of the learners: rounds, prices, public state.

A script is public. The aggregator (the miner) advances it with the answers it has learned. Each
peer follows the same script, so a peer derives from it which counts belong to a round and what they
cost. Peers do not have to trust the miner's decisions (where to split, which node is a leaf): the
price of a round does not depend on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Record
from shoal.privacy.events import Event
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams


class SDQScriptState(Record):
    """All decisions so far; public.

    Parameters
    ----------
    step
        Number of answered rounds.
    choices
        Attribute indices. Paper: one per node in breadth-first order, -1 for none. Plus: one for
        each choice that was asked.
    leaves
        Paper: for each open node whether it is a leaf; empty before that is decided.
    """

    step: int = 0
    choices: tuple[int, ...] = ()
    leaves: tuple[bool, ...] = ()


@dataclass(frozen=True)
class RoundPart:
    """Counts of a round that share one noise distribution.

    Parameters
    ----------
    count
        Counts the rows of a database: ``(size,)`` integers.
    size
        Number of counts.
    epsilon
        Cost of all counts together for one unit; the noise of each count is scaled for it. Infinite
        in a simulation without noise.
    n_tables
        Number of tables in which a row counts, in one cell each. The sensitivity follows from it
        and from the most rows of one unit.
    """

    count: Callable[[CellTable], Ints]
    size: int
    epsilon: float
    n_tables: int = 1


@dataclass(frozen=True)
class SDQRound:
    """One round: a question to every database.

    Parameters
    ----------
    question
        Its name in the ledger; it determines the price.
    parts
        The summed counts, in order; a choice has one part, the scores of its candidates.
    is_choice
        Whether the miner learns only the candidate with the largest noisy score, not the sums.
    """

    question: str
    parts: tuple[RoundPart, ...]
    is_choice: bool = False

    @property
    def size(self) -> int:
        """Number of integers in a database's answer."""
        return sum(part.size for part in self.parts)


Answers = tuple[Ints, ...]
"""The noisy sums of every round so far, ``(size,)`` each; for a choice the index of the chosen
candidate.
"""


class SDQScript(ABC):
    """The rounds of one learner, as a function of the public state."""

    def __init__(self, params: SDQParams) -> None:
        self.params = params

    @property
    @abstractmethod
    def prices(self) -> Mapping[str, Event]:
        """Every question that may be asked, and its price for one unit.

        A database answers each question at most once, for any decisions of the miner, so the prices
        of all questions together must not exceed the budget.
        """

    @property
    @abstractmethod
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        """The most expensive run of the script, for the label.

        One question of each kind, with the number of questions of the same price.
        """

    @abstractmethod
    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        """Return the next round; None at the end.

        Raises `RemoteProtocolError` if no answers lead to this state.
        """

    @abstractmethod
    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:
        """Return the state after the current round, from all answers so far."""

    @abstractmethod
    def build_model(self, state: SDQScriptState, answers: Answers) -> Any:
        """Return the learned model at the end of the script."""


def impossible_state_error(what: str) -> RemoteProtocolError:
    """Return the error for a script state that cannot follow from the study."""
    return RemoteProtocolError(
        "SDQ-001",
        f"The script state is impossible: {what}.",
        why="The state follows from the study and its answers, and no answers lead to this one.",
    )
