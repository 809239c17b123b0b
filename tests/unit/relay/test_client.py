"""The coordinator as a relay sees it: valid responses, rejections, and retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.errors import TransportError, UsageError
from shoal.relay import client as module
from shoal.relay.client import (
    CoordinatorClient,
)
from shoal.transport import ohttp
from shoal.transport.api import OHTTP_REQUEST, OHTTP_RESPONSE, BatchReceipt, to_cbor
from shoal.transport.client import RefusedError, make_client_tls_context, validate_url
from tests.support.tls import make_certificates

TO = "http://127.0.0.1:8700"
STUDY = "7f" * 32
PROBLEM = {
    "type": "about:blank",
    "title": "No.",
    "status": 400,
    "code": "MSG-005",
    "detail": None,
    "fix": None,
}

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
        async with CoordinatorClient(TO, transport=Answering(given)) as remote:
            return await getattr(remote, what)(*arguments)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org:8700/under/a/path/",
        "http://127.0.0.1:8700",
        "http://localhost",
        "http://[::1]:1",
        "http://127.8.9.1:8700",
        "https://abc.onion",
    ],
)
def test_validate_url_accepts_addresses_that_a_relay_forwards_to(url: str) -> None:
    assert validate_url(url, is_for_relay=True) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://a",
        "http://example.org",
        "http://abc.onion",
        "https://",
        "https://a?b",
        "https://a#b",
        "https://u:p@a",
        "https://a:x",
        "https://a b",
        "https://ä",
    ],
)
def test_validate_url_rejects_addresses_that_a_relay_cannot_use(url: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001"):
        validate_url(url, is_for_relay=True)


@pytest.mark.parametrize("url", ["http://127.8.9.1:8700", "https://abc.onion"])
def test_validate_url_rejects_other_loopback_addresses_and_onions_for_participants(
    url: str,
) -> None:
    with pytest.raises(UsageError, match="USAGE-001"):
        validate_url(url)


@pytest.mark.parametrize("status", [201, 202, 204])
def test_client_rejects_success_statuses_other_than_200(status: int) -> None:
    with pytest.raises(TransportError, match="NET-002"):
        ask(answer(status, b"[]"), "fetch_studies")


def test_client_reports_unavailable_coordinator_with_the_code_of_the_network() -> None:
    problem = json.dumps({**PROBLEM, "status": 503, "code": "HOST-004", "title": "Later."}).encode()
    with pytest.raises(TransportError, match="NET-002"):
        ask(answer(503, problem), "fetch_studies")


def test_tls_context_trusts_system_or_file(tmp_path: Path) -> None:
    assert make_client_tls_context(make_certificates(tmp_path).ca).get_ca_certs()
    assert make_client_tls_context(None)
    (tmp_path / "x").write_text("no certificate")
    for path in (tmp_path / "x", tmp_path / "nothing"):
        with pytest.raises(UsageError, match=r"USAGE-001  .* is not a file of certificates"):
            make_client_tls_context(path)


@pytest.mark.parametrize("status", [200, 400, 404, 502])
def test_client_raises_transport_error_for_invalid_response(status: int) -> None:
    for what, arguments in (
        ("fetch_studies", ()),
        ("fetch_manifest", (STUDY,)),
        ("fetch_broadcasts", (STUDY, 0)),
        ("fetch_keys", ()),
    ):
        with pytest.raises(TransportError, match="NET-002"):
            ask(answer(status, b"<html>"), what, *arguments)
    with pytest.raises(TransportError, match="NET-002"):
        ask(answer(status, b"<html>", content_type="text/html"), "forward_request", b"sealed")


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "MSG-005", RefusedError),
        (404, "HOST-001", RefusedError),
        (410, "HOST-002", RefusedError),
        (503, "HOST-004", TransportError),
        (500, "HOST-007", TransportError),
        (429, "HOST-004", TransportError),
        (400, "X-1", TransportError),
    ],
)
def test_client_distinguishes_rejection_from_temporary_failure(
    status: int, code: str, error: type[Exception]
) -> None:
    told = json.dumps({**PROBLEM, "status": status, "code": code, "title": "No\x1b[2J."}).encode()
    with pytest.raises(error) as caught:
        ask(answer(status, told), "send_batch", STUDY, [b"a packet"])
    assert "\x1b" not in str(caught.value)
    if isinstance(caught.value, RefusedError):
        assert caught.value.status == status


def test_client_stops_reading_too_long_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_LIST_BYTES", 100)
    with pytest.raises(TransportError, match="more than 100 bytes"):
        ask(answer(200, b"[" + b" " * 100 + b"]"), "fetch_studies")


def test_client_reports_unreachable_coordinator() -> None:
    def broken(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("a name that nobody needs to see")

    with pytest.raises(TransportError, match="NET-001") as caught:
        ask(broken, "fetch_studies")
    assert str(caught.value.why).startswith("ConnectError")


def test_client_sends_only_fixed_headers() -> None:
    seen = []

    def look(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return answer(200, b"sealed", content_type=OHTTP_RESPONSE)(request)

    assert ask(look, "forward_request", b"a request") == b"sealed"
    with pytest.raises(TransportError, match="not BatchReceipt"):
        ask(look, "send_batch", STUDY, [b"a packet"])
    assert [one.headers["content-type"] for one in seen] == [OHTTP_REQUEST, "application/cbor"]
    assert all(
        set(one.headers)
        == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
        for one in seen
    )


def test_client_validates_gateway_key() -> None:
    good = ohttp.encode_key_configuration(bytes(range(32)))
    assert ask(answer(200, good), "fetch_keys") == good
    with pytest.raises(TransportError, match="no key of a gateway"):
        ask(answer(200, good[:-1]), "fetch_keys")


def test_client_returns_receipt_of_batch() -> None:
    for told in (BatchReceipt(taken=1), BatchReceipt(taken=None, invalid=(0, 1))):
        assert (
            ask(answer(200, to_cbor(told)), "send_batch", STUDY, [b"a packet", b"another"]) == told
        )
    with pytest.raises(TransportError, match=r"NET-002.*packets that were not sent to it"):
        ask(
            answer(200, to_cbor(BatchReceipt(taken=None, invalid=(2,)))),
            "send_batch",
            STUDY,
            [b"a packet", b"another"],
        )


def test_client_sends_batches_while_all_participants_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a relay itself does has connections of its own."""
    monkeypatch.setattr(module, "_MAX_CONNECTIONS", 1)
    monkeypatch.setattr(module, "_MAX_OWN_CONNECTIONS", 1)
    monkeypatch.setattr(
        module, "_TIMEOUTS", {"connect": 10.0, "write": 60.0, "read": 60.0, "pool": 0.01}
    )

    async def main() -> None:
        waiting = asyncio.Event()

        async def coordinator(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            if head.startswith(b"POST /v1/gateway"):
                await waiting.wait()
            body = to_cbor(BatchReceipt(taken=1))
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n"
                % len(body)
                + body
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(coordinator, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, CoordinatorClient(f"http://127.0.0.1:{port}") as remote:
            people = [asyncio.create_task(remote.forward_request(b"sealed")) for _ in range(2)]
            # One of them finds no connection: all are in use.
            done, _ = await asyncio.wait(people, return_when=asyncio.FIRST_COMPLETED)
            assert {type(one.exception()) for one in done} == {TransportError}
            assert await remote.send_batch(STUDY, [b"a packet"]) == BatchReceipt(taken=1)
            waiting.set()
            await asyncio.gather(*people, return_exceptions=True)

    asyncio.run(main())
