"""How taking part in a study has ended, and why nothing more is sent where the coordinator has another answer already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.errors import IntegrityError
from shoal.names import counted
from shoal.participant.journal import Standing


@dataclass(frozen=True, slots=True)
class Finished:
    """How it ended.

    Parameters
    ----------
    standing
        ``finished``: there is nothing more to answer. ``over``: the study ended without asking for all. ``aborted``: the peer gave up.
    state
        The peer's last state.
    result
        What the peer has finished with, in the run in which it did.
    reason
        Why it gave up.
    n_unsent
        Answers that were drawn, and have not left when it ended.
    """

    standing: Standing
    state: Any
    result: object = None
    reason: str | None = None
    n_unsent: int = 0

    @property
    def words(self) -> str:
        """What became of the answers, where it is finished."""
        if not self.n_unsent:
            return "all is answered"
        return (
            f"{counted(self.n_unsent, 'answer')} {'was' if self.n_unsent == 1 else 'were'} not sent, and will not be; the rest is answered"
        )


def answered_before() -> IntegrityError:
    """Why a study is given up: the coordinator says that it has another answer than the one that was drawn."""
    return IntegrityError(
        "LEDGER-007",
        "The coordinator says that it has another answer from you already, which this ledger does not know.",
        why="The ledger was restored from a backup, and the answer was drawn a second time; or the coordinator lies.",
        fix="Nothing more is sent. Compare with the head that you noted: shoal ledger verify --head HEAD",
    )
