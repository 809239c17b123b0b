"""Lists of members and of received packets, in pages; an endless list is rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy
from shoal.errors import TransportError
from shoal.participant import client as module
from shoal.participant.client import Client
from shoal.transport.api import MemberList, ReceivedPackets, to_cbor

STUDY = "7f" * 32
NAMES = [bytes([i]) * 32 for i in range(1, 8)]


class PagedServer(httpx2.AsyncBaseTransport):
    """A coordinator with pages of two names."""

    def __init__(self, tell: Callable[[str, bytes], bytes]) -> None:
        self._tell = tell
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.raw_path.decode())
        after = bytes.fromhex(request.url.params.get("after", ""))
        return httpx2.Response(200, stream=httpx2.ByteStream(self._tell(request.url.path, after)))


def page(path: str, names: list[bytes]) -> bytes:
    joined = b"".join(names)
    return to_cbor(
        MemberList(joined=joined)
        if path.endswith("members")
        else ReceivedPackets(phase=3, names=joined)
    )


def read(told: PagedServer) -> tuple[MemberList, ReceivedPackets]:
    async def main() -> tuple[MemberList, ReceivedPackets]:
        async with Client(
            "http://127.0.0.1:1", ManualClock(), SeededEntropy(1), make_transport=lambda: told
        ) as client:
            return await client.fetch_members(STUDY), await client.fetch_received(STUDY)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_IN_PAGE", 2)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7])
def test_fetch_members_reads_all_pages(n: int) -> None:
    told = PagedServer(
        lambda path, after: page(path, [name for name in NAMES[:n] if name > after][:2])
    )
    members, received = read(told)
    assert members.keys == tuple(NAMES[:n]) and received == ReceivedPackets(
        phase=3, names=b"".join(NAMES[:n])
    )
    assert len(told.asked) == 2 * (n // 2 + 1) and told.asked[0] == f"/v1/studies/{STUDY}/members"
    if n >= 2:
        assert told.asked[1] == f"/v1/studies/{STUDY}/members?after={NAMES[1].hex()}"


def test_fetch_members_accepts_pages_with_fixed_borders() -> None:
    """A page contains the first name after the requested one, and may begin before it."""
    pages = [NAMES[:2], NAMES[1:4], NAMES[2:7], []]

    def tell(path: str, after: bytes) -> bytes:
        return page(path, next(some for some in pages if not some or some[-1] > after))

    members, received = read(PagedServer(tell))
    assert members.keys == tuple(NAMES) and received.names == b"".join(NAMES)


@pytest.mark.parametrize(
    "tell",
    [
        lambda _: NAMES[:2],
        lambda after: [(int.from_bytes(after, "big") + i).to_bytes(32, "big") for i in (1, 2)],
    ],
)
def test_endless_list_is_rejected(tell: Callable[[bytes], list[bytes]]) -> None:
    with pytest.raises(TransportError, match=r"NET-002.*a list that does not end"):
        read(PagedServer(lambda path, after: page(path, tell(after))))


def test_list_with_partial_name_is_rejected() -> None:
    with pytest.raises(TransportError, match="NET-002"):
        read(PagedServer(lambda path, _: to_cbor(MemberList()).replace(b"\x40", b"\x41x")))
