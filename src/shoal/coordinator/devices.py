"""Draws and updates of all studies of DDML, as one worker answers them: admission, the way to the store, and the end.

Instances in memory are read at once, and merged with what has come in the same moment. Any other store blocks: its calls are made in one
thread, those that wait together in one transaction. What is answered is in the store.

Refusals are counted here and written once a second, so that a flood of bad updates is not a flood of writes; a worker that is killed
loses the count of its last second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from shoal.clock import Clock
from shoal.coordinator.admission import Admission, Signed, Tickets, Tokens
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.models.base import Body, ModelStore, as_weights
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.results import Merged, result_of
from shoal.coordinator.serving import Arrival, Serving, open_serving
from shoal.coordinator.store.base import Ending, Hosted, Store
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.protocols.ddml.merging import LIMIT
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.study.anonymity import has_tokens
from shoal.study.manifest import Manifest
from shoal.transport.batching import Batched
from shoal.transport.problems import RequestError, over

EPOCH_BYTES = 8
"""Of an epoch, in front of the weights of a draw and, behind the id, of an update: little-endian."""

TEND_SECONDS = 1.0
TIDY_MILLISECONDS = 60_000

_HEAD_BYTES = ID_BYTES + EPOCH_BYTES
_MOST_AT_ONCE = 256

T = TypeVar("T")


class Entry:
    """One study, as this worker serves it.

    Parameters
    ----------
    serving, admission
        Its instances, and who may send an update.
    count
        Counts a refusal by its code or reason.
    executor
        The thread for a store that blocks; None for one that does not.
    """

    def __init__(
        self, digest: str, serving: Serving, admission: Admission, count: Callable[[str], None], executor: ThreadPoolExecutor | None
    ) -> None:
        self.digest, self.serving, self.admission = digest, serving, admission
        self.n_drawn = EPOCH_BYTES + 4 * serving.params.n_weights
        self.n_bytes = ID_BYTES + self.n_drawn
        self._count, self._is_guarded = count, admission.header is not None
        self.is_over = False
        self._draws = None if executor is None else Batched[None, tuple[bytes, Body]](self._draw_some, executor, _MOST_AT_ONCE)
        self._updates = Batched[Arrival, str](serving.update_many, executor, _MOST_AT_ONCE)

    async def draw(self) -> tuple[bytes, Body]:
        """Epoch and weights, as they travel; `RequestError` 410 after the end."""
        if self.is_over:
            raise over(self.digest)
        return self._draw() if self._draws is None else await self._draws(None)

    async def update(self, target: str, body: bytes, credential: str | None) -> None:
        """Take an update: id, epoch and weights. What became of it is counted, and told only to a sender who is known.

        Raises
        ------
        RemoteProtocolError
            Where admission is by signature, and no honest device sends such an update or the study is over. One that is stale or looks
            like spam may be honest: it is dropped.
        StoreError
            Nothing was stored.
        """
        try:
            # First what costs no look into the store.
            self._check_form(body)
            if self._is_guarded:
                await self._admit(target, body, credential)
            await self._merge(body)
        except RemoteProtocolError as error:
            self._count(error.code)
            if not self.admission.is_anonymous:
                raise

    def _check_form(self, body: bytes) -> None:
        if self.is_over:
            raise over(self.digest)
        if len(body) > self.n_bytes:
            # The rest of it is not read, and so the connection cannot be used again.
            why = f"Those of this study have {self.n_bytes} bytes."
            raise RequestError(413, "MSG-001", "The update is too large.", why=why, headers={"connection": "close"})
        if len(body) < self.n_bytes:
            raise RemoteProtocolError("MSG-005", f"An update of {len(body)} bytes came; those of this study have {self.n_bytes}.")

    async def _admit(self, target: str, body: bytes, credential: str | None) -> None:
        """Let an update in, and use its number up. One that no honest device sends is refused before, and uses up nothing."""
        named = await self.admission.check(target, body, credential)
        epoch, weights = _parts(body)
        if as_weights(weights).min() < -LIMIT:
            raise _out_of_range()
        # A draw tells the epoch of this moment: other workers may have merged much since this one looked.
        if epoch > self.serving.n_merged // self.serving.params.epoch_updates and epoch > int.from_bytes((await self.draw())[0], "little"):
            raise _early(epoch)
        if named is not None:
            await self.admission.use(named)

    async def _merge(self, body: bytes) -> None:
        epoch, weights = _parts(body)
        outcome = await self._updates(Arrival(body[:ID_BYTES], epoch, weights))
        if outcome == "merged":
            self.is_over = self.is_over or self.serving.is_full
        elif outcome == "range":
            raise _out_of_range()
        elif outcome == "early":
            raise _early(epoch)
        elif outcome != "repeated":
            self._count("stale" if outcome == "stale" else "spam")

    def _draw(self) -> tuple[bytes, Body]:
        epoch, weights = self.serving.draw()
        return epoch.to_bytes(EPOCH_BYTES, "little"), weights

    def _draw_some(self, asked: list[None]) -> list[tuple[bytes, Body]]:
        return [self._draw() for _ in asked]


def _parts(body: bytes) -> tuple[int, memoryview]:
    """The epoch and the weights of an update."""
    return int.from_bytes(body[ID_BYTES:_HEAD_BYTES], "little"), memoryview(body)[_HEAD_BYTES:]


def _out_of_range() -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", "A weight of the update is out of range.")


def _early(epoch: int) -> RemoteProtocolError:
    return RemoteProtocolError("DDML-001", f"The update is of epoch {epoch}, which has not begun.")


@dataclass
class _Served:
    """An entry, and what is to be remembered for tending it: when it was tidied, after how many updates, and whether it needs no more."""

    entry: Entry
    tidied_at: int
    tidied_after: int
    has_ended: bool = False


class Devices:
    """All studies of DDML in one worker.

    Parameters
    ----------
    store, models
        The coordinator's store, whose calls may come from any thread; and the instances, which this worker's devices have for themselves.
    clock, entropy
        The time, and what draws instances.
    """

    def __init__(self, store: Store, models: ModelStore, clock: Clock, entropy: Entropy) -> None:
        self._store, self._models, self._clock, self._entropy = store, models, clock, entropy
        self._executor = ThreadPoolExecutor(1, "shoal-devices")
        self._verifying = ThreadPoolExecutor(1, "shoal-devices-tokens")
        self._is_blocking = not isinstance(models, MemoryModels)
        self._entries: dict[str, asyncio.Task[Entry | None]] = {}
        self._served: list[_Served] = []
        self._refusals = Refusals()
        self._tending: asyncio.Task[None] | None = None

    async def entry(self, digest: str) -> Entry | None:
        """A study of DDML that this coordinator has; None for any other."""
        found = self._entries.get(digest)
        if found is None:
            found = self._entries[digest] = asyncio.create_task(self._open(digest))
        try:
            entry = await asyncio.shield(found)
        except Exception:
            self._entries.pop(digest, None)
            raise
        if entry is None:
            self._entries.pop(digest, None)
        return entry

    async def step(self, hosted: Hosted) -> Ending | None:
        """How an open study ends, if it does now: enough updates were merged, or time is up. Nothing is merged after that."""
        entry = await self.entry(hosted.digest)
        assert entry is not None, "only studies of ddml are stepped here"
        ending = await self._call_models(self._ending, hosted, entry.serving)
        entry.is_over = entry.is_over or ending is not None
        return ending

    async def tend(self) -> None:
        """Write what was counted, see which studies have ended, and rid the disk of earlier instances, each when it is due."""
        # What cannot be done now is done later, and keeps nothing else from being done.
        with suppress(StoreError):
            await self._refusals.flush(self._store)
        for served in self._served:
            with suppress(StoreError):
                await self._see(served)

    async def see(self, digest: str) -> None:
        """Look at once how a study stands, if it is served here: the analyst may have closed it."""
        for served in self._served:
            if served.entry.digest == digest:
                with suppress(StoreError):
                    await self._see(served)

    async def n_merged(self, digest: str) -> int:
        """How many updates of a study were merged; 0 for one whose instances are not there, or not any more."""
        try:
            return await self._call_models(self._models.n_merged, digest)
        except StoreError:
            return 0

    async def stop(self) -> None:
        """Tend for the last time. The stores remain their opener's to close."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait([self._tending])
        await self.tend()
        self._verifying.shutdown()
        self._executor.shutdown()

    async def _open(self, digest: str) -> Entry | None:
        hosted = await self._call(self._store.study, digest)
        if hosted is None:
            return None
        manifest = Manifest.from_bytes(hosted.manifest)
        if manifest.study.protocol != "ddml":
            return None
        # Thresholds against spam are simulated, which takes a while.
        serving = await self._call(self._serving, manifest)
        executor = self._executor if self._is_blocking else None
        entry = Entry(digest, serving, self._admission(manifest, digest), partial(self._refusals.count, digest), executor)
        entry.is_over = hosted.status != "open" or serving.is_full
        self._served.append(_Served(entry, self._now(), serving.n_merged))
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend_always())
        return entry

    def _serving(self, manifest: Manifest) -> Serving:
        # An entry counts by itself, from the outcomes.
        return open_serving(manifest, self._models, self._entropy, refuse=lambda _: None)

    def _admission(self, manifest: Manifest, digest: str) -> Admission:
        settings = manifest.study.ddml
        assert settings is not None
        numbered = (self._store, digest, manifest.study.privacy.n_updates, self._executor)
        if settings.admission == "signed":
            return Signed(*numbered, self._now)
        if has_tokens(manifest):
            return Tokens(*numbered, manifest, self._verifying)
        return Tickets(*numbered) if settings.admission == "token" else Admission()

    def _ending(self, hosted: Hosted, serving: Serving) -> Ending | None:
        n_merged = self._models.n_merged(hosted.digest)
        if n_merged < serving.params.n_expected and self._now() < hosted.opened + hosted.patience:
            return None
        n_merged, manifest = serving.finish(), Manifest.from_bytes(hosted.manifest)
        minimum = manifest.study.participation.minimum
        if n_merged < minimum:
            error = RemoteProtocolError(
                "DDML-002",
                f"{n_merged} updates were merged; the study needs {minimum}.",
                why="Too few devices sent one in time. What they sent is spent.",
            )
            return Ending("failed", reason=str(error))
        refused = self._store.totals(hosted.digest).refused
        return Ending("done", result_of(manifest, Merged(serving.model(), n_merged, refused)))

    async def _tend_always(self) -> None:
        while True:
            await asyncio.sleep(TEND_SECONDS)
            await self.tend()

    async def _see(self, served: _Served) -> None:
        if served.has_ended:
            return
        entry, serving, now = served.entry, served.entry.serving, self._now()
        hosted = await self._call(self._store.study, entry.digest)
        if hosted is None or hosted.status != "open":
            # One that the analyst has closed goes on to be merged, and its names to be remembered, until somebody says so here.
            await self._call_models(serving.finish)
            served.has_ended = entry.is_over = True
        # A clock that was put back must not put this off.
        is_due = entry.is_over or abs(now - served.tidied_at) >= TIDY_MILLISECONDS
        if serving.n_merged > served.tidied_after and is_due:
            await self._call_models(serving.tidy)
            served.tidied_at, served.tidied_after = now, serving.n_merged

    def _now(self) -> int:
        return milliseconds(self._clock.now())

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _call_models(self, work: Callable[..., T], *arguments: object) -> T:
        """Instances in memory are used by the event loop alone, those of a store that blocks by the thread alone."""
        return await self._call(work, *arguments) if self._is_blocking else work(*arguments)
