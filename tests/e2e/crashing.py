"""Studies between real processes that are killed: serve, join, fleets, PostgreSQL and Redis.

Kills are spread over the whole study, by the number of enrolments and messages in the store.
`check` then compares acknowledged messages with counted ones.
"""

from __future__ import annotations

import json
import queue
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from shoal.cli.fleet import make_fleet_roster, make_ledger_path
from shoal.clock import SystemClock
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyRecord, StudyTotals
from shoal.coordinator.store.statements import LATE_CODE
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import StoreError
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry
from shoal.privacy.rounding import DELTA_GRAINS, grains_down, grains_up
from shoal.study.attachments import load_roster
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from tests.e2e.children import PATIENCE, Coordinator, Process, is_running
from tests.e2e.crash_cases import Case
from tests.support.servers import Server, free_port, write_csv

_AWAY = ("NET-001", "NET-002", "HOST-004")
"""Codes of a participant that ended because the coordinator was down; it is started again."""


class Kill(NamedTuple):
    """A killed process, and the number of enrolments and messages before it."""

    victim: str
    after: int


@dataclass
class Scene:
    """One run of a case in its own folder; earlier runs of the case had `n_before` kills."""

    case: Case
    folder: Path
    entropy: SeededEntropy
    servers: Mapping[str, Server]
    stack: ExitStack
    events: queue.SimpleQueue[Process] = field(default_factory=queue.SimpleQueue)
    kills: list[Kill] = field(default_factory=list)
    coordinator: Coordinator = field(init=False)
    participants: list[Process] = field(default_factory=list)
    n_before: int = 0
    n_done: int = 0

    def __post_init__(self) -> None:
        self.ledgers, self.disk = self.folder / "ledgers", self.folder / "disk"
        for folder in (self.ledgers, self.disk):
            folder.mkdir(parents=True)
        # Studies that share a database need different digests.
        (self.folder / "study.toml").write_text(
            self.case.text.replace("Wind", f"Wind {self.entropy.bytes(8).hex()}")
        )
        write_csv(self.folder / "rows.csv", self.case.rows, self.entropy.bytes(8).hex())
        self._make_ledgers()
        postgresql = self.servers.get("postgres")
        self.store_url = (
            f"sqlite:{self.disk / 'coordinator.db'}"
            if postgresql is None
            else postgresql.new_database()
        )  # type: ignore[attr-defined]
        self.models_url = self.servers["redis"].url if "redis" in self.servers else None
        serve = [
            "shoal",
            "serve",
            "study.toml",
            "--store",
            self.store_url,
            "--json",
            "--port",
            str(free_port()),
        ]
        serve += ["--patience", str(self.case.patience), "--workers", str(self.case.n_workers)]
        serve += [] if self.models_url is None else ["--models", self.models_url]
        serve += ["--roster", "roster.toml"] if self.case.has_roster else []
        serve += [] if self.case.has_tokens else ["--tickets"]
        self.coordinator = Coordinator("coordinator", serve, self.folder, self.events)
        self.stack.callback(self.coordinator.clear)

    @property
    def ledger_files(self) -> list[Path]:
        return [make_ledger_path(self.ledgers, i) for i in range(self.case.n)]

    @property
    def manifest(self) -> Manifest:
        if self.case.has_tokens:
            # The manifest contains keys of the coordinator.
            with open_store(self.store_url) as store:
                return Manifest.from_bytes(store.list_studies()[-1].manifest)
        roster = load_roster(self.folder / "roster.toml") if self.case.has_roster else ()
        return Manifest(load_study(self.folder / "study.toml"), roster=roster)

    @property
    def digest(self) -> str:
        return self.manifest.digest.hex()

    def begin(self) -> None:
        """Start the coordinator and all participants."""
        self.coordinator.start()
        for process in self.make_participants():
            process.start()

    def make_participants(self) -> list[Process]:
        """Return the participants, not started yet; the coordinator must listen."""
        for i, command in enumerate(self.commands()):
            process = Process(
                f"participant {i}" if self.case.apart else "fleet",
                command,
                self.folder,
                self.events,
            )
            self.stack.callback(process.clear)
            self.participants.append(process)
        return self.participants

    def make_second_coordinator(self, store: str | None = None) -> Coordinator:
        """Return another coordinator of the study, with the same store or another one."""
        command = [
            store if store is not None and word == self.store_url else word
            for word in self.coordinator.command
        ]
        command[command.index("--port") + 1] = str(free_port())
        process = Coordinator("second coordinator", command, self.folder, self.events)
        self.stack.callback(process.clear)
        return process

    def commands(self) -> Iterator[list[str]]:
        url, data = self.coordinator.url, ["--data", str(self.folder / "rows.csv")]
        if self.case.apart:
            for path in self.ledger_files:
                yield [
                    "shoal",
                    "join",
                    url,
                    *data,
                    "--ledger",
                    str(path),
                    "--yes",
                    "--max-epsilon",
                    "100",
                ]
        else:
            crew = [
                "--participants",
                str(self.case.n),
                "--directory",
                "ledgers",
                "--at-once",
                str(self.case.at_once or self.case.n),
            ]
            # A fleet that is started after the end must name the study.
            yield ["shoal.cli.fleet", url, *data, *crew, "--study", self.digest]

    def kill_next(self) -> None:
        """Kill the next process after a random pause, and start it again.

        Only processes that were still running are counted.
        """
        victims = self.case.victims
        victim = victims[(self.n_before + len(self.kills)) % len(victims)]
        self._wait_for_event(self.entropy.below(30) / 1000)
        if self._kill(victim):
            self.kills.append(Kill(victim, self.n_done))

    def _kill(self, victim: str) -> bool:
        match victim:
            case "coordinator":
                assert self.coordinator.end() == -signal.SIGKILL, self.coordinator.output
                self.coordinator.start()
            case "worker":
                return self.coordinator.kill_worker(self.entropy.below(8))
            case "participant":
                alive = [one for one in self.participants if one.is_alive]
                if (
                    not alive
                    or (one := alive[self.entropy.below(len(alive))]).end() != -signal.SIGKILL
                ):
                    return False
                one.start()
            case _:
                server = self.servers[victim]
                assert is_running(server.pid)
                server.kill()
                server.restart()
        return True

    @property
    def is_under_way(self) -> bool:
        """A participant runs, or has failed and must be started again."""
        return any(
            one.is_alive or one.process.returncode
            for one in self.participants
            if one.process is not None
        )

    def run(self, n_kills: int = 0, until: Callable[[], bool] = lambda: False) -> None:
        """Run until all participants have ended with exit code 0, or until a condition holds."""
        deadline = time.monotonic() + 3 * PATIENCE
        # One moment in each of n_kills equal parts of the study.
        moments = [
            (self.case.n_steps * i + self.entropy.below(self.case.n_steps)) // n_kills
            for i in range(n_kills)
        ]
        with self._count_steps() as n_done:
            while self.is_under_way and not until():
                assert time.monotonic() < deadline, [
                    (one.name, one.output) for one in self.participants
                ]
                self._wait_for_event(0.01 if len(self.kills) < n_kills else 1.0)
                self.start_again()
                self.n_done = n_done()
                if len(self.kills) < n_kills and self.n_done >= moments[len(self.kills)]:
                    self.kill_next()
        for one in self.participants:
            if not one.is_alive:
                one.wait()

    @contextmanager
    def _count_steps(self) -> Iterator[Callable[[], int]]:
        """Yield a function that counts enrolments and messages in the store.

        It returns the last count while the store cannot be reached.
        """
        digest = self.digest
        with (
            open_store(self.store_url) as store,
            open_instance_store(self.models_url, self.store_url) as models,
        ):

            def n_done() -> int:
                with suppress(StoreError):
                    totals = store.count_totals(digest)
                    return totals.enrolled + totals.accepted + _count_merged(models, digest)
                return self.n_done

            yield n_done

    def _wait_for_event(self, seconds: float) -> None:
        """Wait for a line of output of any process, at most for some seconds."""
        with suppress(queue.Empty):
            self.events.get(timeout=seconds)

    def start_again(self, *codes: str) -> None:
        """Start participants again that ended with no coordinator or with one of these codes."""
        for one in self.participants:
            if not one.is_alive and one.process is not None and one.process.returncode != 0:
                one.wait()
                assert any(code in one.output for code in (*_AWAY, *codes)), (one.name, one.output)
                one.start()

    def wait_for_end(self) -> str:
        """Wait for the end of the study and return its status; for DDML, set the clock forward."""
        if self.manifest.study.protocol == "ddml":
            self.coordinator.clock.put(self.case.patience + 1)
        return str(
            ask(
                self.coordinator.url,
                f"/v1/studies/{self.digest}",
                lambda document: document["status"] != "open",
            )["status"]
        )

    def load_record(self) -> tuple[StudyRecord, StudyTotals]:
        """Return the study and its totals from the store, after all processes have ended."""
        with open_store(self.store_url) as store:
            hosted = store.find_study(self.digest)
            assert hosted is not None
            return hosted, store.count_totals(self.digest)

    def count_merged(self) -> int:
        """Return the number of merged updates of DDML in the store."""
        with open_instance_store(self.models_url, self.store_url) as models:
            return _count_merged(models, self.digest)

    def entries(self) -> list[list[LedgerEntry]]:
        """Return the entries of each participant's ledger; verify the ledgers and their totals."""
        found = []
        for path in self.ledger_files:
            with LedgerFile(path, SystemClock()) as ledger:
                head = None
                while head != (
                    head := ledger.verify()
                ):  # the participant may add records between two reads
                    entries = [entry for entry in ledger.entries() if entry.study == self.digest]
                    counted = sum(total.spent for total in ledger.totals())
                assert counted == sum(
                    entry.cost for entry in entries if entry.state in SPENT_STATES
                )
                found.append(entries)
        return found

    def _make_ledgers(self) -> None:
        members = make_fleet_roster(self.ledgers, self.case.n, SystemClock(), SystemEntropy())
        blocks = [
            f'[[member]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n'
            for member in members
        ]
        (self.folder / "roster.toml").write_text("".join(blocks))
        if self.case.apart:
            for path in self.ledger_files:
                with LedgerFile(path, SystemClock()) as ledger:
                    ledger.set_limit(
                        Limit(None, grains_down(1000.0), delta_grains=DELTA_GRAINS - 1)
                    )


