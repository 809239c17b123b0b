"""Reports against their enumerated distribution: single, batched, in pairs, and moments.

Sample sizes: a mutant with twice the epsilon, or with p and q swapped, moves some cell's chance by
0.05 or more, which 40,000 reports see at more than twenty standard deviations; alpha = 1e-9 is six.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.frequency_oracle import WORD, FrequencyOracle
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.mechanisms.unary_encoding import PQPerturbation, UnaryEncoding
from shoal.privacy.events import LOCAL_PERSON
from tests.statistical.frequency_oracle_distributions import (
    KINDS,
    enumerate_outputs,
    to_output,
    to_outputs,
)
from tests.statistical.harness import catches, fits, is_chance, statistical, tally

ALPHA = 1e-9
N = 40_000
VALUE = 1


def draw_single(mechanism: FrequencyOracle, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    return np.array([to_output(mechanism.report(VALUE, entropy)) for _ in range(n)])


def draw_batch(mechanism: FrequencyOracle, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    return to_outputs(mechanism.report_many(np.full(n, VALUE), entropy))


def fits_claim(
    outputs: npt.NDArray[np.int64], claimed: FrequencyOracle, alpha: float = ALPHA
) -> bool:
    chances = enumerate_outputs(claimed, VALUE)
    return fits(
        tally(outputs, list(chances)), [float(chance) for chance in chances.values()], alpha
    )


def make_mutants(claimed: FrequencyOracle) -> Sequence[FrequencyOracle]:
    """Return mutants: twice the epsilon; for bits also p and q swapped, and the true bit."""
    mutants: list[FrequencyOracle] = [type(claimed)(2 * claimed.epsilon, claimed.cardinality)]  # type: ignore[call-arg]
    if isinstance(claimed, UnaryEncoding):
        keep, flip = int(claimed.p * WORD), int(claimed.q * WORD)
        mutants += [
            UnaryEncoding(claimed.epsilon, claimed.cardinality, LOCAL_PERSON, keep=flip, flip=keep),
            UnaryEncoding(
                claimed.epsilon, claimed.cardinality, LOCAL_PERSON, keep=WORD - 1, flip=flip
            ),
        ]
    return mutants


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_single_reports_fit_distribution(kind, entropy):
    claimed = kind(1.0, 6)
    assert fits_claim(draw_single(claimed, N, entropy), claimed)
    for mutant in make_mutants(claimed):
        assert catches(lambda mutant=mutant: fits_claim(draw_single(mutant, N, entropy), claimed))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_batched_reports_fit_distribution(kind, entropy):
    claimed = kind(1.0, 6)
    assert fits_claim(draw_batch(claimed, N, entropy), claimed)
    for mutant in make_mutants(claimed):
        assert catches(lambda mutant=mutant: fits_claim(draw_batch(mutant, N, entropy), claimed))


def are_pairs_independent(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], mechanism: FrequencyOracle
) -> bool:
    """Return whether pairs of outputs are independent, each pair as one cell.

    The test is at half of alpha, because two paths share it.
    """
    chances = enumerate_outputs(mechanism, VALUE)
    outputs, pmf = (
        np.array(list(chances)),
        np.array([float(chance) for chance in chances.values()]),
    )
    at = np.argsort(outputs)
    cells = (
        at[np.searchsorted(outputs, first, sorter=at)] * outputs.size
        + at[np.searchsorted(outputs, second, sorter=at)]
    )
    return fits(
        np.bincount(cells, minlength=outputs.size**2),
        np.outer(pmf, pmf).ravel(),
        ALPHA / 2,
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", [RandomizedResponse, PQPerturbation, SubsetSelection])
def test_reports_of_two_people_are_independent(kind, entropy):
    """Compare neighbours in a batch and in a series of calls.

    The mutant is two devices with the same random stream.
    """
    mechanism = kind(1.0, 4)
    for path in (draw_single, draw_batch):
        drawn = path(mechanism, 2 * N, entropy)
        assert are_pairs_independent(drawn[::2], drawn[1::2], mechanism)

        def is_shared_stream_independent(path=path) -> bool:
            seed = entropy.below(1 << 60)
            return are_pairs_independent(
                path(mechanism, N, SeededEntropy(seed)),
                path(mechanism, N, SeededEntropy(seed)),
                mechanism,
            )

        assert catches(is_shared_stream_independent)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_frequency_estimate_is_unbiased_with_variance_of_equation_4(kind, entropy):
    """Run 4,000 studies of 50 people, 20 of them in cell 0.

    A variance estimate is good to sqrt(2 / 4,000), and twice the epsilon changes it by more than
    half.
    """
    claimed, n, n_0, n_studies = kind(1.0, 5), 50, 20, 4000
    values = np.tile(np.repeat(np.arange(5), [n_0, 10, 10, 10, 0]), n_studies)

    def fits_oracle(oracle: FrequencyOracle) -> bool:
        rows = oracle.report_many(values, entropy).reshape(n_studies, n, -1)
        if rows.shape[2] == 1 and oracle.name == "random-response":
            rows = rows[:, :, 0]
        estimates = np.array([claimed.debias(oracle.tally(study), n)[0] for study in rows])
        variance = n * claimed.variance(n_0 / n)
        z_mean = (estimates.mean() - n_0) / math.sqrt(variance / n_studies)
        kurtosis_slack = 1.1
        z_variance = (estimates.var(ddof=1) / variance - 1) / math.sqrt(
            2 * kurtosis_slack / n_studies
        )
        return bool(max(abs(z_mean), abs(z_variance)) < stats.norm.isf(ALPHA / 4))

    assert fits_oracle(claimed)
    assert catches(lambda: fits_oracle(kind(2.0, 5)))


@statistical(alpha=ALPHA)
def test_long_single_reports_resolve_ties(entropy):
    """Check a chance to 0.0005 with a million bits.

    The mutant omits the 56 bits behind a tied first byte, an error of 0.001 or more.
    """
    m, n = 1000, 2000
    mechanism = PQPerturbation(0.7, m)
    assert int(mechanism.q * WORD) % 2**56 > 0.3 * 2**56

    def fits_oracle() -> bool:
        reports = mechanism.stack([mechanism.report(VALUE, entropy) for _ in range(n)])
        others = mechanism.tally(reports).sum() - mechanism.tally(reports)[VALUE]
        return is_chance(others, n * (m - 1), float(mechanism.q), ALPHA)

    assert fits_oracle()
    mechanism._decision_table = mechanism._decision_table.replace(b"?", b"0")
    assert catches(fits_oracle)


@statistical(alpha=ALPHA)
def test_subset_selection_is_uniform_among_many_cells(entropy):
    """Count the first ten other cells in a set.

    The number is hypergeometric, given whether the set contains the true cell. The mutant prefers
    low cells: in a quarter of the sets, it exchanges the highest cell for the lowest free one.
    """
    m, ten = 40, 10
    mechanism = SubsetSelection(1.0, m)
    w, p = mechanism.ones, float(mechanism.p)
    others = [cell for cell in range(m) if cell != VALUE][:ten]
    support = np.arange(ten + 1)
    without, with_it = (stats.hypergeom.pmf(support, m - 1, ten, k) for k in (w, w - 1))
    expected = np.concatenate([(1 - p) * without, p * with_it])

    def fits_oracle(sets: npt.NDArray[np.int64]) -> bool:
        held = sum((sets >> cell & 1) for cell in others) + (ten + 1) * (sets >> VALUE & 1)
        return fits(np.bincount(held, minlength=expected.size), expected, ALPHA / 2)

    def does_biased_set_fit(path) -> bool:
        sets = path(mechanism, N, entropy)
        lowest_free = ~sets & (sets + 1)
        highest_held = 1 << np.log2(sets).astype(np.int64)
        return fits_oracle(
            np.where(entropy.below_many(4, N) == 0, sets ^ lowest_free ^ highest_held, sets)
        )

    for path in (draw_single, draw_batch):
        assert fits_oracle(path(mechanism, N, entropy))
        assert catches(lambda path=path: does_biased_set_fit(path))
