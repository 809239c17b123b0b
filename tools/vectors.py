"""Write the test vectors of the wire specification, ``docs/reference/wire.md``: ``python -m tools.vectors``.

What must be read and what must be refused is written here by hand; only derived bytes, chances and digests are computed. So a change of
code that changes a vector shows in the diff, and the tests replay the files as another implementation would.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar

import cbor2
import numpy as np
from pydantic import Field

from shoal.crypto.context import Context, box_statement, list_digest, survivors_statement
from shoal.crypto.dealing import Secrets, deal, keys_of, shares_to_reveal
from shoal.crypto.masks import agree, expand, public_of
from shoal.crypto.secure_sum import mask
from shoal.crypto.shamir import split
from shoal.domain import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.mechanisms.calibrate import NAMES, mechanism
from shoal.messages.base import Array, Message, Registry
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import below, combination_of, part_of, thresholds, words_of
from shoal.protocols.anonml.messages import Answer, Ask, Publication
from shoal.protocols.anonml.partitions import feature_subsets
from shoal.protocols.ddml.messages import Draw, Instance, Update
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.pfds import messages as pfds_messages
from shoal.protocols.pfds.joining import digest_of as pfds_digest_of
from shoal.protocols.pfds.local import attributes_of, n_tables
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sums import Course as PfdsCourse
from shoal.protocols.sdq import messages as sdq_messages
from shoal.protocols.sdq.joining import _box_info, _box_statement, digest_of, key_statement, seated
from shoal.protocols.sdq.queries import Condition, Count, Histogram, Marginals
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums import messages as sum_messages
from shoal.protocols.sums.terms import keys_statement, masked_statement, shares_statement, unmask_statement
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import PROTOCOLS, study_text

DIRECTORY = Path(__file__).parent.parent / "tests" / "vectors"
STUDY = bytes(range(32))


class ExampleAnswer(Message):
    """The message that the vectors are about; ``wire.md`` declares it."""

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
    "keys by length, then by bytes": ("a4616101616202617a03626161 04".replace(" ", ""), {"a": 1, "b": 2, "z": 3, "aa": 4}),
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


def tagged(value: Any) -> Any:
    """A value in JSON without loss: integers, floats and bytes carry their kind."""
    match value:
        case bool() | None | str():
            return value
        case int():
            return {"int": str(value)}
        case float():
            return {"float": repr(value)}
        case bytes():
            return {"bytes": value.hex()}
        case dict():
            return {key: tagged(item) for key, item in value.items()}
        case _:
            return [tagged(item) for item in value]


def cbor() -> dict[str, Any]:
    """The profile: plain data that is read, and bytes that are refused."""
    return {
        "read": [{"name": name, "hex": code, "value": tagged(value)} for name, (code, value) in READ.items()],
        "refused": [{"name": name, "hex": code.replace(" ", ""), "code": error} for name, (code, error) in REFUSED.items()],
    }


def messages() -> dict[str, Any]:
    """The envelope: messages of an example protocol that are read, and what is refused in their place."""
    plain = ExampleAnswer(study=STUDY, round=1, share=0.5, report=b"\x01\x02")
    arrays = [
        ExampleAnswer(study=STUDY, round=1000, share=-0.1, report=b"", cells=Array.of(np.array(values, kind)))
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
    envelope: dict[str, Any] = {"type": "example.answer", "version": 1, "study": STUDY, "body": body}

    def cells(**parts: object) -> dict[str, object]:
        return {"body": {**body, "cells": {"element": "uint16", "count": 2, "data": bytes(4), **parts}}}

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
        "a body without a field": ({"body": {key: part for key, part in body.items() if key != "round"}}, "MSG-005"),
        "a body without a field that may be null": ({"body": {key: part for key, part in body.items() if key != "cells"}}, "MSG-003"),
        "one more field in the body": ({"body": {**body, "more": 1}}, "MSG-005"),
        "the digest again in the body": ({"body": {**body, "study": STUDY}}, "MSG-005"),
        "a fault in a field and an integer for a float": ({"body": {**body, "round": 0, "share": 1}}, "MSG-005"),
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
        {"name": name, "hex": cbor2.dumps({**envelope, **change}, canonical=True).hex(), "code": code}
        for name, (change, code) in bad.items()
    ]
    missing = {key: part for key, part in envelope.items() if key != "version"}
    refused += [
        {"name": "an envelope without a version", "hex": cbor2.dumps(missing, canonical=True).hex(), "code": "MSG-004"},
        {"name": "keys of the envelope out of order", "hex": cbor2.dumps(envelope).hex(), "code": "MSG-003"},
        {"name": "a second message behind the first", "hex": (encode(plain) * 2).hex(), "code": "MSG-003"},
        {"name": "the last byte missing", "hex": encode(plain)[:-1].hex(), "code": "MSG-002"},
    ]
    return {
        "study": STUDY.hex(),
        "read": [{"hex": encode(message).hex(), "body": tagged(message.model_dump(exclude={"study"}))} for message in good],
        "refused": refused,
    }


SETTINGS = [(0.5, 2), (1.0, 4), (2.0, 12), (1.0, 16), (4.0, 100), (0.1, 1024), (8.0, 3)]

REPORTS: dict[str, list[tuple[float, int, str, list[int] | None]]] = {
    "random-response": [
        (1.0, 4, "03", [3]),
        (1.0, 300, "0201", [258]),
        (1.0, 4, "04", None),
        (1.0, 4, "", None),
        (1.0, 4, "0300", None),
        (1.0, 300, "2c01", None),
        (1.0, 300, "02", None),
    ],
    "rappor": [
        (2.0, 12, "0000", []),
        (2.0, 12, "0108", [0, 11]),
        (2.0, 12, "ff0f", list(range(12))),
        (2.0, 12, "0110", None),
        (2.0, 12, "01", None),
        (2.0, 12, "010000", None),
    ],
    "pq": [(1.0, 16, "0180", [0, 15]), (1.0, 9, "0001", [8]), (1.0, 9, "0002", None), (1.0, 16, "", None)],
    "subset-selection": [(1.0, 16, "0f00", [0, 1, 2, 3]), (1.0, 16, "0700", None), (1.0, 16, "1f00", None), (1.0, 16, "0f", None)],
}


def mechanisms() -> dict[str, Any]:
    """Randomised answers: chances as integers over 2^64, the epsilon that is accounted, and wire forms of reports."""
    parameters = []
    for name in NAMES:
        for epsilon, m in SETTINGS:
            one = mechanism(name, epsilon, m)
            event = one.event()
            numbers = {key: str(part) for key, part in sorted(event.parameters.items()) if key != "cardinality"}
            chances = {"p": str(one.p), "q": str(one.q)}
            accounted = {"epsilon_accounted": repr(event.epsilon)}
            parameters.append({"mechanism": name, "epsilon": repr(epsilon), "cardinality": m, **numbers, **chances, **accounted})
    reports = [
        {
            "mechanism": name,
            "epsilon": repr(epsilon),
            "cardinality": m,
            "hex": wire,
            "supports": cells,
            "outcome": "refused" if cells is None else "read",
        }
        for name, cases in REPORTS.items()
        for epsilon, m, wire, cells in cases
    ]
    return {"denominator": str(1 << 64), "parameters": parameters, "reports": reports}


def manifests() -> dict[str, Any]:
    """The starter studies without keys, roster or relay: the manifest's bytes and its digest."""
    found = {}
    for protocol in PROTOCOLS:
        manifest = Manifest(parse(study_text(protocol)))
        found[protocol] = {"bytes": manifest.to_bytes().hex(), "digest": manifest.digest.hex(), "short": manifest.short}
    return found


