"""The shoal side of the benchmark ``flower``: ``shoal serve`` and devices of DDML.

387 weights, ten rows per device, signed updates, TLS, SQLite, all on this machine.

There are two kinds of devices. ``participants`` are those of ``shoal join``, all in one process:
each has a ledger and a journal in a file, and every step of an update (reserve, store, send,
acknowledge) is on the disk before the next. ``devices`` are the same state machines with the same
requests, but each ledger is in memory.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.speed.loopback_tls import make_certificate
from benchmarks.speed.processes import Program, ending, free_ports, until
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.store import open_store
from shoal.transport.api import study_route

Kind = Literal["participants", "devices"]

N_WEIGHTS, N_ROWS, N_DEVICES = 387, 10, 20
"""One device for each instance, the fewest that a study may have."""
_MODULES: dict[Kind, str] = {
    "participants": "shoal.cli.fleet",
    "devices": "benchmarks.speed.flower.devices",
}
_ROOT = Path(__file__).parents[3]
_START_SECONDS = 120
# Epsilon is 1 for each update in every run, because the cost of noise depends on it.
_STUDY = """
spec = 1
title = "A logistic model of 387 weights"
purpose = "Measure what an update costs."
contact = "benchmarks@example.org"
protocol = "ddml"
trust = "local"

[label]
name = "y"
values = ["no", "yes"]

{features}
[privacy]
epsilon = {n_updates}.0
n_updates = {n_updates}

[participation]
minimum = {n}
size = {n}

[ddml]
batch_size = {n_rows}
admission = "signed"
"""
_FEATURE = '[[feature]]\nname = "x{}"\nrange = [0, 1]\nmissing = false\n'


@dataclass
class Coordinator:
    """``shoal serve`` with one study, in a separate folder."""

    folder: Path
    port: int
    n_updates: int
    patience: float
    programs: list[Program] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def n_expected(self) -> int:
        """Updates of all devices."""
        return N_DEVICES * self.n_updates

    def start(self) -> Program:
        tls = ["--tls-cert", self.folder / "certificate.pem", "--tls-key", self.folder / "key.pem"]
        options = [
            "--store",
            self._store,
            "--port",
            str(self.port),
            "--patience",
            str(self.patience),
            "--json",
        ]
        return self._run("serve", "shoal", "serve", self.folder / "study.toml", *tls, *options)

    def join(self, kind: Kind, at_once: int = N_DEVICES) -> Program:
        """Start all devices in a process that ends when each has sent all of its updates."""
        fleet = [
            "--data",
            self.folder / "rows.csv",
            "--participants",
            str(N_DEVICES),
            "--directory",
            self.folder / "ledgers",
        ]
        options = ["--ca", self.folder / "certificate.pem", "--at-once", str(at_once)]
        return self._run(kind, _MODULES[kind], self.url, *fleet, *options)

    def is_ready(self) -> bool:
        """Return whether the coordinator answers."""
        return self._has("/readyz")

    def has_model(self) -> bool:
        """Return whether the study is done."""
        return self._has(study_route(self._digest, "model"))

    def count_updates(self) -> tuple[str, int, int]:
        """Return the status of the study and its merged and dropped updates, from the store.

        An update is dropped if it is spam or too old.
        """
        with open_store(self._store) as store, open_instance_store(None, self._store) as models:
            (study,) = store.list_studies()
            return (
                study.status,
                models.count_merged(study.digest),
                sum(store.count_totals(study.digest).refused.values()),
            )

    def _has(self, path: str) -> bool:
        context = ssl.create_default_context(cafile=self.folder / "certificate.pem")
        try:
            with urllib.request.urlopen(self.url + path, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    @property
    def _digest(self) -> str:
        said = next(line for line in self.programs[0].said.splitlines() if line.startswith("{"))
        return str(json.loads(said)["studies"][0]["digest"])

    @property
    def _store(self) -> str:
        return f"sqlite:{self.folder / 'coordinator.db'}"

    def _run(self, name: str, module: str, *arguments: object) -> Program:
        paths = [str(_ROOT / "src"), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        return Program(
            [sys.executable, "-m", module, *map(str, arguments)],
            environment,
            self.folder / f"{name}.log",
        )


def make_study_text(n_updates: int) -> str:
    """Return the study file."""
    features = "\n".join(map(_FEATURE.format, range(N_WEIGHTS - 1)))
    return _STUDY.format(features=features, n_updates=n_updates, n=N_DEVICES, n_rows=N_ROWS)


@contextmanager
def coordinator(folder: Path, n_updates: int, *, patience: float = 3600.0) -> Iterator[Coordinator]:
    """Start a coordinator that waits for the updates of all devices.

    Parameters
    ----------
    folder
        An empty folder.
    n_updates
        Updates of each device.
    patience
        Seconds after which the study ends if updates are missing.
    """
    made = Coordinator(folder, free_ports(1)[0], n_updates, patience)
    make_certificate(folder)
    (folder / "study.toml").write_text(make_study_text(n_updates))
    rows = np.random.default_rng(0).random((N_DEVICES * N_ROWS, N_WEIGHTS - 1))
    header = ",".join([f"x{i}" for i in range(N_WEIGHTS - 1)] + ["y"])
    lines = [
        ",".join([f"{value:.4f}" for value in row] + ["yes" if row[0] > 0.5 else "no"])
        for row in rows
    ]
    (folder / "rows.csv").write_text("\n".join([header, *lines]) + "\n")
    with ending(made.programs):
        made.programs.append(made.start())
        if not until(made.is_ready, _START_SECONDS, made.programs):
            raise RuntimeError(f"the coordinator did not start:\n{made.programs[0].said[-2000:]}")
        yield made
