"""``shoal simulate`` for tests, and small studies with public rows for forecasts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.simulation.forecast.sources import PopulationSource, PublicRows
from shoal.simulation.forecast.trials import ForecastTrial, ForecastTrialResult, run_trial
from shoal.simulation.sweep import Settings, vary
from shoal.study.loader import parse_study_text
from shoal.study.spec import Study
from shoal.study.starters import make_example_csv, read_starter


def edited(text: str, *edits: tuple[str, str]) -> str:
    """Return a study file with some words replaced; each must occur."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def simulate(home: Path, *options: str) -> int:
    """Run the command; return the exit code."""
    return run(
        [
            "simulate",
            str(home / "study.toml"),
            "--data",
            str(home / "rows.csv"),
            "--repeats",
            "2",
            *options,
        ]
    )


def told(home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Run the command with ``--json``; return the document."""
    assert simulate(home, *options, "--json") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def small(protocol: str, *edits: tuple[str, str], **settings: float) -> Study:
    """Return the starter study of a protocol, with a small size."""
    wanted: Settings = {"size": 60 if protocol == "ddml" else 400, **settings}
    return vary(parse_study_text(edited(read_starter(protocol), *edits)), wanted)


def make_table(study: Study, n: int, seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    """Return synthetic public rows of a study."""
    header, *rows = csv.reader(io.StringIO(make_example_csv(study, n, SeededEntropy(seed))))
    return {name: np.array([row[i] for row in rows], object) for i, name in enumerate(header)}


def make_rows(study: Study, n: int = 800, seed: int = 1) -> PublicRows:
    """Return the same rows to draw from."""
    return PublicRows.from_table(study, make_table(study, n, seed), seed)


def running(source: PopulationSource) -> Any:
    """Return a function that makes one run after another on a source."""

    def run(trials: list[ForecastTrial]) -> list[ForecastTrialResult]:
        return [run_trial(trial, source) for trial in trials]

    return run
