"""Deliver token packets: each at a random time in the window, on its own connection.

`shoal.participant.runner` makes a `ScheduledDelivery` for people of AnonML with tokens; the driver
runs one `ScheduledDelivery.deliver` for each answer. Retries resend the same bytes.

Steps of one packet, by the participant's own clock and the manifest's schedule
(`shoal.study.schedule`):

``joins_until`` to ``sends_from``
    At a random time the participant reads the list of members. It must contain its own key and at
    least the study's minimum. Without a valid list before ``sends_from`` nothing is sent.
``sends_from`` to ``collects_until``
    The packet leaves at a random time. If it is not acknowledged, the same bytes leave again at
    further random times, until ``resends_until``.
Acknowledged, without a relay
    The packet has arrived. The participant keeps reading as before, until the end that it drew at
    its start.
Acknowledged, with a relay
    The relay stores the packet and forwards all packets together.
After ``collects_until``
    With a relay, the participant reads the coordinator's list of received packets. A packet that is
    missing leaves once more, at another random time.
After ``resends_until``
    The participant reads the list for the last time.

If no process ran at one of these times, the participant reads the list of members at a time of its
own choice, and another time is drawn over the rest of the window, at least a quarter of the time
between ``joins_until`` and ``sends_from`` later. A packet that has not left at ``resends_until``
never leaves: it would arrive alone.

Status of a stored packet; each packet is minted once and stored before it leaves:

``minted``
    The packet is stored; nothing has left.
``leaving``
    The packet may have left.
``sent``
    The coordinator, or the relay that stores the packet, has acknowledged it.
``seen``
    The coordinator's list contains the packet.

Privacy
-------
The manifest's schedule, the participant's own clock and random draws decide when a packet leaves.
No message of the coordinator, and no time at which it answers, changes that. The coordinator
decides only whether a packet leaves at all: by withholding the question or the list of members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from shoal.clock import Clock
from shoal.crypto.credentials.issuance import Credential
from shoal.crypto.credentials.tokens import read_pseudonym
from shoal.entropy import Entropy
from shoal.errors import TransportError
from shoal.messages.codec import decode, encode
from shoal.participant.client import FIRST_WAIT, Client, RefusedError, encode_update_body
from shoal.participant.consent import not_a_member_error, too_few_members_error
from shoal.participant.delivery import (
    AnonymousDelivery,
    DeliveryOutcome,
    DeliveryStatus,
    MailboxMessage,
    OutgoingAnswer,
    ProgressCallback,
    report_retry,
)
from shoal.participant.journal import Journal
from shoal.participant.reading import BroadcastReader, ReadingTimes, draw_time, sleep_until
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer
from shoal.protocols.anonml.peer import AnonMLPeerState
from shoal.protocols.ddml.messages import DDMLUpdate
from shoal.study.delivery import hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.schedule import PhaseWindow
from shoal.text import format_count
from shoal.transport.packets import Packet

if TYPE_CHECKING:
    from shoal.participant.network import NetworkPath


PacketStatus = Literal["minted", "leaving", "sent", "seen"]

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_SELECT_PACKET = "SELECT packet, due, standing, via FROM packets WHERE study = ? AND question = ?"


@dataclass(frozen=True, slots=True)
class MintedPacket:
    """A packet with an answer, or the token of an update, for one question.

    Parameters
    ----------
    packet
        The bytes before they are encrypted for a network path.
    due
        When the packet is to leave.
    via
        Name of the network path that the packet was encrypted for; None before that.
    """

    question: str
    packet: bytes = field(repr=False)
    due: datetime
    status: PacketStatus
    via: str | None = None


class PacketStore:
    """The minted packets and tokens of a participant in one study."""

    def __init__(
        self, journal: Journal, handle: StudyHandle, credential: Credential, entropy: Entropy
    ) -> None:
        self.study = handle.digest.hex()
        self._journal, self._handle = journal, handle
        self._credential, self._entropy = credential, entropy
        self._slots = handle.slots

    def find_packet(self, question: str) -> MintedPacket | None:
        """Return what was minted for a question; None if nothing was."""
        with self._journal.begin_read() as db:
            found = db.execute(_SELECT_PACKET, (self.study, question)).fetchone()
        return (
            None
            if found is None
            else MintedPacket(
                question, found[0], _EPOCH + found[1] * _MILLISECOND, found[2], found[3]
            )
        )

    def mint_answer(self, question: str, message: bytes, due: datetime) -> MintedPacket:
        """Return the packet with an answer of AnonML; mint and store it on the first call."""
        found = self.find_packet(question)
        if found is not None:
            return found
        token = self._credential.mint(
            self._slots.encode_context(self._slots.find_slot(question)), message, self._entropy
        )
        size = self._handle.packet_size
        assert size is not None, "only a study with packets has answers in packets"
        packet = Packet(token, self._credential.partition, message).to_bytes(size)
        return self._store_packet(question, packet, due)

    def mint_token(self, question: str, number: int, update: DDMLUpdate) -> bytes:
        """Return the token of an update of DDML; mint and store it on the first call."""
        found = self.find_packet(question)
        if found is None:
            token = self._credential.mint(
                self._slots.encode_context(number), encode_update_body(update), self._entropy
            )
            found = self._store_packet(question, token, _EPOCH)
        return found.packet

    def seal(self, minted: MintedPacket, network_path: NetworkPath) -> bytes:
        """Encrypt a packet for a network path once; return the same bytes on each call."""
        key = (self.study, minted.question)
        with self._journal.begin_write() as db:
            via, sealed = db.execute(
                "SELECT via, sealed FROM packets WHERE study = ? AND question = ?", key
            ).fetchone()
            if via != network_path.name:
                sealed = network_path.seal(self.study, minted.packet)
                db.execute(
                    "UPDATE packets SET via = ?, sealed = ? WHERE study = ? AND question = ?",
                    (network_path.name, sealed, *key),
                )
            return bytes(sealed)

    def set_status(self, question: str, status: PacketStatus) -> None:
        """Store the status of a packet."""
        with self._journal.begin_write() as db:
            db.execute(
                "UPDATE packets SET standing = ? WHERE study = ? AND question = ?",
                (status, self.study, question),
            )

    def reschedule(self, question: str, due: datetime) -> None:
        """Store another time for a packet."""
        with self._journal.begin_write() as db:
            values = ((due - _EPOCH) // _MILLISECOND, self.study, question)
            db.execute("UPDATE packets SET due = ? WHERE study = ? AND question = ?", values)

    def has_left(self) -> bool:
        """Return whether any packet of the study may have left."""
        with self._journal.begin_read() as db:
            query = "SELECT 1 FROM packets WHERE study = ? AND standing <> 'minted'"
            return db.execute(query, (self.study,)).fetchone() is not None

    def _store_packet(self, question: str, packet: bytes, due: datetime) -> MintedPacket:
        with self._journal.begin_write() as db:
            values = (self.study, question, packet, (due - _EPOCH) // _MILLISECOND)
            db.execute(
                "INSERT OR IGNORE INTO packets VALUES (?, ?, ?, NULL, NULL, ?, 'minted')", values
            )
        found = self.find_packet(question)
        assert found is not None
        return found


def compute_packet_name(minted: MintedPacket) -> bytes:
    """Return the name of a packet in the coordinator's list."""
    return hash_pseudonym(
        read_pseudonym(Packet.from_bytes(minted.packet, len(minted.packet)).token)
    )


