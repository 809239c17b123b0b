"""Report noisy max against its enumerated distribution."""

from __future__ import annotations

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import geometric, noisy_max
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9
ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "all who read the release")
SCORES = (4, 7, 5, 7, 0, 6)


@statistical(alpha=ALPHA)
def test_noisy_max_choices_fit(entropy: SeededEntropy) -> None:
    n = 100_000
    table = np.tile(SCORES, (n, 1))

    def check(chosen: np.ndarray, rate: float) -> bool:
        return fits(
            np.bincount(chosen, minlength=len(SCORES)),
            noisy_max(SCORES, geometric(rate, int(45 / rate))),
            ALPHA / 3,
        )

    mechanism = NoisyMax(0.8, CountScore(), ADD_REMOVE)
    assert check(mechanism.choose_many(table, entropy), 0.8)
    assert check(np.array([mechanism.choose(SCORES, entropy) for _ in range(5000)]), 0.8)
    assert check(NoisyMax(0.8, CountScore(2), REPLACE).choose_many(table, entropy), 0.2)

    def choose_with_reused_noise() -> np.ndarray:
        return np.argmax(table + mechanism._sampler.draw_many(n, entropy)[:, np.newaxis], axis=1)

    def choose_last_on_ties() -> np.ndarray:
        noisy = table + mechanism._sampler.draw_many(table.size, entropy).reshape(table.shape)
        return table.shape[1] - 1 - np.argmax(noisy[:, ::-1], axis=1)

    def choose_without_noise_on_one() -> np.ndarray:
        noise = mechanism._sampler.draw_many(table.size, entropy).reshape(table.shape)
        noise[:, 2] = 0
        return np.argmax(table + noise, axis=1)

    assert catches(
        lambda: check(NoisyMax(1.6, CountScore(), ADD_REMOVE).choose_many(table, entropy), 0.8)
    )
    for mutant in (choose_with_reused_noise, choose_last_on_ties, choose_without_noise_on_one):
        assert catches(lambda: check(mutant(), 0.8))
