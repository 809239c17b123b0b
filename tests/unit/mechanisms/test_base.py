"""Argument checks of mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.base import (
    Mechanism,
    check_delta,
    check_epsilon,
    check_integer,
    check_integers,
)
from shoal.mechanisms.calibrate import MECHANISM_NAMES, make_mechanism
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.accountant import MECHANISMS
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import GRAINS, grains_up


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 0.3, 1, np.float64(0.5), np.float32(0.5), 64.0])
def test_check_epsilon_is_never_more_than_ledger_counts(epsilon: float) -> None:
    exact = check_epsilon(epsilon)
    assert exact <= Fraction(float(epsilon))
    assert exact <= Fraction(grains_up(float(epsilon)), GRAINS)
    assert float(exact) == epsilon


def test_check_epsilon_keeps_decimals() -> None:
    assert check_epsilon(0.1) == Fraction(1, 10) < Fraction(0.1)
    assert check_epsilon(0.3) == Fraction(0.3) < Fraction(3, 10)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 9e-10, 64.1, math.inf, math.nan])
def test_check_epsilon_rejects_out_of_range(epsilon: float) -> None:
    with pytest.raises(MechanismError) as caught:
        check_epsilon(epsilon)
    assert caught.value.code == "MECH-001"
    assert str(epsilon) in str(caught.value)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan])
def test_check_delta_rejects_out_of_range(delta: float) -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        check_delta(delta)


def test_check_delta_returns_delta() -> None:
    assert check_delta(1e-6) == 1e-6


def test_check_integers_returns_int64() -> None:
    for dtype in (np.int8, np.uint32, np.int64):
        checked = check_integers(np.array([1, 2, 3], dtype))
        assert checked.dtype == np.int64
        assert checked.tolist() == [1, 2, 3]
    assert check_integers(np.array([], np.int64)).size == 0


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5]),
        np.array([1.0]),
        np.array([True]),
        np.array([2**53]),
        np.array([-(2**63)]),
        np.array([2**64 - 1], np.uint64),
    ],
)
def test_check_integers_rejects_other_values(values: np.ndarray) -> None:
    with pytest.raises(MechanismError) as caught:
        check_integers(values)
    assert caught.value.code == "MECH-002"


@pytest.mark.parametrize("value", [3.5, 3.0, True, np.int64(3), 2**52 + 1, -(2**53)])
def test_check_integer_rejects_other_values(value: object) -> None:
    with pytest.raises(MechanismError, match="MECH-002"):
        check_integer(value)  # type: ignore[arg-type]
    assert check_integer(-(2**52)) == -(2**52)


RELEASE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@pytest.mark.parametrize(
    "mechanism",
    [
        *(make_mechanism(name, 1.0, 16) for name in MECHANISM_NAMES),
        DiscreteLaplace(1.0, CellCounts(), RELEASE),
        DiscreteGaussian(1.0, 1e-6, CellCounts(), RELEASE),
    ],
    ids=lambda one: one.name,
)
def test_mechanisms_implement_protocol(mechanism: Mechanism) -> None:
    assert isinstance(mechanism, Mechanism)
    assert mechanism.event().mechanism in MECHANISMS
    assert 0 < mechanism.event().epsilon <= 1
    assert mechanism.variance() > 0
    assert mechanism.expected_error(1) > 0
