"""Messages: accepted on their own route only, once, and many in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.coordinator.publishing import hash_ticket
from shoal.coordinator.rejections import RejectionCounter
from shoal.coordinator.store.base import NewEnrolment, StudyOutcome, Submission, SubmissionOutcome
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.submissions import MessageIntake
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.protocols.pfds.messages import HolderTables, PFDSStudyEnd
from shoal.study.handle import StudyHandle
from tests.support.coordinator import NOW, make_manifest, publish_manifest, ticket

PEOPLE, HOLDERS = make_manifest("anonml"), make_manifest("pfds")


class Counting(SqliteStore):
    """Counts its transactions."""

    n_transactions = 0

    def accept(
        self, study: str, submissions: Sequence[Submission], expires: int
    ) -> tuple[SubmissionOutcome, ...]:
        self.n_transactions += 1
        return super().accept(study, submissions, expires)


class IntakeHarness:
    """An intake with all around it."""

    def __init__(self, name: str, store: Counting, executor: ThreadPoolExecutor) -> None:
        self.manifest, self.store = make_manifest(name), store
        self.study = publish_manifest(store, self.manifest, NOW)[0].digest
        self.refusals, self.woken = RejectionCounter(), 0
        self.intake = MessageIntake(
            store,
            StudyHandle(self.manifest),
            executor,
            lambda: NOW + 1000,
            self.refusals,
            self._wake,
        )

    def _wake(self) -> None:
        self.woken += 1

    async def refused(self) -> dict[str, int]:
        await self.refusals.flush(self.store)
        return dict(self.store.count_totals(self.study).refused)


def run(tmp_path: Path, name: str, work: Callable[[IntakeHarness], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[IntakeHarness]:
        with Counting(tmp_path / "store.db") as store, ThreadPoolExecutor(2) as executor:
            yield IntakeHarness(name, store, executor)

    async def main() -> None:
        async with opened() as harness:
            await work(harness)

    asyncio.run(main())


def answer(i: int, report: bytes = b"\1", manifest: bytes = PEOPLE.digest) -> bytes:
    return encode(
        AnonMLAnswer(study=manifest, ticket=ticket(i), phase=0, question=0, report=report)
    )


def tables(data: bytes = bytes(8)) -> Message:
    return HolderTables(
        study=HOLDERS.digest, counts=Array(element="int64", count=len(data) // 8, data=data)
    )


def test_anonymous_answer_needs_ticket(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        harness.store.enrol(harness.study, NewEnrolment(b"k" * 32, ticket=hash_ticket(ticket(1))))
        for payload in (
            answer(1),
            answer(1),
            answer(1, b"\2"),
            answer(2),
            b"rubbish",
            answer(1, manifest=bytes(32)),
        ):
            await harness.intake.submit(payload)
        held = harness.store.load(harness.study, NOW, 10).inputs
        assert [(one.sender, one.payload) for one in held] == [("", answer(1))]
        assert await harness.refused() == {"AUTH-002": 1, "HOST-005": 1, "MSG-002": 1, "MSG-006": 1}
        assert harness.woken == 1
        harness.store.end(harness.study, StudyOutcome("closed"))
        for payload in (answer(1, b"\3"), answer(1), answer(3)):
            await harness.intake.submit(payload)
        # The stored inputs are late too. Tickets are deleted at the end: all submissions are late.
        assert await harness.refused() == {
            "AUTH-002": 1,
            "HOST-002": 4,
            "HOST-005": 1,
            "MSG-002": 1,
            "MSG-006": 1,
        }

    run(tmp_path, "anonml", work)


def test_messages_on_wrong_route_are_rejected(tmp_path: Path) -> None:
    async def named(harness: IntakeHarness) -> None:
        ask = encode(AnonMLAsk(study=PEOPLE.digest, phase=0, publication=AnonMLPublication()))
        await harness.intake.submit(ask)
        for payload in (ask, answer(1), b"rubbish"):
            with pytest.raises(RemoteProtocolError):
                await harness.intake.accept_message("north", payload, bytes(16))
        assert await harness.refused() == {"MSG-002": 1, "PROTO-003": 3}
        assert harness.store.load(harness.study, NOW, 10).inputs == ()

    run(tmp_path, "anonml", named)


def test_named_message_is_accepted_once_per_sender(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        payload, other = encode(tables()), encode(tables(bytes(16)))
        outcomes = [
            await harness.intake.accept_message(name, body, nonce * 16)
            for name, body, nonce in [
                ("north", payload, b"a"),
                ("north", payload, b"a"),
                ("north", payload, b"b"),
                ("north", other, b"c"),
                ("south", payload, b"d"),
            ]
        ]
        assert outcomes == ["accepted", "replayed", "repeated", "conflict", "accepted"]
        assert [one.sender for one in harness.store.load(harness.study, NOW, 10).inputs] == [
            "north",
            "south",
        ]
        with pytest.raises(RemoteProtocolError, match="aggregator"):
            await harness.intake.accept_message(
                "north", encode(PFDSStudyEnd(study=HOLDERS.digest)), b"e" * 16
            )
        await harness.intake.submit(payload)
        assert await harness.refused() == {"PROTO-003": 2}

    run(tmp_path, "pfds", work)


def test_large_message_is_accepted(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        assert (
            await harness.intake.accept_message("north", encode(tables(bytes(1 << 17))), bytes(16))
            == "accepted"
        )

    run(tmp_path, "pfds", work)


def test_ddml_study_accepts_no_messages(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        with pytest.raises(RemoteProtocolError, match="updates"):
            await harness.intake.accept_message("north", b"", bytes(16))

    run(tmp_path, "ddml", work)


def test_concurrent_submissions_share_transactions(tmp_path: Path) -> None:
    async def work(harness: IntakeHarness) -> None:
        for i in range(200):
            harness.store.enrol(
                harness.study, NewEnrolment(i.to_bytes(32, "big"), ticket=hash_ticket(ticket(i)))
            )
        await asyncio.gather(*(harness.intake.submit(answer(i)) for i in range(200)))
        assert harness.store.count_totals(harness.study).waiting == harness.woken == 200
        assert harness.store.n_transactions <= 3

    run(tmp_path, "anonml", work)
