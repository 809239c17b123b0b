"""Binary HTTP: the RFC's examples, round trips, and rejection of other bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.transport.bhttp import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    BinaryRequest,
    BinaryResponse,
    compute_padded_size,
)

HELLO = bytes.fromhex(
    "0003474554056874747073000a2f68656c6c6f2e747874406c0a757365722d6167656e74346375726c2f372e31362e33206c69626375726c2f372e31362e33"
    "204f70656e53534c2f302e392e376c207a6c69622f312e322e3304686f73740f7777772e6578616d706c652e636f6d0f6163636570742d6c616e6775616765"
    "06656e2c206d690000"
)
"""RFC 9292, figure 8."""
CRLF = bytes.fromhex(
    "0140c8001d5468697320636f6e74656e7420636f6e7461696e732043524c462e0d0a0d07747261696c65720474657874"
)
"""RFC 9292, figure 13: with a trailer."""

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-!#$%&'*+.^_`|~", min_size=1, max_size=40)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple)
PATHS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60).map(
    "/{}".format
)


def test_request_matches_rfc_example() -> None:
    request = BinaryRequest.from_bytes(HELLO)
    assert request == BinaryRequest(
        "GET",
        "/hello.txt",
        (
            ("user-agent", "curl/7.16.3 libcurl/7.16.3 OpenSSL/0.9.7l zlib/1.2.3"),
            ("host", "www.example.com"),
            ("accept-language", "en, mi"),
        ),
    )
    assert request.to_bytes() == HELLO


def test_response_matches_rfc_example() -> None:
    answer = BinaryResponse.from_bytes(CRLF)
    assert answer == BinaryResponse(200, (), b"This content contains CRLF.\r\n")
    # Ours has no trailers.
    assert answer.to_bytes() == CRLF[:34] + b"\x00"


def test_message_may_omit_empty_parts_at_end() -> None:
    request = BinaryRequest("GET", "/", authority="example.com")
    cut = bytes.fromhex("00034745540568747470730b6578616d706c652e636f6d012f")
    assert request.to_bytes() == cut + bytes(3)
    assert [BinaryRequest.from_bytes(cut + bytes(n)) for n in (0, 1, 2, 3, 4, 1000)] == [
        request
    ] * 6
    assert [
        BinaryResponse.from_bytes(bytes.fromhex("0140c8") + bytes(n)) for n in (0, 1, 2, 3, 4)
    ] == [BinaryResponse(200)] * 5


def test_informational_responses_are_dropped_up_to_limit() -> None:
    informing = bytes.fromhex("40670a046c696e6b043c2f613e")
    assert BinaryResponse.from_bytes(
        b"\x01" + informing * 2 + bytes.fromhex("40c800026162")
    ) == BinaryResponse(200, (), b"ab")
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        BinaryResponse.from_bytes(b"\x01" + informing * 5 + bytes.fromhex("40c8"))
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        BinaryResponse.from_bytes(b"\x01" + informing)


@given(
    st.sampled_from(["GET", "POST"]),
    PATHS,
    HEADERS,
    st.binary(max_size=600),
    st.sampled_from(["", "a.example:8700"]),
)
def test_request_round_trip(
    method: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes, authority: str
) -> None:
    request = BinaryRequest(method, path, headers, body, authority=authority)
    plain = request.to_bytes()
    padded = request.to_bytes(compute_padded_size(len(plain)))
    assert BinaryRequest.from_bytes(plain) == BinaryRequest.from_bytes(padded) == request
    assert len(padded) % 1024 == 0 and padded.startswith(plain)


@given(st.integers(200, 599), HEADERS, st.binary(max_size=600))
def test_response_round_trip(
    status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    answer = BinaryResponse(status, headers, body)
    assert (
        BinaryResponse.from_bytes(answer.to_bytes())
        == BinaryResponse.from_bytes(answer.to_bytes() + bytes(7))
        == answer
    )


@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda data: HELLO[:20] + data)
    | st.binary(max_size=60).map(lambda d: CRLF[:3] + d)
)
def test_decoding_any_bytes_returns_message_or_protocol_error(data: bytes) -> None:
    for kind in (BinaryRequest, BinaryResponse):
        try:
            message = kind.from_bytes(data)
        except RemoteProtocolError as error:
            assert error.code == "MSG-005"
        else:
            assert kind.from_bytes(message.to_bytes()) == message


def test_integers_of_all_lengths_are_read() -> None:
    long = (
        bytes.fromhex("400080000003")
        + b"GET"
        + bytes.fromhex("c000000000000005")
        + b"https"
        + bytes.fromhex("0001")
        + b"/"
    )
    assert BinaryRequest.from_bytes(long) == BinaryRequest("GET", "/")
    assert (
        len(
            BinaryRequest.from_bytes(BinaryRequest("POST", "/", body=bytes(70_000)).to_bytes()).body
        )
        == 70_000
    )


def with_headers(section: bytes) -> bytes:
    return HELLO[:23] + len(section).to_bytes(1, "big") + section


BAD = {
    "nothing": b"",
    "an answer": CRLF,
    "indeterminate length": b"\x02" + HELLO[1:],
    "another framing": b"\x04" + HELLO[1:],
    "a method in small letters": b"\x00\x03get" + HELLO[5:],
    "no method": b"\x00\x00" + HELLO[5:],
    "another scheme": b"\x00\x03GET\x03ftp\x00\x01/",
    "no path": b"\x00\x03GET\x05https\x00\x00",
    "a path without a slash": b"\x00\x03GET\x05https\x00\x01a",
    "a path with a space": b"\x00\x03GET\x05https\x00\x03/ a",
    "a path with a line's end": b"\x00\x03GET\x05https\x00\x03/\r\n",
    "a path that is not ASCII": b"\x00\x03GET\x05https\x00\x03/\xc3\xbc",
    "an authority with a name": b"\x00\x03GET\x05https\x04me@a\x01/",
    "a path that is too long": BinaryRequest("GET", "/").to_bytes()[:-4]
    + b"\x48\x01/"
    + b"a" * 2048,
    "non-zero padding": HELLO + b"\x00\x01",
    "a name in capitals": with_headers(b"\x01A\x01a"),
    "no name": with_headers(b"\x00\x01a"),
    "a pseudo-header": with_headers(b"\x05:path\x01/"),
    "a value with a line's end": with_headers(b"\x01a\x03a\r\n"),
    "a value with spaces around": with_headers(b"\x01a\x02a "),
    "a value that is not ASCII": with_headers(b"\x01a\x01\xff"),
    "half a header": with_headers(b"\x01a"),
    "headers beyond their end": with_headers(b"\x01a\x04ab") + b"cd",
    "headers that are cut short": HELLO[:60],
    "a body that is cut short": with_headers(b"") + b"\x05abcd",
    "an integer that is cut short": with_headers(b"") + b"\x40",
    "a body beyond all measure": with_headers(b"") + b"\xff" * 8,
    "headers that are too long": HELLO[:23]
    + (MAX_HEADER_BYTES + 1 | 2 << 30).to_bytes(4, "big")
    + bytes(MAX_HEADER_BYTES + 1),
    "too many headers": HELLO[:23]
    + (4 * (MAX_HEADERS + 1) | 1 << 14).to_bytes(2, "big")
    + b"\x01a\x01b" * (MAX_HEADERS + 1),
    "bad trailers": with_headers(b"") + b"\x00\x02\x01A",
}


@pytest.mark.parametrize("name", BAD)
def test_from_bytes_rejects_invalid_request(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        BinaryRequest.from_bytes(BAD[name])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HELLO,
        b"\x01",
        b"\x01\x40",
        b"\x01\x05",
        b"\x01\x42\x58",
        b"\x01\x40\xc8\x00\x05abcd",
        CRLF + b"a",
        CRLF[:-1],
    ],
)
def test_from_bytes_rejects_invalid_response(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        BinaryResponse.from_bytes(data)


def test_from_bytes_rejects_too_large_message() -> None:
    for kind in (BinaryRequest, BinaryResponse):
        with pytest.raises(RemoteProtocolError, match="MSG-001"):
            kind.from_bytes(bytes(101), max_bytes=100)


@pytest.mark.parametrize(
    "message",
    [
        BinaryRequest("get", "/"),
        BinaryRequest("GET", "a"),
        BinaryRequest("GET", "/", scheme="ftp"),
        BinaryRequest("GET", "/", authority="me@a"),
        BinaryRequest("GET", "/", (("A", "a"),)),
        BinaryRequest("GET", "/", (("a", "a\r\nb: c"),)),
        BinaryRequest("GET", "/", (("a", "b"),) * (MAX_HEADERS + 1)),
        BinaryRequest("GET", "/", (("a", "b" * MAX_HEADER_BYTES),)),
        BinaryResponse(100),
        BinaryResponse(600),
    ],
)
def test_to_bytes_raises_local_error_for_invalid_message(
    message: BinaryRequest | BinaryResponse,
) -> None:
    with pytest.raises(LocalProtocolError, match="MSG-007"):
        message.to_bytes()


def test_to_bytes_rejects_message_larger_than_size() -> None:
    with pytest.raises(LocalProtocolError, match="MSG-007"):
        BinaryRequest("GET", "/").to_bytes(10)
