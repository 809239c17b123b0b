"""``shoal simulate`` as a real process: several processes, a real Dask cluster on loopback, and an interruption half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.study.load import parse
from shoal.study.templates import example_csv, study_text

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("study")
    text = study_text("anonml")
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(example_csv(parse(text), 2000, SeededEntropy(1)))
    return home / "study.toml"


def command(study: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "simulate", str(study), "--data", str(study.parent / "rows.csv"), *more]


def simulated(study: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(command(study, *more, "--json"), env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and a worker, each a process of its own, on loopback."""
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
            [*python, "distributed.cli.dask_worker", address, *common, "--no-nanny", "--nthreads", "1"],
            env=ENVIRONMENT,
            cwd=tmp_path_factory.mktemp("worker"),
            stderr=subprocess.DEVNULL,
        )
        yield address
    finally:
        for process in (worker, scheduler):
            if process is not None:
                process.terminate()
                process.wait(30)
        if scheduler.stderr is not None:
            scheduler.stderr.close()


def test_processes_and_a_cluster_give_what_one_process_gives(study: Path, cluster: str) -> None:
    options = ("--sweep", "epsilon=1,4", "--repeats", "2", "--seed", "5")
    alone = simulated(study, *options)
    assert simulated(study, *options, "--jobs", "2")["points"] == alone["points"]
    assert simulated(study, *options, "--engine", f"dask:{cluster}")["points"] == alone["points"]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_interruption_leaves_nothing_half_written(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(study, "--repeats", "10000", "--jobs", "2", "--out", str(out)),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while len(children(process.pid)) < 3:  # two that simulate, and the one that keeps track of them
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            assert process.poll() is None
    finally:
        while process.poll() is None:  # as one does who presses the keys again
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        _, errors = process.communicate()
    assert process.returncode == 130 and b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
