"""Repeated runs of a study on the same people and test rows.

The assignment of questions and the noise differ between runs.
"""

from __future__ import annotations

from typing import Literal

from benchmarks.paper.anonml.data import Example
from shoal.protocols.anonml.params import AnonMLParams
from shoal.simulation.anonml import run
from shoal.simulation.metrics import (
    ClassificationScores,
    RunMean,
    compute_mean,
    score_most_common,
    score_without_privacy,
)
from shoal.simulation.run import RunTask

SEED = 0
"""Seed of all trials; the trials of a study are numbered from zero."""

Quality = Literal["auc", "accuracy"]


def trials(given: Example, params: AnonMLParams, n: int, quality: Quality = "auc") -> RunMean:
    """Return the quality of a study's predictions on the test rows, over n runs."""
    return compute_mean(
        [getattr(run(RunTask(params, SEED, i), given.split).scores, quality) for i in range(n)]
    )


def trivial(given: Example) -> ClassificationScores:
    """Return the score of a constant prediction."""
    return score_most_common(
        given.params.n_labels, given.split.train_labels, given.split.test_labels
    )


def logistic(given: Example) -> ClassificationScores:
    """Return the score of logistic regression on the same rows, without privacy."""
    split = given.split
    return score_without_privacy(
        given.schema, split.train_columns, split.train_labels, split.test_columns, split.test_labels
    )
