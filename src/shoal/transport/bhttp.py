"""Binary HTTP (RFC 9292), messages of known length.

It is the content of sealed requests and responses (`shoal.transport.ohttp`). A message has:

framing
    One byte: 0 for a request, 1 for a response. The other two of the RFC, of indeterminate length,
    are rejected.
control
    Method, scheme, authority and path, each with its length; or the status.
headers
    Length of all, then names and values, each with its length.
body
    Length, bytes.
trailers
    As headers; read and dropped.
padding
    Zeros. They give all sealed packets of a study one length.

A message may end after any part if all following parts are empty. Informational responses (1xx)
before the final one are dropped.
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
MAX_INFORMATIONAL = 4
PADDING_MULTIPLE = 1 << 10
"""Requests and responses without packets are padded to a multiple of this number of bytes."""

_REQUEST, _RESPONSE = 0, 1
_METHOD = re.compile(r"[A-Z]{1,16}\Z")
_SCHEME = re.compile(r"https?\Z")
_AUTHORITY = re.compile(r"[A-Za-z0-9.\-_\[\]:]{0,255}\Z")
_PATH = re.compile(r"/[!-~]{0,2047}\Z")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]{1,100}\Z")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?\Z")


@dataclass(frozen=True, slots=True)
class BinaryRequest:
    """A request.

    Parameters
    ----------
    path
        The path with its query.
    headers
        Names in lower case, with their values.
    authority
        Empty if the recipient is clear.

    Examples
    --------
    >>> BinaryRequest.from_bytes(BinaryRequest("GET", "/v1/studies").to_bytes(1024)).path
    '/v1/studies'
    """

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""
    scheme: str = "https"
    authority: str = ""

    def to_bytes(self, size: int | None = None) -> bytes:
        """Encode the request, padded with zeros up to ``size`` if it is given."""
        control = (self.method, self.scheme, self.authority, self.path)
        if not _is_valid_control(*control):
            raise LocalProtocolError(
                "MSG-007", "A request has an invalid method, scheme, authority or path."
            )
        parts = [_encode_sized(part.encode("ascii")) for part in control]
        return _pad_message(
            bytes([_REQUEST]) + b"".join(parts) + _encode_headers_and_body(self.headers, self.body),
            size,
        )

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> BinaryRequest:
        """Decode a request; raise ``MSG-005`` for other bytes, ``MSG-001`` if they are too many."""
        reader = _BinaryMessageReader(data, _REQUEST, max_bytes)
        method, scheme, authority, path = (reader.read_text() for _ in range(4))
        if not _is_valid_control(method, scheme, authority, path):
            raise _malformed_error("has an invalid method, scheme, authority or path")
        headers, body = reader.read_headers_and_body()
        return cls(method, path, headers, body, scheme, authority)


@dataclass(frozen=True, slots=True)
class BinaryResponse:
    """A response.

    Parameters
    ----------
    headers
        Names in lower case, with their values.

    Examples
    --------
    >>> BinaryResponse.from_bytes(bytes.fromhex("0140c8"))
    BinaryResponse(status=200, headers=(), body=b'')
    """

    status: int
    headers: Headers = ()
    body: bytes = b""

    def to_bytes(self, size: int | None = None) -> bytes:
        """Encode the response, padded with zeros up to ``size`` if it is given."""
        if not 200 <= self.status <= 599:
            raise LocalProtocolError("MSG-007", f"A response cannot have status {self.status}.")
        return _pad_message(
            bytes([_RESPONSE])
            + _encode_integer(self.status)
            + _encode_headers_and_body(self.headers, self.body),
            size,
        )

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> BinaryResponse:
        """Decode a response; raise ``MSG-005`` for other bytes, ``MSG-001`` if too many."""
        reader = _BinaryMessageReader(data, _RESPONSE, max_bytes)
        status = reader.read_integer()
        for _ in range(MAX_INFORMATIONAL):
            if not 100 <= status <= 199:
                break
            reader.read_headers()
            status = reader.read_integer()
        if not 200 <= status <= 599:
            raise _malformed_error("has a status that a response cannot have")
        headers, body = reader.read_headers_and_body()
        return cls(status, headers, body)


def compute_padded_size(n: int) -> int:
    """Return the padded size of a message of ``n`` bytes that contains no packet.

    Examples
    --------
    >>> compute_padded_size(1), compute_padded_size(1024), compute_padded_size(1025)
    (1024, 1024, 2048)
    """
    return -(-n // PADDING_MULTIPLE) * PADDING_MULTIPLE


class _BinaryMessageReader:
    """A reader of the parts of a message, in order."""

    def __init__(self, data: bytes, framing: int, max_bytes: int) -> None:
        if len(data) > max_bytes:
            what = f"A binary HTTP message of {len(data)} bytes is too large."
            raise RemoteProtocolError("MSG-001", what, why=f"The limit is {max_bytes} bytes.")
        self._data, self._position = data, 0
        if self.read_integer() != framing:
            raise _malformed_error("is of another kind, or of indeterminate length")

    def read_integer(self) -> int:
        """Read an integer of 1, 2, 4 or 8 bytes; its first two bits encode the number of bytes."""
        if self._position >= len(self._data):
            raise _malformed_error("ends too early")
        n = 1 << (self._data[self._position] >> 6)
        return int.from_bytes(self._read_bytes(n), "big") & ((1 << (8 * n - 2)) - 1)

    def read_text(self) -> str:
        try:
            return self.read_sized().decode("ascii")
        except UnicodeDecodeError:
            raise _malformed_error("has text that is not ASCII") from None

    def read_sized(self) -> bytes:
        return self._read_bytes(self.read_integer())

    def read_headers(self) -> Headers:
        """Read a section of names and values; return none at the end of the message."""
        if self._position == len(self._data):
            return ()
        size = self.read_integer()
        end = self._position + size
        if size > MAX_HEADER_BYTES or end > len(self._data):
            raise _malformed_error("has headers that are too long, or are truncated")
        found = []
        while self._position < end:
            found.append((self.read_text(), self.read_text()))
        if self._position != end or not _is_valid_headers(tuple(found)):
            raise _malformed_error("has invalid headers, or too many")
        return tuple(found)

    def read_headers_and_body(self) -> tuple[Headers, bytes]:
        """Read headers and body; only trailers and zeros may follow."""
        headers = self.read_headers()
        body = self.read_sized() if self._position < len(self._data) else b""
        self.read_headers()
        if self._data.count(0, self._position) != len(self._data) - self._position:
            raise _malformed_error("is followed by other data")
        return headers, body

    def _read_bytes(self, n: int) -> bytes:
        data = self._data[self._position : self._position + n]
        if len(data) != n:
            raise _malformed_error("ends too early")
        self._position += n
        return data


def _encode_headers_and_body(headers: Headers, body: bytes) -> bytes:
    """Encode headers and body, without trailers."""
    if not _is_valid_headers(headers):
        raise LocalProtocolError("MSG-007", "A message has invalid headers, or too many.")
    section = b"".join(
        _encode_sized(name.encode("ascii")) + _encode_sized(value.encode("ascii"))
        for name, value in headers
    )
    if len(section) > MAX_HEADER_BYTES:
        raise LocalProtocolError(
            "MSG-007",
            f"A message has headers of {len(section)} bytes; the limit is {MAX_HEADER_BYTES}.",
        )
    return _encode_sized(section) + _encode_sized(body) + _encode_integer(0)


def _is_valid_control(method: str, scheme: str, authority: str, path: str) -> bool:
    return bool(
        _METHOD.match(method)
        and _SCHEME.match(scheme)
        and _AUTHORITY.match(authority)
        and _PATH.match(path)
    )


def _is_valid_headers(headers: Headers) -> bool:
    return len(headers) <= MAX_HEADERS and all(
        _NAME.match(name) and _VALUE.match(value) for name, value in headers
    )


def _encode_sized(part: bytes) -> bytes:
    return _encode_integer(len(part)) + part


def _encode_integer(number: int) -> bytes:
    """Encode an integer in the fewest bytes.

    Ref: RFC 9000 §16.
    """
    for code, n in enumerate((1, 2, 4, 8)):
        if number < 1 << (8 * n - 2):
            return (number | code << (8 * n - 2)).to_bytes(n, "big")
    raise AssertionError(f"{number} is larger than any length")


def _pad_message(message: bytes, size: int | None) -> bytes:
    if size is None:
        return message
    if len(message) > size:
        raise LocalProtocolError(
            "MSG-007", f"A message of {len(message)} bytes does not fit into {size}."
        )
    return message.ljust(size, b"\x00")


def _malformed_error(how: str) -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", f"A binary HTTP message {how}.")
