"""Times of reads: fixed in advance, and not moved by slow reads."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.participant.reading import (
    CLOCK_CHECK_SECONDS,
    MAX_READS_UNDER_WAY,
    ReadingTimes,
    draw_reading_times,
    run_reads,
    sleep_until,
)
from shoal.study.handle import StudyHandle
from tests.support.credentials import token_manifest

SECOND = timedelta(seconds=1)


def test_reading_times_are_drawn_within_one_cadence_and_after_resends() -> None:
    study, clock = StudyHandle(token_manifest()), ManualClock()
    window, entropy = study.schedule.get_window(0), SeededEntropy(1)
    drawn = [draw_reading_times(study, window, clock.now(), entropy) for _ in range(100)]
    cadence = study.schedule.cadence
    assert all(clock.now() <= one.first < clock.now() + cadence for one in drawn)
    assert all(window.resends_until <= one.end < window.closes for one in drawn)
    assert len({one.first for one in drawn}) > 90 < len({one.end for one in drawn})


def test_reads_that_never_end_leave_out_later_ones_and_are_cancelled() -> None:
    clock, n_begun, n_cancelled = ManualClock(), 0, 0

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    async def read() -> None:
        nonlocal n_begun, n_cancelled
        n_begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            n_cancelled += 1

    times = ReadingTimes(clock.now() + SECOND, SECOND, clock.now() + 9 * SECOND)
    asyncio.run(run_reads(times, clock, sleep, read))
    assert n_begun == n_cancelled == MAX_READS_UNDER_WAY
    assert clock.now() == times.end


def test_sleep_until_reads_clock_again_after_a_while() -> None:
    clock, slept = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(600 * seconds)

    asyncio.run(sleep_until(clock.now() + timedelta(hours=3), clock, sleep))
    assert slept == [CLOCK_CHECK_SECONDS], "the machine was asleep"
