"""The datasets of the AnonML benchmarks as their example studies see them; a quarter of the rows is set aside before anything else."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.protocols.anonml.params import Paper, Params
from shoal.sim.runs import Split
from shoal.study.anonml import params_of
from shoal.study.load import load
from shoal.tables import read

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SHOAL_DATA", ROOT / "../shared/data"))
FILES = {
    "adult": "adult",
    "adult-declared": "adult",
    "adult-paper": "adult",
    "bank": "bank_marketing",
    "oulad": "mooc_dropout_oulad",
    "phishing": "phishing_websites",
    "nursery": "nursery",
}
"""Which table each example study is about."""

SPLIT_SEED = 12345
"""Which rows are test rows. All choices in the rule were made on the others; another seed would show rows that were looked at."""

_LAST_DAY = 60.0


@dataclass(frozen=True)
class Example:
    """A study with its rows.

    Parameters
    ----------
    params
        What the study file says, as the protocol takes it.
    split
        Three quarters of the rows are the people who are asked; nothing was ever chosen on the others.
    """

    params: Params
    split: Split

    @property
    def schema(self) -> Schema:
        """Features and label of the study."""
        return self.params.schema


def is_there(study: str) -> bool:
    """Whether the table of a study is on this machine."""
    return _table(study).exists()


@cache
def example(study: str) -> Example:
    """An example study with its rows."""
    if not is_there(study):
        sys.exit(f"{_table(study).name} is not in {DATA}. Fetch it with `make data`, then name the folder: SHOAL_DATA=data")
    params = params_of(load(ROOT / "examples" / f"{study}.toml"))
    table = read(_table(study))
    if study == "oulad":
        table = _still_there(table)
    columns, labels = params.schema.encode(table), params.schema.encode_label(table)
    unseen, asked = np.split(np.random.default_rng(SPLIT_SEED).permutation(len(labels)), [len(labels) // 4])
    return Example(params, Split(_rows(columns, asked), labels[asked], _rows(columns, unseen), labels[unseen]))


def for_paper(study: str) -> Example:
    """The example for variant ``paper``: its numbers, which are cut once, and categories of declared groups or of two values."""
    whole = example(study)
    features = [one for one in whole.schema.features if isinstance(one, Numeric) or one.groups is not None or len(one.values) == 2]
    return replace(whole, params=Paper(Schema(features, whole.schema.label), epsilon=1.0, size=whole.params.size))


def in_bins(given: Example) -> Example:
    """The example with nothing left of a row but its bins: numbers cut at their true medians, categories in their groups."""
    features, asked, unseen = [], {}, {}
    for feature in given.schema.features:
        binned = _cut_in_two(feature, given.split.asked[feature.name])
        asked[feature.name] = binned.cut(given.split.asked[feature.name])
        unseen[feature.name] = binned.cut(given.split.unseen[feature.name])
        features.append(Categorical(feature.name, [str(i) for i in range(binned.n_bins or 0)], missing=False))
    params = replace(given.params, schema=Schema(features, given.schema.label))
    return Example(params, replace(given.split, asked=asked, unseen=unseen))


def _cut_in_two(feature: Feature, column: npt.NDArray[Any]) -> Feature:
    return feature if isinstance(feature, Categorical) else replace(feature, bins=(float(np.nanmedian(column)),))


def _table(study: str) -> Path:
    return DATA / f"{FILES[study]}.csv.gz"


def _still_there(table: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Students who have not left the course by day 60; who leaves later is what is predicted."""
    last_day = np.array([float(cell) if cell else np.inf for cell in table["date_unregistration"]])
    return _rows(table, np.flatnonzero(last_day > _LAST_DAY))


def _rows(columns: dict[str, npt.NDArray[Any]], chosen: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    return {name: column[chosen] for name, column in columns.items()}
