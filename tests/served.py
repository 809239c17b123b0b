"""``shoal serve`` and ``shoal join`` as real processes: how a test starts them, hears what they say, and ends them."""

from __future__ import annotations

import json
import os
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx2

from certificates import Certificates
from shoal.clock import SystemClock
from shoal.participant.journal import Joined, Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger import SPENT, Entry
from shoal.privacy.records import State

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENCE = 180
"""Seconds after which a process that says nothing is taken for one that hangs."""
SHOAL = ("-m", "shoal")
FLEET = ("-m", "shoal.participant.fleet")


def toml_of(document: Mapping[str, Any]) -> str:
    """A study as its file has it: plain values, tables and arrays of tables; None is left out."""

    def lines(values: Mapping[str, Any]) -> Iterable[str]:
        return (f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)

    plain = {key: value for key, value in document.items() if not isinstance(value, dict) and key != "feature"}
    text = ["spec = 1", *lines(plain)]
    for key, value in document.items():
        text += [f"[{key}]", *lines(value)] if isinstance(value, dict) else []
    for feature in document["feature"]:
        text += ["[[feature]]", *lines(feature)]
    return "\n".join(text) + "\n"


class Process:
    """A Python process that is started with some words; what it says is in files of its own."""

    def __init__(self, log: Path, words: Sequence[str | Path], program: Sequence[str] = SHOAL, home: Path | None = None) -> None:
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            command = [sys.executable, *program, *map(str, words)]
            self.process = subprocess.Popen(command, cwd=home, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End it by SIGKILL, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def code(self) -> int:
        """Its exit code, once it has ended; all that it said is shown where it hangs."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.process.args} hangs: {self.words()}") from None

    def told(self) -> Any:
        """The JSON that it printed; all that it said is shown where it failed."""
        assert self.code() == 0, self.words()
        return self.said()

    def said(self) -> Any:
        """The JSON that it printed, whether or not it failed."""
        return json.loads(self.out.read_text())

    def heard(self, words: str) -> None:
        """Return when it has said something, while it goes on."""
        for _ in range(20 * PATIENCE):
            if words in self.words():
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                break
        assert words in self.words(), self.words()

    def words(self) -> str:
        """All that it has said."""
        return self.out.read_text() + self.err.read_text()


@dataclass(frozen=True)
class At:
    """Where a coordinator is, for those who ask it."""

    url: str
    tls: Certificates | None = None


class Coordinator:
    """A process of ``shoal serve`` that listens, and what it said.

    Parameters
    ----------
    home, arguments
        Its directory, and words of the command line.
    tls
        What it answers with; None for plain HTTP.
    program
        What is run in place of shoal.
    """

    def __init__(self, home: Path, *arguments: str | Path, tls: Certificates | None = None, program: Sequence[str] = SHOAL) -> None:
        files = () if tls is None else ("--tls-cert", tls.certificate, "--tls-key", tls.key)
        command = [sys.executable, *program, "serve", *map(str, (*arguments, *files)), "--json"]
        self.tls = tls
        self.process = subprocess.Popen(command, cwd=home, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE)[1]
        self.said: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    @property
    def url(self) -> str:
        return str(self.said["address"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def studies(self) -> list[str]:
        """Digests, in the order in which they were published."""
        return [study["digest"] for study in self.said["studies"]]

    @property
    def workers(self) -> list[int]:
        """Its children, as the kernel knows them."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    @cached_property
    def trust(self) -> ssl.SSLContext | bool:
        return True if self.tls is None else ssl.create_default_context(cafile=str(self.tls.ca))

    def get(self, path: str, study: str | None = None) -> httpx2.Response:
        """What it answers; of a study, by default of its first."""
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            return http.get(f"{self.url}/v1/studies/{study or self.studies[0]}/{path}")

    def post(self, path: str, study: str | None = None, **how: Any) -> httpx2.Response:
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            return http.post(f"{self.url}/v1/studies/{study or self.studies[0]}/{path}", **how)

    def model(self, study: str | None = None) -> dict[str, Any]:
        """What it has published, once the study has ended."""
        with httpx2.Client(verify=self.trust, timeout=PATIENCE) as http:
            board = f"{self.url}/v1/studies/{study or self.studies[0]}/board?after={10**15 - 1}&wait=30"
            http.get(board)
        answer = self.get("model", study)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def end(self, by: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it said of trouble."""
        self.process.send_signal(by)
        _, trouble = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, trouble


@dataclass(frozen=True)
class Participant:
    """Someone with a table and a ledger, at a command line.

    Parameters
    ----------
    home, name
        The directory of all files, and what they are called by.
    program
        What is run in place of shoal.
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
        """A command with this participant's ledger."""
        log = self.home / f"{self.name}-{command.replace(' ', '-')}-{len(list(self.home.glob(f'{self.name}-*.out')))}"
        return Process(log, [*command.split(), *words, "--ledger", self.ledger, "--json"], self.program, self.home)

    def join(self, coordinator: Coordinator | At, *words: str | Path, max_epsilon: float = 10.0, data: str | Path | None = None) -> Process:
        """``shoal join`` without a terminal, by someone who agrees up to a price."""
        agreed = ("--data", data or self.data, "--yes", "--max-epsilon", str(max_epsilon))
        return self.start("join", coordinator.url, *agreed, *trusting(coordinator), *words)

    def read(self, coordinator: Coordinator | At, *words: str | Path) -> Process:
        """``shoal join --read-only``."""
        return self.start("join", coordinator.url, "--read-only", *trusting(coordinator), *words)

    def entries(self, study: str | None = None) -> tuple[Entry, ...]:
        """What the ledger has of a study; it is checked whole."""
        with LedgerFile(self.ledger, SystemClock()) as ledger:
            ledger.verify()
            return tuple(entry for entry in ledger.entries() if study in (None, entry.study))

    def payloads(self, study: str) -> dict[str, bytes]:
        """All answers to a study, as they were stored before they were sent."""
        with LedgerFile(self.ledger, SystemClock()) as ledger:
            return {
                entry.release.question: ledger.payload(study, entry.release.question) for entry in ledger.entries() if entry.study == study
            }

    def spent(self, study: str | None = None) -> int:
        """The price in grains of what may have left."""
        return sum(entry.cost for entry in self.entries(study) if entry.state in SPENT)

    def grains(self, study: str | None = None) -> int:
        """The price of all that was asked, of which everything was sent and acknowledged."""
        assert {entry.state for entry in self.entries(study)} <= {State.SENT}
        return self.spent(study)

    def joined(self, study: str) -> Joined:
        """What its journal says of a study."""
        with Journal(self.ledger, SystemClock()) as journal:
            found = journal.study(study)
        assert found is not None
        return found

    def seed(self) -> bytes:
        """Its secret."""
        with Journal(self.ledger, SystemClock()) as journal:
            found = journal.seed()
        assert found is not None
        return found


def trusting(coordinator: Coordinator | At) -> tuple[str | Path, ...]:
    """The option by which a participant knows the coordinator's certificate."""
    return () if coordinator.tls is None else ("--ca", coordinator.tls.ca)


def roster_of(stack: ExitStack, people: Sequence[Participant]) -> Path:
    """The file of a roster with all of them, made of what ``shoal identity`` prints."""
    keys = all_told(stack, [one.start("identity", "--name", one.name) for one in people])
    path = people[0].home / "roster.toml"
    path.write_text("\n".join(f'[[member]]\nname = "{key["name"]}"\nkey = "{key["key"]}"' for key in keys))
    return path


def fleet(log: Path, coordinator: Coordinator | At, data: Path, directory: Path, n: int, *words: str | Path) -> Process:
    """A process with many participants; their ledgers are `Participant` (directory, "participant-00000") and so on."""
    given = (coordinator.url, "--data", data, "--participants", str(n), "--directory", directory, *trusting(coordinator), *words)
    return Process(log, given, FLEET)


def all_told(stack: ExitStack, processes: Sequence[Process]) -> list[Any]:
    """What each of some processes that run together comes to; none is left behind."""
    for process in processes:
        stack.callback(process.kill)
    return [process.told() for process in processes]
