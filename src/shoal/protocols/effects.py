"""What a state machine is given, and what it asks to have done: the whole vocabulary between a protocol and its driver.

========================  ===================================================================================
given to a machine        meaning
========================  ===================================================================================
``Started``               the driver runs; given once, and again if a machine went down before it was saved
``Received``              a message of this protocol and this study
``Tick``                  a moment asked for by ``WakeAt`` has come
``Granted``               (peer) the ledger has reserved the cost of a question: draw the answer now
``Answered``              (peer) the ledger holds the answer to a question, drawn just now or before, and it is sent
``Refused``               (peer) the ledger does not allow the question, or does not let its answer leave
``Emitted``               (peer) a joint computation has something for another party: seal it and send it
``Computed``              (peer) a joint computation is done, with what this party learns
``Broken``                (peer) a joint computation broke off and will not be resumed
========================  ===================================================================================

========================  ===================================================================================
asked of the driver       meaning
========================  ===================================================================================
``Send``                  send a message; a peer's carries nothing private
``Spend``                 (peer) ask the ledger to reserve the cost of a question, before anything is drawn
``Release``               (peer) store the drawn answer with its ledger entry, then send it until acknowledged
``Compute``               (peer) run a joint computation with other peers
``Feed``                  (peer) give it what another party's computation has sent
``WakeAt``                give a ``Tick`` at this time or soon after
``Finish``                the result
``Abort``                 why there is none; nothing more is given, and what has not left does not leave
========================  ===================================================================================

A new kind of work is a new effect and a new input. A driver fails on an effect that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from shoal.errors import LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.privacy.events import Event

Program = Literal["argmax", "select"]
"""What peers may compute jointly; ``shoal.protocols.joint.computing`` says what each is."""

AGGREGATOR = "aggregator"
"""The name under which every peer knows the other side."""

EVERYONE = "*"
"""All peers: a message that is published, and is the same for each."""


@dataclass(frozen=True, slots=True)
class Started:
    """The driver has started the machine."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived. The sender is a name of the roster, or, where the message is anonymous, made up for this delivery alone."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment asked for has come."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The cost of a question is reserved, and no answer to it is stored."""

    question: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to the question is stored; this is it, and the driver sends its bytes, whether or not they were sent before."""

    question: str
    message: Message


@dataclass(frozen=True, slots=True)
class Refused:
    """The ledger does not allow the question; or it holds the answer, and does not let it leave."""

    question: str
    error: ShoalError


@dataclass(frozen=True, slots=True)
class Emitted:
    """A joint computation has something for another party, which must be sealed for it: shares are in it."""

    task: str
    to: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Computed:
    """A joint computation has come to its end; this is what the party learns."""

    task: str
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """A joint computation broke off: its process died, another party sent what cannot be used, or this machine went down meanwhile.

    Which party that was, counted as in `Feed`, is in ``party``.
    """

    task: str
    error: ShoalError
    party: int | None = None


Progress = Emitted | Computed | Broken
"""What a machine hears of a joint computation."""

Input = Started | Received | Tick | Granted | Answered | Refused | Progress


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message until it is acknowledged. A peer's may carry nothing private; an aggregator may pass on what it was given."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Spend:
    """Reserve the cost of answering a question. The question's name is unique in the study, and comes from the study."""

    question: str
    event: Event


@dataclass(frozen=True, slots=True)
class Release:
    """Store a drawn answer, then send it to the aggregator until it is acknowledged."""

    question: str
    message: Message

    def __post_init__(self) -> None:
        if not self.message.spends:
            raise LocalProtocolError(
                "PROTO-001",
                f"A {self.message.type_name} was to be released, but its class does not say that it spends.",
                fix="Set spends = True on the message, or Send it if nothing private is in it.",
            )


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a joint computation among the parties 0 to ``n_parties - 1``. A task's name is unique in the study and the same for all."""

    task: str
    program: Program
    me: int
    n_parties: int
    inputs: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Feed:
    """Give a joint computation what another party's has emitted for this one, in the order in which it was emitted."""

    task: str
    sender: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Give a `Tick` at this time or soon after."""

    when: datetime


@dataclass(frozen=True, slots=True)
class Finish:
    """The machine's work is done. It may still be given messages, and must bear them."""

    result: object


@dataclass(frozen=True, slots=True)
class Abort:
    """The machine gives up: it is given nothing more, and what it has not sent yet does not leave."""

    error: ShoalError


Effect = Send | Spend | Release | Compute | Feed | WakeAt | Finish | Abort
