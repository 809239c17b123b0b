"""Processes of shoal that tests kill and start again.

Each process has a thread that reads its output line by line. All threads report to one queue, so
that a test can wait for the next line of any process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join(sys.path),
}
PATIENCE = 300.0
"""Seconds after which a test fails; a test that passes does not wait for them."""


class Ahead:
    """Seconds by which the clock of a process is ahead, in a file that `e2e.altered` reads."""

    def __init__(self, file: Path, seconds: float = 0.0) -> None:
        self.file = file
        self.put(seconds)

    def put(self, seconds: float) -> None:
        """Set the clock forward or back while the process runs."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.file)

    @property
    def word(self) -> str:
        return f"clock={self.file}"


class Process:
    """A process of shoal that can be killed and started again with the same command."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, events: queue.SimpleQueue[Process]
    ) -> None:
        self.name, self.command, self.folder, self.events = name, list(command), folder, events
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, *altered: str) -> None:
        """Start the process, with faults of `e2e.altered` if there are any."""
        self.lines = []
        module = ["-m"] if not altered else [str(Path(__file__).with_name("altered.py")), *altered]
        self.process = subprocess.Popen(
            [sys.executable, *module, *self.command],
            cwd=self.folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reader = Thread(target=self._read, args=(self.process, self.lines), daemon=True)
        self.reader.start()

    def _read(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line[0] not in "┌│├└":  # a label has many lines and is one event
                self.events.put(self)
        self.events.put(self)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, by: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal; return the exit code when all output is read."""
        assert self.process is not None
        self.process.send_signal(by)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; return the exit code when all output is read."""
        assert self.process is not None and self.process.stdout is not None
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.process.stdout.close()
        return code

    def clear(self) -> None:
        """Kill the process if it was started and its end was not awaited."""
        if (
            self.process is not None
            and self.process.stdout is not None
            and not self.process.stdout.closed
        ):
            self.end()


class Coordinator(Process):
    """``shoal serve`` with a clock that tests can change; `start` returns when it listens."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, events: queue.SimpleQueue[Process]
    ) -> None:
        super().__init__(name, command, folder, events)
        self.clock = Ahead(folder / f"clock of the {name}")

    def start(self, *altered: str) -> None:
        altered = ("spam=all", self.clock.word, *altered)
        super().start(*altered)
        while not self.output.startswith("{"):
            if not self.is_alive and "the address is in use" in self._wait_for_output():
                # A worker that was starting when its parent was killed still has the port; it ends
                # when it notices.
                super().start(*altered)
            assert self.is_alive, self.output
            with suppress(queue.Empty):
                self.events.get(timeout=1.0)
        self.notice: dict[str, Any] = json.loads(self.lines[0])
        assert "address" in self.notice, self.output

    def _wait_for_output(self) -> str:
        self.wait()
        return self.output

    @property
    def url(self) -> str:
        return str(self.notice["address"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def workers(self) -> list[int]:
        """Running child processes, from the kernel; empty if there is no supervisor."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in pids if is_running(int(pid))]

    def kill_worker(self, which: int) -> bool:
        """Kill a worker, which the supervisor replaces; return False if there is none."""
        workers = self.workers
        if not workers:
            return False
        os.kill(workers[which % len(workers)], signal.SIGKILL)
        return True


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
