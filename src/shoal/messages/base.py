"""Messages as strict, frozen records. Each names its type and version, and carries the digest of the study it belongs to.

A field is declared with an exact type: ``true`` is not a number, a list is a tuple, an unknown field is an error, and every
number is finite. Whole arrays of integers travel as an `Array`. ``docs/reference/wire.md`` says how all this looks in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.errors import LocalProtocolError, RemoteProtocolError

DIGEST_BYTES = 32

Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
"""A SHA-256 digest."""

Element = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
"""What an array's elements are."""


def describe(error: ValidationError) -> str:
    """The first fault in words: where it is and what was expected, never the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{_shown(where, 60) or 'the body'}: {_shown(first['msg'], 100)}"


def _shown(text: str, longest: int) -> str:
    """A text that may repeat what a stranger sent: without characters that could steer a terminal, and cut."""
    return ascii(text[:longest])[1:-1][:longest]


class Record(BaseModel):
    """Part of a message, or the state of a machine: exact types, no unknown fields, finite numbers, frozen."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise LocalProtocolError(
                "MSG-007",
                f"{type(self).__name__} does not fit its declaration: {describe(error)}.",
                fix="Build the record from values of the declared types.",
            ) from None

    # Pydantic then calls it for a record that we make ourselves, and not for each part of one that it reads: a part that does not fit is
    # for pydantic to deal with (in a union it tries the next), and for `codec.decode` to put into words.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replace(self, **changes: Any) -> Self:
        """The record with some fields changed, checked as a new one is."""
        # Not dict(self), which takes a record with a field called keys for a mapping.
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


class Array(Record):
    """A row of integers as little-endian bytes, with its element type and count.

    Examples
    --------
    >>> sent = Array.of(np.array([1, -2], np.int16))
    >>> sent.data.hex(), sent.expect("int16", 2).tolist()
    ('0100feff', [1, -2])
    """

    element: Element
    count: Annotated[int, Field(ge=0)]
    data: bytes

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.data) != self.count * np.dtype(self.element).itemsize:
            raise ValueError(f"{self.count} elements of {self.element} do not fill {len(self.data)} bytes")
        return self

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Self:
        """The array as it travels; its type must be one of `Element`, and it must have one dimension."""
        if values.ndim != 1:
            raise LocalProtocolError("MSG-007", f"An array of {values.ndim} dimensions cannot travel; give it one.")
        element = cast("Element", values.dtype.name)
        return cls(element=element, count=values.size, data=values.astype(values.dtype.newbyteorder("<")).tobytes())

    def expect(self, element: Element, count: int) -> npt.NDArray[Any]:
        """The values, read only, if they are what the study calls for; otherwise the sender's error."""
        if (self.element, self.count) != (element, count):
            raise RemoteProtocolError(
                "MSG-005",
                f"An array has {self.count} elements of {self.element}.",
                why=f"The study calls for {count} of {element}.",
            )
        return np.frombuffer(self.data, np.dtype(element).newbyteorder("<"))


class Message(Record):
    """Base of everything that travels.

    A concrete class sets the names below. A pair of type name and version is never given a second meaning.

    Attributes
    ----------
    type_name, version
        What the envelope says.
    spends
        Whether the message is a mechanism's output on private data. Such a message leaves only as a
        `~shoal.protocols.base.Release`, priced and stored; no other message may be one.
    is_anonymous
        Whether the aggregator must not learn who sent it: a driver then gives it a sender made up for this delivery alone.
    max_bytes
        Most bytes that an encoded message may have.
    """

    type_name: ClassVar[str]
    version: ClassVar[int] = 1
    spends: ClassVar[bool] = False
    is_anonymous: ClassVar[bool] = False
    max_bytes: ClassVar[int] = 1 << 16

    study: Digest

    @property
    def submission(self) -> bytes | None:
        """What names a message that is to count once, among those of its type and sender, or of its type alone where it is anonymous.

        A round, an update's number, a pseudonym. The driver keeps the index: the aggregator is given a submission once, however often it
        comes, and other bytes under the same name are rejected. None for a message that may count as often as it comes.
        """
        return None


class Registry(Mapping[tuple[str, int], type[Message]]):
    """The messages of one protocol, by type name and version."""

    def __init__(self, *classes: type[Message]) -> None:
        self._classes = {(kind.type_name, kind.version): kind for kind in classes}
        if len(self._classes) != len(classes):
            raise LocalProtocolError("MSG-007", "Two messages of one protocol have the same type name and version.")
        self.max_bytes = max(kind.max_bytes for kind in classes)

    def __getitem__(self, key: tuple[str, int]) -> type[Message]:
        return self._classes[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)
