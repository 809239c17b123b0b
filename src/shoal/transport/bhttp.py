"""Requests and answers of HTTP as bytes (RFC 9292, known length): what is inside of a sealed request, and of the answer to it.

============  =================================================================================================================
framing       one byte: 0 a request, 1 an answer. The other two of the RFC, of indeterminate length, are refused
control       method, scheme, authority and path, each with its length; or the status
headers       length of all, then names and values, each with its length
body          length, bytes
trailers      as headers; read and dropped
padding       zeros
============  =================================================================================================================

A message may end after any part whose followers are all empty. Padding is how all sealed packets of a study get one length.
Answers that only inform (1xx) before the final one are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import MAX_BYTES

Headers = tuple[tuple[str, str], ...]

MAX_HEADERS = 32
MAX_HEADER_BYTES = 1 << 14
MAX_MESSAGE_BYTES = MAX_BYTES + 4 * MAX_HEADER_BYTES
MAX_INFORMING = 4
GRAIN = 1 << 10
"""Requests and answers that are no packets are padded to a multiple of so many bytes."""

_REQUEST, _ANSWER = 0, 1
_METHOD = re.compile(r"[A-Z]{1,16}\Z")
_SCHEME = re.compile(r"https?\Z")
_AUTHORITY = re.compile(r"[A-Za-z0-9.\-_\[\]:]{0,255}\Z")
_PATH = re.compile(r"/[!-~]{0,2047}\Z")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]{1,100}\Z")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Parameters
    ----------
    method, path
        As in HTTP; the path with its query.
    headers
        Names in small letters, with their values.
    body
        The content.
    scheme, authority
        To whom the request goes, where that is not clear.

    Examples
    --------
    >>> Request.from_bytes(Request("GET", "/v1/studies").to_bytes(1024)).path
    '/v1/studies'
    """

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""
    scheme: str = "https"
    authority: str = ""

    def to_bytes(self, size: int | None = None) -> bytes:
        """The request, with zeros up to a size where one is given."""
        control = (self.method, self.scheme, self.authority, self.path)
        if not _is_control(*control):
            raise LocalProtocolError("MSG-007", "A request has a method, an address or a path that HTTP does not have.")
        parts = [_sized(part.encode("ascii")) for part in control]
        return _padded(bytes([_REQUEST]) + b"".join(parts) + _rest(self.headers, self.body), size)

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Request:
        """The request that some bytes are; ``MSG-005`` for any other bytes, ``MSG-001`` for too many."""
        reader = _Reader(data, _REQUEST, max_bytes)
        method, scheme, authority, path = (reader.text() for _ in range(4))
        if not _is_control(method, scheme, authority, path):
            raise _malformed("has a method, an address or a path that HTTP does not have")
        headers, body = reader.rest()
        return cls(method, path, headers, body, scheme, authority)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request.

    Parameters
    ----------
    status
        As in HTTP.
    headers
        Names in small letters, with their values.
    body
        The content.

    Examples
    --------
    >>> Answer.from_bytes(bytes.fromhex("0140c8"))
    Answer(status=200, headers=(), body=b'')
    """

    status: int
    headers: Headers = ()
    body: bytes = b""

    def to_bytes(self, size: int | None = None) -> bytes:
        """The answer, with zeros up to a size where one is given."""
        if not 200 <= self.status <= 599:
            raise LocalProtocolError("MSG-007", f"An answer cannot have status {self.status}.")
        return _padded(bytes([_ANSWER]) + _integer(self.status) + _rest(self.headers, self.body), size)

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Answer:
        """The answer that some bytes are; ``MSG-005`` for any other bytes, ``MSG-001`` for too many."""
        reader = _Reader(data, _ANSWER, max_bytes)
        status = reader.integer()
        for _ in range(MAX_INFORMING):
            if not 100 <= status <= 199:
                break
            reader.headers()
            status = reader.integer()
        if not 200 <= status <= 599:
            raise _malformed("has a status that is not that of an answer")
        headers, body = reader.rest()
        return cls(status, headers, body)


def padded_size(n: int) -> int:
    """The size to which a message of ``n`` bytes is padded that is no packet.

    Examples
    --------
    >>> padded_size(1), padded_size(1024), padded_size(1025)
    (1024, 1024, 2048)
    """
    return -(-n // GRAIN) * GRAIN


class _Reader:
    """What is left of a message."""

    def __init__(self, data: bytes, framing: int, max_bytes: int) -> None:
        if len(data) > max_bytes:
            what = f"A message of binary HTTP of {len(data)} bytes is too large."
            raise RemoteProtocolError("MSG-001", what, why=f"The limit is {max_bytes} bytes.")
        self._data, self._at = data, 0
        if self.integer() != framing:
            raise _malformed("is of another kind, or its length is not known")

    def integer(self) -> int:
        """A whole number in 1, 2, 4 or 8 bytes, whose first two bits say in how many."""
        if self._at >= len(self._data):
            raise _malformed("ends too early")
        n = 1 << (self._data[self._at] >> 6)
        return int.from_bytes(self._take(n), "big") & ((1 << (8 * n - 2)) - 1)

    def text(self) -> str:
        try:
            return self.sized().decode("ascii")
        except UnicodeDecodeError:
            raise _malformed("has text that is not ASCII") from None

    def sized(self) -> bytes:
        return self._take(self.integer())

    def headers(self) -> Headers:
        """A section of names and values; none where the message is at its end."""
        if self._at == len(self._data):
            return ()
        size = self.integer()
        end = self._at + size
        if size > MAX_HEADER_BYTES or end > len(self._data):
            raise _malformed("has headers that are too long, or end too early")
        found = []
        while self._at < end:
            found.append((self.text(), self.text()))
        if self._at != end or not _is_headers(tuple(found)):
            raise _malformed("has headers that HTTP does not have, or too many")
        return tuple(found)

    def rest(self) -> tuple[Headers, bytes]:
        """Headers and body; then there must be nothing but trailers and zeros."""
        headers = self.headers()
        body = self.sized() if self._at < len(self._data) else b""
        self.headers()
        if self._data.count(0, self._at) != len(self._data) - self._at:
            raise _malformed("is followed by something")
        return headers, body

    def _take(self, n: int) -> bytes:
        taken = self._data[self._at : self._at + n]
        if len(taken) != n:
            raise _malformed("ends too early")
        self._at += n
        return taken


def _rest(headers: Headers, body: bytes) -> bytes:
    """Headers, body and no trailers."""
    if not _is_headers(headers):
        raise LocalProtocolError("MSG-007", "A message has headers that HTTP does not have, or too many.")
    section = b"".join(_sized(name.encode("ascii")) + _sized(value.encode("ascii")) for name, value in headers)
    if len(section) > MAX_HEADER_BYTES:
        raise LocalProtocolError("MSG-007", f"A message has headers of {len(section)} bytes, and may have {MAX_HEADER_BYTES}.")
    return _sized(section) + _sized(body) + _integer(0)


def _is_control(method: str, scheme: str, authority: str, path: str) -> bool:
    return bool(_METHOD.match(method) and _SCHEME.match(scheme) and _AUTHORITY.match(authority) and _PATH.match(path))


def _is_headers(headers: Headers) -> bool:
    return len(headers) <= MAX_HEADERS and all(_NAME.match(name) and _VALUE.match(value) for name, value in headers)


def _sized(part: bytes) -> bytes:
    return _integer(len(part)) + part


def _integer(number: int) -> bytes:
    """In as few bytes as it goes: RFC 9000 §16."""
    for code, n in enumerate((1, 2, 4, 8)):
        if number < 1 << (8 * n - 2):
            return (number | code << (8 * n - 2)).to_bytes(n, "big")
    raise AssertionError(f"{number} is more than a message can be long")


def _padded(message: bytes, size: int | None) -> bytes:
    if size is None:
        return message
    if len(message) > size:
        raise LocalProtocolError("MSG-007", f"A message of {len(message)} bytes does not fit into {size}.")
    return message.ljust(size, b"\x00")


def _malformed(how: str) -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", f"A message of binary HTTP {how}.")
