"""Studies between real processes that are killed while they run: `shoal serve`, `shoal join`, a fleet, PostgreSQL and Redis.

Kills are spread over the whole course of a study, by how much of it is in the store. `check` then compares what was acknowledged with what
was counted.
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

from e2e.children import PATIENCE, Coordinator, Process, is_running
from e2e.crash_cases import Case
from live import write_csv
from servers import Server, free_port
from shoal.clock import SystemClock
from shoal.coordinator.models import open_models
from shoal.coordinator.models.base import ModelStore
from shoal.coordinator.store.base import Hosted, Totals
from shoal.coordinator.store.opening import open_store
from shoal.coordinator.store.statements import LATE
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import StoreError
from shoal.participant.fleet import file_of, roster_of
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import Unit
from shoal.privacy.ledger import SPENT, Entry
from shoal.privacy.limits import Limit, Period
from shoal.privacy.records import State
from shoal.privacy.rounding import DELTA_GRAINS, grains_down, grains_up
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.rosters import load_roster

_AWAY = ("NET-001", "NET-002", "HOST-004")
"""Why a participant ends that was started while nobody answered: whoever started it does so again."""


class Kill(NamedTuple):
    """Who was killed, and after how many enrolments and messages."""

    victim: str
    after: int


@dataclass
class Scene:
    """A case while it is played, in a folder of its own; `n_before` kills fell into others of the same case."""

    case: Case
    folder: Path
    entropy: SeededEntropy
    servers: Mapping[str, Server]
    stack: ExitStack
    heard: queue.SimpleQueue[Process] = field(default_factory=queue.SimpleQueue)
    kills: list[Kill] = field(default_factory=list)
    coordinator: Coordinator = field(init=False)
    participants: list[Process] = field(default_factory=list)
    n_before: int = 0
    n_done: int = 0

    def __post_init__(self) -> None:
        self.ledgers, self.disk = self.folder / "ledgers", self.folder / "disk"
        for folder in (self.ledgers, self.disk):
            folder.mkdir(parents=True)
        # Studies that share a database have digests of their own.
        (self.folder / "study.toml").write_text(self.case.text.replace("Wind", f"Wind {self.entropy.bytes(8).hex()}"))
        write_csv(self.folder / "rows.csv", self.case.rows, self.entropy.bytes(8).hex())
        self._make_ledgers()
        postgresql = self.servers.get("postgres")
        self.store_url = f"sqlite:{self.disk / 'coordinator.db'}" if postgresql is None else postgresql.new_database()  # type: ignore[attr-defined]
        self.models_url = self.servers["redis"].url if "redis" in self.servers else None
        serve = ["shoal", "serve", "study.toml", "--store", self.store_url, "--json", "--port", str(free_port())]
        serve += ["--patience", str(self.case.patience), "--workers", str(self.case.n_workers)]
        serve += [] if self.models_url is None else ["--models", self.models_url]
        serve += ["--roster", "roster.toml"] if self.case.has_roster else []
        serve += [] if self.case.has_tokens else ["--tickets"]
        self.coordinator = Coordinator("coordinator", serve, self.folder, self.heard)
        self.stack.callback(self.coordinator.clear)

    @property
    def ledger_files(self) -> list[Path]:
        return [file_of(self.ledgers, i) for i in range(self.case.n)]

    @property
    def manifest(self) -> Manifest:
        if self.case.has_tokens:
            # Its keys are the coordinator's.
            with open_store(self.store_url) as store:
                return Manifest.from_bytes(store.studies()[-1].manifest)
        roster = load_roster(self.folder / "roster.toml") if self.case.has_roster else ()
        return Manifest(load(self.folder / "study.toml"), roster=roster)

    @property
    def digest(self) -> str:
        return self.manifest.digest.hex()

    def begin(self) -> None:
        """Start everyone."""
        self.coordinator.start()
        for process in self.gather():
            process.start()

    def gather(self) -> list[Process]:
        """The participants, who are not started yet; the coordinator is."""
        for i, command in enumerate(self.commands()):
            process = Process(f"participant {i}" if self.case.apart else "fleet", command, self.folder, self.heard)
            self.stack.callback(process.clear)
            self.participants.append(process)
        return self.participants

    def second(self, store: str | None = None) -> Coordinator:
        """Another coordinator of the same study, at another port, with the same store or one of its own."""
        command = [store if store is not None and word == self.store_url else word for word in self.coordinator.command]
        command[command.index("--port") + 1] = str(free_port())
        process = Coordinator("second coordinator", command, self.folder, self.heard)
        self.stack.callback(process.clear)
        return process

    def commands(self) -> Iterator[list[str]]:
        url, data = self.coordinator.url, ["--data", str(self.folder / "rows.csv")]
        if self.case.apart:
            for path in self.ledger_files:
                yield ["shoal", "join", url, *data, "--ledger", str(path), "--yes", "--max-epsilon", "100"]
        else:
            crew = ["--participants", str(self.case.n), "--directory", "ledgers", "--at-once", str(self.case.at_once or self.case.n)]
            # One that is started again after the end has to say what it means.
            yield ["shoal.participant.fleet", url, *data, *crew, "--study", self.digest]

    def kill_somebody(self) -> None:
        """Kill the next of those who are there, and start it again, after a while of no fixed length; only who dies of it is counted."""
        victims = self.case.victims
        victim = victims[(self.n_before + len(self.kills)) % len(victims)]
        self._listen(self.entropy.below(30) / 1000)
        if self._kill(victim):
            self.kills.append(Kill(victim, self.n_done))

    def _kill(self, victim: str) -> bool:
        match victim:
            case "coordinator":
                assert self.coordinator.end() == -signal.SIGKILL, self.coordinator.said
                self.coordinator.start()
            case "worker":
                return self.coordinator.kill_worker(self.entropy.below(8))
            case "participant":
                alive = [one for one in self.participants if one.is_alive]
                if not alive or (one := alive[self.entropy.below(len(alive))]).end() != -signal.SIGKILL:
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
        """Whether a participant goes on, or is to be started again."""
        return any(one.is_alive or one.process.returncode for one in self.participants if one.process is not None)

    def run(self, n_kills: int = 0, until: Callable[[], bool] = lambda: False) -> None:
        """Until all participants have ended, each with exit code 0, with some kills on the way; or until something else."""
        deadline = time.monotonic() + 3 * PATIENCE
        # One moment in each of as many equal parts of the study.
        moments = [(self.case.n_steps * i + self.entropy.below(self.case.n_steps)) // n_kills for i in range(n_kills)]
        with self._watching() as n_done:
            while self.is_under_way and not until():
                assert time.monotonic() < deadline, [(one.name, one.said) for one in self.participants]
                self._listen(0.01 if len(self.kills) < n_kills else 1.0)
                self.start_again()
                self.n_done = n_done()
                if len(self.kills) < n_kills and self.n_done >= moments[len(self.kills)]:
                    self.kill_somebody()
        for one in self.participants:
            if not one.is_alive:
                one.wait()

    @contextmanager
    def _watching(self) -> Iterator[Callable[[], int]]:
        """What tells how many enrolments and messages the store has; while it cannot be reached, how many it had."""
        digest = self.digest
        with open_store(self.store_url) as store, open_models(self.models_url, self.store_url) as models:

            def n_done() -> int:
                with suppress(StoreError):
                    totals = store.totals(digest)
                    return totals.enrolled + totals.accepted + _n_merged(models, digest)
                return self.n_done

            yield n_done

    def _listen(self, seconds: float) -> None:
        """Wait until somebody says something, or a while."""
        with suppress(queue.Empty):
            self.heard.get(timeout=seconds)

    def start_again(self, *codes: str) -> None:
        """Start those who ended because nobody answered, or for a reason that has one of these codes."""
        for one in self.participants:
            if not one.is_alive and one.process is not None and one.process.returncode != 0:
                one.wait()
                assert any(code in one.said for code in (*_AWAY, *codes)), (one.name, one.said)
                one.start()

    def ended(self) -> str:
        """How the study stands, once it does not go on; waited for, and for one of DDML its time is let pass."""
        if self.manifest.study.protocol == "ddml":
            self.coordinator.clock.put(self.case.patience + 1)
        return str(ask(self.coordinator.url, f"/v1/studies/{self.digest}", lambda told: told["status"] != "open")["status"])

    def stored(self) -> tuple[Hosted, Totals]:
        """The study as the store has it; nobody else uses it any more."""
        with open_store(self.store_url) as store:
            hosted = store.study(self.digest)
            assert hosted is not None
            return hosted, store.totals(self.digest)

    def n_merged(self) -> int:
        """How many updates of DDML are in the store at this moment."""
        with open_models(self.models_url, self.store_url) as models:
            return _n_merged(models, self.digest)

    def entries(self) -> list[list[Entry]]:
        """What each participant's ledger has; all of them are whole, and have counted all that may have left."""
        found = []
        for path in self.ledger_files:
            with LedgerFile(path, SystemClock()) as ledger:
                head = None
                while head != (head := ledger.verify()):  # its participant may be at work, and go on between two looks
                    entries = [entry for entry in ledger.entries() if entry.study == self.digest]
                    counted = sum(total.spent for total in ledger.totals())
                assert counted == sum(entry.cost for entry in entries if entry.state in SPENT)
                found.append(entries)
        return found

    def _make_ledgers(self) -> None:
        members = roster_of(self.ledgers, self.case.n, SystemClock(), SystemEntropy())
        blocks = [f'[[member]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n' for member in members]
        (self.folder / "roster.toml").write_text("".join(blocks))
        if self.case.apart:
            for path in self.ledger_files:
                with LedgerFile(path, SystemClock()) as ledger:
                    for unit in Unit:
                        ledger.set_limit(Limit(unit, grains_down(1000.0), period=Period.EVER, delta_grains=DELTA_GRAINS - 1))


