"""`CoordinatorService`: what each request does.

The routes and the dashboard call it. It opens the parts of one worker (mailbox, submissions,
enrolment, scheduler, DDML) and keeps the operations that need several of them; routes call the
parts directly for everything else. It holds no state that another worker could miss: all state is
in the store, and caches contain only values that never change.

Store calls block, so they run in threads. Long polls wait in `Mailbox`, never in a store thread.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from shoal.clock import Clock, to_milliseconds
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.ddml.studies import DDMLStudies
from shoal.coordinator.enrolment import CoordinatorKeys, Registrar
from shoal.coordinator.lanes import Pace, SharedThread
from shoal.coordinator.mailbox import Mailbox, unknown_study_error
from shoal.coordinator.publishing import (
    add_schedule,
    hash_key,
    load_or_create_secrets,
    publish,
)
from shoal.coordinator.receipts import MemberLists, PagedLists, ReceiptLists
from shoal.coordinator.rejections import RejectionCounter
from shoal.coordinator.scheduler import SchedulerHooks, StudyScheduler
from shoal.coordinator.store.base import Store, StudyOutcome, StudyRecord, StudyTotals
from shoal.coordinator.studies import StudyHandles, StudyView
from shoal.coordinator.submissions import Submissions
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy
from shoal.errors import StoreError, UsageError
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import Issuing, SignedManifest, to_cbor
from shoal.transport.ohttp import Gateway
from shoal.transport.packets import DEFAULT_SEALED_BYTES, compute_max_sealed_bytes
from shoal.transport.requests import not_found_error
from shoal.transport.signing import sign_manifest

T = TypeVar("T")

STOP_SECONDS = 5.0
BATCH_PAUSE_SECONDS = 0.004
"""Pause between two pieces of batches, of 64 kB or more; then other requests have a turn."""

ROUNDING = 10
"""Public counts of people are rounded down to a multiple of this, so that no one can watch a count
rise by one.
"""

_RECEIPTS_CACHE_MILLISECONDS = 1_000
"""How long the list of received packets is assumed not to change: all participants request it at
about the same time.
"""

_THREADS = 4
_MAX_CACHED_STUDIES = 256


def round_count(n: int) -> int:
    """Return a count of people as it is published.

    Examples
    --------
    >>> round_count(9), round_count(27)
    (0, 20)
    """
    return n - n % ROUNDING


class CoordinatorService:
    """The studies of a coordinator, in one of its workers.

    `mailbox` and `submissions` are ready from the beginning; `registrar`, `keys`, `identity` and
    `gateway` after `start`.

    Parameters
    ----------
    store, instances
        The store of studies and the store of DDML instances. The caller closes both.
    entropy
        Source of all randomness of the hosted aggregators.
    holder
        Name of this worker on leases; it must be unique.
    """

    identity: Identity
    keys: CoordinatorKeys
    registrar: Registrar

    def __init__(
        self, store: Store, instances: InstanceStore, clock: Clock, entropy: Entropy, holder: str
    ) -> None:
        self.clock = clock
        self._store, self._entropy, self._handles = store, entropy, StudyHandles()
        self.ddml_studies = DDMLStudies(store, instances, clock, entropy, self._handles)
        self._executor = ThreadPoolExecutor(_THREADS, "shoal-service")
        # Tokens have their own thread, so that a flood of them does not delay store calls.
        self._token_thread = SharedThread("shoal-tokens")
        self.batch_pace = Pace(BATCH_PAUSE_SECONDS)
        self.mailbox = Mailbox(store, clock, self._executor)
        rejections = RejectionCounter()
        self._flush_rejections = partial(rejections.flush, store)
        self._scheduler = StudyScheduler(
            store,
            self._handles,
            clock,
            entropy,
            holder,
            self.mailbox.notifier,
            SchedulerHooks(self.ddml_studies.end_if_due, self._flush_rejections),
        )
        self.submissions = Submissions(
            store, clock, self._executor, self._token_thread.lanes, rejections, self._scheduler.wake
        )
        self._receipt_lists = PagedLists(
            ReceiptLists(store, self._handles, clock),
            clock,
            self._executor,
            _RECEIPTS_CACHE_MILLISECONDS,
        )
        # A participant that has just registered looks for its own key in the list.
        self._member_lists = PagedLists(MemberLists(store), clock, self._executor)
        self._views: LRUCache[str, StudyView] = LRUCache(_MAX_CACHED_STUDIES)
        self._analyst_digest = b""
        self._scheduler_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the coordinator's keys and start the scheduler; raise `StoreError` if that fails."""
        secrets, _ = await self._call(load_or_create_secrets, self._store, self._entropy)
        self.identity, self._analyst_digest = (
            Identity.from_seed(secrets.signing_seed),
            secrets.analyst_digest,
        )
        self.mailbox.sign_with(self.identity)
        self.keys = CoordinatorKeys(secrets.signing_seed)
        self.registrar = Registrar(
            self._store,
            self.keys,
            self.clock,
            self._entropy,
            self._executor,
            self._token_thread.lanes.registrations,
            self._scheduler.wake,
        )
        self._scheduler_task = asyncio.create_task(self._scheduler.run())

    @cached_property
    def gateway(self) -> Gateway:
        """The OHTTP gateway; made for the first sealed request."""
        return Gateway.from_seed(self.keys.gateway_secret, self._entropy)

    async def stop(self) -> None:
        """Finish running steps and release all leases, so that other workers can take over."""
        self.mailbox.notifier.close()
        if self._scheduler_task is not None:
            self._scheduler_task.cancel()
            await asyncio.wait([self._scheduler_task])
            self._scheduler_task = None
        await self._scheduler.finish(STOP_SECONDS)
        await self.ddml_studies.stop()
        with suppress(StoreError):
            await self._flush_rejections()
        await asyncio.to_thread(self._token_thread.shutdown)
        self._executor.shutdown()

    async def is_ready(self) -> bool:
        """Return whether the scheduler runs and the store can be used."""
        try:
            await self._call(self._store.ping)
        except StoreError:
            return False
        return self._scheduler_task is not None and not self._scheduler_task.done()

    async def list_studies(self) -> tuple[StudyView, ...]:
        """Return all studies, in the order of their publication."""
        records = await self._call(self._store.list_studies)
        return tuple([await self._open_view(record) for record in records])

    async def get_study(self, digest: str) -> StudyView:
        """Return a study in its present state; raise ``HOST-001`` if it is unknown."""
        record = await self._call(self._store.find_study, digest)
        if record is None:
            raise unknown_study_error()
        return await self._open_view(record)

    async def find_max_sealed_bytes(self) -> int:
        """Return the limit for sealed requests: what the open study with the largest ones needs."""
        return max(
            (
                compute_max_sealed_bytes(view.handle)
                for view in await self.list_studies()
                if view.record.status == "open" and view.manifest.gateway_key is not None
            ),
            default=DEFAULT_SEALED_BYTES,
        )

    def is_analyst(self, key: str) -> bool:
        """Return whether this is the analyst's key; the comparison takes constant time."""
        return hmac.compare_digest(hash_key(key), self._analyst_digest)

    async def publish(self, manifest: bytes, *, phase_timeout: int | None = None) -> StudyRecord:
        """Publish the analyst's study; publishing it a second time changes nothing.

        ``phase_timeout`` is in milliseconds.
        """
        record, _ = await self._call(self._publish, manifest, phase_timeout)
        self._scheduler.wake()
        return record

    async def add_schedule(self, manifest: Manifest, phase_timeout: int | None) -> Manifest:
        """Return a manifest with its schedule, if it needs one; see `publishing.add_schedule`."""
        now = to_milliseconds(self.clock.now())
        handle = await self._call(
            lambda: add_schedule(StudyHandle(manifest), now, phase_timeout, self._store)
        )
        return handle.manifest

    async def close_study(self, digest: str) -> None:
        """End a study without a result; a study that has ended does not change."""
        await self._call(
            self._store.end,
            digest,
            StudyOutcome("closed", reason="The analyst has closed the study."),
        )
        await self.ddml_studies.check_status(digest)
        self.mailbox.notifier.notify(digest)

    async def list_members(self, digest: str, after: bytes = b"") -> bytes:
        """Return a page of `MemberList`: the members among whom a sender is anonymous.

        The page contains the first key after ``after``; see `PagedLists`.
        """
        view = await self.get_study(digest)
        if view.slots is None:
            raise not_found_error("This study has no tokens, and so no list of members.")
        return await self._member_lists.fetch_page(view.record, after)

    async def list_received(self, digest: str, after: bytes = b"") -> bytes:
        """Return a page of `ReceivedPackets`, in which senders look for their own packets.

        The page contains the first name after ``after``. Raise ``HOST-002`` while packets are
        collected.
        """
        view = await self.get_study(digest)
        view.get_packet_size()
        return await self._receipt_lists.fetch_page(view.record, after)

    async def get_issuing_keys(self) -> Issuing:
        """Return the coordinator's keys that manifests contain.

        Raise ``HOST-001`` if the extra that issues tokens is not installed.
        """
        try:
            return await self._call(lambda: self.keys.public_keys)
        except UsageError:
            raise not_found_error("This coordinator issues no tokens.") from None

    async def get_progress(self, digest: str) -> dict[str, Any]:
        """Return a study's status and totals."""
        view = await self.get_study(digest)
        with suppress(StoreError):
            await self._flush_rejections()
        totals = await self._count_totals(view)
        # Messages name holders and databases anyway. Counts of people and devices are rounded.
        publish_count = int if view.handle.participant_names else round_count
        refused = {code: publish_count(n) for code, n in sorted(totals.refused.items())}
        return {
            "status": view.record.status,
            "reason": view.record.reason,
            "enrolled": publish_count(totals.enrolled),
            "accepted": publish_count(totals.accepted),
            "refused": {code: n for code, n in refused.items() if n},
        }

    async def list_totals(self) -> tuple[tuple[StudyView, StudyTotals], ...]:
        """Return all studies with their counts."""
        with suppress(StoreError):
            await self._flush_rejections()
        return tuple([(view, await self._count_totals(view)) for view in await self.list_studies()])

    async def _count_totals(self, view: StudyView) -> StudyTotals:
        """Return a study's counts; for DDML, ``accepted`` counts the merged updates."""
        totals = await self._call(self._store.count_totals, view.record.digest)
        return (
            replace(totals, accepted=await self.ddml_studies.count_merged(view.record.digest))
            if view.handle.protocol.has_updates
            else totals
        )

    async def _open_view(self, record: StudyRecord) -> StudyView:
        view = self._views.get(record.digest)
        if view is None:
            view = self._views.put(record.digest, await self._call(self._make_view, record))
        # The cached fields never change. The record does, and another worker may change it.
        return replace(view, record=record)

    def _make_view(self, record: StudyRecord) -> StudyView:
        handle = self._handles.open(record)
        signature = sign_manifest(self.identity, handle.digest)
        signed_manifest = SignedManifest(
            manifest=record.manifest, key=self.identity.public_key, signature=signature
        )
        return StudyView(record, handle, to_cbor(signed_manifest))

    def _publish(self, data: bytes, phase_timeout: int | None) -> tuple[StudyRecord, bool]:
        manifest = Manifest.from_bytes(data)
        handle = self._handles.open_manifest(manifest.digest.hex(), data)
        has_keys = manifest.issuer_key is not None or manifest.gateway_key is not None
        return publish(
            self._store,
            handle,
            to_milliseconds(self.clock.now()),
            phase_timeout=phase_timeout,
            issuing=self.keys.public_keys if has_keys else None,
        )

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
