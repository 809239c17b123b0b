"""The schedule of a study with anonymous packets: phases, parts of a phase, cadence.

The manifest contains a `Schedule`. Participants, coordinators and relays compute every time of a
phase from it, so that no message decides when a participant reads or sends.

Parts of the window of a phase:

until ``joins_until``
    People register and read the question.
until ``sends_from``
    People who have the question read the list of members.
until ``collects_until``
    Each packet leaves, at a random time.
until ``resends_until``
    Lost packets leave once more.
until ``closes``
    Nothing leaves. The coordinator counts the last packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.clock import from_milliseconds
from shoal.errors import SpecError

MAX_WINDOW = timedelta(days=366)
_LAST_TIME = 1 << 47
"""A time in milliseconds that every calendar has: in the year 6429."""
_READS_PER_WINDOW = 20
_MIN_CADENCE, _MAX_CADENCE = timedelta(milliseconds=500), timedelta(minutes=10)


@dataclass(frozen=True)
class PhaseWindow:
    """The time of a phase, and its deadlines."""

    opened: datetime
    closes: datetime

    @property
    def joins_until(self) -> datetime:
        """The time until which people register, and until which a question counts."""
        return self._find_time(50)

    @property
    def sends_from(self) -> datetime:
        """The time from which packets are sent."""
        return self._find_time(60)

    @property
    def collects_until(self) -> datetime:
        """The time until which packets are sent."""
        return self._find_time(80)

    @property
    def resends_until(self) -> datetime:
        """The time until which lost packets are sent again."""
        return self._find_time(90)

    def _find_time(self, percent: int) -> datetime:
        return self.opened + (self.closes - self.opened) * percent / 100


@dataclass(frozen=True)
class Schedule:
    """When the phases of a study begin and end.

    Parameters
    ----------
    opens
        When the first phase opens, in milliseconds since 1970.
    window
        Length of each phase in milliseconds.

    Raises
    ------
    SpecError
        ``MANIFEST-002``: a number is out of range.

    Examples
    --------
    >>> Schedule(0, 60_000).get_window(1).joins_until.isoformat()
    '1970-01-01T00:01:30+00:00'
    """

    opens: int
    window: int

    def __post_init__(self) -> None:
        longest = MAX_WINDOW // timedelta(milliseconds=1)
        for name, value, least, most in (
            ("opens", self.opens, 0, _LAST_TIME),
            ("window", self.window, 1, longest),
        ):
            if type(value) is not int or not least <= value <= most:
                raise SpecError(
                    "MANIFEST-002",
                    f"The schedule's {name} is not a whole number of milliseconds from {least} to "
                    f"{most}.",
                )

    def get_window(self, phase: int) -> PhaseWindow:
        """Return the window of a phase, counted from 0."""
        opened, closes = (
            from_milliseconds(self.opens + number * self.window) for number in (phase, phase + 1)
        )
        return PhaseWindow(opened, closes)

    @property
    def cadence(self) -> timedelta:
        """The time between two reads of a participant.

        Examples
        --------
        >>> [Schedule(0, 1000 * seconds).cadence.total_seconds() for seconds in (1, 60, 86_400)]
        [0.5, 3.0, 600.0]
        """
        share = timedelta(milliseconds=self.window) / _READS_PER_WINDOW
        return min(max(share, _MIN_CADENCE), _MAX_CADENCE)
