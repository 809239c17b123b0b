"""The SDQ paper's main results at reduced size, on Nursery: order and rough size."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.anonml.data import example, is_there
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.population import simulate
from tests.support.sdq import CentralID3

pytestmark = pytest.mark.skipif(
    not is_there("nursery"),
    reason="the dataset is not in $SHOAL_DATA or ../shared/data; `make data` fetches it",
)

N_RUNS = 30


def make_params(epsilon: float, n_databases: int, **changes: Any) -> SDQParams:
    schema, size = example("nursery").schema, len(example("nursery").split.train_labels)
    return SDQParams(
        schema,
        epsilon,
        size,
        **{"n_databases": n_databases, "minimum": n_databases, "variant": "paper", "depth": 4}
        | changes,
    )


@cache
def compute_accuracy(epsilon: float, n_databases: int = 10, **changes: Any) -> float:
    """Return the accuracy on held-out rows, the mean over runs."""
    split = example("nursery").split
    study = make_params(epsilon, n_databases, **changes)
    table = CellTable.from_columns(
        study,
        split.train_columns,
        split.train_labels,
        np.arange(len(split.train_labels)) % n_databases,
    )
    decided = [
        simulate(SDQPaperScript(study), table, SeededEntropy(run)).model.decide(split.test_columns)
        for run in range(N_RUNS)
    ]
    return float(np.mean([labels == split.test_labels for labels in decided]))


def test_noiseless_sdq_predicts_like_central_id3() -> None:
    """Check the direct secure sum of §V-A."""
    split = example("nursery").split
    study = make_params(math.inf, 10)
    table = CellTable.from_columns(
        study, split.train_columns, split.train_labels, np.arange(len(split.train_labels)) % 10
    )
    tree = simulate(SDQPaperScript(study), table, SeededEntropy(0)).model
    oracle = CentralID3(table, study.arities, study.n_classes, study.depth)
    unseen = CellTable.from_columns(study, split.test_columns, split.test_labels)
    assert tree.decide(split.test_columns).tolist() == [
        oracle.predict(cells) for cells in unseen.cells.tolist()
    ]
    assert compute_accuracy(math.inf) == pytest.approx(0.911, abs=0.01)


def test_accuracy_grows_with_budget() -> None:
    """Check Figure 3(d)."""
    small, medium, large = compute_accuracy(0.05), compute_accuracy(0.5), compute_accuracy(1.0)
    assert compute_accuracy(0.005) < small - 0.02 and small < medium - 0.2
    assert medium == pytest.approx(0.70, abs=0.05) and large == pytest.approx(0.785, abs=0.04)
    assert medium + 0.04 < large < compute_accuracy(math.inf) - 0.05


def test_one_noise_on_sum_beats_noise_of_every_database() -> None:
    """Check Figure 3(d): distributed SuLQ."""
    for epsilon, margin in ((0.1, 0.04), (0.5, 0.15), (1.0, 0.1)):
        assert compute_accuracy(epsilon) > compute_accuracy(epsilon, trust="local") + margin


def test_number_of_databases_matters_only_for_sulq() -> None:
    """Check Figure 3(c)."""
    assert compute_accuracy(0.5, 100) == pytest.approx(compute_accuracy(0.5), abs=0.05)
    assert compute_accuracy(0.5, 100, trust="local") < compute_accuracy(0.5, trust="local") - 0.03


def test_two_selected_databases_add_the_same_noise() -> None:
    assert compute_accuracy(0.5, noise="two-selected") == pytest.approx(
        compute_accuracy(0.5), abs=0.05
    )


def test_tolerating_colluders_costs_some_accuracy() -> None:
    """Let half of the databases collude: twice the variance, far from SuLQ's ten times."""
    assert (
        compute_accuracy(0.5, trust="local") + 0.04
        < compute_accuracy(0.5, max_colluders=5)
        < compute_accuracy(0.5) - 0.04
    )
