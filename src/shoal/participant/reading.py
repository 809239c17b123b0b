"""Read the broadcasts of a study with anonymous packets, at times fixed in advance.

`shoal.participant.driver` starts each read at a time of `ReadingTimes` (`run_reads`), and
`shoal.participant.anonymous_delivery` passes what was read to a `BroadcastReader`.

A change must keep:

- The times of all reads are fixed before the first one. A response that is slow, fails, or says
  that the study has ended moves no read and no packet.
- A question counts only if it is signed, has the times of the manifest's schedule, and was received
  before ``joins_until`` of its phase. Nothing that is read later changes what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shoal.clock import Clock
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, TransportError
from shoal.participant.delivery import MailboxMessage, ProgressCallback, report_retry
from shoal.participant.network.base import NetworkPath
from shoal.protocols.anonml.messages import AnonMLAsk
from shoal.study.handle import StudyHandle
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import QueuedMessage
from shoal.transport.broadcasts import hash_ask, parse_ask

CLOCK_CHECK_SECONDS = 30.0
"""Longest wait before the clock is read again: it may have been changed."""
MAX_READS_UNDER_WAY = 4
"""Most reads that wait for a response at the same time; a read beyond that is left out."""
_DRAW_STEP = timedelta(milliseconds=1)
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class ReadingTimes:
    """When a participant reads: from `first` on, every `cadence`, until `end`.

    Examples
    --------
    >>> from datetime import UTC
    >>> begin = datetime(2030, 1, 1, tzinfo=UTC)
    >>> times = ReadingTimes(begin, timedelta(seconds=10), begin + timedelta(minutes=1))
    >>> times.find_next(begin).second, times.find_next(begin + timedelta(seconds=29)).second
    (10, 30)
    """

    first: datetime
    cadence: timedelta
    end: datetime

    def find_next(self, after: datetime) -> datetime:
        """Return the time of the first read after a time."""
        if after < self.first:
            return self.first
        return self.first + ((after - self.first) // self.cadence + 1) * self.cadence


def draw_time(begin: datetime, end: datetime, entropy: Entropy) -> datetime:
    """Draw a time between two times, in milliseconds."""
    return begin + entropy.below(max(1, (end - begin) // _DRAW_STEP)) * _DRAW_STEP


def draw_reading_times(
    study: StudyHandle, last: PhaseWindow, now: datetime, entropy: Entropy
) -> ReadingTimes:
    """Draw when a participant reads whose last question is in the given window.

    The first read is within one cadence from now. The end is between ``resends_until`` and
    ``closes``: the times of packets do not show in it.
    """
    cadence = study.schedule.cadence
    return ReadingTimes(
        draw_time(now, now + cadence, entropy),
        cadence,
        draw_time(last.resends_until, last.closes, entropy),
    )


async def run_reads(
    times: ReadingTimes,
    clock: Clock,
    sleep: Callable[[float], Awaitable[None]],
    read: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Start each read at its time, whatever happened to the earlier ones; return at the end."""
    under_way: set[asyncio.Task[None]] = set()
    when = times.find_next(clock.now())
    try:
        while when < times.end:
            await sleep_until(when, clock, sleep)
            under_way = {task for task in under_way if not task.done()}
            if len(under_way) < MAX_READS_UNDER_WAY:
                under_way.add(asyncio.create_task(read()))
            when = times.find_next(max(when, clock.now()))
        await sleep_until(times.end, clock, sleep)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def sleep_until(
    when: datetime, clock: Clock, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Wait until a time of the participant's clock."""
    while (left := (when - clock.now()).total_seconds()) > 0:
        await sleep(min(left, CLOCK_CHECK_SECONDS))


@dataclass
class BroadcastReader:
    """Decide which questions of the coordinator a participant answers.

    Parameters
    ----------
    key
        The coordinator's key, which signed the manifest.
    own_phases
        The phases in which this participant has a question.

    Attributes
    ----------
    cursor
        Number of the last message that was read.
    disputed
        Phases with two different questions, both signed: they are not answered.
    n_refused
        Number of refused messages.
    """

    study: StudyHandle
    key: bytes
    own_phases: Collection[int]
    network_path: NetworkPath
    clock: Clock
    on_progress: ProgressCallback
    cursor: int = 0
    disputed: set[int] = field(default_factory=set)
    n_refused: int = 0
    _digests: dict[int, bytes] = field(default_factory=dict)
    _unconfirmed: dict[int, MailboxMessage] = field(default_factory=dict)

    def remember(self, ask: AnonMLAsk, payload: bytes) -> None:
        """Take a question of an earlier run as the first one of its phase."""
        self._digests.setdefault(ask.phase, hash_ask(payload))

    async def accept(self, letters: Collection[QueuedMessage]) -> list[MailboxMessage]:
        """Return the questions that count now, in the order of their numbers.

        A question that the relay does not have yet is compared again after the next read.
        """
        for queued in letters:
            if queued.number > self.cursor:
                self.cursor = queued.number
                self._receive(queued)
        return await self._confirm()

    def _receive(self, queued: QueuedMessage) -> None:
        try:
            ask = parse_ask(self.study, self.key, queued)
            digest = hash_ask(queued.payload)
            if self._digests.setdefault(ask.phase, digest) != digest:
                self._unconfirmed.pop(ask.phase, None)
                if self.clock.now() < self._get_deadline(ask.phase):
                    self.disputed.add(ask.phase)
                raise RemoteProtocolError(
                    "ANONML-003",
                    f"The coordinator has signed two different questions for phase {ask.phase}.",
                    why="Participants with different questions can be distinguished. Message "
                    f"{queued.number} and an earlier one prove it.",
                )
            if ask.phase in self.own_phases:
                self._check_in_time(ask.phase)
                self._unconfirmed[ask.phase] = MailboxMessage(queued.number, queued.payload)
        except RemoteProtocolError as error:
            self._report(error)

    async def _confirm(self) -> list[MailboxMessage]:
        """Compare new questions with the relay's, if there is one; return those that are equal."""
        confirmed = []
        for phase, message in list(self._unconfirmed.items()):
            try:
                is_equal = await self.network_path.confirm_ask(
                    self.study, phase, self._digests[phase]
                )
                self._check_in_time(phase)
                # Another read may have ended in the meantime.
                if is_equal and self._unconfirmed.pop(phase, None) is not None:
                    confirmed.append(message)
            except TransportError as error:
                report_retry(self.on_progress, error)
            except RemoteProtocolError as error:
                if self._unconfirmed.pop(phase, None) is not None:
                    self._report(error)
        return confirmed

    def _check_in_time(self, phase: int) -> None:
        if self.clock.now() >= (deadline := self._get_deadline(phase)):
            raise RemoteProtocolError(
                "ANONML-003",
                f"The question of phase {phase} came after {deadline:{_TIME_FORMAT}} UTC.",
                why="A coordinator that chooses who gets it late could know packets by their time.",
            )

    def _get_deadline(self, phase: int) -> datetime:
        return self.study.schedule.get_window(phase).joins_until

    def _report(self, error: RemoteProtocolError) -> None:
        self.n_refused += 1
        self.on_progress(f"rejected a message of the coordinator ({error.code}): {error.what}")
