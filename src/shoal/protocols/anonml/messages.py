"""Messages: the aggregator opens a phase to everyone, and a peer answers its question.

Each answer is a separate packet. Type names and fields are the wire format.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.messages.base import Message, Record, Registry
from shoal.protocols.anonml.assignment import TICKET_BYTES
from shoal.protocols.base import START, Moment

Ticket = Annotated[bytes, Field(min_length=TICKET_BYTES, max_length=TICKET_BYTES)]
Natural = Annotated[int, Field(ge=0)]


class AnonMLPublication(Record):
    """The public data that the questions of a phase depend on.

    It is learned from the answers of earlier phases.

    Parameters
    ----------
    points
        A point for each open search: is your number greater?
    cuts
        The cut points of each number without public bins, in the schema's order, once they are
        placed.
    levels
        The level of each bin of each feature, for block questions.
    """

    points: tuple[float, ...] = ()
    cuts: tuple[tuple[float, ...], ...] = ()
    levels: tuple[tuple[Natural, ...], ...] = ()


class AnonMLAsk(Message):
    """The opening of a phase.

    Each person with a ticket of the phase may answer, from ``opened`` until ``closes``.
    """

    type_name: ClassVar[str] = "anonml.ask"
    max_bytes: ClassVar[int] = 1 << 22

    phase: Natural
    publication: AnonMLPublication
    opened: Moment = START
    closes: Moment = START


class AnonMLAnswer(Message):
    """One randomised answer.

    The ticket shows that the sender was assigned this question, and that this is the first answer
    to it.
    """

    type_name: ClassVar[str] = "anonml.answer"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("report",)
    is_anonymous: ClassVar[bool] = True

    ticket: Ticket
    phase: Natural
    question: Natural
    report: bytes

    @property
    def submission(self) -> bytes:
        return self.ticket + f"{self.phase}/{self.question}".encode()


MESSAGES = Registry(AnonMLAsk, AnonMLAnswer)
