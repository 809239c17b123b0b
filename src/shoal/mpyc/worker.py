"""The worker process: MPyC over pipes, without sockets or pickle.

`shoal.mpyc.runner` starts ``python -m shoal.mpyc.worker`` for one party of one joint computation.
The worker reads frames from its standard input and writes frames to its standard output, in turns:
it runs until it needs input, sends its frames for others, reports that it waits, and reads. It ends
when its input ends. Other bytes on its standard output would be taken for frames, so printed text
goes to the null device. The starting process sets the environment: no uvloop, which can stop a
loop silently if it fails, and no NumPy, which is not needed.

MPyC unpickles data of other parties wherever it handles arrays or Python objects, which lets a
party run any code in the worker. The programs here use neither, and pickle is removed before the
first byte is read, so that safety does not depend on the programs alone.

MPyC draws all its randomness from ``secrets``, the operating system's cryptographic source.

Each party opens its own result and nothing else, against parties that follow the protocol and of
which fewer than half combine what they see (honest majority, semi-honest).
"""

from __future__ import annotations

import _pickle
import argparse
import asyncio
import hashlib
import os
import pickle
import select
import selectors
import struct
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn

from shoal.protocols.mpc.shares import (
    HIDING_BITS,
    MAX_PAIR_BYTES,
    MAX_WAITING_BYTES,
    PRIME,
    SUM_BITS,
    compute_degree,
)

MAX_BYTES = 1 << 22
"""Most bytes of one frame: far more than any program sends in one turn."""

_HEAD = struct.Struct("<IBH")


class FrameKind(IntEnum):
    """The kind of a frame, with its direction."""

    BEGIN = 1  # to the worker: program, inputs, number of parties; the party is the worker's own
    FEED = 2  # to the worker: payload of a party
    EMIT = 3  # from the worker: payload for a party
    WAITING = 4  # from the worker: it needs input; number of frames read so far
    DONE = 5  # from the worker: the result
    REFUSED = 6  # from the worker: a party's payload cannot be used
    FAILED = 7  # from the worker: type of the error that ended it, without its text


def encode_frame(kind: FrameKind, party: int, payload: bytes) -> bytes:
    """Return the bytes of a frame: length, kind, party, payload."""
    return _HEAD.pack(len(payload), kind, party) + payload


@dataclass
class FrameBuffer:
    """A stream of bytes, split into frames as they become complete."""

    buffer: bytearray = field(default_factory=bytearray)

    def extract(self, more: bytes) -> Iterator[tuple[FrameKind, int, bytes]]:
        """Yield the complete frames.

        Raise `ValueError` for a frame that is too large or of an unknown kind.
        """
        self.buffer += more
        while len(self.buffer) >= _HEAD.size:
            size, kind, party = _HEAD.unpack_from(self.buffer)
            if size > MAX_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if len(self.buffer) < _HEAD.size + size:
                return
            payload = bytes(self.buffer[_HEAD.size : _HEAD.size + size])
            del self.buffer[: _HEAD.size + size]
            yield FrameKind(kind), party, payload


@dataclass(frozen=True)
class WorkerTask:
    """The task of a worker."""

    program: str
    me: int
    n_parties: int
    inputs: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """Return the first frame."""
        numbers = b"".join(number.to_bytes(16, "little") for number in self.inputs)
        return encode_frame(
            FrameKind.BEGIN,
            self.me,
            struct.pack("<HB", self.n_parties, len(self.program)) + self.program.encode() + numbers,
        )

    @classmethod
    def from_bytes(cls, me: int, payload: bytes) -> WorkerTask:
        """Parse the first frame."""
        n_parties, length = struct.unpack_from("<HB", payload)
        numbers = payload[3 + length :]
        inputs = tuple(
            int.from_bytes(numbers[start : start + 16], "little")
            for start in range(0, len(numbers), 16)
        )
        return cls(payload[3 : 3 + length].decode(), me, n_parties, inputs)


Program = Callable[[Any, tuple[int, ...]], Coroutine[Any, Any, int]]


def _make_secure_type(mpc: Any) -> Any:
    """Return secure integers in the field of the shares.

    They have two bits more than a sum, for the sign and for the difference of two sums.
    """
    return mpc.SecInt(SUM_BITS + 2, p=PRIME)


