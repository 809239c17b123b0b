"""Repeated runs of a study on the same people and test rows: what differs is who is asked what, and the noise."""

from __future__ import annotations

from typing import Literal

from benchmarks.paper.anonml_data import Example
from shoal.protocols.anonml.params import Params
from shoal.sim.anonml import run
from shoal.sim.runs import Task
from shoal.sim.scores import Mean, Scores, mean_of, most_common, without_privacy

SEED = 0
"""The trials of a study are numbered from zero under this seed."""

Quality = Literal["auc", "accuracy"]


def trials(given: Example, params: Params, n: int, quality: Quality = "auc") -> Mean:
    """How good a study's predictions on the test rows are, over n runs."""
    return mean_of([getattr(run(Task(params, SEED, i), given.split).scores, quality) for i in range(n)])


def trivial(given: Example) -> Scores:
    """What a constant prediction scores."""
    return most_common(given.params.n_labels, given.split.labels, given.split.unseen_labels)


def logistic(given: Example) -> Scores:
    """What logistic regression on the same rows scores without any privacy."""
    split = given.split
    return without_privacy(given.schema, split.asked, split.labels, split.unseen, split.unseen_labels)
