"""The AnonML paper's main results at reduced size: their order and rough size, on the datasets themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.paper.anonml_data import FILES, Example, example, for_paper, is_there
from benchmarks.paper.anonml_trials import logistic, trials, trivial
from shoal.protocols.anonml.params import Params

pytestmark = pytest.mark.skipif(
    not all(is_there(study) for study in FILES), reason="the datasets are not in $SHOAL_DATA or ../shared/data; `make data` fetches them"
)


@cache
def _auc(study: str, n: int, params: Params) -> float:
    given: Example = example(study)
    return trials(given, params, n).value


def plus(study: str, epsilon: float, n: int = 6) -> float:
    return _auc(study, n, replace(example(study).params, epsilon=epsilon))


def paper(epsilon: float, n: int = 6, partitions: int = 5, size: int = 3, **changes: Any) -> float:
    params = replace(for_paper("adult-paper").params, epsilon=epsilon, n_partitions=partitions, subset_size=size, n_subsets=2, **changes)
    return _auc("adult-paper", n, params)


@pytest.mark.parametrize("study", FILES)
def test_the_table_fits_the_study(study: str) -> None:
    given = example(study)
    people, tests = len(given.split.labels), len(given.split.unseen_labels)
    assert tests == (people + tests) // 4
    assert given.params.size == pytest.approx(people, rel=0.05)


def test_the_day_60_task_is_the_published_one() -> None:
    split = example("oulad").split
    assert len(split.labels) + len(split.unseen_labels) == 26_361
    assert (split.labels.sum() + split.unseen_labels.sum()) / 26_361 == pytest.approx(0.149, abs=0.001)


def test_utility_grows_with_the_budget_towards_that_without_privacy() -> None:
    small, medium, large = plus("adult", 0.5), plus("adult", 2.0), plus("adult", 8.0)
    assert trivial(example("adult")).auc == 0.5
    assert 0.75 < small < medium - 0.01 and 0.85 < medium < large - 0.015
    assert large < logistic(example("adult")).auc < large + 0.02


def test_without_perturbation_is_where_the_paper_ends() -> None:
    assert paper(8.0, accounting="paper") == pytest.approx(paper(math.inf), abs=0.01)
    assert paper(math.inf) == pytest.approx(0.859, abs=0.015)


def test_an_independent_implementation_agrees() -> None:
    assert paper(2.0, accounting="paper") == pytest.approx(0.850, abs=0.015)
    assert paper(4.0, partitions=20, size=1) == pytest.approx(0.842, abs=0.015)


def test_the_plain_sum_is_dearer_than_equation_6() -> None:
    assert paper(2.0) < paper(2.0, accounting="paper") - 0.015


def test_plus_beats_the_paper_at_the_same_guarantee() -> None:
    assert plus("adult", 2.0) > paper(2.0) + 0.02
    assert plus("adult", 8.0) > paper(8.0) + 0.03


def test_common_knowledge_is_worth_most_where_the_budget_is_small() -> None:
    assert plus("adult-declared", 0.5, 12) > plus("adult", 0.5, 12) + 0.01
    assert plus("adult-declared", 8.0) == pytest.approx(plus("adult", 8.0), abs=0.01)


def test_noise_costs_large_subsets_most() -> None:
    """Figure 6: they capture more, and the error of their tables grows exponentially."""
    single, five = (paper(math.inf, partitions=20, size=size) for size in (1, 5))
    assert five > single + 0.005
    assert five - paper(4.0, partitions=20, size=5) > single - paper(4.0, partitions=20, size=1) + 0.005


def test_several_partitions_are_better_than_one() -> None:
    """Figure 7: more partitions see more combinations of features."""
    assert paper(8.0, partitions=8) > paper(8.0, partitions=1) + 0.01


def test_several_classes_are_told_apart() -> None:
    given = example("nursery")
    reached = trials(given, replace(given.params, epsilon=4.0), 3, "accuracy").value
    assert trivial(given).accuracy + 0.3 < reached < logistic(given).accuracy + 0.01