TICKETS = (bytes(32), bytes([255]) * 32, *(hashlib.sha256(f"ticket {i}".encode()).digest() for i in range(6)))
WEIGHTS = [[Fraction(1)], [Fraction(1, 3)] * 3, [Fraction(6, 100), Fraction(44, 100), Fraction(1, 2)], [Fraction(1, 12)] * 12]
BOUNDS = (1, 2, 15, 1000, (1 << 32) - 1, 1 << 32)
COMBINATIONS = ((4, 2), (4, 4), (12, 4), (60, 4))
SUBSETS = ((6, 2, 2, 3), (11, 5, 2, 3), (3, 4, 1, 1))


def anonml() -> dict[str, Any]:
    """AnonML: what follows from a ticket, which features each partition is asked about, and its messages."""
    tickets = []
    for ticket in TICKETS:
        words = words_of(STUDY, ticket)
        first, second = words[:, 0], words[:, 1]
        tickets.append(
            {
                "ticket": ticket.hex(),
                "words": [str(word) for word in words[0].tolist()],
                "parts": [int(part_of(first, thresholds(weights))[0]) for weights in WEIGHTS],
                "below": [int(below(first, bound)[0]) for bound in BOUNDS],
                "combinations": [combination_of(second, n, k)[0].tolist() for n, k in COMBINATIONS],
            }
        )
    subsets = [
        {"n_features": n, "n_partitions": p, "n_subsets": h, "subset_size": s, "subsets": feature_subsets(STUDY, n, p, h, s)}
        for n, p, h, s in SUBSETS
    ]
    answer = Answer(study=STUDY, ticket=TICKETS[2], phase=12, question=300, report=b"\x01\x02")
    good = [
        Ask(study=STUDY, phase=0, publication=Publication(points=(0.5, -2.0))),
        Ask(study=STUDY, phase=12, publication=Publication(cuts=((0.0, 17.25), (-1.5,)), levels=((0, 2, 1), (1, 0)))),
        Ask(study=STUDY, phase=0, publication=Publication()),
        answer,
    ]
    body = answer.model_dump(exclude={"study"})
    shown: dict[str, object] = {"points": [], "cuts": [], "levels": []}
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a ticket of 31 bytes": ("anonml.answer", {**body, "ticket": bytes(31)}, "MSG-005"),
        "a ticket of 33 bytes": ("anonml.answer", {**body, "ticket": bytes(33)}, "MSG-005"),
        "a negative phase": ("anonml.answer", {**body, "phase": -1}, "MSG-005"),
        "a question as float": ("anonml.answer", {**body, "question": 300.0}, "MSG-005"),
        "a report as number": ("anonml.answer", {**body, "report": 1}, "MSG-005"),
        "an answer of another type": ("anonml.reply", body, "MSG-004"),
        "an integer for a point": ("anonml.ask", {"phase": 0, "publication": {**shown, "points": [1]}}, "MSG-003"),
        "a cut that is infinite": ("anonml.ask", {"phase": 0, "publication": {**shown, "cuts": [[float("inf")]]}}, "MSG-002"),
        "cuts that are no lists": ("anonml.ask", {"phase": 0, "publication": {**shown, "cuts": [1.5]}}, "MSG-005"),
        "a negative level": ("anonml.ask", {"phase": 0, "publication": {**shown, "levels": [[-1]]}}, "MSG-005"),
        "no publication": ("anonml.ask", {"phase": 0, "publication": None}, "MSG-005"),
    }
    return {
        "study": STUDY.hex(),
        "weights": [[str(weight) for weight in weights] for weights in WEIGHTS],
        "bounds": BOUNDS,
        "combinations": COMBINATIONS,
        "tickets": tickets,
        "feature_subsets": subsets,
        "read": read(good),
        "refused": refused(bad),
    }


