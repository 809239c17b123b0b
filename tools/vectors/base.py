"""Fixed inputs and helpers that several groups of vectors share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cbor2

from shoal.crypto.secagg.context import (
    RoundContext,
)
from shoal.messages.base import Message
from shoal.messages.codec import encode

DIRECTORY = Path(__file__).parents[2] / "tests" / "vectors"
STUDY = bytes(range(32))
CONTEXT = RoundContext(study=STUDY, roster=bytes([1]) * 32, round=3, query=bytes([2]) * 32)


def tag_value(value: Any) -> Any:
    """Return a value as JSON without loss: integers, floats and bytes carry their kind."""
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
            return {key: tag_value(item) for key, item in value.items()}
        case _:
            return [tag_value(item) for item in value]


def describe_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return encodings and bodies of messages that must be decoded."""
    return [
        {
            "type": message.type_name,
            "hex": encode(message).hex(),
            "body": tag_value(message.model_dump(exclude={"study"})),
            "submission": None if message.submission is None else message.submission.hex(),
        }
        for message in messages
    ]


def describe_rejected(
    bodies: Mapping[str, tuple[str, Mapping[str, object], str]],
) -> list[dict[str, Any]]:
    """Return encodings that must be rejected: case -> message type, body and error code."""
    return [
        {
            "name": name,
            "hex": cbor2.dumps(
                {"type": kind, "version": 1, "study": STUDY, "body": body}, canonical=True
            ).hex(),
            "code": code,
        }
        for name, (kind, body, code) in bodies.items()
    ]
