"""Bernoulli samplers: single and batched draws, by the float filter and the exact path."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms import bernoulli
from shoal.mechanisms.bernoulli import (
    BernoulliSampler,
    sample_bernoulli_exp,
    sample_bernoulli_exp_many,
)
from tests.statistical.harness import catches, is_chance, statistical

ALPHA = 1e-9


@statistical(alpha=ALPHA)
def test_bernoulli_samples_have_their_chance(entropy: SeededEntropy) -> None:
    cases = [
        (BernoulliSampler.exponential(Fraction(1)), math.exp(-1)),
        (BernoulliSampler.logistic(Fraction(1, 2)), 1 / (1 + math.exp(0.5))),
        (BernoulliSampler.dyadic(3 << 54), 3 / 1024),
    ]
    n = 400_000
    for sampler, chance in cases:
        assert is_chance(sampler.sample_many(n, entropy).sum(), n, chance, ALPHA / 6)
        assert is_chance(
            sum(sampler.sample(entropy) for _ in range(20_000)), 20_000, chance, ALPHA / 6
        )
    # A chance cut to the eight bits of the first byte, 94/256 for 94.18/256, is too close to see
    # here; a chance cut to six bits is not.
    cut = BernoulliSampler.dyadic((math.floor(math.exp(-1) * 64)) << 58)
    swapped = BernoulliSampler.dyadic(2**64 - math.floor(math.exp(-1) * 2**64))
    assert catches(lambda: is_chance(cut.sample_many(n, entropy).sum(), n, math.exp(-1), ALPHA / 6))
    assert catches(
        lambda: is_chance(swapped.sample_many(n, entropy).sum(), n, math.exp(-1), ALPHA / 6)
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(("margin", "n"), [(2.0**-36, 200_000), (2.0**70, 4_000)])
def test_bernoulli_exp_samples_fit_if_exponents_differ(
    margin: float, n: int, entropy: SeededEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bernoulli, "_MARGIN", margin)
    xs = [Fraction(k, 8) for k in range(8)]

    def check(shift: float) -> bool:
        which = entropy.below_many(len(xs), n)
        x = np.array([float(value) for value in xs])[which] + shift
        heads = sample_bernoulli_exp_many(x, lambda i: xs[which[i]] + Fraction(shift), entropy)
        return all(
            is_chance(heads[which == k].sum(), (which == k).sum(), math.exp(-xs[k]), ALPHA / 20)
            for k in range(len(xs))
        )

    assert check(0.0)
    singles = [sample_bernoulli_exp(Fraction(3, 2), entropy) for _ in range(n // 10)]
    assert is_chance(sum(singles), len(singles), math.exp(-1.5), ALPHA / 20)
    assert catches(lambda: check(0.5))