async def argmax(mpc: Any, shares: tuple[int, ...]) -> int:
    """Return the position of the largest sum, the first of equals.

    It is a tournament, in which the later sum must be larger to win.
    """
    number = _make_secure_type(mpc)
    position, _ = mpc.argmax([number(number.field(share)) for share in shares])
    return int(await mpc.output(position))


async def select_pair(mpc: Any, _: tuple[int, ...]) -> int:
    """Return whether this party is selected to add (1), to subtract (2), or not (0).

    Two different parties are selected, uniformly among all ordered pairs. One secret unit vector
    has an entry for every ordered pair; a party's flag is a sum of entries, and is opened to that
    party alone.

    Notes
    -----
    Ref: SDQ Algorithm 1; errata S-01, S-06, S-07.
    """
    n = len(mpc.parties)
    number = _make_secure_type(mpc)
    pairs = [(adds, subtracts) for adds in range(n) for subtracts in range(n) if adds != subtracts]
    entries = mpc.random.random_unit_vector(number, len(pairs))
    flags = []
    for party in range(n):
        adds = mpc.sum(
            [entry for entry, pair in zip(entries, pairs, strict=True) if pair[0] == party]
        )
        subtracts = mpc.sum(
            [entry for entry, pair in zip(entries, pairs, strict=True) if pair[1] == party]
        )
        flags.append(mpc.output(adds + 2 * subtracts, receivers=party))
    # Await all flags: a party must also send its shares of the others' flags.
    return int([await flag for flag in flags][mpc.pid])


PROGRAMS: Mapping[str, Program] = {"argmax": argmax, "select": select_pair}


MAX_HELD = 1 << 16
"""Most messages of one party that may wait for their step of the computation."""

_HELD_BYTES = 256
"""Memory of a message that waits, in addition to its bytes."""

_FORBIDDEN = (
    "pickle.find_class",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
)
_MESSAGE = struct.Struct("<qI")


class UnusableMessageError(Exception):
    """A party sent a message that cannot be used."""

    def __init__(self, party: int) -> None:
        self.party = party
        super().__init__(party)


