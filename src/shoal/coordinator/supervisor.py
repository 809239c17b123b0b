"""Several workers behind one address: the parent binds it, starts them, replaces those that die, and ends them when it ends.

A worker is ``python -m shoal.coordinator.worker``. It is given the listening socket, and its settings by a pipe, since the address of a
store may hold a password: neither its command line nor its environment has them. The parent holds the pipe's other end for as long as it
lives, and a worker that finds it closed ends: so none is left behind by a parent that was killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from shoal.coordinator.settings import Settings
from shoal.errors import ShoalError
from shoal.transport.connections import STOP_SECONDS
from shoal.transport.dumps import forbid_core_dumps

STEADY_SECONDS = 10.0
"""A worker that has lived so long was well."""

MOST_AT_ONCE = 5
"""So many deaths in a row, none of them of a worker that was well, and the coordinator gives up."""

GRACE_SECONDS = STOP_SECONDS + 6.0
"""After so long a worker that was told to stop is not waited for any more."""

_FIRST_PAUSE = 0.1
_SOURCE = str(Path(__file__).parents[2])
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Deaths:
    """How long to wait before a worker that died is replaced: not at all after a long life, longer and longer after short ones.

    Examples
    --------
    >>> deaths = Deaths()
    >>> [deaths.pause_after(lived) for lived in (0.2, 0.2, 3600.0, 0.2)]
    [0.1, 0.2, 0.0, 0.1]
    """

    def __init__(self) -> None:
        self.n_in_a_row = 0

    def pause_after(self, seconds_lived: float) -> float:
        """Seconds to wait; `ShoalError` ``SERVE-003`` where there is no point in another try."""
        self.n_in_a_row = 0 if seconds_lived >= STEADY_SECONDS else self.n_in_a_row + 1
        if self.n_in_a_row >= MOST_AT_ONCE:
            what = f"{self.n_in_a_row} workers in a row have ended within {STEADY_SECONDS:g} s of their start."
            raise ShoalError("SERVE-003", what, why="What they said is above.", fix="Start it with --workers 1 to see what is wrong.")
        return _FIRST_PAUSE * 2 ** (self.n_in_a_row - 1) if self.n_in_a_row else 0.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    born: float = field(default_factory=time.monotonic)


class Supervisor:
    """The parent of some workers, from `run` until a signal ends it.

    Parameters
    ----------
    n_workers
        How many there are to be.
    listener
        The socket that they accept from.
    settings
        What they are told.
    """

    command: ClassVar[tuple[str, ...]] = (sys.executable, "-P", "-m", "shoal.coordinator.worker")

    def __init__(self, n_workers: int, listener: socket.socket, settings: Settings) -> None:
        self._n_workers = n_workers
        self._listener = listener
        self._first_line = settings.to_line(listener.fileno())
        self._workers: list[_Worker] = []
        self._deaths = Deaths()
        self._next_start = 0.0

    def run(self, announce: Callable[[], object] = lambda: None) -> None:
        """Keep workers at work until SIGTERM or SIGINT; then let them finish, and return.

        Parameters
        ----------
        announce
            Called when a signal ends it in good order; who connects from now on is answered as soon as there is a worker.

        Raises
        ------
        ShoalError
            ``SERVE-003``: they die as soon as they are started.
        """
        forbid_core_dumps()
        with _signals() as woken:
            announce()
            try:
                while not self._is_told_to_stop(woken):
                    self._bury()
                    self._start()
            finally:
                self._end(woken)

    def _is_told_to_stop(self, woken: socket.socket) -> bool:
        """Wait for a signal, or until a worker is to be started."""
        lacks = len(self._workers) < self._n_workers
        timeout = max(0.0, self._next_start - time.monotonic()) if lacks else None
        return _heard(woken, timeout) & {signal.SIGTERM, signal.SIGINT} != set()

    def _start(self) -> None:
        while len(self._workers) < self._n_workers and time.monotonic() >= self._next_start:
            with _deaf():
                process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    pass_fds=(self._listener.fileno(),),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))},
                    bufsize=0,
                )
            self._workers.append(_Worker(process))
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has died at once, and is about to be buried
                process.stdin.write(self._first_line)

    def _bury(self) -> None:
        """Forget those that have ended. One that ends while nobody asked it to has failed, whatever its exit code."""
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            self._forget(worker)
            self._next_start = now + self._deaths.pause_after(now - worker.born)

    def _forget(self, worker: _Worker) -> None:
        worker.process.communicate()
        self._workers.remove(worker)

    def _end(self, woken: socket.socket) -> None:
        """Let workers finish what they are at; a second signal, or too long a time, and they are killed."""
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while any(worker.process.poll() is None for worker in self._workers) and (left := deadline - time.monotonic()) > 0:
            if _heard(woken, left) & {signal.SIGTERM, signal.SIGINT}:
                break
        for worker in list(self._workers):
            worker.process.kill()
            self._forget(worker)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that can be read when a signal has come, whose number is the byte; what signals did before is put back."""
    woken, waker = socket.socketpair()
    with woken, waker:
        waker.setblocking(False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
        previous = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def _deaf() -> Iterator[None]:
    """Who is started meanwhile never hears an interruption at the terminal: that is for this process, which then ends the others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _heard(woken: socket.socket, seconds: float | None) -> set[int]:
    """The signals that have come by now, or within so many seconds."""
    return set(woken.recv(4096)) if select.select([woken], [], [], seconds)[0] else set()
