"""Child processes of ``shoal hello``.

Each runs a module of shoal in its own session and writes its output to files. All of them end when
the demonstration ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shoal.cli.runtime import GRACE_SECONDS, raise_terminated
from shoal.errors import ShoalError

_POLL_SECONDS = 0.05
_SOURCE_DIRECTORY = str(Path(__file__).parents[3])
_MAX_OUTPUT_CHARACTERS = 600
"""Most characters of a process's output that an error quotes."""


class DemoProcess:
    """A module of shoal that runs in a separate process.

    Parameters
    ----------
    name
        Name in errors, and of the output files.
    home
        Working directory, and place of the output files.
    module, arguments
        The module to run, and its command line.
    """

    def __init__(self, name: str, home: Path, module: str, *arguments: str | Path) -> None:
        self.name = name
        self._out, self._err = home / f"{name}.out", home / f"{name}.err"
        path = os.pathsep.join(filter(None, (_SOURCE_DIRECTORY, os.environ.get("PYTHONPATH"))))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "shoal.cli.runtime",
                    module,
                    *map(str, arguments),
                ],
                cwd=home,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "PYTHONUNBUFFERED": "1",
                    "OMP_NUM_THREADS": "1",
                },
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """The standard output so far."""
        return self._out.read_text("utf-8")

    def wait_for_first_line(self) -> str:
        """Return the first line of the output, or raise an error if the process ends before."""
        while "\n" not in (output := self.output):
            if self.has_ended:
                raise self.make_error()
            time.sleep(_POLL_SECONDS)
        return output.partition("\n")[0]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if the process runs."""
        return self.process.poll()

    def make_error(self) -> ShoalError:
        """Return an error that quotes the output of the process."""
        output = (
            " ".join(f"{self._err.read_text('utf-8', 'replace')} {self.output}".split())
            or "nothing"
        )
        return ShoalError(
            "HELLO-001",
            f"The {self.name} of the demonstration ended with exit code {self.exit_code}.",
            why=f"It printed: {output[:_MAX_OUTPUT_CHARACTERS]}",
            fix="shoal doctor shows what is missing on this machine.",
        )

    def stop(self) -> None:
        """Let the process finish, or kill it if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            # If even this is interrupted, the closed pipe ends the process.
            if self.process.stdin is not None:
                with suppress(OSError):
                    self.process.stdin.close()


@contextmanager
def manage_processes(home: Path) -> Iterator[Callable[..., DemoProcess]]:
    """Yield a function that starts processes, with the arguments of `DemoProcess`.

    All processes have ended when the context ends.
    """
    with ExitStack() as stack:

        def start(name: str, module: str, *arguments: str | Path) -> DemoProcess:
            child = DemoProcess(name, home, module, *arguments)
            stack.callback(child.stop)
            return child

        yield start


def wait_for_all(processes: list[DemoProcess], while_waiting: Callable[[], None]) -> None:
    """Return when all processes have ended."""
    while not all(child.has_ended for child in processes):
        while_waiting()
        time.sleep(_POLL_SECONDS)


@contextmanager
def interrupt_on_hangup() -> Iterator[None]:
    """Treat a closed terminal as an interruption, unless the parent process has SIGHUP ignored."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
