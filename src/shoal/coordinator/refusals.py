"""Why things were refused, as totals: counted in memory and written now and then, so that a flood of rubbish is no flood of writes."""

from __future__ import annotations

import asyncio
from collections import Counter

from shoal.coordinator.store.base import Store


class Refusals:
    """Refusals by study and code that are not written yet; those of its last second are lost with a worker that is killed."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, study: str, code: str) -> None:
        self._counts[study, code] += 1

    async def flush(self, store: Store) -> None:
        """Write what was counted. What cannot be written is counted still."""
        while self._counts:
            (study, code), n = self._counts.popitem()
            try:
                await asyncio.to_thread(store.refuse, study, code, n)
            except Exception:
                self._counts[study, code] += n
                raise
