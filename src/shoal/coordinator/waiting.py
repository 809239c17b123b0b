"""Waking those who wait for letters: at once where one was written in this process, soon where another process wrote it.

However many wait in a study, one look at the store serves them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import StoreError

LOOK_SECONDS = 0.08


@dataclass(eq=False)
class _Bell:
    rings: int = 0
    waiting: set[asyncio.Future[None]] = field(default_factory=set)
    watch: asyncio.Task[None] | None = None
    seen: object = None


class Bells:
    """A bell for each study.

    Parameters
    ----------
    look
        What of a study in the store is different once there is something new; called in a thread.
    """

    def __init__(self, look: Callable[[str], object]) -> None:
        self._look = look
        self._bells: dict[str, _Bell] = {}
        self._is_silent = False

    @property
    def is_awaited(self) -> bool:
        """Whether anyone waits."""
        return any(bell.waiting for bell in self._bells.values())

    def mark(self, study: str) -> int:
        """How often it has rung. Take it before you look for letters, so that none is missed between the look and the wait."""
        return self._bells.setdefault(study, _Bell()).rings

    def ring(self, study: str) -> None:
        """There is something new."""
        bell = self._bells.setdefault(study, _Bell())
        bell.rings += 1
        for future in bell.waiting:
            if not future.done():
                future.set_result(None)

    def hang_up(self) -> None:
        """Nobody waits any more, now and later."""
        self._is_silent = True
        for study in list(self._bells):
            self.ring(study)

    async def wait(self, study: str, mark: int, seconds: float) -> bool:
        """Wait for a ring since a mark; False where there was none in time, or there will be none."""
        bell = self._bells.setdefault(study, _Bell())
        if self._is_silent or bell.rings != mark:
            return not self._is_silent
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bell.waiting.add(future)
        if bell.watch is None:
            bell.watch = asyncio.create_task(self._watch(study, bell))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            bell.waiting.discard(future)
        return not self._is_silent

    async def _watch(self, study: str, bell: _Bell) -> None:
        """What was seen is kept from one watch to the next: whoever looked for letters since has seen at least as much."""
        try:
            while bell.waiting:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    seen = await asyncio.to_thread(self._look, study)
                except StoreError:
                    continue
                if seen != bell.seen:
                    bell.seen = seen
                    self.ring(study)
        finally:
            # Whatever ended it, whoever waits next has a watch.
            bell.watch = None