def ddml() -> dict[str, Any]:
    """DDML: its messages."""
    weights = Array.of(np.array([0, 1, -1, 2**31 - 1, -(2**31) + 1], np.int32))
    draw = Draw(study=STUDY, id=bytes(range(16)))
    instance = Instance(study=STUDY, draw=draw.id, epoch=0, weights=weights)
    update = Update(study=STUDY, id=bytes([255]) * 16, epoch=1000, weights=weights)
    body = update.model_dump(exclude={"study"})
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a draw with an id of 15 bytes": ("ddml.draw", {"id": bytes(15)}, "MSG-005"),
        "a draw without an id": ("ddml.draw", {}, "MSG-005"),
        "a draw that names its sender": ("ddml.draw", {"id": bytes(16), "sender": "peer-1"}, "MSG-005"),
        "an instance for no draw": ("ddml.instance", {"draw": None, "epoch": 0, "weights": body["weights"]}, "MSG-005"),
        "an update with an id of 17 bytes": ("ddml.update", {**body, "id": bytes(17)}, "MSG-005"),
        "an update that names its draw": ("ddml.update", {**body, "draw": bytes(16)}, "MSG-005"),
        "a negative epoch": ("ddml.update", {**body, "epoch": -1}, "MSG-005"),
        "an epoch as float": ("ddml.update", {**body, "epoch": 1000.0}, "MSG-005"),
        "weights as floats": ("ddml.update", {**body, "weights": [0.0, 1.0]}, "MSG-005"),
        "weights that are not whole": ("ddml.update", {**body, "weights": {**body["weights"], "count": 4}}, "MSG-005"),
        "a message of another name": ("ddml.step", body, "MSG-004"),
    }
    return {"study": STUDY.hex(), "read": read([draw, instance, update]), "refused": refused(bad)}


