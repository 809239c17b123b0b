"""Simulated SDQ sums and choices: the noise of all databases' shares."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import get_laplace_sampler
from shoal.protocols.sdq.params import Ints, SDQParams
from shoal.protocols.sdq.population import draw_answer
from shoal.protocols.sdq.script import RoundPart, SDQRound
from tests.statistical.distributions import fits_pmf, noisy_max
from tests.statistical.harness import catches, fits, statistical
from tests.support.sdq import make_schema, random_table

ALPHA = 1e-9
N = 60_000
RATE = 0.2
REACH = 400
TABLE = random_table((2, 3), 2, 50, seed=1, n_databases=10)
TRUE = np.bincount(TABLE.labels, minlength=2)[0]


def make_params(**changes: Any) -> SDQParams:
    return SDQParams(make_schema((2, 3), 2), 1.0, 50, **changes)


def one_sided_pmf(shares: float) -> np.ndarray:
    """Return P(0), P(1), ... of one side of the noise: negative binomial."""
    return stats.nbinom.pmf(np.arange(REACH), shares, -np.expm1(-RATE))


def draw_sum_noise(
    params: SDQParams, n_answering: int, entropy: SeededEntropy, epsilon: float = RATE
) -> Ints:
    """Return the noise in a sum of a class count, which is repeated.

    The second part would cost the same again.
    """
    parts = (
        RoundPart(lambda table: np.full(N, (table.labels == 0).sum()), N, epsilon),
        RoundPart(lambda table: np.full(N, (table.labels == 0).sum()), N, 2 * epsilon, n_tables=2),
    )
    return draw_answer(params, SDQRound("query/0", parts), TABLE, n_answering, entropy) - TRUE


def fits_shares(drawn: Ints, shares: float) -> bool:
    pmf = np.convolve(one_sided_pmf(shares), one_sided_pmf(shares)[::-1])
    return fits_pmf(drawn, 1 - REACH, pmf, ALPHA / 5)


@statistical(alpha=ALPHA)
def test_sdq_sums_have_noise_of_answering_databases(entropy: SeededEntropy) -> None:
    studies: list[tuple[SDQParams, int, float]] = [
        (make_params(), 10, 1.0),
        (make_params(minimum=8, max_colluders=3), 10, 2.0),
        (make_params(minimum=8, max_colluders=3), 8, 1.6),
        (make_params(variant="paper", noise="two-selected"), 10, 1.0),
        (make_params(variant="paper", trust="local"), 10, 10.0),
    ]
    for params, n_answering, shares in studies:
        assert fits_shares(draw_sum_noise(params, n_answering, entropy), shares)
    tolerant = make_params(minimum=8, max_colluders=3)
    # The mutants: shares that ignore the colluders, the noise of one curator, half the noise, and
    # none on the second part.
    assert catches(lambda: fits_shares(draw_sum_noise(make_params(minimum=8), 8, entropy), 1.6))
    assert catches(
        lambda: fits_shares(get_laplace_sampler(Fraction(1, 5)).draw_many(2 * N, entropy), 2.0)
    )
    assert catches(lambda: fits_shares(draw_sum_noise(tolerant, 10, entropy, 2 * RATE), 2.0))
    assert catches(
        lambda: fits_shares(
            np.where(np.arange(2 * N) < N, draw_sum_noise(tolerant, 10, entropy), 0), 2.0
        )
    )


@statistical(alpha=ALPHA)
def test_sdq_choices_fit_noisy_scores(entropy: SeededEntropy) -> None:
    scores, n = (6, 10, 0, 10), 4000
    tolerant = make_params(minimum=8, max_colluders=3)

    def draw_choices(params: SDQParams, n_answering: int, epsilon: float = RATE) -> Ints:
        asked = SDQRound(
            "choice/0",
            (RoundPart(lambda table: np.array(scores), len(scores), epsilon),),
            is_choice=True,
        )
        picks = [int(draw_answer(params, asked, TABLE, n_answering, entropy)[0]) for _ in range(n)]
        return np.bincount(picks, minlength=len(scores))

    for n_answering, shares in ((10, 2.0), (8, 1.6)):
        assert fits(
            draw_choices(tolerant, n_answering), noisy_max(scores, one_sided_pmf(shares)), ALPHA / 2
        )
    # Half the noise, and the choice of the true scores.
    assert catches(
        lambda: fits(
            draw_choices(tolerant, 10, 2 * RATE), noisy_max(scores, one_sided_pmf(2.0)), ALPHA / 2
        )
    )
    assert catches(
        lambda: fits(np.array([0, n, 0, 0]), noisy_max(scores, one_sided_pmf(2.0)), ALPHA / 2)
    )
