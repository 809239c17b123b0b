"""Deliver messages to the aggregator: signed, anonymous, or as DDML updates.

`shoal.participant.session` opens a `StudyContext` while it holds the study's lock.
`shoal.participant.runner` makes the delivery of the study from it. `shoal.participant.driver` gives
the delivery every message of the outbox and polls it for new messages.

`SignedDelivery`
    Databases of SDQ and holders of PFDS. Sends to ``messages``, polls ``mailbox``.
`AnonymousDelivery`
    People of AnonML and readers of PFDS. Sends to ``submissions``, polls ``board``.
`shoal.participant.anonymous_delivery.ScheduledDelivery`
    People of AnonML with tokens. Sends packets to ``submissions`` or to a relay, each at a random
    time. Reads ``board`` at times that it has fixed in advance.
`DDMLDelivery`
    Devices of DDML. Sends to ``draw``, which returns an instance, and to ``update``. Does not poll.

A change must keep:

- A context is frozen. Each step that changes the journal's record of the study makes a new context
  from what was saved.
- A delivery calls `OutgoingAnswer.begin_send` before the first byte of an answer leaves, and sends
  what that returns.
- Anonymous requests use connections that carry nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from shoal.clock import Clock
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, TransportError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.client import Client, RefusedError
from shoal.participant.journal import JoinedStudy, Journal
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLUpdate
from shoal.protocols.ledger import Account, Ledger
from shoal.study.handle import StudyHandle
from shoal.transport.api import MAX_WAIT_SECONDS, MessagePage, Poll

if TYPE_CHECKING:
    from shoal.participant.reading import ReadingTimes

T = TypeVar("T")

ProgressCallback = Callable[[str], None]
"""Callback that receives one line of progress."""


def ignore_progress(_: str) -> None:
    """Drop a line of progress."""


def report_retry(on_progress: ProgressCallback, error: TransportError) -> None:
    """Report that a request failed and is sent again."""
    on_progress(f"trying again ({error.code}): {error.what}")


@dataclass(frozen=True)
class StudyContext:
    """Everything that taking part in one study needs.

    Parameters
    ----------
    joined
        The study as the journal records it.
    client
        The coordinator, over connections that may carry the participant's name.
    entropy
        Source of all random draws.
    """

    study: StudyHandle
    joined: JoinedStudy
    journal: Journal
    ledger: Ledger
    client: Client
    clock: Clock
    entropy: Entropy
    on_progress: ProgressCallback = ignore_progress

    @property
    def account(self) -> Account:
        """The ledger, opened for this study and the participant's data."""
        joined = self.joined
        return self.ledger.account(
            self.study.digest,
            joined.source,
            joined.recipient,
            joined.title,
            self.study.plan.budget,
        )

    async def retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request until the coordinator answers, and report each failure."""
        return await self.client.retry(request, partial(report_retry, self.on_progress))


MintCallback = Callable[[str, int, DDMLUpdate], Awaitable[bytes]]
"""Return the token of an update, given its question and number: the same token on each call."""


@dataclass(frozen=True, slots=True)
class MailboxMessage:
    """A message that was polled; its payload is not decoded yet."""

    number: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """A message that the coordinator returned in the response to a request."""

    message: Message


DeliveryStatus = Literal["arrived", "left", "late", "withheld", "refused"]
"""How a delivery ended.

``arrived``
    The coordinator has the message.
``left``
    The message left. It is not known whether it arrived.
``late``
    Nothing left, and nothing will: the time for it has passed.
``withheld``
    Nothing left: the ledger did not allow it.
``refused``
    The coordinator refused the message for good.
"""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The end of a delivery.

    Parameters
    ----------
    reply, error
        The reply or the refusal of the coordinator, if there is one.
    why
        Why nothing left, for a message that is late.
    """

    status: DeliveryStatus
    reply: ReplyMessage | None = None
    error: RefusedError | None = None
    why: str = "the time for sending it has passed"


@dataclass(frozen=True)
class OutgoingAnswer:
    """A message of the outbox: an answer, or a message without a price.

    Parameters
    ----------
    question
        The question that it answers; None for a message without a price.
    begin_send
        Counts an answer as spent and returns the bytes to send; None if the ledger does not allow
        it. Every call returns the same bytes.
    read_stored
        Returns the stored bytes of an answer that was not acknowledged, and does not count it as
        spent; None if there is none.
    """

    question: str | None
    begin_send: Callable[[], bytes | None]
    read_stored: Callable[[], bytes | None]
    on_progress: ProgressCallback


