"""The clones bound: against enumeration, published numbers, and exact binomials."""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Decimal, localcontext

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.privacy.amplification import (
    MAX_MESSAGES,
    _make_clone_distribution,
    amplify,
    binomial_pmf,
)

TABLE = {
    # local epsilon: central epsilon for n = 3,000, 10,000, 48,842 and 1,000,000, at delta 1e-6
    0.5: [0.0391, 0.0204, 0.0086, 0.0016],
    1.0: [0.101, 0.0530, 0.0225, 0.0043],
    2.0: [0.297, 0.155, 0.0662, 0.0130],
    4.0: [1.29, 0.601, 0.250, 0.0493],
}
SIZES = [3_000, 10_000, 48_842, 1_000_000]


def compute_delta(epsilon: float, epsilon_local: float, n: int) -> float:
    """Return the delta of the bound at a central epsilon."""
    return _make_clone_distribution(epsilon_local, n).delta_at(epsilon)


def response(k: int, epsilon: float, value: int) -> list[float]:
    """Return the distribution of k-ary random response."""
    total = math.exp(epsilon) + k - 1
    return [(math.exp(epsilon) if answer == value else 1.0) / total for answer in range(k)]


def histogram_law(laws: list[list[float]]) -> dict[tuple[int, ...], float]:
    """Return the distribution of the counts of answers, which is all that a batch shows."""
    law = {(0,) * len(laws[0]): 1.0}
    for one in laws:
        longer: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, chance in law.items():
            for answer, p in enumerate(one):
                longer[(*counts[:answer], counts[answer] + 1, *counts[answer + 1 :])] += chance * p
        law = longer
    return law


def true_delta(k: int, epsilon_local: float, others: list[int], epsilon: float) -> float:
    """Return delta of the shuffled batch between values 0 and 1 of one person."""
    crowd = [response(k, epsilon_local, value) for value in others]
    p, q = (histogram_law([*crowd, response(k, epsilon_local, value)]) for value in (0, 1))
    return math.fsum(
        max(0.0, chance - math.exp(epsilon) * q[counts]) for counts, chance in p.items()
    )


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("epsilon_local", [0.3, 1.0, 2.0, 4.0])
def test_shuffled_random_response_does_not_exceed_bound(k, epsilon_local):
    n = {2: 14, 3: 8, 4: 6}[k]
    crowds = {tuple([value] * (n - 1)) for value in range(k)} | {
        tuple(i % k for i in range(n - 1)),
        tuple(i % 2 for i in range(n - 1)),
    }
    for size in (2, 4, n):
        for share in (0.0, 0.1, 0.4, 0.8, 0.99):
            epsilon = share * epsilon_local
            worst = max(
                true_delta(k, epsilon_local, list(others[: size - 1]), epsilon) for others in crowds
            )
            assert 0 < worst <= compute_delta(epsilon, epsilon_local, size)


def test_delta_equals_exact_sum_of_theorem():
    epsilon_local, n, epsilon = 1.5, 9, 0.4
    gamma, a = math.exp(-epsilon_local), 1 / (1 + math.exp(-epsilon_local))
    p: dict[tuple[int, int], float] = defaultdict(float)
    q: dict[tuple[int, int], float] = defaultdict(float)
    for c in range(n):
        for i in range(c + 1):
            chance = (
                math.comb(n - 1, c) * gamma**c * (1 - gamma) ** (n - 1 - c) * math.comb(c, i) / 2**c
            )
            for bit, weight in ((1, a), (0, 1 - a)):
                p[i + bit, c - i + 1 - bit] += chance * weight
                q[i + 1 - bit, c - i + bit] += chance * weight
    exact = math.fsum(max(0.0, p[key] - math.exp(epsilon) * q[key]) for key in p)
    assert exact <= compute_delta(epsilon, epsilon_local, n) <= exact * (1 + 1e-7)


@pytest.mark.untraced
@pytest.mark.parametrize("epsilon_local", TABLE)
def test_published_table_is_reproduced(epsilon_local):
    for n, general in zip(SIZES, TABLE[epsilon_local], strict=True):
        assert amplify(epsilon_local, n, 1e-6) == pytest.approx(general, rel=0.04)
        if general >= 0.01:
            assert amplify(epsilon_local, n, 1e-6) == pytest.approx(general, rel=0.005)


