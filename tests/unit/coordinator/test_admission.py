"""Tickets that come together are used in one transaction, and each is told its own outcome."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from device_cases import manifest_of, published
from shoal.clock import ManualClock
from shoal.coordinator.admission import Tickets
from shoal.coordinator.store.base import Accepted, Ending
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError


class Counting(SqliteStore):
    """A store that notes how many names each transaction had."""

    def use_many(self, study: str, named: Sequence[tuple[bytes, bytes]]) -> tuple[Accepted, ...]:
        self.sizes = [*getattr(self, "sizes", []), len(named)]
        return super().use_many(study, named)


def test_each_of_many_is_told_its_own_outcome(tmp_path: Path) -> None:
    entropy, clock = SeededEntropy(1), ManualClock()
    issued, unknown = [entropy.bytes(32) for _ in range(3)], entropy.bytes(32)
    with Counting(tmp_path / "coordinator.db") as store, ThreadPoolExecutor(1) as executor:
        hosted = published(store, manifest_of("token"), clock)
        for ticket in issued:
            store.enrol(hosted.digest, Identity.from_seed(entropy.bytes(32)).public, None, hashlib.sha256(ticket).digest(), None)

        async def check(tickets: Tickets, ticket: bytes, number: int, body: bytes) -> str:
            try:
                await tickets.check("", body, f"{ticket.hex()} {number}")
            except RemoteProtocolError as error:
                return error.code
            return "in"

        async def main() -> tuple[list[str], list[str]]:
            tickets = Tickets(store, hosted.digest, 2, executor)
            asked = [(issued[0], 0, b"a"), (unknown, 0, b"a"), (issued[0], 0, b"b"), (issued[0], 0, b"a"), (issued[0], 1, b"b")]
            asked += [(unknown, 1, b"c"), (issued[1], 0, b"c"), (issued[2], 2, b"d")]
            first = await asyncio.gather(*(check(tickets, *one) for one in asked))
            await check(tickets, unknown, 0, b"alone")
            store.end(hosted.digest, Ending("closed", reason="Enough."))
            return first, [await check(tickets, issued[1], 1, b"d")]

        outcomes, late = asyncio.run(main())
    assert outcomes == ["in", "AUTH-002", "HOST-005", "in", "in", "AUTH-002", "in", "AUTH-001"]
    assert late == ["HOST-002"]
    # All that came together, then one that came late; for strangers alone there is none.
    assert store.sizes == [5, 1]
