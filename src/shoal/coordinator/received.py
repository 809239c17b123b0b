"""What has arrived of a study's anonymous packets, told when that tells nobody who sent them.

==========================================  ==========================================================================================
until                                       what is told in a phase
==========================================  ==========================================================================================
a while after ``collects_until``            nothing. A relay hands its batch over meanwhile
the same share of time after                what was there when it was first asked for: nobody sees the list grow, and when somebody's
``resends_until``                           packet came
``closes``                                  what was there when it was then first asked for
==========================================  ==========================================================================================

After the study's end it is all that has arrived. A while is `FROZEN_AFTER` of the time until the next of these moments: participants look
when a quarter of it has passed, at the earliest.
"""

from __future__ import annotations

from datetime import timedelta

from shoal.clock import Clock
from shoal.coordinator.lists import Page
from shoal.coordinator.publishing import n_phases_of
from shoal.coordinator.store.base import Hosted, Store
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import load
from shoal.protocols.anonml.aggregator import Collecting
from shoal.study.anonymity import Window
from shoal.study.manifest import Manifest
from shoal.transport.forms import MOST_IN_PAGE, Received, to_cbor

FROZEN_AFTER = 5
"""As this part of the time between two moments."""

_N_LISTS = 2
"""Of a phase."""


class Arrivals:
    """Lists of the names of packets that have arrived, by study.

    Parameters
    ----------
    store, clock
        Where the studies are, and the time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def tell(self, hosted: Hosted, after: bytes) -> Page:
        """`Received` as it is sent: names of packets in this phase and before, in the order of their digits, after one of them.

        The phase is the open one; after the study's end, one more than the last. ``HOST-002`` while nothing is told.
        """
        if hosted.status != "open":
            phase = n_phases_of(Manifest.from_bytes(hosted.manifest))
            assert phase is not None, "that of AnonML is known"
            names = self._store.submitted(hosted.digest, after, MOST_IN_PAGE)
            return to_cbor(Received(phase=phase, names=b"".join(names)))
        found = self._open_list(hosted)
        if found is None:
            return RemoteProtocolError("HOST-002", "What has arrived is told once all packets of the phase were due.", fix="Ask later.")
        phase, number = found
        names = self._store.told(hosted.digest, _N_LISTS * phase + number, after, MOST_IN_PAGE)
        return to_cbor(Received(phase=phase, names=b"".join(names)))

    def _open_list(self, hosted: Hosted) -> tuple[int, int] | None:
        """The open phase, and which of its lists is told, from 1 on, if one is."""
        saved = self._store.load(hosted.digest, 0, 0).state
        if saved is None:
            return None
        state = load(saved, Collecting)
        window = Window(state.deadline - timedelta(milliseconds=hosted.patience), state.deadline)
        number = lists_due(window, self._clock)
        return (state.phase, number) if number and self._clock.now() < window.closes else None


def lists_due(window: Window, clock: Clock) -> int:
    """How many of a phase's lists have been due.

    Examples
    --------
    >>> from shoal.clock import ManualClock
    >>> clock = ManualClock()
    >>> window, due = Window(clock.now(), clock.now() + timedelta(seconds=100)), []
    >>> for seconds in (73.9, 0.1, 17.9, 0.1):
    ...     clock.advance(seconds)
    ...     due.append(lists_due(window, clock))
    >>> due
    [0, 1, 1, 2]
    """
    collects, resends, closes = window.collects_until, window.resends_until, window.closes
    moments = collects + (resends - collects) / FROZEN_AFTER, resends + (closes - resends) / FROZEN_AFTER
    return sum(clock.now() >= moment for moment in moments)
