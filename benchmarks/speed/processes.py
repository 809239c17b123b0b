"""Programs that a benchmark starts: their processor time and their end.

Processor time includes all descendants; it is read from Linux's /proc.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_LOOKS = 5
_TICKS = os.sysconf("SC_CLK_TCK")
_END_SECONDS = 20
_PORTS = 10_000, 32_000
"""Ports below those of outgoing connections.

An outgoing connection might take a higher port before a slow program listens on it.
"""


class _Process(NamedTuple):
    """The system's data of a process: parent, ticks and start time.

    Ticks include those of children that it has waited for.
    """

    parent: int
    ticks: int
    began: int


class Program:
    """A process that was started here.

    Parameters
    ----------
    command, environment
        The command, and environment variables in addition to those of this process.
    log
        Where its output goes; what is there already stays.
    """

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        self._kin: dict[int, _Process] = {}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """Return all output so far."""
        return self.log.read_text(errors="replace")

    def cpu(self) -> float:
        """Return processor seconds of the process and all its descendants, ended ones included."""
        # A process that ends during a reading is counted twice or never: take the median of some.
        return statistics.median(
            sum(one.ticks for one in _kin(self._process.pid).values()) / _TICKS
            for _ in range(_LOOKS)
        )

    def wait(self, seconds: float) -> float:
        """Wait until it ends successfully, and return its processor seconds.

        On failure raise an error with its output.
        """
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        has_ended = until(
            lambda: os.waitid(os.P_PID, self._process.pid, options) is not None, seconds
        )
        # The system keeps its processor time until its exit code is read.
        spent = self.cpu()
        if not has_ended or self._process.wait() != 0:
            raise RuntimeError(f"a program of the benchmark has failed:\n{self.said[-2000:]}")
        return spent

    def kill(self) -> None:
        """Do the same as ``kill -9``: its children get no signal."""
        self._kin |= _kin(self._process.pid)
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it, and all processes that it has started and left behind."""
        self._kin |= _kin(self._process.pid)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for pid, known in self._kin.items():
            # The number may belong to another process by now.
            if (now := _processes().get(pid)) is not None and now.began == known.began:
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def ending(programs: list[Program]) -> Iterator[None]:
    """End all programs in the list on exit, the last one first."""
    try:
        yield
    finally:
        for program in reversed(programs):
            program.end()


def until(is_so: Callable[[], bool], seconds: float, programs: Sequence[Program] = ()) -> bool:
    """Wait for a condition for a limited time; return whether it holds.

    If one of the programs ends before, raise an error with its output.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        for program in programs:
            if not program.is_running:
                raise RuntimeError(f"a program of the benchmark has ended:\n{program.said[-2000:]}")
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def free_ports(n: int) -> list[int]:
    """Return ports of this machine without a listener that the system does not assign."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < n:
            one = socket.socket()
            sockets.append(one)
            try:
                one.bind(("127.0.0.1", random.randrange(*_PORTS)))
            except OSError:
                sockets.pop().close()
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _kin(pid: int) -> dict[int, _Process]:
    """Return a process and all its descendants, by number."""
    processes, kin = _processes(), {}
    if pid in processes:
        kin[pid] = processes[pid]
    while more := {
        one: known for one, known in processes.items() if known.parent in kin and one not in kin
    }:
        kin |= more
    return kin


def _processes() -> dict[int, _Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name may hold anything, and ends with the last parenthesis.
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = _Process(
                int(fields[1]), sum(map(int, fields[11:15])), int(fields[19])
            )
    return found
