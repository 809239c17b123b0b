"""The public parameters of a study, and derived values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.errors import MechanismError, SpecError
from shoal.privacy.events import Relation, Unit
from shoal.protocols.ddml.params import DDMLParams

FEATURES = [
    Numeric("age", 0, 100, missing=False),
    Categorical("town", ["Aa", "Ba", "Ca"], missing=False),
]
TWO = Schema(FEATURES, label=Categorical("ill", ["no", "yes"]))
THREE = Schema(FEATURES, label=Categorical("kind", ["a", "b", "c"]), texts=[Text("note", 16)])


def params(
    schema: Schema = TWO, epsilon: float = 4.0, size: int = 10_000, **more: Any
) -> DDMLParams:
    return DDMLParams(schema, epsilon, size, **more)


def test_params_require_label_and_devices() -> None:
    for make in (lambda: params(Schema(FEATURES)), lambda: params(size=0)):
        with pytest.raises(SpecError) as error:
            make()
        assert error.value.code in ("SCHEMA-001", "SPEC-021")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, -math.inf, 65.0])
def test_params_reject_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(MechanismError):
        params(epsilon=epsilon)


def test_infinite_epsilon_is_noiseless() -> None:
    bare = params(epsilon=math.inf, n_updates=3)
    assert bare.is_noiseless and bare.epsilon_release == math.inf and not params().is_noiseless


def test_n_weights_counts_classes_of_multinomial_model() -> None:
    assert (params().n_outputs, params().n_weights) == (1, 4)
    several = params(THREE, link="multinomial", crosses=(("age", "town"),))
    assert (several.n_outputs, several.n_weights) == (3, 3 * (4 + 16 + 2))
    assert params(link="multinomial").n_outputs == 2
    number = Schema(FEATURES, label=Numeric("wage", 0, 9))
    assert params(number, link="identity").n_weights == 4


def test_columns_are_features_texts_and_label() -> None:
    assert params(THREE).columns == ("age", "town", "note", "kind")


def test_design_is_centred_if_study_sets_it() -> None:
    assert params(centred=False).design.norms[1] > params(centred=True).design.norms[1]


def test_updates_share_epsilon_and_delta() -> None:
    several = params(epsilon=1.0, n_updates=3, delta=1e-6)
    assert several.epsilon_release == 0.333333333333 and 3 * several.epsilon_release <= 1
    assert 0.99e-6 < 3 * several.delta_release < 1e-6
    assert params(delta=1e-6).delta_release == 1e-6 and params().delta_release == 0
    assert several.n_expected == 30_000


def test_scope_is_update_or_weight() -> None:
    assert params().scope.unit is Unit.UPDATE and params(unit="weight").scope.unit is Unit.WEIGHT
    assert params().scope.relation is Relation.REPLACE and "coordinator" in params().scope.adversary


@pytest.mark.parametrize(
    ("size", "n_updates", "expected"),
    [(10, 1, 1_000), (1_000_000, 1, 10_000), (1_000_000, 4, 40_000), (10**10, 1, 100_000)],
)
def test_epoch_updates_is_hundredth_within_limits(size: int, n_updates: int, expected: int) -> None:
    assert params(size=size, n_updates=n_updates).epoch_updates == expected


def test_gamma_decays_with_root_of_epoch_if_set() -> None:
    still, falling = (
        params(size=99_000, learning_rate=0.1, decay=decay) for decay in ("none", "sqrt")
    )
    assert [still.gamma(epoch) for epoch in (0, 3, 99)] == [0.1] * 3
    assert [falling.gamma(epoch) for epoch in (0, 3, 99)] == pytest.approx([0.1, 0.05, 0.01])
    assert still.gamma() == falling.gamma() == 0.1
    # After the last update that is expected it stays as it is, however long a study goes on.
    assert falling.last_epoch == 99 and falling.gamma(10**9) == falling.gamma(99)


def test_rates_are_given_or_chosen() -> None:
    given = params(learning_rate=0.25, clip=0.5).rates
    assert (given.learning_rate, given.clip) == (0.25, 0.5)
    assert params(clip=0.5).rates.clip == 0.5
    ruled = params().rates
    assert ruled.learning_rate > 0 and 0 < ruled.clip <= params().design.norms[1]
