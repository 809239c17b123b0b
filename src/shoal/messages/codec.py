"""Deterministic CBOR; limits on untrusted input.

`dumps` and `loads` turn plain data (null, truth values, integers, finite floats, text, bytes,
arrays, maps with text keys) into bytes and back. `encode` and `decode` do so for messages, in an
envelope of type, version, study and body; drivers call them. `dump` and `load` do so for the state
of a machine, which is stored locally.

Every value has exactly one encoding, and the decoder accepts no other. For any bytes, `loads` and
`decode` return or raise `RemoteProtocolError`. The profile is in ``docs/reference/wire.md``.

`check_value_count` limits the number of values before decoding. One byte of CBOR can be an empty
map, which takes a hundred bytes of memory and some microseconds to read. Counting takes no memory
and stops at the limit. No honest message has very many values: long arrays of numbers travel as
bytes.
"""

from __future__ import annotations

import io
import json
import math
from typing import NoReturn, TypeAlias, TypeVar, cast

import cbor2
from pydantic import ValidationError

from shoal.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import DIGEST_BYTES, Message, Record, Registry, describe_validation_error
from shoal.privacy.private import Private

R = TypeVar("R", bound=Record)
Plain: TypeAlias = "bool | int | float | str | bytes | tuple[Plain, ...] | dict[str, Plain] | None"

MAX_BYTES = 1 << 24
MAX_DEPTH = 16
MIN_INT, MAX_INT = -(1 << 63), (1 << 63) - 1

_ENVELOPE: dict[str, type] = {"type": str, "version": int, "study": bytes, "body": dict}


class _NotPlainError(ValueError):
    """A value that the profile does not allow; the text names it."""


class _NoTags(dict[int, NoReturn]):
    """A table of tag decoders in which every lookup is an error.

    cbor2 looks a tag up before it reads the tagged value.
    """

    def __missing__(self, tag: int) -> NoReturn:
        raise cbor2.CBORDecodeError(f"tag {tag} is not allowed")


def dumps(value: object) -> bytes:
    """Encode plain data.

    Examples
    --------
    >>> dumps({"b": (1, 2.5), "a": b"x"}).hex()
    'a26161417861628201f94100'
    """
    try:
        return cbor2.dumps(_to_plain(value, 1), canonical=True)
    except _NotPlainError as error:
        raise LocalProtocolError(
            "MSG-007",
            f"This cannot be encoded: {error}.",
            fix="Give numbers, text, bytes, arrays and maps.",
        ) from None


