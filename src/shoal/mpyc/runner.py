"""Start, feed and collect worker processes.

`MPyCWorkers` implements `shoal.protocols.mpc.computer.JointComputation` for drivers: one process
for each party and task. A worker runs until it needs input, reports that it waits, and is fed.

If a worker dies, takes too long for a turn or cannot use its input, its task ends as `Broken`; it
is never started again. Payloads are forwarded unchanged, and no worker knows a key or an address.
For POSIX systems: pipes are waited for with ``selectors``.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from shoal.errors import LocalProtocolError, RemoteProtocolError, ShoalError, require_extra
from shoal.mpyc.worker import FrameBuffer, FrameKind, WorkerTask, encode_frame
from shoal.protocols.effects import Broken, ComputationInput, Compute, Computed, Emitted, Feed
from shoal.protocols.mpc.shares import MAX_PAIR_BYTES, MAX_WAITING_BYTES

TURN_TIMEOUT = 60.0
"""Seconds without output of any worker, while one is busy; a turn takes milliseconds."""

_SOURCE = str(Path(__file__).parents[2])


def make_environment() -> dict[str, str]:
    """Return the whole environment of a worker: the path of shoal, and options to load little."""
    return {
        "PYTHONPATH": _SOURCE,
        "MPYC_NOUVLOOP": "1",
        "MPYC_NONUMPY": "1",
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class _MPyCWorker:
    """A worker process, its unwritten input, and counts: frames given, taken, bytes by party."""

    owner: str
    task: str
    process: subprocess.Popen[bytes]
    todo: bytearray
    frames: FrameBuffer = field(default_factory=FrameBuffer)
    n_given: int = 1
    n_taken: int = 0
    n_fed: Counter[int] = field(default_factory=Counter)

    @property
    def is_busy(self) -> bool:
        return self.n_taken < self.n_given

    @property
    def source(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def sink(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()


class MPyCWorkers:
    """A joint computation in worker processes.

    Use it in a ``with`` statement, which ends all of them.

    Parameters
    ----------
    turn_timeout
        Seconds without output of any worker, while at least one is busy, after which the busy ones
        are killed.

    Raises
    ------
    UsageError
        ``USAGE-002``: MPyC is not installed.
    """

    command: ClassVar[tuple[str, ...]] = (sys.executable, "-P", "-m", "shoal.mpyc.worker")

    def __init__(self, turn_timeout: float = TURN_TIMEOUT) -> None:
        require_extra("mpc", "mpyc", purpose="A joint computation")
        self._turn_timeout = turn_timeout
        self._workers: dict[tuple[str, str], _MPyCWorker] = {}
        self._selector = selectors.DefaultSelector()
        self._ready: list[tuple[str, ComputationInput]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in list(self._workers.values()):
            self._kill(worker)
        self._selector.close()

    @property
    def pids(self) -> dict[tuple[str, str], int]:
        """The running processes, by owner and task."""
        return {key: worker.process.pid for key, worker in self._workers.items()}

    def begin(self, owner: str, request: Compute) -> None:
        """Start a worker.

        Its inputs are sent through a pipe, and are neither on its command line nor in its
        environment.
        """
        if (owner, request.task) in self._workers:
            raise LocalProtocolError(
                "PROTO-001", f"{owner} requested the joint computation {request.task} twice."
            )
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=make_environment(),
            bufsize=0,
        )
        first = WorkerTask(
            request.program, request.me, request.n_parties, request.inputs
        ).to_bytes()
        worker = self._workers[owner, request.task] = _MPyCWorker(
            owner, request.task, process, bytearray(first)
        )
        os.set_blocking(worker.sink, False)
        self._selector.register(worker.source, selectors.EVENT_READ, worker)
        self._selector.register(worker.sink, selectors.EVENT_WRITE, worker)

    def feed(self, owner: str, given: Feed) -> None:
        """Queue a payload of another party for a worker.

        It is written when the worker can read it, so that neither blocks the other.
        """
        worker = self._workers.get((owner, given.task))
        if worker is not None:
            worker.n_fed[given.sender] += len(given.payload)
            if (
                worker.n_fed[given.sender] > MAX_PAIR_BYTES
                or len(worker.todo) + len(given.payload) > MAX_WAITING_BYTES
            ):
                self._report_broken(
                    worker,
                    RemoteProtocolError(
                        "JOINT-002",
                        f"Party {given.sender} sent {worker.n_fed[given.sender]:,} bytes.",
                        why=f"A party accepts at most {MAX_PAIR_BYTES:,} bytes of another, and at "
                        f"most {MAX_WAITING_BYTES:,} of all may wait.",
                    ),
                    given.sender,
                )
                return
            if not worker.todo:
                self._selector.register(worker.sink, selectors.EVENT_WRITE, worker)
            worker.todo += encode_frame(FrameKind.FEED, given.sender, given.payload)
            worker.n_given += 1

    def end(self, owner: str) -> None:
        """Kill an owner's workers."""
        for worker in [worker for worker in self._workers.values() if worker.owner == owner]:
            self._kill(worker)
        self._ready = [(name, progress) for name, progress in self._ready if name != owner]

    def collect(self) -> list[tuple[str, ComputationInput]]:
        """Return the pending inputs of owners.

        Waits for the first while any worker is busy, and detects a worker that died while it
        waited.
        """
        while not self._ready:
            at_work = [worker for worker in self._workers.values() if worker.is_busy]
            events = self._selector.select(self._turn_timeout if at_work else 0)
            if not (events or at_work):
                break
            for key, _ in events:
                # An earlier event may have ended the worker.
                if self._is_running(key.data):
                    self._handle_event(key.data, is_source=key.fd == key.data.source)
            if not events:
                for worker in at_work:
                    self._report_broken(
                        worker,
                        _process_error(f"took longer than {self._turn_timeout:g} s for a turn"),
                    )
        ready, self._ready = self._ready, []
        return ready

    def _handle_event(self, worker: _MPyCWorker, *, is_source: bool) -> None:
        """Read from a worker, or write to it."""
        if is_source:
            self._read_output(worker, os.read(worker.source, 1 << 16))
            return
        try:
            del worker.todo[: os.write(worker.sink, worker.todo)]
        except BrokenPipeError:
            worker.todo.clear()  # the worker has died; the end of its output is read next
        if not worker.todo:
            self._selector.unregister(worker.sink)

    def _read_output(self, worker: _MPyCWorker, output: bytes) -> None:
        try:
            frames = list(worker.frames.extract(output))
        except ValueError:
            output, frames = b"", []
        for kind, party, payload in frames:
            if self._is_running(worker):
                self._handle_frame(worker, kind, party, payload)
        if not output:
            self._report_broken(worker, _process_error("died"))

    def _handle_frame(
        self, worker: _MPyCWorker, kind: FrameKind, party: int, payload: bytes
    ) -> None:
        match kind:
            case FrameKind.EMIT:
                self._ready.append((worker.owner, Emitted(worker.task, party, payload)))
            case FrameKind.WAITING:
                worker.n_taken = int.from_bytes(payload, "little")
            case FrameKind.DONE:
                self._ready.append(
                    (
                        worker.owner,
                        Computed(worker.task, (int.from_bytes(payload, "little", signed=True),)),
                    )
                )
                self._kill(worker)
            case FrameKind.REFUSED:
                self._report_broken(
                    worker,
                    RemoteProtocolError("JOINT-002", f"Party {party} sent an unusable message."),
                    party,
                )
            case _:
                self._report_broken(worker, _process_error(f"failed with {payload.decode()}"))

    def _is_running(self, worker: _MPyCWorker) -> bool:
        return (worker.owner, worker.task) in self._workers

    def _report_broken(
        self, worker: _MPyCWorker, error: ShoalError, party: int | None = None
    ) -> None:
        self._ready.append((worker.owner, Broken(worker.task, error, party)))
        self._kill(worker)

    def _kill(self, worker: _MPyCWorker) -> None:
        """Kill a process, running or not, and forget it."""
        del self._workers[worker.owner, worker.task]
        self._selector.unregister(worker.source)
        if worker.todo:
            self._selector.unregister(worker.sink)
        worker.process.kill()
        worker.process.communicate()


def _process_error(what: str) -> LocalProtocolError:
    return LocalProtocolError(
        "JOINT-001",
        f"The worker process of a joint computation {what}.",
        why="It is not started again.",
    )
