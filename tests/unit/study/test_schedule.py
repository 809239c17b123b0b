"""The schedule: one window for each phase, its parts in order, and the cadence of reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SpecError
from shoal.study.schedule import MAX_WINDOW, Schedule

YEAR = MAX_WINDOW // timedelta(milliseconds=1)


@given(st.integers(0, 1 << 45), st.integers(100, YEAR), st.integers(0, 20))
def test_windows_follow_each_other_and_have_ordered_parts(
    opens: int, window: int, phase: int
) -> None:
    schedule = Schedule(opens, window)
    found = schedule.get_window(phase)
    assert found.closes == schedule.get_window(phase + 1).opened
    assert (
        found.opened
        < found.joins_until
        < found.sends_from
        < found.collects_until
        < found.resends_until
        < found.closes
    )
    assert found.closes - found.opened == timedelta(milliseconds=window)


def test_parts_of_window_are_fixed_shares() -> None:
    window = Schedule(0, 100_000).get_window(0)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert [
        (when - epoch).total_seconds()
        for when in (
            window.joins_until,
            window.sends_from,
            window.collects_until,
            window.resends_until,
            window.closes,
        )
    ] == [50, 60, 80, 90, 100]


@pytest.mark.parametrize(
    ("opens", "window"),
    [(-1, 1), (0, 0), (0, YEAR + 1), (1 << 48, 1), (0.0, 1), (0, 1.0), (True, 1), (None, 1)],
)
def test_schedule_rejects_other_numbers(opens: Any, window: Any) -> None:
    with pytest.raises(SpecError, match="MANIFEST-002"):
        Schedule(opens, window)
