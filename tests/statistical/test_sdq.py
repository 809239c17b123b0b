"""Simulated sums carry the noise of all databases' shares, and simulated choices fall as noisy scores make them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from sdq_trees import random_table, schema_of
from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import laplace_sampler
from shoal.protocols.sdq.params import Ints, Params
from shoal.protocols.sdq.population import answer
from shoal.protocols.sdq.script import Part, Round
from statistical.harness import catches, fits, statistical
from statistical.laws import looks_like, noisy_max

ALPHA = 1e-9
N = 60_000
RATE = 0.2
REACH = 400
TABLE = random_table((2, 3), 2, 50, seed=1, n_databases=10)
TRUE = np.bincount(TABLE.labels, minlength=2)[0]


def params_of(**changes: Any) -> Params:
    return Params(schema_of((2, 3), 2), 1.0, 50, **changes)


def side(shares: float) -> np.ndarray:
    """P(0), P(1), ... of one side of the noise: negative binomial."""
    return stats.nbinom.pmf(np.arange(REACH), shares, -np.expm1(-RATE))


def noise_of_sums(params: Params, n_answering: int, entropy: SeededEntropy, epsilon: float = RATE) -> Ints:
    """What is in a sum beside the count of a class, which is repeated; the second part would cost as much twice over."""
    parts = (
        Part(lambda table: np.full(N, (table.labels == 0).sum()), N, epsilon),
        Part(lambda table: np.full(N, (table.labels == 0).sum()), N, 2 * epsilon, n_tables=2),
    )
    return answer(params, Round("query/0", parts), TABLE, n_answering, entropy) - TRUE


def looks_shared(drawn: Ints, shares: float) -> bool:
    law = np.convolve(side(shares), side(shares)[::-1])
    return looks_like(drawn, 1 - REACH, law, ALPHA / 5)


@statistical(alpha=ALPHA)
def test_sums_carry_the_noise_of_those_who_answer(entropy: SeededEntropy) -> None:
    studies: list[tuple[Params, int, float]] = [
        (params_of(), 10, 1.0),
        (params_of(minimum=8, max_colluders=3), 10, 2.0),
        (params_of(minimum=8, max_colluders=3), 8, 1.6),
        (params_of(variant="paper", noise="two-selected"), 10, 1.0),
        (params_of(variant="paper", trust="local"), 10, 10.0),
    ]
    for params, n_answering, shares in studies:
        assert looks_shared(noise_of_sums(params, n_answering, entropy), shares)
    tolerant = params_of(minimum=8, max_colluders=3)
    # Shares that forget the colluders, the noise of one curator, half the noise, and none on the second part.
    assert catches(lambda: looks_shared(noise_of_sums(params_of(minimum=8), 8, entropy), 1.6))
    assert catches(lambda: looks_shared(laplace_sampler(Fraction(1, 5)).draw_many(2 * N, entropy), 2.0))
    assert catches(lambda: looks_shared(noise_of_sums(tolerant, 10, entropy, 2 * RATE), 2.0))
    assert catches(lambda: looks_shared(np.where(np.arange(2 * N) < N, noise_of_sums(tolerant, 10, entropy), 0), 2.0))


@statistical(alpha=ALPHA)
def test_choices_fall_as_noisy_scores_make_them(entropy: SeededEntropy) -> None:
    scores, n = (6, 10, 0, 10), 4000
    tolerant = params_of(minimum=8, max_colluders=3)

    def chosen(params: Params, n_answering: int, epsilon: float = RATE) -> Ints:
        asked = Round("choice/0", (Part(lambda table: np.array(scores), len(scores), epsilon),), is_choice=True)
        picks = [int(answer(params, asked, TABLE, n_answering, entropy)[0]) for _ in range(n)]
        return np.bincount(picks, minlength=len(scores))

    for n_answering, shares in ((10, 2.0), (8, 1.6)):
        assert fits(chosen(tolerant, n_answering), noisy_max(scores, side(shares)), ALPHA / 2)
    # Half the noise, and the choice of the true scores.
    assert catches(lambda: fits(chosen(tolerant, 10, 2 * RATE), noisy_max(scores, side(2.0)), ALPHA / 2))
    assert catches(lambda: fits(np.array([0, n, 0, 0]), noisy_max(scores, side(2.0)), ALPHA / 2))
