"""Record, Message and Registry: strict, frozen message types.

Every protocol declares its messages with these classes; drivers encode and decode them with
`shoal.messages.codec`. A message names its type and version, and carries the digest of the
study it belongs to.

A field is declared with an exact type: ``true`` is not a number, a list is a tuple, an unknown
field is an error, and every number is finite. Long arrays of integers travel as an `Array`.
``docs/reference/wire.md`` specifies the bytes.
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
"""The element type of an `Array`."""


def describe_validation_error(error: ValidationError) -> str:
    """Describe the first fault: where it is and what was expected, never the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{_escape_and_cut(where, 60) or 'the body'}: {_escape_and_cut(first['msg'], 100)}"


def _escape_and_cut(text: str, max_length: int) -> str:
    """Escape and shorten text that may repeat untrusted input.

    The result has no control characters that a terminal would act on.
    """
    return ascii(text[:max_length])[1:-1][:max_length]


class Record(BaseModel):
    """Part of a message, or the state of a machine.

    Types are exact, unknown fields are errors, numbers are finite, and instances are frozen.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise LocalProtocolError(
                "MSG-007",
                f"{type(self).__name__} does not fit its declaration: "
                f"{describe_validation_error(error)}.",
                fix="Build the record from values of the declared types.",
            ) from None

    # Pydantic then calls __init__ for a record that our code makes, but not for the parts of a
    # record that it validates. If such a part does not fit, pydantic handles it (in a union it
    # tries the next type), and `codec.decode` describes the error.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed and validated like a new record."""
        # dict(self) would treat a record with a field called `keys` as a mapping.
        return type(self)(
            **{**{name: getattr(self, name) for name in type(self).model_fields}, **changes}
        )


class Array(Record):
    """A row of integers as little-endian bytes, with its element type and count.

    Examples
    --------
    >>> sent = Array.from_values(np.array([1, -2], np.int16))
    >>> sent.data.hex(), sent.expect("int16", 2).tolist()
    ('0100feff', [1, -2])
    """

    element: Element
    count: Annotated[int, Field(ge=0)]
    data: bytes

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if len(self.data) != self.count * np.dtype(self.element).itemsize:
            raise ValueError(
                f"{self.count} elements of {self.element} do not fill {len(self.data)} bytes"
            )
        return self

    @classmethod
    def from_values(cls, values: npt.NDArray[Any]) -> Self:
        """Make an array to send; values have one dimension and a type of `Element`."""
        if values.ndim != 1:
            raise LocalProtocolError(
                "MSG-007", f"An array has {values.ndim} dimensions; a message can carry one."
            )
        element = cast("Element", values.dtype.name)
        return cls(
            element=element,
            count=values.size,
            data=values.astype(values.dtype.newbyteorder("<")).tobytes(),
        )

    def expect(self, element: Element, count: int) -> npt.NDArray[Any]:
        """Return the values, read only, if they have the expected type and count.

        Any other array is the sender's error (``MSG-005``).
        """
        if (self.element, self.count) != (element, count):
            raise RemoteProtocolError(
                "MSG-005",
                f"An array has {self.count} elements of {self.element}.",
                why=f"The study calls for {count} of {element}.",
            )
        return np.frombuffer(self.data, np.dtype(element).newbyteorder("<"))


class Message(Record):
    """Base class of everything that travels.

    A concrete class sets the class variables below. A pair of type name and version never gets a
    second meaning.

    Attributes
    ----------
    type_name, version
        Type name and version in the envelope.
    spends
        Whether the message is a mechanism's output on private data. Such a message leaves only as a
        `~shoal.protocols.base.Release`, priced and stored; no other message may be one.
    report_fields
        The fields of a message that spends that the mechanism fills. All other fields follow from
        public data, earlier reports and separate random bits; `shoal.audit.replay` checks this.
    sealed_fields
        Fields that depend on random bits of the cryptographic library, so that no run can be
        replayed with the same ones: sealed boxes and signatures of them.
    is_anonymous
        Whether the aggregator must not learn the sender. The driver then replaces the sender with a
        random name, a new one for each delivery.
    max_bytes
        Maximum size of an encoded message.
    """

    type_name: ClassVar[str]
    version: ClassVar[int] = 1
    spends: ClassVar[bool] = False
    report_fields: ClassVar[tuple[str, ...]] = ()
    sealed_fields: ClassVar[tuple[str, ...]] = ()
    is_anonymous: ClassVar[bool] = False
    max_bytes: ClassVar[int] = 1 << 16

    study: Digest

    @property
    def submission(self) -> bytes | None:
        """Identifier of a message that counts once; None if it may count repeatedly.

        Examples are a round, an update's number, a pseudonym. It is unique among the messages of
        one type and sender, or of one type if the message is anonymous. The driver keeps the index:
        it passes each submission to the aggregator once, however often it arrives, and rejects
        different bytes with the same identifier.
        """
        return None


class Registry(Mapping[tuple[str, int], type[Message]]):
    """The messages of one protocol, by type name and version."""

    def __init__(self, *classes: type[Message]) -> None:
        self._classes = {(kind.type_name, kind.version): kind for kind in classes}
        if len(self._classes) != len(classes):
            raise LocalProtocolError(
                "MSG-007", "Two messages of one protocol have the same type name and version."
            )
        self.max_bytes = max(kind.max_bytes for kind in classes)

    def __getitem__(self, key: tuple[str, int]) -> type[Message]:
        return self._classes[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)
