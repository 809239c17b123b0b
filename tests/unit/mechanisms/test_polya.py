"""Polya noise: the distribution of the algorithm is the negative binomial."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms import bernoulli, polya
from shoal.mechanisms.laplace import get_geometric_sampler
from shoal.mechanisms.polya import PolyaSampler, _cdf_bits, _draw_blocks, get_polya_sampler
from tests.unit.mechanisms.scripted import Scripted

DIGITS = 80
RATES = [
    Fraction(1, 10),
    Fraction(1, 8),
    Fraction(2, 17),
    Fraction(1),
    Fraction(7, 3),
    Fraction(1, 100),
]
NEVER, ALWAYS = (1 << 64) - 1, 0


def decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / x.denominator


def place(sampler: PolyaSampler, k: int) -> tuple[int, int]:
    """Return the octave and block (0 for none) from which a point of size k is drawn."""
    width = 1 << sampler._n_octaves
    return (k.bit_length() - 1, 0) if k < width else (sampler._n_octaves, k // width)


def intensity(sampler: PolyaSampler, k: int) -> Decimal:
    """Return the mean number of kept points of size k.

    It is the number of candidates times the probabilities of the place, of k there, and of
    acceptance.
    """
    octave, q = place(sampler, k)
    share = Fraction(1, sampler._n_octaves + 1) * Fraction(1, 2**q) / (1 << octave)
    bits = 400
    return (
        decimal(sampler.mean_candidates * share)
        * sampler._make_keep_sampler(k, octave, q)._prefix(bits)
        / (1 << bits)
    )


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shares", [Fraction(1, 7), Fraction(1, 2), Fraction(9, 10)])
def test_distribution_of_points_is_negative_binomial(rate: Fraction, shares: Fraction) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        sampler = PolyaSampler(rate, shares)
        a = (-decimal(rate)).exp()
        n = 40
        rates = [Decimal(0), *(intensity(sampler, k) for k in range(1, n))]
        # The distribution of a sum of Poisson points of sizes k (Panjer), without P(0), against
        # Gamma(x + r) / (Gamma(r) x!) a^x.
        found, want = [Decimal(1)], [Decimal(1)]
        for x in range(1, n):
            found.append(sum(k * rates[k] * found[x - k] for k in range(1, x + 1)) / x)
            want.append(want[-1] * a * (decimal(shares) + x - 1) / x)
        assert max(abs(f / w - 1) for f, w in zip(found, want, strict=True)) < Decimal(10) ** -30


@pytest.mark.parametrize("rate", RATES[:-1])
def test_mean_of_points_gives_probability_of_zero(rate: Fraction) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        shares = Fraction(1, 3)
        sampler = PolyaSampler(rate, shares)
        last = math.ceil(72 / rate)
        total = sum(intensity(sampler, k) for k in range(1, last))
        want = -decimal(shares) * (1 - (-decimal(rate)).exp()).ln()
        assert abs(total / want - 1) < Decimal(10) ** -30


@pytest.mark.parametrize("rate", [*RATES, Fraction(1, 2**40), Fraction(1, 10**5), Fraction(64)])
def test_keep_probabilities_are_below_one(rate: Fraction) -> None:
    sampler = PolyaSampler(rate, Fraction(1, 2))
    width = 1 << sampler._n_octaves
    assert rate * width >= 1
    assert width == 1 or rate * width < 2
    for octave in range(sampler._n_octaves):
        assert 0 <= sampler._make_keep_sampler(1 << octave, octave, 0)._prefix(64) < 1 << 64
    for q in (*range(1, 12), 100, 5000):
        assert (
            sampler._make_keep_sampler(q * width, sampler._n_octaves, q)._prefix(64)
            <= (2 / math.e) ** q / q * 2**64
        )
    assert sampler._make_keep_sampler(3 * width, sampler._n_octaves, 3).chance > 0 or rate > 10


def test_draw_many_uses_entropy_in_order() -> None:
    sampler = PolyaSampler(Fraction(1, 10), Fraction(1, 5))
    assert sampler.mean_candidates == 1
    four = _cdf_bits(4, 64) - 1
    zero = 0
    script = [
        *(
            four,
            zero,
            zero,
        ),  # two variates: two numbers of mean 1, and one more of which nothing is kept
        *(0, 3, 4, 4),  # octaves 0 and 3, and twice the blocks beyond
        *(128, 0),  # the first block is 1; the second continues
        255,  # and is 2
        *(5, 5, 3, 1 << 60 | 7),  # sizes: 1 + 0, 8 + 5, 16 + 3, 32 + 7
        *(ALWAYS, NEVER, ALWAYS, ALWAYS),
        *(1, 0, 1),  # owners of those that are kept
    ]
    entropy = Scripted(*script)
    assert sampler.draw_many(2, entropy).tolist() == [19, 1 + 39]
    assert entropy.left == []


def test_large_rate_has_blocks_of_size_one() -> None:
    sampler = PolyaSampler(Fraction(3), Fraction(1, 2))
    assert (sampler._n_octaves, sampler.mean_candidates) == (0, Fraction(1, 2))
    two = _cdf_bits(2, 64) - 1
    entropy = Scripted(two, 0, 8, 9, 0, 255, 255, 77, 78, ALWAYS, ALWAYS, 0, 1)
    # Two variates have a mean of 1 candidate: one number, and one more of which none is kept.
    # Blocks 2 and 1 are the sizes themselves.
    assert sampler.draw_many(2, entropy).tolist() == [2, 1]
    assert entropy.left == []


def test_blocks_are_geometric_without_limit() -> None:
    is_beyond = np.array([True, False, True])
    assert _draw_blocks(is_beyond, Scripted(127, 128, *[0] * 299, 200)).tolist() == [301, 0, 1]
    assert _draw_blocks(np.zeros(2, bool), Scripted()).tolist() == [0, 0]


def test_exact_and_vectorised_paths_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [
        (Fraction(1, 10), Fraction(1, 7)),
        (Fraction(1, 10**5), Fraction(2, 3)),
        (Fraction(5, 2), Fraction(1, 2)),
    ]
    filtered = [PolyaSampler(*each).draw_many(150, SeededEntropy(6)).tolist() for each in settings]
    monkeypatch.setattr(bernoulli, "_MARGIN", 2.0**70)
    monkeypatch.setattr(bernoulli, "_MARGIN_WORDS", 2.0**70)
    assert [
        PolyaSampler(*each).draw_many(150, SeededEntropy(6)).tolist() for each in settings
    ] == filtered


@pytest.mark.parametrize("rate", [*RATES, Fraction(1, 2**40), Fraction(1, 3 * 10**5), Fraction(64)])
def test_float_probability_is_within_margin(rate: Fraction) -> None:
    sampler = PolyaSampler(rate, Fraction(1, 2))
    n_octaves = sampler._n_octaves
    places = [(octave, 0) for octave in range(n_octaves)] + [
        (n_octaves, q) for q in (1, 2, 3, 10, 40, 200, 220, 5000)
    ]
    points = [
        (max(q, 1) * (1 << octave) + rest, octave, q)
        for octave, q in places
        for rest in {0, (1 << octave) // 3, (1 << octave) - 1}
    ]
    k, octave, q = np.array(points).T
    for near, point in zip(
        sampler._approximate_chances(k, np.left_shift(1, octave), q).tolist(), points, strict=True
    ):
        exact = Fraction(sampler._make_keep_sampler(*point)._prefix(200), 1 << 200)
        assert abs(Fraction(near) - exact) <= exact / 2**42 or max(
            Fraction(near), exact
        ) < Fraction(1, 2**70)


def test_whole_shares_are_geometric() -> None:
    rate = Fraction(1, 9)
    entropy = SeededEntropy(2)
    want = get_geometric_sampler(rate).draw_many(50, entropy) + get_geometric_sampler(
        rate
    ).draw_many(50, entropy)
    assert PolyaSampler(rate, Fraction(2)).draw_many(50, SeededEntropy(2)).tolist() == want.tolist()
    with_a_part = PolyaSampler(rate, Fraction(9, 4)).draw_many(50, SeededEntropy(2))
    assert (with_a_part >= want).all()
    assert (
        with_a_part.tolist()
        == (want + PolyaSampler(rate, Fraction(1, 4)).draw_many(50, entropy)).tolist()
    )


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_draw_many_returns_n_numbers_in_blocks(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polya, "_BLOCK", 100)
    drawn = PolyaSampler(Fraction(1, 100), Fraction(4, 5)).draw_many(n, SeededEntropy(2))
    assert drawn.shape == (n,)
    assert (drawn >= 0).all()
    # A variate is 0 with probability 0.025: every part of the vector was reached.
    assert all((part > 0).mean() > 0.8 for part in np.array_split(drawn, 10) if part.size > 50)


def test_mean_and_variance_match_distribution() -> None:
    for rate, shares in [
        (Fraction(1, 10), Fraction(1, 7)),
        (Fraction(1, 1000), Fraction(5, 2)),
        (Fraction(1, 2**40), Fraction(1, 3)),
    ]:
        drawn = PolyaSampler(rate, shares).draw_many(40_000, SeededEntropy(5)).astype(float)
        a = math.exp(-rate)
        mean, variance = (
            float(shares) * a / -math.expm1(-rate),
            float(shares) * a / math.expm1(-rate) ** 2,
        )
        assert abs(drawn.mean() - mean) < 6 * math.sqrt(variance / drawn.size)
        assert drawn.var() == pytest.approx(variance, rel=0.15)
        assert drawn.max() < 2**47


def test_samplers_are_cached() -> None:
    assert get_polya_sampler(Fraction(1, 7), Fraction(1, 2)) is get_polya_sampler(
        Fraction(2, 14), Fraction(2, 4)
    )


def test_rejects_noise_beyond_64_bits_and_no_shares() -> None:
    with pytest.raises(MechanismError, match="MECH-001"):
        PolyaSampler(Fraction(1, 1 << 41), Fraction(1, 2))
    for shares in (Fraction(0), Fraction(-1, 2)):
        with pytest.raises(MechanismError, match="MECH-001"):
            PolyaSampler(Fraction(1, 2), shares)
