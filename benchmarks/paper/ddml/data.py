"""Rows for DDML's unit ``update``: the example studies' tables, and synthetic rows.

Every input of a synthetic row has an effect.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.anonml.data import DATA, ROOT, SPLIT_SEED
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.data.tables import read_table_file
from shoal.protocols.ddml.params import DDMLParams
from shoal.simulation.run import Split
from shoal.study.ddml import build_params
from shoal.study.loader import load_study

FILES = {"adult-ddml": "adult.csv.gz", "phishing-ddml": "phishing_websites.csv.gz"}
N_DENSE, N_DENSE_UNSEEN = 100_000, 20_000
N_NUMBERS = 32
"""Numbers of a synthetic row; with the constant there are 33 weights."""
_STEEPNESS = 2.5
_REACH = 0.5
_VALIDATION_SEED = 7


@dataclass(frozen=True, eq=False)
class Example:
    """A study with its rows.

    The number of training rows is that of the study. No choice was based on the test rows, a
    quarter of the table.
    """

    params: DDMLParams
    split: Split


def is_there(study: str) -> bool:
    """Return whether the rows of a study are on this machine, or synthetic."""
    return study == "dense" or (DATA / FILES[study]).exists()


@cache
def example(study: str) -> Example:
    """Return an example study, or ``"dense"``."""
    if study == "dense":
        return dense(N_DENSE, N_DENSE_UNSEEN)
    if not is_there(study):
        sys.exit(
            f"{FILES[study]} is not in {DATA}. Fetch it with `make data`, then set SHOAL_DATA=data"
        )
    params = build_params(load_study(ROOT / "examples" / f"{study}.toml"))
    table = read_table_file(DATA / FILES[study])
    columns, labels = params.schema.encode(table), params.schema.encode_label(table)
    unseen, asked = np.split(
        np.random.default_rng(SPLIT_SEED).permutation(len(labels)), [len(labels) // 4]
    )
    return Example(params, _split(columns, labels, asked[: params.size], unseen))


def dense(n: int, n_unseen: int, seed: int = 33) -> Example:
    """Return points on a sphere in 32 dimensions, labelled by their direction.

    The true model has an AUC of about .90. The public ranges of the coordinates are [-.5, .5],
    which one coordinate in 300 leaves.
    """
    rng = np.random.default_rng(seed)
    truth, points = rng.standard_normal(N_NUMBERS), rng.standard_normal((n + n_unseen, N_NUMBERS))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    scores = points @ truth * (_STEEPNESS * math.sqrt(N_NUMBERS) / np.linalg.norm(truth))
    labels = (rng.random(n + n_unseen) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    numbers = [Numeric(f"x{i}", -_REACH, _REACH, missing=False) for i in range(N_NUMBERS)]
    columns = {
        number.name: np.clip(points[:, i], -_REACH, _REACH) for i, number in enumerate(numbers)
    }
    params = DDMLParams(Schema(numbers, Categorical("label", ["no", "yes"])), 4.0, n)
    return Example(params, _split(columns, labels, np.arange(n), np.arange(n, n + n_unseen)))


def development(split: Split) -> Split:
    """Return the training rows only, with a quarter of them as test rows."""
    n = len(split.train_labels)
    unseen, asked = np.split(np.random.default_rng(_VALIDATION_SEED).permutation(n), [n // 4])
    return _split(dict(split.train_columns), split.train_labels, asked, unseen)


def _split(
    columns: dict[str, npt.NDArray[Any]], labels: npt.NDArray[Any], asked: Any, unseen: Any
) -> Split:
    take = [{name: column[rows] for name, column in columns.items()} for rows in (asked, unseen)]
    return Split(take[0], labels[asked], take[1], labels[unseen])
