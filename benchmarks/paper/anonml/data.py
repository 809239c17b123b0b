"""The datasets of the AnonML benchmarks, as their example studies encode them.

A quarter of the rows is set aside first, for tests.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.data.tables import read_table_file
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams
from shoal.simulation.run import Split
from shoal.study.anonml import build_params
from shoal.study.loader import load_study

ROOT = Path(__file__).parents[3]
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
"""The table of each example study."""

SPLIT_SEED = 12345
"""Seed of the test rows.

All choices in the rule were made on the other rows. Another seed would put rows into the test that
choices were based on.
"""

_LAST_DAY = 60.0


@dataclass(frozen=True)
class Example:
    """A study with its rows.

    Parameters
    ----------
    params
        Parameters of the study file.
    split
        Three quarters of the rows are the people who are asked; no choice was based on the others.
    """

    params: AnonMLParams
    split: Split

    @property
    def schema(self) -> Schema:
        """Features and label of the study."""
        return self.params.schema


def is_there(study: str) -> bool:
    """Return whether the table of a study is on this machine."""
    return _table(study).exists()


@cache
def example(study: str) -> Example:
    """Return an example study with its rows."""
    if not is_there(study):
        sys.exit(
            f"{_table(study).name} is not in {DATA}. Fetch it with `make data`, then set "
            "SHOAL_DATA=data"
        )
    params = build_params(load_study(ROOT / "examples" / f"{study}.toml"))
    table = read_table_file(_table(study))
    if study == "oulad":
        table = _still_there(table)
    columns, labels = params.schema.encode(table), params.schema.encode_label(table)
    unseen, asked = np.split(
        np.random.default_rng(SPLIT_SEED).permutation(len(labels)), [len(labels) // 4]
    )
    return Example(
        params, Split(_rows(columns, asked), labels[asked], _rows(columns, unseen), labels[unseen])
    )


def for_paper(study: str) -> Example:
    """Return the example for variant ``paper``.

    It has the numbers, which are cut once, and the categories with declared groups or two values.
    """
    whole = example(study)
    features = [
        one
        for one in whole.schema.features
        if isinstance(one, Numeric) or one.groups is not None or len(one.values) == 2
    ]
    return replace(
        whole,
        params=AnonMLPaperParams(
            Schema(features, whole.schema.label), epsilon=1.0, size=whole.params.size
        ),
    )


def in_bins(given: Example) -> Example:
    """Return the example with the bins of each row only.

    Numbers are cut at their true medians, and categories are in their groups.
    """
    features, asked, unseen = [], {}, {}
    for feature in given.schema.features:
        binned = _cut_in_two(feature, given.split.train_columns[feature.name])
        asked[feature.name] = binned.cut(given.split.train_columns[feature.name])
        unseen[feature.name] = binned.cut(given.split.test_columns[feature.name])
        features.append(
            Categorical(feature.name, [str(i) for i in range(binned.n_bins or 0)], missing=False)
        )
    params = replace(given.params, schema=Schema(features, given.schema.label))
    return Example(params, replace(given.split, train_columns=asked, test_columns=unseen))


def _cut_in_two(feature: Feature, column: npt.NDArray[Any]) -> Feature:
    return (
        feature
        if isinstance(feature, Categorical)
        else replace(feature, bins=(float(np.nanmedian(column)),))
    )


def _table(study: str) -> Path:
    return DATA / f"{FILES[study]}.csv.gz"


def _still_there(table: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return students who were still enrolled on day 60; later departures are the label."""
    last_day = np.array([float(cell) if cell else np.inf for cell in table["date_unregistration"]])
    return _rows(table, np.flatnonzero(last_day > _LAST_DAY))


def _rows(
    columns: dict[str, npt.NDArray[Any]], chosen: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    return {name: column[chosen] for name, column in columns.items()}
