"""The loop of one worker that steps studies: whatever is due is leased, loaded, folded and saved, and those who wait are woken.

Any number of workers may do so with one store. A lease is renewed while a study is stepped; whoever loses it all the same, asleep or cut
off, saves nothing. Each study has a task of its own, so that a slow one holds up no other; one that cannot be stepped is tried again,
later and later, and said so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.clock import Clock
from shoal.coordinator.aggregators import aggregator_of, informed, names_of
from shoal.coordinator.hosting import fold, milliseconds
from shoal.coordinator.recent import Recent
from shoal.coordinator.results import result_of
from shoal.coordinator.store.base import Ending, Folded, Hosted, Store
from shoal.coordinator.waiting import Bells
from shoal.entropy import Entropy
from shoal.errors import ShoalError
from shoal.protocols.machines import Aggregator
from shoal.study.manifest import Manifest, short

LEASE_SECONDS = 10.0
MOST_AT_ONCE = 1_000
"""Most messages of a study that are folded with one load and one save."""
GRACE_MILLISECONDS = 60_000
"""A deadline waits for so long until all that came before it is folded in, and no longer: a flood must not put it off for ever."""
AWAITED_SECONDS, IDLE_SECONDS = 0.05, 0.5
"""How soon it is seen that another worker has left something to do: while somebody here waits for letters, and else."""
DEVICES_SECONDS = 1.0
CHORES_SECONDS, TIDY_SECONDS = 1.0, 60.0
LONGEST_BACKOFF = 60.0
_MOST_STAGES = 256


@dataclass(frozen=True)
class Stage:
    """A study with its machine, as it is kept in memory between steps; nothing in it changes."""

    hosted: Hosted
    manifest: Manifest
    aggregator: Aggregator[Any] | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, hosted: Hosted) -> Stage:
        manifest = Manifest.from_bytes(hosted.manifest)
        return cls(hosted, manifest, aggregator_of(manifest, hosted), names_of(manifest))


def until(end: int, folded: Folded, now: int, *, is_new: bool) -> Folded:
    """The same steps of a study that goes on until then at the latest: it is woken then, and has failed if it is not over by itself."""
    if folded.ending is not None:
        return folded
    if now >= end:
        return replace(folded, ending=Ending("failed", reason="The study closed before it was complete. What was sent is spent."))
    return replace(folded, alarms=tuple(sorted({*folded.alarms, end}))) if is_new else folded


class Stepper:
    """Steps studies in one worker.

    Parameters
    ----------
    store, clock, entropy
        Where the studies are, the time, and what aggregators draw from.
    holder
        The worker's name on leases.
    bells
        Who waits for letters.
    devices
        What ends a study of DDML, which has no machine: its ending, or None as long as it goes on.
    chores
        What else is to be done every second.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        holder: str,
        bells: Bells,
        devices: Callable[[Hosted], Awaitable[Ending | None]],
        chores: Callable[[], Awaitable[None]],
    ) -> None:
        self._store, self._clock, self._entropy, self._holder = store, clock, entropy, holder
        self._bells, self._devices, self._chores = bells, devices, chores
        self._woken = asyncio.Event()
        self._stages: Recent[str, Stage] = Recent(_MOST_STAGES)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    async def run(self) -> None:
        """Step whatever is due, until cancelled."""
        loop = asyncio.get_running_loop()
        tidied = done = loop.time()
        while True:
            self._woken.clear()
            if self._is_time(""):
                try:
                    for study in await asyncio.to_thread(self._store.due, self._now()):
                        self._begin(study)
                    if loop.time() - done >= CHORES_SECONDS:
                        done = loop.time()
                        await self._chores()
                    if loop.time() - tidied >= TIDY_SECONDS:
                        tidied = loop.time()
                        await asyncio.to_thread(self._store.tidy, self._now())
                    self._failures.pop("", None)
                except Exception as error:
                    self._put_off("", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(AWAITED_SECONDS if self._bells.is_awaited else IDLE_SECONDS):
                    await self._woken.wait()

    async def finish(self, seconds: float) -> None:
        """Wait for steps under way, for so long at most; what is not saved by then is done again by others."""
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=seconds)
        for task in self._running.values():
            task.cancel()

    def _now(self) -> int:
        return milliseconds(self._clock.now())

    def _is_time(self, study: str) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before.get(study, 0.0)

    def _begin(self, study: str) -> None:
        if study not in self._running and self._is_time(study):
            self._running[study] = asyncio.create_task(self._guarded(study))

    async def _guarded(self, study: str) -> None:
        try:
            await self.step(study)
            self._failures.pop(study, None)
        except Exception as error:
            self._put_off(study, error)
        finally:
            del self._running[study]
            # What came since the last load found this task still running.
            self.wake()

    def _put_off(self, study: str, error: Exception) -> None:
        n = self._failures[study] = self._failures.get(study, 0) + 1
        seconds = min(LONGEST_BACKOFF, 0.25 * 2**n)
        self._not_before[study] = asyncio.get_running_loop().time() + seconds
        what = f"Study {short(bytes.fromhex(study))} could not be stepped" if study else "The store could not be asked what is due"
        # No text of the error but for our own code: it may hold anything.
        kind = error.code if isinstance(error, ShoalError) else type(error).__name__
        print(f"{what} ({kind}). It is tried again in {seconds:g} s.", file=sys.stderr)

    async def step(self, study: str) -> None:
        """Step a study until nothing is due, unless another worker does."""
        stage = self._stages.get(study)
        if stage is None:
            hosted = await asyncio.to_thread(self._store.study, study)
            if hosted is None:
                return
            stage = self._stages.put(study, await asyncio.to_thread(Stage.of, hosted))
        if stage.aggregator is None:
            await self._step_devices(stage)
            return
        term = await asyncio.to_thread(self._lease, study)
        if term is None:
            return
        keeping = asyncio.create_task(self._keep(study, term))
        try:
            while (folded := await asyncio.to_thread(self._fold, stage, stage.aggregator, term)) is not None:
                self._bells.ring(study)
                if folded.ending is not None:
                    self._stages.drop(study)
                    break
        finally:
            keeping.cancel()
            await asyncio.to_thread(self._store.release, study, self._holder)

    async def _step_devices(self, stage: Stage) -> None:
        study = stage.hosted.digest
        self._not_before[study] = asyncio.get_running_loop().time() + DEVICES_SECONDS
        ending = await self._devices(stage.hosted)
        if ending is not None:
            await asyncio.to_thread(self._store.end, study, ending)
            self._stages.drop(study)
            self._bells.ring(study)

    def _lease(self, study: str) -> int | None:
        now = self._now()
        return self._store.lease(study, self._holder, now, now + round(1000 * LEASE_SECONDS))

    async def _keep(self, study: str, term: int) -> None:
        """Renew a lease for as long as a step takes, and it is ours."""
        is_ours = True
        while is_ours:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with suppress(ShoalError):
                is_ours = await asyncio.to_thread(self._renew, study, term)

    def _renew(self, study: str, term: int) -> bool:
        return self._store.renew(study, self._holder, term, self._now() + round(1000 * LEASE_SECONDS))

    def _fold(self, stage: Stage, aggregator: Aggregator[Any], term: int) -> Folded | None:
        """One load, fold and save; None where there was nothing to do, or it was another's to do."""
        study, now = stage.hosted.digest, self._now()
        loaded = self._store.load(study, now, MOST_AT_ONCE)
        if len(loaded.held) == MOST_AT_ONCE:
            loaded = replace(loaded, alarms=tuple(alarm for alarm in loaded.alarms if alarm < now - GRACE_MILLISECONDS))
        if loaded.state is not None and not loaded.held and not loaded.alarms:
            return None
        aggregator = informed(aggregator, stage.manifest, *self._store.expected(study))
        folded = fold(aggregator, loaded, now, self._entropy, stage.names, partial(result_of, stage.manifest))
        closes = stage.manifest.study.participation.closes
        if closes is not None:
            folded = until(milliseconds(closes) + 2 * GRACE_MILLISECONDS, folded, now, is_new=loaded.state is None)
        return folded if self._store.save(study, term, folded) else None
