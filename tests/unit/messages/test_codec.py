"""Limits of the CBOR profile; whole encodings are in the vector files."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

import pytest

from shoal.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message, Record, Registry
from shoal.messages.codec import (
    MAX_DEPTH,
    MAX_INT,
    MIN_INT,
    decode,
    dump,
    dumps,
    encode,
    load,
    loads,
    to_json,
)
from shoal.privacy.private import Private

STUDY = bytes(32)


class Note(Message):
    type_name: ClassVar[str] = "test.note"
    max_bytes: ClassVar[int] = 120
    text: str = ""
    anything: Any = None


class Long(Message):
    type_name: ClassVar[str] = "test.long"
    max_bytes: ClassVar[int] = 1000


NOTES = Registry(Note, Long)


def refusal(data: bytes, **limits: int) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        loads(data, **limits)
    return caught.value


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.untraced
@pytest.mark.parametrize(
    "head",
    [
        lambda t: bytes([0xC0 | t]) if t < 24 else None,
        lambda t: bytes([0xD8, t]) if t < 256 else None,
        lambda t: b"\xd9" + t.to_bytes(2, "big"),
    ],
)
def test_loads_rejects_every_tag(head: Any) -> None:
    """Each tag of 16 bits, with contents that decoders handle, alone and inside a map."""
    for tag in range(1 << 16):
        start = head(tag)
        if start is None:
            break
        content = (b"\x41\x01", b"\x61a", b"\x81\x01", b"\x01")[tag % 4]
        for data in (start + content, b"\xa1\x61k" + start + content):
            with pytest.raises(RemoteProtocolError) as caught:
                loads(data)
            assert (caught.value.code, f"tag {tag} is not allowed" in caught.value.what) == (
                "MSG-002",
                True,
            )


@pytest.mark.parametrize(
    "tag",
    [
        0,
        1,
        2,
        3,
        4,
        5,
        25,
        28,
        29,
        30,
        35,
        36,
        37,
        52,
        54,
        100,
        256,
        258,
        260,
        261,
        1004,
        43000,
        55799,
        1 << 16,
        1 << 32,
        (1 << 64) - 1,
    ],
)
@pytest.mark.parametrize(
    "content",
    ["00", "20", "40", "4101", "60", "6161", "80", "8101", "820102", "a0", "f6", "f93c00", "c101"],
)
def test_loads_rejects_known_tags_with_any_content(tag: int, content: str) -> None:
    assert refusal(b"\xdb" + tag.to_bytes(8, "big") + bytes.fromhex(content)).code == "MSG-002"


def test_loads_rejects_tag_before_reading_its_content() -> None:
    for content in ("", "ff", "62", "1c"):
        assert "tag 35 is not allowed" in refusal(bytes.fromhex("d823" + content)).what


def test_depth_is_limited() -> None:
    assert loads(dumps(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(LocalProtocolError):
        dumps(nested(MAX_DEPTH + 1))
    assert refusal(b"\x81" * (MAX_DEPTH + 1) + b"\x01").code == "MSG-002"
    assert refusal(b"\x81" * 100_000).code == "MSG-002"


def test_size_is_limited() -> None:
    assert loads(bytes.fromhex("43000000"), max_bytes=4) == bytes(3)
    assert refusal(bytes.fromhex("43000000"), max_bytes=3).code == "MSG-001"


@pytest.mark.parametrize("number", [MIN_INT, MAX_INT])
def test_integers_have_64_bits(number: int) -> None:
    assert loads(dumps(number)) == number
    beyond = number + (1 if number > 0 else -1)
    with pytest.raises(LocalProtocolError):
        dumps(beyond)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        1 + 2j,
        bytearray(b"x"),
        {1: 2},
        {b"k": 1},
        float("nan"),
        float("-inf"),
        "\ud800",
        {"\ud800": 1},
        enum.StrEnum("E", "A").A,
        b"x".__class__,
    ],
)
def test_dumps_rejects_other_values(value: object) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        dumps((value,))
    assert caught.value.code == "MSG-007"


def test_dumps_rejects_private_value() -> None:
    for value in (Private(3), [Private(3)], {"a": (Private(3),)}):
        with pytest.raises(LocalProtocolError) as caught:
            dumps(value)
        assert caught.value.code == "PRIVATE-001"
    with pytest.raises(LocalProtocolError) as caught:
        encode(Note(study=STUDY, anything=Private(3)))
    assert caught.value.code == "PRIVATE-001"
    with pytest.raises(LocalProtocolError):
        encode(Note.model_construct(study=STUDY, text=Private("secret"), anything=None))


def test_to_json_rejects_private_value() -> None:
    with pytest.raises(LocalProtocolError):
        to_json(Note(study=STUDY, anything=Private(3)))


def test_to_json_shows_bytes_as_hexadecimal() -> None:
    assert '"anything": "c0ffee"' in to_json(Note(study=STUDY, anything=bytes.fromhex("c0ffee")))


def test_each_message_type_has_its_size_limit() -> None:
    with pytest.raises(LocalProtocolError) as local:
        encode(Note(study=STUDY, text="x" * 100))
    data = dumps(
        {
            "type": "test.note",
            "version": 1,
            "study": STUDY,
            "body": {"text": "x" * 100, "anything": None},
        }
    )
    with pytest.raises(RemoteProtocolError) as remote:
        decode(data, NOTES, STUDY)
    assert (local.value.code, remote.value.code) == ("MSG-001", "MSG-001")
    with pytest.raises(RemoteProtocolError):
        decode(bytes(1001), NOTES, STUDY)


def test_decode_error_repeats_little_of_message() -> None:
    body = {"text": 3, "anything": None, "\x1b[31m" + "x" * 20: 1}
    data = dumps({"type": "test.note", "version": 1, "study": STUDY, "body": body})
    with pytest.raises(RemoteProtocolError) as caught:
        decode(data, Registry(Long, Note), STUDY)
    assert "\x1b" not in str(caught.value)
    with pytest.raises(RemoteProtocolError) as caught:
        decode(
            dumps({"type": "\x1b" * 300, "version": 1, "study": STUDY, "body": {}}), NOTES, STUDY
        )
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_to_json_escapes_control_characters() -> None:
    assert to_json(Note(study=STUDY, text="\x1b[2J\x9b\u202e")).isascii()


class Saved(Record):
    numbers: tuple[int, ...]
    note: Note | None = None


def test_record_round_trips_through_dump_and_load() -> None:
    saved = Saved(numbers=(1, 2), note=Note(study=STUDY, text="x"))
    assert load(dump(saved), Saved) == saved
    assert load(dumps({"numbers": ()}), Saved) == Saved(numbers=()), (
        "a field that is newer than the file has its default"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        dumps({}),
        dumps({"numbers": (1.5,)}),
        dumps({"numbers": (), "more": 1}),
        dumps(3),
    ],
)
def test_load_raises_integrity_error_for_other_bytes(data: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        load(data, Saved)
    assert caught.value.code == "MSG-008"


def test_decode_rejects_digest_in_body() -> None:
    body = {"text": "", "anything": None, "study": STUDY}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(
            dumps({"type": "test.note", "version": 1, "study": STUDY, "body": body}),
            Registry(Note, Long),
            STUDY,
        )
    assert caught.value.code == "MSG-005"
