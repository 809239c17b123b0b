"""Flower's deployment engine on this machine: a SuperLink, its SuperNodes and a run.

The run is that of `benchmarks.competitors.flower_app`. The state is in memory, which costs Flower
least, unless the SuperLink is to be killed. Nothing leaves this machine: no telemetry, no check for
updates, no hub, no installation at run time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.competitors.environments import HERE, make_environment
from benchmarks.speed.loopback_tls import make_certificate
from benchmarks.speed.processes import Program, ending, free_ports, until

N_NODES = 2
"""The number of nodes in Flower's own guide."""
_START_SECONDS, _ROUND_SECONDS = 120, 120
_SETTINGS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "logistic"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "shoal"

[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"

[tool.flwr.app.config]
rounds = 1
nodes = 1
seen = ""
"""


@dataclass
class Federation:
    """A SuperLink and its SuperNodes, in a separate folder."""

    folder: Path
    port: int
    is_kept: bool
    programs: list[Program] = field(default_factory=list)

    @property
    def seen(self) -> list[int]:
        """Rounds that have ended; the first is 0."""
        path = self.folder / "seen"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def cpu(self) -> tuple[float, float]:
        """Return processor seconds of the SuperLink and all SuperNodes, with their children."""
        link, *nodes = self.programs
        return link.cpu(), sum(node.cpu() for node in nodes)

    def start_link(self) -> Program:
        state = ["--database", self.folder / "state.db"] if self.is_kept else []
        address = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        return self._start("link", "flower-superlink", *self._server_tls(), *address, *state)

    def start_node(self, number: int) -> Program:
        (port,) = free_ports(1)
        superlink = [
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--root-certificates",
            self.folder / "certificate.pem",
        ]
        own = ["--port", str(port), "--node-config", f"partition-id={number}"]
        return self._start(
            f"node-{number}", "flower-supernode", *superlink, *self._server_tls(), *own
        )

    def run(self, rounds: int) -> str:
        """Begin a run; return its number."""
        config = f'rounds={rounds} nodes={N_NODES} seen="{self.folder / "seen"}"'
        return str(
            self._call_flwr("run", self.folder / "app", "bench", "--run-config", config)["run-id"]
        )

    def status(self, run: str) -> str:
        """Return the status of a run in Flower's words; "unknown" if the request fails."""
        output = self._call_flwr("list", "bench", "--run-id", run, must_succeed=False)
        return str(output["runs"][0]["status"]) if output.get("success") else "unknown"

    def wait_for(self, rounds: int) -> None:
        if not until(
            lambda: rounds in self.seen, _START_SECONDS + _ROUND_SECONDS * rounds, self.programs
        ):
            raise RuntimeError(
                f"Flower did not end round {rounds}:\n{self.programs[0].said[-2000:]}"
            )

    def _server_tls(self) -> list[str | Path]:
        certificate = self.folder / "certificate.pem"
        return [
            "--ssl-certfile",
            certificate,
            "--ssl-keyfile",
            self.folder / "key.pem",
            "--ssl-ca-certfile",
            certificate,
        ]

    def _start(self, name: str, command: str, *arguments: object) -> Program:
        return Program(
            [_bin() / command, *map(str, arguments)],
            self._environment(),
            self.folder / f"{name}.log",
        )

    def _call_flwr(self, *arguments: str | Path, must_succeed: bool = True) -> dict[str, Any]:
        command = [_bin() / "flwr", *arguments, "--format", "json"]
        done = subprocess.run(
            command,
            env=os.environ | self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        output: dict[str, Any] = json.loads(done.stdout or "{}")
        if must_succeed and not output.get("success"):
            raise RuntimeError(f"flwr {arguments[0]} failed: {output}{done.stderr[-2000:]}")
        return output

    def _environment(self) -> dict[str, str]:
        # Flower finds its other programs by name.
        path = f"{_bin()}{os.pathsep}{os.environ['PATH']}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        return {
            "FLWR_HOME": str(self.folder / "home"),
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **quiet,
        }


def version() -> str:
    """Return the installed version of Flower."""
    return subprocess.run(
        [_bin() / "flwr", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]


def _bin() -> Path:
    return make_environment("flower", "flwr").parent


@contextmanager
def federation(folder: Path, *, is_kept: bool = False) -> Iterator[Federation]:
    """Start a SuperLink and SuperNodes that wait for a run.

    Parameters
    ----------
    folder
        An empty folder.
    is_kept
        Whether the SuperLink stores its state in a file.
    """
    made = Federation(folder, free_ports(1)[0], is_kept)
    certificate, _ = make_certificate(folder)
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(_SETTINGS)
    shutil.copy(HERE / "flower_app.py", folder / "app")
    (folder / "home").mkdir()
    connection = f'address = "127.0.0.1:{made.port}"\nroot-certificates = "{certificate}"\n'
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\n{connection}'
    )
    with ending(made.programs):
        made.programs.append(made.start_link())
        made.programs.extend(made.start_node(number) for number in range(N_NODES))
        if not until(
            lambda: all("SuperNode ID" in node.said for node in made.programs[1:]),
            _START_SECONDS,
            made.programs,
        ):
            raise RuntimeError(
                f"Flower's SuperNodes did not join:\n{made.programs[1].said[-2000:]}"
            )
        yield made
