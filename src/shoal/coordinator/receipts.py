"""Paged lists of members and received packets.

`CoordinatorService` has one `PagedLists` for each kind of list. A page is made in a thread, as the
bytes that are sent, once for all requests that wait for it.

Anyone may request any page, with any name as its beginning. A change must keep: the borders between
pages do not depend on requests, so that any number of requests for a list needs no more memory than
its pages, and few of them are in memory.

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

from bisect import bisect_right
from collections.abc import Hashable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from shoal.clock import Clock, to_milliseconds
from shoal.coordinator.cache import LRUCache
from shoal.coordinator.store.base import Store, StudyRecord
from shoal.coordinator.studies import StudyHandles
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import load
from shoal.protocols.anonml.aggregator import AnonMLAggregatorState
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import (
    LEAST_IN_PAGE,
    MOST_IN_PAGE,
    MemberList,
    ReceivedPackets,
    to_cbor,
)
from shoal.transport.batching import CallBatcher

_MOST_AT_ONCE, _MOST_CACHED = 1_000, 64

PageResult = bytes | RemoteProtocolError


@dataclass(frozen=True, slots=True)
class ListVersion:
    """The content of a list at a time.

    Parameters
    ----------
    name
        Which list of a study this is; a list of another name has other borders.
    content
        Changes if names are added.
    phase
        The phase that a list of packets is about.
    """

    name: Hashable = None
    content: int = 0
    phase: int = 0


class NameSource(Protocol):
    """The names of one kind of list."""

    def find_version(self, record: StudyRecord) -> ListVersion | RemoteProtocolError:
        """Return the version of a study's list; an error if nothing is published."""

    def list_names(
        self, record: StudyRecord, version: ListVersion, /, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        """Return up to ``most`` names after a name, sorted."""

    def encode(self, version: ListVersion, /, names: tuple[bytes, ...]) -> bytes:
        """Return a page as it is sent."""


@dataclass
class _PageBorders:
    """The last name of each page except the last one, in order; the first entry is empty."""

    name: Hashable
    starts: list[bytes] = field(default_factory=lambda: [b""])


class PagedLists:
    """Lists by study, in pages.

    Parameters
    ----------
    executor
        Makes pages, one at a time.
    cache_milliseconds
        How long the version of a list is assumed to be the same.
    """

    def __init__(
        self, source: NameSource, clock: Clock, executor: Executor, cache_milliseconds: int = 0
    ) -> None:
        self._source, self._clock, self._cache_milliseconds = source, clock, cache_milliseconds
        self._versions: LRUCache[str, tuple[int, ListVersion | RemoteProtocolError]] = LRUCache(
            _MOST_CACHED
        )
        self._borders: LRUCache[str, _PageBorders] = LRUCache(_MOST_CACHED)
        self._pages: LRUCache[tuple[str, bytes], tuple[ListVersion, bytes, bytes]] = LRUCache(
            _MOST_CACHED
        )
        self._page_batches = CallBatcher[tuple[StudyRecord, bytes], PageResult](
            self._make_pages, executor, _MOST_AT_ONCE
        )

    async def fetch_page(self, record: StudyRecord, after: bytes) -> bytes:
        """Return the page with the first name after ``after``; an empty one after the last name.

        Raise `RemoteProtocolError` if nothing is published.
        """
        page = await self._page_batches((record, after))
        if isinstance(page, RemoteProtocolError):
            raise page
        return page

    def _make_pages(self, requests: list[tuple[StudyRecord, bytes]]) -> list[PageResult]:
        versions: dict[str, ListVersion | RemoteProtocolError] = {}
        pages: list[PageResult] = []
        for record, after in requests:
            if record.digest not in versions:
                versions[record.digest] = self._find_version(record)
            version = versions[record.digest]
            pages.append(
                version
                if isinstance(version, RemoteProtocolError)
                else self._find_page(record, version, after)
            )
        return pages

    def _find_version(self, record: StudyRecord) -> ListVersion | RemoteProtocolError:
        now = to_milliseconds(self._clock.now())
        kept = self._versions.get(record.digest)
        if kept is None or abs(now - kept[0]) >= self._cache_milliseconds:
            kept = self._versions.put(record.digest, (now, self._source.find_version(record)))
        return kept[1]

    def _find_page(self, record: StudyRecord, version: ListVersion, after: bytes) -> bytes:
        borders = self._borders.get(record.digest)
        if borders is None or borders.name != version.name:
            borders = self._borders.put(record.digest, self._find_borders(record, version))
        number = bisect_right(borders.starts, after) - 1
        name = record.digest, borders.starts[number]
        kept = self._pages.get(name)
        if kept is None or kept[0] != version:
            names = self._read_page(record, version, borders, number)
            number = bisect_right(borders.starts, after) - 1
            if borders.starts[number] != name[1]:
                return self._find_page(record, version, after)
            last = names[-1] if names else b""
            kept = self._pages.put(name, (version, last, self._source.encode(version, names)))
        if after and after >= kept[1]:
            return self._source.encode(version, ())
        return kept[2]

    def _find_borders(self, record: StudyRecord, version: ListVersion) -> _PageBorders:
        """Return borders that leave room in each page."""
        borders = _PageBorders(version.name)
        most = (LEAST_IN_PAGE + MOST_IN_PAGE) // 2
        while True:
            names = self._source.list_names(record, version, borders.starts[-1], most)
            if len(names) < most:
                return borders
            borders.starts.append(names[-1])

    def _read_page(
        self, record: StudyRecord, version: ListVersion, borders: _PageBorders, number: int
    ) -> tuple[bytes, ...]:
        """Return the names of a page; add a border if they are too many.

        Remove the next border if the page has become too small because names were deleted.
        """
        starts = borders.starts
        while True:
            names = self._source.list_names(record, version, starts[number], MOST_IN_PAGE + 1)
            is_last = number + 1 == len(starts)
            if not is_last:
                names = tuple(name for name in names if name <= starts[number + 1])
            if len(names) > MOST_IN_PAGE:
                starts.insert(number + 1, names[LEAST_IN_PAGE - 1])
            elif len(names) < LEAST_IN_PAGE and not is_last:
                del starts[number + 1]
            else:
                return names


class MemberLists:
    """The keys of members, by study: the anonymity set of a packet's sender."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_version(self, record: StudyRecord) -> ListVersion:
        return ListVersion(content=self._store.count_members(record.digest))

    def list_names(
        self, record: StudyRecord, _: ListVersion, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        return self._store.list_members(record.digest, after, most)

    def encode(self, _: ListVersion, names: tuple[bytes, ...]) -> bytes:
        return to_cbor(MemberList(joined=b"".join(names)))


FROZEN_AFTER = 5
"""A list is frozen after this part (one fifth) of the time between two moments of a phase."""

_N_LISTS = 2
"""Lists of one phase."""

_ENDED = "ended"


class ReceiptLists:
    """Lists of the names of packets that have arrived, by study."""

    def __init__(self, store: Store, handles: StudyHandles, clock: Clock) -> None:
        self._store, self._handles, self._clock = store, handles, clock

    def find_version(self, record: StudyRecord) -> ListVersion | RemoteProtocolError:
        """Return which list is published; ``HOST-002`` while there is none.

        It lists the packets of this phase and of earlier ones. The phase is the open one; after
        the end of the study, one more than the last.
        """
        if record.status != "open":
            handle = self._handles.open(record)
            phase = handle.protocol.count_phases(handle)
            assert phase is not None, "AnonML knows its number of phases"
            return ListVersion(_ENDED, phase=phase)
        open_list = self._find_open_list(record)
        if open_list is None:
            return RemoteProtocolError(
                "HOST-002",
                "The list of received packets is published after the collection window closes.",
                fix="Ask later.",
            )
        phase, number = open_list
        return ListVersion(_N_LISTS * phase + number, phase=phase)

    def list_names(
        self, record: StudyRecord, version: ListVersion, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        if version.name == _ENDED:
            return self._store.list_submissions(record.digest, after, most)
        assert isinstance(version.name, int)
        return self._store.list_frozen_submissions(record.digest, version.name, after, most)

    def encode(self, version: ListVersion, names: tuple[bytes, ...]) -> bytes:
        return to_cbor(ReceivedPackets(phase=version.phase, names=b"".join(names)))

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
