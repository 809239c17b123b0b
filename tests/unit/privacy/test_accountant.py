"""Sums of releases, by hand and by formula; what cannot be added is refused."""

from __future__ import annotations

import builtins
import math

import numpy as np
import pytest

from shoal.errors import SpecError, UsageError
from shoal.privacy.accountant import as_replace, by_pld, by_zcdp, common_scope, parallel, rho_of_pure, sequential, tightest
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.zcdp import rho_to_epsilon

READERS = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


def pure(epsilon: float, scope: Scope = LOCAL_PERSON) -> Event:
    return Event("random-response", {"cardinality": 2}, scope, epsilon)


def approximate(epsilon: float, delta: float, scope: Scope = LOCAL_PERSON) -> Event:
    return Event("shuffled", {}, scope, epsilon, delta)


def gaussian(epsilon: float, delta: float, rho: float) -> Event:
    return Event("discrete-gaussian", {}, READERS, epsilon, delta, rho)


def test_the_plain_sum_is_exact():
    loss = sequential([pure(0.1)] * 3)
    assert (loss.epsilon, loss.delta, loss.scope) == (0.3, 0.0, LOCAL_PERSON)
    assert loss.how == "plain sum of 3 releases"
    assert sequential([pure(0.1)]).how == "plain sum of 1 release"


def test_two_deltas_add_up_beside_the_epsilons():
    loss = sequential([approximate(1.75, 1e-6), approximate(0.25, 1e-6)])
    assert (loss.epsilon, loss.delta) == (2.0, 2e-6)


def test_a_sum_of_deltas_stops_at_one():
    assert sequential([approximate(1.0, 0.7)] * 2).delta == 1.0


def test_a_loss_prints_and_is_plain_data():
    loss = sequential([approximate(1 / 3, 1e-6, READERS)])
    assert str(loss) == "epsilon 0.3334, delta 1e-06 (record, add-remove, against all who read the release; plain sum of 1 release)"
    assert loss.to_dict() == {
        "unit": "record",
        "relation": "add-remove",
        "adversary": "all who read the release",
        "epsilon": loss.epsilon,
        "delta": 1e-6,
        "how": "plain sum of 1 release",
    }


def test_disjoint_parts_cost_the_dearest_one():
    groups = [[pure(0.1, READERS)] * 5, [approximate(0.2, 1e-7, READERS)], [pure(0.3, READERS)]]
    loss = parallel(groups)
    assert (loss.epsilon, loss.delta) == (0.5, 1e-7)
    assert loss.how == "3 parts of the data, of which one unit touches 1"


def test_a_replaced_unit_may_move_between_parts():
    groups = [[pure(0.5)], [pure(0.25)], [pure(0.125)]]
    assert parallel(groups).epsilon == 0.75
    assert parallel(groups, is_fixed=True).epsilon == 0.5
    assert parallel(groups[:1]).epsilon == 0.5


def test_a_unit_that_moves_between_parts_is_really_told_apart_by_both():
    # One bit per part, "is the unit here", each by random response: the worst likelihood ratio is that of two answers.
    keep = math.e**0.5 / (1 + math.e**0.5)
    here_there = np.outer([keep, 1 - keep], [1 - keep, keep])
    there_here = np.outer([1 - keep, keep], [keep, 1 - keep])
    assert np.log((here_there / there_here).max()) == pytest.approx(parallel([[pure(0.5)], [pure(0.5)]]).epsilon)


@pytest.mark.parametrize("groups", [[], [[pure(1.0)], []]])
def test_nothing_cannot_be_accounted_for(groups):
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        parallel(groups)


@pytest.mark.parametrize("function", [sequential, lambda e: by_zcdp(e, 1e-6), lambda e: tightest(e, 1e-6), lambda e: by_pld(e, 1e-6)])
def test_unknown_mechanisms_and_mixed_scopes_are_refused(function):
    with pytest.raises(SpecError, match=r"ACCOUNT-003.*'magic'"):
        function([pure(1.0), Event("magic", {}, LOCAL_PERSON, 1.0)])
    for scope in (Scope(Unit.RECORD, Relation.REPLACE, "everyone"), Scope(Unit.PERSON, Relation.ADD_REMOVE, "everyone")):
        with pytest.raises(SpecError, match="ACCOUNT-002"):
            function([pure(1.0), pure(1.0, scope)])
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        function([])


