"""Bernoulli samplers: exact probabilities, ties, and floats as a filter."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.mechanisms import bernoulli
from shoal.mechanisms.bernoulli import (
    BernoulliSampler,
    sample_bernoulli_exp,
    sample_bernoulli_exp_many,
)
from shoal.mechanisms.exact import bound_exp, floor_scaled
from tests.unit.mechanisms.scripted import Scripted

exponents = st.fractions(min_value=Fraction(1, 2**40), max_value=90)


def word_of(x: Fraction, index: int = 0) -> int:
    """Return the index-th 64-bit word of the binary digits of exp(-x)."""
    return floor_scaled(lambda bits: bound_exp(-x, bits), 1 << 64 * (index + 1)) % 2**64


@given(x=exponents)
def test_probabilities_agree_with_floats(x: Fraction) -> None:
    assert float(BernoulliSampler.exponential(x).chance) == pytest.approx(
        math.exp(-x), rel=1e-14, abs=2.0**-64
    )
    assert float(BernoulliSampler.logistic(x).chance) == pytest.approx(
        1 / (1 + math.exp(x)), rel=1e-14, abs=2.0**-64
    )
    assert float(BernoulliSampler.twice_logistic(x).chance) == pytest.approx(
        2 / (1 + math.exp(x)), rel=1e-14, abs=2.0**-64
    )


def test_dyadic_probability_is_exact() -> None:
    assert BernoulliSampler.dyadic(3 << 61).chance == Fraction(3, 8)
    assert BernoulliSampler.dyadic(0).chance == 0


@pytest.mark.parametrize("numerator", [-1, 1 << 64])
def test_dyadic_rejects_probability_outside_unit_interval(numerator: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        BernoulliSampler.dyadic(numerator)


@pytest.mark.parametrize(
    "make",
    [BernoulliSampler.exponential, BernoulliSampler.logistic, BernoulliSampler.twice_logistic],
)
@pytest.mark.parametrize("x", [0, -1])
def test_rejects_exponent_that_is_not_positive(make: type[BernoulliSampler], x: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        make(Fraction(x))


def test_one_word_decides_unless_it_ties() -> None:
    coin = BernoulliSampler.exponential(Fraction(1))
    top = word_of(Fraction(1))
    assert coin.sample(Scripted(top - 1)) is True
    assert coin.sample(Scripted(top + 1)) is False


def test_tie_is_resolved_by_more_words() -> None:
    x = Fraction(1)
    first, second, third = (word_of(x, i) for i in range(3))
    coin = BernoulliSampler.exponential(x)
    assert coin.sample(Scripted(first, second - 1))
    assert not coin.sample(Scripted(first, second + 1))
    assert coin.sample(Scripted(first, second, third - 1))
    assert not coin.sample(Scripted(first, second, third + 1))


def test_dyadic_tie_is_false() -> None:
    coin = BernoulliSampler.dyadic(5)
    assert not coin.sample(Scripted(5))
    assert coin.sample(Scripted(4))


def test_sample_many_continues_after_tie_of_eight_bits() -> None:
    x = Fraction(1)
    first, second = word_of(x, 0), word_of(x, 1)
    byte, rest = first >> 56, first % 2**56
    script = [byte - 1, byte + 1, byte, byte, byte, byte]
    behind = [rest - 1, rest + 1, rest, rest]
    # The 56 bits are the upper ones of a 64-bit word; the lower eight must not matter.
    entropy = Scripted(*script, *(word << 8 | 0xFF for word in behind), second - 1, second + 1)
    assert BernoulliSampler.exponential(x).sample_many(6, entropy).tolist() == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert entropy.left == []


def test_sample_many_of_dyadic_sampler_stops_at_64_bits() -> None:
    numerator = 0x80 << 56 | 7
    entropy = Scripted(0x80, 0x80, 6 << 8, 7 << 8)
    assert BernoulliSampler.dyadic(numerator).sample_many(2, entropy).tolist() == [True, False]
    assert BernoulliSampler.dyadic(numerator).sample_many(2, Scripted(0x7F, 0x81)).tolist() == [
        True,
        False,
    ]


def test_sample_many_of_zero_is_empty() -> None:
    assert BernoulliSampler.dyadic(1).sample_many(0, SeededEntropy(0)).size == 0


class TestFlipExp:
    """Float filter and exact fallback."""

    xs = (
        Fraction(0),
        Fraction(1, 10**9),
        Fraction(1, 3),
        Fraction(1),
        Fraction(7, 2),
        Fraction(30),
        Fraction(44),
        Fraction(90),
        Fraction(900),
    )

    def many(self, xs: tuple[Fraction, ...], *words: int) -> list[bool]:
        return sample_bernoulli_exp_many(
            np.array([float(x) for x in xs]), lambda i: xs[i], Scripted(*words)
        ).tolist()

    @pytest.mark.parametrize("margin", [2.0**-36, 2.0**70])
    def test_margin_does_not_change_result(
        self, margin: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bernoulli, "_MARGIN_WORDS", margin)
        words = SeededEntropy(3).words(9 * 60, np.uint64).tolist()
        edges = [max(0, min(2**64 - 1, word_of(x) + d)) for x in self.xs[1:] for d in (-1, 1)]
        for word in words[:60] + edges:
            # A second word resolves ties; 0 is True unless the following digits are 0 too.
            want = [x == 0 or word < word_of(x) for x in self.xs]
            for x, heads in zip(self.xs, want, strict=True):
                if x == 0 or word != word_of(x):
                    assert sample_bernoulli_exp(x, Scripted(word)) is heads
                    assert self.many((x,), word) == [heads]

    def test_exact_and_vectorised_paths_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = tuple(Fraction(k, 37) for k in range(400))
        floats = np.array([float(value) for value in x])
        filtered = sample_bernoulli_exp_many(
            floats, lambda i: pytest.fail("not a toss of these is close"), SeededEntropy(11)
        )
        monkeypatch.setattr(bernoulli, "_MARGIN", 2.0**70)
        assert (
            sample_bernoulli_exp_many(floats, lambda i: x[i], SeededEntropy(11)).tolist()
            == filtered.tolist()
        )

    def test_ties_are_resolved_by_further_words(self) -> None:
        x = Fraction(1, 3)
        first, second = word_of(x, 0), word_of(x, 1)
        for toss in (
            lambda s: sample_bernoulli_exp(x, s),
            lambda s: bool(sample_bernoulli_exp_many(np.array([1 / 3]), lambda i: x, s)[0]),
        ):
            assert toss(Scripted(first, second - 1)) is True
            assert toss(Scripted(first, second + 1)) is False

    def test_probability_one_is_always_true(self) -> None:
        assert sample_bernoulli_exp(Fraction(0), Scripted(2**64 - 1))
        assert self.many((Fraction(0),), 2**64 - 1) == [True]

    def test_probability_below_64_bits_can_be_true(self) -> None:
        x = Fraction(60)
        assert word_of(x) == 0
        second = word_of(x, 1)
        assert second > 0
        assert sample_bernoulli_exp(x, Scripted(0, second - 1))
        assert self.many((x,), 0, second - 1) == [True]
        assert self.many((x,), 0, second + 1) == [False]

    @given(
        x=st.fractions(min_value=0, max_value=64),
        d=st.sampled_from([-(2.0**-38), 0.0, 2.0**-38]),
        delta=st.integers(-(2**40), 2**40),
    )
    def test_largest_allowed_float_error_has_no_effect(
        self, x: Fraction, d: float, delta: int
    ) -> None:
        word = max(0, min(2**64 - 1, (word_of(x) if x else 2**64 - 1) + delta))
        if x == 0 or word != word_of(x):
            found = sample_bernoulli_exp_many(
                np.array([max(0.0, float(x) + d)]), lambda i: x, Scripted(word)
            )
            assert found.tolist() == [x == 0 or word < word_of(x)]
