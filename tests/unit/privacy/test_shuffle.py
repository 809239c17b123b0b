"""The clones bound: against enumeration of shuffled random response, the published figures, and exact binomials."""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Decimal, localcontext

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.privacy.shuffle import MAX_EXACT, MAX_MESSAGES, amplify, amplify_binary, binomial_pmf, delta_of

TABLE = {
    # local epsilon: (any randomiser / binary) for n = 3,000, 10,000, 48,842 and 1,000,000, at delta 1e-6
    0.5: [(0.0391, 0.0347), (0.0204, 0.0181), (0.0086, 0.0076), (0.0016, 0.0014)],
    1.0: [(0.101, 0.083), (0.0530, 0.0432), (0.0225, 0.0183), (0.0043, 0.0035)],
    2.0: [(0.297, 0.219), (0.155, 0.114), (0.0662, 0.0488), (0.0130, 0.0095)],
    4.0: [(1.29, 0.822), (0.601, 0.411), (0.250, 0.174), (0.0493, 0.0343)],
}
SIZES = [3_000, 10_000, 48_842, 1_000_000]


def response(k: int, epsilon: float, value: int) -> list[float]:
    """The law of k-ary random response."""
    total = math.exp(epsilon) + k - 1
    return [(math.exp(epsilon) if answer == value else 1.0) / total for answer in range(k)]


def histogram_law(laws: list[list[float]]) -> dict[tuple[int, ...], float]:
    """The law of how often each answer occurs: all that a shuffled batch shows."""
    law = {(0,) * len(laws[0]): 1.0}
    for one in laws:
        longer: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, chance in law.items():
            for answer, p in enumerate(one):
                longer[(*counts[:answer], counts[answer] + 1, *counts[answer + 1 :])] += chance * p
        law = longer
    return law


def true_delta(k: int, epsilon_local: float, others: list[int], epsilon: float) -> float:
    """Delta of the shuffled batch between values 0 and 1 of one person, by enumeration."""
    crowd = [response(k, epsilon_local, value) for value in others]
    p, q = (histogram_law([*crowd, response(k, epsilon_local, value)]) for value in (0, 1))
    return math.fsum(max(0.0, chance - math.exp(epsilon) * q[counts]) for counts, chance in p.items())


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("epsilon_local", [0.3, 1.0, 2.0, 4.0])
def test_no_shuffled_random_response_exceeds_the_bound(k, epsilon_local):
    n = {2: 14, 3: 8, 4: 6}[k]
    crowds = {tuple([value] * (n - 1)) for value in range(k)} | {tuple(i % k for i in range(n - 1)), tuple(i % 2 for i in range(n - 1))}
    for size in (2, 4, n):
        for share in (0.0, 0.1, 0.4, 0.8, 0.99):
            epsilon = share * epsilon_local
            worst = max(true_delta(k, epsilon_local, list(others[: size - 1]), epsilon) for others in crowds)
            assert 0 < worst <= delta_of(epsilon, epsilon_local, size)
            if k == 2:
                assert worst <= delta_of(epsilon, epsilon_local, size, is_binary=True) <= delta_of(epsilon, epsilon_local, size)


@pytest.mark.parametrize("epsilon_local", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 15])
def test_for_one_bit_the_figure_is_the_worst_over_all_data_of_the_others(epsilon_local, n):
    for share in (0.0, 0.3, 0.9):
        crowds = [[1] * ones + [0] * (n - 1 - ones) for ones in range(n)]
        worst = max(true_delta(2, epsilon_local, others, share * epsilon_local) for others in crowds)
        assert worst <= delta_of(share * epsilon_local, epsilon_local, n, is_binary=True) <= worst * (1 + 1e-7) + 1e-9


@pytest.mark.untraced
def test_beyond_the_exact_crowds_the_figure_never_rises():
    sizes = (MAX_EXACT - 1, MAX_EXACT, MAX_EXACT + 1, MAX_EXACT + 300, 3 * MAX_EXACT)
    figures = [amplify_binary(2.0, n, 1e-6) for n in sizes]
    assert figures == sorted(figures, reverse=True)
    assert figures[1] == figures[2]
    assert figures[1] < amplify(2.0, MAX_EXACT, 1e-6)


def test_the_pair_of_the_theorem_is_summed_exactly():
    epsilon_local, n, epsilon = 1.5, 9, 0.4
    gamma, a = math.exp(-epsilon_local), 1 / (1 + math.exp(-epsilon_local))
    p: dict[tuple[int, int], float] = defaultdict(float)
    q: dict[tuple[int, int], float] = defaultdict(float)
    for c in range(n):
        for i in range(c + 1):
            chance = math.comb(n - 1, c) * gamma**c * (1 - gamma) ** (n - 1 - c) * math.comb(c, i) / 2**c
            for bit, weight in ((1, a), (0, 1 - a)):
                p[i + bit, c - i + 1 - bit] += chance * weight
                q[i + 1 - bit, c - i + bit] += chance * weight
    exact = math.fsum(max(0.0, p[key] - math.exp(epsilon) * q[key]) for key in p)
    assert exact <= delta_of(epsilon, epsilon_local, n) <= exact * (1 + 1e-7)


