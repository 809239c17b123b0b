"""Engines: the same outcomes, rows only on trusted machines, and errors as sentences."""

from __future__ import annotations

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

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, TransportError, format_install_command
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.simulation import engines
from shoal.simulation.anonml import run
from shoal.simulation.engines import (
    check_engine,
    delay_interrupts,
    exit_after,
    parse_cluster_address,
    run_all,
    run_in_worker,
    set_process_split,
    start_worker,
)
from shoal.simulation.run import RunOutcome, RunTask, Split

PEOPLE = make_people(300, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
TASKS = [
    RunTask(AnonMLPlusParams(SCHEMA, epsilon, 300), 1, repeat)
    for epsilon in (1.0, 4.0)
    for repeat in range(2)
]
ALONE = [run(task, SPLIT) for task in TASKS]


def die(task: RunTask) -> RunOutcome:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_several_processes_give_the_results_of_one() -> None:
    handler = signal.getsignal(signal.SIGINT)
    assert run_all(TASKS, SPLIT) == ALONE
    assert run_all(TASKS, SPLIT, jobs=2) == ALONE
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_reported_for_each_run(jobs: int) -> None:
    told: list[None] = []
    run_all(TASKS, SPLIT, jobs, on_progress=lambda: told.append(None))
    assert len(told) == len(TASKS)


def test_failed_run_is_not_reported_as_done() -> None:
    told: list[None] = []
    with pytest.raises(ShoalError) as error:
        run_all(
            [TASKS[0], replace(TASKS[1], dropout=1 - 1e-12)],
            SPLIT,
            on_progress=lambda: told.append(None),
        )
    assert error.value.code == "SIM-003" and len(told) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "without masks"])
def test_interruption_is_deferred_and_not_lost(
    monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, is_masked: bool
) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    if not is_masked:
        monkeypatch.delattr(signal, "pthread_sigmask")
    got: list[int] = []
    handler = signal.signal(sent, lambda number, _: got.append(number))
    try:
        with delay_interrupts():
            signal.raise_signal(sent)
            during = list(got)
        after = list(got)
        with delay_interrupts():
            pass
    finally:
        signal.signal(sent, handler)
    assert (during, after, got) == ([], [sent], [sent])
    monkeypatch.undo()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == mask


def test_error_during_deferral_restores_interruptions() -> None:
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with pytest.raises(KeyboardInterrupt), delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise BrokenProcessPool
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == mask


def test_process_started_during_deferral_ignores_the_keyboard() -> None:
    tell = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with delay_interrupts():
        said = subprocess.run(
            [sys.executable, "-c", tell], capture_output=True, check=True, text=True
        ).stdout
    assert said == "True\n"


def test_worker_keeps_the_rows_of_its_last_task() -> None:
    set_process_split(Split({}, SPLIT.train_labels, {}, SPLIT.train_labels))
    set_process_split(SPLIT)
    assert run_in_worker(TASKS[0]) == ALONE[0]


def test_worker_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(engines, "parent_process", lambda: SimpleNamespace(join=gone.wait))
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    handler = signal.getsignal(signal.SIGINT)
    try:
        start_worker(SPLIT)
        assert (
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )  # an interruption is for the parent to obey
    finally:
        signal.signal(signal.SIGINT, handler)
    assert run_in_worker(TASKS[0]) == ALONE[0] and not ended.is_set()
    gone.set()
    assert ended.wait(30)


def test_worker_waits_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    monkeypatch.setattr(os, "_exit", steps.append)
    exit_after(lambda: steps.append("gone"))
    assert steps == ["gone", 1]


def test_dead_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "run_in_worker", die)
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
def test_cluster_address_may_be_loopback_or_tls(engine: str, address: str) -> None:
    assert parse_cluster_address(engine) == address


@pytest.mark.parametrize(
    "engine",
    [
        "dask:tcp://10.0.0.7:8786",
        "dask:cluster.example.org:8786",
        "dask:localhost.example.org:1",
        "dask:0.0.0.0:1",
        "dask:tcp://[::2]:1",
    ],
)
def test_cluster_address_without_tls_is_rejected(engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        run_all(TASKS, SPLIT, engine=engine)
    assert error.value.code == "SIM-005" and "rows" in str(error.value.why)


@pytest.mark.parametrize(
    "engine",
    [
        "dask:",
        "dask:127.0.0.1",
        "dask:inproc://x:1",
        "dask:tcp://127.0.0.1:x",
        "dask:tcp://[::1",
        "dask:ucx://127.0.0.1:1",
    ],
)
def test_invalid_cluster_address_is_rejected(engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        check_engine(1, engine)
    assert error.value.code == "SIM-005" and not error.value.what.startswith(" ")


@pytest.mark.parametrize(
    ("jobs", "engine"), [(0, "local"), (-1, "local"), (1, "ray:x"), (2, "dask:127.0.0.1:8786")]
)
def test_impossible_number_of_processes_is_rejected(jobs: int, engine: str) -> None:
    with pytest.raises(ShoalError) as error:
        check_engine(jobs, engine)
    assert error.value.code == "USAGE-001"


def test_missing_dask_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ShoalError) as error:
        check_engine(1, "dask:127.0.0.1:8786")
    assert error.value.code == "USAGE-002"
    assert error.value.fix == format_install_command("dask")


@pytest.fixture
def scheduler() -> Iterator[Any]:
    """A real scheduler on loopback, in this process, without workers."""
    import distributed

    with distributed.LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


def test_cluster_gives_the_results_of_one_process(scheduler: Any) -> None:
    scheduler.scale(1)
    told: list[None] = []
    assert (
        run_all(
            TASKS,
            SPLIT,
            engine=f"dask:{scheduler.scheduler_address}",
            on_progress=lambda: told.append(None),
        )
        == ALONE
    )
    assert len(told) == len(TASKS)


def test_failure_on_a_cluster_has_the_same_sentence(scheduler: Any) -> None:
    scheduler.scale(1)
    with pytest.raises(ShoalError) as error:
        run_all(
            [replace(TASKS[0], dropout=1 - 1e-12)],
            SPLIT,
            engine=f"dask:{scheduler.scheduler_address}",
        )
    assert error.value.code == "SIM-003" and "no participant" in error.value.what


def test_cluster_without_workers_is_reported(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CLUSTER_TIMEOUT", 0.5)
    with pytest.raises(TransportError) as error:
        run_all(TASKS, SPLIT, engine=f"dask:{scheduler.scheduler_address}")
    assert error.value.code == "SIM-006" and "no workers" in str(error.value.why)


def test_unreachable_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CLUSTER_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransportError) as error:
        run_all(TASKS, SPLIT, engine=f"dask:127.0.0.1:{port}")
    assert error.value.code == "SIM-006" and error.value.exit_code == 6
