"""Inputs given to a machine and effects requested from its driver.

They are the whole interface between a protocol and its driver.

============  =====================================================================================
input         meaning
============  =====================================================================================
``Started``   the driver has started; repeated if the machine crashed before its state was saved
``Received``  a message of this protocol and this study
``Tick``      a time requested by ``WakeAt`` has been reached
``Granted``   (peer) the ledger has reserved the cost of a question: draw the answer now
``Answered``  (peer) the answer to a question is stored, drawn now or earlier; the driver sends it
``Refused``   (peer) the ledger does not allow the question, or its answer may not be sent
``Emitted``   (peer) a joint computation has a payload for another party: seal it and send it
``Computed``  (peer) a joint computation has finished, with this party's result
``Broken``    (peer) a joint computation failed and will not be resumed
============  =====================================================================================

============  =====================================================================================
effect        meaning
============  =====================================================================================
``Send``      send a message; a message of a peer contains nothing private
``Spend``     (peer) ask the ledger to reserve the cost of a question, before anything is drawn
``Release``   (peer) store the drawn answer with its ledger entry, then send it until acknowledged
``Compute``   (peer) run a joint computation with other peers
``Feed``      (peer) give it a payload from another party's computation
``WakeAt``    give a ``Tick`` at this time or soon after
``Finish``    the result
``Abort``     the reason for ending without one; no more inputs, and unsent messages are dropped
============  =====================================================================================

A new kind of work is a new effect and a new input. A driver fails on an effect that it does not
know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from shoal.errors import LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.privacy.events import Event

Program = Literal["argmax", "select"]
"""Joint computations of peers; ``shoal.protocols.mpc.computer`` defines each."""

AGGREGATOR = "aggregator"
"""The name of the aggregator."""

EVERYONE = "*"
"""The recipient of a message that is published to all peers."""


@dataclass(frozen=True, slots=True)
class Started:
    """The start of the machine by its driver."""


@dataclass(frozen=True, slots=True)
class Received:
    """A received message.

    The sender is a name of the roster; for an anonymous message, a name made up for this delivery.
    """

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Tick:
    """The time requested by a `WakeAt`."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A question with a reserved cost and without a stored answer."""

    question: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The stored answer to a question.

    The driver sends its bytes, whether or not they were sent before.
    """

    question: str
    message: Message


@dataclass(frozen=True, slots=True)
class Refused:
    """A question that the ledger does not allow, or an answer that may not be sent."""

    question: str
    error: ShoalError


@dataclass(frozen=True, slots=True)
class Emitted:
    """A payload of a joint computation for another party.

    It contains shares and must be sealed for that party.
    """

    task: str
    to: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Computed:
    """The end of a joint computation, with the result of this party."""

    task: str
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """The failure of a joint computation.

    Its process died, another party sent unusable data, or this machine crashed during it.
    ``party`` is the party at fault, counted as in `Feed`, if it is known.
    """

    task: str
    error: ShoalError
    party: int | None = None


ComputationInput = Emitted | Computed | Broken
"""Inputs from a joint computation."""

Input = Started | Received | Tick | Granted | Answered | Refused | ComputationInput


@dataclass(frozen=True, slots=True)
class Send:
    """A request to send a message until it is acknowledged.

    A peer's message may contain nothing private; an aggregator may forward what it received.
    """

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Spend:
    """A request to reserve the cost of answering a question.

    The name of the question is unique in the study and is defined by it.
    """

    question: str
    event: Event


@dataclass(frozen=True, slots=True)
class Release:
    """A request to store a drawn answer and to send it until it is acknowledged."""

    question: str
    message: Message

    def __post_init__(self) -> None:
        if not self.message.spends:
            raise LocalProtocolError(
                "PROTO-001",
                f"A machine released a {self.message.type_name}, but its class does not set "
                "spends.",
                fix="Set spends = True on the message, or Send it if it contains nothing private.",
            )


@dataclass(frozen=True, slots=True)
class Compute:
    """A request to run a joint computation among the parties 0 to ``n_parties - 1``.

    The name of the task is unique in the study and the same for all parties.
    """

    task: str
    program: Program
    me: int
    n_parties: int
    inputs: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Feed:
    """A request to give a joint computation the next payload of another party.

    Payloads of one party are given in the order in which they were emitted.
    """

    task: str
    sender: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class WakeAt:
    """A request for a `Tick` at this time or soon after."""

    when: datetime


@dataclass(frozen=True, slots=True)
class Finish:
    """The result of a machine. It may still receive messages, and must accept them."""

    result: object


@dataclass(frozen=True, slots=True)
class Abort:
    """The end of a machine without a result.

    It receives no more inputs, and its unsent messages are dropped.
    """

    error: ShoalError


Effect = Send | Spend | Release | Compute | Feed | WakeAt | Finish | Abort
