"""Real processes for tests: PostgreSQL, Redis, coordinators and participants.

Servers listen on free loopback ports and keep their files in temporary directories. `live` runs a
coordinator over HTTP in a thread, for tests that connect to it from their own event loop.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import pwd
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

import httpx2
import pytest
import uvicorn

from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.publishing import load_or_create_secrets
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import Store, StudyTotals
from shoal.data.tables import Table
from shoal.entropy import SystemEntropy
from shoal.participant.journal import JoinedStudy, Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry
from shoal.study.manifest import Manifest
from tests.support.coordinator import publish_manifest
from tests.support.participants import make_table
from tests.support.tls import Certificates

_ATTEMPTS = 100
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


class Server(ABC):
    """A server process that can be killed and started again on the same files and port.

    `log` has its output.
    """

    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.port = free_port()
        if choose_account():
            os.chown(folder, choose_account()["user"], choose_account()["group"])
        self.prepare()
        self.start()

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the server."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self) -> None:
        """Create the files that the server needs."""
        return

    @abstractmethod
    def command(self) -> list[str]: ...

    def start(self) -> None:
        """Start the server and return when it answers; retry if an old process still ends."""
        for _ in range(_ATTEMPTS):
            self._process = subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                **choose_account(),
            )
            said = self._process.stdout
            assert said is not None
            lines = []
            for line in said:
                lines.append(line)
                if "eady to accept connections" in line:
                    # The server would block if its output was not read.
                    self._reader = Thread(target=self.log.extend, args=(said,), daemon=True)
                    self._reader.start()
                    return
            self._process.wait()
            said.close()
        raise RuntimeError(f"{self.command()[0]} does not start: {''.join(lines[-5:])}")

    def kill(self) -> None:
        """End the server and its children with SIGKILL."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        for pid in (self.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._gone()

    def restart(self) -> None:
        """Start the server again after `kill`."""
        self.start()

    def stop(self) -> None:
        """End the server, if it runs, without time to write anything."""
        if self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            self._gone()

    def _gone(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Postgres(Server):
    """PostgreSQL with ``fsync``, as installed; see `new_database`."""

    stop_signal = signal.SIGQUIT

    def prepare(self) -> None:
        self._names = count()
        made = subprocess.run(
            [
                _postgres("initdb"),
                "-D",
                self.folder / "data",
                "-U",
                "shoal",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            **choose_account(),
        )
        assert made.returncode == 0, made.stderr

    def command(self) -> list[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "log_checkpoints": "off",
        }
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [_postgres("postgres"), "-D", str(self.folder / "data"), *flags]

    @property
    def url(self) -> str:
        return f"postgresql://shoal@127.0.0.1:{self.port}/postgres"

    def new_database(self) -> str:
        """Return the address of an empty schema, which is faster to create than a database."""
        import psycopg

        name = f"test{next(self._names)}"
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}?options=-csearch_path%3D{name}"


class Redis(Server):
    """Redis that writes each answered command to the disk."""

    def command(self) -> list[str]:
        folder = str(self.folder)
        flags = (
            "--dir",
            folder,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        )
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
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def choose_account() -> dict[str, Any]:
    """Return the account of a server process: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _postgres(program: str) -> str:
    return str(_FOLDERS[0] / program) if _FOLDERS else program


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENCE = 180
"""Seconds after which a process that says nothing is taken for one that hangs."""
SHOAL = ("-m", "shoal")
FLEET = ("-m", "shoal.cli.fleet")


def format_toml(document: Mapping[str, Any]) -> str:
    """Return the study file of a document: plain values, tables, arrays of tables; no None."""

    def lines(values: Mapping[str, Any]) -> Iterable[str]:
        return (
            f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None
        )

    plain = {
        key: value
        for key, value in document.items()
        if not isinstance(value, dict) and key != "feature"
    }
    text = ["spec = 1", *lines(plain)]
    for key, value in document.items():
        text += [f"[{key}]", *lines(value)] if isinstance(value, dict) else []
    for feature in document["feature"]:
        text += ["[[feature]]", *lines(feature)]
    return "\n".join(text) + "\n"


class Process:
    """A Python process whose output goes to two files."""

    def __init__(
        self,
        log: Path,
        words: Sequence[str | Path],
        program: Sequence[str] = SHOAL,
        home: Path | None = None,
    ) -> None:
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            command = [sys.executable, *program, *map(str, words)]
            self.process = subprocess.Popen(
                command, cwd=home, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End the process with SIGKILL, if it runs."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """Wait for the exit code; show the output if the process hangs."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.process.args} hangs: {self.read_output()}") from None

    def wait_for_result(self) -> Any:
        """Wait for the JSON of a process that succeeds; show the output if it fails."""
        assert self.wait() == 0, self.read_output()
        return self.read_result()

    def read_result(self) -> Any:
        """Return the JSON that the process printed."""
        return json.loads(self.out.read_text())

    def wait_for_output(self, words: str) -> None:
        """Wait until the running process has printed some words."""
        for _ in range(20 * PATIENCE):
            if words in self.read_output():
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                break
        assert words in self.read_output(), self.read_output()

    def read_output(self) -> str:
        """Return all output so far."""
        return self.out.read_text() + self.err.read_text()


