"""The system clock and the manual clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shoal.clock import ManualClock, SystemClock


def test_system_clock_is_in_utc() -> None:
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)


def test_manual_clock_moves_by_advance_only() -> None:
    clock = ManualClock()
    start = clock.now()
    assert clock.now() == start
    clock.advance(90)
    assert clock.now() - start == timedelta(seconds=90)
