"""Programs that a benchmark starts: the processor time of each with all that it starts in turn, and their end. Linux alone tells."""

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
"""Above them are those of outgoing connections, of which one may take a port before a program that starts slowly does."""


class _Process(NamedTuple):
    """What the system says of a process: its parent, its ticks with those of children that it has waited for, and when it began."""

    parent: int
    ticks: int
    began: int


class Program:
    """A process that was started here.

    Parameters
    ----------
    command, environment
        What is run, and what is set besides what this process has.
    log
        Where its output goes; what is there already stays.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._kin: dict[int, _Process] = {}
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """All of its output so far."""
        return self.log.read_text(errors="replace")

    def cpu(self) -> float:
        """Processor seconds of the process and of everything that descends from it, whether it goes on or not."""
        # What ends while one looks is counted twice or not at all: hence the median of some looks.
        return statistics.median(sum(one.ticks for one in _kin(self._process.pid).values()) / _TICKS for _ in range(_LOOKS))

    def wait(self, seconds: float) -> float:
        """Wait until it ends well, and return its processor seconds; an error with its output where it does not."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        has_ended = until(lambda: os.waitid(os.P_PID, self._process.pid, options) is not None, seconds)
        # Until its exit code is taken the system remembers what it has spent.
        spent = self.cpu()
        if not has_ended or self._process.wait() != 0:
            raise RuntimeError(f"a program of the benchmark has failed:\n{self.said[-2000:]}")
        return spent

    def kill(self) -> None:
        """What ``kill -9`` does: its children are not told."""
        self._kin |= _kin(self._process.pid)
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it, and all that it has started and left behind."""
        self._kin |= _kin(self._process.pid)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for pid, known in self._kin.items():
            # The number may be another process's by now.
            if (now := _processes().get(pid)) is not None and now.began == known.began:
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def ending(programs: list[Program]) -> Iterator[None]:
    """End all programs that are in the list by then, the last one first."""
    try:
        yield
    finally:
        for program in reversed(programs):
            program.end()


def until(is_so: Callable[[], bool], seconds: float, programs: Sequence[Program] = ()) -> bool:
    """Wait until something is so, for a while; whether it is. An error with its output where one of the programs ends meanwhile."""
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
    """Ports of this machine on which nothing listens, out of those that the system gives to nobody who does not ask for them."""
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
    """A process and all that descend from it, by number."""
    processes, kin = _processes(), {}
    if pid in processes:
        kin[pid] = processes[pid]
    while more := {one: known for one, known in processes.items() if known.parent in kin and one not in kin}:
        kin |= more
    return kin


def _processes() -> dict[int, _Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name may hold anything, and ends with the last parenthesis.
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = _Process(int(fields[1]), sum(map(int, fields[11:15])), int(fields[19]))
    return found
