"""The processes that ``shoal hello`` starts: each in a session of its own, heard through files, and gone when the demonstration is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shoal.cli.hello_child import GRACE_SECONDS
from shoal.command_lines import terminate
from shoal.errors import ShoalError

_LOOK_SECONDS = 0.05
_SOURCE = str(Path(__file__).parents[2])
_SAID = 600
"""Most characters that are repeated of what a process said."""


class Child:
    """A module of shoal that runs in a process of its own.

    Parameters
    ----------
    name
        By which it is spoken of, and its files are called.
    home
        Where it runs, and what it says is kept.
    module, words
        What is run.
    """

    def __init__(self, name: str, home: Path, module: str, *words: str | Path) -> None:
        self.name = name
        self._out, self._err = home / f"{name}.out", home / f"{name}.err"
        path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shoal.cli.hello_child", module, *map(str, words)],
                cwd=home,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._out.read_text("utf-8")

    def first_line(self) -> str:
        """The first line that it prints, once it has."""
        while "\n" not in (said := self.said):
            if self.has_ended:
                raise self.failure()
            time.sleep(_LOOK_SECONDS)
        return said.partition("\n")[0]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.process.poll()

    def failure(self) -> ShoalError:
        """What to say where it has not done what it should."""
        words = " ".join(f"{self._err.read_text('utf-8', 'replace')} {self.said}".split()) or "nothing"
        what = f"The demonstration's {self.name} has ended with exit code {self.code}."
        return ShoalError("HELLO-001", what, why=f"It said: {words[:_SAID]}", fix="shoal doctor says what is missing on this machine.")

    def end(self) -> None:
        """Let it finish, or kill it if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            # Where even this is interrupted, the end of the pipe ends it.
            if self.process.stdin is not None:
                with suppress(OSError):
                    self.process.stdin.close()


@contextmanager
def children(home: Path) -> Iterator[Callable[..., Child]]:
    """A function that starts processes, as `Child` takes them; all have ended afterwards, whatever happens."""
    with ExitStack() as stack:

        def start(name: str, module: str, *words: str | Path) -> Child:
            child = Child(name, home, module, *words)
            stack.callback(child.end)
            return child

        yield start


def wait_for(some: list[Child], while_waiting: Callable[[], None]) -> None:
    """Return when all have ended."""
    while not all(child.has_ended for child in some):
        while_waiting()
        time.sleep(_LOOK_SECONDS)


@contextmanager
def heeding_hang_up() -> Iterator[None]:
    """Let a terminal that is closed do what an interruption does, unless whoever started us wants it ignored."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
