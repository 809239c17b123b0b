"""Pages of lists have fixed borders, whatever is requested."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.clock import ManualClock
from shoal.coordinator.receipts import ListVersion, PagedLists
from shoal.coordinator.store.base import StudyRecord
from shoal.transport.api import LEAST_IN_PAGE, MOST_IN_PAGE

RECORD = StudyRecord("7f" * 32, b"m", 0, 1)


def name(i: object) -> bytes:
    return hashlib.sha256(str(i).encode()).digest()


class Names:
    """A list in memory, with the number of names that were read from it."""

    def __init__(self, n: int) -> None:
        self.names, self.n_read = {name(i) for i in range(n)}, 0

    def find_version(self, _: StudyRecord) -> ListVersion:
        return ListVersion(content=len(self.names))

    def list_names(
        self, _: StudyRecord, version: ListVersion, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        assert version.content == len(self.names)
        found = tuple(sorted(one for one in self.names if one > after)[:most])
        self.n_read += len(found)
        return found

    def encode(self, _: ListVersion, names: tuple[bytes, ...]) -> bytes:
        return b"".join(names)


def run(names: Names, work: Callable[[PagedLists], object]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            await work(PagedLists(names, ManualClock(), executor))  # type: ignore[misc]

    asyncio.run(main())


async def read_all(lists: PagedLists) -> list[bytes]:
    """Read pages as a participant does; all but the last one are large enough."""
    found: list[bytes] = []
    while True:
        page = await lists.fetch_page(RECORD, found[-1] if found else b"")
        names = [page[i : i + 32] for i in range(0, len(page), 32)]
        assert len(names) <= MOST_IN_PAGE and names == sorted(names)
        found += [one for one in names if not found or one > found[-1]]
        if len(names) < LEAST_IN_PAGE:
            return found


def test_requests_with_any_beginning_share_few_pages() -> None:
    names = Names(20_000)

    async def work(lists: PagedLists) -> None:
        beginnings = [name(("somewhere", i)) for i in range(300)]
        pages = await asyncio.gather(*[lists.fetch_page(RECORD, one) for one in beginnings])
        assert len({id(page) for page in pages}) <= 20_000 // LEAST_IN_PAGE
        for after, page in zip(beginnings, pages, strict=True):
            following = min((one for one in names.names if one > after), default=None)
            assert following is None or page.find(following) % 32 == 0
        n_read = names.n_read
        again = await asyncio.gather(*[lists.fetch_page(RECORD, one) for one in beginnings])
        assert again == pages and names.n_read == n_read
        assert await lists.fetch_page(RECORD, max(names.names)) == b""

    run(names, work)


@pytest.mark.parametrize("n", [0, 1, LEAST_IN_PAGE, MOST_IN_PAGE, MOST_IN_PAGE + 1, 20_000])
def test_pages_contain_all_names(n: int) -> None:
    names = Names(n)

    async def work(lists: PagedLists) -> None:
        assert await read_all(lists) == sorted(names.names)

    run(names, work)


def test_pages_contain_names_that_are_added_or_deleted_later() -> None:
    names = Names(0)

    async def work(lists: PagedLists) -> None:
        for n in (1, 3_000, 5_000, 12_000, 12_001):
            names.names |= {name(i) for i in range(len(names.names), n)}
            assert await read_all(lists) == sorted(names.names)
        for n in (12_000, 8_000, 1):
            names.names = set(sorted(names.names)[-n:])
            assert await read_all(lists) == sorted(names.names)

    run(names, work)
