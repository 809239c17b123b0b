"""All DDML studies of one worker: admission, draws, updates, and the end of a study.

`DDMLFastPath` calls `DDMLStudies.open_study` for each draw and update; the scheduler calls
`end_if_due`.

Instances in memory are read immediately, and updates that arrive at the same moment are merged
together. Any other store blocks: its calls run in one thread, and calls that wait together share
one transaction. An update is acknowledged only after the store has it.

Rejections are counted in memory and written once a second, so that a flood of bad updates is not a
flood of writes; a worker that is killed loses the counts of its last second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from shoal.clock import Clock, to_milliseconds
from shoal.coordinator.ddml.admission import (
    Admission,
    SignedAdmission,
    TicketAdmission,
    TokenAdmission,
)
from shoal.coordinator.ddml.instances.base import Body, InstanceStore, as_weights
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.ddml.model_server import ModelServer, ReceivedUpdate, open_model_server
from shoal.coordinator.rejections import RejectionCounter
from shoal.coordinator.store.base import Store, StudyOutcome, StudyRecord
from shoal.coordinator.studies import StudyHandles, encode_result
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.protocols.ddml.merging import MAX_WEIGHT
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.study.ddml import DDMLResult
from shoal.study.handle import StudyHandle
from shoal.transport.batching import CallBatcher
from shoal.transport.requests import RequestError, study_ended_error

EPOCH_BYTES = 8
"""Bytes of an epoch, little-endian: before the weights of a draw, after the id of an update."""

UPKEEP_SECONDS = 1.0
TIDY_MILLISECONDS = 60_000

_HEAD_BYTES = ID_BYTES + EPOCH_BYTES
_MAX_AT_ONCE = 256

T = TypeVar("T")


class DDMLStudy:
    """One study, as this worker serves it.

    Parameters
    ----------
    server
        The instances of the study.
    admission
        Decides who may send an update.
    count_rejection
        Counts a rejection by its code or reason.
    executor
        The thread for a store that blocks; None for other stores.
    """

    def __init__(
        self,
        digest: str,
        server: ModelServer,
        admission: Admission,
        count_rejection: Callable[[str], None],
        executor: ThreadPoolExecutor | None,
    ) -> None:
        self.digest, self.server, self.admission = digest, server, admission
        self.n_draw_bytes = EPOCH_BYTES + 4 * server.params.n_weights
        self.n_update_bytes = ID_BYTES + self.n_draw_bytes
        self._count_rejection, self._is_guarded = count_rejection, admission.header is not None
        self.is_over = False
        self._draws = (
            None
            if executor is None
            else CallBatcher[None, tuple[bytes, Body]](self._draw_many, executor, _MAX_AT_ONCE)
        )
        self._updates = CallBatcher[ReceivedUpdate, str](server.update_many, executor, _MAX_AT_ONCE)

    async def draw(self) -> tuple[bytes, Body]:
        """Return the encoded epoch and weights of an instance; raise 410 after the end."""
        if self.is_over:
            raise study_ended_error(self.digest)
        return self._draw() if self._draws is None else await self._draws(None)

    async def update(self, target: str, body: bytes, credential: str | None) -> None:
        """Merge an update (id, epoch and weights), or count why it is rejected.

        Only a sender with a name learns the outcome.

        Raises
        ------
        RemoteProtocolError
            Admission is by signature, and no honest device sends such an update, or the study has
            ended. A stale update, or one that looks like spam, may be honest: it is dropped
            without an error.
        StoreError
            Nothing was stored.
        """
        try:
            # Checks without access to the store come first.
            self._check_form(body)
            if self._is_guarded:
                await self._admit(target, body, credential)
            await self._merge(body)
        except RemoteProtocolError as error:
            self._count_rejection(error.code)
            if not self.admission.is_anonymous:
                raise

    def _check_form(self, body: bytes) -> None:
        if self.is_over:
            raise study_ended_error(self.digest)
        if len(body) > self.n_update_bytes:
            # The rest of the body is not read, so the connection cannot be used again.
            why = f"An update of this study has {self.n_update_bytes} bytes."
            raise RequestError(
                413, "MSG-001", "The update is too large.", why=why, headers={"connection": "close"}
            )
        if len(body) < self.n_update_bytes:
            raise RemoteProtocolError(
                "MSG-005",
                f"The update has {len(body)} bytes; an update of this study has "
                f"{self.n_update_bytes}.",
            )

    async def _admit(self, target: str, body: bytes, credential: str | None) -> None:
        """Admit an update and use up its number.

        An update that no honest device sends is rejected first, and its number stays free.
        """
        name = await self.admission.check(target, body, credential)
        epoch, weights = _split_update(body)
        if as_weights(weights).min() < -MAX_WEIGHT:
            raise _out_of_range_error()
        # A draw returns the present epoch: other workers may have merged updates since the last
        # one here.
        if (
            epoch > self.server.n_merged // self.server.params.epoch_updates
            and epoch > int.from_bytes((await self.draw())[0], "little")
        ):
            raise _early_epoch_error(epoch)
        if name is not None:
            await self.admission.use(name)

    async def _merge(self, body: bytes) -> None:
        epoch, weights = _split_update(body)
        outcome = await self._updates(ReceivedUpdate(body[:ID_BYTES], epoch, weights))
        if outcome == "merged":
            self.is_over = self.is_over or self.server.is_full
        elif outcome == "range":
            raise _out_of_range_error()
        elif outcome == "early":
            raise _early_epoch_error(epoch)
        elif outcome != "repeated":
            self._count_rejection("stale" if outcome == "stale" else "spam")

    def _draw(self) -> tuple[bytes, Body]:
        epoch, weights = self.server.draw()
        return epoch.to_bytes(EPOCH_BYTES, "little"), weights

    def _draw_many(self, requests: list[None]) -> list[tuple[bytes, Body]]:
        return [self._draw() for _ in requests]


def _split_update(body: bytes) -> tuple[int, memoryview]:
    """Return the epoch and the weights of an update."""
    return int.from_bytes(body[ID_BYTES:_HEAD_BYTES], "little"), memoryview(body)[_HEAD_BYTES:]


def _out_of_range_error() -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", "A weight of the update is out of range.")


def _early_epoch_error(epoch: int) -> RemoteProtocolError:
    return RemoteProtocolError("DDML-001", f"The update is of epoch {epoch}, which has not begun.")


@dataclass
class _MaintainedStudy:
    """A study with the time of its last tidying and the number of updates at that time."""

    study: DDMLStudy
    tidied_at: int
    tidied_after: int
    has_ended: bool = False


class DDMLStudies:
    """All DDML studies in one worker.

    Parameters
    ----------
    store
        The coordinator's store; any thread may call it.
    instances
        The store of instances; nothing else in this worker uses it.
    entropy
        Chooses instances.
    handles
        Handles of the worker's studies; None makes a new cache.
    """

    def __init__(
        self,
        store: Store,
        instances: InstanceStore,
        clock: Clock,
        entropy: Entropy,
        handles: StudyHandles | None = None,
    ) -> None:
        self._store, self._instances, self._clock, self._entropy = store, instances, clock, entropy
        self._handles = handles or StudyHandles()
        self._executor = ThreadPoolExecutor(1, "shoal-devices")
        self._token_executor = ThreadPoolExecutor(1, "shoal-devices-tokens")
        self._is_blocking = not isinstance(instances, MemoryInstanceStore)
        self._studies: dict[str, asyncio.Task[DDMLStudy | None]] = {}
        self._maintained: list[_MaintainedStudy] = []
        self._rejections = RejectionCounter()
        self._upkeep_task: asyncio.Task[None] | None = None

    async def open_study(self, digest: str) -> DDMLStudy | None:
        """Return a DDML study of this coordinator; None for any other digest."""
        task = self._studies.get(digest)
        if task is None:
            task = self._studies[digest] = asyncio.create_task(self._load_study(digest))
        try:
            study = await asyncio.shield(task)
        except Exception:
            self._studies.pop(digest, None)
            raise
        if study is None:
            self._studies.pop(digest, None)
        return study

    async def end_if_due(self, record: StudyRecord) -> StudyOutcome | None:
        """Return the outcome of a study if it ends now; None while it is open.

        A study ends when enough updates are merged or its time is up. Nothing is merged after
        that.
        """
        study = await self.open_study(record.digest)
        assert study is not None, "the scheduler calls this for ddml studies only"
        outcome = await self._call_instances(self._find_outcome, record, study.server)
        study.is_over = study.is_over or outcome is not None
        return outcome

    async def run_upkeep(self) -> None:
        """Write counts, find studies that have ended, and delete earlier instances from disk."""
        # A failed step is repeated later and does not prevent the others.
        with suppress(StoreError):
            await self._rejections.flush(self._store)
        for maintained in self._maintained:
            with suppress(StoreError):
                await self._maintain_study(maintained)

    async def check_status(self, digest: str) -> None:
        """Read the status of a study now, if it is open here: the analyst may have closed it."""
        for maintained in self._maintained:
            if maintained.study.digest == digest:
                with suppress(StoreError):
                    await self._maintain_study(maintained)

    async def count_merged(self, digest: str) -> int:
        """Return how many updates of a study were merged; 0 if its instances do not exist."""
        try:
            return await self._call_instances(self._instances.count_merged, digest)
        except StoreError:
            return 0

    async def stop(self) -> None:
        """Run the last upkeep; the caller closes the stores."""
        if self._upkeep_task is not None:
            self._upkeep_task.cancel()
            await asyncio.wait([self._upkeep_task])
        await self.run_upkeep()
        self._token_executor.shutdown()
        self._executor.shutdown()

    async def _load_study(self, digest: str) -> DDMLStudy | None:
        record = await self._call(self._store.find_study, digest)
        if record is None:
            return None
        handle = await self._call(self._handles.open, record)
        if not handle.protocol.has_updates:
            return None
        # The spam filter is calibrated by simulation, which takes a while.
        server = await self._call(self._open_server, handle)
        executor = self._executor if self._is_blocking else None
        study = DDMLStudy(
            digest,
            server,
            self._make_admission(handle),
            partial(self._rejections.count, digest),
            executor,
        )
        study.is_over = record.status != "open" or server.is_full
        self._maintained.append(_MaintainedStudy(study, self._now(), server.n_merged))
        if self._upkeep_task is None:
            self._upkeep_task = asyncio.create_task(self._run_upkeep_forever())
        return study

    def _open_server(self, handle: StudyHandle) -> ModelServer:
        # `DDMLStudy` counts rejections from the outcomes.
        return open_model_server(
            handle.manifest, self._instances, self._entropy, on_reject=lambda _: None
        )

    def _make_admission(self, handle: StudyHandle) -> Admission:
        study, digest = handle.study, handle.digest.hex()
        settings = study.ddml
        assert settings is not None
        numbered = (self._store, digest, study.privacy.n_updates, self._executor)
        if settings.admission == "signed":
            return SignedAdmission(*numbered, self._now)
        if handle.has_tokens:
            return TokenAdmission(*numbered, handle.manifest, self._token_executor)
        return TicketAdmission(*numbered) if settings.admission == "token" else Admission()

    def _find_outcome(self, record: StudyRecord, server: ModelServer) -> StudyOutcome | None:
        n_merged = self._instances.count_merged(record.digest)
        if (
            n_merged < server.params.n_expected
            and self._now() < record.opened + record.phase_timeout
        ):
            return None
        n_merged, handle = server.finish(), self._handles.open(record)
        minimum = handle.study.participation.minimum
        if n_merged < minimum:
            error = RemoteProtocolError(
                "DDML-002",
                f"{n_merged} updates were merged; the study needs {minimum}.",
                why="Too few devices sent an update in time. Sent updates stay spent.",
            )
            return StudyOutcome("failed", reason=str(error))
        refused = self._store.count_totals(record.digest).refused
        return StudyOutcome(
            "done", encode_result(handle, DDMLResult(server.make_model(), n_merged, refused))
        )

    async def _run_upkeep_forever(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            await self.run_upkeep()

    async def _maintain_study(self, maintained: _MaintainedStudy) -> None:
        if maintained.has_ended:
            return
        study, server, now = maintained.study, maintained.study.server, self._now()
        record = await self._call(self._store.find_study, study.digest)
        if record is None or record.status != "open":
            # The analyst has closed it. Until `finish`, updates would be merged and their names
            # stored.
            await self._call_instances(server.finish)
            maintained.has_ended = study.is_over = True
        # `abs`: a clock that is set back must not delay this.
        is_due = study.is_over or abs(now - maintained.tidied_at) >= TIDY_MILLISECONDS
        if server.n_merged > maintained.tidied_after and is_due:
            await self._call_instances(server.tidy)
            maintained.tidied_at, maintained.tidied_after = now, server.n_merged

    def _now(self) -> int:
        return to_milliseconds(self._clock.now())

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _call_instances(self, work: Callable[..., T], *arguments: object) -> T:
        """Call the instance store from the one place that may use it.

        The event loop uses instances in memory; the thread uses a store that blocks.
        """
        return await self._call(work, *arguments) if self._is_blocking else work(*arguments)
