"""Offices on real stores, for one piece of work each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.office import Office
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError

Work = Callable[[Office, ManualClock], Awaitable[None]]
NONCES = count(1 << 64)


@asynccontextmanager
async def opened(path: Path, clock: ManualClock, holder: str = "one") -> AsyncIterator[Office]:
    with SqliteStore(path / "store.db") as store:
        office = Office(store, MemoryModels(), clock, SeededEntropy(7).spawn(holder), holder)
        await office.start()
        try:
            yield office
        finally:
            await office.stop()


def run(path: Path, work: Work) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(path, clock) as office, asyncio.timeout(20):
            await work(office, clock)

    asyncio.run(main())


def new() -> bytes:
    """A nonce that was not used before."""
    return next(NONCES).to_bytes(16, "big")


async def refusal(call: Awaitable[object]) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        await call
    return caught.value.code
