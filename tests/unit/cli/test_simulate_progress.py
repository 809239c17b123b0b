"""How far a simulation has come: a bar at a terminal, and not a byte anywhere else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.progress import counting
from shoal.entropy import SeededEntropy
from shoal.study.load import parse
from shoal.study.templates import example_csv, study_text
from simulating import simulate


@pytest.fixture
def home(tmp_path: Path) -> Path:
    text = study_text("anonml")
    (tmp_path / "study.toml").write_text(text)
    (tmp_path / "rows.csv").write_text(example_csv(parse(text), 400, SeededEntropy(1)))
    return tmp_path


def test_without_a_terminal_nothing_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(home) == 0
    assert capsys.readouterr().err == ""
    with counting("runs", 2) as done:
        done()
    assert capsys.readouterr() == ("", "")


def read_all(reader: int) -> str:
    parts = []
    try:
        while part := os.read(reader, 1 << 16):
            parts.append(part)
    except OSError:  # what a terminal says when nobody is at its other end
        pass
    return b"".join(parts).decode()


def test_at_a_terminal_runs_are_counted_and_the_result_is_left_alone(home: Path) -> None:
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "shoal", "simulate", str(home / "study.toml"), "--data", str(home / "rows.csv")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*command, "--repeats", "3", "--json"], stdout=subprocess.PIPE, stderr=terminal, env=environment)
    os.close(terminal)
    shown = read_all(reader)
    os.close(reader)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and json.loads(printed)["repeats"] == 3
    assert "runs" in shown and "3/3" in shown
    assert shown.rstrip().endswith("\x1b[2K"), "the bar is taken away at the end"