CONTEXT = Context(study=STUDY, roster=bytes([1]) * 32, round=3, query=bytes([2]) * 32)
BOUND: list[tuple[Context, str, tuple[int | bytes, ...]]] = [
    (CONTEXT, "purpose", ()),
    (CONTEXT, "", (0, b"", 2**64 - 1)),
    (CONTEXT, "purpose", (b"\x00\x01", 258)),
    (Context(b"", b"", 0, b""), "purpose", (b"ab", b"c")),
]
SHARED_SECRETS: list[tuple[bytes, int, int]] = [(bytes(range(32)), 1, 2), (bytes([255]) * 32, 2, 3), (bytes(range(100, 132)), 4, 7)]
NO_SHARES: dict[str, tuple[int, dict[int, str]]] = {
    "a limb that is not below the prime": (1, {0: "f1ff" + "00" * 34}),
    "a share of 35 bytes": (1, {0: "00" * 35}),
    "a share of 37 bytes": (1, {0: "00" * 37}),
    "a secret with a limb of 16 bits": (1, {0: "0080" + "00" * 34}),
    "a secret of more than 256 bits": (1, {0: "00" * 34 + "0200"}),
    "shares of two polynomials": (1, {0: "00" * 36, 1: "01" + "00" * 35}),
}
MEMBERS = {member: Secrets(*(bytes([10 * member + part]) * 32 for part in (1, 2, 3))) for member in (0, 1, 3)}
SMALL_ORDER = (0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18)
# Sealed once; every sealing gives another box.
BOX = "841c179d61ea32942a5d4e13b7c981e8d4df8af9ee330adb3fd3e19a2a6e7c74b2b1b288eb716be1a23a3eade23be0054f332d1bd4f65ff87a58031360d6cc89"


def crypto() -> dict[str, Any]:
    """Secure sums: what is bound to a round, shares of secrets, keys that are agreed on, boxes, and masked numbers."""
    keys = {member: keys_of(secrets, CONTEXT, member) for member, secrets in MEMBERS.items()}
    dealing = deal(MEMBERS[0], CONTEXT, 0, keys, 2, SeededEntropy("vectors"))
    digest = list_digest(CONTEXT, keys)
    values = np.array([0, 1, -5, 2**40], np.int64)
    private, other = bytes(range(32)), bytes(range(1, 33))
    shares = [
        {"secret": secret.hex(), "threshold": t, "shares": [one.hex() for one in split(secret, t, n, SeededEntropy("vectors"))]}
        for secret, t, n in SHARED_SECRETS
    ]
    return {
        "context": tagged(asdict(CONTEXT)),
        "bound": [
            {
                "context": tagged(asdict(about)),
                "purpose": purpose,
                "parts": tagged(parts),
                "hex": about.bind(purpose, *parts).hex(),
            }
            for about, purpose, parts in BOUND
        ],
        "shares": shares,
        "no_shares": [{"name": name, "threshold": t, "shares": by, "code": "CRYPTO-001"} for name, (t, by) in NO_SHARES.items()],
        "agreed": {
            "private": private.hex(),
            "public": public_of(other).hex(),
            "info": b"why".hex(),
            "key": agree(private, public_of(other), b"why").hex(),
        },
        "no_keys": [u.to_bytes(32, "little").hex() for u in SMALL_ORDER],
        "streams": [{"key": key.hex(), "numbers": [str(word) for word in expand(key, 5).tolist()]} for key in (bytes(32), private)],
        "box": {"private": private.hex(), "info": b"purpose".hex(), "hex": BOX, "plain": b"a pair of shares".hex()},
        "members": {
            str(member): {
                "secrets": [part.hex() for part in secrets],
                "keys": [part.hex() for part in keys[member]],
                "masked": [str(word) for word in mask(values, secrets, CONTEXT, member, keys).tolist()],
            }
            for member, secrets in MEMBERS.items()
        },
        "values": values.tolist(),
        "list_digest": digest.hex(),
        "statements": {
            "box": box_statement(CONTEXT, 0, 3, digest, b"box", dealing.commitments[3]).hex(),
            "survivors": survivors_statement(CONTEXT, (3, 0), (0, 1, 3)).hex(),
        },
        "kept": {
            "dealer": 0,
            "holder": 0,
            "plain": dealing.kept.hex(),
            "commitment": dealing.commitments[0].hex(),
            "own": shares_to_reveal(dealing.kept, "own").hex(),
            "mask": shares_to_reveal(dealing.kept, "mask").hex(),
        },
    }


