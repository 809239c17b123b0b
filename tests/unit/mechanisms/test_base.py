"""What a mechanism accepts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.base import Mechanism, check_delta, check_epsilon, check_integer, check_integers
from shoal.mechanisms.calibrate import NAMES, mechanism
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import Histogram
from shoal.privacy.accountant import MECHANISMS
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import GRAINS, grains_up


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 0.3, 1, np.float64(0.5), np.float32(0.5), 64.0])
def test_an_epsilon_is_never_taken_for_more_than_a_ledger_counts(epsilon: float) -> None:
    exact = check_epsilon(epsilon)
    assert exact <= Fraction(float(epsilon))
    assert exact <= Fraction(grains_up(float(epsilon)), GRAINS)
    assert float(exact) == epsilon


def test_a_tenth_is_a_tenth_and_three_tenths_are_not_more() -> None:
    assert check_epsilon(0.1) == Fraction(1, 10) < Fraction(0.1)
    assert check_epsilon(0.3) == Fraction(0.3) < Fraction(3, 10)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 9e-10, 64.1, math.inf, math.nan])
def test_refuses_an_epsilon_that_nobody_can_use(epsilon: float) -> None:
    with pytest.raises(MechanismError) as caught:
        check_epsilon(epsilon)
    assert caught.value.code == "MECH-001"
    assert str(epsilon) in str(caught.value)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan])
def test_refuses_a_delta_that_promises_nothing_or_cannot_be_kept(delta: float) -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        check_delta(delta)


def test_a_delta_is_kept() -> None:
    assert check_delta(1e-6) == 1e-6


def test_integers_of_any_width_become_64_bits() -> None:
    for dtype in (np.int8, np.uint32, np.int64):
        checked = check_integers(np.array([1, 2, 3], dtype))
        assert checked.dtype == np.int64
        assert checked.tolist() == [1, 2, 3]
    assert check_integers(np.array([], np.int64)).size == 0


@pytest.mark.parametrize(
    "values",
    [np.array([0.5]), np.array([1.0]), np.array([True]), np.array([2**53]), np.array([-(2**63)]), np.array([2**64 - 1], np.uint64)],
)
def test_refuses_what_integer_noise_cannot_hide(values: np.ndarray) -> None:
    with pytest.raises(MechanismError) as caught:
        check_integers(values)
    assert caught.value.code == "MECH-002"


@pytest.mark.parametrize("value", [3.5, 3.0, True, np.int64(3), 2**52 + 1, -(2**53)])
def test_one_value_must_be_an_integer_too(value: object) -> None:
    with pytest.raises(MechanismError, match="MECH-002"):
        check_integer(value)  # type: ignore[arg-type]
    assert check_integer(-(2**52)) == -(2**52)


RELEASE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@pytest.mark.parametrize(
    "mechanism",
    [
        *(mechanism(name, 1.0, 16) for name in NAMES),
        DiscreteLaplace(1.0, Histogram(), RELEASE),
        DiscreteGaussian(1.0, 1e-6, Histogram(), RELEASE),
    ],
    ids=lambda one: one.name,
)
def test_every_mechanism_of_numbers_keeps_the_contract(mechanism: Mechanism) -> None:
    assert isinstance(mechanism, Mechanism)
    assert mechanism.event().mechanism in MECHANISMS
    assert 0 < mechanism.event().epsilon <= 1
    assert mechanism.variance() > 0
    assert mechanism.expected_error(1) > 0
