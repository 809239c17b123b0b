"""Track the coordinator's studies; per-sender quotas.

The server polls `StudyTracker` every second; the handlers and the batch releaser read its studies.
The coordinator is believed only if its data can be checked.

A relay serves a study if its manifest is signed by the key of the first contact, has the digest
under which it is listed, and has packets with tokens. The size of its packets is computed here. The
first announced times of a phase count; later ones change nothing. A coordinator that lies about
times gets no batch with fewer sealed packets than the manifest requires. A relay cannot open
packets, so it cannot see how many of them the coordinator has made itself to fill a batch.

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
from shoal.messages import codec
from shoal.messages.codec import check_value_count
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import Spool, SpooledPhase
from shoal.study.delivery import PhaseWindow
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.text import escape_text
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


MAX_MESSAGE_VALUES = 1 << 18
"""Most values of a message; participants have the same limit."""
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
        Phases that the coordinator has announced.
    next_poll, cursor
        Time of the next poll for messages, and number of the last message.
    """

    digest: str
    handle: StudyHandle
    size: int
    sealed_size: int
    n_expected: int
    max_in_part: int
    n_phases: int
    phases: tuple[SpooledPhase, ...]
    next_poll: datetime
    cursor: int = 0
    sender_quota: SenderQuota = field(default_factory=SenderQuota)

    @property
    def max_packets(self) -> int:
        """Most packets in the spool."""
        return SPOOL_FACTOR * self.n_expected

    def find_phase(self, now: datetime) -> int:
        """Return the phase of a packet that arrives now.

        It is the last known phase, or the next one after the time for resending has passed.
        """
        if not self.phases:
            return 0
        last = self.phases[-1]
        return last.number if now < last.window.resends_until else last.number + 1


def make_tracked_study(
    digest: str, data: bytes, phases: tuple[SpooledPhase, ...], now: datetime
) -> TrackedStudy | None:
    """Return the study of an encoded manifest; None if it has no sealed packets.

    All values follow from the manifest; none is taken from the coordinator.

    Raises
    ------
    ShoalError
        The data is not a manifest, or the manifest of another study.
    """
    handle = StudyHandle(Manifest.from_bytes(data))
    if handle.digest.hex() != digest:
        raise RemoteProtocolError(
            "MANIFEST-001", "The manifest does not have the digest under which it is listed."
        )
    size = handle.packet_size
    if size is None or handle.manifest.gateway_key is None:
        return None
    script, participation = handle.script, handle.study.participation
    n_each = max(len(script.list_question_numbers(phase, 0)) for phase in range(script.n_phases))
    n_expected = n_each * max(participation.minimum, participation.size)
    return TrackedStudy(
        digest,
        handle,
        size,
        compute_sealed_size(size),
        n_expected,
        compute_max_part(size),
        script.n_phases,
        phases,
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
            phases = await asyncio.to_thread(self._spool.list_phases, digest)
            study = await asyncio.to_thread(
                make_tracked_study, digest, published.manifest, phases, self._clock.now()
            )
            self._sealed_limits[digest] = await asyncio.to_thread(
                _find_sealed_limit, published.manifest
            )
        except (RemoteProtocolError, SpecError) as error:
            self._ignored.add(digest)
            self._on_progress(
                f"relay: study {digest[:12]} is not served: {escape_text(error.what)}"
            )
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
            ask = _parse_phase_opening(message.payload, study.handle.digest)
            if ask is not None and ask.phase < study.n_phases and ask.opened < ask.closes:
                await asyncio.to_thread(
                    self._spool.record_phase,
                    study.digest,
                    ask.phase,
                    PhaseWindow(ask.opened, ask.closes),
                )
            study.cursor = max(study.cursor, message.number)
        study.phases = await asyncio.to_thread(self._spool.list_phases, study.digest)
        now = self._clock.now()
        is_under_way = bool(study.phases) and now < study.phases[-1].window.resends_until
        wait = (
            min(LONG_INTERVAL, study.phases[-1].window.resends_until - now)
            if is_under_way
            else SHORT_INTERVAL
        )
        study.next_poll = now + wait
        if page.status != "open":
            await self._end_study(study.digest)

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


def _parse_phase_opening(payload: bytes, study: bytes) -> AnonMLAsk | None:
    """Return the opening of a phase; None for any other message."""
    try:
        check_value_count(payload, MAX_MESSAGE_VALUES)
        message = codec.decode(payload, MESSAGES, study)
    except RemoteProtocolError:
        return None
    return message if isinstance(message, AnonMLAsk) else None
