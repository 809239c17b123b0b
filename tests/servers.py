"""Real PostgreSQL and Redis servers of a test's own, on loopback ports that were free, in directories that go away with them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest

_ATTEMPTS = 100
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


class Server(ABC):
    """A server process: killed as by kill -9 at any moment, and started again on the same files and port; `log` has what it says."""

    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.port = free_port()
        if as_account():
            os.chown(folder, as_account()["user"], as_account()["group"])
        self.prepare()
        self.start()

    @property
    @abstractmethod
    def url(self) -> str:
        """Its address."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self) -> None:
        """Make the files that it needs."""
        return

    @abstractmethod
    def command(self) -> list[str]: ...

    def start(self) -> None:
        """Start it, and return when it answers; one whose predecessor was just killed may have to be tried again."""
        for _ in range(_ATTEMPTS):
            self._process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **as_account()
            )
            said = self._process.stdout
            assert said is not None
            lines = []
            for line in said:
                lines.append(line)
                if "eady to accept connections" in line:
                    # Whoever does not read what it says would make it wait some time.
                    self._reader = Thread(target=self.log.extend, args=(said,), daemon=True)
                    self._reader.start()
                    return
            self._process.wait()
            said.close()
        raise RuntimeError(f"{self.command()[0]} does not start: {''.join(lines[-5:])}")

    def kill(self) -> None:
        """End it and its children by SIGKILL."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        for pid in (self.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._gone()

    def restart(self) -> None:
        """Start it again after `kill`."""
        self.start()

    def stop(self) -> None:
        """End it, if it was not killed, without giving it time to write anything."""
        if self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            self._gone()

    def _gone(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Postgres(Server):
    """PostgreSQL with ``fsync``, as installed; `new_database` is an address where nothing is yet."""

    stop_signal = signal.SIGQUIT

    def prepare(self) -> None:
        self._names = count()
        made = subprocess.run(
            [_postgres("initdb"), "-D", self.folder / "data", "-U", "shoal", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            text=True,
            **as_account(),
        )
        assert made.returncode == 0, made.stderr

    def command(self) -> list[str]:
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self.folder, "log_checkpoints": "off"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [_postgres("postgres"), "-D", str(self.folder / "data"), *flags]

    @property
    def url(self) -> str:
        return f"postgresql://shoal@127.0.0.1:{self.port}/postgres"

    def new_database(self) -> str:
        """An address where nothing is yet: a schema of its own, which is made sooner than a whole database and looks the same."""
        import psycopg

        name = f"test{next(self._names)}"
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}?options=-csearch_path%3D{name}"


class Redis(Server):
    """Redis that has what it has answered on the disk."""

    def command(self) -> list[str]:
        folder = str(self.folder)
        flags = ("--dir", folder, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always")
        return ["redis-server", "--port", str(self.port), *flags]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


S = TypeVar("S", bound=Server)


@contextmanager
def postgres() -> Iterator[Postgres]:
    if not _FOLDERS and shutil.which("initdb") is None:
        pytest.skip("postgresql is not installed (Debian: apt-get install postgresql)")
    with _running(Postgres) as server:
        yield server


@contextmanager
def redis() -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with _running(Redis) as server:
        yield server


@contextmanager
def _running(kind: type[S]) -> Iterator[S]:
    # Not under tmp_path: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="shoal-server-", ignore_cleanup_errors=True) as folder:
        server = kind(Path(folder))
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """A port on loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_account() -> dict[str, Any]:
    """Whom a server runs as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _postgres(program: str) -> str:
    return str(_FOLDERS[0] / program) if _FOLDERS else program
