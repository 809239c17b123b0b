"""A check for every protocol: a machine accepts garbage or blames its sender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import MAX_INT, MIN_INT, decode, dumps, encode, loads
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    Machine,
    MemoryLedger,
    Peer,
    Received,
    run_input,
)

GARBAGE: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    2,
    255,
    1 << 31,
    MAX_INT,
    MIN_INT,
    0.0,
    -0.0,
    0.5,
    1e308,
    -1e308,
    5e-324,
    "",
    "x",
    "\x1b[2J\u202e",
    "9" * 999,
    b"",
    b"\x00",
    b"\xff" * 9,
    bytes(32),
    bytes(999),
    (),
    (0,),
    ("",),
    ((),),
    (0,) * 999,
    {},
    {"": 0},
    {"element": "int8", "count": 0, "data": b""},
    {"element": "uint64", "count": 1, "data": b"\xff" * 8},
)


def variants(value: Any) -> Iterator[Any]:
    """Yield a value with each of its parts, and the whole, replaced by each piece of garbage."""
    yield from GARBAGE
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in variants(part))
    elif isinstance(value, tuple):
        yield value[:-1]
        yield (*value, *value)
        for place, part in enumerate(value):
            yield from ((*value[:place], other, *value[place + 1 :]) for other in variants(part))


def survives_garbage(
    machine: Machine[Any],
    states: Iterable[Any],
    samples: Iterable[Message],
    sender: str = AGGREGATOR,
) -> int:
    """Give a machine each sample with garbage in each field, in each state.

    Return how many messages passed the codec. Raise every error of the machine except
    `RemoteProtocolError`. Take states and samples from an honest run, early ones and late.
    """
    n_taken = 0
    for sample in samples:
        envelope = cast("dict[str, Any]", loads(encode(sample)))
        for body in variants(envelope["body"]):
            try:
                message = decode(dumps({**envelope, "body": body}), machine.messages, machine.study)
            except RemoteProtocolError:
                continue
            n_taken += 1
            for state in states:
                ledger = (
                    Account(MemoryLedger(), machine.study, "rows", AGGREGATOR, "garbage")
                    if isinstance(machine, Peer)
                    else None
                )
                try:
                    run_input(
                        machine,
                        state,
                        Received(sender, message),
                        START,
                        SeededEntropy(n_taken),
                        ledger,
                    )
                except RemoteProtocolError:
                    continue
    return n_taken
