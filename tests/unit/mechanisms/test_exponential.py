"""The exponential mechanism: exact probabilities, from the words that lead to each choice."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms import exponential
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.privacy.events import Relation, Scope, Unit
from tests.unit.mechanisms.scripted import Scripted

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")


def realised(mechanism: ExponentialMechanism, scores: tuple[int, ...]) -> np.ndarray:
    """Return each candidate's probability, to 2^-127.

    It is the share of the first 128 bits that lead to the candidate, found by bisection with the
    mechanism itself.
    """
    edges = [0]
    for candidate in range(len(scores) - 1):
        low, high = edges[-1], 2**128
        while low < high:
            middle = (low + high) // 2
            # A tie on 128 bits asks for more; its outcome is within the 2^-127.
            chosen = mechanism.choose(scores, Scripted(middle >> 64, middle % 2**64, *[2**63] * 8))
            low, high = (middle + 1, high) if chosen <= candidate else (low, middle)
        edges.append(low)
    return np.array([(end - start) / 2**128 for start, end in itertools.pairwise([*edges, 2**128])])


def max_scores(rows: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return Max scores of splitting on either of two binary attributes.

    A row is (first, second, class).
    """
    return tuple(
        sum(
            max(sum(row[a] == branch and row[2] == label for row in rows) for label in (0, 1))
            for branch in (0, 1)
        )
        for a in (0, 1)
    )


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize(("scope", "max_rows"), [(ADD_REMOVE, 1), (ADD_REMOVE, 2), (REPLACE, 1)])
def test_worst_log_ratio_over_neighbours_is_epsilon(
    epsilon: float, scope: Scope, max_rows: int
) -> None:
    mechanism = ExponentialMechanism(epsilon, CountScore(max_rows), scope)
    moves = range(max_rows + 1) if scope is ADD_REMOVE else range(-max_rows, max_rows + 1)
    # A move of +-D matters most where the best candidate is far ahead; the far end shows the
    # supremum to 1e-9.
    far = math.ceil(46 / float(mechanism.rate))
    cache: dict[tuple[int, ...], np.ndarray] = {}

    def law(scores: tuple[int, ...]) -> np.ndarray:
        if scores not in cache:
            cache[scores] = mechanism.chances(scores)
        return cache[scores]

    worst = 0.0
    for scores in itertools.product([0, 1, 5, far], repeat=3):
        for move in itertools.product(moves, repeat=3):
            moved = tuple(s + m for s, m in zip(scores, move, strict=True))
            worst = max(worst, float(np.abs(np.log(law(scores)) - np.log(law(moved))).max()))
    assert worst == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(("scope", "max_rows"), [(ADD_REMOVE, 1), (ADD_REMOVE, 3), (REPLACE, 1)])
def test_realised_distribution_attains_epsilon(scope: Scope, max_rows: int) -> None:
    epsilon = 1.0
    mechanism = ExponentialMechanism(epsilon, CountScore(max_rows), scope)
    D = max_rows
    # Behind by 30 / rate the weight is 1e-13: small enough to come within 1e-9 of epsilon, large
    # enough that 2^-127 does not show.
    behind = math.ceil(30 / float(mechanism.rate))
    pairs = [((behind, 0, behind), (behind, D, behind)), ((0, behind), (D, behind))]
    if scope is REPLACE:
        pairs = [((behind, 0), (behind - D, D))]
    worst = max(
        float(np.abs(np.log(realised(mechanism, a)) - np.log(realised(mechanism, b))).max())
        for a, b in pairs
    )
    assert worst == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "scores", [(0, 0), (3, 1, 4, 1, 5), (0, 10, 0), (7,), (2, -2, -1), (0, 40), (40, 0, 39)]
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_words_lead_to_choices_by_formula(scores: tuple[int, ...], epsilon: float) -> None:
    mechanism = ExponentialMechanism(epsilon, CountScore(), ADD_REMOVE)
    weights = np.exp(epsilon * (np.array(scores, float) - max(scores)))
    assert realised(mechanism, scores) == pytest.approx(weights / weights.sum(), rel=1e-12)
    assert mechanism.chances(scores) == pytest.approx(weights / weights.sum(), rel=1e-12)


def test_count_scores_change_within_sensitivity() -> None:
    rows = list(itertools.product((0, 1), repeat=3))
    for data in itertools.product(rows, repeat=3):
        before = max_scores(list(data))
        added = [np.subtract(max_scores([*data, row]), before) for row in rows]
        assert all(change.min() >= 0 and change.max() <= 1 for change in added)
        replaced = [np.subtract(max_scores([*data[:-1], row]), before) for row in rows]
        assert all(np.abs(change).max() <= 1 for change in replaced)
    # Replacing does move scores apart: one up, the other down.
    before = max_scores([(0, 0, 0), (0, 1, 1), (1, 0, 1)])
    apart = [np.subtract(max_scores([(0, 0, 0), (0, 1, 1), row]), before) for row in rows]
    assert CountScore().is_monotone(Relation.ADD_REMOVE)
    assert not CountScore().is_monotone(Relation.REPLACE)
    assert any(change.min() < change.max() for change in apart)