def _count_merged(models: InstanceStore, digest: str) -> int:
    return 0 if models.find_shape(digest) is None else models.count_merged(digest)


def ask(url: str, route: str, is_enough: Callable[[Any], bool]) -> Any:
    """Repeat a GET until the response meets a condition; return the document."""
    deadline = time.monotonic() + PATIENCE
    with httpx2.Client(timeout=PATIENCE) as http:
        while time.monotonic() < deadline:
            with suppress(httpx2.TransportError):
                response = http.get(url + route)
                if response.status_code == 200 and is_enough(document := response.json()):
                    return document
            select.select([], [], [], 0.05)
    raise AssertionError(f"{route} did not meet the condition")


def check(scene: Scene, *codes: str) -> None:
    """Check that each acknowledged answer counts once and that all ledgers spent the exact price.

    Parameters
    ----------
    codes
        Error codes that rejected requests may have, in addition to repeats after the end.
    """
    assert scene.wait_for_end() == "done"
    assert scene.coordinator.end(signal.SIGTERM) == 0
    assert "Traceback" not in scene.coordinator.output
    case, study = scene.case, scene.manifest.study
    hosted, totals = scene.load_record()
    assert (totals.enrolled, totals.waiting) == (case.n, 0)
    assert case.is_joint or totals.accepted == (0 if study.protocol == "ddml" else case.n_messages)
    assert set(totals.refused) <= {LATE_CODE, *codes}, totals.refused
    entries = scene.entries()
    assert {entry.state for each in entries for entry in each} == {ReleaseState.SENT}
    price = sum(
        grains_up(event.epsilon) for event in make_plan(study, scene.manifest.digest).charges
    )
    assert [sum(entry.cost for entry in each) for each in entries] == [price] * case.n
    n_sent = sum(map(len, entries))
    assert hosted.result is not None
    counts = json.loads(hosted.result)["counts"]
    match study.protocol:
        case "anonml":
            assert sum(counts["answers"]) == n_sent == case.n_messages and counts["late"] == 0
        case "ddml":
            assert counts["merged"] == n_sent == case.n_messages
        case "pfds" if "trees" in counts:
            assert counts["trees"] == len(counts["datasets"]) == case.n and counts["left_out"] == []
        case _:
            assert set(counts["answering"]) == {case.n}
