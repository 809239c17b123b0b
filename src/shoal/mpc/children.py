"""Joint computations in child processes: one for each party and task, which does all that it can, says that it waits, and is fed.

A child that dies, takes too long over a turn or cannot use what it was fed ends its task as `Broken`; it is never started again. Frames
travel as the machines send them, and no child knows a key or an address. For POSIX systems: pipes are waited for with ``selectors``.
"""

from __future__ import annotations

import importlib.util
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError, UsageError
from shoal.mpc.frames import Frames, Kind, Task, frame
from shoal.protocols.effects import Broken, Compute, Computed, Emitted, Feed, Progress

PATIENCE = 60.0
"""Seconds that all children together may be silent while one is at work; a turn takes milliseconds."""

_SOURCE = str(Path(__file__).parents[2])


def environment() -> dict[str, str]:
    """All that a child is told by its environment: where shoal is, and to load no more than it needs."""
    return {"PYTHONPATH": _SOURCE, "MPYC_NOUVLOOP": "1", "MPYC_NONUMPY": "1", "OMP_NUM_THREADS": "1"}


@dataclass
class _Child:
    """A process, what it has not taken yet, and how many frames it was given and has taken."""

    owner: str
    task: str
    process: subprocess.Popen[bytes]
    todo: bytearray
    frames: Frames = field(default_factory=Frames)
    n_given: int = 1
    n_taken: int = 0

    @property
    def is_at_work(self) -> bool:
        return self.n_taken < self.n_given

    @property
    def source(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def sink(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()


class Children:
    """A computer that runs MPyC in child processes, and leaves none behind: use it in a ``with`` statement.

    Parameters
    ----------
    patience
        Seconds of silence of all children, while one of them is at work, after which those that are at work are given up.

    Raises
    ------
    UsageError
        ``USAGE-002``: MPyC is not installed.
    """

    command: ClassVar[tuple[str, ...]] = (sys.executable, "-P", "-m", "shoal.mpc.child")

    def __init__(self, patience: float = PATIENCE) -> None:
        if importlib.util.find_spec("mpyc") is None:
            raise UsageError("USAGE-002", "A joint computation needs MPyC, which is not installed.", fix="pip install 'shoal[mpc]'")
        self._patience = patience
        self._children: dict[tuple[str, str], _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._ready: list[tuple[str, Progress]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in list(self._children.values()):
            self._drop(child)
        self._selector.close()

    @property
    def pids(self) -> dict[tuple[str, str], int]:
        """The processes that run, by owner and task."""
        return {key: child.process.pid for key, child in self._children.items()}

    def begin(self, owner: str, asked: Compute) -> None:
        """Start a child. Its inputs reach it by a pipe, and neither by its command line nor by its environment."""
        if (owner, asked.task) in self._children:
            raise LocalProtocolError("PROTO-001", f"{owner} asked for the joint computation {asked.task} twice.")
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            bufsize=0,
        )
        first = Task(asked.program, asked.me, asked.n_parties, asked.inputs).to_bytes()
        child = self._children[owner, asked.task] = _Child(owner, asked.task, process, bytearray(first))
        os.set_blocking(child.sink, False)
        self._selector.register(child.source, selectors.EVENT_READ, child)
        self._selector.register(child.sink, selectors.EVENT_WRITE, child)

    def feed(self, owner: str, given: Feed) -> None:
        """Give a child what another party has sent. It is written when the child can take it, so that neither waits for the other."""
        child = self._children.get((owner, given.task))
        if child is not None:
            if not child.todo:
                self._selector.register(child.sink, selectors.EVENT_WRITE, child)
            child.todo += frame(Kind.FEED, given.sender, given.payload)
            child.n_given += 1

    def end(self, owner: str) -> None:
        """Kill an owner's children."""
        for child in [child for child in self._children.values() if child.owner == owner]:
            self._drop(child)
        self._ready = [(name, progress) for name, progress in self._ready if name != owner]

    def collect(self) -> list[tuple[str, Progress]]:
        """What owners are to hear; waits for the first of it while any child is at work, and notices one that died while it waited."""
        while not self._ready:
            at_work = [child for child in self._children.values() if child.is_at_work]
            events = self._selector.select(self._patience if at_work else 0)
            if not (events or at_work):
                break
            for key, _ in events:
                if self._is_here(key.data):  # an earlier one of these events may have ended the child
                    self._attend(key.data, is_source=key.fd == key.data.source)
            if not events:
                for child in at_work:
                    self._break(child, _broken(f"took longer than {self._patience:g} s over a turn"))
        ready, self._ready = self._ready, []
        return ready

    def _attend(self, child: _Child, *, is_source: bool) -> None:
        """Read from a child, or write to it, whichever it is ready for."""
        if is_source:
            self._listen(child, os.read(child.source, 1 << 16))
            return
        try:
            del child.todo[: os.write(child.sink, child.todo)]
        except BrokenPipeError:
            child.todo.clear()  # it has died, and its last words are about to be read
        if not child.todo:
            self._selector.unregister(child.sink)

    def _listen(self, child: _Child, said: bytes) -> None:
        try:
            frames = list(child.frames.cut(said))
        except ValueError:
            said, frames = b"", []
        for kind, party, payload in frames:
            if self._is_here(child):
                self._hear(child, kind, party, payload)
        if not said:
            self._break(child, _broken("died"))

    def _hear(self, child: _Child, kind: Kind, party: int, payload: bytes) -> None:
        match kind:
            case Kind.EMIT:
                self._ready.append((child.owner, Emitted(child.task, party, payload)))
            case Kind.WAITING:
                child.n_taken = int.from_bytes(payload, "little")
            case Kind.DONE:
                self._ready.append((child.owner, Computed(child.task, (int.from_bytes(payload, "little", signed=True),))))
                self._drop(child)
            case Kind.REFUSED:
                self._break(child, RemoteProtocolError("JOINT-002", f"Party {party} sent what the computation cannot use."), party)
            case _:
                self._break(child, _broken(f"failed with {payload.decode()}"))

    def _is_here(self, child: _Child) -> bool:
        return (child.owner, child.task) in self._children

    def _break(self, child: _Child, error: ShoalError, party: int | None = None) -> None:
        self._ready.append((child.owner, Broken(child.task, error, party)))
        self._drop(child)

    def _drop(self, child: _Child) -> None:
        """Kill a process, whether or not it lives, and forget it."""
        del self._children[child.owner, child.task]
        self._selector.unregister(child.source)
        if child.todo:
            self._selector.unregister(child.sink)
        child.process.kill()
        child.process.communicate()


def _broken(what: str) -> LocalProtocolError:
    return LocalProtocolError("JOINT-001", f"The process of a joint computation {what}.", why="It is not started again.")