class Delivery(ABC):
    """How the messages of one study travel.

    Attributes
    ----------
    is_concurrent
        Whether each answer is delivered in its own task. Otherwise messages leave in order.
    reading
        When messages are read, if the participant has fixed the times in advance; None if it polls.
    can_poll
        Whether messages of the aggregator can be polled.
    """

    is_concurrent: ClassVar[bool] = False
    can_poll: ClassVar[bool] = True
    client: Client

    @property
    def reading(self) -> ReadingTimes | None:
        return None

    async def deliver(self, answer: OutgoingAnswer) -> DeliveryOutcome:
        """Send a message until the coordinator acknowledges or refuses it."""
        payload = answer.begin_send()
        if payload is None:
            return DeliveryOutcome("withheld")
        try:
            reply = await self.client.retry(
                partial(self.send, payload, answer.question),
                partial(report_retry, answer.on_progress),
            )
        except RefusedError as error:
            return DeliveryOutcome("refused", error=error)
        return DeliveryOutcome("arrived", reply)

    @abstractmethod
    async def send(self, payload: bytes, question: str | None) -> ReplyMessage | None:
        """Send a message once; return the message that the response contains, if there is one."""

    @abstractmethod
    async def poll_messages(self, after: int) -> MessagePage:
        """Wait for messages with larger numbers; acknowledge those up to `after`."""

    async def read_messages(self, _state: Any) -> list[MailboxMessage]:
        """Read once, without waiting; return the messages that count, given the peer's state."""
        raise LocalProtocolError("PROTO-001", "This delivery polls; it has no scheduled reads.")

    def has_sent(self) -> bool:
        """Return whether any answer may have left."""
        return True


@dataclass(frozen=True)
class SignedDelivery(Delivery):
    """Signed requests."""

    client: Client
    study: str
    identity: Identity

    async def send(self, payload: bytes, _question: str | None) -> None:
        await self.client.send_message(self.study, self.identity, payload)

    async def poll_messages(self, after: int) -> MessagePage:
        return await self.client.poll_mailbox(
            self.study, self.identity, Poll(after=after, wait_seconds=MAX_WAIT_SECONDS)
        )


@dataclass(frozen=True)
class AnonymousDelivery(Delivery):
    """Requests without the sender's name, over a client with isolated connections."""

    client: Client
    study: str

    async def send(self, payload: bytes, _question: str | None) -> None:
        await self.client.submit_message(self.study, payload)

    async def poll_messages(self, after: int) -> MessagePage:
        return await self.client.fetch_broadcasts(self.study, after, MAX_WAIT_SECONDS)


@dataclass(frozen=True)
class DDMLDelivery(Delivery):
    """Draws and updates of a device.

    An update is signed, has a ticket, has a token, or has none of these, as the study admits it.
    """

    can_poll: ClassVar[bool] = False

    client: Client
    study: str
    identity: Identity | None = None
    ticket: bytes | None = None
    mint: MintCallback | None = None

    async def send(self, payload: bytes, question: str | None) -> ReplyMessage | None:
        message = decode(payload, MESSAGES, bytes.fromhex(self.study))
        if isinstance(message, DDMLDraw):
            return ReplyMessage(await self.client.draw_instance(self.study, message))
        assert isinstance(message, DDMLUpdate)
        assert question is not None
        number = int(question.rpartition("/")[2])
        token = None if self.mint is None else await self.mint(question, number, message)
        await self.client.send_update(
            self.study, message, number, identity=self.identity, ticket=self.ticket, token=token
        )
        return None

    async def poll_messages(self, _after: int) -> MessagePage:
        raise LocalProtocolError(
            "PROTO-001", "A device of DDML receives instances only, each in reply to a draw."
        )


def make_delivery(
    context: StudyContext,
    identity: Identity,
    isolated_client: Client,
    mint: MintCallback | None = None,
) -> AnonymousDelivery | SignedDelivery | DDMLDelivery:
    """Return the delivery of a participant that sends each message without delay.

    Parameters
    ----------
    isolated_client
        The coordinator, over connections for anonymous requests.
    mint
        Mints the tokens of updates if the study admits them by tokens.
    """
    study, joined = context.study, context.joined
    protocol, is_anonymous = study.protocol, study.protocol.is_anonymous(study.study)
    if not protocol.has_updates:
        if is_anonymous or joined.role == "reader":
            return AnonymousDelivery(isolated_client, joined.study)
        return SignedDelivery(context.client, joined.study, identity)
    if is_anonymous:
        ticket = joined.ticket if study.has_tickets else None
        return DDMLDelivery(isolated_client, joined.study, ticket=ticket, mint=mint)
    if protocol.needs_enrolment(study.study):
        return DDMLDelivery(context.client, joined.study, identity=identity)
    return DDMLDelivery(isolated_client, joined.study)


def is_enrolled(context: StudyContext) -> bool:
    """Return whether a participant is enrolled, or does not need to enrol.

    Readers and devices of a study that is open to everyone do not enrol.
    """
    study, joined = context.study, context.joined
    return (
        joined.role == "reader"
        or not study.protocol.needs_enrolment(study.study)
        or joined.name is not None
    )
