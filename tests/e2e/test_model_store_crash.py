"""Instance stores of processes that race or are killed, and killed databases.

Instances stay whole, and each update is merged once or not at all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Protocol

import numpy as np
import pytest

from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import merge_update
from tests.e2e import model_store_child
from tests.e2e.model_store_child import ALIKE, PARAMS, STUDY, K, P, model, name
from tests.support.participants import PROCESSES, child
from tests.support.servers import postgres
from tests.support.stores import SHARED, RedisProcess, databases, open_address, redis_process

PROCESSES.set_forkserver_preload(
    [
        "shoal.coordinator.ddml.model_server",
        "shoal.coordinator.ddml.instances.sqlite",
        "redis",
        "psycopg",
    ]
)


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    with databases() as new:
        yield new


def run_together(
    address: str, arguments: list[tuple[object, ...]], work: Callable[..., None]
) -> list[int]:
    """Return the results of processes that begin at the same time."""
    with ExitStack() as stack:
        links = [stack.enter_context(child(work, address, *each))[0] for each in arguments]
        assert [link.recv() for link in links] == ["ready"] * len(links)
        for link in links:
            link.send("go")
        return [link.recv() for link in links]


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("part", [0.01, 1.0])
def test_concurrent_processes_merge_each_update_once(
    kind: str, part: float, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    n = 300
    with (
        open_address(kind, tmp_path, new_database) as address,
        open_instance_store(None, address) as store,
    ):
        store.create(STUDY, np.zeros((K, P), np.int32))
        counts = run_together(
            address, [(seed, n, part) for seed in range(4)], model_store_child.merge_the_same
        )
        assert sum(counts) == n
        assert sum(count > 0 for count in counts) >= 2
        assert store.count_merged(STUDY) == n
        expected = np.zeros(P, np.int32)
        for _ in range(n // K):
            expected = merge_update(expected, np.frombuffer(model(ALIKE), "<i4"), part)
        assert store.load_instances(STUDY).tolist() == [expected.tolist()] * K
        assert {store.merge(STUDY, 0, name(i), 0, model(-1), part) for i in range(n)} == {
            ("repeated", n)
        }


@pytest.mark.parametrize("kind", SHARED)
def test_concurrent_processes_serve_one_study(
    kind: str, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    """They create the study together, count together, and merge one average."""
    with open_address(kind, tmp_path, new_database) as address:
        counts = run_together(address, [(400,)] * 3, model_store_child.serve)
        with open_instance_store(None, address) as store:
            assert counts == [400] * 3
            assert store.count_merged(STUDY) == 1200
            assert store.list_rejections(STUDY) == {}
            average = store.load_average(STUDY)
            assert average is not None
            assert 0.5 * 1200 / PARAMS.n_instances <= average.n_folds <= 1200 / PARAMS.n_instances


def test_concurrent_processes_create_one_file(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'coordinator.db'}"
    assert run_together(address, [(2,)] * 4, model_store_child.serve) == [2] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.db"]


class Rounds:
    """Account of updates across kills: the expected instances, given the merged updates."""

    def __init__(self, part: float) -> None:
        self.part = part
        self.n_merged = 0
        self.next = 0
        self.expected = np.zeros((K, P), np.int32)

    def check(self, store: InstanceStore, reports: list[tuple[str, int]]) -> None:
        """Check after a crash that acknowledged updates are merged and others merged or not.

        Then send all again.
        """
        asked = [i for what, i in reports if what == "asked"]
        acknowledged = {i for what, i in reports if what == "merged"}
        assert {what for what, _ in reports} <= {"asked", "merged"}
        n_merged, instances = store.count_merged(STUDY), store.load_instances(STUDY)
        known = [i for i in asked if i in acknowledged or i < max(acknowledged, default=-1)]
        if n_merged - self.n_merged > len(known):
            known = asked[: len(known) + 1]
        assert n_merged - self.n_merged == len(known)
        self._apply(known)
        assert instances.tolist() == self.expected.tolist()
        for i in asked:
            outcome = store.merge(STUDY, i % K, name(i), 0, model(i), self.part).outcome
            assert outcome == ("repeated" if i in known else "merged")
        self._apply(asked[len(known) :])
        assert store.load_instances(STUDY).tolist() == self.expected.tolist()
        self.next = max(asked, default=self.next - 1) + 1
        self.n_merged = store.count_merged(STUDY)

    def _apply(self, updates: list[int]) -> None:
        for i in updates:
            self.expected[i % K] = merge_update(
                self.expected[i % K], np.frombuffer(model(i), "<i4"), self.part
            )


def run_and_kill(
    address: str, rounds: Rounds, entropy: SeededEntropy, kill_what: Callable[[], None] | None
) -> list[tuple[str, int]]:
    """Let a process merge, kill it or its database at some moment, and return its reports."""
    with child(model_store_child.merge_without_end, address, rounds.next, rounds.part) as (
        link,
        kill,
    ):
        reports = [link.recv() for _ in range(1 + entropy.below(40))]
        for _ in range(entropy.below(4000)):
            os.getppid()  # a little time of no fixed length: the kill is to fall inside of a step
        if kill_what is not None:
            kill_what()
        kill()
        with suppress(EOFError):
            while True:
                reports.append(link.recv())
    return reports


def kill_writers(
    kind: str,
    part: float,
    folder: Path,
    new_database: Callable[[], str],
    entropy: SeededEntropy,
    n_kills: int,
) -> None:
    rounds = Rounds(part)
    with open_address(kind, folder, new_database) as address:
        for _ in range(n_kills):
            with open_instance_store(None, address) as store:
                store.create(STUDY, np.zeros((K, P), np.int32))
            # Nobody else has the file open when the process dies, so that what it leaves is found
            # by the next one.
            reports = run_and_kill(address, rounds, entropy, None)
            with open_instance_store(None, address) as store:
                rounds.check(store, reports)
    assert rounds.n_merged >= n_kills


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_instances_are_whole_after_writers_are_killed(
    kind: str, part: float, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy
) -> None:
    kill_writers(kind, part, tmp_path, new_database, entropy, 12 if kind == "sqlite" else 5)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_instances_are_whole_after_writers_are_killed_often(
    kind: str, part: float, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy
) -> None:
    kill_writers(kind, part, tmp_path, new_database, entropy, 150)


class Database(Protocol):
    """A database that can be killed and started again on the same files."""

    url: str

    def kill(self) -> None: ...
    def start(self) -> None: ...


@contextmanager
def database(kind: str) -> Iterator[Database]:
    """Start a database that writes each answered command to the disk."""
    if kind == "postgres":
        with postgres() as server:
            yield server
    else:
        with redis_process("--appendonly", "yes", "--appendfsync", "always") as process:
            yield process


def kill_database(kind: str, part: float, entropy: SeededEntropy, n_kills: int) -> None:
    rounds = Rounds(part)
    with database(kind) as process:
        for _ in range(n_kills):
            with open_instance_store(None, process.url) as store:
                store.create(STUDY, np.zeros((K, P), np.int32))
                store.scrub()
            reports = run_and_kill(process.url, rounds, entropy, process.kill)
            process.start()
            with open_instance_store(None, process.url) as store:
                rounds.check(store, reports)
    assert rounds.n_merged >= n_kills


@pytest.mark.parametrize("kind", ["redis", "postgres"])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_instances_are_whole_after_databases_are_killed(
    kind: str, part: float, entropy: SeededEntropy
) -> None:
    kill_database(kind, part, entropy, 6)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["redis", "postgres"])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_instances_are_whole_after_databases_are_killed_often(
    kind: str, part: float, entropy: SeededEntropy
) -> None:
    kill_database(kind, part, entropy, 100)


@contextmanager
def lose_response(process: RedisProcess, path: Path) -> Iterator[list[bytes]]:
    """Run a proxy for Redis that drops the response to the first merge, once."""
    lost: list[bytes] = []

    def relay(near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(process.url.removeprefix("unix://"))
            while request := near.recv(1 << 20):
                far.sendall(request)
                answer = far.recv(1 << 20)
                if b"EVALSHA" in request and b"merged" in answer and not lost:
                    lost.append(answer)
                    return
                near.sendall(answer)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = front.accept()
                Thread(target=relay, args=(near,), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as front:
        front.bind(str(path))
        front.listen()
        thread = Thread(target=accept, daemon=True)
        thread.start()
        yield lost
        front.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_update_with_lost_response_is_merged_once(part: float) -> None:
    with redis_process() as process, open_instance_store(None, process.url) as direct:
        direct.create(STUDY, np.zeros((1, 4), np.int32))
        front = Path(process.url.removeprefix("unix://")).with_name("front")
        with (
            lose_response(process, front) as lost,
            open_instance_store(None, f"unix://{front}") as store,
        ):
            outcome = store.merge(STUDY, 0, name(1), 0, np.full(4, 8, "<i4").tobytes(), part)
        assert len(lost) == 1
        assert outcome == ("repeated", 1)
        assert direct.load_instances(STUDY).tolist() == [[8 * part] * 4]
