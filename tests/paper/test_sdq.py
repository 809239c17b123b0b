"""The SDQ paper's main results at reduced size: their order and rough size, on Nursery itself."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.anonml_data import example, is_there
from sdq_trees import CentralID3
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate

pytestmark = pytest.mark.skipif(
    not is_there("nursery"), reason="the dataset is not in $SHOAL_DATA or ../shared/data; `make data` fetches it"
)

N_RUNS = 30


def params(epsilon: float, n_databases: int, **changes: Any) -> Params:
    schema, size = example("nursery").schema, len(example("nursery").split.labels)
    return Params(schema, epsilon, size, **{"n_databases": n_databases, "minimum": n_databases, "variant": "paper", "depth": 4} | changes)


@cache
def accuracy(epsilon: float, n_databases: int = 10, **changes: Any) -> float:
    """On rows that were set aside, the mean over runs."""
    split = example("nursery").split
    study = params(epsilon, n_databases, **changes)
    table = Table.of(study, split.asked, split.labels, np.arange(len(split.labels)) % n_databases)
    decided = [simulate(PaperScript(study), table, SeededEntropy(run)).model.decide(split.unseen) for run in range(N_RUNS)]
    return float(np.mean([labels == split.unseen_labels for labels in decided]))


def test_without_noise_it_is_central_id3_on_every_prediction() -> None:
    """The direct secure sum of §V-A."""
    split = example("nursery").split
    study = params(math.inf, 10)
    table = Table.of(study, split.asked, split.labels, np.arange(len(split.labels)) % 10)
    tree = simulate(PaperScript(study), table, SeededEntropy(0)).model
    oracle = CentralID3(table, study.arities, study.n_classes, study.depth)
    unseen = Table.of(study, split.unseen, split.unseen_labels)
    assert tree.decide(split.unseen).tolist() == [oracle.predict(cells) for cells in unseen.cells.tolist()]
    assert accuracy(math.inf) == pytest.approx(0.911, abs=0.01)


def test_accuracy_grows_with_the_budget() -> None:
    """Figure 3(d)."""
    small, medium, large = accuracy(0.05), accuracy(0.5), accuracy(1.0)
    assert accuracy(0.005) < small - 0.02 and small < medium - 0.2
    assert medium == pytest.approx(0.70, abs=0.05) and large == pytest.approx(0.785, abs=0.04)
    assert medium + 0.04 < large < accuracy(math.inf) - 0.05


def test_one_noise_on_the_sum_beats_one_from_every_database() -> None:
    """Figure 3(d): distributed SuLQ."""
    for epsilon, margin in ((0.1, 0.04), (0.5, 0.15), (1.0, 0.1)):
        assert accuracy(epsilon) > accuracy(epsilon, trust="local") + margin


def test_the_number_of_databases_matters_to_sulq_alone() -> None:
    """Figure 3(c)."""
    assert accuracy(0.5, 100) == pytest.approx(accuracy(0.5), abs=0.05)
    assert accuracy(0.5, 100, trust="local") < accuracy(0.5, trust="local") - 0.03


def test_two_selected_databases_add_the_same_noise() -> None:
    assert accuracy(0.5, noise="two-selected") == pytest.approx(accuracy(0.5), abs=0.05)


def test_tolerating_colluders_costs_some_of_it() -> None:
    """Half of the databases may collude: twice the variance, far from SuLQ's ten times."""
    assert accuracy(0.5, trust="local") + 0.04 < accuracy(0.5, max_colluders=5) < accuracy(0.5) - 0.04