def _n_merged(models: ModelStore, digest: str) -> int:
    return 0 if models.shape(digest) is None else models.n_merged(digest)


def ask(url: str, route: str, is_enough: Callable[[Any], bool]) -> Any:
    """What a route says once it says enough; a coordinator that is not there is asked again."""
    deadline = time.monotonic() + PATIENCE
    with httpx2.Client(timeout=PATIENCE) as http:
        while time.monotonic() < deadline:
            with suppress(httpx2.TransportError):
                response = http.get(url + route)
                if response.status_code == 200 and is_enough(told := response.json()):
                    return told
            select.select([], [], [], 0.05)
    raise AssertionError(f"{route} does not come to what is waited for")


def check(scene: Scene, *codes: str) -> None:
    """Find that what was acknowledged is in the result, once, and that all ledgers have paid the study's price, neither more nor less.

    Parameters
    ----------
    codes
        Of requests that may have been refused, beside what comes a second time after the end.
    """
    assert scene.ended() == "done"
    assert scene.coordinator.end(signal.SIGTERM) == 0
    assert "Traceback" not in scene.coordinator.said
    case, study = scene.case, scene.manifest.study
    hosted, totals = scene.stored()
    assert (totals.enrolled, totals.waiting) == (case.n, 0)
    assert case.is_joint or totals.accepted == (0 if study.protocol == "ddml" else case.n_messages)
    assert set(totals.refused) <= {LATE, *codes}, totals.refused
    entries = scene.entries()
    assert {entry.state for each in entries for entry in each} == {State.SENT}
    price = sum(grains_up(event.epsilon) for event in make_plan(study, scene.manifest.digest).charges)
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
