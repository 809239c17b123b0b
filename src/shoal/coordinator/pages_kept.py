"""What pages show and takes time to make: made once, in a thread, and one at a time, however many ask for it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from shoal.coordinator.recent import Recent

T = TypeVar("T")


class Kept(Generic[T]):
    """Things by name, of which the last ones asked for are kept. What has a name never changes.

    Parameters
    ----------
    most
        So many are kept.

    Notes
    -----
    Anyone may ask for a page, again and again and of many studies. Whatever they ask, one thread at most is busy with it, so that the
    requests of participants wait for no more than that.
    """

    def __init__(self, most: int) -> None:
        self._kept: Recent[str, T] = Recent(most)
        self._one_at_a_time = asyncio.Lock()

    async def get(self, name: str, make: Callable[[], T]) -> T:
        """What has a name; where it is not kept, it is made."""
        found = self._kept.get(name)
        if found is None:
            async with self._one_at_a_time:
                found = self._kept.get(name)
                if found is None:
                    found = self._kept.put(name, await run_in_threadpool(make))
        return found
