"""The conditions on a study's parameters, and derived values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from shoal.data.schema import Numeric, Schema
from shoal.errors import MechanismError, SpecError
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLPlusParams, count_cells
from tests.support.anonml import FEATURES, FOUR, TWO


@pytest.mark.parametrize(
    "make",
    [
        lambda: AnonMLPlusParams(Schema(FEATURES), 1.0, 100),
        lambda: AnonMLPlusParams(Schema(FEATURES, label=Numeric("wage", 0, 9)), 1.0, 100),
        lambda: AnonMLPlusParams(TWO, 1.0, 0),
        lambda: AnonMLPaperParams(TWO, 1.0, -5),
        lambda: AnonMLPaperParams(TWO, 1.0, 100, n_partitions=0),
        lambda: AnonMLPaperParams(TWO, 1.0, 100, n_subsets=0),
        lambda: AnonMLPaperParams(TWO, 1.0, 100, subset_size=0),
        lambda: AnonMLPaperParams(TWO, 1.0, 100, n_subsets=2, subset_size=3),
    ],
)
def test_params_reject_unsupported_studies(make: Callable[[], object]) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.code == "SPEC-021"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, -math.inf])
def test_params_reject_nonpositive_epsilon(epsilon: float) -> None:
    with pytest.raises(MechanismError):
        AnonMLPlusParams(TWO, epsilon, 100)
    with pytest.raises(MechanismError):
        AnonMLPaperParams(TWO, epsilon, 100, subset_size=1)


def test_only_paper_params_accept_infinite_epsilon() -> None:
    with pytest.raises(MechanismError):
        AnonMLPlusParams(TWO, math.inf, 100)
    bare = AnonMLPaperParams(TWO, math.inf, 100, subset_size=1)
    assert bare.is_noiseless
    assert bare.epsilon_release == math.inf
    assert not AnonMLPlusParams(TWO, 1.0, 100).is_noiseless


def test_params_derive_counts_from_schema() -> None:
    params = AnonMLPlusParams(FOUR, 1.0, 100)
    assert (params.n_features, params.n_labels) == (4, 4)
    assert [number.name for number in params.unbinned] == ["age"]
    assert params.columns == ("age", "height", "town", "job", "kind")
    assert [count_cells(feature) for feature in FEATURES[1:]] == [2, 2, 4]


def test_plain_accounting_sums_all_answers() -> None:
    params = AnonMLPaperParams(TWO, 6.0, 100, n_subsets=2, subset_size=1)
    assert (params.n_releases, params.epsilon_release) == (3, 2.0)
    binned = Schema(FEATURES[1:], label=TWO.label)
    assert AnonMLPaperParams(binned, 6.0, 100, n_subsets=2, subset_size=1).epsilon_release == 3.0


def test_paper_accounting_takes_larger_of_label_and_feature() -> None:
    """Equation 6: the label is in k_h tables; one feature in one table and one median."""
    binned = Schema(FEATURES[1:], label=TWO.label)
    assert (
        AnonMLPaperParams(
            TWO, 6.0, 100, n_subsets=1, subset_size=1, accounting="paper"
        ).epsilon_release
        == 3.0
    )
    assert (
        AnonMLPaperParams(
            TWO, 6.0, 100, n_subsets=3, subset_size=1, accounting="paper"
        ).epsilon_release
        == 2.0
    )
    assert (
        AnonMLPaperParams(
            binned, 6.0, 100, n_subsets=1, subset_size=1, accounting="paper"
        ).epsilon_release
        == 6.0
    )