NAME_BYTES = 32
_DIRECT, _RELAYED = "direct", "ohttp"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_MAX_LATENESS = timedelta(seconds=5)
"""A packet that is later than this gets another time."""


class AnonymitySet:
    """The members of the study's scope, among whom a participant hides.

    Parameters
    ----------
    client
        The coordinator, over isolated connections.
    key
        The participant's own public key.
    """

    def __init__(self, client: Client, handle: StudyHandle, key: bytes) -> None:
        self._client, self._handle, self._key = client, handle, key
        self._n_partitions = handle.slots.n_credential_partitions
        self._lock, self._is_checked = asyncio.Lock(), False

    async def check_membership(self, on_progress: ProgressCallback) -> None:
        """Check the network path and the list of members once, and report the number of members.

        Raises
        ------
        ConsentError
            ``CONSENT-001``: the participant is not on the list, or a study with packets has fewer
            members than its minimum.
        TransportError
            The list cannot be read now; try again.
        """
        async with self._lock:
            if self._is_checked:
                return
            study = self._handle.digest.hex()
            await self._client.network_path.check(self._handle)
            members = (await self._client.fetch_members(study)).keys
            if self._key not in members:
                raise not_a_member_error(study, len(members))
            minimum = self._handle.study.participation.minimum
            if self._handle.protocol.has_packets and len(members) < minimum:
                raise too_few_members_error(study, len(members), minimum)
            on_progress(self._describe(len(members)))
            self._is_checked = True

    def _describe(self, n: int) -> str:
        """Describe what a packet reveals apart from the answer."""
        parts = (
            ""
            if self._n_partitions == 1
            else f", and which of {format_count(self._n_partitions, 'part')} of the study you "
            "belong to: you hide among the members of your part"
        )
        address = (
            "; the coordinator sees your IP address"
            if self._client.network_path.name == _DIRECT
            else ""
        )
        return (
            f"you are one of {format_count(n, 'member')}; what you send shows that one of them "
            f"sent it{parts}{address}"
        )