def loads(data: bytes, max_bytes: int = MAX_BYTES) -> Plain:
    """Decode plain data and reject any but its deterministic encoding; arrays become tuples."""
    if len(data) > max_bytes:
        raise RemoteProtocolError(
            "MSG-001",
            f"A message of {len(data)} bytes is too large.",
            why=f"The limit is {max_bytes} bytes.",
        )
    try:
        value = cbor2.CBORDecoder(
            io.BytesIO(data),
            semantic_decoders=_NoTags(),
            max_depth=MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode()
        plain = _to_plain(value, 1)
    except Exception as error:
        # The bytes are untrusted: any exception of the decoder is the sender's fault.
        raise RemoteProtocolError(
            "MSG-002",
            f"{len(data)} bytes are not CBOR of this profile: {ascii(str(error))[1:-1]:.100}.",
        ) from None
    again = cbor2.dumps(plain, canonical=True)
    if again != data:
        how = (
            f"is followed by {len(data) - len(again)} more bytes"
            if data.startswith(again)
            else "is not in its one deterministic encoding"
        )
        raise RemoteProtocolError("MSG-003", f"A message of {len(data)} bytes {how}.")
    return plain


def encode(message: Message) -> bytes:
    """Encode a message."""
    # Pydantic would warn about a field that skipped validation and repeat its value; `dumps`
    # rejects the field without repeating it.
    body = message.model_dump(exclude={"study"}, warnings=False)
    envelope = {
        "type": message.type_name,
        "version": message.version,
        "study": message.study,
        "body": body,
    }
    data = dumps(envelope)
    if len(data) > message.max_bytes:
        why = f"A {message.type_name} has at most {message.max_bytes} bytes."
        raise LocalProtocolError(
            "MSG-001", f"A message of {len(data)} bytes is too large.", why=why
        )
    return data


def decode(data: bytes, registry: Registry, study: bytes) -> Message:
    """Decode a message and check that it belongs to this protocol and this study."""
    envelope = loads(data, registry.max_bytes)
    if (
        not isinstance(envelope, dict)
        or {key: type(part) for key, part in envelope.items()} != _ENVELOPE
    ):
        raise RemoteProtocolError(
            "MSG-004", "A message's envelope is not a map of type, version, study and body."
        )
    name, version = cast("str", envelope["type"]), cast("int", envelope["version"])
    digest, body = cast("bytes", envelope["study"]), cast("dict[str, Plain]", envelope["body"])
    kind = registry.get((name, version))
    if kind is None:
        raise RemoteProtocolError(
            "MSG-004",
            f"A message is of type {name!a:.60}, version {version}, which this protocol does not "
            "have.",
        )
    if len(digest) != DIGEST_BYTES:
        raise RemoteProtocolError(
            "MSG-004",
            f"A message's study digest has {len(digest)} bytes instead of {DIGEST_BYTES}.",
        )
    if digest != study:
        what = f"A message belongs to study {digest.hex()[:12]}; this is study {study.hex()[:12]}."
        raise RemoteProtocolError(
            "MSG-006", what, fix="Compare the manifests: all parties must have the same one."
        )
    if "study" in body:
        raise RemoteProtocolError("MSG-005", f"A {name} repeats the study digest in its body.")
    try:
        message = kind.model_validate({**body, "study": digest})
        again = encode(message)
    except ValidationError as error:
        raise RemoteProtocolError(
            "MSG-005",
            f"{kind.__name__} does not fit its declaration: {describe_validation_error(error)}.",
        ) from None
    except LocalProtocolError as error:
        raise RemoteProtocolError(error.code, error.what) from None
    if again != data:
        # For example an integer in place of a float, or a missing default.
        raise RemoteProtocolError(
            "MSG-003", f"A {name} of {len(data)} bytes is not in its one deterministic encoding."
        )
    return message


def dump(record: Record) -> bytes:
    """Encode a record, such as the state of a machine, for local storage."""
    return dumps(record.model_dump(warnings=False))


def load(data: bytes, kind: type[R]) -> R:
    """Decode a record that `dump` encoded.

    A missing field gets its default, so that a stored state can be read after an upgrade.
    """
    try:
        return kind.model_validate(loads(data, max_bytes=len(data)))
    except (RemoteProtocolError, ValidationError) as error:
        fault = (
            describe_validation_error(error) if isinstance(error, ValidationError) else error.what
        )
        raise IntegrityError(
            "MSG-008", f"{len(data)} saved bytes are not a {kind.__name__}: {fault}"
        ) from None


def to_json(message: Message) -> str:
    """Format a message for people: bytes as hexadecimal digits, control characters escaped."""
    return json.dumps(loads(encode(message)), indent=2, default=bytes.hex)


def _to_plain(value: object, depth: int) -> Plain:
    """Return the value with tuples for arrays if the profile allows it.

    Subclasses are rejected: they might carry more than their base type.
    """
    kind = type(value)
    if isinstance(value, Private):
        raise value.leak_error("encoded")
    if kind is int and not MIN_INT <= cast("int", value) <= MAX_INT:
        raise _NotPlainError("an integer beyond 64 bits")
    if kind is float and not math.isfinite(cast("float", value)):
        raise _NotPlainError("a number that is not finite")
    if kind is str and not _is_unicode(cast("str", value)):
        raise _NotPlainError("text that is not Unicode")
    if value is None or kind in (bool, int, float, str, bytes):
        return cast("Plain", value)
    if kind not in (list, tuple, dict):
        raise _NotPlainError(f"a {kind.__name__}")
    if depth > MAX_DEPTH:
        raise _NotPlainError(f"more than {MAX_DEPTH} levels")
    if kind is not dict:
        return tuple(_to_plain(item, depth + 1) for item in cast("list[object]", value))
    items = cast("dict[object, object]", value)
    if not all(type(key) is str and _is_unicode(key) for key in items):
        raise _NotPlainError("a key that is not text")
    return {cast("str", key): _to_plain(item, depth + 1) for key, item in items.items()}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_HAS_LENGTH_BYTES, _INDEFINITE_LENGTH = 24, 28
_MAJOR_BYTES, _MAJOR_TEXT = 2, 3


def check_value_count(data: bytes, max_values: int) -> None:
    """Reject a message of more values than the limit, arrays and maps included: ``MSG-001``.

    Notes
    -----
    Heads are counted in the order in which the decoder reads them. Malformed input ends the count,
    because it also ends the decoder.

    Examples
    --------
    >>> check_value_count(bytes.fromhex("a161618101"), max_values=4)
    >>> check_value_count(bytes.fromhex("a161618101"), max_values=3)
    Traceback (most recent call last):
    shoal.errors.RemoteProtocolError: MSG-001  A message of 5 bytes has more than 3 values.
    """
    at = n = 0
    while at < len(data):
        n += 1
        if n > max_values:
            raise RemoteProtocolError(
                "MSG-001", f"A message of {len(data)} bytes has more than {max_values:,} values."
            )
        kind, length = data[at] >> 5, data[at] & 31
        at += 1
        if length >= _INDEFINITE_LENGTH:
            return
        if length >= _HAS_LENGTH_BYTES:
            n_bytes = 1 << (length - _HAS_LENGTH_BYTES)
            length = int.from_bytes(data[at : at + n_bytes], "big")
            at += n_bytes
        if kind in (_MAJOR_BYTES, _MAJOR_TEXT):
            at += length
