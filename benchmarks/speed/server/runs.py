"""Coordinator processes of a benchmark, each in a new directory.

They are started, measured and stopped here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
import numpy as np

from benchmarks.speed.ddml.stores import redis_server
from shoal.entropy import SystemEntropy
from shoal.protocols.ddml.noisy_step import make_step
from shoal.study.ddml import build_params
from shoal.study.loader import parse_study_text

ROOT = Path(__file__).parents[3]
N_BODIES = 16

Admission = Literal["open", "signed", "token"]
_TICK = os.sysconf("SC_CLK_TCK")

_DDML = """
title = "Which result is opened?"
purpose = "To measure."
contact = "a@example.org"
protocol = "ddml"
[label]
name = "opened"
values = ["no", "yes"]
[[feature]]
name = "query"
buckets = {buckets}
[privacy]
epsilon = {epsilon}
n_updates = {n_updates}
[participation]
minimum = 1000
size = 100_000_000
[ddml]
admission = "{admission}"
"""


def ddml_text(p: int, admission: Admission, n_updates: int = 1) -> str:
    """Return a DDML study with p weights that does not end during the measurement.

    The cost of an update does not depend on the number of updates of a device.
    """
    return _DDML.format(
        buckets=p - 1, admission=admission, epsilon=4.0 * n_updates, n_updates=n_updates
    )


def honest_weights(text: str) -> list[bytes]:
    """Return updates of devices without gradients, with half the study's noise.

    None is rejected as spam, and all are merged.
    """
    params, entropy = build_params(parse_study_text(text)), SystemEntropy()
    step, flat = make_step(params), np.zeros(params.n_weights)
    return [(step.draw(flat, entropy) // 2).astype("<i4").tobytes() for _ in range(N_BODIES)]


@dataclass(frozen=True)
class Coordinator:
    """A listening coordinator: the directory of its store, its output, and its processes."""

    home: Path
    said: dict[str, Any]
    pids: tuple[int, ...]

    @property
    def url(self) -> str:
        return str(self.said["address"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def study(self) -> str:
        return str(self.said["studies"][0]["digest"])

    def n_merged(self) -> int:
        return int(httpx2.post(f"{self.url}/merged/{self.study}").text)

    def cpu_seconds(self) -> float:
        """Return the processor seconds of all its processes so far, including Redis."""
        return sum(map(_cpu_seconds, self.pids))

    def megabytes(self) -> float:
        """Return the memory of all its processes, with their part of shared memory."""
        return sum(_kilobytes(pid, "Pss") for pid in self.pids) / 1e3

    def own_megabytes(self) -> float:
        """Return the private memory of its processes, without files and libraries.

        Other processes that start or stop do not change it.
        """
        return sum(_kilobytes(pid, "Anonymous") for pid in self.pids) / 1e3


@contextmanager
def coordinator(
    text: str, *options: str, models: str = "sqlite", workers: int = 1
) -> Iterator[Coordinator]:
    """Serve a study until the caller is done.

    Anonymous packets use tickets; the benchmark of tokens measures the cost of tokens.

    Parameters
    ----------
    text
        The study's file.
    options
        Further ones of ``shoal serve``.
    models
        Where instances of DDML are: ``memory``, ``sqlite`` (with the rest) or ``redis``, which is
        started.
    workers
        How many.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        (home / "study.toml").write_text(text)
        if models == "redis":
            with redis_server("redis", home) as redis:
                yield from _serve(
                    home,
                    redis,
                    "--models",
                    f"unix://{home}/socket",
                    "--workers",
                    str(workers),
                    *options,
                )
        else:
            kept = ("--models", "memory:") if models == "memory" else ()
            yield from _serve(home, None, *kept, "--workers", str(workers), *options)


def _serve(home: Path, redis: int | None, *options: str) -> Iterator[Coordinator]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.server.process",
        "study.toml",
        "--port",
        "0",
        "--tickets",
        "--json",
        *options,
    ]
    paths = os.pathsep.join(
        filter(None, (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline() or "{}")
            if "address" not in said:
                raise RuntimeError("the coordinator of a benchmark did not start")
            # Workers are ready when they answer.
            if httpx2.get(f"{said['address']}/readyz", timeout=60).status_code != 200:
                raise RuntimeError("the coordinator of a benchmark is not ready")
            children = [
                int(pid)
                for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children")
                .read_text()
                .split()
            ]
            yield Coordinator(
                home, said, (process.pid, *children, *(() if redis is None else (redis,)))
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _kilobytes(pid: int, what: Literal["Pss", "Anonymous"]) -> int:
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith(f"{what}:")
    ]
    return int(line.split()[1])
