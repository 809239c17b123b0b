"""Track the coordinator's studies; per-sender quotas.

The server polls `StudyTracker` every second; the handlers and the batch releaser read its studies.
The coordinator is believed only if its data can be checked.

A relay serves a study if its manifest is signed by the key of the first contact, has the digest
under which it is listed, and has packets with tokens and a schedule. The size of its packets and
the times of its phases are computed from the manifest; no message changes them. The relay keeps the
digest of the first signed opening of each phase, which participants compare with the one that they
were shown. A relay cannot open packets, so it cannot see how many of them the coordinator has made
itself to fill a batch.

If a study is no longer listed, no packets are accepted, and its packets are stored until its last
phase is over. If its end is reported, its packets are deleted, and its digest is not served again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.clock import Clock
from shoal.errors import RemoteProtocolError, SpecError
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import Spool, SpooledPhase
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.text import escape_text
from shoal.transport.api import SignedManifest
from shoal.transport.broadcasts import hash_ask, parse_ask
from shoal.transport.client import RefusedError
from shoal.transport.connections import normalize_sender
from shoal.transport.packets import (
    DEFAULT_SEALED_BYTES,
    compute_max_part,
    compute_max_sealed_bytes,
    compute_sealed_size,
)
from shoal.transport.signing import verify_manifest


class SenderQuota:
    """Limit the packets that a relay stores for one sender.

    Counts are in memory only, and forgotten with the window.

    Examples
    --------
    >>> quota = SenderQuota()
    >>> [quota.admit(0, "192.0.2.1", 2) for _ in range(3)], quota.admit(1, "192.0.2.1", 2)
    ([True, True, False], True)
    """

    def __init__(self) -> None:
        self._phase, self._counts = 0, Counter[str]()

    def start_phase(self, phase: int) -> None:
        """Forget the counts of another phase."""
        if phase != self._phase:
            self._phase, self._counts = phase, Counter()

    def admit(self, phase: int, address: str, limit: int) -> bool:
        """Count a packet of a phase; return False if its address has reached the limit."""
        self.start_phase(phase)
        sender = normalize_sender(address)
        if self._counts[sender] >= limit:
            return False
        self._counts[sender] += 1
        return True

    def refund(self, phase: int, address: str) -> None:
        """Subtract a packet that was not stored."""
        if phase == self._phase:
            self._counts -= Counter([normalize_sender(address)])


SHORT_INTERVAL, LONG_INTERVAL = timedelta(seconds=1), timedelta(seconds=15)
"""Pauses between two polls for messages: before the first phase or at the end of one, and during a
phase.
"""
SPOOL_FACTOR = 10
"""Capacity for a study, as a multiple of the packets that the declared number of people send in a
phase. One address may send that number once.
"""


@dataclass
class TrackedStudy:
    """A study that the relay serves.

    Parameters
    ----------
    size, sealed_size
        Bytes of a packet, before and after it is sealed.
    n_expected
        Packets of a phase if the declared number of people take part.
    max_in_part
        Most packets in one request to the coordinator.
    phases
        Phases of the schedule, as the spool has recorded them.
    key
        The coordinator's key, which signed the manifest.
    next_poll, cursor
        Time of the next poll for messages, and number of the last message.
    """

    digest: str
    handle: StudyHandle
    size: int
    sealed_size: int
    n_expected: int
    max_in_part: int
    phases: tuple[SpooledPhase, ...]
    key: bytes
    next_poll: datetime
    cursor: int = 0
    sender_quota: SenderQuota = field(default_factory=SenderQuota)

    @property
    def max_packets(self) -> int:
        """Most packets in the spool."""
        return SPOOL_FACTOR * self.n_expected

    @property
    def asks(self) -> dict[int, bytes]:
        """SHA-256 of the first signed opening of each phase that was read."""
        return {phase.number: phase.ask for phase in self.phases if phase.ask is not None}

    def find_phase(self, now: datetime) -> int:
        """Return the phase of a packet that arrives now.

        It is the first phase in which packets can still be sent again; after the last one, one
        more than the last.
        """
        return sum(now >= phase.window.resends_until for phase in self.phases)


def make_tracked_study(
    digest: str, published: SignedManifest, spool: Spool, now: datetime
) -> TrackedStudy | None:
    """Return a published study; None if it has no sealed packets. Record its phases.

    All values follow from the manifest; none is taken from a message.

    Raises
    ------
    ShoalError
        The data is not a manifest, or the manifest of another study.
    """
    handle = StudyHandle(Manifest.from_bytes(published.manifest))
    if handle.digest.hex() != digest:
        raise RemoteProtocolError(
            "MANIFEST-001", "The manifest does not have the digest under which it is listed."
        )
    size = handle.packet_size
    if size is None or handle.manifest.gateway_key is None:
        return None
    script, participation, schedule = handle.script, handle.study.participation, handle.schedule
    for phase in range(script.n_phases):
        spool.record_phase(digest, phase, schedule.get_window(phase))
    n_each = max(len(script.list_question_numbers(phase, 0)) for phase in range(script.n_phases))
    n_expected = n_each * max(participation.minimum, participation.size)
    return TrackedStudy(
        digest,
        handle,
        size,
        compute_sealed_size(size),
        n_expected,
        compute_max_part(size),
        spool.list_phases(digest),
        published.key,
        now,
    )


class StudyTracker:
    """The studies of a coordinator that a relay serves.

    Parameters
    ----------
    spool
        Stores phases and the coordinator's key.
    on_progress
        Receives lines for the operator; None prints them on standard error.

    Attributes
    ----------
    studies
        Studies by digest.
    has_polled
        Whether the coordinator has answered once.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        spool: Spool,
        clock: Clock,
        on_progress: Callable[[str], object] | None = None,
    ) -> None:
        self.studies: dict[str, TrackedStudy] = {}
        self.has_polled = False
        self._client, self._spool, self._clock = client, spool, clock
        self._on_progress = on_progress or (lambda line: print(line, file=sys.stderr, flush=True))
        self._ignored: set[str] = set()
        self._sealed_limits: dict[str, int] = {}

    @property
    def max_sealed_bytes(self) -> int:
        """Limit for sealed requests: what the open study with the largest ones needs."""
        return max(self._sealed_limits.values(), default=DEFAULT_SEALED_BYTES)

    async def poll(self) -> None:
        """Read the list of studies and new messages once.

        Raise `TransportError` if the coordinator does not answer; then nothing changes.
        """
        statuses = await self._client.fetch_studies()
        open_studies = {digest for digest, status in statuses.items() if status == "open"}
        self._ignored &= open_studies
        for digest in self._sealed_limits.keys() - open_studies:
            del self._sealed_limits[digest]
        for digest in sorted(open_studies - set(self.studies) - self._ignored):
            await self._start_tracking(digest)
        self.has_polled = True
        for digest in sorted(
            {*self.studies, *await asyncio.to_thread(self._spool.list_studies)} - open_studies
        ):
            await (self._end_study if digest in statuses else self._suspend_study)(digest)
        now = self._clock.now()
        for study in self.studies.values():
            study.sender_quota.start_phase(study.find_phase(now))
        for study in [one for one in self.studies.values() if now >= one.next_poll]:
            await self._read_broadcasts(study)

    async def _start_tracking(self, digest: str) -> None:
        try:
            published = await self._client.fetch_manifest(digest)
            verify_manifest(published.key, bytes.fromhex(digest), published.signature)
            if await asyncio.to_thread(self._spool.pin_key, published.key) != published.key:
                raise RemoteProtocolError(
                    "AUTH-004", "The coordinator has another key than when this spool was created."
                )
            if await asyncio.to_thread(self._spool.has_ended, digest):
                raise RemoteProtocolError(
                    "HOST-002",
                    "The coordinator reported its end before, and its packets were deleted.",
                )
            study = await asyncio.to_thread(
                make_tracked_study, digest, published, self._spool, self._clock.now()
            )
            self._sealed_limits[digest] = await asyncio.to_thread(
                _find_sealed_limit, published.manifest
            )
        except (RemoteProtocolError, SpecError) as error:
            self._ignored.add(digest)
            self._report(digest, f"is not served: {error.what}")
            return
        if study is None:
            self._ignored.add(digest)
        else:
            self.studies[digest] = study

    async def _read_broadcasts(self, study: TrackedStudy) -> None:
        try:
            page = await self._client.fetch_broadcasts(study.digest, study.cursor)
        except RefusedError:
            return  # the next list of studies shows whether it exists
        for message in page.letters:
            try:
                ask = parse_ask(study.handle, study.key, message)
            except RemoteProtocolError as error:
                self._report(study.digest, f"sent a message that does not count: {error.what}")
            else:
                if not await asyncio.to_thread(
                    self._spool.record_ask, study.digest, ask.phase, hash_ask(message.payload)
                ):
                    what = f"has two different signed openings of phase {ask.phase}"
                    self._report(study.digest, what)
            study.cursor = max(study.cursor, message.number)
        study.phases = await asyncio.to_thread(self._spool.list_phases, study.digest)
        now = self._clock.now()
        phase = study.find_phase(now)
        # The opening of a phase is read soon after it is due, and the end of the study too.
        wait = (
            min(LONG_INTERVAL, study.phases[phase].window.resends_until - now)
            if phase in study.asks
            else SHORT_INTERVAL
        )
        study.next_poll = now + wait
        if page.status != "open":
            await self._end_study(study.digest)

    def _report(self, digest: str, what: str) -> None:
        self._on_progress(f"relay: study {digest[:12]} {escape_text(what)}")

    async def _suspend_study(self, digest: str) -> None:
        """Stop serving a study that is not listed; end it after its last known phase."""
        self.studies.pop(digest, None)
        phases = await asyncio.to_thread(self._spool.list_phases, digest)
        if phases and self._clock.now() >= max(phase.window.closes for phase in phases):
            await self._end_study(digest)

    async def _end_study(self, digest: str) -> None:
        """Stop serving a study that has ended, and delete its packets."""
        self.studies.pop(digest, None)
        await asyncio.to_thread(self._spool.drop_study, digest)


def _find_sealed_limit(data: bytes) -> int:
    """Return the limit for sealed requests of an encoded manifest's participants."""
    handle = StudyHandle(Manifest.from_bytes(data))
    has_gateway = handle.manifest.gateway_key is not None
    return compute_max_sealed_bytes(handle) if has_gateway else DEFAULT_SEALED_BYTES
