"""The capture on loopback shows whole requests in order, and decrypts TLS if it has the keys."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.support.http import (
    Segment,
    capture,
    connections,
    is_resumed,
    read_keys,
    requests,
    why_not,
)
from tests.support.tls import Certificates

ANSWER = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
BODY = bytes(range(256)) * 1000


@contextmanager
def server(tls: Certificates | None = None) -> Iterator[int]:
    """Yield the port of a server that answers each request with the body above."""
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certificate, tls.key)

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            # Who hangs up may leave what was sent to it unread, which breaks the connection off.
            with (
                suppress(OSError),
                closing(
                    accepted if context is None else context.wrap_socket(accepted, server_side=True)
                ) as one,
            ):
                buffer = b""
                while data := one.recv(1 << 16):
                    buffer += data
                    if buffer.partition(b"\r\n\r\n")[2] == BODY:
                        buffer = b""
                        one.sendall(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("has_tls", [False, True])
def test_capture_shows_whole_requests_in_order(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    log = tmp_path / "keys"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    with (
        server(certificates if has_tls else None) as port,
        server() as other,
        capture(port) as segments,
    ):
        for i in range(3):
            transport = httpx2.HTTPTransport(verify=trust, local_address=f"127.0.3.{i + 1}")
            with httpx2.Client(transport=transport) as http:
                for path in ("a", "b")[: 1 + i % 2]:
                    url = f"{'https' if has_tls else 'http'}://127.0.0.1:{port}/{path}"
                    assert http.post(url, content=BODY, headers={"x": str(i)}).status_code == 202
        httpx2.post(f"http://127.0.0.1:{other}/", content=BODY)
    found = connections(segments)
    assert [one.client[0] for one in found] == ["127.0.3.1", "127.0.3.2", "127.0.3.3"]
    seen = [
        one
        for connection in found
        for one in requests(connection, read_keys(log) if has_tls else None)
    ]
    assert [(one.path, dict(one.headers)["x"]) for one in seen] == [
        ("/a", "0"),
        ("/a", "1"),
        ("/b", "1"),
        ("/a", "2"),
    ]
    assert all(one.body == BODY and one.connection.opened < one.time for one in seen)
    moments = [moment for one in seen for moment in (one.time, one.until)]
    assert moments == sorted(moments, key=lambda moment: moment or 0.0), (
        "each is answered before the next one is asked"
    )
    if has_tls:
        assert not any(BODY[:64] in one.sent or is_resumed(one) for one in found)
        resumed = ssl.create_default_context(cafile=str(certificates.ca))
        resumed.maximum_version = ssl.TLSVersion.TLSv1_3
        assert _is_resumed_seen(certificates, resumed)
    else:
        assert found[0].answered == ANSWER


@pytest.mark.parametrize("has_tls", [False, True])
def test_capture_shows_end_of_closed_connection(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    """An unanswered request ends with its connection; on an open connection it has no end."""
    log = tmp_path / "keys"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    with server(certificates if has_tls else None) as port, capture(port) as segments:
        plain = socket.create_connection(("127.0.0.1", port))
        trust = ssl.create_default_context(cafile=str(certificates.ca))
        with closing(
            trust.wrap_socket(plain, server_hostname="127.0.0.1") if has_tls else plain
        ) as one:
            one.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
    keys = read_keys(log) if has_tls else None
    (found,) = connections(segments)
    (seen,) = requests(found, keys)
    assert found.closed is not None and seen.time <= found.closed == seen.until
    found.closed = None
    assert [one.until for one in requests(found, keys)] == [None]


def _is_resumed_seen(certificates: Certificates, context: ssl.SSLContext) -> bool:
    """Return True if the capture recognises a resumed TLS session."""
    with server(certificates) as port, capture(port) as segments:
        session = None
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port)) as plain:
                one = context.wrap_socket(plain, server_hostname="127.0.0.1", session=session)
                with one:
                    one.sendall(b"POST / HTTP/1.1\r\n\r\n" + BODY)
                    one.recv(100)
                    session = one.session
    return [is_resumed(one) for one in connections(segments)] == [False, True]


def test_connections_accepts_repeated_and_reordered_segments() -> None:
    ends = ("127.0.0.1", 1), ("127.0.0.1", 2)
    first = Segment(0.0, *ends, 2**32 - 3, 2, b"")
    parts = [
        replace(
            first,
            time=float(i),
            sequence=(2**32 - 2 + 4 * i) % 2**32,
            flags=16,
            payload=b"%04d" % i,
        )
        for i in range(4)
    ]
    (found,) = connections(
        [first, first, parts[1], parts[0], parts[0], replace(parts[3], time=9.0), parts[2]]
    )
    assert found.sent == b"0000000100020003"
    assert found.sent_at == [(0.0, 4), (0.0, 8), (2.0, 12), (2.0, 16)]


def test_why_not_names_missing_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refuse)
    assert (
        why_not() == "a capture on loopback needs Linux and root (or CAP_NET_RAW): PermissionError"
    )
