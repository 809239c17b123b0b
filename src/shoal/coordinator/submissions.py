"""Accept messages and anonymous packets; count rejections.

Routes call `Submissions`, which opens a `MessageIntake` or a `PacketIntake` for each study.

A durable write takes milliseconds, whatever its size. Submissions that arrive during a write are
collected, and the next write stores them all: a coordinator under load acknowledges thousands a
second, an idle one without delay. A submission is acknowledged only after it is stored.

A packet carries a token. It is counted under one of these codes if it is rejected; the sender gets
the same answer in all cases:

MSG-...
    It is not a packet of this study, or does not contain an answer.
ANONML-001
    It answers another question than the one that follows from its pseudonym and partition.
TOKEN-001
    Its token does not verify: it is from a non-member, or for another study, slot or answer.
HOST-005
    A different answer is stored under its pseudonym.
HOST-002
    The study has ended.
PROTO-003
    Trust is ``shuffled``, and it was sent alone or in a batch that is too small.

Cheap checks come first. Verifying a token takes about a millisecond, a bad one up to six, so tokens
are verified in their own thread, a bounded number at a time, with separate queues for packets and
for batches (`shoal.coordinator.lanes`). Identical bytes are verified once, and bytes that were
rejected are remembered for a while. A batch is abandoned after `MOST_INVALID` packets that are
invalid or repeated. The receipt lists them; an honest relay deletes them and sends the others
again, so a stranger's packets cost it some more requests: at most 16 for a full batch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from shoal.clock import Clock
from shoal.coordinator.authentication import compute_nonce_expiry, replayed_request_error
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.lanes import TokenLanes
from shoal.coordinator.publishing import hash_ticket
from shoal.coordinator.rejections import RejectedPacket, RejectionCounter
from shoal.coordinator.store.base import Store, Submission, SubmissionOutcome
from shoal.coordinator.studies import StudyView
from shoal.crypto.credentials.tokens import PresentedToken, TokenVerifier, read_pseudonym
from shoal.errors import RemoteProtocolError
from shoal.messages import codec
from shoal.messages.base import Message
from shoal.messages.codec import check_value_count
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer
from shoal.study.delivery import compute_min_batch, compute_scope, hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.transport.api import BatchReceipt
from shoal.transport.batching import CallBatcher
from shoal.transport.packets import Packet, compute_min_part
from shoal.transport.requests import study_ended_error

MOST_AT_ONCE = 1_000
MOST_VALUES, MOST_ANONYMOUS_VALUES = 1 << 14, 1 << 6
"""Values in one message, where an `Array` counts as one. This limits the time and memory that
decoding the bytes of an unknown sender takes.
"""

_LARGE = 1 << 16
_MESSAGE_REJECTIONS: dict[SubmissionOutcome, str] = {
    "unissued": "AUTH-002",
    "conflict": "HOST-005",
    "over": "HOST-002",
}
"""Codes of rejected anonymous submissions. A repeated submission is not rejected."""

_MAX_CACHED_STUDIES = 256


class MessageIntake:
    """Accept the messages of one study.

    Parameters
    ----------
    executor
        Threads for calls of the store.
    expires
        Return until when the nonce of a request of now is stored.
    wake
        Called after a message is stored.
    """

    def __init__(
        self,
        store: Store,
        handle: StudyHandle,
        executor: Executor,
        expires: Callable[[], int],
        rejections: RejectionCounter,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._study, self._digest = store, handle.digest, handle.digest.hex()
        self._protocol = handle.protocol
        self._executor, self._expires, self._rejections, self._wake = (
            executor,
            expires,
            rejections,
            wake,
        )
        self._accept: CallBatcher[Submission, SubmissionOutcome] = CallBatcher(
            self._accept_all, executor, MOST_AT_ONCE
        )

    async def accept_message(self, name: str, payload: bytes, nonce: bytes) -> SubmissionOutcome:
        """Store a message of an enrolled participant, and return the outcome.

        Raises
        ------
        RemoteProtocolError
            ``MSG-``: it is not a message of this study. ``PROTO-003``: participants do not send
            messages of this type, or send them anonymously.
        """
        try:
            message = await self._decode_message(payload, MOST_VALUES)
            if message.is_anonymous:
                raise RemoteProtocolError(
                    "PROTO-003", f"A {message.type_name} must be sent anonymously, not with a name."
                )
        except RemoteProtocolError as error:
            self._rejections.count(self._digest, error.code)
            raise
        return await self._accept_one(_make_submission(name, message, payload, nonce=nonce))

    async def submit(self, payload: bytes) -> None:
        """Store an anonymous message, or count why it is rejected.

        The sender does not learn the outcome. Raise `StoreError` if the store cannot be used.
        """
        try:
            message = await self._decode_message(payload, MOST_ANONYMOUS_VALUES)
            if not isinstance(message, AnonMLAnswer):
                raise RemoteProtocolError(
                    "PROTO-003", f"A {message.type_name} must be sent with a name, not anonymously."
                )
        except RemoteProtocolError as error:
            self._rejections.count(self._digest, error.code)
            return
        outcome = await self._accept_one(
            _make_submission("", message, payload, ticket=hash_ticket(message.ticket))
        )
        if outcome in _MESSAGE_REJECTIONS:
            self._rejections.count(self._digest, _MESSAGE_REJECTIONS[outcome])

    async def _decode_message(self, payload: bytes, most_values: int) -> Message:
        """Decode a message of a participant.

        Only messages of participants have a ``submission`` name, because each counts once.
        """
        if self._protocol.has_updates:
            raise RemoteProtocolError(
                "PROTO-003",
                f"A {self._protocol.name} study accepts updates of devices, not messages.",
            )
        registry = self._protocol.messages
        check_value_count(payload, most_values)
        if len(payload) > _LARGE:
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(
                self._executor, codec.decode, payload, registry, self._study
            )
        else:
            message = codec.decode(payload, registry, self._study)
        if message.submission is None:
            raise RemoteProtocolError(
                "PROTO-003", f"Only the aggregator sends a {message.type_name}."
            )
        return message

    async def _accept_one(self, submission: Submission) -> SubmissionOutcome:
        outcome = await self._accept(submission)
        if outcome == "accepted":
            self._wake()
        return outcome

    def _accept_all(self, submissions: list[Submission]) -> list[SubmissionOutcome]:
        """Store all submissions in one transaction."""
        return list(self._store.accept(self._digest, submissions, self._expires()))


def _make_submission(
    sender: str,
    message: Message,
    payload: bytes,
    *,
    nonce: bytes | None = None,
    ticket: bytes | None = None,
) -> Submission:
    name = hashlib.sha256(codec.dumps((sender, message.type_name, message.submission))).digest()
    return Submission(sender, payload, name, hashlib.sha256(payload).digest(), nonce, ticket)


MOST_TOKENS = 64
"""Most tokens of one verification; other work of the process waits until it has ended."""

BATCH_GROUP = 32
"""Packets of a batch that are verified together; then registrations and single packets have a
turn.
"""

MOST_INVALID = 256
"""Most invalid packets of a batch; to verify one takes up to six milliseconds."""

_PACKET_REJECTIONS: dict[SubmissionOutcome, str] = {"conflict": "HOST-005", "over": "HOST-002"}
_BAD_TOKEN, _WRONG_ROUTE = "TOKEN-001", "PROTO-003"

CheckedPacket = Submission | RejectedPacket


class PacketIntake:
    """Accept packets with tokens, for one AnonML study.

    Parameters
    ----------
    executor, lanes
        Threads for calls of the store, and for verifying tokens.
    wake
        Called after a packet is stored.
    """

    def __init__(
        self,
        store: Store,
        handle: StudyHandle,
        executor: Executor,
        lanes: TokenLanes,
        rejections: RejectionCounter,
        wake: Callable[[], None],
    ) -> None:
        manifest = handle.manifest
        assert manifest.issuer_key is not None
        assert handle.packet_size is not None
        self._store, self._study, self._digest = store, handle.digest, handle.digest.hex()
        self._script, self._slots, self._size = handle.script, handle.slots, handle.packet_size
        self._verifier = TokenVerifier(manifest.issuer_key, compute_scope(manifest))
        self._min_valid = (
            compute_min_part(self._size, compute_min_batch(manifest, 0, handle.script))
            if manifest.study.trust == "shuffled"
            else None
        )
        self._executor, self._lanes, self._rejections, self._wake = (
            executor,
            lanes,
            rejections,
            wake,
        )
        self._check: CallBatcher[bytes, CheckedPacket] = CallBatcher(
            self._check_packets, lanes.packets, MOST_TOKENS
        )
        self._accept: CallBatcher[Submission, SubmissionOutcome] = CallBatcher(
            self._accept_all, executor, MOST_AT_ONCE
        )

    async def submit(self, packet: bytes) -> None:
        """Store a packet, or count why it is rejected.

        The sender does not learn the outcome. Raise `StoreError` if the store cannot be used.
        """
        if self._min_valid is not None:
            self._rejections.count(self._digest, _WRONG_ROUTE)
            return
        digest = self._hash_packet(packet)
        checked = self._rejections.recall(digest) or await self._check(packet)
        if isinstance(checked, RejectedPacket):
            self._rejections.remember(digest, checked)
            self._rejections.count(self._digest, checked.code)
            return
        self._count_outcomes([await self._accept(checked)])

    async def accept_batch(
        self, groups: AsyncIterator[Sequence[bytes]], open_packet: Callable[[bytes], bytes]
    ) -> BatchReceipt:
        """Store the packets of a relay's batch in one transaction; count the rejected ones.

        If trust is ``shuffled`` and the batch has fewer valid packets than it must have, or if too
        many are invalid, none is stored. The receipt lists the invalid packets, and the relay may
        send the others again.

        Parameters
        ----------
        groups
            The sealed packets, as they arrive.
        open_packet
            Opens a sealed packet.

        Raises
        ------
        RemoteProtocolError
            ``HOST-002``: the study has ended.
        """
        loop = asyncio.get_running_loop()
        checked: list[CheckedPacket] = []
        known: dict[bytes, CheckedPacket] = {}
        n_invalid = 0
        async for group in groups:
            digests = [self._hash_packet(packet) for packet in group]
            new = {
                digest: packet
                for digest, packet in zip(digests, group, strict=True)
                if digest not in known
            }
            await self._check_new(new, known, open_packet)
            found = [known[digest] for digest in digests]
            checked += found
            # An honest relay sends no packet twice, and none that was reported as invalid.
            n_rejected = sum(isinstance(one, RejectedPacket) for one in found)
            n_invalid += max(n_rejected, len(group) - len(new))
            if n_invalid > MOST_INVALID:
                break
        valid = [one for one in checked if isinstance(one, Submission)]
        for one in checked:
            if isinstance(one, RejectedPacket):
                self._rejections.count(self._digest, one.code)
        invalid = _find_invalid(checked)
        if n_invalid > MOST_INVALID:
            return BatchReceipt(taken=None, invalid=invalid)
        if self._min_valid is not None and len(checked) - len(invalid) < self._min_valid:
            self._rejections.count(self._digest, _WRONG_ROUTE)
            return BatchReceipt(taken=None, invalid=invalid)
        outcomes = (
            await loop.run_in_executor(self._executor, self._accept_all, valid) if valid else []
        )
        if "over" in outcomes:
            raise study_ended_error(self._digest)
        self._count_outcomes(outcomes)
        return BatchReceipt(
            taken=sum(outcome in ("accepted", "repeated") for outcome in outcomes), invalid=invalid
        )

    async def _check_new(
        self,
        packets: Mapping[bytes, bytes],
        known: dict[bytes, CheckedPacket],
        open_packet: Callable[[bytes], bytes],
    ) -> None:
        """Check packets by digest and add them to ``known``.

        Packets that were rejected earlier are not opened again.
        """
        self._recall_all(packets, known)
        new = {digest: one for digest, one in packets.items() if digest not in known}
        if not new:
            return
        run = partial(asyncio.get_running_loop().run_in_executor, self._lanes.batches)
        opened = await run(lambda: [open_packet(one) for one in new.values()])
        # One packet can be sealed in many ways.
        names = [self._hash_packet(packet) for packet in opened]
        unchecked = dict(zip(names, opened, strict=True))
        self._recall_all(unchecked, known)
        unchecked = {name: one for name, one in unchecked.items() if name not in known}
        if unchecked:
            results = await run(self._check_packets, list(unchecked.values()))
            known |= dict(zip(unchecked, results, strict=True))
        known |= {digest: known[name] for digest, name in zip(new, names, strict=True)}
        for name in (*new, *unchecked):
            if isinstance(result := known[name], RejectedPacket):
                self._rejections.remember(name, result)

    def _recall_all(self, names: Iterable[bytes], known: dict[bytes, CheckedPacket]) -> None:
        """Add the packets that were rejected earlier to ``known``."""
        for name in names:
            found = self._rejections.recall(name)
            if found is not None:
                known[name] = found

    def _hash_packet(self, packet: bytes) -> bytes:
        return hashlib.sha256(self._study + packet).digest()

    def _count_outcomes(self, outcomes: Sequence[SubmissionOutcome]) -> None:
        for outcome in outcomes:
            if outcome in _PACKET_REJECTIONS:
                self._rejections.count(self._digest, _PACKET_REJECTIONS[outcome])
        if "accepted" in outcomes:
            self._wake()

    def _accept_all(self, submissions: Sequence[Submission]) -> list[SubmissionOutcome]:
        """Store all submissions in one transaction; packets have no nonce."""
        return list(self._store.accept(self._digest, submissions, 0))

    def _check_packets(self, packets: Sequence[bytes]) -> list[CheckedPacket]:
        """Return each packet as a submission for the store, or the code that rejects it."""
        found: list[CheckedPacket] = []
        tokens: dict[int, PresentedToken] = {}
        for i, packet in enumerate(packets):
            try:
                tokens[i] = presented = self._open_packet(packet)
                answer = presented.message
                name = hash_pseudonym(read_pseudonym(presented.token))
                # The pseudonym, which is not stored, is part of the hash: there are so few
                # possible answers that a hash of the answer alone could be inverted by trying.
                digest = hashlib.sha256(read_pseudonym(presented.token) + answer).digest()
                found.append(Submission("", answer, name, digest))
            except RemoteProtocolError as error:
                found.append(RejectedPacket(error.code))
        for i, is_valid in zip(
            tokens, self._verifier.verify_many(list(tokens.values())), strict=True
        ):
            if not is_valid:
                found[i] = RejectedPacket(_BAD_TOKEN)
        return found

    def _open_packet(self, data: bytes) -> PresentedToken:
        """Return a packet's token and what it must be for: the answer to its sender's question."""
        packet = Packet.from_bytes(data, self._size)
        check_value_count(packet.answer, MOST_ANONYMOUS_VALUES)
        answer = codec.decode(packet.answer, MESSAGES, self._study)
        if not isinstance(answer, AnonMLAnswer):
            raise RemoteProtocolError("PROTO-003", f"A {answer.type_name} is not an answer.")
        ticket = self._slots.compute_ticket(read_pseudonym(packet.token), packet.partition)
        if answer.ticket != ticket or not self._is_asked(answer):
            raise RemoteProtocolError(
                "ANONML-001", "The packet answers a question that was not assigned to its sender."
            )
        context = self._slots.encode_context(
            self._slots.find_question_slot(answer.phase, answer.question)
        )
        return PresentedToken(packet.token, context, packet.answer, packet.partition)

    def _is_asked(self, answer: AnonMLAnswer) -> bool:
        """Return whether the phase exists and the ticket determines this question."""
        if answer.phase >= self._script.n_phases:
            return False
        group = int(
            self._script.assign_groups(answer.phase, ticket_words(self._study, answer.ticket))[0]
        )
        return answer.question in self._script.list_question_numbers(answer.phase, group)


def _find_invalid(checked: Sequence[CheckedPacket]) -> tuple[int, ...]:
    """Return the positions of packets that are invalid or repeat an earlier name.

    Copies of one packet do not make a batch larger.
    """
    names: set[bytes | None] = set()
    found = []
    for i, one in enumerate(checked):
        if isinstance(one, RejectedPacket) or one.name in names:
            found.append(i)
        else:
            names.add(one.name)
    return tuple(found)


class Submissions:
    """Accept submissions for all studies, in one worker.

    Parameters
    ----------
    executor, lanes
        Threads for calls of the store, and for verifying tokens.
    wake
        Called after a submission is stored.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        executor: Executor,
        lanes: TokenLanes,
        rejections: RejectionCounter,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._clock, self._rejections, self._wake = store, clock, rejections, wake
        self._executor, self._lanes = executor, lanes
        self._message_intakes: LRUCache[str, MessageIntake] = LRUCache(_MAX_CACHED_STUDIES)
        self._packet_intakes: LRUCache[str, PacketIntake] = LRUCache(_MAX_CACHED_STUDIES)

    async def accept_message(
        self, view: StudyView, name: str, payload: bytes, nonce: bytes
    ) -> None:
        """Store a message of an enrolled participant.

        Raises
        ------
        RemoteProtocolError
            ``AUTH-005``: the request was received before. ``HOST-005``: the participant has sent a
            different message of this name. ``HOST-002``: the study has ended. And the errors of
            `MessageIntake.accept_message`.
        """
        match await self._open_message_intake(view).accept_message(name, payload, nonce):
            case "replayed":
                raise replayed_request_error()
            case "conflict":
                raise RemoteProtocolError(
                    "HOST-005",
                    "A different message is stored under the name of this message.",
                    fix="Send the same bytes as the first time.",
                )
            case "over":
                raise study_ended_error(view.record.digest)

    async def submit(self, view: StudyView, payload: bytes) -> None:
        """Store an anonymous message or a packet, or count why it is rejected.

        A study with tokens takes packets, any other study takes messages. The sender does not
        learn the outcome. Raise `StoreError` if the store cannot be used.
        """
        if view.handle.packet_size is None:
            await self._open_message_intake(view).submit(payload)
        else:
            await (await self._open_packet_intake(view)).submit(payload)

    async def accept_batch(
        self,
        view: StudyView,
        groups: AsyncIterator[Sequence[bytes]],
        open_packet: Callable[[bytes], bytes],
    ) -> BatchReceipt:
        """Store the packets of a relay's batch; see `PacketIntake.accept_batch`."""
        return await (await self._open_packet_intake(view)).accept_batch(groups, open_packet)

    def _open_message_intake(self, view: StudyView) -> MessageIntake:
        digest = view.record.digest
        return self._message_intakes.get(digest) or self._message_intakes.put(
            digest,
            MessageIntake(
                self._store,
                view.handle,
                self._executor,
                partial(compute_nonce_expiry, self._clock),
                self._rejections,
                self._wake,
            ),
        )

    async def _open_packet_intake(self, view: StudyView) -> PacketIntake:
        """Return the intake of a study; raise ``HOST-001`` if it has no packets.

        An intake is made in a thread, because reading keys takes time.
        """
        view.get_packet_size()
        digest = view.record.digest
        intake = self._packet_intakes.get(digest)
        if intake is None:
            make = partial(
                PacketIntake,
                self._store,
                view.handle,
                self._executor,
                self._lanes,
                self._rejections,
                self._wake,
            )
            made = await asyncio.get_running_loop().run_in_executor(self._executor, make)
            # Another request may have been faster; all requests share one intake.
            intake = self._packet_intakes.get(digest) or self._packet_intakes.put(digest, made)
        return intake
