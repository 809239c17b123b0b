"""What a browser's form sends, and what none would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.web.forms import MOST_FIELDS, MOST_PAIRS_BYTES, fields_of

URLENCODED = "application/x-www-form-urlencoded"
FENCE = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
MULTIPART = f"multipart/form-data; boundary={FENCE}"


def multipart(*fields: tuple[str, bytes], fence: str = FENCE, extra: bytes = b"") -> bytes:
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (fence.encode(), n.encode(), extra, v) for n, v in fields
    ]
    return b"".join(parts) + b"--%b--\r\n" % fence.encode()


def refusal(kind: str, body: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        fields_of(kind, body)
    assert caught.value.code == "HOST-006"
    assert caught.value.why is not None
    return caught.value.why


def test_fields_and_files_as_a_browser_sends_them() -> None:
    file = b'; filename="study.toml"\r\nContent-Type: application/toml'
    assert fields_of(MULTIPART, multipart(("study_file", b"a = 1\r\n\r\nb = 2"), extra=file)) == {"study_file": b"a = 1\r\n\r\nb = 2"}
    assert fields_of(URLENCODED, b"key=7f+3a&study=title+%3D+%22Schl%C3%A4f%22") == {"key": b"7f 3a", "study": 'title = "Schläf"'.encode()}
    assert fields_of(f"{URLENCODED}; charset=utf-8", b"key=") == {"key": b""}


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,30}", fullmatch=True), st.binary(), max_size=MOST_FIELDS), st.booleans())
def test_whatever_is_in_a_field_comes_out_of_it(fields: dict[str, bytes], is_quoted: bool) -> None:
    if any(f"--{FENCE}".encode() in value for value in fields.values()) or not fields:
        return
    kind = f'multipart/form-data; boundary="{FENCE}"' if is_quoted else MULTIPART
    assert fields_of(kind, multipart(*fields.items())) == fields


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
        (URLENCODED, b"&".join(b"f%d=" % i for i in range(MOST_FIELDS + 1))),
        ("multipart/form-data", multipart(("key", b"1"))),
        (MULTIPART, b""),
        (MULTIPART, b"--"),
        (MULTIPART, multipart(("key", b"1"))[:-6]),
        (MULTIPART, b"before\r\n" + multipart(("key", b"1"))),
        (MULTIPART, multipart(("key", b"1"), ("key", b"2"))),
        (MULTIPART, multipart(("UPPER", b"1"))),
        (MULTIPART, multipart(*((f"f{'x' * i}", b"") for i in range(MOST_FIELDS + 1)))),
        (MULTIPART, f"--{FENCE}\r\nno head\r\n--{FENCE}--\r\n".encode()),
        (MULTIPART, f"--{FENCE}x\r\n\r\n1\r\n--{FENCE}--\r\n".encode()),
    ],
)
def test_what_no_page_sends(kind: str, body: bytes) -> None:
    assert refusal(kind, body)


@given(st.sampled_from([URLENCODED, MULTIPART, "multipart/form-data; boundary=a"]), st.binary())
def test_rubbish_is_refused_in_a_sentence(kind: str, body: bytes) -> None:
    try:
        fields_of(kind, body)
    except RemoteProtocolError as error:
        assert error.code == "HOST-006"


def test_many_fences_take_no_longer_than_few() -> None:
    assert refusal(MULTIPART, f"--{FENCE}\r\n".encode() * 50_000)


def test_long_texts_come_in_parts() -> None:
    """To decode what is between two signs of per cent takes a hundred times as long as to cut it out."""
    assert fields_of(URLENCODED, b"key=" + b"7" * (MOST_PAIRS_BYTES - 4))["key"]
    assert "at most 65,536 bytes" in refusal(URLENCODED, b"key=" + b"7" * (MOST_PAIRS_BYTES - 3))
    assert fields_of(MULTIPART, multipart(("study", b"%41" * 900_000)))["study"] == b"%41" * 900_000


def test_what_a_field_is_called_comes_soon() -> None:
    name = "ä" * 255
    assert fields_of(MULTIPART, multipart(("study_file", b"x"), extra=f'; filename="{name}"'.encode())) == {"study_file": b"x"}
    assert refusal(MULTIPART, multipart(("study_file", b"x"), extra=b"\r\nx: " + b"y" * 5000)) == "A field has no name."