@dataclass(frozen=True)
class ScheduledDelivery(AnonymousDelivery):
    """Packets with tokens, each at its own random time.

    Parameters
    ----------
    broadcasts
        Decides which questions count.
    times
        When the participant reads.
    """

    is_concurrent: ClassVar[bool] = True

    packets: PacketStore
    anonymity_set: AnonymitySet
    broadcasts: BroadcastReader
    times: ReadingTimes
    clock: Clock
    entropy: Entropy

    @property
    def reading(self) -> ReadingTimes:
        return self.times

    def has_sent(self) -> bool:
        return self.packets.has_left()

    async def read_messages(self, state: AnonMLPeerState) -> list[MailboxMessage]:
        """Read the board once; return the questions that count."""
        for ask in state.heard:
            self.broadcasts.remember(ask, encode(ask))
        page = await self.client.fetch_broadcasts(self.study, self.broadcasts.cursor)
        return await self.broadcasts.accept(page.letters)

    async def deliver(self, answer: OutgoingAnswer) -> DeliveryOutcome:
        """Deliver an answer; resume where an earlier run stopped."""
        payload = answer.read_stored()
        if payload is None:
            # The ledger has it as acknowledged or voided, and the outbox was not saved after that.
            return DeliveryOutcome("withheld" if answer.begin_send() is None else "arrived")
        message = decode(payload, MESSAGES, bytes.fromhex(self.study))
        assert isinstance(message, AnonMLAnswer)
        window = self.broadcasts.study.schedule.get_window(message.phase)
        try:
            outcome = await self._deliver_payload(payload, message.phase, answer, window)
        except RefusedError as error:
            return DeliveryOutcome("refused", error=error)
        if message.phase == max(self.broadcasts.own_phases):
            await self._wait_until(self.times.end)
        return outcome

    async def _deliver_payload(
        self, payload: bytes, phase: int, answer: OutgoingAnswer, window: PhaseWindow
    ) -> DeliveryOutcome:
        question = _require_question(answer)
        minted = self.packets.find_packet(question)
        if minted is None:
            if self.clock.now() >= window.resends_until:
                return DeliveryOutcome("late")
            due = self._draw_time(window.sends_from, window.collects_until)
            minted = self.packets.mint_answer(question, payload, due)
        if minted.status in ("minted", "leaving"):
            outcome = await self._send_when_due(minted, phase, answer, window)
            if outcome.status != "left":
                return outcome
            minted = self.packets.mint_answer(question, payload, minted.due)
        if minted.status == "seen":
            return DeliveryOutcome("arrived")
        if minted.status == "sent" and minted.via != _RELAYED:
            # If reading stopped when a packet arrived, the coordinator could link the two.
            answer.on_progress(
                f"{question} is at the coordinator; continues until "
                f"{self.times.end:{_TIME_FORMAT}} UTC, so that the end of the connection does not "
                "reveal when it was sent"
            )
            return DeliveryOutcome("arrived")
        return DeliveryOutcome(await self._confirm_or_resend(minted, answer, window))

    def _draw_late_due_time(self, begin: datetime, window: PhaseWindow) -> datetime | None:
        """Draw a time over the rest of the window; None if the window is over."""
        end = next(
            (end for end in (window.collects_until, window.resends_until) if begin < end), None
        )
        return None if end is None else self._draw_time(begin, end)

    def _draw_time(self, begin: datetime, end: datetime) -> datetime:
        return draw_time(begin, end, self.entropy)

    async def _send_when_due(
        self, minted: MintedPacket, phase: int, answer: OutgoingAnswer, window: PhaseWindow
    ) -> DeliveryOutcome:
        """Check the list of members, wait until a packet is due, and send it."""
        question, is_unsent = minted.question, minted.status == "minted"
        # While the packet has not left, "late" is true; after that it may have arrived.
        ended: DeliveryStatus = "late" if is_unsent else "left"
        due = minted.due
        while True:
            now = self.clock.now()
            if now < window.sends_from and is_unsent:
                # Half of the time that is left is for retries.
                begin, deadline = max(now, window.joins_until), window.sends_from
                check_at = self._draw_time(begin, begin + (deadline - begin) / 2)
            else:
                # No process ran when the list was to be read, or when the packet was due. A packet
                # that leaves when the machine wakes up would be known by that time.
                allowance = (window.sends_from - window.joins_until) / 4
                check_at = self._draw_time(now, now + allowance)
                deadline = check_at + allowance
                another = self._draw_late_due_time(deadline, window)
                if another is None:
                    return DeliveryOutcome(ended)
                due = another
                self.packets.reschedule(question, due)
            if is_unsent:
                answer.on_progress(
                    f"{question} is ready and will be sent at {due:{_TIME_FORMAT}} UTC, a random "
                    "time"
                )
            await self._wait_until(check_at)
            if phase in self.broadcasts.disputed:
                why = "the coordinator has signed two different questions for its phase"
                return DeliveryOutcome(ended, why=why)
            if self.clock.now() < deadline:
                if not await self._check_membership(answer, deadline):
                    why = "the list of members could not be read in time"
                    return DeliveryOutcome(ended, why=why)
                await self._wait_until(due)
                if self.clock.now() < due + _MAX_LATENESS:
                    break
        if answer.begin_send() is None:
            return DeliveryOutcome("withheld")
        self.packets.set_status(question, "leaving")
        if await self._send_packet(minted, answer, window):
            self.packets.set_status(question, "sent")
            if self.client.network_path.name == _RELAYED:
                until = next(
                    (
                        end
                        for end in (window.collects_until, window.resends_until)
                        if self.clock.now() < end
                    ),
                    window.closes,
                )
                answer.on_progress(
                    f"{question} is at the relay, which forwards all packets together at "
                    f"{until:{_TIME_FORMAT}} UTC"
                )
        return DeliveryOutcome("left")

    async def _send_packet(
        self, minted: MintedPacket, answer: OutgoingAnswer, window: PhaseWindow
    ) -> bool:
        """Send a packet until it is acknowledged; return False if the window ends before that.

        Attempts begin at times that do not depend on when the earlier ones fail.
        """
        path, cadence = self.client.network_path, self.times.cadence
        sealed = self.packets.seal(minted, path)
        when = self.clock.now()
        while when < window.resends_until:
            await self._wait_until(when)
            post = partial(path.post_packet, self.study, sealed, self.client)
            try:
                if await self._run_until(post, window.resends_until) is not None:
                    return True
            except TransportError as error:
                report_retry(answer.on_progress, error)
            now = self.clock.now()
            while when <= now:
                when = self._draw_time(when + cadence, when + 2 * cadence)
        return False

    async def _check_membership(self, answer: OutgoingAnswer, until: datetime) -> bool:
        """Check the list of members; return False if it cannot be read before the given time."""
        check = partial(self.anonymity_set.check_membership, answer.on_progress)
        return await self._retry_until(check, answer, until) is not None

    async def _confirm_or_resend(
        self, minted: MintedPacket, answer: OutgoingAnswer, window: PhaseWindow
    ) -> DeliveryStatus:
        """Check whether a packet that has left has arrived; if not, send it once more."""
        question = minted.question
        collects, resends, closes = window.collects_until, window.resends_until, window.closes
        if minted.due < collects and self.clock.now() < resends:
            # Each participant reads the list at a random time, after the relay had time to forward
            # its packets.
            quarter = (resends - collects) / 4
            looks_until = collects + 3 * quarter
            resent_at = self._draw_time(max(self.clock.now(), looks_until), resends)
            await self._wait_until(self._draw_time(collects + quarter, collects + 2 * quarter))
            if await self._check_received(minted, answer, looks_until):
                return "arrived"
            answer.on_progress(f"{question} has not arrived and will be sent once more")
            await self._wait_until(resent_at)
            # In an earlier run it may have left over another path, or among other members.
            if self.clock.now() < resends and await self._check_membership(answer, resends):
                # An earlier acknowledgement may be from another recipient.
                self.packets.set_status(question, "leaving")
                if await self._send_packet(minted, answer, window):
                    self.packets.set_status(question, "sent")
        tail = closes - resends
        await self._wait_until(self._draw_time(resends + tail / 4, resends + tail * 3 / 4))
        return "arrived" if await self._check_received(minted, answer, closes) else "left"

    async def _check_received(
        self, minted: MintedPacket, answer: OutgoingAnswer, until: datetime
    ) -> bool:
        """Return whether the coordinator's list contains a packet; try until the given time."""
        received = await self._retry_until(
            lambda: self.client.fetch_received(self.study), answer, until
        )
        if received is None:
            return False
        name, names = compute_packet_name(minted), received.names
        is_seen = any(names[i : i + NAME_BYTES] == name for i in range(0, len(names), NAME_BYTES))
        if is_seen:
            self.packets.set_status(minted.question, "seen")
        return is_seen

    async def _retry_until(
        self, request: Callable[[], Awaitable[Any]], answer: OutgoingAnswer, until: datetime
    ) -> Any:
        """Send a request until it succeeds, at least once; return None at the given time."""
        n = 0
        while True:
            try:
                response = await self._run_until(request, until)
                if response is not None:
                    return response
            except TransportError as error:
                report_retry(answer.on_progress, error)
            except RefusedError as error:
                # A list that is not published now is requested again.
                if error.code != "HOST-002":
                    raise
            left = (until - self.clock.now()).total_seconds()
            if left <= 0:
                return None
            # Several attempts fit into the time that is left, however short it is.
            await self.client.back_off(n, most=max(FIRST_WAIT, left / 4))
            n += 1

    async def _run_until(self, request: Callable[[], Awaitable[Any]], until: datetime) -> Any:
        """Return the response to a request, or True if it has none; None at the given time.

        A coordinator that does not answer cannot delay the participant.
        """
        response = asyncio.ensure_future(request())
        deadline = asyncio.ensure_future(self._wait_until(until))
        try:
            await asyncio.wait((response, deadline), return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and self.clock.now() >= until:
                return None
            found = await response
            return True if found is None else found
        finally:
            response.cancel()
            deadline.cancel()

    async def _wait_until(self, when: datetime) -> None:
        """Wait until a time of the participant's clock."""
        await sleep_until(when, self.clock, self.client.sleep)


def _require_question(answer: OutgoingAnswer) -> str:
    assert answer.question is not None, "only answers are sent as packets"
    return answer.question
