"""Randomised answers against their enumerated law: one by one and in batches, alone and in pairs, in mean and in variance.

Sample sizes: a mutant with twice the epsilon, or with p and q swapped, moves some cell's chance by 0.05 or more, which 40,000 reports see
at more than twenty standard deviations; alpha = 1e-9 is six.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.bits import BitPerturbation, PQPerturbation
from shoal.mechanisms.reports import WORD, FrequencyMechanism
from shoal.mechanisms.response import RandomResponse
from shoal.mechanisms.subset import SubsetSelection
from shoal.privacy.events import LOCAL_PERSON
from statistical.harness import catches, fits, is_chance, statistical, tally
from statistical.report_laws import KINDS, law, output_of, outputs_of

ALPHA = 1e-9
N = 40_000
VALUE = 1


def single(mechanism: FrequencyMechanism, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    return np.array([output_of(mechanism.report(VALUE, entropy)) for _ in range(n)])


def batch(mechanism: FrequencyMechanism, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    return outputs_of(mechanism.report_many(np.full(n, VALUE), entropy))


def follows(outputs: npt.NDArray[np.int64], claimed: FrequencyMechanism, alpha: float = ALPHA) -> bool:
    chances = law(claimed, VALUE)
    return fits(tally(outputs, list(chances)), [float(chance) for chance in chances.values()], alpha)


def mutants_of(claimed: FrequencyMechanism) -> Sequence[FrequencyMechanism]:
    """Twice the epsilon; and for bits also p and q swapped, and the true bit sent as it is."""
    mutants: list[FrequencyMechanism] = [type(claimed)(2 * claimed.epsilon, claimed.cardinality)]  # type: ignore[call-arg]
    if isinstance(claimed, BitPerturbation):
        keep, flip = int(claimed.p * WORD), int(claimed.q * WORD)
        mutants += [
            BitPerturbation(claimed.epsilon, claimed.cardinality, LOCAL_PERSON, keep=flip, flip=keep),
            BitPerturbation(claimed.epsilon, claimed.cardinality, LOCAL_PERSON, keep=WORD - 1, flip=flip),
        ]
    return mutants


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_single_reports_follow_the_law(kind, entropy):
    claimed = kind(1.0, 6)
    assert follows(single(claimed, N, entropy), claimed)
    for mutant in mutants_of(claimed):
        assert catches(lambda mutant=mutant: follows(single(mutant, N, entropy), claimed))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_follow_the_law(kind, entropy):
    claimed = kind(1.0, 6)
    assert follows(batch(claimed, N, entropy), claimed)
    for mutant in mutants_of(claimed):
        assert catches(lambda mutant=mutant: follows(batch(mutant, N, entropy), claimed))


def pairs_are_independent(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], mechanism: FrequencyMechanism) -> bool:
    """Each pair of outputs as one cell, at half of alpha: two paths share it."""
    chances = law(mechanism, VALUE)
    outputs, law_of_one = np.array(list(chances)), np.array([float(chance) for chance in chances.values()])
    at = np.argsort(outputs)
    cells = at[np.searchsorted(outputs, first, sorter=at)] * outputs.size + at[np.searchsorted(outputs, second, sorter=at)]
    return fits(np.bincount(cells, minlength=outputs.size**2), np.outer(law_of_one, law_of_one).ravel(), ALPHA / 2)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", [RandomResponse, PQPerturbation, SubsetSelection])
def test_no_two_people_share_a_draw(kind, entropy):
    """Neighbours in a batch, or in a row of calls, are independent; two devices with the same stream are not."""
    mechanism = kind(1.0, 4)
    for path in (single, batch):
        drawn = path(mechanism, 2 * N, entropy)
        assert pairs_are_independent(drawn[::2], drawn[1::2], mechanism)

        def shared(path=path) -> bool:
            seed = entropy.below(1 << 60)
            return pairs_are_independent(path(mechanism, N, SeededEntropy(seed)), path(mechanism, N, SeededEntropy(seed)), mechanism)

        assert catches(shared)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_unbiased_and_has_the_variance_of_equation_4(kind, entropy):
    """Each of 4,000 studies has 50 people, 20 of them in cell 0. A variance estimate is good to sqrt(2 / 4,000), and
    twice the epsilon changes it by more than half.
    """
    claimed, n, n_0, n_studies = kind(1.0, 5), 50, 20, 4000
    values = np.tile(np.repeat(np.arange(5), [n_0, 10, 10, 10, 0]), n_studies)

    def agrees(drawn_from: FrequencyMechanism) -> bool:
        rows = drawn_from.report_many(values, entropy).reshape(n_studies, n, -1)
        if rows.shape[2] == 1 and drawn_from.name == "random-response":
            rows = rows[:, :, 0]
        estimates = np.array([claimed.debias(drawn_from.tally(study), n)[0] for study in rows])
        variance = n * claimed.variance(n_0 / n)
        z_mean = (estimates.mean() - n_0) / math.sqrt(variance / n_studies)
        kurtosis_slack = 1.1
        z_variance = (estimates.var(ddof=1) / variance - 1) / math.sqrt(2 * kurtosis_slack / n_studies)
        return bool(max(abs(z_mean), abs(z_variance)) < stats.norm.isf(ALPHA / 4))

    assert agrees(claimed)
    assert catches(lambda: agrees(kind(2.0, 5)))


@statistical(alpha=ALPHA)
def test_long_single_reports_settle_ties(entropy):
    """A million bits show a chance to 0.0005. The mutant forgets the 56 bits behind a tied first byte, an error of 0.001 or more."""
    m, n = 1000, 2000
    mechanism = PQPerturbation(0.7, m)
    assert int(mechanism.q * WORD) % 2**56 > 0.3 * 2**56

    def agrees() -> bool:
        reports = mechanism.stack([mechanism.report(VALUE, entropy) for _ in range(n)])
        others = mechanism.tally(reports).sum() - mechanism.tally(reports)[VALUE]
        return is_chance(others, n * (m - 1), float(mechanism.q), ALPHA)

    assert agrees()
    mechanism._settled = mechanism._settled.replace(b"?", b"0")
    assert catches(agrees)


@statistical(alpha=ALPHA)
def test_sets_among_many_cells_are_uniform(entropy):
    """How many of the first ten other cells a set holds: hypergeometric, given whether it holds the true one. The mutant prefers low cells:
    in a quarter of the sets, the highest cell is exchanged for the lowest free one.
    """
    m, ten = 40, 10
    mechanism = SubsetSelection(1.0, m)
    w, p = mechanism.ones, float(mechanism.p)
    others = [cell for cell in range(m) if cell != VALUE][:ten]
    support = np.arange(ten + 1)
    without, with_it = (stats.hypergeom.pmf(support, m - 1, ten, k) for k in (w, w - 1))
    expected = np.concatenate([(1 - p) * without, p * with_it])

    def agrees(sets: npt.NDArray[np.int64]) -> bool:
        held = sum((sets >> cell & 1) for cell in others) + (ten + 1) * (sets >> VALUE & 1)
        return fits(np.bincount(held, minlength=expected.size), expected, ALPHA / 2)

    def is_biased_but_passes(path) -> bool:
        sets = path(mechanism, N, entropy)
        lowest_free = ~sets & (sets + 1)
        highest_held = 1 << np.log2(sets).astype(np.int64)
        return agrees(np.where(entropy.below_many(4, N) == 0, sets ^ lowest_free ^ highest_held, sets))

    for path in (single, batch):
        assert agrees(path(mechanism, N, entropy))
        assert catches(lambda path=path: is_biased_but_passes(path))