def test_rate_depends_on_relation() -> None:
    assert ExponentialMechanism(1.0, CountScore(4), ADD_REMOVE).rate == Fraction(1, 4)
    assert ExponentialMechanism(1.0, CountScore(4), REPLACE).rate == Fraction(1, 8)


@pytest.mark.parametrize("scope", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_rho_bounds_every_order(scope: Scope, epsilon: float) -> None:
    mechanism = ExponentialMechanism(epsilon, CountScore(), scope)
    rho = mechanism.event().rho
    assert rho == pytest.approx(epsilon**2 / 8)
    moves = (0, 1) if scope is ADD_REMOVE else (-1, 0, 1)
    worst = 0.0
    for scores in itertools.product(range(0, 9, 2), repeat=3):
        p = mechanism.chances(scores)
        for move in itertools.product(moves, repeat=3):
            q = mechanism.chances(np.add(scores, move))
            for alpha in (1.01, 1.5, 2, 4, 16):
                for a, b in ((p, q), (q, p)):
                    worst = max(
                        worst, math.log((a**alpha * b ** (1 - alpha)).sum()) / (alpha - 1) / alpha
                    )
    assert 0.75 * rho < worst <= rho * (1 + 1e-9)


class TestSettle:
    """Choices that floats cannot decide."""

    @pytest.mark.parametrize(
        "scores", [(0, 0, 0), (3, 1, 4, 1, 5), (0, 10**15, 7), (5,), (0, 300, 299)]
    )
    def test_exact_and_vectorised_paths_agree(
        self, scores: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mechanism = ExponentialMechanism(0.7, CountScore(), REPLACE)
        table = np.tile(scores, (200, 1))
        filtered = mechanism.choose_many(table, SeededEntropy(5)).tolist()
        monkeypatch.setattr(exponential, "_MARGIN", 4.0)
        assert mechanism.choose_many(table, SeededEntropy(5)).tolist() == filtered

    def test_word_on_boundary_draws_more_bits(self) -> None:
        mechanism = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
        # Two equal candidates: the edge is at one half exactly, and the words from there on belong
        # to the second.
        assert mechanism.choose([4, 4], Scripted(2**63 - 1, 2**64 - 1, 2**64 - 1, 2**63)) == 0
        assert mechanism.choose([4, 4], Scripted(2**63, 0, 0, 2**63)) == 1
        # Three: one third is 0x5555..., and stays undecided while the words are equal.
        third = 0x5555_5555_5555_5555
        assert mechanism.choose([4, 4, 4], Scripted(third, third, third, third - 9)) == 0
        assert mechanism.choose([4, 4, 4], Scripted(third, third, third, third + 9)) == 1

    def test_very_low_scores_are_bounded(self) -> None:
        mechanism = ExponentialMechanism(64.0, CountScore(), ADD_REMOVE)
        assert mechanism._choose_exactly([0, 2**50], 0, Scripted(1, 1)) == 1
        assert mechanism.choose([0, 2**50], Scripted(0, 1, 1)) == 1

    def test_words_next_to_boundary_are_distinguished(self) -> None:
        mechanism = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
        low, high = mechanism._bound_sums([0, 1], 200)
        edge = math.floor(2**64 * low[0] / high[1])
        assert mechanism.choose([0, 1], Scripted(edge - 1)) == 0
        assert mechanism.choose([0, 1], Scripted(edge + 1)) == 1


def test_expected_regret_follows_from_probabilities() -> None:
    mechanism = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
    assert mechanism.expected_regret([0, 1]) == pytest.approx(1 / (1 + math.e))
    assert mechanism.expected_regret([5, 5]) == 0


def test_event_has_parameters() -> None:
    event = ExponentialMechanism(0.5, CountScore(3), REPLACE).event()
    assert event.mechanism == "exponential"
    assert (event.epsilon, event.delta, event.scope) == (0.5, 0.0, REPLACE)
    assert event.parameters == {"sensitivity": 3, "scores": "general"}
    assert (
        ExponentialMechanism(0.5, CountScore(), ADD_REMOVE).event().parameters["scores"]
        == "monotone"
    )


def test_choice_uses_one_word_for_any_scores() -> None:
    mechanism = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
    for scores in ((0, 0, 0), (0, 1000, 0), (1, 2, 3)):
        entropy = Scripted(12345)
        mechanism.choose(scores, entropy)
        assert entropy.left == []


def test_rejects_invalid_scores_and_parameters() -> None:
    mechanism = ExponentialMechanism(1.0, CountScore(), ADD_REMOVE)
    for scores in (np.zeros((0,), int), np.array([0.5, 1.0]), np.array([2**60, 1])):
        with pytest.raises(MechanismError, match="MECH-002"):
            mechanism.choose(scores, SeededEntropy(1))
    with pytest.raises(MechanismError, match="MECH-002"):
        mechanism.chances(np.array(3))
    with pytest.raises(MechanismError, match="MECH-001"):
        CountScore(0)
