"""Colluding databases: what they take out of a sum, what is left of it, and how much that still hides."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from shoal.attacks.sdq import Colluder, Left, LeftNoise, Told, collude, take_away
from shoal.crypto.roster import Identity, Roster
from shoal.domain import Categorical, Schema
from shoal.protocols.base import run_local
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.analysis import Exposure
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.script import Course, Part, Round
from shoal.protocols.sdq.scripts import script_of
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms

SCHEMA = Schema(
    [Categorical("ward", ["a", "b"], missing=False), Categorical("alone", ["no", "yes"], missing=False)],
    label=Categorical("falls", ["no", "yes"]),
)
N = 5
PAIRED = Params(SCHEMA, 2.0, 40, n_databases=N, minimum=N, max_colluders=2, variant="paper", noise="two-selected", depth=1)
SHARED = Params(SCHEMA, 2.0, 40, n_databases=N, minimum=N, max_colluders=2, choice="sums")
CHOSEN = Params(SCHEMA, 2.0, 4000, n_databases=N, minimum=N, max_colluders=1)
WHOLE = Round("sizes/0", (Part(lambda table: np.array([len(table)]), 1, 1.0),))


def tables(entropy):
    return [Table(entropy.below_many(2, 20).reshape(10, 2), entropy.below_many(2, 10)) for _ in range(N)]


def kind_of(left: Left) -> str:
    return {(True, True): "both", (False, False): "none"}.get((left.is_least, left.is_most), "one")


def is_right(left: Left, truth) -> bool:
    """Whether what the attack says about the true counts holds."""
    return bool((not left.is_least or (truth >= left.numbers).all()) and (not left.is_most or (truth <= left.numbers).all()))


@pytest.mark.parametrize(
    ("roles", "is_least", "is_most"),
    [((0, 0), False, False), ((ADDS, 0), True, False), ((0, SUBTRACTS), False, True), ((ADDS, SUBTRACTS), True, True), ((), False, False)],
)
def test_who_told_its_noise_bounds_the_counts_on_that_side(roles, is_least, is_most):
    left = take_away(np.array([50, 60]), [Told("sizes/0", np.array([7, 9]), role) for role in roles])
    assert left.numbers.tolist() == [50 - 7 * len(roles), 60 - 9 * len(roles)]
    assert (left.is_least, left.is_most, left.is_exact) == (is_least, is_most, is_least and is_most)


def test_a_colluder_that_adds_a_share_bounds_nothing():
    left = take_away(np.array([5]), [Told("table", np.array([2])), Told("table", np.array([2]))])
    assert (left.numbers.tolist(), left.is_least, left.is_most) == ([1], False, False)


def test_played_rounds_are_opened_where_both_selected_collude(entropy):
    rows = tables(entropy)
    seen = [collude(PAIRED, WHOLE, rows, (1, 2), entropy) for _ in range(200)]
    assert {kind_of(left) for left in seen} == {"both", "one", "none"}
    assert all(left.numbers.tolist() == [30] for left in seen if left.is_exact)
    assert all(is_right(left, 30) for left in seen)
    assert len({int(left.numbers[0]) for left in seen if not left.is_exact}) > 3


def test_shares_of_others_stay_in_the_sum(entropy):
    rows = tables(entropy)
    for colluders in ((), (0,), (0, 3), (0, 1, 2)):
        seen = [collude(SHARED, WHOLE, rows, colluders, entropy) for _ in range(60)]
        assert {kind_of(left) for left in seen} == {"none"}
        errors = np.array([left.numbers[0] for left in seen]) - 10 * (N - len(colluders))
        assert errors.any() and np.abs(errors).mean() < 5


def run_study(params, entropy):
    """A real study, by messages, of databases that would all tell: of every round the sums, the true counts and what each put in."""
    script, rows, told = script_of(params), tables(entropy), [[] for _ in range(N)]
    identities = [Identity.from_seed(bytes([i]) * 32) for i in range(N)]
    names = tuple(f"database {i}" for i in range(N))
    terms = Terms(bytes(32), Roster(names, tuple(one.public for one in identities)), params.minimum)
    peers = {names[i]: Colluder(told[i], script, Member(terms, i, identities[i]), rows[i]) for i in range(N)}
    outcome = run_local(SDQAggregator(script, terms, timedelta(minutes=1)), peers, entropy)
    assert not (outcome.aborted or outcome.rejected or outcome.failed)
    course, rounds, learned = Course(), [], outcome.states["aggregator"].learned
    for number, answer in enumerate(learned):
        asked = script.round(course)
        truths = np.array([np.concatenate([part.count(table) for part in asked.parts]) for table in rows])
        rounds.append((asked, answer, truths, [one[number] for one in told]))
        course = script.advance(course, learned[: number + 1])
    assert {len(one) for one in told} == {len(learned)}
    return rounds


def test_a_real_study_with_two_selected_databases_is_opened_by_as_many_pairs_as_predicted(entropy):
    rounds, seen = run_study(PAIRED, entropy), Exposure(N, 2)
    assert [asked.question for asked, *_ in rounds][:2] == ["sizes/0", "answers/0"]
    opened = {}
    for asked, answer, truths, told in rounds:
        kinds = Counter()
        for pair in combinations(range(N), 2):
            left = take_away(answer, [told[i] for i in pair])
            truth = np.delete(truths, pair, axis=0).sum(axis=0)
            assert is_right(left, truth)
            assert (left.numbers == truth).all() or not left.is_exact
            kinds[kind_of(left)] += 1
            if left.is_exact:
                opened.setdefault(asked.question.partition("/")[2], []).append(pair)
        assert kinds == {"both": 10 * seen.both, "one": 10 * seen.one, "none": 10 * seen.none}
    # Two are selected once for a level: its sizes and its answers are opened by the same pair.
    assert all(len(pairs) == 2 and len(set(pairs)) == 1 for pairs in opened.values())


@pytest.mark.parametrize("params", [SHARED, CHOSEN], ids=["sums", "choices"])
def test_a_real_study_with_shares_is_not(params, entropy):
    rounds = run_study(params, entropy)
    for pair in combinations(range(N), params.max_colluders):
        for asked, answer, truths, told in rounds:
            if not asked.is_choice:
                left = take_away(answer, [told[i] for i in pair])
                assert kind_of(left) == "none"
                assert (left.numbers != np.delete(truths, pair, axis=0).sum(axis=0)).any()


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_what_was_promised_is_discrete_laplace(rate):
    law = LeftNoise(rate, 1.0)
    assert law.epsilon == pytest.approx(rate, rel=1e-9)
    assert law.log_chances == pytest.approx(stats.dlaplace.logpmf(np.arange(law.log_chances.size), rate), rel=1e-9)


@pytest.mark.parametrize("shares", [0.25, 0.5, 1.5, 3.0])
def test_the_law_is_the_difference_of_two_negative_binomials(shares):
    k = np.arange(400)
    side = stats.nbinom.pmf(k, shares, -np.expm1(-0.3))
    expected = [float((side[: 400 - x] * side[x:]).sum()) for x in range(6)]
    assert np.exp(LeftNoise(0.3, shares).log_chances[:6]) == pytest.approx(expected, rel=1e-9)


def test_fewer_shares_hide_less_and_more_do_not_hide_more():
    found = [LeftNoise(0.5, shares).epsilon for shares in (1 / 6, 0.5, 5 / 6, 1.0, 1.5, 4.0)]
    assert found == sorted(found, reverse=True)
    assert found[2] > 0.5 and found[3:] == pytest.approx([0.5] * 3)


def test_evidence_is_the_log_ratio_and_ends_where_the_law_is_not_followed():
    law = LeftNoise(1.0, 0.5)
    chances = law.log_chances
    found = law.evidence(np.array([9, 10, 11, 10**9]), 10, 11)
    assert found == pytest.approx([chances[2] - chances[1], chances[1] - chances[0], chances[0] - chances[1], 0])
    assert np.abs(found).max() == pytest.approx(law.epsilon)
