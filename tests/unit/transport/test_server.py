"""Slow, silent and endless connections are closed; error lines contain no request data."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop

from shoal.transport import connections
from shoal.transport.connections import (
    BoundedProtocol,
    send_whole,
)
from shoal.transport.server import (
    Server,
    load_server_tls_context,
    open_listener,
    print_plain_errors,
)
from tests.support.connections import connected, echo, received, serving
from tests.support.tls import make_certificates

REQUEST = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n"


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)


def test_server_serves_tls_with_certificate_and_key(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with serving(load_server_tls_context(certificates.certificate, certificates.key)) as (_, url):
        trusting = ssl.create_default_context(cafile=str(certificates.ca))
        assert httpx2.post(f"{url}/x", content=b"hello", verify=trusting).content == b"hello"


def test_server_closes_connection_with_slow_request(hurry: None) -> None:
    with serving() as (_, url):
        beginnings = (
            b"",
            b"POST /x HT",
            REQUEST + b"half",
            b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n4\r\nha",
        )
        connections = [connected(url) for _ in beginnings]
        for connection, beginning in zip(connections, beginnings, strict=True):
            connection.sendall(beginning)
        answers = [received(connection) for connection in connections]
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
        for connection in connections:
            connection.close()


def test_server_sends_one_response_if_body_is_slow(hurry: None) -> None:
    with serving() as (_, url), connected(url) as connection:
        connection.sendall(REQUEST.replace(b"/x", b"/early") + b"half")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert received(connection) == b""


def test_server_closes_connection_that_sends_empty_lines(hurry: None) -> None:
    with serving() as (_, url), connected(url) as connection:
        connection.sendall(REQUEST + b"0123456789")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert received(connection).startswith(b"HTTP/1.1 408 ")


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a connection has ended."""
    lost, end = threading.Event(), BoundedProtocol.connection_lost
    monkeypatch.setattr(
        BoundedProtocol, "connection_lost", lambda self, error: (end(self, error), lost.set())
    )
    return lost


def test_server_closes_connection_that_does_not_read(hurry: None, lost: threading.Event) -> None:
    with serving() as (_, url), connected(url) as connection:
        connection.sendall(b"POST /large HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
        assert lost.wait(10)
        assert len(received(connection)) < 1 << 24


def test_server_keeps_connection_that_is_used(hurry: None) -> None:
    with serving() as (server, url), connected(url) as connection:
        for _ in range(3):
            connection.sendall(REQUEST + b"0123456789")
            assert connection.recv(1000).endswith(b"0123456789")
        for later in (0.0, 1.0, 2.0):
            connections.close_slow_connections(server.server_state.connections, 1e9 + later)
        connection.sendall(REQUEST + b"0123456789")
        assert connection.recv(1000).endswith(b"0123456789")


def test_server_closes_connection_with_endless_headers_or_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_REQUEST_BYTES", 1 << 20)
    trailers = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    cases = (
        (b"GET /x HTTP/1.1\r\na: ", b"b", b"431"),
        (b"GET /", b"a", b"431"),
        (trailers, b"a: b\r\n", b"413"),
    )
    with serving() as (_, url):
        for beginning, filling, status in cases:
            with connected(url) as connection:
                try:
                    connection.sendall(beginning + filling * (1 << 22))
                except (BrokenPipeError, ConnectionResetError):
                    continue
                assert received(connection)[:12] in (b"HTTP/1.1 " + status, b"")


def test_error_log_contains_no_request_data(capsys: pytest.CaptureFixture[str]) -> None:
    with print_plain_errors(), serving() as (_, url):
        assert httpx2.post(f"{url}/broken", content=b"secret").status_code == 500
        httpx2.post(f"{url}/x", content=b"secret")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "shoal: Exception in ASGI application: ValueError\n")


def test_signals_stop_server_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopped: list[str] = []
    server = Server(
        echo, None, lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: stopped.append("stopped")
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve([open_listener("127.0.0.1", 0)]))
    assert stopped == ["stopped"] and signal.getsignal(signal.SIGTERM) is before


class Whole:
    """Answers with one write where that can be done; what became of it is noted."""

    def __init__(self, n_bytes: int) -> None:
        self.body, self.outcomes = bytes(range(256)) * (n_bytes // 256), []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = send if scope["path"] == "/x" else lambda message: send(message)
        self.outcomes.append(
            send_whole(
                given, b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % len(self.body), self.body
            )
        )
        if not self.outcomes[-1]:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"%d" % len(self.body))],
                }
            )
            await send({"type": "http.response.body", "body": self.body})


@pytest.mark.parametrize("n_bytes", [0, 1024, 1 << 20])
def test_single_write_response_equals_usual_response(
    n_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    app = Whole(n_bytes)
    with (
        print_plain_errors(),
        serving(app=app) as (server, url),
        httpx2.Client(base_url=url) as http,
    ):
        answers = [http.post(path) for path in ("/x", "/between", "/x")]
        assert server.server_state.total_requests == 3
    assert app.outcomes == [True, False, True] and capsys.readouterr().err == ""
    assert all(
        answer.content == app.body and dict(answer.headers) == dict(answers[0].headers)
        for answer in answers
    )
    assert {"date", "content-length"} == set(answers[0].headers)


def test_single_write_response_is_refused_on_closing_connection() -> None:
    app = Whole(1024)
    with serving(app=app) as (_, url), connected(url) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in received(connection)
    assert app.outcomes == [False]


def test_single_write_response_is_refused_if_client_does_not_read(
    hurry: None, lost: threading.Event
) -> None:
    app = Whole(1 << 24)
    with serving(app=app) as (_, url), connected(url) as connection:
        connection.sendall(2 * b"POST /x HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
        assert lost.wait(10)
        assert len(received(connection)) < len(app.body)
    assert app.outcomes == [True, False]
