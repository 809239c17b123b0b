"""Report noisy max: probabilities by enumeration, and worst ratio between neighbours."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.laplace import get_geometric_sampler
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import noisy_max, realised_geometric

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")


def worst_log_ratio(
    mechanism: NoisyMax, levels: tuple[int, ...], moves: range, n_candidates: int
) -> float:
    """Search all score vectors of the given levels and their neighbours.

    Probabilities are those of the sampler's Bernoulli samples.
    """
    noise = realised_geometric(mechanism._sampler, math.ceil(45 / float(mechanism.rate)))
    cache: dict[tuple[int, ...], np.ndarray] = {}

    def log_law(scores: tuple[int, ...]) -> np.ndarray:
        lowest = min(scores)
        scores = tuple(score - lowest for score in scores)
        if scores not in cache:
            cache[scores] = np.log(noisy_max(scores, noise))
        return cache[scores]

    return max(
        float(
            np.abs(
                log_law(scores) - log_law(tuple(s + m for s, m in zip(scores, move, strict=True)))
            ).max()
        )
        for scores in itertools.product(levels, repeat=n_candidates)
        for move in itertools.product(moves, repeat=n_candidates)
    )


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("n_candidates", [2, 3])
def test_monotone_scores_cost_epsilon(epsilon: float, n_candidates: int) -> None:
    mechanism = NoisyMax(epsilon, CountScore(), ADD_REMOVE)
    assert mechanism.rate == check_epsilon(epsilon)
    worst = worst_log_ratio(mechanism, (0, 1, 2, 4), range(2), n_candidates)
    assert worst == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(("scope", "max_rows"), [(ADD_REMOVE, 2), (REPLACE, 1), (REPLACE, 2)])
def test_larger_and_mixed_changes_cost_epsilon(scope: Scope, max_rows: int) -> None:
    mechanism = NoisyMax(1.0, CountScore(max_rows), scope)
    moves = range(max_rows + 1) if scope is ADD_REMOVE else range(-max_rows, max_rows + 1)
    assert worst_log_ratio(mechanism, (0, 1, 5), moves, 3) == pytest.approx(1.0, abs=1e-9)


def test_mixed_changes_at_monotone_rate_cost_twice_epsilon() -> None:
    weak = NoisyMax(1.0, CountScore(), ADD_REMOVE)
    assert worst_log_ratio(weak, (0, 1, 5), range(-1, 2), 3) == pytest.approx(2.0, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("scores", [(0, 0), (3, 1, 4, 1, 5), (5,), (0, 9, 2), (2, 2, 2, 2)])
def test_chances_agree_with_enumeration(scores: tuple[int, ...], epsilon: float) -> None:
    mechanism = NoisyMax(epsilon, CountScore(), ADD_REMOVE)
    want = noisy_max(scores, realised_geometric(mechanism._sampler, math.ceil(45 / epsilon)))
    assert mechanism.chances(scores) == pytest.approx(want, abs=1e-12, rel=1e-9)
    assert mechanism.expected_regret(scores) == pytest.approx(
        want @ (max(scores) - np.array(scores)), abs=1e-10
    )


def test_chances_of_many_candidates_at_tiny_rates_are_accurate() -> None:
    chances = NoisyMax(1e-9, CountScore(), ADD_REMOVE).chances([7] * 40)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)
    assert chances == pytest.approx(np.full(40, 1 / 40), rel=1e-6)


def test_first_candidate_wins_tie() -> None:
    mechanism = NoisyMax(64.0, CountScore(), ADD_REMOVE)
    assert mechanism.choose([1, 3, 3, 2], SeededEntropy(1)) == 1
    assert mechanism.choose_many(np.array([[1, 3, 3], [4, 4, 4]]), SeededEntropy(1)).tolist() == [
        1,
        0,
    ]


def test_both_paths_add_independent_noise_to_each_score() -> None:
    mechanism = NoisyMax(0.1, CountScore(), ADD_REMOVE)
    scores = np.array([3, 5, 4])
    sampler = get_geometric_sampler(mechanism.rate)
    for seed in range(30):
        entropy = SeededEntropy(seed)
        noise = [sampler.draw(entropy) for _ in scores]
        assert mechanism.choose(scores, SeededEntropy(seed)) == int(np.argmax(scores + noise))
        table = np.tile(scores, (4, 1))
        many = sampler.draw_many(12, SeededEntropy(seed)).reshape(4, 3)
        assert (
            mechanism.choose_many(table, SeededEntropy(seed)).tolist()
            == np.argmax(table + many, axis=1).tolist()
        )


def test_event_has_parameters() -> None:
    event = NoisyMax(0.5, CountScore(2), REPLACE).event()
    assert event.mechanism == "noisy-max"
    assert (event.epsilon, event.delta, event.rho, event.scope) == (0.5, 0.0, None, REPLACE)
    assert event.parameters == {"sensitivity": 2, "scores": "general", "scale": 8.0}


def test_rejects_invalid_scores_and_parameters() -> None:
    mechanism = NoisyMax(1.0, CountScore(), ADD_REMOVE)
    for scores in (np.zeros((0,), int), np.array([0.5, 1.0]), np.array([2**60, 1])):
        with pytest.raises(MechanismError, match="MECH-002"):
            mechanism.choose(scores, SeededEntropy(1))
    with pytest.raises(MechanismError, match="MECH-001"):
        NoisyMax(0.0, CountScore(), ADD_REMOVE)
