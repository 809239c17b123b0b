"""Vectors of the encoding: the CBOR profile and the message envelope."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import cbor2
import numpy as np
from pydantic import Field

from shoal.messages.base import Array, Message, Registry
from shoal.messages.codec import encode
from tools.vectors.base import STUDY, tag_value


class ExampleAnswer(Message):
    """Message of the example protocol that ``wire.md`` declares."""

    type_name: ClassVar[str] = "example.answer"
    max_bytes: ClassVar[int] = 512
    round: Annotated[int, Field(ge=1, le=1000)]
    share: float
    report: Annotated[bytes, Field(max_length=64)]
    cells: Array | None = None


REGISTRY = Registry(ExampleAnswer)

READ: dict[str, tuple[str, object]] = {
    "null": ("f6", None),
    "false": ("f4", False),
    "true": ("f5", True),
    "zero": ("00", 0),
    "23, the last integer in one byte": ("17", 23),
    "24": ("1818", 24),
    "255": ("18ff", 255),
    "256": ("190100", 256),
    "65536": ("1a00010000", 65536),
    "2^32": ("1b0000000100000000", 1 << 32),
    "2^63 - 1, the largest integer": ("1b7fffffffffffffff", (1 << 63) - 1),
    "-1": ("20", -1),
    "-24": ("37", -24),
    "-25": ("3818", -25),
    "-2^63, the smallest integer": ("3b7fffffffffffffff", -(1 << 63)),
    "0.0 in half precision": ("f90000", 0.0),
    "-0.0": ("f98000", -0.0),
    "1.5 in half precision": ("f93e00", 1.5),
    "65504.0, the largest half": ("f97bff", 65504.0),
    "the smallest subnormal half": ("f90001", 5.960464477539063e-08),
    "100000.0 in single precision": ("fa47c35000", 100000.0),
    "0.1 in double precision": ("fb3fb999999999999a", 0.1),
    "empty text": ("60", ""),
    "text in UTF-8": ("63e6b0b4", "\u6c34"),
    "text beyond the basic plane": ("64f0908591", "\U00010151"),
    "empty bytes": ("40", b""),
    "24 bytes": ("5818" + "00" * 24, bytes(24)),
    "empty array": ("80", ()),
    "array": ("83010203", (1, 2, 3)),
    "empty map": ("a0", {}),
    "keys by length, then by bytes": (
        "a4616101616202617a03626161 04".replace(" ", ""),
        {"a": 1, "b": 2, "z": 3, "aa": 4},
    ),
    "16 levels": ("81" * 16 + "00", ((((((((((((((((0,),),),),),),),),),),),),),),),)),
}

REFUSED: dict[str, tuple[str, str]] = {
    "nothing": ("", "MSG-002"),
    "cut short in a head": ("19 01", "MSG-002"),
    "cut short in text": ("62 61", "MSG-002"),
    "cut short in an array": ("82 01", "MSG-002"),
    "cut short in a map": ("a1 6161", "MSG-002"),
    "an array of 2^63 - 1 items that are not there": ("9b7fffffffffffffff", "MSG-002"),
    "bytes of 2^63 - 1 that are not there": ("5b7fffffffffffffff", "MSG-002"),
    "reserved additional information": ("1c", "MSG-002"),
    "break outside of anything": ("ff", "MSG-002"),
    "indefinite array": ("9f 01 ff", "MSG-002"),
    "indefinite map": ("bf 6161 01 ff", "MSG-002"),
    "indefinite text": ("7f 6161 ff", "MSG-002"),
    "indefinite bytes": ("5f 4101 ff", "MSG-002"),
    "a key twice": ("a2 6161 01 6161 02", "MSG-002"),
    "an integer as key": ("a1 01 01", "MSG-002"),
    "bytes as key": ("a1 4161 01", "MSG-002"),
    "tag 0, a date": ("c0 74323033302d30312d30315430303a30303a30305a", "MSG-002"),
    "tag 2, a big integer": ("c2 49010000000000000000", "MSG-002"),
    "tag 2 around a small integer": ("c2 4101", "MSG-002"),
    "tag 4, a decimal fraction": ("c4 82 21 19 6ab3", "MSG-002"),
    "tag 28, a shareable value": ("d81c 80", "MSG-002"),
    "tag 35, a regular expression": ("d823 61 2e", "MSG-002"),
    "tag 258, a set": ("d90102 80", "MSG-002"),
    "tag 55799, self-described": ("d9d9f7 00", "MSG-002"),
    "a tag inside a map": ("a1 6161 c1 00", "MSG-002"),
    "undefined": ("f7", "MSG-002"),
    "simple value 0": ("e0", "MSG-002"),
    "simple value 255": ("f8ff", "MSG-002"),
    "false in two bytes": ("f814", "MSG-002"),
    "not a number": ("f97e00", "MSG-002"),
    "infinity": ("f97c00", "MSG-002"),
    "minus infinity in double precision": ("fbfff0000000000000", "MSG-002"),
    "2^63, beyond 64 bits with a sign": ("1b8000000000000000", "MSG-002"),
    "-2^63 - 1": ("3b8000000000000000", "MSG-002"),
    "text that is not UTF-8": ("61ff", "MSG-002"),
    "text with a surrogate": ("63eda080", "MSG-002"),
    "17 levels": ("81" * 17 + "00", "MSG-002"),
    "zero in two bytes": ("1800", "MSG-003"),
    "23 in two bytes": ("1817", "MSG-003"),
    "255 in three bytes": ("1900ff", "MSG-003"),
    "a length in two bytes that fits in one": ("5803 010203", "MSG-003"),
    "an array's length in two bytes": ("9801 01", "MSG-003"),
    "1.5 in single precision": ("fa3fc00000", "MSG-003"),
    "1.5 in double precision": ("fb3ff8000000000000", "MSG-003"),
    "keys out of order": ("a2 6162 02 6161 01", "MSG-003"),
    "a longer key first": ("a2 626161 01 617a 02", "MSG-003"),
    "one more byte at the end": ("00 00", "MSG-003"),
    "a second item at the end": ("a0 a0", "MSG-003"),
}


def make_cbor() -> dict[str, Any]:
    """Return plain data that must be decoded, and bytes that must be rejected."""
    return {
        "read": [
            {"name": name, "hex": code, "value": tag_value(value)}
            for name, (code, value) in READ.items()
        ],
        "refused": [
            {"name": name, "hex": code.replace(" ", ""), "code": error}
            for name, (code, error) in REFUSED.items()
        ],
    }


def make_messages() -> dict[str, Any]:
    """Return messages of an example protocol, and bytes that must be rejected."""
    plain = ExampleAnswer(study=STUDY, round=1, share=0.5, report=b"\x01\x02")
    arrays = [
        ExampleAnswer(
            study=STUDY,
            round=1000,
            share=-0.1,
            report=b"",
            cells=Array.from_values(np.array(values, kind)),
        )
        for kind, values in (
            ("uint8", [0, 255]),
            ("int16", [-32768, 1]),
            ("uint32", [1 << 31]),
            ("int64", [-1, (1 << 63) - 1]),
            ("int8", []),
        )
    ]
    good = [plain, *arrays]
    body = {"round": 1, "share": 0.5, "report": b"\x01\x02", "cells": None}
    envelope: dict[str, Any] = {
        "type": "example.answer",
        "version": 1,
        "study": STUDY,
        "body": body,
    }

    def cells(**parts: object) -> dict[str, object]:
        return {
            "body": {**body, "cells": {"element": "uint16", "count": 2, "data": bytes(4), **parts}}
        }

    bad: dict[str, tuple[dict[str, object], str]] = {
        "an unknown type": ({"type": "example.other"}, "MSG-004"),
        "a version that does not exist": ({"version": 2}, "MSG-004"),
        "true as version": ({"version": True}, "MSG-004"),
        "version as text": ({"version": "1"}, "MSG-004"),
        "version as float": ({"version": 1.0}, "MSG-004"),
        "a digest of 31 bytes": ({"study": STUDY[:31]}, "MSG-004"),
        "a digest of 33 bytes": ({"study": STUDY + b"\0"}, "MSG-004"),
        "a digest as text": ({"study": STUDY.hex()}, "MSG-004"),
        "another study": ({"study": bytes(32)}, "MSG-006"),
        "one more key in the envelope": ({"to": "all"}, "MSG-004"),
        "a body that is an array": ({"body": [1, 0.5, b"", None]}, "MSG-004"),
        "a body without a field": (
            {"body": {key: part for key, part in body.items() if key != "round"}},
            "MSG-005",
        ),
        "a body without a field that may be null": (
            {"body": {key: part for key, part in body.items() if key != "cells"}},
            "MSG-003",
        ),
        "one more field in the body": ({"body": {**body, "more": 1}}, "MSG-005"),
        "the digest again in the body": ({"body": {**body, "study": STUDY}}, "MSG-005"),
        "a fault in a field and an integer for a float": (
            {"body": {**body, "round": 0, "share": 1}},
            "MSG-005",
        ),
        "true for an integer": ({"body": {**body, "round": True}}, "MSG-005"),
        "a float for an integer": ({"body": {**body, "round": 1.0}}, "MSG-005"),
        "text for an integer": ({"body": {**body, "round": "1"}}, "MSG-005"),
        "an integer for a float": ({"body": {**body, "share": 1}}, "MSG-003"),
        "not a number": ({"body": {**body, "share": float("nan")}}, "MSG-002"),
        "text for bytes": ({"body": {**body, "report": "01"}}, "MSG-005"),
        "an array of numbers for bytes": ({"body": {**body, "report": [1, 2]}}, "MSG-005"),
        "an integer below its range": ({"body": {**body, "round": 0}}, "MSG-005"),
        "an integer above its range": ({"body": {**body, "round": 1001}}, "MSG-005"),
        "bytes longer than allowed": ({"body": {**body, "report": bytes(65)}}, "MSG-005"),
        "an array with a byte too few": (cells(data=bytes(3)), "MSG-005"),
        "an array with a byte too many": (cells(data=bytes(5)), "MSG-005"),
        "an array with another count": (cells(count=1), "MSG-005"),
        "an array with a negative count": (cells(count=-2), "MSG-005"),
        "an array of an unknown element": (cells(element="float32", count=1), "MSG-005"),
        "an array in capitals": (cells(element="UINT16"), "MSG-005"),
        "a message beyond its size": ({"body": {**body, "report": bytes(480)}}, "MSG-001"),
    }
    refused = [
        {
            "name": name,
            "hex": cbor2.dumps({**envelope, **change}, canonical=True).hex(),
            "code": code,
        }
        for name, (change, code) in bad.items()
    ]
    missing = {key: part for key, part in envelope.items() if key != "version"}
    refused += [
        {
            "name": "an envelope without a version",
            "hex": cbor2.dumps(missing, canonical=True).hex(),
            "code": "MSG-004",
        },
        {
            "name": "keys of the envelope out of order",
            "hex": cbor2.dumps(envelope).hex(),
            "code": "MSG-003",
        },
        {
            "name": "a second message behind the first",
            "hex": (encode(plain) * 2).hex(),
            "code": "MSG-003",
        },
        {"name": "the last byte missing", "hex": encode(plain)[:-1].hex(), "code": "MSG-002"},
    ]
    return {
        "study": STUDY.hex(),
        "read": [
            {"hex": encode(message).hex(), "body": tag_value(message.model_dump(exclude={"study"}))}
            for message in good
        ],
        "refused": refused,
    }
