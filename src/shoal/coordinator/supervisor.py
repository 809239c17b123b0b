"""Several workers behind one socket.

``shoal serve --workers`` runs `Supervisor`: it starts the workers, replaces those that die, and
ends them when it ends.

A worker is ``python -m shoal.coordinator.worker``. It inherits the listening socket and reads its
settings from a pipe. The URL of a store may contain a password, so the settings are neither on the
command line nor in the environment. The parent keeps its end of the pipe open while it lives. A
worker that finds the pipe closed ends, so none is left behind if the parent is killed.
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

from shoal.coordinator.worker import WorkerSettings
from shoal.errors import ShoalError
from shoal.transport.server import STOP_SECONDS, forbid_core_dumps

STEADY_SECONDS = 10.0
"""Lifetime after which the end of a worker does not count as a failed start."""

MAX_AT_ONCE = 5
"""Failed starts in a row after which the coordinator gives up."""

GRACE_SECONDS = STOP_SECONDS + 6.0
"""Time after which a worker that does not stop is killed."""

_FIRST_PAUSE = 0.1
_SOURCE = str(Path(__file__).parents[2])
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class RestartBackoff:
    """The pause before a worker is replaced: none after a long life, growing after short ones.

    Examples
    --------
    >>> backoff = RestartBackoff()
    >>> [backoff.next_pause(lifetime) for lifetime in (0.2, 0.2, 3600.0, 0.2)]
    [0.1, 0.2, 0.0, 0.1]
    """

    def __init__(self) -> None:
        self.n_failures = 0

    def next_pause(self, lifetime: float) -> float:
        """Return the seconds to wait; raise ``SERVE-003`` after too many failed starts."""
        self.n_failures = 0 if lifetime >= STEADY_SECONDS else self.n_failures + 1
        if self.n_failures >= MAX_AT_ONCE:
            what = (
                f"{self.n_failures} workers in a row ended within {STEADY_SECONDS:g} s of their "
                "start."
            )
            raise ShoalError(
                "SERVE-003",
                what,
                why="Their output is above.",
                fix="Find the cause with --workers 1.",
            )
        return _FIRST_PAUSE * 2 ** (self.n_failures - 1) if self.n_failures else 0.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)


class Supervisor:
    """The parent process of some workers.

    Parameters
    ----------
    listener
        The socket that all workers accept from.
    """

    command: ClassVar[tuple[str, ...]] = (sys.executable, "-P", "-m", "shoal.coordinator.worker")

    def __init__(self, n_workers: int, listener: socket.socket, settings: WorkerSettings) -> None:
        self._n_workers = n_workers
        self._listener = listener
        self._first_line = settings.to_line(listener.fileno())
        self._workers: list[_Worker] = []
        self._backoff = RestartBackoff()
        self._next_start = 0.0

    def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Run workers until SIGTERM or SIGINT; then let them finish and return.

        Parameters
        ----------
        on_ready
            Called when a signal ends the supervisor in good order; connections are answered when
            the first worker runs.

        Raises
        ------
        ShoalError
            ``SERVE-003``: workers end immediately after their start.
        """
        forbid_core_dumps()
        with _watch_signals() as woken:
            on_ready()
            try:
                while not self._wait_for_stop(woken):
                    self._reap_workers()
                    self._start_workers()
            finally:
                self._stop_workers(woken)

    def _wait_for_stop(self, woken: socket.socket) -> bool:
        """Wait for a signal or the next start of a worker; return whether to stop."""
        lacks = len(self._workers) < self._n_workers
        timeout = max(0.0, self._next_start - time.monotonic()) if lacks else None
        return _read_signals(woken, timeout) & {signal.SIGTERM, signal.SIGINT} != set()

    def _start_workers(self) -> None:
        while len(self._workers) < self._n_workers and time.monotonic() >= self._next_start:
            with _block_interrupts():
                process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    pass_fds=(self._listener.fileno(),),
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(
                            filter(None, (_SOURCE, os.environ.get("PYTHONPATH")))
                        ),
                    },
                    bufsize=0,
                )
            self._workers.append(_Worker(process))
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, and is reaped next
                process.stdin.write(self._first_line)

    def _reap_workers(self) -> None:
        """Remove workers that have ended.

        A worker that ends without a signal to stop has failed, whatever its exit code.
        """
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            self._remove_worker(worker)
            self._next_start = now + self._backoff.next_pause(now - worker.started_at)

    def _remove_worker(self, worker: _Worker) -> None:
        worker.process.communicate()
        self._workers.remove(worker)

    def _stop_workers(self, woken: socket.socket) -> None:
        """Let workers finish; kill them after a second signal or after `GRACE_SECONDS`."""
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while (
            any(worker.process.poll() is None for worker in self._workers)
            and (left := deadline - time.monotonic()) > 0
        ):
            if _read_signals(woken, left) & {signal.SIGTERM, signal.SIGINT}:
                break
        for worker in list(self._workers):
            worker.process.kill()
            self._remove_worker(worker)


@contextmanager
def _watch_signals() -> Iterator[socket.socket]:
    """Yield a socket that receives the number of each signal as a byte.

    The previous signal handlers are restored at the end.
    """
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
def _block_interrupts() -> Iterator[None]:
    """Start processes that ignore interrupts at the terminal.

    The interrupt is for this process, which then ends the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read_signals(woken: socket.socket, seconds: float | None) -> set[int]:
    """Return the signals so far; wait up to some seconds for the first one."""
    return set(woken.recv(4096)) if select.select([woken], [], [], seconds)[0] else set()
