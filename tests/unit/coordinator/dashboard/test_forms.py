"""Parsing of forms: accepted from browsers, rejected from other programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.dashboard.forms import MAX_FIELDS, MAX_PAIRS_BYTES, parse_fields
from shoal.errors import RemoteProtocolError

URLENCODED = "application/x-www-form-urlencoded"
FENCE = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
MULTIPART = f"multipart/form-data; boundary={FENCE}"


def multipart(*fields: tuple[str, bytes], fence: str = FENCE, extra: bytes = b"") -> bytes:
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (fence.encode(), n.encode(), extra, v)
        for n, v in fields
    ]
    return b"".join(parts) + b"--%b--\r\n" % fence.encode()


def refusal(kind: str, body: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_fields(kind, body)
    assert caught.value.code == "HOST-006"
    assert caught.value.why is not None
    return caught.value.why


def test_parse_fields_reads_fields_and_files_of_browsers() -> None:
    file = b'; filename="study.toml"\r\nContent-Type: application/toml'
    assert parse_fields(
        MULTIPART, multipart(("study_file", b"a = 1\r\n\r\nb = 2"), extra=file)
    ) == {"study_file": b"a = 1\r\n\r\nb = 2"}
    assert parse_fields(URLENCODED, b"key=7f+3a&study=title+%3D+%22Schl%C3%A4f%22") == {
        "key": b"7f 3a",
        "study": 'title = "Schläf"'.encode(),
    }
    assert parse_fields(f"{URLENCODED}; charset=utf-8", b"key=") == {"key": b""}


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,30}", fullmatch=True), st.binary(), max_size=MAX_FIELDS
    ),
    st.booleans(),
)
def test_parse_fields_returns_any_field_content(fields: dict[str, bytes], is_quoted: bool) -> None:
    if any(f"--{FENCE}".encode() in value for value in fields.values()) or not fields:
        return
    kind = f'multipart/form-data; boundary="{FENCE}"' if is_quoted else MULTIPART
    assert parse_fields(kind, multipart(*fields.items())) == fields


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("", b"key=1"),
        ("text/plain", b"key=1"),
        ("application/json", b"{}"),
        (URLENCODED, b"key"),
        (URLENCODED, b"key=%ff"),
        (URLENCODED, "key=ä".encode()),
        (URLENCODED, b"key=1&key=2"),
        (URLENCODED, b"&".join(b"f%d=" % i for i in range(MAX_FIELDS + 1))),
        ("multipart/form-data", multipart(("key", b"1"))),
        (MULTIPART, b""),
        (MULTIPART, b"--"),
        (MULTIPART, multipart(("key", b"1"))[:-6]),
        (MULTIPART, b"before\r\n" + multipart(("key", b"1"))),
        (MULTIPART, multipart(("key", b"1"), ("key", b"2"))),
        (MULTIPART, multipart(("UPPER", b"1"))),
        (MULTIPART, multipart(*((f"f{'x' * i}", b"") for i in range(MAX_FIELDS + 1)))),
        (MULTIPART, f"--{FENCE}\r\nno head\r\n--{FENCE}--\r\n".encode()),
        (MULTIPART, f"--{FENCE}x\r\n\r\n1\r\n--{FENCE}--\r\n".encode()),
    ],
)
def test_parse_fields_rejects_forms_of_other_programs(kind: str, body: bytes) -> None:
    assert refusal(kind, body)


@given(st.sampled_from([URLENCODED, MULTIPART, "multipart/form-data; boundary=a"]), st.binary())
def test_parse_fields_rejects_any_other_bytes(kind: str, body: bytes) -> None:
    try:
        parse_fields(kind, body)
    except RemoteProtocolError as error:
        assert error.code == "HOST-006"


def test_parse_fields_takes_linear_time_with_many_boundaries() -> None:
    assert refusal(MULTIPART, f"--{FENCE}\r\n".encode() * 50_000)


def test_parse_fields_accepts_long_texts_as_multipart() -> None:
    """To decode what is between two signs of per cent takes a hundred times as long as to cut it
    out.
    """
    assert parse_fields(URLENCODED, b"key=" + b"7" * (MAX_PAIRS_BYTES - 4))["key"]
    assert "at most 65,536 bytes" in refusal(URLENCODED, b"key=" + b"7" * (MAX_PAIRS_BYTES - 3))
    assert (
        parse_fields(MULTIPART, multipart(("study", b"%41" * 900_000)))["study"] == b"%41" * 900_000
    )


def test_parse_fields_limits_headers_of_parts() -> None:
    name = "ä" * 255
    assert parse_fields(
        MULTIPART, multipart(("study_file", b"x"), extra=f'; filename="{name}"'.encode())
    ) == {"study_file": b"x"}
    assert (
        refusal(MULTIPART, multipart(("study_file", b"x"), extra=b"\r\nx: " + b"y" * 5000))
        == "A field has no name."
    )