def _reject_pickle(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("pickle is forbidden here")


def _reject_event(event: str, _: tuple[object, ...]) -> None:
    if event in _FORBIDDEN:
        raise RuntimeError(f"{event} is forbidden here")


def restrict_process() -> None:
    """Remove unpickling, and all access outside the pipes, from this process for good.

    MPyC is imported in between: it inspects the machine, and then has its pickle module removed.
    """
    for module in (pickle, _pickle):
        for name in ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"):
            setattr(module, name, _reject_pickle)
    import mpyc.runtime

    mpyc.runtime.pickle = None
    sys.addaudithook(_reject_event)


class PartyConnection:
    """A replacement of MPyC's connection to one party. Messages carry the step they belong to."""

    def __init__(self, party: int) -> None:
        self.party = party
        self.out = bytearray()
        self.nbytes_sent = 0
        self.n_held = 0
        self._n_accepted = 0
        self._pending: dict[int, Any] = {}

    def send(self, step: int, payload: bytes) -> None:
        """Queue a message until the turn ends."""
        self.out += _MESSAGE.pack(step, len(payload)) + payload

    def receive(self, step: int) -> Any:
        """Return a message, or a future of it."""
        if step not in self._pending:
            self._pending[step] = asyncio.get_event_loop().create_future()
            return self._pending[step]
        message = self._pending.pop(step)
        if isinstance(message, bytes):
            self.n_held -= len(message) + _HELD_BYTES
        return message

    def accept(self, data: bytes) -> None:
        """Process all messages that the party has sent in one of its turns."""
        start = 0
        self._n_accepted += len(data)
        if self._n_accepted > MAX_PAIR_BYTES:
            raise UnusableMessageError(self.party)
        while start < len(data):
            if len(data) < start + _MESSAGE.size or len(self._pending) > MAX_HELD:
                raise UnusableMessageError(self.party)
            step, size = _MESSAGE.unpack_from(data, start)
            start += _MESSAGE.size + size
            expected = self._pending.pop(step, None)
            if start > len(data) or isinstance(expected, bytes):
                raise UnusableMessageError(self.party)
            if expected is None:
                self._pending[step] = data[start - size : start]
                self.n_held += size + _HELD_BYTES
            else:
                expected.set_result(data[start - size : start])


class ParentPipes:
    """The two pipes to the process that started this one."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._frames = FrameBuffer()
        self._waiting: list[tuple[FrameKind, int, bytes]] = []
        self.n_taken = 0

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        while data:
            data = data[os.write(self._sink, data) :]

    def read(self, before_waiting: Callable[[], None]) -> tuple[FrameKind, int, bytes]:
        """Return the next frame; raise `EOFError` at the end."""
        while not self._waiting:
            if not select.select([self._source], [], [], 0)[0]:
                before_waiting()
            more = os.read(self._source, 1 << 16)
            if not more:
                raise EOFError
            self._waiting += self._frames.extract(more)
        self.n_taken += 1
        return self._waiting.pop(0)


class _TurnSelector(selectors.SelectSelector):
    """The selector of the event loop.

    Only other parties can end a wait, so a wait ends the turn.
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self._turn()
        return super().select(0)


def _hop(counter: list[int]) -> int:
    """Return MPyC's step after a fork, the same on all platforms and versions of Python."""
    return int.from_bytes(hashlib.sha256(str(counter).encode()).digest()[:8], "little", signed=True)


def make_runtime(task: WorkerTask, connections: dict[int, PartyConnection]) -> Any:
    """Return MPyC's runtime for one party, with pipes instead of sockets; one per process."""
    import mpyc.runtime as library
    from mpyc import asyncoro

    options = argparse.Namespace(**vars(library.mpc.options))
    options.threshold, options.sec_param = compute_degree(task.n_parties), HIDING_BITS
    options.no_prss = options.no_log = options.mix32_64bit = True
    options.no_async = False
    asyncoro._hop = _hop
    parties = [library.Party(party) for party in range(task.n_parties)]
    for party, connection in connections.items():
        parties[party].protocol = connection
    runtime = library.Runtime(task.me, parties, options)
    for name, module in list(sys.modules.items()):
        if name.startswith("mpyc.") and hasattr(module, "runtime"):
            vars(module)["runtime"] = runtime
    return runtime


def run_task(pipes: ParentPipes) -> bytes:
    """Run the task of the first frame, and return the final frame."""
    _, me, payload = pipes.read(lambda: None)
    task = WorkerTask.from_bytes(me, payload)
    connections = {
        party: PartyConnection(party) for party in range(task.n_parties) if party != task.me
    }

    def take_output() -> Iterator[bytes]:
        for connection in connections.values():
            if connection.out:
                yield encode_frame(FrameKind.EMIT, connection.party, bytes(connection.out))
                connection.out.clear()

    def flush() -> None:
        pipes.write(
            b"".join(take_output())
            + encode_frame(FrameKind.WAITING, 0, pipes.n_taken.to_bytes(8, "little"))
        )

    def turn() -> None:
        _, party, sent = pipes.read(flush)
        connections[party].accept(sent)
        if sum(connection.n_held for connection in connections.values()) > MAX_WAITING_BYTES:
            raise UnusableMessageError(max(connections, key=lambda one: connections[one].n_held))

    loop = asyncio.SelectorEventLoop(_TurnSelector(turn))
    asyncio.set_event_loop(loop)
    program = PROGRAMS[task.program]
    try:
        result = loop.run_until_complete(program(make_runtime(task, connections), task.inputs))
    except UnusableMessageError as error:
        return encode_frame(FrameKind.REFUSED, error.party, b"")
    return b"".join(take_output()) + encode_frame(
        FrameKind.DONE, 0, result.to_bytes(8, "little", signed=True)
    )


def main() -> None:
    """Run one computation, from the first frame to the last."""
    pipes = ParentPipes(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        restrict_process()
        last = run_task(pipes)
    except EOFError:
        return
    except Exception as error:
        # The text of an error may contain a share.
        last = encode_frame(FrameKind.FAILED, 0, type(error).__name__.encode())
    pipes.write(last)


if __name__ == "__main__":
    main()
