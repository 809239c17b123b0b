"""Odds: by Bayes' rule, rounded up, and worded for unit and relation."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shoal.mechanisms.gaussian import count_delta
from shoal.privacy.events import LOCAL_PERSON, Relation, Scope, Unit
from shoal.study.odds import Odds, at_most, odds_of

RECORD = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@pytest.mark.parametrize(
    ("prior", "epsilon", "moved"),
    [(50, 2.0, "88.1"), (50, 1.0, "73.2"), (50, 4.0, "98.3"), (10, 2.0, "45.1"), (1, 2.0, "7.0"), (50, 1e-9, "50.1"), (50, 100.0, "100.0")],
)
def test_a_guess_moves_by_bayes_rule_rounded_up(prior, epsilon, moved):
    assert at_most(prior, epsilon) == Decimal(moved)
    exact = 100 * prior * math.exp(epsilon) / (100 - prior + prior * math.exp(epsilon))
    assert exact - 1e-9 <= at_most(prior, epsilon) <= exact + 0.1


def test_no_release_moves_nothing_and_any_epsilon_is_finite():
    assert at_most(50, 0.0) == 50
    assert at_most(1, 1e300) == 100


def test_replace_is_one_question():
    [odds] = odds_of(LOCAL_PERSON, 2.0, 0.0)
    assert str(odds) == (
        "If someone thought it 50 of 100 likely that something is true of you, what you send could move them to at most 88.1 of 100."
    )
    assert odds.to_dict()["moves"] == [{"from": 1, "to_at_most": 7.0}, {"from": 10, "to_at_most": 45.1}, {"from": 50, "to_at_most": 88.1}]


def test_add_remove_asks_of_presence_and_at_twice_epsilon_of_the_value():
    presence, value = odds_of(RECORD, 1.0, 1e-6)
    assert "that a certain record is in the data at all" in str(presence)
    assert str(presence).endswith("at most 75.2 of 100, except with chance 1e-05.")
    assert "one value and not another, knowing that the data is there" in str(value)
    assert value.epsilon == 2.0
    assert value.delta >= (1 + math.e) * 1e-6
    assert str(value).endswith("at most 89.2 of 100, except with chance 3.719e-05.")


def test_a_delta_that_is_lost_stops_at_one():
    assert odds_of(RECORD, 800.0, 1e-6)[1].delta == 1.0


@pytest.mark.parametrize("relation", Relation)
def test_the_epsilon_of_a_weight_speaks_of_that_number_and_everything_comes_first(relation):
    scope = Scope(Unit.WEIGHT, relation, "whoever sees one number")
    everything, *numbers = odds_of(scope, 1.0, 0.0, (29.0, 1e-8))
    assert (everything.epsilon, everything.delta) == (29.0, 1e-8)
    assert "that something is true of your rows, what you send could move them to at most 100.0 of 100" in str(everything)
    assert numbers[0].epsilon == 1.0 and numbers == list(odds_of(scope, 1.0, 0.0))
    for one in numbers:
        assert "one number of one update, seen without anything else that came of your rows, could move them" in str(one)
        assert "what you send" not in str(one) and one.to_dict()["by"] == one.by
    assert everything.to_dict()["by"] == "what you send"


def test_of_updates_all_rows_are_spoken_of():
    [odds] = odds_of(Scope(Unit.UPDATE, Relation.REPLACE, "everyone"), 1.0, 0.0)
    assert str(odds).startswith("If someone thought it 50 of 100 likely that something is true of your rows, what you send could")


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("relation", Relation)
def test_every_unit_and_relation_has_words(unit, relation):
    for odds in odds_of(Scope(unit, relation, "everyone"), 1.0, 0.0):
        assert str(odds).startswith("If someone thought it 50 of 100 likely that ")


@pytest.mark.parametrize(("epsilon", "sigma_squared"), [(0.1, 1300), (0.5, 65), (1.0, 18)])
def test_the_odds_of_an_approximate_guarantee_hold_but_for_the_stated_chance(epsilon, sigma_squared):
    delta = count_delta(Fraction(sigma_squared), 1, epsilon)
    y = np.arange(-2000, 2001)
    chance = np.exp(-(y**2) / (2 * sigma_squared))
    chance /= chance.sum()
    loss = (1 - 2 * y) / (2 * sigma_squared)
    odds = Odds("anything", epsilon, delta)
    assert chance[loss > odds.reach].sum() <= odds.exception
    # The plain reading, "within epsilon except with chance delta", is wrong.
    assert chance[loss > epsilon].sum() > delta


def test_without_a_delta_there_is_no_exception():
    odds = Odds("anything", 2.0, 0.0)
    assert (odds.reach, odds.exception) == (2.0, 0.0)
