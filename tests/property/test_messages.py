"""Every message has one encoding, and any other bytes raise RemoteProtocolError."""

from __future__ import annotations

import json
from typing import Annotated, ClassVar

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import Field

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Record, Registry
from shoal.messages.codec import MAX_INT, MIN_INT, decode, dumps, encode, loads, to_json
from tests.support.hostile import hostile

STUDY = bytes(range(32))


class Part(Record):
    name: str
    share: float


class Thing(Message):
    type_name: ClassVar[str] = "test.thing"
    number: int
    flag: bool = False
    parts: Annotated[tuple[Part, ...], Field(max_length=4)] = ()
    vector: Array | None = None


THINGS = Registry(Thing)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(MIN_INT, MAX_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=40)
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
vectors = arrays.arrays(
    st.sampled_from([np.int8, np.uint16, np.int32, np.uint64]), st.integers(0, 20)
).map(Array.from_values)
parts = st.builds(Part, name=keys, share=st.floats(allow_nan=False, allow_infinity=False))
things = st.builds(
    Thing,
    study=st.just(STUDY),
    number=st.integers(MIN_INT, MAX_INT),
    flag=st.booleans(),
    parts=st.lists(parts, max_size=4).map(tuple),
    vector=st.none() | vectors,
)


def check_parse(data: bytes) -> None:
    """Check that bytes are the encoding of a message, or raise the sender's error."""
    try:
        message = decode(data, THINGS, STUDY)
    except RemoteProtocolError as error:
        assert str(error).isprintable() or "\n" in str(error)
    else:
        assert encode(message) == data


@given(plain)
def test_plain_data_round_trips(value: object) -> None:
    again = loads(dumps(value))
    assert again == value
    assert dumps(again) == dumps(value)


@given(things)
def test_message_round_trips_and_prints(message: Thing) -> None:
    data = encode(message)
    assert decode(data, THINGS, STUDY) == message
    assert json.loads(to_json(message))["study"] == STUDY.hex()


@hostile(400)
@given(st.binary(max_size=80))
@example(b"")
@example(bytes.fromhex("c0f6"))
@example(bytes.fromhex("9b7fffffffffffffff"))
@example(bytes.fromhex("d9010280"))
def test_parser_handles_any_bytes(data: bytes) -> None:
    check_parse(data)
    try:
        value = loads(data)
    except RemoteProtocolError:
        return
    assert dumps(value) == data


@hostile(400)
@given(things, st.data())
def test_parser_handles_damaged_messages(message: Thing, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                raw[at] = data.draw(st.integers(0, 255))
            case 1:
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case _:
                del raw[at : at + data.draw(st.integers(1, 4))]
        if not raw:
            break
    check_parse(bytes(raw))


@hostile(300)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "version", "study", "body"), plain)),
    plain,
)
def test_parser_handles_envelopes_of_any_shape(envelope: dict[str, object], body: object) -> None:
    check_parse(dumps(envelope))
    check_parse(dumps({"type": "test.thing", "version": 1, "study": STUDY, "body": body}))
