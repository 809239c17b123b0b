"""Modules that one AnonML answer passes through, from `shoal join` to `shoal model show`.

``python -m tools.path_length`` runs a real study (coordinator, one participant, model) in processes
that record every call of a function of shoal. It prints the number of modules entered, and the
number of distinct calls from a function of one module to a function of another. ``--source DIR``
measures another checkout. Code that runs while a module is imported does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SECONDS = 60.0

RECORDER = """
import atexit, json, os, sys, threading

source = os.environ.get("SHOAL_SOURCE", "") + os.sep
pairs, scripts = set(), [0]


def is_import(frame):
    # Class bodies and module-level calls run while a module is imported.
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(source) and code.co_name == "<module>":
            return not code.co_filename.endswith("__main__.py")
        frame = frame.f_back
    return False


def record(frame, event, _argument):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(source):
        return
    if code.co_name == "make_script" and "anonml" in code.co_filename:
        scripts[0] += 1
    back = frame.f_back
    while back is not None and not back.f_code.co_filename.startswith(source):
        back = back.f_back
    caller = back.f_code if back is not None else None
    edge = (caller, code)
    if edge not in pairs and not is_import(frame):
        pairs.add(edge)


def save():
    sys.setprofile(None)
    edges = [
        (None if a is None else [a.co_filename, a.co_name], [b.co_filename, b.co_name])
        for a, b in pairs
    ]
    content = {"edges": edges, "make_script": scripts[0]}
    with open(os.path.join(os.environ["SHOAL_RECORD"], f"{os.getpid()}.json"), "w") as file:
        json.dump(content, file)


if "SHOAL_RECORD" in os.environ:
    atexit.register(save)
    threading.setprofile(record)
    sys.setprofile(record)
"""

STUDY = """title = "Naps"
purpose = "Measure the path of an answer."
contact = "a@example.org"
protocol = "anonml"

[privacy]
epsilon = 1.0

[participation]
minimum = 1
size = 1

[label]
name = "nap"
values = ["no", "yes"]

[[feature]]
name = "age"
range = [18, 90]
bins = [30, 50]

[[feature]]
name = "sex"
values = ["female", "male"]
"""


def measure(source: Path) -> dict[str, object]:
    """Run a study with the code below `source` and return the counts by command and in total."""
    with tempfile.TemporaryDirectory(prefix="shoal-path-") as name:
        home = Path(name)
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(RECORDER)
        (home / "study.toml").write_text(STUDY)
        (home / "rows.csv").write_text("age,sex,nap\n40,female,yes\n")
        run = _Runner(home, source)
        server = run.start(
            "serve", "serve", "study.toml", "--port", "0", "--patience", "20", "--json"
        )
        url = _read_url(server)
        join = (
            "join",
            url,
            "--data",
            "rows.csv",
            "--yes",
            "--max-epsilon",
            "2",
            "--ledger",
            "ledger.db",
            "--new-ledger",
            "--out",
            "out",
        )
        try:
            run.wait(run.start("join", *join))
        finally:
            server.terminate()
            server.communicate(timeout=SECONDS)
        model = next((home / "out").rglob("*.json"))
        run.wait(run.start("model show", "model", "show", str(model)))
        return run.count()


class _Runner:
    """Commands whose calls are recorded, each in its folder."""

    def __init__(self, home: Path, source: Path) -> None:
        self.home, self.source = home, source.resolve()
        self.commands: list[str] = []

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        folder = self.home / command.replace(" ", "-")
        folder.mkdir()
        self.commands.append(command)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.home / "site"), str(self.source)]),
            "SHOAL_SOURCE": str(self.source / "shoal"),
            "SHOAL_RECORD": str(folder),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "shoal", *words],
            cwd=self.home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, process: subprocess.Popen[str]) -> None:
        output, _ = process.communicate(timeout=SECONDS)
        if process.returncode:
            raise SystemExit(output)

    def count(self) -> dict[str, object]:
        found: dict[str, object] = {}
        total = _Calls()
        for command in self.commands:
            calls = _Calls()
            for path in (self.home / command.replace(" ", "-")).glob("*.json"):
                calls.add(json.loads(path.read_text()))
            total.merge(calls)
            found[command] = calls.count() | {"make_script": calls.n_scripts}
        return {**found, "total": total.count()}


@dataclass
class _Calls:
    """Distinct modules, and distinct calls from a function of one module to one of another."""

    modules: set[str] = field(default_factory=set)
    changes: set[tuple[str, ...]] = field(default_factory=set)
    n_scripts: int = 0

    def add(self, record: dict[str, Any]) -> None:
        self.n_scripts += record["make_script"]
        for caller, callee in record["edges"]:
            self.modules.add(callee[0])
            if caller is not None and caller[0] != callee[0]:
                self.changes.add((*caller, *callee))

    def merge(self, other: _Calls) -> None:
        self.modules |= other.modules
        self.changes |= other.changes

    def count(self) -> dict[str, int]:
        return {"modules": len(self.modules), "changes_of_module": len(self.changes)}


def _read_url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    deadline = time.monotonic() + SECONDS
    text = ""
    while time.monotonic() < deadline:
        text += server.stdout.readline()
        if match := re.search(r"http://127\.0\.0\.1:\d+", text):
            return match.group(0)
        if server.poll() is not None:
            break
    raise SystemExit(text)


def main() -> None:
    """Measure this checkout, or another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder above shoal/")
    print(json.dumps(measure(parser.parse_args().source), indent=2))


if __name__ == "__main__":
    main()