@dataclass(frozen=True)
class At:
    """The address of a coordinator, for its clients."""

    url: str
    tls: Certificates | None = None


class Coordinator:
    """A process of ``shoal serve`` that listens, and its first line of output.

    Parameters
    ----------
    home, arguments
        Working directory, and words of the command line.
    tls
        None for plain HTTP.
    program
        Replaces ``-m shoal``.
    """

    def __init__(
        self,
        home: Path,
        *arguments: str | Path,
        tls: Certificates | None = None,
        program: Sequence[str] = SHOAL,
    ) -> None:
        files = () if tls is None else ("--tls-cert", tls.certificate, "--tls-key", tls.key)
        command = [sys.executable, *program, "serve", *map(str, (*arguments, *files)), "--json"]
        self.tls = tls
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        self.notice: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    @property
    def url(self) -> str:
        return str(self.notice["address"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def studies(self) -> list[str]:
        """Digests in the order of publication."""
        return [study["digest"] for study in self.notice["studies"]]

    @property
    def workers(self) -> list[int]:
        """Child processes, from the kernel."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    @cached_property
    def trust(self) -> ssl.SSLContext | bool:
        return True if self.tls is None else ssl.create_default_context(cafile=str(self.tls.ca))

    def get(self, path: str, study: str | None = None) -> httpx2.Response:
        """Return the response to a GET, by default for the first study."""
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            return http.get(f"{self.url}/v1/studies/{study or self.studies[0]}/{path}")

    def post(self, path: str, study: str | None = None, **how: Any) -> httpx2.Response:
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            return http.post(f"{self.url}/v1/studies/{study or self.studies[0]}/{path}", **how)

    def model(self, study: str | None = None) -> dict[str, Any]:
        """Wait for the end of a study and return the published model."""
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            board = (
                f"{self.url}/v1/studies/{study or self.studies[0]}/board?after={10**15 - 1}&wait=30"
            )
            http.get(board)
        answer = self.get("model", study)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def end(self, by: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and standard error."""
        self.process.send_signal(by)
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble


@dataclass(frozen=True)
class Participant:
    """A participant at a command line, with a table and a ledger.

    Parameters
    ----------
    home, name
        Directory of all files, and the stem of their names.
    program
        Replaces ``-m shoal``.
    """

    home: Path
    name: str
    program: Sequence[str] = SHOAL

    @property
    def ledger(self) -> Path:
        return self.home / f"{self.name}.db"

    @property
    def data(self) -> Path:
        return self.home / f"{self.name}.csv"

    def start(self, command: str, *words: str | Path) -> Process:
        """Start a command with this participant's ledger."""
        n_logs = len(list(self.home.glob(f"{self.name}-*.out")))
        log = self.home / f"{self.name}-{command.replace(' ', '-')}-{n_logs}"
        return Process(
            log,
            [*command.split(), *words, "--ledger", self.ledger, "--json"],
            self.program,
            self.home,
        )

    def join(
        self,
        coordinator: Coordinator | At,
        *words: str | Path,
        max_epsilon: float = 10.0,
        data: str | Path | None = None,
    ) -> Process:
        """Start ``shoal join`` without a terminal, with consent up to a price."""
        agreed = ("--yes", "--max-epsilon", str(max_epsilon), "--new-ledger")
        return self.start(
            "join",
            coordinator.url,
            "--data",
            data or self.data,
            *agreed,
            *list_trust_options(coordinator),
            *words,
        )

    def read(self, coordinator: Coordinator | At, *words: str | Path) -> Process:
        """Start ``shoal join --read-only``."""
        return self.start(
            "join",
            coordinator.url,
            "--read-only",
            "--new-ledger",
            *list_trust_options(coordinator),
            *words,
        )

    def entries(self, study: str | None = None) -> tuple[LedgerEntry, ...]:
        """Verify the ledger and return its entries of a study."""
        with LedgerFile(self.ledger, SystemClock()) as ledger:
            ledger.verify()
            return tuple(entry for entry in ledger.entries() if study in (None, entry.study))

    def payloads(self, study: str) -> dict[str, bytes]:
        """Return all answers to a study, as stored before they were sent."""
        with LedgerFile(self.ledger, SystemClock()) as ledger:
            return {
                entry.release.question: ledger.read_payload(study, entry.release.question)
                for entry in ledger.entries()
                if entry.study == study
            }

    def spent(self, study: str | None = None) -> int:
        """Return the price, in grains, of all answers that may have been sent."""
        return sum(entry.cost for entry in self.entries(study) if entry.state in SPENT_STATES)

    def grains(self, study: str | None = None) -> int:
        """Return the price of all answers; check that all were sent and acknowledged."""
        assert {entry.state for entry in self.entries(study)} <= {ReleaseState.SENT}
        return self.spent(study)

    def joined(self, study: str) -> JoinedStudy:
        """Return the journal's record of a study."""
        with Journal(self.ledger, SystemClock()) as journal:
            found = journal.find_study(study)
        assert found is not None
        return found

    def seed(self) -> bytes:
        """Return the secret seed."""
        with Journal(self.ledger, SystemClock()) as journal:
            found = journal.read_seed()
        assert found is not None
        return found


def list_trust_options(coordinator: Coordinator | At) -> tuple[str | Path, ...]:
    """Return the options that make a participant trust the coordinator's certificate."""
    return () if coordinator.tls is None else ("--ca", coordinator.tls.ca)


def write_roster(stack: ExitStack, people: Sequence[Participant]) -> Path:
    """Write the roster of some participants from the output of ``shoal identity``."""
    keys = wait_for_results(
        stack, [one.start("identity", "--name", one.name, "--new-ledger") for one in people]
    )
    path = people[0].home / "roster.toml"
    path.write_text(
        "\n".join(f'[[member]]\nname = "{key["name"]}"\nkey = "{key["key"]}"' for key in keys)
    )
    return path


def fleet(
    log: Path,
    coordinator: Coordinator | At,
    data: Path,
    directory: Path,
    n: int,
    *words: str | Path,
) -> Process:
    """Start a fleet; its ledgers are ``participant-00000.db``, ... in the directory."""
    given = (
        coordinator.url,
        "--data",
        data,
        "--participants",
        str(n),
        "--directory",
        directory,
        *list_trust_options(coordinator),
        *words,
    )
    return Process(log, given, FLEET)


def wait_for_results(stack: ExitStack, processes: Sequence[Process]) -> list[Any]:
    """Wait for the results of concurrent processes; leave none of them running."""
    for process in processes:
        stack.callback(process.kill)
    return [process.wait_for_result() for process in processes]


@dataclass(frozen=True)
class Live:
    """A running coordinator and its store."""

    url: str
    store: Store

    def totals(self, manifest: Manifest) -> StudyTotals:
        return self.store.count_totals(manifest.digest.hex())

    def publish(
        self, manifest: Manifest, patience: int = 5_000, invitations: Sequence[str] = ()
    ) -> str:
        publish_manifest(
            self.store,
            manifest,
            int(SystemClock().now().timestamp() * 1000),
            phase_timeout=patience,
            invitations=invitations,
        )
        return manifest.digest.hex()


@contextmanager
def live(folder: Path, *manifests: Manifest) -> Iterator[Live]:
    """Run a coordinator with some studies in a thread, on a free port."""
    url = f"sqlite:{folder / 'coordinator.db'}"
    listener = socket.create_server(("127.0.0.1", 0))
    with open_store(url) as store, open_instance_store(None, url) as models:
        load_or_create_secrets(store, SystemEntropy())
        found = Live(f"http://127.0.0.1:{listener.getsockname()[1]}", store)
        for manifest in manifests:
            found.publish(manifest)
        service = CoordinatorService(
            store, models, SystemClock(), SystemEntropy(), "the only worker"
        )
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                lifespan="off",
                access_log=False,
                log_level="error",
                log_config=None,
            )
        )

        loop: asyncio.AbstractEventLoop | None = None

        async def serve() -> None:
            nonlocal loop
            loop = asyncio.get_running_loop()
            await service.start()
            try:
                await server.serve([listener])
            finally:
                await service.stop()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            yield found
        finally:
            server.should_exit = True
            if loop is not None:
                loop.call_soon_threadsafe(service.mailbox.notifier.close)
            thread.join()


def write_csv(path: Path, n: int, seed: int | str = 0) -> Path:
    """Write rows that fit the studies of `participants`."""
    write_table(path, make_table(n, seed))
    return path


def write_table(path: Path, table: Table) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
