"""Release shuffled batches.

The server calls `BatchReleaser.run_due` every second. A phase has one batch when it collects no
more packets, and a second one of packets that were sent again. A batch is large enough, or it does
not leave. Packets of a phase

until ``collects_until``
    wait.
until ``resends_until``
    Waiting packets became one batch, if they were enough. New packets wait.
until ``closes``
    Waiting packets became a second batch, if there were enough new ones; otherwise only packets
    that were sent before leave again.
afterwards
    Packets that still wait are deleted: the coordinator could not count them, and a small batch
    would not hide its senders.

A batch is stored on disk, in parts, before it leaves. A part is sent until the coordinator answers.
After a crash it may be sent twice, which changes nothing there. Acknowledged packets are deleted.
If a part is rejected as too small because some packets are invalid, these are deleted; when all
parts have been answered, the remaining packets go again as one batch, which no other packet joins.
A part that is rejected for another reason waits for the second batch.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from shoal.clock import Clock
from shoal.errors import TransportError
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import Spool
from shoal.relay.studies import StudyTracker, TrackedStudy
from shoal.study.delivery import compute_min_batch
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import BatchReceipt
from shoal.transport.client import RefusedError

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(seconds=30)
"""First and longest pause between two attempts to send a part; it doubles each time."""


def count_due_batches(window: PhaseWindow, now: datetime) -> int:
    """Return how many batches of a phase are due.

    Examples
    --------
    >>> from datetime import UTC
    >>> window = PhaseWindow(
    ...     datetime(2030, 1, 1, 0, tzinfo=UTC), datetime(2030, 1, 1, 10, tzinfo=UTC)
    ... )
    >>> [count_due_batches(window, datetime(2030, 1, 1, hour, tzinfo=UTC)) for hour in (7, 8, 9)]
    [0, 1, 2]
    """
    return (now >= window.collects_until) + (now >= window.resends_until)


class BatchReleaser:
    """Release the packets of a spool, study by study."""

    def __init__(
        self, tracker: StudyTracker, client: CoordinatorClient, spool: Spool, clock: Clock
    ) -> None:
        self._tracker, self._client, self._spool, self._clock = tracker, client, spool, clock
        self._retry_times: dict[str, tuple[datetime, timedelta]] = {}

    async def run_due(self) -> None:
        """Make and send all batches that are due."""
        for study in list(self._tracker.studies.values()):
            await asyncio.to_thread(self._make_due_batches, study, self._clock.now())
            await asyncio.to_thread(self._spool.make_resend_batch, study.digest, study.max_in_part)
            await self._send_parts(study.digest)

    def _make_due_batches(self, study: TrackedStudy, now: datetime) -> None:
        """Record the batches that are due, and delete packets that are too late."""
        for phase in self._spool.list_phases(study.digest):
            due = count_due_batches(phase.window, now)
            if now >= phase.window.closes:
                self._spool.drop_late(study.digest, phase.number)
            elif due > phase.n_batches:
                handle = study.handle
                minimum = compute_min_batch(handle.manifest, phase.number, handle.script)
                self._spool.make_batch(study.digest, phase.number, due, minimum, study.max_in_part)

    async def _send_parts(self, study: str) -> None:
        """Send the parts of a study one after another, until one cannot be sent."""
        retry_time, wait = self._retry_times.get(study, (self._clock.now(), FIRST_WAIT))
        if self._clock.now() < retry_time:
            return
        for part in await asyncio.to_thread(self._spool.list_parts, study):
            packets = await asyncio.to_thread(self._spool.read_part, study, part)
            try:
                receipt = await self._client.send_batch(study, packets)
            except RefusedError:
                await asyncio.to_thread(self._spool.return_part, study, part)
            except TransportError:
                self._retry_times[study] = (self._clock.now() + wait, min(2 * wait, LONGEST_WAIT))
                return
            else:
                await asyncio.to_thread(self._apply_receipt, study, part, packets, receipt)
        self._retry_times.pop(study, None)

    def _apply_receipt(
        self, study: str, part: int, packets: list[bytes], receipt: BatchReceipt
    ) -> None:
        if receipt.taken is None:
            self._spool.return_part(study, part, [packets[i] for i in receipt.invalid])
        else:
            self._spool.drop_part(study, part)
