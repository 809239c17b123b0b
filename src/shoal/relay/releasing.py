"""When packets leave: one shuffled batch when a phase collects no more, and one of those that were sent again; each large enough, or none.

==================  ===============================================================================================
until               what is done with packets that came for a phase
==================  ===============================================================================================
``collects_until``  they wait
``resends_until``   those that waited became one batch, if they were enough; what comes now waits
``closes``          those that waited became a second batch, if there were enough new ones; else those that were shown before
afterwards          what still waits is deleted: the coordinator could not count it, and few would not hide each other
==================  ===============================================================================================

What is to leave is noted on the disk before it does, with the part of the batch in which it goes. A part is sent until the coordinator
has answered it. After a crash it may be sent twice, which changes nothing there. What is acknowledged is deleted. A part that is refused as
too small, since some of its packets are rubbish, is rid of these; when all parts have been answered, what is left of them goes again as one
batch, which nobody else's packet joins. A part that is refused for another reason waits for the second batch.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from shoal.clock import Clock
from shoal.errors import TransportError
from shoal.relay.following import Followed, Following
from shoal.relay.remote import RefusedError, Remote
from shoal.relay.spool import Spool
from shoal.study.anonymity import Window, least_batch
from shoal.transport.forms import Taken

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(seconds=30)
"""Between two tries to reach the coordinator with a part: doubled each time."""


def settled_by(window: Window, now: datetime) -> int:
    """How many of a phase's releases are due.

    Examples
    --------
    >>> from datetime import UTC
    >>> window = Window(datetime(2030, 1, 1, 0, tzinfo=UTC), datetime(2030, 1, 1, 10, tzinfo=UTC))
    >>> [settled_by(window, datetime(2030, 1, 1, hour, tzinfo=UTC)) for hour in (6, 7, 9)]
    [0, 1, 2]
    """
    return (now >= window.collects_until) + (now >= window.resends_until)


class Releasing:
    """Releases what a spool has, study by study.

    Parameters
    ----------
    following, remote, spool, clock
        The studies, the coordinator, the packets, and the time.
    """

    def __init__(self, following: Following, remote: Remote, spool: Spool, clock: Clock) -> None:
        self._following, self._remote, self._spool, self._clock = following, remote, spool, clock
        self._waits: dict[str, tuple[datetime, timedelta]] = {}

    async def step(self) -> None:
        """Do all that is due now."""
        for study in list(self._following.served.values()):
            await asyncio.to_thread(self._settle, study, self._clock.now())
            await asyncio.to_thread(self._spool.settle_again, study.digest, study.most_in_part)
            await self._send(study.digest)

    def _settle(self, study: Followed, now: datetime) -> None:
        """Note what is to leave, and delete what is too late."""
        for phase in self._spool.phases(study.digest):
            due = settled_by(phase.window, now)
            if now >= phase.window.closes:
                self._spool.drop_late(study.digest, phase.number)
            elif due > phase.settled:
                least = least_batch(study.manifest, phase.number)
                self._spool.settle(study.digest, phase.number, due, least, study.most_in_part)

    async def _send(self, study: str) -> None:
        """Send the parts of a study, one after another, until one does not get through."""
        again_at, wait = self._waits.get(study, (self._clock.now(), FIRST_WAIT))
        if self._clock.now() < again_at:
            return
        for part in await asyncio.to_thread(self._spool.parts, study):
            packets = await asyncio.to_thread(self._spool.part, study, part)
            try:
                told = await self._remote.deliver(study, packets)
            except RefusedError:
                await asyncio.to_thread(self._spool.return_part, study, part)
            except TransportError:
                self._waits[study] = (self._clock.now() + wait, min(2 * wait, LONGEST_WAIT))
                return
            else:
                await asyncio.to_thread(self._answered, study, part, packets, told)
        self._waits.pop(study, None)

    def _answered(self, study: str, part: int, packets: list[bytes], told: Taken) -> None:
        if told.taken is None:
            self._spool.return_part(study, part, [packets[i] for i in told.invalid])
        else:
            self._spool.drop_part(study, part)
