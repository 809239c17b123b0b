"""One client cannot use up the memory or the connections of a process."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.transport import connections
from shoal.transport.bodies import SMALL_BYTES, BytesInFlight, RequestBody
from shoal.transport.connections import (
    ConnectionSettings,
    ConnectionTable,
    raise_descriptor_limit,
)
from shoal.transport.server import load_server_tls_context
from tests.support.connections import connected, received, serving
from tests.support.tls import make_certificates

OTHER = "127.0.0.2"
MEGABYTE = 1_000_000


def connect_from(url: str, source: str) -> socket.socket:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))


def begin_body(connection: socket.socket, n_bytes: int) -> None:
    """Send a body that is never complete."""
    connection.sendall(b"POST /x HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (n_bytes + 1))
    sent = memoryview(bytes(n_bytes))
    while sent:
        try:
            sent = sent[connection.send(sent) :]
        except OSError:
            return


class Account:
    """Bodies in a table with a clock, and those that were refused."""

    def __init__(self, limit: int) -> None:
        self.time, self.refused, self.lines = 0.0, [], []
        self.in_flight = BytesInFlight(limit, lambda: self.time, self.lines.append)

    def open(self, name: str) -> RequestBody:
        return self.in_flight.open(lambda: self.refused.append(name))


def test_body_that_uses_most_memory_for_longest_is_refused() -> None:
    account = Account(400_000)
    old, new = account.open("old"), account.open("new")
    account.in_flight.add(old, 100_000)
    account.time = 10.0
    later = account.open("later")
    account.in_flight.add(new, 90_000)
    account.time = 11.0
    account.in_flight.add(later, 215_000)
    assert account.refused == ["old"] and len(account.lines) == 1
    assert account.in_flight.total == 305_000
    for body in (new, later):
        account.in_flight.close(body)
    assert (account.in_flight.total, account.in_flight.large) == (0, 0)


def test_large_bodies_do_not_keep_out_small_ones() -> None:
    account = Account(400_000)
    for i in range(3):
        body = account.open(f"large {i}")
        account.in_flight.add(body, 160_000)
        account.in_flight.complete(body)
    account.time = 1.0
    late = account.open("late")
    account.in_flight.add(late, 100_000)
    assert account.refused == ["large 2", "late"] or account.refused == ["late"]
    small = account.open("small")
    account.in_flight.add(small, 1_000)
    assert "small" not in account.refused and account.in_flight.total <= 400_000


def test_released_bytes_make_room() -> None:
    account = Account(200_000)
    body = account.open("stream")
    for _ in range(100):
        account.in_flight.add(body, SMALL_BYTES)
        body.release(SMALL_BYTES)
    assert account.refused == [] and account.in_flight.total == 0


def test_unfinished_bodies_are_refused_and_small_requests_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limit = 4 * MEGABYTE
    with serving(settings=ConnectionSettings(limit)) as (server, url), ExitStack() as stack:
        flood = [stack.enter_context(connected(url)) for _ in range(12)]
        for connection in flood:
            begin_body(connection, MEGABYTE)
            assert server.table.bytes.total <= limit
            assert httpx2.post(f"{url}/x", content=b"small").content == b"small"
        answers = []
        for connection in flood[:8]:
            connection.settimeout(1)
            try:
                answers.append(connection.recv(1000))
            except TimeoutError:
                answers.append(b"")
            except ConnectionResetError:
                answers.append(b"reset")
        refused = [one for one in answers if one.startswith(b"HTTP/1.1 503 ")]
        assert refused and all(b"\r\nretry-after: " in one for one in refused)
        for connection in flood:
            connection.close()
        wait_until(lambda: server.table.bytes.total == 0)
    assert "the limit is 4,000,000" in capsys.readouterr().err


def wait_until(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class Slow:
    """An application that begins to read bodies when it is told to."""

    def __init__(self) -> None:
        self.may_read = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while not self.may_read.is_set():
            await asyncio.sleep(0.01)
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def test_bytes_that_handler_has_not_read_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose body is not read is not slow."""
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    app = Slow()
    with serving(app=app) as (server, url), connected(url) as connection:
        n = 8 * MEGABYTE
        connection.sendall(b"POST /x HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % n)
        sender = threading.Thread(target=connection.sendall, args=(bytes(n),))
        sender.start()
        wait_until(lambda: server.table.bytes.total > 0)
        time.sleep(2.5)
        assert 0 < server.table.bytes.total < MEGABYTE
        app.may_read.set()
        assert connection.recv(1000).startswith(b"HTTP/1.1 204 ")
        sender.join()
        wait_until(lambda: server.table.bytes.total == 0)


def test_one_address_leaves_connections_to_others() -> None:
    with serving(capacity=64) as (server, url), ExitStack() as stack:
        flood = []
        for _ in range(200):
            flood.append(stack.enter_context(connect_from(url, OTHER)))
            # A request that is never complete: the connection is not idle.
            try:
                flood[-1].sendall(b"POST /x HTTP/1.1\r\n")
            except OSError:
                continue
        wait_until(lambda: server.table._n_open >= 33)
        for _ in range(20):
            assert httpx2.post(f"{url}/x", content=b"honest").content == b"honest"
        assert server.table._counts["127.0.0.2"] <= 40
        refused = connect_from(url, OTHER)
        assert received(refused).startswith(b"HTTP/1.1 503 ")
        refused.close()


@pytest.mark.parametrize("sees_addresses", [True, False])
def test_idle_connections_are_closed_first(
    sees_addresses: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also behind a proxy, where all connections have one address."""
    settings = ConnectionSettings(sees_addresses=sees_addresses)
    with serving(settings=settings, capacity=64) as (server, url), ExitStack() as stack:
        busy = stack.enter_context(connected(url))
        busy.sendall(b"POST /x HTTP/1.1\r\ncontent-length: 10\r\n\r\n01234")
        wait_until(lambda: server.table.bytes.total == 5)
        idle = []
        for _ in range(20):
            # Connections that come all at the same moment are not known to be idle.
            idle += [stack.enter_context(connected(url)) for _ in range(10)]
            wait_until(
                lambda: sum(map(len, server.table._idle.values())) == server.table._n_open - 1
            )
        assert httpx2.post(f"{url}/x", content=b"honest").content == b"honest"
        busy.sendall(b"56789")
        assert busy.recv(1000).endswith(b"0123456789")
        assert received(idle[0]) == b"" and server.table._n_open <= 64
    lines = capsys.readouterr().err.splitlines()
    if not sees_addresses:
        assert len(lines) == 1 and "the limit of this process is 64" in lines[0]


def test_silent_connection_is_closed_before_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)
    with serving() as (_, url), connected(url) as silent, connected(url) as slow:
        slow.sendall(b"POST /x HTTP/1.1\r\n")
        assert received(silent).startswith(b"HTTP/1.1 408 ")
        slow.sendall(b"content-length: 2\r\n\r\nok")
        assert slow.recv(1000).endswith(b"ok")


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, ssl.SSLContext]]:
    """The contexts of a server and of a client that trusts it."""
    made = make_certificates(tmp_path)
    yield (
        load_server_tls_context(made.certificate, made.key),
        ssl.create_default_context(cafile=str(made.ca)),
    )


def test_unfinished_handshakes_are_counted_and_end(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 1.0)
    server_tls, client_tls = tls
    with serving(server_tls, capacity=64) as (server, url), ExitStack() as stack:
        flood = [stack.enter_context(connect_from(url, OTHER)) for _ in range(100)]
        wait_until(lambda: server.table._n_open >= 33)
        assert server.table._n_open <= 40
        assert httpx2.post(f"{url}/x", content=b"hello", verify=client_tls).content == b"hello"
        assert all(received(one) == b"" for one in flood)
        wait_until(lambda: server.table._n_open == 0)
        assert httpx2.post(f"{url}/x", content=b"later", verify=client_tls).content == b"later"


def test_failed_handshakes_are_forgotten(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with serving(tls[0]) as (server, url):
        for _ in range(5):
            with connected(url) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                received(connection)
        wait_until(lambda: server.table._n_open == 0)
        assert not server.table._counts


def test_table_warns_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    table = ConnectionTable(ConnectionSettings(), 10, lambda: now[0])
    assert sum(table.admit(f"192.0.2.{i}") for i in range(30)) == 10
    assert len(capsys.readouterr().err.splitlines()) == 1
    now[0] = 61.0
    assert not table.admit("192.0.2.1")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_soft_limit_of_descriptors_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        n = raise_descriptor_limit()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == min(hard, 1 << 16) or hard == resource.RLIM_INFINITY
        assert 1 <= n <= connections.MAX_CONNECTIONS and 2 * n <= raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
