"""Small studies with public rows, as tests of forecasts use them."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.sim.forecast_rows import PublicRows, Source
from shoal.sim.forecast_runs import Trial, Tried, try_once
from shoal.sim.sweep import Settings, vary
from shoal.study.load import parse
from shoal.study.spec import Study
from shoal.study.templates import example_csv, study_text
from simulating import edited


def small(protocol: str, *edits: tuple[str, str], **settings: float) -> Study:
    """The starter study of a protocol, with a size that is quickly simulated."""
    wanted: Settings = {"size": 60 if protocol == "ddml" else 400, **settings}
    return vary(parse(edited(study_text(protocol), *edits)), wanted)


def table_of(study: Study, n: int, seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    """Made-up public rows of a study."""
    header, *rows = csv.reader(io.StringIO(example_csv(study, n, SeededEntropy(seed))))
    return {name: np.array([row[i] for row in rows], object) for i, name in enumerate(header)}


def rows_of(study: Study, n: int = 800, seed: int = 1) -> PublicRows:
    """The same, to draw from."""
    return PublicRows.of(study, table_of(study, n, seed), seed)


def running(source: Source) -> Any:
    """A function that makes runs on a source, one after another."""

    def run(trials: list[Trial]) -> list[Tried]:
        return [try_once(trial, source) for trial in trials]

    return run
