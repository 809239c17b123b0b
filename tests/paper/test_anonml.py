"""The AnonML paper's main results at reduced size, on its datasets: order and rough size."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.paper.anonml.data import FILES, Example, example, for_paper, is_there
from benchmarks.paper.anonml.trials import logistic, trials, trivial
from shoal.protocols.anonml.params import AnonMLParams

pytestmark = pytest.mark.skipif(
    not all(is_there(study) for study in FILES),
    reason="the datasets are not in $SHOAL_DATA or ../shared/data; `make data` fetches them",
)


@cache
def _compute_auc(study: str, n: int, params: AnonMLParams) -> float:
    given: Example = example(study)
    return trials(given, params, n).value


def score_plus(study: str, epsilon: float, n: int = 6) -> float:
    return _compute_auc(study, n, replace(example(study).params, epsilon=epsilon))


def score_paper(
    epsilon: float, n: int = 6, partitions: int = 5, size: int = 3, **changes: Any
) -> float:
    params = replace(
        for_paper("adult-paper").params,
        epsilon=epsilon,
        n_partitions=partitions,
        subset_size=size,
        n_subsets=2,
        **changes,
    )
    return _compute_auc("adult-paper", n, params)


@pytest.mark.parametrize("study", FILES)
def test_dataset_fits_study(study: str) -> None:
    given = example(study)
    people, tests = len(given.split.train_labels), len(given.split.test_labels)
    assert tests == (people + tests) // 4
    assert given.params.size == pytest.approx(people, rel=0.05)


def test_day_60_task_has_published_size() -> None:
    split = example("oulad").split
    assert len(split.train_labels) + len(split.test_labels) == 26_361
    assert (split.train_labels.sum() + split.test_labels.sum()) / 26_361 == pytest.approx(
        0.149, abs=0.001
    )


def test_auc_grows_with_budget_towards_auc_without_privacy() -> None:
    small, medium, large = (
        score_plus("adult", 0.5),
        score_plus("adult", 2.0),
        score_plus("adult", 8.0),
    )
    assert trivial(example("adult")).auc == 0.5
    assert 0.75 < small < medium - 0.01 and 0.85 < medium < large - 0.015
    assert large < logistic(example("adult")).auc < large + 0.02


def test_auc_without_perturbation_is_that_of_paper() -> None:
    assert score_paper(8.0, accounting="paper") == pytest.approx(score_paper(math.inf), abs=0.01)
    assert score_paper(math.inf) == pytest.approx(0.859, abs=0.015)


def test_independent_implementation_agrees() -> None:
    assert score_paper(2.0, accounting="paper") == pytest.approx(0.850, abs=0.015)
    assert score_paper(4.0, partitions=20, size=1) == pytest.approx(0.842, abs=0.015)


def test_plain_sum_costs_more_than_equation_6() -> None:
    assert score_paper(2.0) < score_paper(2.0, accounting="paper") - 0.015


def test_plus_beats_paper_at_same_guarantee() -> None:
    assert score_plus("adult", 2.0) > score_paper(2.0) + 0.02
    assert score_plus("adult", 8.0) > score_paper(8.0) + 0.03


def test_public_knowledge_helps_most_with_small_budget() -> None:
    assert score_plus("adult-declared", 0.5, 12) > score_plus("adult", 0.5, 12) + 0.01
    assert score_plus("adult-declared", 8.0) == pytest.approx(score_plus("adult", 8.0), abs=0.01)


def test_noise_costs_large_subsets_most() -> None:
    """Check Figure 6: large subsets capture more, but their error grows exponentially."""
    single, five = (score_paper(math.inf, partitions=20, size=size) for size in (1, 5))
    assert five > single + 0.005
    assert (
        five - score_paper(4.0, partitions=20, size=5)
        > single - score_paper(4.0, partitions=20, size=1) + 0.005
    )


def test_several_partitions_beat_one() -> None:
    """Check Figure 7: more partitions see more combinations of features."""
    assert score_paper(8.0, partitions=8) > score_paper(8.0, partitions=1) + 0.01


def test_model_separates_several_classes() -> None:
    given = example("nursery")
    reached = trials(given, replace(given.params, epsilon=4.0), 3, "accuracy").value
    assert trivial(given).accuracy + 0.3 < reached < logistic(given).accuracy + 0.01
