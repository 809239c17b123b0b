"""Counts of rejected requests, and digests of rejected packets.

`shoal.coordinator.submissions` records rejections, and the scheduler writes the counts to the store
once a second. Everything else about a rejected request is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from shoal.coordinator.cache import LRUCache
from shoal.coordinator.store.base import Store


@dataclass(frozen=True, slots=True)
class RejectedPacket:
    """The code of a packet that is rejected."""

    code: str


_MOST_REMEMBERED = 1 << 15


class RejectionCounter:
    """Count rejected requests per study and error code, and remember rejected packets.

    Counts are kept in memory, and the scheduler writes them to the store once a second. A worker
    that is killed loses those of its last second.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._flushing = asyncio.Lock()
        self._packets: LRUCache[bytes, RejectedPacket] = LRUCache(_MOST_REMEMBERED)

    def count(self, study: str, code: str) -> None:
        self._counts[study, code] += 1

    def remember(self, digest: bytes, packet: RejectedPacket) -> None:
        """Remember the digest of a packet's bytes, which are invalid for ever."""
        self._packets.put(digest, packet)

    def recall(self, digest: bytes) -> RejectedPacket | None:
        """Return why a packet with this digest was rejected; None if it is not known."""
        return self._packets.get(digest)

    async def flush(self, store: Store) -> None:
        """Write all counts to the store; counts that cannot be written are kept.

        Concurrent calls wait for each other: after each, the store has all earlier counts.
        """
        async with self._flushing:
            while self._counts:
                (study, code), n = self._counts.popitem()
                try:
                    await asyncio.to_thread(store.count_rejections, study, code, n)
                except Exception:
                    self._counts[study, code] += n
                    raise
