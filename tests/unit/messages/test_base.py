"""Records and messages accept exactly the declared fields."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field, ValidationError

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message, Record, Registry
from shoal.messages.codec import decode, dumps, encode
from shoal.privacy.private import Private

STUDY = bytes(32)


class Note(Message):
    type_name: ClassVar[str] = "test.note"
    count: Annotated[int, Field(ge=0, le=9)]
    share: float = 0.5
    cells: Annotated[tuple[int, ...], Field(max_length=3)] = ()


class NoteTwo(Note):
    version: ClassVar[int] = 2


def test_message_is_frozen_and_hashable() -> None:
    note = Note(study=STUDY, count=1)
    with pytest.raises(ValidationError):
        note.count = 2  # type: ignore[misc]
    assert hash(note) == hash(Note(study=STUDY, count=1))


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"count": True}, "count"),
        ({"count": 1.0}, "count"),
        ({"count": "1"}, "count"),
        ({"count": 10}, "count"),
        ({"count": 1, "share": float("nan")}, "share"),
        ({"count": 1, "share": float("inf")}, "share"),
        ({"count": 1, "cells": [1]}, "cells"),
        ({"count": 1, "cells": (1, 2, 3, 4)}, "cells"),
        ({"count": 1, "cells": (1, True)}, "cells.1"),
        ({"count": 1, "more": 1}, "more"),
        ({"count": 1, "study": bytes(31)}, "study"),
        ({"count": 1, "study": "0" * 32}, "study"),
        ({}, "count"),
        ({"count": Private(3)}, "count"),
    ],
)
def test_undeclared_field_is_rejected_without_its_value(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Note(**{"study": STUDY, **fields})
    assert caught.value.code == "MSG-007"
    assert f"Note does not fit its declaration: {where}: " in caught.value.what


@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, ">i4"],
)
def test_array_round_trips_extreme_values(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    values = np.array([limits.min, 0, 1, limits.max], dtype)
    array = Array.from_values(values)
    assert array.data == b"".join(
        int(value).to_bytes(values.itemsize, "little", signed=limits.min < 0) for value in values
    )
    back = array.expect(values.dtype.name, 4)  # type: ignore[arg-type]
    assert back.tolist() == values.tolist()
    assert not back.flags.writeable


def test_expect_rejects_array_of_other_type_or_count() -> None:
    array = Array.from_values(np.arange(4, dtype=np.uint16))
    for wanted in (("uint16", 3), ("int16", 4), ("uint32", 4)):
        with pytest.raises(RemoteProtocolError) as caught:
            array.expect(*wanted)  # type: ignore[arg-type]
        assert caught.value.code == "MSG-005"


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 2), np.int8), np.zeros(2, np.float32), np.zeros(2, bool), np.zeros((), np.int8)],
)
def test_from_values_rejects_other_types_and_dimensions(values: Any) -> None:
    with pytest.raises(LocalProtocolError):
        Array.from_values(values)


@pytest.mark.parametrize(("count", "data"), [(2, bytes(3)), (2, bytes(5)), (0, b"x"), (-1, b"")])
def test_array_rejects_data_of_wrong_size(count: int, data: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        Array(element="uint16", count=count, data=data)


def test_registry_lists_its_messages_and_rejects_duplicates() -> None:
    registry = Registry(Note, NoteTwo)
    assert (len(registry), list(registry), registry["test.note", 2]) == (
        2,
        [("test.note", 1), ("test.note", 2)],
        NoteTwo,
    )
    with pytest.raises(LocalProtocolError):
        Registry(Note, Note)


class Left(Record):
    kind: Literal["left"] = "left"
    a: int


class Right(Record):
    kind: Literal["right"] = "right"
    b: int


class Either(Message):
    type_name: ClassVar[str] = "test.either"
    part: Left | Right
    parts: tuple[Annotated[Left | Right, Field(discriminator="kind")], ...] = ()


def test_union_of_records_is_decoded_by_type() -> None:
    message = Either(study=STUDY, part=Right(b=1), parts=(Left(a=1), Right(b=2)))
    again = decode(encode(message), Registry(Either), STUDY)
    assert again == message
    assert isinstance(again, Either)
    assert [type(part) for part in (again.part, *again.parts)] == [Right, Left, Right]


def test_record_that_fits_no_type_is_rejected_with_short_error() -> None:
    evil = "\x1b[31m" + "x" * 5000
    for body in (
        {"part": {"c": 1}, "parts": ()},
        {"part": {"kind": "left", "a": 1}, "parts": ({"kind": evil, "a": 1},)},
    ):
        data = dumps({"type": "test.either", "version": 1, "study": STUDY, "body": body})
        with pytest.raises(RemoteProtocolError) as caught:
            decode(data, Registry(Either), STUDY)
        assert caught.value.code == "MSG-005"
        assert "\x1b" not in caught.value.what
        assert len(caught.value.what) < 250


def test_replace_validates_changes() -> None:
    note = Note(study=STUDY, count=1)
    assert note.replace(count=2) == Note(study=STUDY, count=2)
    assert note.count == 1
    for wrong in ({"count": 10}, {"more": 1}):
        with pytest.raises(LocalProtocolError):
            note.replace(**wrong)


def test_submission_is_none_by_default() -> None:
    note = Note(study=STUDY, count=1)
    assert (note.submission, note.is_anonymous) == (None, False)
