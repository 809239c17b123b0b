"""Messages get in by their own way alone, once, and many in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator_cases import NOW, manifest_of, ticket
from shoal.coordinator.intake import Intake
from shoal.coordinator.publishing import publish, ticket_digest
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.store.base import Accepted, Ending, Incoming
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import Answer, Ask, Publication
from shoal.protocols.pfds.messages import Ended, Tables

PEOPLE, HOLDERS = manifest_of("anonml"), manifest_of("pfds")


class Counting(SqliteStore):
    """Counts its transactions."""

    n_transactions = 0

    def accept(self, study: str, incoming: Sequence[Incoming], expires: int) -> tuple[Accepted, ...]:
        self.n_transactions += 1
        return super().accept(study, incoming, expires)


class Desk:
    """An intake with all around it."""

    def __init__(self, name: str, store: Counting, executor: ThreadPoolExecutor) -> None:
        self.manifest, self.store = manifest_of(name), store
        self.study = publish(store, self.manifest, NOW)[0].digest
        self.refusals, self.woken = Refusals(), 0
        self.intake = Intake(store, self.manifest, executor, lambda: NOW + 1000, self.refusals, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def refused(self) -> dict[str, int]:
        await self.refusals.flush(self.store)
        return dict(self.store.totals(self.study).refused)


def run(tmp_path: Path, name: str, work: Callable[[Desk], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Desk]:
        with Counting(tmp_path / "store.db") as store, ThreadPoolExecutor(2) as executor:
            yield Desk(name, store, executor)

    async def main() -> None:
        async with opened() as desk:
            await work(desk)

    asyncio.run(main())


def answer(i: int, report: bytes = b"\1", manifest: bytes = PEOPLE.digest) -> bytes:
    return encode(Answer(study=manifest, ticket=ticket(i), phase=0, question=0, report=report))


def tables(data: bytes = bytes(8)) -> Message:
    return Tables(study=HOLDERS.digest, counts=Array(element="int64", count=len(data) // 8, data=data))


def test_anonymous_answers_are_taken_with_a_ticket_and_counted_without(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        desk.store.enrol(desk.study, b"k" * 32, None, ticket_digest(ticket(1)), None)
        for payload in (answer(1), answer(1), answer(1, b"\2"), answer(2), b"rubbish", answer(1, manifest=bytes(32))):
            await desk.intake.submit(payload)
        held = desk.store.load(desk.study, NOW, 10).held
        assert [(one.sender, one.payload) for one in held] == [("", answer(1))]
        assert await desk.refused() == {"AUTH-002": 1, "HOST-005": 1, "MSG-002": 1, "MSG-006": 1}
        assert desk.woken == 1
        desk.store.end(desk.study, Ending("closed"))
        for payload in (answer(1, b"\3"), answer(1), answer(3)):
            await desk.intake.submit(payload)
        # What was held came too late as well. Tickets are forgotten by now, and so all that comes is late, whoever sends it.
        assert await desk.refused() == {"AUTH-002": 1, "HOST-002": 4, "HOST-005": 1, "MSG-002": 1, "MSG-006": 1}

    run(tmp_path, "anonml", work)


def test_each_message_has_its_way_and_its_sender(tmp_path: Path) -> None:
    async def named(desk: Desk) -> None:
        ask = encode(Ask(study=PEOPLE.digest, phase=0, publication=Publication()))
        await desk.intake.submit(ask)
        for payload in (ask, answer(1), b"rubbish"):
            with pytest.raises(RemoteProtocolError):
                await desk.intake.message("north", payload, bytes(16))
        assert await desk.refused() == {"MSG-002": 1, "PROTO-003": 3}
        assert desk.store.load(desk.study, NOW, 10).held == ()

    run(tmp_path, "anonml", named)


def test_named_messages_are_accepted_once_under_their_sender(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        payload, other = encode(tables()), encode(tables(bytes(16)))
        outcomes = [
            await desk.intake.message(name, body, nonce * 16)
            for name, body, nonce in [
                ("north", payload, b"a"),
                ("north", payload, b"a"),
                ("north", payload, b"b"),
                ("north", other, b"c"),
                ("south", payload, b"d"),
            ]
        ]
        assert outcomes == ["accepted", "replayed", "repeated", "conflict", "accepted"]
        assert [one.sender for one in desk.store.load(desk.study, NOW, 10).held] == ["north", "south"]
        with pytest.raises(RemoteProtocolError, match="aggregator"):
            await desk.intake.message("north", encode(Ended(study=HOLDERS.digest)), b"e" * 16)
        await desk.intake.submit(payload)
        assert await desk.refused() == {"PROTO-003": 2}

    run(tmp_path, "pfds", work)


def test_a_large_message_is_opened_like_any_other(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        assert await desk.intake.message("north", encode(tables(bytes(1 << 17))), bytes(16)) == "accepted"

    run(tmp_path, "pfds", work)


def test_devices_send_no_messages(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        with pytest.raises(RemoteProtocolError, match="updates"):
            await desk.intake.message("north", b"", bytes(16))

    run(tmp_path, "ddml", work)


def test_what_comes_at_the_same_time_shares_transactions(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        for i in range(200):
            desk.store.enrol(desk.study, i.to_bytes(32, "big"), None, ticket_digest(ticket(i)), None)
        await asyncio.gather(*(desk.intake.submit(answer(i)) for i in range(200)))
        assert desk.store.totals(desk.study).waiting == desk.woken == 200
        assert desk.store.n_transactions <= 3

    run(tmp_path, "anonml", work)
