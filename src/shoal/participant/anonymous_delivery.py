"""Deliver token packets: each at a random time in the window, on its own connection.

`shoal.participant.runner` makes a `ScheduledDelivery` for people of AnonML with tokens; the driver
runs one `ScheduledDelivery.deliver` for each answer. Retries resend the same bytes.

Steps of one packet, by the participant's own clock:

``opened`` to ``collects_until``
    The packet leaves at a random time. Before the first packet leaves, the participant reads the
    list of members, which must contain its own key.
Acknowledged, without a relay
    The packet has arrived. The participant keeps polling as before, until a random time between
    ``collects_until`` and ``resends_until``.
Acknowledged, with a relay
    The relay stores the packet and forwards all packets together.
After ``collects_until``
    With a relay, the participant reads the coordinator's list of received packets. A packet that is
    missing leaves once more, at another random time.
After ``resends_until``
    The participant reads the list for the last time.

If a packet misses its time because no process ran, another time is drawn over the rest of the
window. A packet that has not left at ``resends_until`` never leaves: it would arrive alone.

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
The participant's own clock and random draws decide when a packet leaves. The time of a packet does
not show who sent it, if other participants' clocks do not differ much from this one. The
participant polls broadcasts during that time, and the coordinator may infer from the times of the
polls that the poller is a certain registered member. So polling does not change when a packet
leaves or is acknowledged.
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
from shoal.messages.codec import decode
from shoal.participant.client import Client, RefusedError, encode_update_body
from shoal.participant.consent import not_a_member_error
from shoal.participant.delivery import (
    AnonymousDelivery,
    DeliveryOutcome,
    DeliveryStatus,
    OutgoingAnswer,
    ProgressCallback,
    report_retry,
)
from shoal.participant.journal import Journal
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer
from shoal.protocols.ddml.messages import DDMLUpdate
from shoal.study.delivery import PhaseWindow, hash_pseudonym
from shoal.study.handle import StudyHandle
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


CLOCK_CHECK_SECONDS = 30.0
"""Longest wait before the clock is read again: it may have been changed."""

NAME_BYTES = 32
_DIRECT, _RELAYED = "direct", "ohttp"
_DRAW_STEP = timedelta(milliseconds=1)
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
            ``CONSENT-001``: the participant is not on the list.
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
    """Packets with tokens, each at its own random time."""

    is_concurrent: ClassVar[bool] = True

    packets: PacketStore
    anonymity_set: AnonymitySet
    clock: Clock
    entropy: Entropy

    def has_sent(self) -> bool:
        return self.packets.has_left()

    async def deliver(self, answer: OutgoingAnswer) -> DeliveryOutcome:
        """Deliver an answer; resume where an earlier run stopped.

        Raise `RefusedError` if the coordinator or the relay refuses the packet for good.
        """
        payload = answer.read_stored()
        if payload is None:
            # The ledger has it as acknowledged or voided, and the outbox was not saved after that.
            return DeliveryOutcome("withheld" if answer.begin_send() is None else "arrived")
        return DeliveryOutcome(await self._deliver_payload(payload, answer))

    async def _deliver_payload(self, payload: bytes, answer: OutgoingAnswer) -> DeliveryStatus:
        question = _require_question(answer)
        while (window := self._find_window(payload, answer)) is None:
            if not await self._wait_until(self.clock.now() + timedelta(seconds=1), answer):
                return "late"
        due = self._draw_due_time(window)
        minted = self.packets.find_packet(question)
        if minted is None:
            if due is None:
                return "late"
            minted = self.packets.mint_answer(question, payload, due)
        elif minted.status in ("minted", "leaving") and minted.due < self.clock.now():
            if due is None:
                return "late" if minted.status == "minted" else "left"
            self.packets.reschedule(question, due)
            minted = self.packets.mint_answer(question, payload, due)
        if minted.status in ("minted", "leaving"):
            status = await self._send_when_due(minted, answer, window)
            if status != "left":
                return status
            minted = self.packets.mint_answer(question, payload, minted.due)
        if minted.status == "seen":
            return "arrived"
        if minted.status == "sent" and minted.via != _RELAYED:
            # If polling stopped when a packet arrived, the coordinator could link the two.
            quiet = self._draw_quiet_end(window)
            answer.on_progress(
                f"{question} is at the coordinator; continues until {quiet:{_TIME_FORMAT}} UTC, so "
                "that the end of the connection does not reveal when it was sent"
            )
            await self._wait_until(quiet, answer)
            return "arrived"
        return await self._confirm_or_resend(minted, answer, window)

    def _find_window(self, payload: bytes, answer: OutgoingAnswer) -> PhaseWindow | None:
        """Return the window of the answer's phase; None if the phase was not opened yet."""
        message = decode(payload, MESSAGES, bytes.fromhex(self.study))
        assert isinstance(message, AnonMLAnswer)
        asks = (ask for ask in answer.get_state().heard if ask.phase == message.phase)
        return next((PhaseWindow(ask.opened, ask.closes) for ask in asks), None)

    def _draw_due_time(self, window: PhaseWindow) -> datetime | None:
        """Draw a time over the rest of the window; None if the window is over."""
        begin = max(self.clock.now(), window.opened)
        end = next(
            (end for end in (window.collects_until, window.resends_until) if begin < end), None
        )
        return None if end is None else self._draw_time(begin, end)

    def _draw_quiet_end(self, window: PhaseWindow) -> datetime:
        """Draw a time that does not depend on when a packet left.

        The time is in a part of the window that has not begun, if there is one.
        """
        collects, resends, closes, now = (
            window.collects_until,
            window.resends_until,
            window.closes,
            self.clock.now(),
        )
        later = (part for part in ((collects, resends), (resends, closes)) if now < part[0])
        return self._draw_time(*next(later, (now, max(now, closes))))

    def _draw_time(self, begin: datetime, end: datetime) -> datetime:
        return begin + self.entropy.below(max(1, (end - begin) // _DRAW_STEP)) * _DRAW_STEP

    async def _send_when_due(
        self, minted: MintedPacket, answer: OutgoingAnswer, window: PhaseWindow
    ) -> DeliveryStatus:
        """Wait until a packet is due, and send it."""
        question = minted.question
        if minted.status == "minted":
            answer.on_progress(
                f"{question} is ready and will be sent at {minted.due:{_TIME_FORMAT}} UTC, a "
                "random time"
            )
        due: datetime | None = minted.due
        while (
            due is not None
            and await self._wait_until(due, answer)
            and self.clock.now() >= due + _MAX_LATENESS
        ):
            # The machine was asleep. A packet that leaves when it wakes up would be known by that
            # time.
            due = self._draw_due_time(window)
            if due is not None:
                self.packets.reschedule(question, due)
        if due is None or answer.study_ended.is_set():
            return "late" if minted.status == "minted" else "left"
        if not await self._check_membership(answer, window.resends_until):
            return "late" if minted.status == "minted" else "left"
        if answer.begin_send() is None:
            return "withheld"
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
        return "left"

    async def _send_packet(
        self, minted: MintedPacket, answer: OutgoingAnswer, window: PhaseWindow
    ) -> bool:
        """Send a packet until it is acknowledged; return False if the window ends before that."""
        path = self.client.network_path
        sealed = self.packets.seal(minted, path)
        acknowledged = await self._retry_until(
            lambda: path.post_packet(self.study, sealed, self.client), answer, window.resends_until
        )
        return acknowledged is not None

    async def _check_membership(self, answer: OutgoingAnswer, until: datetime) -> bool:
        """Check the list of members; return False if it cannot be read before the window ends."""
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
            await self._wait_until(
                self._draw_time(
                    collects + (resends - collects) / 4, collects + (resends - collects) / 2
                ),
                answer,
            )
            if await self._check_received(minted, answer, resends):
                return "arrived"
            if not answer.study_ended.is_set() and self.clock.now() < resends:
                answer.on_progress(f"{question} has not arrived and will be sent once more")
                await self._wait_until(self._draw_time(self.clock.now(), resends), answer)
            # In an earlier run it may have left over another path, or among other members.
            is_late = answer.study_ended.is_set() or self.clock.now() >= resends
            if not is_late and await self._check_membership(answer, resends):
                # An earlier acknowledgement may be from another recipient.
                self.packets.set_status(question, "leaving")
                if await self._send_packet(minted, answer, window):
                    self.packets.set_status(question, "sent")
        await self._wait_until(
            self._draw_time(resends + (closes - resends) / 4, resends + (closes - resends) * 3 / 4),
            answer,
        )
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
        """Send a request until it succeeds; return None at the given time or the study's end."""
        n = 0
        while True:
            try:
                response = await request()
                return True if response is None else response
            except TransportError as error:
                report_retry(answer.on_progress, error)
            except RefusedError as error:
                # A list that is not published now is requested again. A refused packet is not sent
                # again.
                if (
                    error.code != "HOST-002"
                    and not answer.study_ended.is_set()
                    and self.clock.now() < until
                ):
                    raise
            if answer.study_ended.is_set() or self.clock.now() >= until:
                return None
            await self.client.back_off(n)
            n += 1

    async def _wait_until(self, when: datetime, answer: OutgoingAnswer) -> bool:
        """Wait until a time of the participant's clock; return False if the study ends first."""
        while (
            not answer.study_ended.is_set()
            and (left := (when - self.clock.now()).total_seconds()) > 0
        ):
            waiting = [
                asyncio.ensure_future(self.client.sleep(min(left, CLOCK_CHECK_SECONDS))),
                asyncio.ensure_future(answer.study_ended.wait()),
            ]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()
        return not answer.study_ended.is_set()


def _require_question(answer: OutgoingAnswer) -> str:
    assert answer.question is not None, "only answers are sent as packets"
    return answer.question
