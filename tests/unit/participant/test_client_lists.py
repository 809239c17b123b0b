"""Members and what was received, in as many pages as there are; a list that does not go on is none."""

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
from shoal.transport.forms import Members, Received, to_cbor

STUDY = "7f" * 32
NAMES = [bytes([i]) * 32 for i in range(1, 8)]


class Told(httpx2.AsyncBaseTransport):
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
    return to_cbor(Members(joined=joined) if path.endswith("members") else Received(phase=3, names=joined))


def read(told: Told) -> tuple[Members, Received]:
    async def main() -> tuple[Members, Received]:
        async with Client("http://127.0.0.1:1", ManualClock(), SeededEntropy(1), transport=lambda: told) as client:
            return await client.members(STUDY), await client.received(STUDY)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_PAGE", 2)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7])
def test_all_pages_are_read(n: int) -> None:
    told = Told(lambda path, after: page(path, [name for name in NAMES[:n] if name > after][:2]))
    members, received = read(told)
    assert members.keys == tuple(NAMES[:n]) and received == Received(phase=3, names=b"".join(NAMES[:n]))
    assert len(told.asked) == 2 * (n // 2 + 1) and told.asked[0] == f"/v1/studies/{STUDY}/members"
    if n >= 2:
        assert told.asked[1] == f"/v1/studies/{STUDY}/members?after={NAMES[1].hex()}"


@pytest.mark.parametrize(
    "tell", [lambda _: NAMES[:2], lambda after: [(int.from_bytes(after, "big") + i).to_bytes(32, "big") for i in (1, 2)]]
)
def test_a_list_without_an_end_is_none(tell: Callable[[bytes], list[bytes]]) -> None:
    with pytest.raises(TransportError, match=r"NET-002.*a list that does not end"):
        read(Told(lambda path, after: page(path, tell(after))))


def test_half_a_name_is_none() -> None:
    with pytest.raises(TransportError, match="NET-002"):
        read(Told(lambda path, _: to_cbor(Members()).replace(b"\x40", b"\x41x")))