def test_amplify_keeps_delta_and_is_close_to_smallest():
    for n in (1_000, 50_000):
        epsilon = amplify(1.0, n, 1e-6)
        assert compute_delta(epsilon, 1.0, n) <= 1e-6 < compute_delta(epsilon * (1 - 1e-5), 1.0, n)


def test_amplify_of_small_batch_is_local_epsilon():
    assert amplify(1.0, 1, 1e-6) == 1.0
    assert amplify(4.0, 10, 1e-6) == 4.0
    assert amplify(64.0, 10_000, 1e-6) == 64.0


def test_amplify_may_fall_to_one_grain():
    assert 0 < amplify(0.01, 10**7, 1e-2) <= 1e-12


def test_epsilon_falls_with_number_of_messages():
    found = [amplify(1.0, n, 1e-6) for n in (1, 30, 300, 3_000, 30_000, 300_000)]
    assert found == sorted(found, reverse=True)
    assert all(amplify(2.0, n, 1e-6) <= 2.0 for n in (10, 100, 1_000))


def test_amplify_handles_ten_million_messages():
    assert amplify(1.0, 10**7, 1e-6) == pytest.approx(0.0012, rel=0.02)
    assert compute_delta(1e-3, 1.0, MAX_MESSAGES) == compute_delta(1e-3, 1.0, 10 * MAX_MESSAGES) > 0


def test_unlikely_numbers_of_clones_are_counted():
    # For each likely number of clones the sum vanishes in floats; the probability of an unlikely
    # number remains.
    assert 0 < compute_delta(0.5, 1.0, 10**6) < 1e-25


def test_delta_falls_with_epsilon_and_is_zero_at_local_epsilon():
    deltas = [compute_delta(epsilon, 1.0, 500) for epsilon in np.linspace(0, 1, 21)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] > 0.01
    assert deltas[-1] == compute_delta(3.0, 1.0, 500) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: amplify(0.0, 10, 1e-6),
        lambda: amplify(65.0, 10, 1e-6),
        lambda: amplify(math.nan, 10, 1e-6),
        lambda: amplify(1.0, 0, 1e-6),
        lambda: amplify(1.0, 10, 0.0),
        lambda: amplify(1.0, 10, 1.0),
        lambda: amplify(1.0, 10, math.nan),
    ],
)
def test_amplify_rejects_invalid_arguments(call):
    with pytest.raises(SpecError, match="SHUFFLE-001"):
        call()


@pytest.mark.parametrize(
    ("n", "p"), [(0, 0.5), (1, 0.25), (2, 0.5), (20, 0.37), (300, 0.01), (20_000, 0.5)]
)
def test_binomial_pmf_is_exact_to_eleven_digits(n, p):
    middle, reach = int(n * p), 12 * math.sqrt(n * p * (1 - p)) + 2
    some = sorted(
        {
            k
            for k in np.linspace(middle - reach, middle + reach, 41).astype(int).tolist()
            if 0 <= k <= n
        }
    )
    found = binomial_pmf(np.array(some), np.int64(n), p, 1 - p)
    with localcontext() as context:
        context.prec = 60
        exact = [
            Decimal(math.comb(n, k)) * Decimal(p) ** k * (1 - Decimal(p)) ** (n - k) for k in some
        ]
    assert all(
        abs(Decimal(got) / right - 1) < Decimal("1e-11")
        for got, right in zip(found.tolist(), exact, strict=True)
    )


def test_binomial_pmf_is_exact_for_large_n():
    # Stirling's series to 60 digits as the oracle.
    def log_factorial(k: int) -> Decimal:
        x = Decimal(k)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        return (
            (x + Decimal("0.5")) * x.ln()
            - x
            + (2 * pi).ln() / 2
            + 1 / (12 * x)
            - 1 / (360 * x**3)
            + 1 / (1260 * x**5)
        )

    n, p = 10**8, 0.36787944117144233
    with localcontext() as context:
        context.prec = 60
        for k in (36_787_944, 36_787_944 + 50_000, 36_787_944 - 55_000):
            log = log_factorial(n) - log_factorial(k) - log_factorial(n - k)
            exact = (log + k * Decimal(p).ln() + (n - k) * (1 - Decimal(p)).ln()).exp()
            [found] = binomial_pmf(np.array([k]), np.int64(n), p, 1 - p).tolist()
            assert abs(Decimal(found) / exact - 1) < Decimal("2e-11")
