"""Processes of shoal that are killed and started again: what each says is heard line by line, by one queue for all of them."""

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

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENCE = 300.0
"""Seconds after which a test gives up; nothing waits for them where all is well."""


class Ahead:
    """How far a process's clock is ahead of the right time: seconds in a file, at which `e2e.altered` looks each time."""

    def __init__(self, file: Path, seconds: float = 0.0) -> None:
        self.file = file
        self.put(seconds)

    def put(self, seconds: float) -> None:
        """Put the clock forward or back, while the process runs."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.file)

    @property
    def word(self) -> str:
        return f"clock={self.file}"


class Process:
    """A process of shoal: what it says is heard, and it is killed and started again with the same command."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, heard: queue.SimpleQueue[Process]) -> None:
        self.name, self.command, self.folder, self.heard = name, list(command), folder, heard
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, *altered: str) -> None:
        """Start it; see `e2e.altered` for what may be done to it."""
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
        self.reader = Thread(target=self._hear, args=(self.process, self.lines), daemon=True)
        self.reader.start()

    def _hear(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line[0] not in "┌│├└":  # a label is many lines and one event
                self.heard.put(self)
        self.heard.put(self)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, by: signal.Signals = signal.SIGKILL) -> int:
        """Its exit code, after it was sent a signal; all that it said is heard then."""
        assert self.process is not None
        self.process.send_signal(by)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended; all that it said is heard then."""
        assert self.process is not None and self.process.stdout is not None
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.process.stdout.close()
        return code

    def clear(self) -> None:
        """End it, if it was started and nobody has waited for its end."""
        if self.process is not None and self.process.stdout is not None and not self.process.stdout.closed:
            self.end()


class Coordinator(Process):
    """``shoal serve`` with a clock that can be put forward or back; it has started when it listens."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, heard: queue.SimpleQueue[Process]) -> None:
        super().__init__(name, command, folder, heard)
        self.clock = Ahead(folder / f"clock of the {name}")

    def start(self, *altered: str) -> None:
        altered = ("spam=all", self.clock.word, *altered)
        super().start(*altered)
        while not self.said.startswith("{"):
            if not self.is_alive and "something else does" in self._last_words():
                # A worker that was not yet at work when its parent was killed has the port still, and will find out.
                super().start(*altered)
            assert self.is_alive, self.said
            with suppress(queue.Empty):
                self.heard.get(timeout=1.0)
        self.notice: dict[str, Any] = json.loads(self.lines[0])
        assert "address" in self.notice, self.said

    def _last_words(self) -> str:
        self.wait()
        return self.said

    @property
    def url(self) -> str:
        return str(self.notice["address"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def workers(self) -> list[int]:
        """Its children that live, as the kernel knows them; none where it answers itself."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in pids if is_running(int(pid))]

    def kill_worker(self, which: int) -> bool:
        """Kill one of them, in whose place another comes; whether there was one."""
        workers = self.workers
        if not workers:
            return False
        os.kill(workers[which % len(workers)], signal.SIGKILL)
        return True


def is_running(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
