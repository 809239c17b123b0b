"""The child process of one party in one joint computation: MPyC without its sockets, its command line and its pickle.

``python -m shoal.mpc.child`` reads frames from its standard input and writes frames to its standard output, in turns: it goes on for as
long as it can, sends what it has for others, says that it waits, and reads. When its input ends, so does the child. Other bytes on its
standard output would be taken for frames, so that whatever prints is given the null device. The process that started it sets its
environment: no uvloop, whose failures stop a loop without a word, and no NumPy, which is not needed.

MPyC unpickles what other parties send wherever it handles arrays or Python objects, which lets a party run any code in the child. The
programs here use neither, and pickle is taken away before the first byte is read, so that this does not rest on them alone.

MPyC draws all of its randomness from ``secrets``, the operating system's cryptographic source.
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
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from shoal.mpc.frames import Frames, Kind, Task, frame
from shoal.mpc.programs import PROGRAMS
from shoal.protocols.joint.dealing import HIDING_BITS, degree

MAX_HELD = 1 << 16
"""Most messages of one party that may wait for their turn in the computation."""

_FORBIDDEN = ("pickle.find_class", "socket.bind", "socket.connect", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn")
_MESSAGE = struct.Struct("<qI")


class RefusedError(Exception):
    """What a party sent cannot be used."""

    def __init__(self, party: int) -> None:
        self.party = party
        super().__init__(party)


def _no_pickle(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("pickle is forbidden here")


def _no_reach(event: str, _: tuple[object, ...]) -> None:
    if event in _FORBIDDEN:
        raise RuntimeError(f"{event} is forbidden here")


def forbid() -> None:
    """Take away from this process, for good, whatever would run what another party sends, and the means to reach anything but the pipes.

    MPyC is loaded in between: it looks around at what machine it is on, and is then given no pickle at all.
    """
    for module in (pickle, _pickle):
        for name in ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"):
            setattr(module, name, _no_pickle)
    import mpyc.runtime

    mpyc.runtime.pickle = None
    sys.addaudithook(_no_reach)


class Line:
    """What one party is sent and has sent, in place of MPyC's connection to it. Messages carry the step that they belong to."""

    def __init__(self, party: int) -> None:
        self.party = party
        self.out = bytearray()
        self.nbytes_sent = 0
        self._held: dict[int, Any] = {}

    def send(self, step: int, payload: bytes) -> None:
        """Keep a message until the turn ends."""
        self.out += _MESSAGE.pack(step, len(payload)) + payload

    def receive(self, step: int) -> Any:
        """A message, or the promise of one."""
        if step not in self._held:
            self._held[step] = asyncio.get_event_loop().create_future()
            return self._held[step]
        return self._held.pop(step)

    def take(self, data: bytes) -> None:
        """What the party has sent in one of its turns."""
        start = 0
        while start < len(data):
            if len(data) < start + _MESSAGE.size or len(self._held) > MAX_HELD:
                raise RefusedError(self.party)
            step, size = _MESSAGE.unpack_from(data, start)
            start += _MESSAGE.size + size
            expected = self._held.pop(step, None)
            if start > len(data) or isinstance(expected, bytes):
                raise RefusedError(self.party)
            if expected is None:
                self._held[step] = data[start - size : start]
            else:
                expected.set_result(data[start - size : start])


class Pipes:
    """The two pipes to the process that this one computes for."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._frames = Frames()
        self._waiting: list[tuple[Kind, int, bytes]] = []
        self.n_taken = 0

    def write(self, data: bytes) -> None:
        """Write all of it."""
        while data:
            data = data[os.write(self._sink, data) :]

    def read(self, before_waiting: Callable[[], None]) -> tuple[Kind, int, bytes]:
        """The next frame; `EOFError` at the end."""
        while not self._waiting:
            if not select.select([self._source], [], [], 0)[0]:
                before_waiting()
            more = os.read(self._source, 1 << 16)
            if not more:
                raise EOFError
            self._waiting += self._frames.cut(more)
        self.n_taken += 1
        return self._waiting.pop(0)


class _Turns(selectors.SelectSelector):
    """The event loop's way to wait. Only other parties can end a wait here, so that it is the end of a turn."""

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self._turn()
        return super().select(0)


def _hop(counter: list[int]) -> int:
    """MPyC's step after a fork, the same on all platforms and versions of Python."""
    return int.from_bytes(hashlib.sha256(str(counter).encode()).digest()[:8], "little", signed=True)


def runtime_of(task: Task, lines: dict[int, Line]) -> Any:
    """MPyC's runtime for one party, joined to the others by lines instead of sockets. It keeps one in a process."""
    import mpyc.runtime as library
    from mpyc import asyncoro

    options = argparse.Namespace(**vars(library.mpc.options))
    options.threshold, options.sec_param = degree(task.n_parties), HIDING_BITS
    options.no_prss = options.no_log = options.mix32_64bit = True
    options.no_async = False
    asyncoro._hop = _hop
    parties = [library.Party(party) for party in range(task.n_parties)]
    for party, line in lines.items():
        parties[party].protocol = line
    runtime = library.Runtime(task.me, parties, options)
    for name, module in list(sys.modules.items()):
        if name.startswith("mpyc.") and hasattr(module, "runtime"):
            vars(module)["runtime"] = runtime
    return runtime


def compute(pipes: Pipes) -> bytes:
    """Run the task that comes first, and return the frame that ends it."""
    _, me, payload = pipes.read(lambda: None)
    task = Task.of(me, payload)
    lines = {party: Line(party) for party in range(task.n_parties) if party != task.me}

    def emitted() -> Iterator[bytes]:
        for line in lines.values():
            if line.out:
                yield frame(Kind.EMIT, line.party, bytes(line.out))
                line.out.clear()

    def flush() -> None:
        pipes.write(b"".join(emitted()) + frame(Kind.WAITING, 0, pipes.n_taken.to_bytes(8, "little")))

    def turn() -> None:
        _, party, sent = pipes.read(flush)
        lines[party].take(sent)

    loop = asyncio.SelectorEventLoop(_Turns(turn))
    asyncio.set_event_loop(loop)
    program = PROGRAMS[task.program]
    try:
        result = loop.run_until_complete(program(runtime_of(task, lines), task.inputs))
    except RefusedError as error:
        return frame(Kind.REFUSED, error.party, b"")
    return b"".join(emitted()) + frame(Kind.DONE, 0, result.to_bytes(8, "little", signed=True))


def main() -> None:
    """One computation, from the first frame to the last."""
    pipes = Pipes(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        forbid()
        last = compute(pipes)
    except EOFError:
        return
    except Exception as error:
        # Its text may hold a share.
        last = frame(Kind.FAILED, 0, type(error).__name__.encode())
    pipes.write(last)


if __name__ == "__main__":
    main()