def test_adversaries_are_joined_to_what_all_claims_cover():
    def against(*names: str) -> str:
        return common_scope([pure(1.0, Scope(Unit.PERSON, Relation.REPLACE, name)) for name in names]).adversary

    assert against("everyone", "everyone") == "everyone"
    assert against("everyone", "the miner", "the miner") == "the miner"
    assert against("the miner", "everyone", "the channel") == "anyone no stronger than each of: the miner; the channel"


def test_replace_costs_at_most_twice_add_remove():
    event = Event("discrete-gaussian", {"sigma": 3.0}, READERS, 0.5, 1e-6, 0.01, ("age",))
    twice = as_replace(event)
    assert twice.scope == Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")
    assert twice.epsilon == 1.0
    assert twice.delta == pytest.approx((1 + math.exp(0.5)) * 1e-6, rel=1e-12)
    assert twice.delta >= (1 + math.exp(0.5)) * 1e-6
    assert twice.rho == 0.04
    assert (twice.reads, twice.parameters) == (("age",), event.parameters)
    assert as_replace(pure(0.5, READERS)).rho is None
    assert as_replace(pure(0.5)) == pure(0.5)


def test_replace_is_right_for_the_worst_chain_of_neighbours():
    # D, D less one, D' as laws on four outcomes: each step is exactly (epsilon, delta); the two ends meet the bound of as_replace.
    epsilon, delta = 0.7, 0.05
    e = math.exp(epsilon)
    bound = as_replace(approximate(epsilon, delta, READERS))
    end = np.array([0.0, 0.1, 0.9])
    middle = np.array([delta, e * 0.1, 1 - delta - e * 0.1])
    start = np.array([e * delta + delta, e * e * 0.1, 1 - (e + 1) * delta - e * e * 0.1])
    for p, q in ((start, middle), (middle, end)):
        assert np.maximum(p - e * q, 0).sum() == pytest.approx(delta)
    assert np.maximum(start - math.exp(bound.epsilon) * end, 0).sum() == pytest.approx(bound.delta)


@pytest.mark.parametrize("epsilon", [1.0, 5000.0])
def test_a_delta_that_is_lost_under_replace_is_refused(epsilon):
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        as_replace(approximate(epsilon, 0.5, READERS))


def test_pure_releases_compose_by_their_tight_rho():
    loss = by_zcdp([pure(0.1)] * 100, 1e-5)
    assert loss.epsilon == pytest.approx(rho_to_epsilon(100 * 0.1 * math.tanh(0.05), 1e-5), rel=1e-9)
    assert 4 < loss.epsilon < 5
    assert loss.delta == 1e-5


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_rho_of_pure_is_the_supremum_over_orders_of_random_response(epsilon):
    alpha = 1 + np.geomspace(1e-6, 1e4, 4001)
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    power = np.logaddexp(alpha * math.log(p) + (1 - alpha) * math.log(q), alpha * math.log(q) + (1 - alpha) * math.log(p))
    worst = (power / (alpha - 1) / alpha).max()
    assert worst <= rho_of_pure(epsilon) + 1e-9
    assert worst == pytest.approx(rho_of_pure(epsilon), rel=1e-4)
    assert rho_of_pure(epsilon) < epsilon**2 / 2


def test_a_rho_that_is_known_is_used_and_the_better_of_two():
    chosen = Event("exponential", {}, READERS, 1.0, rho=1 / 8)
    assert by_zcdp([chosen] * 9, 1e-6).epsilon == pytest.approx(rho_to_epsilon(9 / 8, 1e-6), rel=1e-9)
    loose = Event("exponential", {}, READERS, 1.0, rho=50.0)
    assert by_zcdp([loose], 1e-6).epsilon == by_zcdp([pure(1.0, READERS)], 1e-6).epsilon
    # With a delta of its own, the epsilon says nothing about rho.
    assert by_zcdp([gaussian(0.1, 0.2, 0.5)], 1e-6).epsilon == pytest.approx(rho_to_epsilon(0.5, 1e-6), rel=1e-9)
    noise = gaussian(0.5, 1e-6, 0.007)
    assert by_zcdp([noise] * 4, 1e-6).epsilon == pytest.approx(rho_to_epsilon(0.028, 1e-6), rel=1e-9)


