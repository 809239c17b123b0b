"""Letters as participants fetch them: at once where there are any, and else as soon as there are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from shoal.coordinator.store.base import Store
from shoal.coordinator.waiting import Bells
from shoal.errors import RemoteProtocolError
from shoal.transport.forms import Letters

LETTERS_BYTES = 1 << 22
"""Of letters that are sent at once, beyond the first."""


class Letterbox:
    """The letters of all studies, and those who wait for them in this worker."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self.bells = Bells(self._news)
        self._store, self._executor = store, executor

    async def fetch(self, study: str, name: str | None, after: int, wait: float) -> Letters:
        """Letters to everyone, and to a participant where one is named, of larger numbers; waits for so many seconds at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            mark = self.bells.mark(study)
            letters = await loop.run_in_executor(self._executor, self._look, study, name, after)
            left = until - loop.time()
            if letters.letters or letters.status != "open" or left <= 0 or not await self.bells.wait(study, mark, left):
                return letters

    def _look(self, study: str, name: str | None, after: int) -> Letters:
        # How it stands comes first: once a study has ended no letter is written, and so none of an ended one is overlooked.
        hosted = self._store.study(study)
        if hosted is None:
            raise unknown()
        return Letters(letters=self._store.letters(study, name, after, LETTERS_BYTES), status=hosted.status)

    def _news(self, study: str) -> object:
        hosted = self._store.study(study)
        return self._store.latest(study), None if hosted is None else hosted.status


def unknown() -> RemoteProtocolError:
    """The error for a study that is not here."""
    return RemoteProtocolError("HOST-001", "The coordinator does not have this study.")