def sdq() -> dict[str, Any]:
    """SDQ: its messages with those of secure sums and joint computations, the digest of what is asked, and what is signed."""
    key, digest, signature, row = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 64, bytes([4]) * 120
    box = sdq_messages.SealedBox(member=4, box=row, signature=signature)
    party = sdq_messages.PartyKey(party=2, box=key, signature=signature)
    course = Course(step=3, choices=(1, -1, 0), leaves=(True, False))
    condition = Condition(feature="age", cells=(0, 2))
    asks = [
        sdq_messages.Ask(study=STUDY, round=0, course=Course()),
        sdq_messages.Ask(study=STUDY, round=5, course=course),
        sdq_messages.Ask(study=STUDY, round=6, course=Course(), query=Count(where=(condition,)), number=1),
        sdq_messages.Ask(study=STUDY, round=7, course=Course(), query=Histogram(features=("age", "ill")), number=2),
        sdq_messages.Ask(study=STUDY, round=8, course=Course(), query=Marginals(features=("age",)), number=3),
    ]
    about: dict[str, Any] = {"study": STUDY, "round": 3}
    signed = {**about, "signature": signature}
    good = [
        *asks,
        sdq_messages.Counts(**about, counts=Array.of(np.array([-3, 1 << 40], np.int64))),
        sdq_messages.JointKey(**signed, box=key),
        sdq_messages.JointKeys(**about, keys=(party,)),
        sdq_messages.Scores(**about, boxes=(box,)),
        sdq_messages.Contributions(**about, boxes=(box,)),
        sdq_messages.Settled(**about, position=2),
        sdq_messages.Unusable(**about, dealer=4),
        sdq_messages.BrokenOff(**about),
        sdq_messages.BrokenOff(**about, party=4),
        sdq_messages.Ended(study=STUDY),
        sdq_messages.Ended(study=STUDY, reason="Round 3 is given up."),
        JointFrame(**about, sender=0, to=2, number=300, sealed=b"sealed"),
        sum_messages.SumKeys(**signed, query=digest, mask=key, box=key, commitment=digest),
        sum_messages.SumKeyList(**about, members=(0, 3), entries=bytes(192)),
        sum_messages.SumShares(**signed, boxes=row, commitments=digest * 2, signatures=signature),
        sum_messages.SumBoxes(**about, dealers=(3,), boxes=row, commitments=digest, signatures=signature),
        sum_messages.SumMasked(**signed, vector=Array.of(np.array([0, (1 << 64) - 1], np.uint64))),
        sum_messages.SumSurvivors(**about, survivors=(0, 3)),
        sum_messages.SumAgreed(**signed),
        sum_messages.SumAgreement(**about, survivors=(0, 3), signers=(0, 3), signatures=signature * 2),
        sum_messages.SumUnmask(**signed, shares=bytes(136)),
    ]
    ask = asks[0].model_dump(exclude={"study"})
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a negative round": ("sdq.ask", {**ask, "round": -1}, "MSG-005"),
        "a course without its leaves": ("sdq.ask", {**ask, "course": {"step": 0, "choices": []}}, "MSG-003"),
        "a query of an unknown kind": ("sdq.ask", {**ask, "query": {"kind": "mean", "features": ["age"]}}, "MSG-005"),
        "a query without its kind": ("sdq.ask", {**ask, "query": {"features": ["age"]}}, "MSG-005"),
        "a key of 31 bytes": ("sdq.joint-key", {"round": 0, "box": bytes(31), "signature": signature}, "MSG-005"),
        "a signature of 63 bytes": ("sum.agreed", {"round": 0, "signature": bytes(63)}, "MSG-005"),
        "members that do not rise": ("sum.survivors", {"round": 0, "survivors": [3, 0]}, "MSG-005"),
        "a member twice": ("sum.survivors", {"round": 0, "survivors": [3, 3]}, "MSG-005"),
        "a box beyond 32,768 bytes": (
            "sdq.scores",
            {"round": 0, "boxes": [{"member": 0, "box": bytes(32769), "signature": signature}]},
            "MSG-005",
        ),
        "a reason of 501 characters": ("sdq.ended", {"reason": "x" * 501}, "MSG-005"),
        "a frame to a negative party": ("joint.frame", {"round": 0, "sender": 0, "to": -1, "number": 0, "sealed": b""}, "MSG-005"),
        "a message of another name": ("sdq.answer", ask, "MSG-004"),
    }
    keys = keys_of(MEMBERS[0], CONTEXT, 0)
    committee = [party.replace(party=0, box=digest), party, party.replace(party=3, box=bytes([5]) * 32)]
    return {
        "study": STUDY.hex(),
        "read": read(good),
        "refused": refused(bad),
        "queries": [{"hex": encode(one).hex(), "digest": digest_of(one).hex()} for one in asks],
        "context": tagged(asdict(CONTEXT)),
        "committee": {"keys": [tagged(one.model_dump()) for one in committee], "query": seated(CONTEXT, committee).query.hex()},
        "statements": {
            "sum.keys": keys_statement(CONTEXT, 0, keys).hex(),
            "sum.shares": shares_statement(CONTEXT, 0, digest, b"boxes", b"commitments", b"signatures").hex(),
            "sum.masked": masked_statement(CONTEXT, 0, digest, (0, 1, 3), b"vector").hex(),
            "sum.unmask": unmask_statement(CONTEXT, 0, b"shares").hex(),
            "sdq.joint-key": key_statement(CONTEXT, 2, key).hex(),
            "sdq.scores": _box_statement(seated(CONTEXT, committee), 4, 2, key, b"box").hex(),
            "sealed scores": _box_info(seated(CONTEXT, committee), 4, 2).hex(),
        },
    }


