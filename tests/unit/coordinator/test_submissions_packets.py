"""Packets with tokens count once for each member; shuffled ones need batches."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.coordinator import submissions
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.lanes import SharedThread, TokenLanes
from shoal.coordinator.rejections import RejectionCounter
from shoal.coordinator.store.base import StudyOutcome
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.submissions import BATCH_GROUP, MOST_INVALID, MOST_TOKENS, PacketIntake
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.study.delivery import hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport import packets as batches
from shoal.transport.api import BatchReceipt
from shoal.transport.packets import Packet
from tests.support.coordinator import NOW, in_groups, publish_manifest
from tests.support.credentials import (
    KEYS,
    RELAY,
    derive_ticket,
    list_questions,
    make_answer,
    make_packet,
    make_slots,
    make_study,
    member,
    packed,
)
from tests.support.participants import compute_packet_size

PEOPLE, PAPER, PHASES = (
    make_study("anonml"),
    make_study("anonml paper"),
    make_study("anonml phases"),
)


class IntakeHarness:
    """An intake with all around it."""

    def __init__(
        self,
        manifest: Manifest,
        store: SqliteStore,
        executor: ThreadPoolExecutor,
        lanes: TokenLanes,
    ) -> None:
        self.manifest, self.store = manifest, store
        self.study = publish_manifest(store, manifest, NOW, issuing=KEYS.public_keys)[0].digest
        self.refusals, self.woken = RejectionCounter(), 0
        self.intake = PacketIntake(
            store, StudyHandle(manifest), executor, lanes, self.refusals, self._wake
        )

    def _wake(self) -> None:
        self.woken += 1

    async def accept_batch(self, packets: Sequence[bytes]) -> BatchReceipt:
        return await self.intake.accept_batch(in_groups(packets), bytes)

    @property
    def held(self) -> list[bytes]:
        return [one.payload for one in self.store.load(self.study, NOW, 10_000).inputs]

    async def refused(self) -> dict[str, int]:
        await self.refusals.flush(self.store)
        return dict(self.store.count_totals(self.study).refused)


def run(
    tmp_path: Path, manifest: Manifest, work: Callable[[IntakeHarness], Awaitable[None]]
) -> None:
    async def main() -> None:
        thread = SharedThread("tokens")
        with SqliteStore(tmp_path / "store.db") as store, ThreadPoolExecutor(2) as executor:
            await work(IntakeHarness(manifest, store, executor, thread.lanes))
        thread.shutdown()

    asyncio.run(main())


def answer_in(packet: bytes, manifest: Manifest = PEOPLE) -> bytes:
    return Packet.from_bytes(packet, compute_packet_size(manifest)).answer


def stranger() -> bytes:
    """A packet of somebody whom another issuer has made a member."""
    other = CoordinatorKeys(bytes(32))
    credential = member(PEOPLE, 1, other)
    return packed(PEOPLE, credential, make_answer(PEOPLE, credential))


def with_other_question(i: int) -> bytes:
    credential = member(PEOPLE, i)
    phase, question = list_questions(PEOPLE, credential)[0]
    return packed(
        PEOPLE,
        credential,
        make_answer(PEOPLE, credential, (phase, question + 1 if question == 0 else question - 1)),
    )


def with_other_ticket(i: int) -> bytes:
    """An answer under the ticket of somebody else, whose question suits the sender better."""
    theirs = make_answer(PEOPLE, member(PEOPLE, i + 1))
    return packed(PEOPLE, member(PEOPLE, i), theirs)


def rebound(i: int) -> bytes:
    """A token taken from one packet, with another answer beside it."""
    one, other = (
        make_answer(PEOPLE, member(PEOPLE, i), report=report) for report in (b"\1", b"\2")
    )
    token = Packet.from_bytes(
        packed(PEOPLE, member(PEOPLE, i), one), compute_packet_size(PEOPLE)
    ).token
    return Packet(token, 0, other).to_bytes(compute_packet_size(PEOPLE))


def late_phase(i: int) -> bytes:
    credential = member(PEOPLE, i)
    _, question = list_questions(PEOPLE, credential)[0]
    ticket = derive_ticket(PEOPLE, credential)
    answer = encode(
        AnonMLAnswer(study=PEOPLE.digest, ticket=ticket, phase=7, question=question, report=b"\1")
    )
    return packed(PEOPLE, credential, answer)


def not_an_answer(i: int) -> bytes:
    ask = encode(AnonMLAsk(study=PEOPLE.digest, phase=0, publication=AnonMLPublication()))
    return packed(PEOPLE, member(PEOPLE, i), ask)


def of_a_place(i: int) -> bytes:
    return packed(PEOPLE, member(PEOPLE, i), make_answer(PEOPLE, member(PEOPLE, i)), place=1)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "MSG-005"),
    "rubbish": (bytes(compute_packet_size(PEOPLE)), "MSG-005"),
    "cut short": (make_packet(PEOPLE, 0)[:-1], "MSG-005"),
    "not an answer": (not_an_answer(0), "PROTO-003"),
    "another study's answer": (
        packed(PEOPLE, member(PEOPLE, 0), make_answer(PHASES, member(PHASES, 0))),
        "MSG-006",
    ),
    "another question": (with_other_question(0), "ANONML-001"),
    "a phase that there is not": (late_phase(0), "ANONML-001"),
    "somebody else's ticket": (with_other_ticket(0), "ANONML-001"),
    "no member": (stranger(), "TOKEN-001"),
    "another answer": (rebound(0), "TOKEN-001"),
    "another place": (of_a_place(0), "TOKEN-001"),
    "another slot": (
        packed(PEOPLE, member(PEOPLE, 0), make_answer(PEOPLE, member(PEOPLE, 0)), slot=1),
        "ANONML-001",
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_bad_packet_is_counted_and_not_stored(tmp_path: Path, how: str) -> None:
    packet, code = BAD[how]

    async def work(harness: IntakeHarness) -> None:
        await harness.intake.submit(packet)
        assert await harness.accept_batch([packet]) == BatchReceipt(taken=0, invalid=(0,))
        assert (await harness.refused(), harness.held, harness.woken) == ({code: 2}, [], 0)
        assert harness.store.list_submissions(harness.study) == ()
        # Whose packet it pretends to be can send its own all the same.
        await harness.intake.submit(make_packet(PEOPLE, 0))
        assert len(harness.held) == 1

    run(tmp_path, PEOPLE, work)


def test_each_member_counts_once(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        packets = [make_packet(PEOPLE, i) for i in range(6)]
        anew = packed(PEOPLE, member(PEOPLE, 0), make_answer(PEOPLE, member(PEOPLE, 0)), seed=9)
        for packet in (*packets[:3], packets[0], anew, make_packet(PEOPLE, 0, b"\2")):
            await harness.intake.submit(packet)
        assert await harness.accept_batch(
            [*packets, make_packet(PEOPLE, 5, b"\3")]
        ) == BatchReceipt(taken=6, invalid=(6,))
        assert sorted(harness.held) == sorted(answer_in(packet) for packet in packets)
        assert await harness.refused() == {"HOST-005": 2}
        pseudonyms = [
            member(PEOPLE, i).compute_pseudonym(make_slots(PEOPLE).encode_context(0))
            for i in range(6)
        ]
        assert harness.store.list_submissions(harness.study) == tuple(
            sorted(hash_pseudonym(one) for one in pseudonyms)
        )
        assert harness.store.count_totals(harness.study).accepted == 6 and harness.woken >= 2
        harness.store.end(harness.study, StudyOutcome("closed"))
        await harness.intake.submit(make_packet(PEOPLE, 7))
        with pytest.raises(RemoteProtocolError, match="HOST-002"):
            await harness.accept_batch([make_packet(PEOPLE, 7)])
        # What was held came too late as well.
        assert await harness.refused() == {"HOST-002": 7, "HOST-005": 2}

    run(tmp_path, PEOPLE, work)


def test_answers_of_one_person_have_different_names(tmp_path: Path) -> None:
    """Variant paper: the place decides the partition, and so the questions."""

    async def work(harness: IntakeHarness) -> None:
        credentials = [member(PAPER, i) for i in range(2)]
        assert [credential.partition for credential in credentials] == [0, 1]
        asked = [list_questions(PAPER, credential) for credential in credentials]
        assert asked[0] != asked[1]
        for credential, own, theirs in zip(credentials, asked, reversed(asked), strict=True):
            for place, questions in (
                (credential.partition, own),
                (credential.partition, theirs),
                (1 - credential.partition, theirs),
            ):
                for phase, question in questions:
                    slot = make_slots(PAPER).find_question_slot(phase, question)
                    ticket = make_slots(PAPER).compute_ticket(b"", place)
                    answer = encode(
                        AnonMLAnswer(
                            study=PAPER.digest,
                            ticket=ticket,
                            phase=phase,
                            question=question,
                            report=b"\1",
                        )
                    )
                    await harness.intake.submit(
                        packed(PAPER, credential, answer, slot, place=place)
                    )
        # Their own are in; others are not theirs to answer, and no token is valid for another place
        # than its own.
        assert len(harness.held) == 2 and await harness.refused() == {
            "ANONML-001": 2,
            "TOKEN-001": 2,
        }
        await harness.intake.submit(
            packed(PAPER, credentials[0], make_answer(PAPER, credentials[0]), place=77)
        )
        assert (await harness.refused())["ANONML-001"] == 3

    run(tmp_path, PAPER, work)


def test_concurrent_packets_are_verified_and_stored_together(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        sizes, verify_many = [], harness.intake._verifier.verify_many
        harness.intake._verifier.verify_many = lambda many: (
            sizes.append(len(many)) or verify_many(many)
        )  # type: ignore[method-assign, func-returns-value]
        bad = [BAD["another answer"][0]] * 10
        await asyncio.gather(
            *[
                harness.intake.submit(packet)
                for packet in (*bad, *(make_packet(PEOPLE, i) for i in range(20)))
            ]
        )
        assert len(harness.held) == 20 and await harness.refused() == {"TOKEN-001": 10}
        assert len(sizes) <= 3 and max(sizes) <= MOST_TOKENS

    run(tmp_path, PEOPLE, work)


def count_verified(harness: IntakeHarness) -> list[int]:
    """Return a list that grows with each verified token."""
    verified, verify_many = [], harness.intake._verifier.verify_many
    harness.intake._verifier.verify_many = lambda many: (
        verified.extend([1] * len(many)) or verify_many(many)
    )  # type: ignore[method-assign, func-returns-value]
    return verified


def bad_tokens(n: int) -> list[bytes]:
    """Return packets with one token and different answers, which only the token rejects."""
    made = [BAD["another answer"][0]]
    credential = member(PEOPLE, 0)
    token = Packet.from_bytes(made[0], compute_packet_size(PEOPLE)).token
    for i in range(n - 1):
        answer = make_answer(PEOPLE, credential, report=b"bad %d" % i)
        made.append(Packet(token, 0, answer).to_bytes(compute_packet_size(PEOPLE)))
    return made


def test_identical_bytes_are_verified_once(tmp_path: Path) -> None:
    """One bad token 4,096 times took 25 seconds of the processor."""

    async def work(harness: IntakeHarness) -> None:
        verified, bad, good = count_verified(harness), bad_tokens(1)[0], make_packet(PEOPLE, 1)
        receipt = await harness.accept_batch([bad] * 100 + [good] * 100)
        assert receipt == BatchReceipt(taken=100, invalid=tuple(i for i in range(200) if i != 100))
        assert len(verified) == 2
        # Bytes that were rejected are remembered, in batches and alone.
        receipt = await harness.accept_batch([bad] * 4_096)
        assert receipt.taken is None and len(receipt.invalid) <= MOST_INVALID + BATCH_GROUP
        await harness.intake.submit(bad)
        assert len(verified) == 2

    run(tmp_path, PEOPLE, work)


def test_packet_that_is_sealed_in_many_ways_is_verified_once(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        verified, bad = count_verified(harness), bad_tokens(1)[0]
        sealed = [b"%03d" % i + bad for i in range(100)]
        receipt = await harness.intake.accept_batch(in_groups(sealed), lambda one: one[3:])
        assert receipt.invalid == tuple(range(100)) and len(verified) == 1

    run(tmp_path, PEOPLE, work)


def test_batch_is_abandoned_after_many_bad_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay deletes the invalid packets and sends the others again, until all are counted."""
    monkeypatch.setattr(submissions, "MOST_INVALID", 40)

    async def work(harness: IntakeHarness) -> None:
        verified = count_verified(harness)
        good = [make_packet(PEOPLE, i) for i in range(20)]
        left, n_requests = [*bad_tokens(150), *good], 0
        while left:
            receipt = await harness.accept_batch(left)
            n_requests += 1
            if receipt.taken is not None:
                break
            assert len(receipt.invalid) <= 40 + submissions.BATCH_GROUP
            gone = set(receipt.invalid)
            left = [packet for i, packet in enumerate(left) if i not in gone]
            assert harness.held == []
        assert receipt.taken == len(harness.held) == 20 and n_requests <= 150 // 40 + 1
        assert len(verified) <= 150 + 20 * n_requests

    run(tmp_path, PEOPLE, work)


