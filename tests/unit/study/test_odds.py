"""Odds by Bayes' rule, rounded up, with sentences for each unit and relation."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shoal.mechanisms.gaussian import compute_count_delta
from shoal.privacy.events import LOCAL_PERSON, Relation, Scope, Unit
from shoal.study.odds import Odds, bound_posterior, compute_odds

RECORD = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@pytest.mark.parametrize(
    ("prior", "epsilon", "moved"),
    [
        (50, 2.0, "88.1"),
        (50, 1.0, "73.2"),
        (50, 4.0, "98.3"),
        (10, 2.0, "45.1"),
        (1, 2.0, "7.0"),
        (50, 1e-9, "50.1"),
        (50, 100.0, "100.0"),
    ],
)
def test_bound_posterior_is_bayes_rule_rounded_up(prior, epsilon, moved):
    assert bound_posterior(prior, epsilon) == Decimal(moved)
    exact = 100 * prior * math.exp(epsilon) / (100 - prior + prior * math.exp(epsilon))
    assert exact - 1e-9 <= bound_posterior(prior, epsilon) <= exact + 0.1


def test_bound_posterior_at_epsilon_zero_and_very_large():
    assert bound_posterior(50, 0.0) == 50
    assert bound_posterior(1, 1e300) == 100


def test_replace_has_odds_of_the_value_only():
    [odds] = compute_odds(LOCAL_PERSON, 2.0, 0.0)
    assert str(odds) == (
        "If someone thinks the chance is 50 of 100 that something is true of you, what you send "
        "can raise it to at most 88.1 of 100."
    )
    assert odds.to_dict()["moves"] == [
        {"from": 1, "to_at_most": 7.0},
        {"from": 10, "to_at_most": 45.1},
        {"from": 50, "to_at_most": 88.1},
    ]


def test_add_remove_has_odds_of_presence_and_of_value_at_twice_epsilon():
    presence, value = compute_odds(RECORD, 1.0, 1e-6)
    assert "that a certain record is in the data" in str(presence)
    assert str(presence).endswith("at most 75.2 of 100, except with chance 1e-05.")
    assert "one value and not another, and knows that the data is there" in str(value)
    assert value.epsilon == 2.0
    assert value.delta >= (1 + math.e) * 1e-6
    assert str(value).endswith("at most 89.2 of 100, except with chance 3.719e-05.")


def test_delta_of_the_value_is_at_most_one():
    assert compute_odds(RECORD, 800.0, 1e-6)[1].delta == 1.0


@pytest.mark.parametrize("relation", Relation)
def test_odds_of_a_weight_follow_odds_of_everything(relation):
    scope = Scope(Unit.WEIGHT, relation, "whoever sees one number")
    everything, *numbers = compute_odds(scope, 1.0, 0.0, (29.0, 1e-8))
    assert (everything.epsilon, everything.delta) == (29.0, 1e-8)
    assert (
        "that something is true of your rows, what you send can raise it to at most 100.0 of 100"
        in str(everything)
    )
    assert numbers[0].epsilon == 1.0 and numbers == list(compute_odds(scope, 1.0, 0.0))
    for one in numbers:
        assert (
            "one number of one update, seen without anything else computed from your rows, can "
            "raise it" in str(one)
        )
        assert "what you send" not in str(one) and one.to_dict()["by"] == one.by
    assert everything.to_dict()["by"] == "what you send"


def test_odds_of_updates_name_all_rows():
    [odds] = compute_odds(Scope(Unit.UPDATE, Relation.REPLACE, "everyone"), 1.0, 0.0)
    assert str(odds).startswith(
        "If someone thinks the chance is 50 of 100 that something is true of your rows, what you "
        "send can raise it to"
    )


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("relation", Relation)
def test_every_unit_and_relation_has_a_sentence(unit, relation):
    for odds in compute_odds(Scope(unit, relation, "everyone"), 1.0, 0.0):
        assert str(odds).startswith("If someone thinks the chance is 50 of 100 that ")


@pytest.mark.parametrize(("epsilon", "sigma_squared"), [(0.1, 1300), (0.5, 65), (1.0, 18)])
def test_odds_with_delta_hold_except_with_the_stated_chance(epsilon, sigma_squared):
    delta = compute_count_delta(Fraction(sigma_squared), 1, epsilon)
    y = np.arange(-2000, 2001)
    chance = np.exp(-(y**2) / (2 * sigma_squared))
    chance /= chance.sum()
    loss = (1 - 2 * y) / (2 * sigma_squared)
    odds = Odds("anything", epsilon, delta)
    assert chance[loss > odds.loss_bound].sum() <= odds.exceedance_probability
    # The plain reading, "within epsilon except with chance delta", is wrong.
    assert chance[loss > epsilon].sum() > delta


def test_odds_without_delta_have_no_exception():
    odds = Odds("anything", 2.0, 0.0)
    assert (odds.loss_bound, odds.exceedance_probability) == (2.0, 0.0)