TABLES = ((7, 3, 400), (5, 12, 24_000), (3, 2, 10))
"""Attributes, holders and rows of studies in which each holder answers some tables."""


def pfds() -> dict[str, Any]:
    """PFDS: its messages, the digest of what is asked, and who answers which tables."""
    counts = Array.of(np.array([-3, 1 << 40], np.int64))
    floats = pfds_messages.floats_in(np.array([0.5, -1e-300]))
    course = PfdsCourse(step=0, weights=counts, intercept=0, direction=counts, reaches=(1 << 20, 1 << 20))
    asks = [
        pfds_messages.Ask(study=STUDY, round=0, course=course),
        pfds_messages.Ask(study=STUDY, round=3, course=course.replace(step=3, intercept=-(1 << 39), reaches=(1 << 16, 1 << 30))),
    ]
    splits = pfds_messages.Splits(study=STUDY, level=1, attributes=Array.of(np.array([0, 2], np.int16)), values=floats)
    labels = pfds_messages.LeafLabels(study=STUDY, labels=Array.of(np.array([0, 1, 1], np.uint8)))
    data = pfds_messages.Data(
        study=STUDY, n_rows=2, columns=(floats, Array.of(np.array([0, -1], np.int16))), labels=Array.of(np.array([1, 0], np.int16))
    )
    left = pfds_messages.Left(holder="south", reason="nothing usable came from it in time")
    good = [
        *asks,
        pfds_messages.Tables(study=STUDY, counts=counts),
        pfds_messages.SharedModel(study=STUDY, weights=floats, intercepts=floats, variances=floats, shares=floats),
        splits,
        pfds_messages.Leaves(study=STUDY, counts=Array.of(np.array([-3, 1 << 20], np.int32))),
        pfds_messages.LevelCounts(study=STUDY, level=2, counts=counts),
        data,
        *(pfds_messages.PassedOn(study=STUDY, holder="north", shared=shared) for shared in (splits, labels, data)),
        pfds_messages.Label(study=STUDY, holders=("north", "south")),
        pfds_messages.Ended(study=STUDY, holders=("north",), left_out=(left,)),
        pfds_messages.Ended(study=STUDY, reason="Round 3 of a secure sum is given up."),
    ]
    ask, passed = asks[0].model_dump(exclude={"study"}), splits.model_dump()
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a negative round": ("pfds.ask", {**ask, "round": -1}, "MSG-005"),
        "a course without its direction": (
            "pfds.ask",
            {**ask, "course": {key: part for key, part in ask["course"].items() if key != "direction"}},
            "MSG-005",
        ),
        "a course with three reaches": ("pfds.ask", {**ask, "course": {**ask["course"], "reaches": [1, 2, 3]}}, "MSG-005"),
        "an intercept as float": ("pfds.ask", {**ask, "course": {**ask["course"], "intercept": 0.5}}, "MSG-005"),
        "tables as numbers": ("pfds.tables", {"counts": [1, 2]}, "MSG-005"),
        "weights as floats": ("pfds.model", {"weights": [0.5], "intercepts": [], "variances": [], "shares": []}, "MSG-005"),
        "labels of leaves that are not passed on": ("pfds.leaf-labels", labels.model_dump(exclude={"study"}), "MSG-004"),
        "something passed on of another study": (
            "pfds.passed-on",
            {"holder": "north", "shared": {**passed, "study": bytes(32)}},
            "MSG-005",
        ),
        "something passed on of nobody": ("pfds.passed-on", {"holder": "", "shared": passed}, "MSG-005"),
        "a name of 201 characters": ("pfds.label", {"holders": ["x" * 201]}, "MSG-005"),
        "a reason of 501 characters": ("pfds.ended", {"holders": [], "left_out": [], "reason": "x" * 501}, "MSG-005"),
        "a message of another name": ("pfds.answer", ask, "MSG-004"),
    }
    tables = []
    for n_attributes, n_holders, size in TABLES:
        schema = Schema([Categorical(f"a{i}", ["0", "1"]) for i in range(n_attributes)], Categorical("y", ["0", "1"]))
        params = Params(schema, 1.0, size, n_holders=n_holders, minimum=n_holders)
        tables.append(
            {
                "n_attributes": n_attributes,
                "n_holders": n_holders,
                "size": size,
                "epsilon": repr(params.epsilon),
                "n_tables": n_tables(params),
                "attributes": [attributes_of(params, STUDY, holder) for holder in range(n_holders)],
            }
        )
    return {
        "study": STUDY.hex(),
        "read": read(good),
        "refused": refused(bad),
        "queries": [{"hex": encode(one).hex(), "digest": pfds_digest_of(one).hex()} for one in asks],
        "tables": tables,
    }


