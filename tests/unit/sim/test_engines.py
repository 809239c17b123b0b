"""Engines: the same outcomes everywhere, rows only where they may go, and a sentence where nobody answers."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, TransportError
from shoal.protocols.anonml.params import Plus
from shoal.sim import engines
from shoal.sim.anonml import run
from shoal.sim.engines import address_of, adopt, check_engine, end_after, interruptions_held, run_adopted, run_all, serve
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.runs import Outcome, Split, Task

PEOPLE = make_people(300, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
TASKS = [Task(Plus(SCHEMA, epsilon, 300), 1, repeat) for epsilon in (1.0, 4.0) for repeat in range(2)]
ALONE = [run(task, SPLIT) for task in TASKS]


def die(task: Task) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_processes_give_what_one_process_gives() -> None:
    handler = signal.getsignal(signal.SIGINT)
    assert run_all(TASKS, SPLIT) == ALONE
    assert run_all(TASKS, SPLIT, jobs=2) == ALONE
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("jobs", [1, 2])
def test_whoever_waits_is_told_of_each_run(jobs: int) -> None:
    told: list[None] = []
    run_all(TASKS, SPLIT, jobs, done=lambda: told.append(None))
    assert len(told) == len(TASKS)


def test_a_run_that_fails_is_not_told_of_as_done() -> None:
    told: list[None] = []
    with pytest.raises(ShoalError) as error:
        run_all([TASKS[0], replace(TASKS[1], dropout=1 - 1e-12)], SPLIT, done=lambda: told.append(None))
    assert error.value.code == "SIM-003" and len(told) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "without masks"])
def test_an_interruption_is_held_and_not_lost(monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, is_masked: bool) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    if not is_masked:
        monkeypatch.delattr(signal, "pthread_sigmask")
    got: list[int] = []
    handler = signal.signal(sent, lambda number, _: got.append(number))
    try:
        with interruptions_held():
            signal.raise_signal(sent)
            during = list(got)
        after = list(got)
        with interruptions_held():
            pass
    finally:
        signal.signal(sent, handler)
    assert (during, after, got) == ([], [sent], [sent])
    monkeypatch.undo()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == mask


def test_what_fails_meanwhile_gives_interruptions_back() -> None:
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with pytest.raises(KeyboardInterrupt), interruptions_held():
        signal.raise_signal(signal.SIGINT)
        raise BrokenProcessPool
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == mask


def test_a_process_that_starts_meanwhile_is_not_interrupted_from_the_keyboard() -> None:
    tell = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with interruptions_held():
        said = subprocess.run([sys.executable, "-c", tell], capture_output=True, check=True, text=True).stdout
    assert said == "True\n"


def test_a_process_keeps_the_rows_that_it_was_given_last() -> None:
    adopt(Split({}, SPLIT.labels, {}, SPLIT.labels))
    adopt(SPLIT)
    assert run_adopted(TASKS[0]) == ALONE[0]


def test_a_process_ends_when_its_parent_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(engines, "parent_process", lambda: SimpleNamespace(join=gone.wait))
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    handler = signal.getsignal(signal.SIGINT)
    try:
        serve(SPLIT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # an interruption is for the parent to obey
    finally:
        signal.signal(signal.SIGINT, handler)
    assert run_adopted(TASKS[0]) == ALONE[0] and not ended.is_set()
    gone.set()
    assert ended.wait(30)


def test_a_process_waits_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    monkeypatch.setattr(os, "_exit", steps.append)
    end_after(lambda: steps.append("gone"))
    assert steps == ["gone", 1]


def test_a_process_that_dies_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "run_adopted", die)
    with pytest.raises(TransportError) as error:
        run_all(TASKS, SPLIT, jobs=2)
    assert error.value.code == "SIM-006"


@pytest.mark.parametrize(
    ("engine", "address"),
    [
        ("dask:tcp://localhost:8786", "tcp://localhost:8786"),
        ("dask:127.9.9.9:1", "tcp://127.9.9.9:1"),
        ("dask:tcp://[::1]:8786", "tcp://[::1]:8786"),
        ("dask:tls://cluster.example.org:8786", "tls://cluster.example.org:8786"),
    ],
)
def test_loopback_and_tls_may_have_rows(engine: str, address: str) -> None:
    assert address_of(engine) == address


@pytest.mark.parametrize(
    "engine",
    ["dask:tcp://10.0.0.7:8786", "dask:cluster.example.org:8786", "dask:localhost.example.org:1", "dask:0.0.0.0:1", "dask:tcp://[::2]:1"],
)
def test_anyone_else_may_not(engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        run_all(TASKS, SPLIT, engine=engine)
    assert error.value.code == "SIM-005" and "rows" in str(error.value.why)


@pytest.mark.parametrize(
    "engine", ["dask:", "dask:127.0.0.1", "dask:inproc://x:1", "dask:tcp://127.0.0.1:x", "dask:tcp://[::1", "dask:ucx://127.0.0.1:1"]
)
def test_what_is_no_address_is_refused(engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        check_engine(1, engine)
    assert error.value.code == "SIM-005" and not error.value.what.startswith(" ")


@pytest.mark.parametrize(("jobs", "engine"), [(0, "local"), (-1, "local"), (1, "ray:x"), (2, "dask:127.0.0.1:8786")])
def test_what_nobody_can_do_is_refused(jobs: int, engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        check_engine(jobs, engine)
    assert error.value.code == "USAGE-001"


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name == "distributed":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ShoalError) as error:
        check_engine(1, "dask:127.0.0.1:8786")
    assert error.value.code == "USAGE-002" and error.value.fix == "pip install 'shoal[dask]'"


@pytest.fixture
def scheduler() -> Iterator[Any]:
    """A real scheduler on loopback, in this process, without workers."""
    import distributed

    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


def test_a_cluster_gives_what_one_process_gives(scheduler: Any) -> None:
    scheduler.scale(1)
    told: list[None] = []
    assert run_all(TASKS, SPLIT, engine=f"dask:{scheduler.scheduler_address}", done=lambda: told.append(None)) == ALONE
    assert len(told) == len(TASKS)


def test_what_fails_on_a_cluster_is_said_in_the_same_words(scheduler: Any) -> None:
    scheduler.scale(1)
    with pytest.raises(ShoalError) as error:
        run_all([replace(TASKS[0], dropout=1 - 1e-12)], SPLIT, engine=f"dask:{scheduler.scheduler_address}")
    assert error.value.code == "SIM-003" and "nobody" in error.value.what


def test_a_cluster_without_workers_is_told_of(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.5)
    with pytest.raises(TransportError) as error:
        run_all(TASKS, SPLIT, engine=f"dask:{scheduler.scheduler_address}")
    assert error.value.code == "SIM-006" and "no workers" in str(error.value.why)


def test_an_address_where_nobody_is_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransportError) as error:
        run_all(TASKS, SPLIT, engine=f"dask:127.0.0.1:{port}")
    assert error.value.code == "SIM-006" and error.value.exit_code == 6
