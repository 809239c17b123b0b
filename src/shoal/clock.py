"""The system clock, and a manual clock for tests.

Code that needs the time takes a `Clock` as an argument.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class Clock(Protocol):
    """A source of the present time."""

    def now(self) -> datetime:
        """Return the present time in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock that only `advance` moves, for tests and simulations."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += timedelta(seconds=seconds)


def from_milliseconds(milliseconds: int) -> datetime:
    """Return the time that is this many milliseconds after 1970-01-01 UTC."""
    return _EPOCH + milliseconds * _MILLISECOND


def to_milliseconds(when: datetime) -> int:
    """Return a time as milliseconds since 1970-01-01 UTC, rounded up."""
    return -((_EPOCH - when) // _MILLISECOND)