def test_deltas_without_a_rho_are_taken_off_the_target():
    events = [pure(0.1)] * 99 + [approximate(0.1, 4e-6)]
    assert by_zcdp(events, 1e-5).epsilon == pytest.approx(rho_to_epsilon(100 * rho_of_pure(0.1), 6e-6), rel=1e-9)
    with pytest.raises(SpecError, match=r"ACCOUNT-004  delta = 4e-06 is not enough for 100 releases"):
        by_zcdp(events, 4e-6)


@pytest.mark.parametrize("function", [by_zcdp, by_pld, tightest])
@pytest.mark.parametrize("delta", [-1e-6, 1.0, math.nan])
def test_a_target_is_a_chance(function, delta):
    with pytest.raises(SpecError, match="ACCOUNT-004"):
        function([pure(1.0)], delta)


def test_the_tightest_is_the_smaller_that_keeps_to_delta():
    few, many = [pure(1.0)] * 3, [pure(0.1)] * 100
    assert tightest(few, 1e-6) == sequential(few)
    assert tightest(many, 1e-6) == by_zcdp(many, 1e-6)
    assert tightest(many, 0.0) == sequential(many)


def test_the_tightest_may_be_the_only_one_that_keeps_to_delta():
    noises = [gaussian(1.0, 1e-6, 0.02)] * 2
    assert tightest(noises, 1.5e-6) == by_zcdp(noises, 1.5e-6)
    assert tightest([approximate(1.0, 1e-6)], 1e-6) == sequential([approximate(1.0, 1e-6)])
    for delta in (0.0, 1e-7):
        with pytest.raises(SpecError, match="ACCOUNT-004"):
            tightest([approximate(1.0, 1e-6)], delta)


def test_privacy_loss_distributions_are_tighter_still():
    many = [pure(0.1)] * 100
    assert by_pld(many, 1e-5).epsilon < by_zcdp(many, 1e-5).epsilon
    assert by_pld([pure(1.0)] * 3, 1e-5).epsilon == pytest.approx(3.0, abs=1e-3)


def test_privacy_loss_distributions_take_gaussian_noise_through_zcdp():
    events = [pure(0.3, READERS)] * 10 + [gaussian(0.5, 1e-6, 0.005)] * 5
    loss = by_pld(events, 1e-5)
    block = by_zcdp(events[10:], 5e-6).epsilon
    assert block < loss.epsilon < sequential(events[:10]).epsilon + block
    assert by_pld(events[10:], 1e-5).epsilon == pytest.approx(block, rel=1e-2)


def test_half_of_the_target_is_spent_on_gaussian_noise():
    noise, delta = gaussian(0.5, 1e-6, 0.05), 0.1
    e = math.exp(by_zcdp([noise], delta / 2).epsilon)
    # The worst mechanism of (epsilon, delta / 2) fails outright with delta / 2, and is random response otherwise.
    expected = math.log(e - delta / 2 / (1 - delta / 2) * (e + 1))
    assert by_pld([noise], delta).epsilon == pytest.approx(expected, abs=1e-6)


def test_privacy_loss_distributions_of_unequal_epsilons_use_a_coarser_grid():
    # 10^-5 beside 4 would need 5 x 10^7 cells.
    events = [pure(1e-5), pure(4.0)]
    assert sequential(events).epsilon - 0.2 < by_pld(events, 1e-6).epsilon < sequential(events).epsilon + 0.01


def test_privacy_loss_distributions_refuse_what_they_cannot_resolve():
    with pytest.raises(SpecError, match=r"ACCOUNT-004.*too small for privacy loss"):
        by_pld([pure(1.0)], 1e-9)
    with pytest.raises(SpecError, match=r"ACCOUNT-004.*not enough"):
        by_pld([approximate(1.0, 1e-5)], 1e-6)


def test_absurd_epsilons_are_refused_with_a_sentence():
    for function in (sequential, lambda events: by_zcdp(events, 1e-6), lambda events: tightest(events, 1e-6)):
        with pytest.raises(SpecError, match="ACCOUNT-001"):
            function([pure(1.7e308)] * 2)
    with pytest.raises(SpecError, match=r"ACCOUNT-004.*above 700"):
        by_pld([pure(1e5)], 1e-6)


def test_privacy_loss_distributions_need_their_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"USAGE-002(.|\n)*shoal\[accounting\]"):
        by_pld([pure(1.0)], 1e-6)
