"""``shoal simulate`` as a real process: worker processes, a Dask cluster, and interruptions."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENCE = 300.0
"""Seconds after which a test fails; a test that passes does not wait for them."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), "anonml")


@pytest.fixture(scope="module")
def device_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("devices"), "ddml")


@pytest.fixture(scope="module")
def database_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("databases"), "sdq")


@pytest.fixture(scope="module")
def holder_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("holders"), "pfds")


def write_study(home: Path, protocol: str) -> Path:
    text = read_starter(protocol)
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(make_example_csv(parse_study_text(text), 2000, SeededEntropy(1)))
    return home / "study.toml"


def command(study: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "shoal",
        "simulate",
        str(study),
        "--data",
        str(study.parent / "rows.csv"),
        *more,
    ]


def simulated(study: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        command(study, *more, "--json"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a scheduler and a worker as processes on loopback; yield the address."""
    python = [sys.executable, "-m"]
    common = ["--no-dashboard", "--host", "127.0.0.1"]
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", *common, "--port", "0"],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    worker = None
    try:
        assert scheduler.stderr is not None
        address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
        worker = subprocess.Popen(
            [
                *python,
                "distributed.cli.dask_worker",
                address,
                *common,
                "--no-nanny",
                "--nthreads",
                "1",
            ],
            env=ENVIRONMENT,
            cwd=tmp_path_factory.mktemp("worker"),
            stderr=subprocess.DEVNULL,
        )
        yield address
    finally:
        for process in (worker, scheduler):
            if process is not None:
                process.terminate()
                process.wait(PATIENCE)
        if scheduler.stderr is not None:
            scheduler.stderr.close()


def test_processes_and_cluster_give_results_of_one_process(study: Path, cluster: str) -> None:
    options = ("--sweep", "epsilon=1,4", "--repeats", "2", "--seed", "5")
    alone = simulated(study, *options)
    assert simulated(study, *options, "--jobs", "2")["points"] == alone["points"]
    assert simulated(study, *options, "--engine", f"dask:{cluster}")["points"] == alone["points"]


@pytest.mark.soak
def test_ddml_processes_and_cluster_give_results_of_one_process(
    device_study: Path, cluster: str
) -> None:
    options = ("--sweep", "epsilon=1,4", "--repeats", "2", "--in-flight", "7", "--order", "given")
    alone = simulated(device_study, *options)
    assert simulated(device_study, *options, "--jobs", "2")["points"] == alone["points"]
    assert (
        simulated(device_study, *options, "--engine", f"dask:{cluster}")["points"]
        == alone["points"]
    )


@pytest.mark.soak
def test_sdq_processes_and_cluster_give_results_of_one_process(
    database_study: Path, cluster: str
) -> None:
    options = ("--sweep", "epsilon=0.1,1", "--repeats", "2")
    alone = simulated(database_study, *options)
    assert "tree" in alone["points"][0]
    assert simulated(database_study, *options, "--jobs", "2")["points"] == alone["points"]
    assert (
        simulated(database_study, *options, "--engine", f"dask:{cluster}")["points"]
        == alone["points"]
    )


@pytest.mark.soak
def test_pfds_processes_and_cluster_give_results_of_one_process(
    holder_study: Path, cluster: str, tmp_path: Path
) -> None:
    options = ("--sweep", "epsilon=0.1,1", "--repeats", "2")
    alone = simulated(holder_study, *options, "--out", str(tmp_path / "run"))
    assert alone["points"][0]["at_home"]["n_holders"] == 20
    assert simulated(holder_study, *options, "--jobs", "2")["points"] == alone["points"]
    assert (
        simulated(holder_study, *options, "--engine", f"dask:{cluster}")["points"]
        == alone["points"]
    )
    assert (tmp_path / "run" / "epsilon=1" / "release" / "simulated.csv").is_file()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def start_simulation(study: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start a long simulation with worker processes, in a new session."""
    return subprocess.Popen(
        command(study, "--repeats", "10000", "--jobs", "2", "--out", str(out)),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_children(process: subprocess.Popen[bytes], n: int = 3) -> list[int]:
    while (
        len(found := children(process.pid)) < n
    ):  # two that simulate, and the one that keeps track of them
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
    return [int(pid) for pid in found]


def end(handle: int) -> None:
    """Kill a process that should have ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_workers_end_with_killed_parent(
    study: Path, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    process = start_simulation(study, tmp_path / "run")
    with ExitStack() as stack:
        stack.callback(process.communicate)
        stack.callback(process.kill)
        # A handle refers to the same process even if its number is used again.
        handles = [os.pidfd_open(pid) for pid in wait_for_children(process)]
        for handle in handles:
            stack.callback(end, handle)
        process.send_signal(sent)
        assert process.wait(PATIENCE) == code
        assert all(select.select([handle], [], [], PATIENCE)[0] for handle in handles)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n", [2, 3])
def test_one_interruption_ends_starting_processes(study: Path, tmp_path: Path, n: int) -> None:
    process = start_simulation(study, tmp_path / "run")
    with ExitStack() as stack:
        stack.callback(process.communicate)
        stack.callback(process.kill)
        handles = [os.pidfd_open(pid) for pid in wait_for_children(process, n)]
        for handle in handles:
            stack.callback(end, handle)
        os.killpg(
            process.pid, signal.SIGINT
        )  # as the keys do: to the parent and to all of its children
        _, errors = process.communicate(timeout=PATIENCE)
        assert (
            process.returncode == 130
            and errors.startswith(b"USAGE-003  Interrupted.")
            and errors.count(b"\n") == 2
        )
        assert all(select.select([handle], [], [], PATIENCE)[0] for handle in handles)
    assert list(tmp_path.iterdir()) == []
