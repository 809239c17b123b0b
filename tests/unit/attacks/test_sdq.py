"""Colluding databases: what they subtract from a sum, and what the rest still hides."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from shoal.attacks.sdq import (
    Colluder,
    DisclosedAnswer,
    RemainingNoise,
    RemainingSum,
    collude,
    subtract_disclosed,
)
from shoal.crypto.identity import Identity, Roster
from shoal.data.schema import Categorical, Schema
from shoal.protocols.base import run_local
from shoal.protocols.sdq.aggregator import SDQAggregator
from shoal.protocols.sdq.analysis import SDQExposure
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.script import RoundPart, SDQRound, SDQScriptState
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.protocols.secagg.member import SumMember
from shoal.protocols.secagg.messages import SumParameters

SCHEMA = Schema(
    [
        Categorical("ward", ["a", "b"], missing=False),
        Categorical("alone", ["no", "yes"], missing=False),
    ],
    label=Categorical("falls", ["no", "yes"]),
)
N = 5
PAIRED = SDQParams(
    SCHEMA,
    2.0,
    40,
    n_databases=N,
    minimum=N,
    max_colluders=2,
    variant="paper",
    noise="two-selected",
    depth=1,
)
SHARED = SDQParams(SCHEMA, 2.0, 40, n_databases=N, minimum=N, max_colluders=2, choice="sums")
CHOSEN = SDQParams(SCHEMA, 2.0, 4000, n_databases=N, minimum=N, max_colluders=1)
WHOLE = SDQRound("sizes/0", (RoundPart(lambda table: np.array([len(table)]), 1, 1.0),))


def tables(entropy):
    return [
        CellTable(entropy.below_many(2, 20).reshape(10, 2), entropy.below_many(2, 10))
        for _ in range(N)
    ]


def kind_of(left: RemainingSum) -> str:
    return {(True, True): "both", (False, False): "none"}.get(
        (left.is_lower_bound, left.is_upper_bound), "one"
    )


def is_right(left: RemainingSum, truth) -> bool:
    """Return whether the attack's claim about the true counts is correct."""
    return bool(
        (not left.is_lower_bound or (truth >= left.numbers).all())
        and (not left.is_upper_bound or (truth <= left.numbers).all())
    )


@pytest.mark.parametrize(
    ("roles", "is_least", "is_most"),
    [
        ((0, 0), False, False),
        ((ADDS, 0), True, False),
        ((0, SUBTRACTS), False, True),
        ((ADDS, SUBTRACTS), True, True),
        ((), False, False),
    ],
)
def test_known_noise_bounds_the_counts_on_one_side(roles, is_least, is_most):
    left = subtract_disclosed(
        np.array([50, 60]), [DisclosedAnswer("sizes/0", np.array([7, 9]), role) for role in roles]
    )
    assert left.numbers.tolist() == [50 - 7 * len(roles), 60 - 9 * len(roles)]
    assert (left.is_lower_bound, left.is_upper_bound, left.is_exact) == (
        is_least,
        is_most,
        is_least and is_most,
    )


def test_colluder_with_a_share_bounds_nothing():
    left = subtract_disclosed(
        np.array([5]),
        [DisclosedAnswer("table", np.array([2])), DisclosedAnswer("table", np.array([2]))],
    )
    assert (left.numbers.tolist(), left.is_lower_bound, left.is_upper_bound) == ([1], False, False)


def test_round_is_opened_if_both_selected_databases_collude(entropy):
    rows = tables(entropy)
    seen = [collude(PAIRED, WHOLE, rows, (1, 2), entropy) for _ in range(200)]
    assert {kind_of(left) for left in seen} == {"both", "one", "none"}
    assert all(left.numbers.tolist() == [30] for left in seen if left.is_exact)
    assert all(is_right(left, 30) for left in seen)
    assert len({int(left.numbers[0]) for left in seen if not left.is_exact}) > 3


