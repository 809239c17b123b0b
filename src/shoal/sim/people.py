"""A made-up population whose truth is known: who sleeps badly, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import Entropy

Floats = npt.NDArray[np.float64]

SCHEMA = Schema(
    [
        Numeric("age", 18, 90, missing=False),
        Numeric("coffee", 0, 8, missing=False),
        Numeric("screen", 0, 12, missing=False),
        Categorical("shifts", ["no", "yes"], missing=False),
        Categorical("children", ["none", "older", "small"], missing=False),
        Categorical("region", ["north", "east", "south", "west"], missing=False),
    ],
    label=Categorical("sleeps_badly", ["no", "yes"], missing=False),
)
"""What is known about everyone. The region has nothing to do with sleep."""


@dataclass(frozen=True)
class People:
    """Rows as the schema encodes them, and the chance of each to sleep badly, which in reality nobody knows."""

    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[np.int64]
    chances: Floats


def make_people(n: int, entropy: Entropy) -> People:
    """Draw n people.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> people = make_people(10_000, SeededEntropy(1))
    >>> bool(abs(people.labels.mean() - people.chances.mean()) < 0.02)
    True
    """
    age = np.floor(18 + 72 * _uniform(n, entropy))
    coffee = np.floor(9 * _uniform(n, entropy) * _uniform(n, entropy))
    screen = np.round(12 * _uniform(n, entropy) * (1.18 - age / 100), 1)
    shifts = (_uniform(n, entropy) < 0.25).astype(np.int64)
    children = np.where(_uniform(n, entropy) < 0.5, 0, np.where(age < 45, 2, 1))
    region = np.floor(4 * _uniform(n, entropy)).astype(np.int64)
    log_odds = -2.8 + 0.45 * coffee + 0.18 * screen + 1.3 * shifts + np.array([0.0, 0.3, 1.4])[children] + 0.02 * (age - 50)
    chances = 1 / (1 + np.exp(-log_odds))
    labels = (_uniform(n, entropy) < chances).astype(np.int64)
    columns = {"age": age, "coffee": coffee, "screen": screen, "shifts": shifts, "children": children, "region": region}
    return People(columns, labels, chances)


def _uniform(n: int, entropy: Entropy) -> Floats:
    return entropy.words(n, np.uint32) / 2.0**32
