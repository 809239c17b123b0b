"""Trees of PFDS's variant paper in the plainest form, and rows to grow them from."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Floats, Params
from shoal.protocols.pfds.tree import Level, Levels

SCHEMA = Schema(
    [
        Numeric("age", 0, 100, missing=False),
        Categorical("ward", ["a", "b", "c"], missing=False),
        Categorical("city", ["Oslo", "Bergen", "Rome", "Milan"], groups={"north": ["Oslo", "Bergen"], "south": ["Rome", "Milan"]}),
        Numeric("weight", 2, 6, missing=False),
    ],
    label=Categorical("ill", ["no", "yes"]),
)
"""Splits have 2, 3, 3 and 2 children."""


def params_of(schema: Schema = SCHEMA, epsilon: float = 1.0, **changes: Any) -> Params:
    """A study of variant paper, four levels deep."""
    return Params(schema, epsilon, **{"size": 200, "n_holders": 3, "max_depth": 4, "n_levels": 3, "variant": "paper", **changes})


def level_of(*splits: tuple[int, float]) -> Level:
    """A level by its nodes' attributes and split values."""
    return Level(np.array([a for a, _ in splits], np.int16), np.array([float(value) for _, value in splits]))


def random_points(params: Params, n: int, seed: int) -> Points:
    """Rows in which the outcome leans on the first attribute."""
    rng = np.random.default_rng(seed)
    values = [
        rng.uniform(one.low, one.high, n) if isinstance(one, Numeric) else rng.integers(0, one.n_bins, n).astype(float)
        for one in params.schema.features
    ]
    rank = np.argsort(np.argsort(values[0])) * params.n_outcomes // max(n, 1)
    return Points(np.stack(values, axis=1), np.where(rng.random(n) < 0.8, rank, rng.integers(0, params.n_outcomes, n)))


def fan_of(params: Params, attribute: int) -> int:
    """Children of a split."""
    feature = params.schema.features[attribute]
    return 2 if isinstance(feature, Numeric) else feature.n_bins


def plain_path(params: Params, levels: Levels, row: Floats) -> list[int]:
    """The node of each level that a row comes by, found by counting children."""
    path = [0]
    for level in levels:
        node = path[-1]
        attribute = int(level.attributes[node])
        is_number = isinstance(params.schema.features[attribute], Numeric)
        edge = int(row[attribute] >= level.splits[node]) if is_number else int(row[attribute])
        path.append(sum(fan_of(params, int(a)) for a in level.attributes[:node]) + edge)
    return path
