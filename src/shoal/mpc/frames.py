"""Frames between a process and the child that computes for it: a length, a kind, a party, and bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

MAX_BYTES = 1 << 22
"""Most bytes of one frame: far more than any program sends at once."""

_HEAD = struct.Struct("<IBH")


class Kind(IntEnum):
    """What a frame says, and to whom."""

    BEGIN = 1  # to the child: the program, its inputs and who takes part; the party is the child's own
    FEED = 2  # to the child: what a party has sent
    EMIT = 3  # from the child: something for a party
    WAITING = 4  # from the child: it cannot go on before it is fed; how many frames it has taken so far
    DONE = 5  # from the child: the result
    REFUSED = 6  # from the child: what a party sent cannot be used
    FAILED = 7  # from the child: the kind of error that ended it, without its text


def frame(kind: Kind, party: int, payload: bytes) -> bytes:
    """The bytes of a frame."""
    return _HEAD.pack(len(payload), kind, party) + payload


@dataclass
class Frames:
    """A stream of bytes, cut into frames as they become whole."""

    held: bytearray = field(default_factory=bytearray)

    def cut(self, more: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """The frames that are whole now. A frame that is too large, or of no kind, is a `ValueError`."""
        self.held += more
        while len(self.held) >= _HEAD.size:
            size, kind, party = _HEAD.unpack_from(self.held)
            if size > MAX_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if len(self.held) < _HEAD.size + size:
                return
            payload = bytes(self.held[_HEAD.size : _HEAD.size + size])
            del self.held[: _HEAD.size + size]
            yield Kind(kind), party, payload


@dataclass(frozen=True)
class Task:
    """What a child is to do."""

    program: str
    me: int
    n_parties: int
    inputs: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """The first frame."""
        numbers = b"".join(number.to_bytes(16, "little") for number in self.inputs)
        return frame(Kind.BEGIN, self.me, struct.pack("<HB", self.n_parties, len(self.program)) + self.program.encode() + numbers)

    @classmethod
    def of(cls, me: int, payload: bytes) -> Task:
        """What the first frame says."""
        n_parties, length = struct.unpack_from("<HB", payload)
        numbers = payload[3 + length :]
        inputs = tuple(int.from_bytes(numbers[start : start + 16], "little") for start in range(0, len(numbers), 16))
        return cls(payload[3 : 3 + length].decode(), me, n_parties, inputs)
