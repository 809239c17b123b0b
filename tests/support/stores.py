"""All instance stores, for suites that run against each of them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.servers import postgres

KINDS = ("memory", "sqlite", "redis", "postgres")
SHARED = ("sqlite", "redis", "postgres")
"""Those that several processes can open."""
ON_DISK = ("sqlite", "redis-aof")
"""Those that leave something on the disk; the second is a Redis with an append-only file."""


class RedisProcess:
    """A Redis on a socket in a directory, which can be killed and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        path = str(folder / "socket")
        self._command = [
            "redis-server",
            "--port",
            "0",
            "--dir",
            str(folder),
            "--unixsocket",
            path,
            "--save",
            "",
            *settings,
        ]
        self.url = f"unix://{path}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not any("eady to accept connections" in line for line in self._process.stdout):
            raise RuntimeError("redis-server did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def redis_process(*settings: str) -> Iterator[RedisProcess]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    # Not under tmp_path: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="shoal-redis-") as folder:
        process = RedisProcess(Path(folder), *settings)
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def databases() -> Iterator[Callable[[], str]]:
    """Return a function that makes databases; PostgreSQL starts at the first call."""
    with ExitStack() as stack:
        server = cache(lambda: stack.enter_context(postgres()))
        yield lambda: server().new_database()


@contextmanager
def open_address(kind: str, folder: Path, new_database: Callable[[], str]) -> Iterator[str]:
    """Yield the address of a new, empty store."""
    if kind.startswith("redis"):
        with redis_process(
            *(["--appendonly", "yes", "--appendfsync", "always"] if kind == "redis-aof" else [])
        ) as process:
            yield process.url
    elif kind == "postgres":
        yield new_database()
    else:
        yield {"memory": "memory:", "sqlite": f"sqlite:{folder / 'coordinator.db'}"}[kind]


def on_disk(address: str) -> bytes:
    """Return the current content of all files of a store."""
    _, _, path = address.removeprefix("unix://").rpartition(":")
    found = b""
    for file in sorted(Path(path).parent.rglob("*")):
        with suppress(FileNotFoundError):  # Redis deletes what it has rewritten
            found += file.read_bytes() if file.is_file() else b""
    return found
