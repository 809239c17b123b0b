"""Composition of releases, by hand and by formula; rejected combinations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.privacy.accountant import (
    compose_sequential,
    compose_tightest,
    compose_zcdp,
    find_common_scope,
    pure_epsilon_to_rho,
    rho_to_epsilon,
)
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from tests.support.privacy_loss import compose_pld

READERS = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


def pure(epsilon: float, scope: Scope = LOCAL_PERSON) -> Event:
    return Event("random-response", {"cardinality": 2}, scope, epsilon)


def approximate(epsilon: float, delta: float, scope: Scope = LOCAL_PERSON) -> Event:
    return Event("shuffled", {}, scope, epsilon, delta)


def gaussian(epsilon: float, delta: float, rho: float) -> Event:
    return Event("discrete-gaussian", {}, READERS, epsilon, delta, rho)


def test_compose_sequential_is_exact():
    loss = compose_sequential([pure(0.1)] * 3)
    assert (loss.epsilon, loss.delta, loss.scope) == (0.3, 0.0, LOCAL_PERSON)
    assert loss.how == "plain sum of 3 releases"
    assert compose_sequential([pure(0.1)]).how == "plain sum of 1 release"


def test_compose_sequential_adds_deltas():
    loss = compose_sequential([approximate(1.75, 1e-6), approximate(0.25, 1e-6)])
    assert (loss.epsilon, loss.delta) == (2.0, 2e-6)


def test_compose_sequential_caps_delta_at_one():
    assert compose_sequential([approximate(1.0, 0.7)] * 2).delta == 1.0


def test_loss_has_text_and_plain_data():
    loss = compose_sequential([approximate(1 / 3, 1e-6, READERS)])
    assert (
        str(loss)
        == "epsilon 0.3334, delta 1e-06 (record, add-remove, against all who read the release; "
        "plain sum of 1 release)"
    )
    assert loss.to_dict() == {
        "unit": "record",
        "relation": "add-remove",
        "adversary": "all who read the release",
        "epsilon": loss.epsilon,
        "delta": 1e-6,
        "how": "plain sum of 1 release",
    }


@pytest.mark.parametrize(
    "function",
    [
        compose_sequential,
        lambda e: compose_zcdp(e, 1e-6),
        lambda e: compose_tightest(e, 1e-6),
    ],
)
def test_unknown_mechanism_and_mixed_scopes_are_rejected(function):
    with pytest.raises(SpecError, match=r"ACCOUNT-003.*'magic'"):
        function([pure(1.0), Event("magic", {}, LOCAL_PERSON, 1.0)])
    for scope in (
        Scope(Unit.RECORD, Relation.REPLACE, "everyone"),
        Scope(Unit.PERSON, Relation.ADD_REMOVE, "everyone"),
    ):
        with pytest.raises(SpecError, match="ACCOUNT-002"):
            function([pure(1.0), pure(1.0, scope)])
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        function([])


def test_common_adversary_is_covered_by_all_claims():
    def against(*names: str) -> str:
        return find_common_scope(
            [pure(1.0, Scope(Unit.PERSON, Relation.REPLACE, name)) for name in names]
        ).adversary

    assert against("everyone", "everyone") == "everyone"
    assert against("everyone", "the miner", "the miner") == "the miner"
    assert (
        against("the miner", "everyone", "the channel")
        == "anyone no stronger than each of: the miner; the channel"
    )


def test_compose_zcdp_uses_tight_rho_of_pure_releases():
    loss = compose_zcdp([pure(0.1)] * 100, 1e-5)
    assert loss.epsilon == pytest.approx(
        rho_to_epsilon(100 * 0.1 * math.tanh(0.05), 1e-5), rel=1e-9
    )
    assert 4 < loss.epsilon < 5
    assert loss.delta == 1e-5


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_pure_epsilon_to_rho_is_supremum_over_orders(epsilon):
    alpha = 1 + np.geomspace(1e-6, 1e4, 4001)
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    power = np.logaddexp(
        alpha * math.log(p) + (1 - alpha) * math.log(q),
        alpha * math.log(q) + (1 - alpha) * math.log(p),
    )
    worst = (power / (alpha - 1) / alpha).max()
    assert worst <= pure_epsilon_to_rho(epsilon) + 1e-9
    assert worst == pytest.approx(pure_epsilon_to_rho(epsilon), rel=1e-4)
    assert pure_epsilon_to_rho(epsilon) < epsilon**2 / 2


def test_compose_zcdp_uses_smaller_of_known_and_derived_rho():
    chosen = Event("exponential", {}, READERS, 1.0, rho=1 / 8)
    assert compose_zcdp([chosen] * 9, 1e-6).epsilon == pytest.approx(
        rho_to_epsilon(9 / 8, 1e-6), rel=1e-9
    )
    loose = Event("exponential", {}, READERS, 1.0, rho=50.0)
    assert compose_zcdp([loose], 1e-6).epsilon == compose_zcdp([pure(1.0, READERS)], 1e-6).epsilon
    # With a delta, the epsilon implies nothing about rho.
    assert compose_zcdp([gaussian(0.1, 0.2, 0.5)], 1e-6).epsilon == pytest.approx(
        rho_to_epsilon(0.5, 1e-6), rel=1e-9
    )
    noise = gaussian(0.5, 1e-6, 0.007)
    assert compose_zcdp([noise] * 4, 1e-6).epsilon == pytest.approx(
        rho_to_epsilon(0.028, 1e-6), rel=1e-9
    )


def test_compose_zcdp_subtracts_deltas_without_rho_from_target():
    events = [pure(0.1)] * 99 + [approximate(0.1, 4e-6)]
    assert compose_zcdp(events, 1e-5).epsilon == pytest.approx(
        rho_to_epsilon(100 * pure_epsilon_to_rho(0.1), 6e-6), rel=1e-9
    )
    with pytest.raises(
        SpecError, match=r"ACCOUNT-004  delta = 4e-06 is not enough for 100 releases"
    ):
        compose_zcdp(events, 4e-6)


@pytest.mark.parametrize("function", [compose_zcdp, compose_tightest])
@pytest.mark.parametrize("delta", [-1e-6, 1.0, math.nan])
def test_target_delta_must_be_a_probability(function, delta):
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        function([pure(1.0)], delta)


def test_compose_tightest_returns_smaller_epsilon_within_delta():
    few, many = [pure(1.0)] * 3, [pure(0.1)] * 100
    assert compose_tightest(few, 1e-6) == compose_sequential(few)
    assert compose_tightest(many, 1e-6) == compose_zcdp(many, 1e-6)
    assert compose_tightest(many, 0.0) == compose_sequential(many)


def test_compose_tightest_returns_only_sum_within_delta():
    noises = [gaussian(1.0, 1e-6, 0.02)] * 2
    assert compose_tightest(noises, 1.5e-6) == compose_zcdp(noises, 1.5e-6)
    assert compose_tightest([approximate(1.0, 1e-6)], 1e-6) == compose_sequential(
        [approximate(1.0, 1e-6)]
    )
    for delta in (0.0, 1e-7):
        with pytest.raises(SpecError, match="ACCOUNT-004"):
            compose_tightest([approximate(1.0, 1e-6)], delta)


def test_privacy_loss_distributions_are_tighter():
    many = [pure(0.1)] * 100
    assert compose_pld(many, 1e-5) < compose_zcdp(many, 1e-5).epsilon
    assert compose_pld([pure(1.0)] * 3, 1e-5) == pytest.approx(3.0, abs=1e-3)


def test_privacy_loss_distributions_compose_gaussian_noise_by_zcdp():
    events = [pure(0.3, READERS)] * 10 + [gaussian(0.5, 1e-6, 0.005)] * 5
    epsilon = compose_pld(events, 1e-5)
    block = compose_zcdp(events[10:], 5e-6).epsilon
    assert block < epsilon < compose_sequential(events[:10]).epsilon + block
    assert compose_pld(events[10:], 1e-5) == pytest.approx(block, rel=1e-2)


def test_privacy_loss_distributions_spend_half_of_target_on_gaussian_noise():
    noise, delta = gaussian(0.5, 1e-6, 0.05), 0.1
    e = math.exp(compose_zcdp([noise], delta / 2).epsilon)
    # The worst mechanism of (epsilon, delta / 2) fails outright with delta / 2, and is random
    # response otherwise.
    expected = math.log(e - delta / 2 / (1 - delta / 2) * (e + 1))
    assert compose_pld([noise], delta) == pytest.approx(expected, abs=1e-6)


def test_privacy_loss_distributions_of_unequal_epsilons_use_a_coarser_grid():
    # 10^-5 together with 4 would need 5 x 10^7 cells.
    events = [pure(1e-5), pure(4.0)]
    assert (
        compose_sequential(events).epsilon - 0.2
        < compose_pld(events, 1e-6)
        < compose_sequential(events).epsilon + 0.01
    )


def test_privacy_loss_distributions_reject_huge_epsilons():
    for function in (
        compose_sequential,
        lambda events: compose_zcdp(events, 1e-6),
        lambda events: compose_tightest(events, 1e-6),
    ):
        with pytest.raises(SpecError, match="ACCOUNT-001"):
            function([pure(1.7e308)] * 2)
