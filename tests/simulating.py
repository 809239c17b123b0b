"""`shoal simulate` as tests call it: a directory with ``study.toml`` and ``rows.csv``, two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import run


def edited(text: str, *edits: tuple[str, str]) -> str:
    """A study file in which some words are others; each must be there."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def simulate(home: Path, *options: str) -> int:
    """The exit code."""
    return run(["simulate", str(home / "study.toml"), "--data", str(home / "rows.csv"), "--repeats", "2", *options])


def told(home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What it prints as JSON."""
    assert simulate(home, *options, "--json") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result
