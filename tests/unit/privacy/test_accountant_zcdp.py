"""Conversion between rho and (epsilon, delta): known values, an oracle, and rounding."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MechanismError
from shoal.privacy.accountant import epsilon_to_rho, rho_to_delta, rho_to_epsilon

epsilons = st.floats(1e-4, 64)
deltas = st.floats(1e-15, 0.5)
rhos = st.floats(1e-9, 100)


def exact_log_delta(x: float, rho: float, epsilon: float) -> Decimal:
    """Evaluate the formula at the order 1 + x, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        x_, rho_, epsilon_ = Decimal(x), Decimal(rho), Decimal(epsilon)
        return x_ * ((1 + x_) * rho_ - epsilon_) + (1 + x_) * (x_ / (1 + x_)).ln() - x_.ln()


@pytest.mark.parametrize(("epsilon", "rho"), [(0.1, 0.000321), (0.5, 0.00664), (1.0, 0.02436)])
def test_known_values_at_delta_1e_6(epsilon: float, rho: float) -> None:
    assert epsilon_to_rho(epsilon, 1e-6) == pytest.approx(rho, rel=2e-3)
    assert rho_to_epsilon(epsilon_to_rho(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.untraced
@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.5, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_agrees_with_dp_accounting(rho: float, delta: float) -> None:
    orders = 1 + np.exp(np.linspace(-8, 14, 20_001))
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, orders * rho, delta)
    ours = rho_to_epsilon(rho, delta)
    assert ours <= theirs * (1 + 1e-12)
    assert ours == pytest.approx(theirs, rel=1e-6)
    found, _ = rdp_privacy_accountant.compute_delta(orders, orders * rho, ours)
    assert rho_to_delta(rho, ours) == pytest.approx(found, rel=1e-5)


@pytest.mark.untraced
@given(rho=rhos, epsilon=epsilons)
def test_rho_to_delta_is_best_over_orders(rho: float, epsilon: float) -> None:
    delta = rho_to_delta(rho, epsilon)
    over_grid = min(
        exact_log_delta(x, rho, epsilon) for x in np.exp(np.linspace(-20, 25, 60)).tolist()
    )
    assert delta <= max(math.exp(min(0, over_grid)) * (1 + 1e-9), 1e-300)


@given(epsilon=epsilons, delta=deltas)
def test_round_trips_are_conservative(epsilon: float, delta: float) -> None:
    rho = epsilon_to_rho(epsilon, delta)
    assert rho > 0
    assert rho_to_delta(rho, epsilon) <= delta
    assert rho_to_delta(rho * (1 + 1e-6), epsilon) > delta * (1 - 1e-3)
    assert rho_to_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-6)


@given(rho=rhos, delta=deltas)
def test_rho_to_epsilon_is_enough_for_delta(rho: float, delta: float) -> None:
    epsilon = rho_to_epsilon(rho, delta)
    if epsilon > 0:
        assert rho_to_delta(rho, epsilon) <= delta


@pytest.mark.untraced
@given(rho=rhos, epsilon=epsilons)
def test_rho_to_delta_is_rounded_up(rho: float, epsilon: float) -> None:
    # Around the best order the formula is flat, so the sixty-digit minimum over a fine bracket is
    # the true infimum.
    delta = rho_to_delta(rho, epsilon)
    low, high = Decimal(-40), Decimal(40)
    with localcontext() as context:
        context.prec = 60
        for _ in range(110):
            x = ((low + high) / 2).exp()
            slope = (1 + 2 * x) * Decimal(rho) - Decimal(epsilon) + (x / (1 + x)).ln()
            low, high = ((low + high) / 2, high) if slope < 0 else (low, (low + high) / 2)
        x = ((low + high) / 2).exp()
        infimum = (
            x * ((1 + x) * Decimal(rho) - Decimal(epsilon)) + (1 + x) * (x / (1 + x)).ln() - x.ln()
        ).exp()
    assert (
        min(Decimal(1), infimum)
        <= Decimal(delta)
        <= max(infimum * (1 + Decimal("1e-8")), Decimal("1.001e-300"))
    )


def test_extreme_values_are_sound() -> None:
    assert rho_to_delta(1e-300, 1e-3) == 1e-300
    assert rho_to_delta(1e6, 1.0) <= 1.0
    assert rho_to_delta(1e300, 1.0) == 1.0
    assert rho_to_epsilon(1e-300, 0.5) < 1e-100
    assert epsilon_to_rho(64, 1e-300) > 0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_conversions_reject_invalid_rho_and_epsilon(bad: float) -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        rho_to_delta(bad, 1.0)
    with pytest.raises(MechanismError, match="MECH-001"):
        rho_to_delta(1.0, bad)
    with pytest.raises(MechanismError, match="MECH-001"):
        epsilon_to_rho(bad, 1e-6)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-6, math.nan])
def test_conversions_reject_delta_outside_open_interval(bad: float) -> None:
    with pytest.raises(MechanismError, match="delta"):
        rho_to_epsilon(1.0, bad)
    with pytest.raises(MechanismError, match="delta"):
        epsilon_to_rho(1.0, bad)
