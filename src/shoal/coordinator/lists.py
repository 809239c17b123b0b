"""Long lists that everyone reads: made in a thread, a page at a time, as the bytes that are sent, once for all who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from shoal.clock import Clock
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.recent import Recent
from shoal.coordinator.store.base import Hosted
from shoal.errors import RemoteProtocolError
from shoal.transport.batching import Batched

_MOST_AT_ONCE, _MOST_KEPT = 1_000, 16

Page = bytes | RemoteProtocolError


class Lists:
    """Lists by study, in pages.

    Parameters
    ----------
    tell
        Makes the page of a study's list that comes after a name, or says why there is none.
    clock, executor
        The time, and where pages are made: one at a time.
    kept_milliseconds
        For how long a page is told again to those who come later.
    """

    def __init__(self, tell: Callable[[Hosted, bytes], Page], clock: Clock, executor: Executor, kept_milliseconds: int = 0) -> None:
        self._tell, self._clock, self._kept_milliseconds = tell, clock, kept_milliseconds
        self._kept: Recent[tuple[str, bytes], tuple[int, Page]] = Recent(_MOST_KEPT)
        self._told = Batched[tuple[Hosted, bytes], Page](self._tell_all, executor, _MOST_AT_ONCE)

    async def page(self, hosted: Hosted, after: bytes) -> bytes:
        """A page; `RemoteProtocolError` where there is none."""
        told = await self._told((hosted, after))
        if isinstance(told, RemoteProtocolError):
            raise told
        return told

    def _tell_all(self, asked: list[tuple[Hosted, bytes]]) -> list[Page]:
        now = milliseconds(self._clock.now())
        pages: dict[tuple[str, bytes], Page] = {}
        for hosted, after in asked:
            name = hosted.digest, after
            if name not in pages:
                kept = self._kept.get(name)
                if kept is None or abs(now - kept[0]) >= self._kept_milliseconds:
                    kept = self._kept.put(name, (now, self._tell(hosted, after)))
                pages[name] = kept[1]
        return [pages[hosted.digest, after] for hosted, after in asked]
