"""Progress of a simulation: a bar at a terminal, and no output elsewhere."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.output import show_progress_bar
from shoal.entropy import SeededEntropy
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import simulate


@pytest.fixture
def home(tmp_path: Path) -> Path:
    text = read_starter("anonml")
    (tmp_path / "study.toml").write_text(text)
    (tmp_path / "rows.csv").write_text(
        make_example_csv(parse_study_text(text), 400, SeededEntropy(1))
    )
    return tmp_path


def test_progress_is_not_shown_without_a_terminal(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home) == 0
    assert capsys.readouterr().err == ""
    with show_progress_bar("runs", 2) as done:
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


def test_progress_at_a_terminal_counts_runs_and_keeps_the_result(home: Path) -> None:
    reader, terminal = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "shoal",
        "simulate",
        str(home / "study.toml"),
        "--data",
        str(home / "rows.csv"),
    ]
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [*command, "--repeats", "3", "--json"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    shown = read_all(reader)
    os.close(reader)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and json.loads(printed)["repeats"] == 3
    assert "runs" in shown and "3/3" in shown
    assert shown.rstrip().endswith("\x1b[2K"), "the bar is taken away at the end"
