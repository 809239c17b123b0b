"""Studies of PFDS with secure sums, and rows in which the label leans on the features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.protocols.pfds.params import Ints, Params, Rows
from shoal.protocols.pfds.sums import Answers, Course, SumScript

TWO, THREE, NUMBER = Categorical("y", ["0", "1"]), Categorical("y", ["0", "1", "2"]), Numeric("y", 0, 8)
LABELS = {"two": TWO, "three": THREE, "number": NUMBER}
ARITIES = (2, 3, 5, 4, 2)


def params_of(label: Feature = TWO, epsilon: float = 1.0, size: int = 4000, **figures: Any) -> Params:
    features = [Categorical(f"a{j}", [str(i) for i in range(arity)], missing=False) for j, arity in enumerate(ARITIES)]
    return Params(Schema(features, label), epsilon, size, **{"n_holders": 8, "minimum": 8, "trust": "secure-sum", **figures})


def rows_of(params: Params, n: int = 4000, seed: int = 1) -> Rows:
    """Three features tell the label, two of them nearly the same; the others do not."""
    generator = np.random.default_rng(seed)
    cells = np.stack([generator.integers(0, arity, n) for arity in params.arities], axis=1)
    cells[:, 4] = np.where(generator.random(n) < 0.9, cells[:, 0], cells[:, 4])
    score = 1.5 * (2 * cells[:, 0] - 1) + 0.5 * (cells[:, 2] - 2.0) + 0.5 * (cells[:, 4] - 0.5) - 0.7
    labels: Any = (generator.random(n) < 1 / (1 + np.exp(-score))).astype(np.int64)
    if params.is_number:
        labels = np.clip(4 + score + generator.normal(0, 0.5, n), 0, 8)
    elif params.n_sides > 2:
        labels = np.where(generator.random(n) < 0.7, cells[:, 1], generator.integers(0, 3, n))
    return Rows.of(params, {f"a{j}": cells[:, j] for j in range(len(ARITIES))}, labels, generator.integers(0, params.n_holders, n))


def parted(params: Params, rows: Rows) -> list[Rows]:
    """The rows of each holder."""
    return [rows.take(rows.whose == holder) for holder in range(params.n_holders)]


def followed(script: SumScript, rows: Rows) -> Iterator[tuple[Course, Ints]]:
    """Each course of a study without noise, and what its rows count."""
    course, answers = script.start, Answers()
    while script.question(course):
        counted = script.count(course, rows)
        yield course, counted
        answers = (*answers, counted)
        course = script.advance(course, answers)
    yield course, np.zeros(0, np.int64)
