"""The requests in captured connections, also in those under TLS 1.3 whose keys a side has written down (``SSLKEYLOGFILE``).

So a test sees all that the party at the end of a connection sees, and by the capture also from where and when it came.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from capture import Connection

Keys = Mapping[tuple[str, bytes], bytes]
"""Secrets by what they are for and by the client's random bytes, which name the connection."""

_HANDSHAKE, _APPLICATION, _FINISHED = 22, 23, 20
_SUITES = {0x1301: (SHA256, AESGCM, 16), 0x1302: (SHA384, AESGCM, 32), 0x1303: (SHA256, ChaCha20Poly1305, 32)}
_RESUMED = 41
"""The extension by which a client says that it was here before."""


@dataclass(frozen=True)
class Request:
    """A request as its receiver sees it.

    Parameters
    ----------
    time, until
        When it was whole, and when it was answered or, where it was not, the connection closed; None where neither was seen.
    connection
        Over which it came.
    first_line, headers, body
        Its parts; the names of headers as they were spelled.
    """

    time: float
    until: float | None
    connection: Connection
    first_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def path(self) -> str:
        return self.first_line.split(" ")[1]

    @property
    def head(self) -> tuple[object, ...]:
        """Everything but the body."""
        return self.first_line, self.headers


def keys_of(log: Path) -> Keys:
    """The secrets that a process has written down."""
    lines = (line.split() for line in log.read_text().splitlines() if line and not line.startswith("#"))
    return {(label, bytes.fromhex(random)): bytes.fromhex(secret) for label, random, secret in lines}


def is_resumed(connection: Connection) -> bool:
    """Whether a client of TLS refers to an earlier connection, which links the two for everyone who sees both."""
    hello = connection.sent[9:]
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at]
    end = at + 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 2
    kinds = []
    while at < end:
        kinds.append(int.from_bytes(hello[at : at + 2], "big"))
        at += 4 + int.from_bytes(hello[at + 2 : at + 4], "big")
    return _RESUMED in kinds


def requests(connection: Connection, keys: Keys | None = None) -> list[Request]:
    """All requests over a connection, in order; with keys it is one under TLS."""
    chunks, answered = (list(_heard(connection, side, keys)) for side in ("CLIENT", "SERVER"))
    data, ends, total = b"", [], 0
    for _, chunk in chunks:
        total += len(chunk)
        ends.append(total)
        data += chunk
    found, at = [], 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        first, *lines = data[at:end].decode("latin-1").split("\r\n")
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        n = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
        at = end + 4 + n
        if at > len(data):
            break
        found.append(Request(chunks[bisect_left(ends, at)][0], None, connection, first, headers, data[end + 4 : at]))
    nexts = [*(one.time for one in found[1:]), math.inf]
    return [
        replace(one, until=max((time for time, _ in answered if one.time <= time <= following), default=connection.closed))
        for one, following in zip(found, nexts, strict=False)
    ]


def _heard(connection: Connection, side: str, keys: Keys | None) -> Iterator[tuple[float, bytes]]:
    """What a side has sent, as it came; under TLS what it has sent after its handshake."""
    stream, at = (connection.sent, connection.sent_at) if side == "CLIENT" else (connection.answered, connection.answered_at)
    ends = [n for _, n in at]
    if keys is None:
        yield from ((time, stream[start:end]) for (time, end), start in zip(at, [0, *ends], strict=False))
        return
    random, suite = connection.sent[11:43], _suite(connection.answered)
    current = _Direction(keys[f"{side}_HANDSHAKE_TRAFFIC_SECRET", random], suite)
    application = _Direction(keys[f"{side}_TRAFFIC_SECRET_0", random], suite)
    for end, kind, head, body in _records(stream):
        if kind != _APPLICATION:
            continue
        inner, data = current.open(head, body)
        if inner == _HANDSHAKE and data[0] == _FINISHED:
            current = application
        elif inner == _APPLICATION:
            yield at[bisect_left(ends, end)][0], data


def _records(stream: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    at = 0
    while at + 5 <= len(stream):
        end = at + 5 + int.from_bytes(stream[at + 3 : at + 5], "big")
        if end > len(stream):
            return
        yield end, stream[at], stream[at : at + 5], stream[at + 5 : end]
        at = end


def _suite(answered: bytes) -> int:
    """What the server has chosen."""
    after_session = 9 + 2 + 32 + 1 + answered[9 + 2 + 32]
    return int.from_bytes(answered[after_session : after_session + 2], "big")


class _Direction:
    """Opens records of one side under one secret, in order. Ref: RFC 8446 sections 5.2, 5.3 and 7.3."""

    def __init__(self, secret: bytes, suite: int) -> None:
        hash_kind, cipher, n_key = _SUITES[suite]

        def expand(label: bytes, n: int) -> bytes:
            info = n.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\x00"
            return HKDFExpand(hash_kind(), n, info).derive(secret)

        self._cipher, self._iv, self._n = cipher(expand(b"key", n_key)), int.from_bytes(expand(b"iv", 12), "big"), 0

    def open(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        nonce = (self._iv ^ self._n).to_bytes(12, "big")
        self._n += 1
        data = self._cipher.decrypt(nonce, body, head).rstrip(b"\x00")
        return data[-1], data[:-1]
