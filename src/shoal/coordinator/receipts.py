"""Paged lists of members and received packets.

`CoordinatorService` has one `PagedLists` for each kind of list. A page is made in a thread, as the
bytes that are sent, once for all requests that wait for it.

`ReceiptLists` publishes which anonymous packets of a study have arrived, at times that do not
reveal when somebody's packet came. In a phase it publishes

until a while after ``collects_until``
    nothing; a relay may send its batch in this time
until the same share of time after ``resends_until``
    the packets that were there at the first request, so that a reader cannot watch the list grow
until ``closes``
    the packets that were there at the first request in this period

and after the end of the study all packets. "A while" is 1 / `FROZEN_AFTER` of the time until the
next of these moments; participants look for their packets after a quarter of it at the earliest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from shoal.clock import Clock, to_milliseconds
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.store.base import Store, StudyRecord
from shoal.coordinator.studies import StudyHandles
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import load
from shoal.protocols.anonml.aggregator import AnonMLAggregatorState
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import MOST_IN_PAGE, ReceivedPackets, to_cbor
from shoal.transport.batching import CallBatcher

_MOST_AT_ONCE, _MOST_CACHED = 1_000, 16

PageResult = bytes | RemoteProtocolError


class PagedLists:
    """Lists by study, in pages.

    Parameters
    ----------
    make_page
        Returns the page of a study's list after a name, or the error if there is none.
    executor
        Makes pages, one at a time.
    cache_milliseconds
        How long a page is reused for later requests.
    """

    def __init__(
        self,
        make_page: Callable[[StudyRecord, bytes], PageResult],
        clock: Clock,
        executor: Executor,
        cache_milliseconds: int = 0,
    ) -> None:
        self._make_page, self._clock, self._cache_milliseconds = (
            make_page,
            clock,
            cache_milliseconds,
        )
        self._cache: LRUCache[tuple[str, bytes], tuple[int, PageResult]] = LRUCache(_MOST_CACHED)
        self._page_batches = CallBatcher[tuple[StudyRecord, bytes], PageResult](
            self._make_pages, executor, _MOST_AT_ONCE
        )

    async def fetch_page(self, record: StudyRecord, after: bytes) -> bytes:
        """Return a page; raise `RemoteProtocolError` if there is none."""
        page = await self._page_batches((record, after))
        if isinstance(page, RemoteProtocolError):
            raise page
        return page

    def _make_pages(self, requests: list[tuple[StudyRecord, bytes]]) -> list[PageResult]:
        now = to_milliseconds(self._clock.now())
        pages: dict[tuple[str, bytes], PageResult] = {}
        for record, after in requests:
            name = record.digest, after
            if name not in pages:
                kept = self._cache.get(name)
                if kept is None or abs(now - kept[0]) >= self._cache_milliseconds:
                    kept = self._cache.put(name, (now, self._make_page(record, after)))
                pages[name] = kept[1]
        return [pages[record.digest, after] for record, after in requests]


FROZEN_AFTER = 5
"""A list is frozen after this part (one fifth) of the time between two moments of a phase."""

_N_LISTS = 2
"""Lists of one phase."""


class ReceiptLists:
    """Lists of the names of packets that have arrived, by study."""

    def __init__(self, store: Store, handles: StudyHandles, clock: Clock) -> None:
        self._store, self._handles, self._clock = store, handles, clock

    def make_page(self, record: StudyRecord, after: bytes) -> PageResult:
        """Return `ReceivedPackets` as it is sent: names after ``after``, sorted.

        It lists the packets of this phase and of earlier ones. The phase is the open one; after
        the end of the study, one more than the last. The result is ``HOST-002`` while nothing is
        published.
        """
        if record.status != "open":
            handle = self._handles.open(record)
            phase = handle.protocol.count_phases(handle)
            assert phase is not None, "AnonML knows its number of phases"
            names = self._store.list_submissions(record.digest, after, MOST_IN_PAGE)
            return to_cbor(ReceivedPackets(phase=phase, names=b"".join(names)))
        open_list = self._find_open_list(record)
        if open_list is None:
            return RemoteProtocolError(
                "HOST-002",
                "The list of received packets is published after the collection window closes.",
                fix="Ask later.",
            )
        phase, number = open_list
        names = self._store.list_frozen_submissions(
            record.digest, _N_LISTS * phase + number, after, MOST_IN_PAGE
        )
        return to_cbor(ReceivedPackets(phase=phase, names=b"".join(names)))

    def _find_open_list(self, record: StudyRecord) -> tuple[int, int] | None:
        """Return the open phase and the number of its published list, from 1; None without."""
        saved = self._store.load(record.digest, 0, 0).state
        if saved is None:
            return None
        phase = load(saved, AnonMLAggregatorState).phase
        schedule = self._handles.open(record).manifest.schedule
        if schedule is None or phase < 0:
            return None
        window = schedule.get_window(phase)
        number = count_due_lists(window, self._clock)
        return (phase, number) if number and self._clock.now() < window.closes else None


def count_due_lists(window: PhaseWindow, clock: Clock) -> int:
    """Return how many lists of a phase have been due.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from shoal.clock import ManualClock
    >>> clock = ManualClock()
    >>> window, due = PhaseWindow(clock.now(), clock.now() + timedelta(seconds=100)), []
    >>> for seconds in (81.9, 0.1, 9.9, 0.1):
    ...     clock.advance(seconds)
    ...     due.append(count_due_lists(window, clock))
    >>> due
    [0, 1, 1, 2]
    """
    collects, resends, closes = window.collects_until, window.resends_until, window.closes
    moments = (
        collects + (resends - collects) / FROZEN_AFTER,
        resends + (closes - resends) / FROZEN_AFTER,
    )
    return sum(clock.now() >= moment for moment in moments)