def test_batches_do_not_delay_packets_and_registrations(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        loop, order = asyncio.get_running_loop(), []
        release = threading.Event()
        lanes = harness.intake._lanes
        first = loop.run_in_executor(lanes.batches, release.wait)
        flood = [loop.run_in_executor(lanes.batches, order.append, f"batch {i}") for i in range(50)]
        others = [
            loop.run_in_executor(lane, order.append, name)
            for lane, name in ((lanes.packets, "packet"), (lanes.registrations, "registration"))
            for _ in range(2)
        ]
        release.set()
        await asyncio.gather(first, *flood, *others)
        assert max(order.index(name) for name in ("packet", "registration")) <= 2
        assert {"packet", "registration"} & set(order[6:]) == set()
        assert [one for one in order if one.startswith("batch")] == [
            f"batch {i}" for i in range(50)
        ]

    run(tmp_path, PEOPLE, work)


def test_cancelled_packet_is_not_verified(tmp_path: Path) -> None:
    """Work stops when the connection of the sender has ended."""

    async def work(harness: IntakeHarness) -> None:
        loop, release = asyncio.get_running_loop(), threading.Event()
        verified = count_verified(harness)
        first = loop.run_in_executor(harness.intake._lanes.packets, release.wait)
        sent = [
            asyncio.create_task(harness.intake.submit(make_packet(PEOPLE, i))) for i in range(5)
        ]
        await asyncio.sleep(0.05)
        for task in sent:
            task.cancel()
        await asyncio.sleep(0.05)
        release.set()
        await first
        await harness.intake.submit(make_packet(PEOPLE, 9))
        assert len(verified) <= 1 + 5 and len(harness.held) == 1
        assert [task.cancelled() for task in sent] == [True] * 5

    run(tmp_path, PEOPLE, work)


def test_shuffled_packets_need_batch_of_minimum_size(tmp_path: Path) -> None:
    shuffled = make_study("shuffled", relay=RELAY)

    async def work(harness: IntakeHarness) -> None:
        minimum = shuffled.study.participation.minimum
        assert (
            harness.intake._min_valid
            == batches.compute_min_part(compute_packet_size(shuffled), minimum)
            == minimum
        )
        # As many as a study of this trust needs would take a while.
        harness.intake._min_valid = 5
        packets = [make_packet(shuffled, i) for i in range(5)]
        await harness.intake.submit(packets[0])
        # The same one again, under the same name or with other bytes, does not count twice.
        for few in (
            packets[:4],
            [*packets[:4], packets[3]],
            [*packets[:4], make_packet(shuffled, 3, b"\2")],
            [*packets[:4], b""],
            [],
        ):
            assert await harness.accept_batch(few) == BatchReceipt(
                taken=None, invalid=tuple(range(4, len(few)))
            )
        assert (harness.held, harness.woken) == ([], 0)
        assert await harness.refused() == {"MSG-005": 1, "PROTO-003": 6}, "and counted once each"
        # One that was not acknowledged comes again.
        for _ in range(2):
            assert await harness.accept_batch([b"", *packets]) == BatchReceipt(
                taken=5, invalid=(0,)
            )
        assert len(harness.held) == 5

    run(tmp_path, shuffled, work)


def test_stored_digest_does_not_reveal_answer(tmp_path: Path) -> None:
    """In paper everything in an answer but the report is public: of a digest of it alone, all
    reports could be tried.
    """

    async def work(harness: IntakeHarness) -> None:
        credential = member(PAPER, 0)
        answer = make_answer(PAPER, credential)
        await harness.intake.submit(packed(PAPER, credential, answer))

        def digests() -> list[bytes]:
            with harness.store._read_transaction() as session:
                return [digest for (digest,) in session.fetch_rows("SELECT digest FROM submission")]

        assert len(digests()) == 1 and hashlib.sha256(answer).digest() not in digests()
        harness.store.end(harness.study, StudyOutcome("closed"))
        assert digests() == [b""]
        assert len(harness.store.list_submissions(harness.study)) == 1

    run(tmp_path, PAPER, work)