def test_shares_of_honest_databases_stay_in_the_sum(entropy):
    rows = tables(entropy)
    for colluders in ((), (0,), (0, 3), (0, 1, 2)):
        seen = [collude(SHARED, WHOLE, rows, colluders, entropy) for _ in range(60)]
        assert {kind_of(left) for left in seen} == {"none"}
        errors = np.array([left.numbers[0] for left in seen]) - 10 * (N - len(colluders))
        assert errors.any() and np.abs(errors).mean() < 5


def run_study(params, entropy):
    """Run a real study by messages; return sums, true counts and contributions of each round."""
    script, rows, told = make_sdq_script(params), tables(entropy), [[] for _ in range(N)]
    identities = [Identity.from_seed(bytes([i]) * 32) for i in range(N)]
    names = tuple(f"database {i}" for i in range(N))
    terms = SumParameters(
        bytes(32), Roster(names, tuple(one.public_key for one in identities)), params.minimum
    )
    peers = {
        names[i]: Colluder(told[i], script, SumMember(terms, i, identities[i]), rows[i])
        for i in range(N)
    }
    outcome = run_local(SDQAggregator(script, terms, timedelta(minutes=1)), peers, entropy)
    assert not (outcome.aborted or outcome.rejected or outcome.failed)
    course, rounds, learned = SDQScriptState(), [], outcome.states["aggregator"].noisy_sums
    for number, answer in enumerate(learned):
        asked = script.make_round(course)
        truths = np.array(
            [np.concatenate([part.count(table) for part in asked.parts]) for table in rows]
        )
        rounds.append((asked, answer, truths, [one[number] for one in told]))
        course = script.advance(course, learned[: number + 1])
    assert {len(one) for one in told} == {len(learned)}
    return rounds


def test_study_with_two_selected_databases_is_opened_by_the_predicted_pairs(entropy):
    rounds, seen = run_study(PAIRED, entropy), SDQExposure(N, 2)
    assert [asked.question for asked, *_ in rounds][:2] == ["sizes/0", "answers/0"]
    opened = {}
    for asked, answer, truths, told in rounds:
        kinds = Counter()
        for pair in combinations(range(N), 2):
            left = subtract_disclosed(answer, [told[i] for i in pair])
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
def test_study_with_shares_is_not_opened(params, entropy):
    rounds = run_study(params, entropy)
    for pair in combinations(range(N), params.max_colluders):
        for asked, answer, truths, told in rounds:
            if not asked.is_choice:
                left = subtract_disclosed(answer, [told[i] for i in pair])
                assert kind_of(left) == "none"
                assert (left.numbers != np.delete(truths, pair, axis=0).sum(axis=0)).any()


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_promised_noise_is_discrete_laplace(rate):
    law = RemainingNoise(rate, 1.0)
    assert law.epsilon == pytest.approx(rate, rel=1e-9)
    assert law.log_chances == pytest.approx(
        stats.dlaplace.logpmf(np.arange(law.log_chances.size), rate), rel=1e-9
    )


@pytest.mark.parametrize("shares", [0.25, 0.5, 1.5, 3.0])
def test_share_distribution_is_the_difference_of_two_negative_binomials(shares):
    k = np.arange(400)
    side = stats.nbinom.pmf(k, shares, -np.expm1(-0.3))
    expected = [float((side[: 400 - x] * side[x:]).sum()) for x in range(6)]
    assert np.exp(RemainingNoise(0.3, shares).log_chances[:6]) == pytest.approx(expected, rel=1e-9)


def test_fewer_shares_hide_less_and_more_do_not_hide_more():
    found = [RemainingNoise(0.5, shares).epsilon for shares in (1 / 6, 0.5, 5 / 6, 1.0, 1.5, 4.0)]
    assert found == sorted(found, reverse=True)
    assert found[2] > 0.5 and found[3:] == pytest.approx([0.5] * 3)


def test_evidence_is_the_log_ratio_within_the_support():
    law = RemainingNoise(1.0, 0.5)
    chances = law.log_chances
    found = law.compute_evidence(np.array([9, 10, 11, 10**9]), 10, 11)
    assert found == pytest.approx(
        [chances[2] - chances[1], chances[1] - chances[0], chances[0] - chances[1], 0]
    )
    assert np.abs(found).max() == pytest.approx(law.epsilon)
