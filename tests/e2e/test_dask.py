"""Sweeps on a real Dask cluster with killed workers give the results of one machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import distributed
import pytest

from shoal.entropy import SeededEntropy
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
LOOPBACK = ("--no-dashboard", "--host", "127.0.0.1")
N_POINTS, N_REPEATS = 3, 6
OPTIONS = ("--sweep", "epsilon=1,2,4", "--repeats", str(N_REPEATS), "--seed", "5")
PATIENCE = 300.0
"""Seconds after which a cluster is taken to be stuck; a test that passes waits for none of them."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a study of DDML, which runs long enough for a worker to be killed in the middle."""
    home, text = tmp_path_factory.mktemp("study"), read_starter("ddml")
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(make_example_csv(parse_study_text(text), 1600, SeededEntropy(1)))
    return home / "study.toml"


@pytest.fixture(scope="module")
def alone(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of one machine."""
    out = tmp_path_factory.mktemp("alone") / "run"
    subprocess.run(
        command(study, out, "--jobs", "2"),
        env=ENVIRONMENT,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    return read(out)


def command(study: Path, out: Path, *more: str) -> list[str]:
    python = [
        sys.executable,
        "-m",
        "shoal",
        "simulate",
        str(study),
        "--data",
        str(study.parent / "rows.csv"),
    ]
    return [*python, *OPTIONS, "--out", str(out), *more]


def read(out: Path) -> dict[str, Any]:
    """Return a run, without engine, jobs and duration."""
    told: dict[str, Any] = json.loads((out / "run.json").read_text())
    return {key: value for key, value in told.items() if key not in ("engine", "jobs", "seconds")}


class Cluster:
    """A scheduler and its workers, each a process on loopback, with a client."""

    def __init__(
        self, scheduler: subprocess.Popen[bytes], address: str, home: Path, stack: ExitStack
    ) -> None:
        self.scheduler, self.address, self._home, self._stack = scheduler, address, home, stack
        self._client = stack.enter_context(
            distributed.Client(address, timeout=PATIENCE, set_as_default=False)
        )

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start a worker with one thread that is not restarted."""
        (self._home / name).mkdir()
        options = ["--name", name, "--no-nanny", "--nthreads", "1"]
        python = [sys.executable, "-m", "distributed.cli.dask_worker", self.address]
        worker = subprocess.Popen(
            [*python, *LOOPBACK, *options],
            env=ENVIRONMENT,
            cwd=self._home / name,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(end, worker)
        wait_for(lambda: name in self.state()["workers"], worker)
        return worker

    def state(self) -> dict[str, Any]:
        """Return the unfinished runs of each worker, the finished runs, and the number of runs."""
        told: dict[str, Any] = self._client.run_on_scheduler(_state)
        return told


def _state(dask_scheduler: Any) -> dict[str, Any]:
    runs = [task for task in dask_scheduler.tasks.values() if str(task.key).startswith("run-")]
    return {
        "workers": {
            str(one.name): [str(task.key) for task in one.processing]
            for one in dask_scheduler.workers.values()
        },
        "finished": [str(task.key) for task in runs if task.state == "memory"],
        "n_runs": len(runs),
    }


def wait_for(is_so: Callable[[], bool], *running: subprocess.Popen[bytes]) -> None:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < PATIENCE, "a cluster is stuck"
        assert all(process.poll() is None for process in running)
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE)


@contextmanager
def cluster(home: Path) -> Iterator[Cluster]:
    """Start a scheduler; it logs to a file, since a pipe that is not read would block it."""
    log = home / "scheduler.log"
    with ExitStack() as stack:
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *LOOPBACK, "--port", "0"],
            env=ENVIRONMENT,
            stderr=stack.enter_context(log.open("wb")),
        )
        stack.callback(end, scheduler)
        wait_for(lambda: "Scheduler at:" in log.read_text(), scheduler)
        (address,) = re.findall(r"Scheduler at:\s+(\S+)", log.read_text())
        yield Cluster(scheduler, address, home, stack)


def is_busy(state: dict[str, Any], worker: str) -> bool:
    """Return True if a worker computes a run, some runs are finished, and many are not."""
    is_half_way = 1 <= len(state["finished"]) <= N_POINTS * N_REPEATS - 4
    return is_half_way and any(key.startswith("run-") for key in state["workers"].get(worker, ()))


@contextmanager
def run_sweep(
    study: Path, out: Path, cluster: Cluster, code: int = 0, said: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a sweep; at the end check its exit code and standard error."""
    process = subprocess.Popen(
        command(study, out, "--engine", f"dask:{cluster.address}"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
        printed, errors = process.communicate(timeout=PATIENCE)
    finally:
        end(process)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    # Which of Dask's errors it is depends on what the sweep was waiting for.
    assert (process.returncode, re.sub(r"\(\w+\)", "(error)", errors.decode())) == (code, said)
    assert (f"wrote     {out}".encode() in printed) is (code == 0)


def kill_when_busy(
    cluster: Cluster, name: str, worker: subprocess.Popen[bytes], sweep: subprocess.Popen[bytes]
) -> None:
    """Kill a worker in the middle of a run, and check that the run was not finished."""
    while True:
        wait_for(lambda: is_busy(cluster.state(), name), worker, sweep)
        os.kill(worker.pid, signal.SIGSTOP)  # what it has not finished now it never will
        state = cluster.state()
        if is_busy(state, name):
            break
        os.kill(worker.pid, signal.SIGCONT)
    worker.kill()
    worker.wait(PATIENCE)
    wait_for(lambda: name not in cluster.state()["workers"], sweep)


def test_sweep_completes_if_one_of_two_workers_is_killed(
    study: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    with cluster(tmp_path) as real:
        victim = real.start_worker("victim")
        real.start_worker("other")
        with run_sweep(study, tmp_path / "run", real) as sweep:
            kill_when_busy(real, "victim", victim, sweep)
    assert read(tmp_path / "run") == alone


def test_sweep_completes_if_only_worker_is_replaced(
    study: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    """The rows and all results that were not fetched are lost with the worker."""
    with cluster(tmp_path) as real:
        only = real.start_worker("only")
        with run_sweep(study, tmp_path / "run", real) as sweep:
            kill_when_busy(real, "only", only, sweep)
            real.start_worker("next")
    assert read(tmp_path / "run") == alone


def test_sweep_reports_lost_scheduler(study: Path, tmp_path: Path) -> None:
    with cluster(tmp_path) as real:
        worker = real.start_worker("worker")
        said = (
            f"SIM-006  The cluster at {real.address} cannot be used.\n"
            "  why       It has no workers, or they have gone (error).\n"
            "  fix       Start dask scheduler and dask worker, with shoal installed where they "
            "run.\n"
        )
        with run_sweep(study, tmp_path / "run", real, code=6, said=said) as sweep:
            wait_for(lambda: is_busy(real.state(), "worker"), worker, sweep)
            end(real.scheduler)
        assert not (tmp_path / "run").exists()
