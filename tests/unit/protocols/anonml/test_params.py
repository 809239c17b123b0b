"""The conditions on a study's figures, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from anonml_cases import FEATURES, FOUR, TWO
from shoal.domain import Numeric, Schema
from shoal.errors import MechanismError, SpecError
from shoal.protocols.anonml.params import Paper, Plus, cells_of


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plus(Schema(FEATURES), 1.0, 100),
        lambda: Plus(Schema(FEATURES, label=Numeric("wage", 0, 9)), 1.0, 100),
        lambda: Plus(TWO, 1.0, 0),
        lambda: Paper(TWO, 1.0, -5),
        lambda: Paper(TWO, 1.0, 100, n_partitions=0),
        lambda: Paper(TWO, 1.0, 100, n_subsets=0),
        lambda: Paper(TWO, 1.0, 100, subset_size=0),
        lambda: Paper(TWO, 1.0, 100, n_subsets=2, subset_size=3),
    ],
)
def test_what_the_protocol_cannot_do_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.code == "SPEC-021"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, -math.inf])
def test_a_budget_is_positive(epsilon: float) -> None:
    with pytest.raises(MechanismError):
        Plus(TWO, epsilon, 100)
    with pytest.raises(MechanismError):
        Paper(TWO, epsilon, 100, subset_size=1)


def test_only_the_papers_variant_can_go_without_perturbation() -> None:
    with pytest.raises(MechanismError):
        Plus(TWO, math.inf, 100)
    bare = Paper(TWO, math.inf, 100, subset_size=1)
    assert bare.is_bare
    assert bare.epsilon_release == math.inf
    assert not Plus(TWO, 1.0, 100).is_bare


def test_what_follows_from_the_schema() -> None:
    params = Plus(FOUR, 1.0, 100)
    assert (params.n_features, params.n_labels) == (4, 4)
    assert [number.name for number in params.unbinned] == ["age"]
    assert params.columns == ("age", "height", "town", "job", "kind")
    assert [cells_of(feature) for feature in FEATURES[1:]] == [2, 2, 4]


def test_plain_accounting_adds_all_answers_up() -> None:
    params = Paper(TWO, 6.0, 100, n_subsets=2, subset_size=1)
    assert (params.n_releases, params.epsilon_release) == (3, 2.0)
    binned = Schema(FEATURES[1:], label=TWO.label)
    assert Paper(binned, 6.0, 100, n_subsets=2, subset_size=1).epsilon_release == 3.0


def test_the_papers_accounting_takes_the_dearer_of_label_and_feature() -> None:
    """Equation 6: the label is in k_h tables; one feature in one table and one median."""
    binned = Schema(FEATURES[1:], label=TWO.label)
    assert Paper(TWO, 6.0, 100, n_subsets=1, subset_size=1, accounting="paper").epsilon_release == 3.0
    assert Paper(TWO, 6.0, 100, n_subsets=3, subset_size=1, accounting="paper").epsilon_release == 2.0
    assert Paper(binned, 6.0, 100, n_subsets=1, subset_size=1, accounting="paper").epsilon_release == 6.0