def read(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages of a protocol that must be read."""
    return [
        {
            "type": message.type_name,
            "hex": encode(message).hex(),
            "body": tagged(message.model_dump(exclude={"study"})),
            "submission": None if message.submission is None else message.submission.hex(),
        }
        for message in messages
    ]


def refused(bodies: Mapping[str, tuple[str, Mapping[str, object], str]]) -> list[dict[str, Any]]:
    """What must be refused: name of the case -> type, body and code of the error."""
    return [
        {
            "name": name,
            "hex": cbor2.dumps({"type": kind, "version": 1, "study": STUDY, "body": body}, canonical=True).hex(),
            "code": code,
        }
        for name, (kind, body, code) in bodies.items()
    ]


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "cbor.json": cbor,
    "messages.json": messages,
    "mechanisms.json": mechanisms,
    "manifests.json": manifests,
    "anonml.json": anonml,
    "ddml.json": ddml,
    "crypto.json": crypto,
    "sdq.json": sdq,
    "pfds.json": pfds,
}


def text(name: str) -> str:
    """A file's content as it should be."""
    make = FILES[name]
    about = {"about": make.__doc__, "specification": "docs/reference/wire.md", "written_by": "python -m tools.vectors"}
    return json.dumps({**about, **make()}, indent=1) + "\n"


if __name__ == "__main__":
    for file in FILES:
        (DIRECTORY / file).write_text(text(file))
        print(f"wrote {file}", file=sys.stderr)
