"""Faults around processes: a full disk, and a proxy that loses responses."""

from __future__ import annotations

import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.children import PATIENCE

_BYTES = 4096


class SmallDisk:
    """A small file system mounted on a directory."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    @contextmanager
    def fill(self, but: int = 0) -> Iterator[None]:
        """Fill the file system for a while, except for some bytes."""
        with self._filler.open("wb", buffering=0) as filler:
            with suppress(OSError):
                while filler.write(bytes(_BYTES)):
                    pass
            filler.truncate(filler.tell() - but)
        yield
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small file system on a directory; skip the test if that is not allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def small_files(pid: int, n_bytes: int) -> Iterator[None]:
    """Limit the size of files that a process can write, for a while."""
    infinite = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, infinite))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (infinite, infinite))


class LossyProxy:
    """A TCP proxy that drops all responses of every fourth connection and leaves it open.

    Parameters
    ----------
    stack
        Closes all connections at its end.
    """

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.unanswered: list[str] = []
        Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            for n in count(1):
                near = self._stack.enter_context(self._listener.accept()[0])
                far = self._stack.enter_context(
                    socket.create_connection(("127.0.0.1", self._port), PATIENCE)
                )
                back = self._lose if n % 4 == 0 else self._carry
                Thread(target=self._carry, args=(near, far), daemon=True).start()
                Thread(target=back, args=(far, near), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _lose(self, source: socket.socket, _target: socket.socket) -> None:
        """Read the response and drop it; note its status line."""
        with suppress(OSError):
            while data := source.recv(_BYTES):
                self.unanswered.append(data.split(b"\r\n")[0].decode("latin-1"))
