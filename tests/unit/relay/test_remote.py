"""The coordinator as a relay sees it: what it may answer, and what is tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from certificates import make_certificates
from shoal.errors import TransportError, UsageError
from shoal.relay import remote as module
from shoal.relay.remote import RefusedError, Remote, checked_url, trusting
from shoal.transport import ohttp
from shoal.transport.forms import Taken, to_cbor
from shoal.transport.routes import OPENED, SEALED

TO = "http://127.0.0.1:8700"
STUDY = "7f" * 32
PROBLEM = {"type": "about:blank", "title": "No.", "status": 400, "code": "MSG-005", "detail": None, "fix": None}

Answer = Callable[[httpx2.Request], httpx2.Response]


class Answering(httpx2.AsyncBaseTransport):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(request)


def answer(status: int, content: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: httpx2.Response(status, headers=named, stream=httpx2.ByteStream(content))


def ask(given: Answer, what: str, *arguments: Any) -> Any:
    async def main() -> Any:
        async with Remote(TO, transport=Answering(given)) as remote:
            return await getattr(remote, what)(*arguments)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["https://example.org", "https://example.org:8700/under/a/path/", "http://127.0.0.1:8700", "http://localhost", "http://[::1]:1"]
)
def test_addresses_that_can_be_used(url: str) -> None:
    assert checked_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://a",
        "http://example.org",
        "https://",
        "https://a?b",
        "https://a#b",
        "https://u:p@a",
        "https://a:x",
        "https://a b",
        "https://ä",
    ],
)
def test_addresses_that_cannot(url: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001"):
        checked_url(url)


def test_certificates_that_are_trusted(tmp_path: Path) -> None:
    assert trusting(make_certificates(tmp_path).ca).get_ca_certs()
    assert trusting(None)
    (tmp_path / "x").write_text("no certificate")
    for path in (tmp_path / "x", tmp_path / "nothing"):
        with pytest.raises(UsageError, match=r"USAGE-001  .* is not a file of certificates"):
            trusting(path)


@pytest.mark.parametrize("status", [200, 400, 404, 502])
def test_an_answer_that_is_none_may_be_asked_for_again(status: int) -> None:
    for what, arguments in (("studies", ()), ("published", (STUDY,)), ("board", (STUDY, 0)), ("keys", ())):
        with pytest.raises(TransportError, match="NET-002"):
            ask(answer(status, b"<html>"), what, *arguments)
    with pytest.raises(TransportError, match="NET-002"):
        ask(answer(status, b"<html>", content_type="text/html"), "forward", b"sealed")


@pytest.mark.parametrize(("status", "code", "error"), [
    (400, "MSG-005", RefusedError), (404, "HOST-001", RefusedError), (410, "HOST-002", RefusedError),
    (503, "HOST-004", TransportError), (500, "HOST-007", TransportError), (429, "HOST-004", TransportError), (400, "X-1", TransportError),
])  # fmt: skip
def test_refusals_are_told_from_troubles(status: int, code: str, error: type[Exception]) -> None:
    told = json.dumps({**PROBLEM, "status": status, "code": code, "title": "No\x1b[2J."}).encode()
    with pytest.raises(error) as caught:
        ask(answer(status, told), "deliver", STUDY, [b"a packet"])
    assert "\x1b" not in str(caught.value)
    if isinstance(caught.value, RefusedError):
        assert caught.value.status == status


def test_an_answer_is_not_read_to_its_end_if_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LIST_BYTES", 100)
    with pytest.raises(TransportError, match="more than 100 bytes"):
        ask(answer(200, b"[" + b" " * 100 + b"]"), "studies")


def test_nobody_answers() -> None:
    def broken(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("a name that nobody needs to see")

    with pytest.raises(TransportError, match="NET-001") as caught:
        ask(broken, "studies")
    assert caught.value.why == "ConnectError"


def test_what_is_sent_has_the_same_few_headers() -> None:
    seen = []

    def look(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return answer(200, b"sealed", content_type=OPENED)(request)

    assert ask(look, "forward", b"a request") == b"sealed"
    with pytest.raises(TransportError, match="not Taken"):
        ask(look, "deliver", STUDY, [b"a packet"])
    assert [one.headers["content-type"] for one in seen] == [SEALED, "application/cbor"]
    assert all(set(one.headers) == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"} for one in seen)


def test_a_key_is_looked_at_before_it_is_told_to_others() -> None:
    good = ohttp.configuration_of(bytes(range(32)))
    assert ask(answer(200, good), "keys") == good
    with pytest.raises(TransportError, match="no key of a gateway"):
        ask(answer(200, good[:-1]), "keys")


def test_what_became_of_a_batch() -> None:
    for told in (Taken(taken=1), Taken(taken=None, invalid=(0, 1))):
        assert ask(answer(200, to_cbor(told)), "deliver", STUDY, [b"a packet", b"another"]) == told
    with pytest.raises(TransportError, match=r"NET-002.*packets that it was not sent"):
        ask(answer(200, to_cbor(Taken(taken=None, invalid=(2,)))), "deliver", STUDY, [b"a packet", b"another"])


def test_however_many_participants_wait_batches_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a relay itself does has connections of its own."""
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 1)
    monkeypatch.setattr(module, "_MOST_OWN", 1)
    monkeypatch.setattr(module, "_SECONDS", {"connect": 10.0, "write": 60.0, "read": 60.0, "pool": 0.01})

    async def main() -> None:
        waiting = asyncio.Event()

        async def coordinator(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            if head.startswith(b"POST /v1/gateway"):
                await waiting.wait()
            body = to_cbor(Taken(taken=1))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(coordinator, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Remote(f"http://127.0.0.1:{port}") as remote:
            people = [asyncio.create_task(remote.forward(b"sealed")) for _ in range(2)]
            # One of them finds no connection: all are in use.
            done, _ = await asyncio.wait(people, return_when=asyncio.FIRST_COMPLETED)
            assert {type(one.exception()) for one in done} == {TransportError}
            assert await remote.deliver(STUDY, [b"a packet"]) == Taken(taken=1)
            waiting.set()
            await asyncio.gather(*people, return_exceptions=True)

    asyncio.run(main())