@pytest.mark.untraced
@pytest.mark.parametrize("epsilon_local", TABLE)
def test_the_measured_table_is_reproduced(epsilon_local):
    for n, (general, binary) in zip(SIZES, TABLE[epsilon_local], strict=True):
        assert amplify(epsilon_local, n, 1e-6) == pytest.approx(general, rel=0.04)
        assert amplify_binary(epsilon_local, n, 1e-6) == pytest.approx(binary, rel=0.04)
        if general >= 0.01:
            assert amplify(epsilon_local, n, 1e-6) == pytest.approx(general, rel=0.005)


def test_the_answer_keeps_to_its_delta_and_is_close_to_the_smallest():
    for n in (1_000, 50_000):
        epsilon = amplify(1.0, n, 1e-6)
        assert delta_of(epsilon, 1.0, n) <= 1e-6 < delta_of(epsilon * (1 - 1e-5), 1.0, n)


def test_a_small_crowd_hides_nobody():
    assert amplify(1.0, 1, 1e-6) == 1.0
    assert amplify(4.0, 10, 1e-6) == 4.0
    assert amplify(64.0, 10_000, 1e-6) == 64.0
    assert amplify_binary(4.0, 3, 1e-6) == 4.0


def test_a_crowd_may_hide_all_but_a_grain():
    assert 0 < amplify(0.01, 10**7, 1e-2) <= 1e-12


def test_more_people_hide_better_and_binary_is_better_than_any():
    found = [amplify(1.0, n, 1e-6) for n in (1, 30, 300, 3_000, 30_000, 300_000)]
    assert found == sorted(found, reverse=True)
    assert all(amplify_binary(2.0, n, 1e-6) <= amplify(2.0, n, 1e-6) <= 2.0 for n in (10, 100, 1_000))


def test_ten_million_messages_and_more():
    assert amplify(1.0, 10**7, 1e-6) == pytest.approx(0.0012, rel=0.02)
    assert delta_of(1e-3, 1.0, MAX_MESSAGES) == delta_of(1e-3, 1.0, 10 * MAX_MESSAGES) > 0


def test_unlikely_crowds_are_not_forgotten():
    # Every likely crowd is large enough to make the sum vanish in floats; the chance of an unlikely one remains.
    assert 0 < delta_of(0.5, 1.0, 10**6) < 1e-25


def test_delta_falls_with_epsilon_and_ends_at_the_local_one():
    deltas = [delta_of(epsilon, 1.0, 500) for epsilon in np.linspace(0, 1, 21)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] > 0.01
    assert deltas[-1] == delta_of(3.0, 1.0, 500) == delta_of(1.0, 1.0, 50, is_binary=True) == 0.0
    assert delta_of(0.9, 1.0, 50, is_binary=True) > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: amplify(0.0, 10, 1e-6),
        lambda: amplify(65.0, 10, 1e-6),
        lambda: amplify(math.nan, 10, 1e-6),
        lambda: amplify(1.0, 0, 1e-6),
        lambda: amplify(1.0, 10, 0.0),
        lambda: amplify_binary(1.0, 10, 1.0),
        lambda: amplify(1.0, 10, math.nan),
        lambda: delta_of(-0.1, 1.0, 10),
        lambda: delta_of(math.inf, 1.0, 10),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(SpecError, match="SHUFFLE-001"):
        call()


@pytest.mark.parametrize(("n", "p"), [(0, 0.5), (1, 0.25), (2, 0.5), (20, 0.37), (300, 0.01), (20_000, 0.5)])
def test_binomial_chances_are_exact_to_eleven_digits(n, p):
    middle, reach = int(n * p), 12 * math.sqrt(n * p * (1 - p)) + 2
    some = sorted({k for k in np.linspace(middle - reach, middle + reach, 41).astype(int).tolist() if 0 <= k <= n})
    found = binomial_pmf(np.array(some), np.int64(n), p, 1 - p)
    with localcontext() as context:
        context.prec = 60
        exact = [Decimal(math.comb(n, k)) * Decimal(p) ** k * (1 - Decimal(p)) ** (n - k) for k in some]
    assert all(abs(Decimal(got) / right - 1) < Decimal("1e-11") for got, right in zip(found.tolist(), exact, strict=True))


def test_binomial_chances_hold_for_large_crowds():
    # Stirling's series to 60 digits as the oracle.
    def log_factorial(k: int) -> Decimal:
        x = Decimal(k)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        return (x + Decimal("0.5")) * x.ln() - x + (2 * pi).ln() / 2 + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)

    n, p = 10**8, 0.36787944117144233
    with localcontext() as context:
        context.prec = 60
        for k in (36_787_944, 36_787_944 + 50_000, 36_787_944 - 55_000):
            log = log_factorial(n) - log_factorial(k) - log_factorial(n - k)
            exact = (log + k * Decimal(p).ln() + (n - k) * (1 - Decimal(p)).ln()).exp()
            [found] = binomial_pmf(np.array([k]), np.int64(n), p, 1 - p).tolist()
            assert abs(Decimal(found) / exact - 1) < Decimal("2e-11")
