"""The exponential mechanism: choices by the float filter and by the exact path."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms import exponential
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9
ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")
SCORES = np.array([4, 7, 5, 7, 0, 6])


def compute_chances(rate: float) -> np.ndarray:
    weights = np.exp(rate * (SCORES - SCORES.max()))
    return weights / weights.sum()


@statistical(alpha=ALPHA)
def test_exponential_choices_fit(entropy: SeededEntropy) -> None:
    n = 100_000

    def check(mechanism: ExponentialMechanism, rate: float) -> bool:
        chosen = mechanism.choose_many(np.tile(SCORES, (n, 1)), entropy)
        return fits(np.bincount(chosen, minlength=SCORES.size), compute_chances(rate), ALPHA / 3)

    assert check(ExponentialMechanism(0.8, CountScore(), ADD_REMOVE), 0.8)
    assert check(ExponentialMechanism(0.8, CountScore(2), REPLACE), 0.2)
    # Twice the epsilon, half of it, and the factor of two omitted.
    assert catches(lambda: check(ExponentialMechanism(1.6, CountScore(), ADD_REMOVE), 0.8))
    assert catches(lambda: check(ExponentialMechanism(0.8, CountScore(), REPLACE), 0.8))
    single = ExponentialMechanism(0.8, CountScore(), ADD_REMOVE)
    assert fits(
        np.bincount([single.choose(SCORES, entropy) for _ in range(5000)], minlength=SCORES.size),
        compute_chances(0.8),
        ALPHA / 3,
    )


@statistical(alpha=ALPHA)
def test_exponential_choices_fit_on_exact_path(
    entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exponential, "_MARGIN", 4.0)
    mechanism = ExponentialMechanism(0.8, CountScore(), ADD_REMOVE)
    table = np.tile(SCORES, (3000, 1))

    def check(scores: np.ndarray) -> bool:
        return fits(
            np.bincount(mechanism.choose_many(scores, entropy), minlength=SCORES.size),
            compute_chances(0.8),
            ALPHA,
        )

    assert check(table)
    assert catches(lambda: check(table[:, ::-1]), tries=1)


@statistical(alpha=ALPHA)
def test_exponential_choices_are_independent(entropy: SeededEntropy) -> None:
    mechanism = ExponentialMechanism(0.8, CountScore(), ADD_REMOVE)
    chances = compute_chances(0.8)

    def check(chosen: np.ndarray) -> bool:
        pairs = np.bincount(chosen[::2] * SCORES.size + chosen[1::2], minlength=SCORES.size**2)
        return fits(pairs, np.outer(chances, chances).ravel(), ALPHA)

    def draw_reused() -> np.ndarray:
        chosen = mechanism.choose_many(np.tile(SCORES, (60_000, 1)), entropy)
        chosen[1::20] = chosen[::20]
        return chosen

    assert check(mechanism.choose_many(np.tile(SCORES, (60_000, 1)), entropy))
    assert catches(lambda: check(draw_reused()))
