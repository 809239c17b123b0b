"""Noise in shares: distribution and cost of the sum, and noisy max by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.laplace import DiscreteLaplace, get_geometric_sampler
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.mechanisms.polya import get_polya_sampler
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.events import Relation, Scope, Unit
from tests.statistical.distributions import geometric, laplace, noisy_max

ADD_REMOVE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
REPLACE = Scope(Unit.RECORD, Relation.REPLACE, "the miner and up to 3 colluding databases")


def shares_law(rate: float, shares: float, n: int) -> np.ndarray:
    """Return P(0), ..., P(n - 1) of one-sided noise of a number of shares."""
    return np.asarray(stats.nbinom.pmf(np.arange(n), shares, -math.expm1(-rate)))


def worst_log_ratio(
    choice: Callable[[tuple[int, ...]], np.ndarray],
    levels: tuple[int, ...],
    moves: range,
    n_candidates: int,
) -> float:
    """Search all score vectors of the given levels, all neighbours of each, and all winners."""
    return max(
        float(
            np.abs(
                np.log(choice(scores))
                - np.log(choice(tuple(s + m for s, m in zip(scores, move, strict=True))))
            ).max()
        )
        for scores in itertools.product(levels, repeat=n_candidates)
        for move in itertools.product(moves, repeat=n_candidates)
    )


class TestLaw:
    """Sums of any number of shares, by convolution."""

    @pytest.mark.parametrize("m", [1, 2, 3, 7])
    @pytest.mark.parametrize("rate", [0.2, 1.0])
    def test_n_honest_shares_are_geometric_and_laplace(self, m: int, rate: float) -> None:
        n = math.ceil(45 / rate)
        side = np.array([1.0])
        for _ in range(m):
            side = np.convolve(side, shares_law(rate, 1 / m, n))[:n]
        assert side == pytest.approx(geometric(rate, n), rel=1e-9, abs=1e-18)
        both = np.convolve(side, side[::-1])[n - 1 - n // 4 : n + n // 4]
        assert both == pytest.approx(laplace(rate, n // 4), rel=1e-9)

    @pytest.mark.parametrize("n_shares", [7, 8, 10, 20])
    def test_more_shares_do_not_cost_more(self, n_shares: int) -> None:
        rate, m = 0.5, 7
        n = 200
        side = shares_law(rate, n_shares / m, n)
        law = np.convolve(side, side[::-1])[n - 40 : n + 39]
        worst = float(np.abs(np.diff(np.log(law))).max())
        assert worst == pytest.approx(rate, abs=1e-9) if n_shares == m else worst < rate

    @pytest.mark.parametrize("n_shares", [1, 6])
    def test_fewer_shares_exceed_epsilon(self, n_shares: int) -> None:
        rate, m = 0.5, 7
        n = 200
        side = shares_law(rate, n_shares / m, n)
        law = np.convolve(side, side[::-1])[n - 40 : n + 39]
        assert float(np.abs(np.diff(np.log(law))).max()) > rate


class TestSharedLaplace:
    def test_rate_follows_from_sensitivity_of_query(self) -> None:
        noise = DistributedLaplace(0.5, CellCounts(n_tables=3, max_rows=2), REPLACE, 6)
        assert (
            noise.rate
            == DiscreteLaplace(0.5, CellCounts(n_tables=3, max_rows=2), REPLACE).rate
            == Fraction(1, 24)
        )
        event = noise.event()
        assert event.mechanism == "laplace-shares"
        assert (event.epsilon, event.delta, event.scope) == (0.5, 0.0, REPLACE)
        assert event.parameters == {"sensitivity": 12.0, "scale": 24.0, "n_honest": 6}
        assert compose_sequential([event, event]).epsilon == 1.0

    def test_share_is_difference_of_two_polya_variables(self) -> None:
        noise = DistributedLaplace(0.2, CellCounts(), ADD_REMOVE, 4)
        sides = get_polya_sampler(Fraction(1, 5), Fraction(1, 4)).draw_many(120, SeededEntropy(1))
        assert noise.draw_share(60, SeededEntropy(1)).tolist() == (sides[:60] - sides[60:]).tolist()
        assert (sides[:60] != sides[60:]).any()

    def test_draw_sum_draws_all_shares_together(self) -> None:
        noise = DistributedLaplace(0.2, CellCounts(), ADD_REMOVE, 4)
        sides = get_polya_sampler(Fraction(1, 5), Fraction(9, 4)).draw_many(120, SeededEntropy(1))
        assert (
            noise.draw_sum(60, 9, SeededEntropy(1)).tolist() == (sides[:60] - sides[60:]).tolist()
        )

    def test_n_honest_of_one_gives_full_noise(self) -> None:
        noise = DistributedLaplace(0.2, CellCounts(), ADD_REMOVE, 1)
        sides = get_geometric_sampler(Fraction(1, 5)).draw_many(120, SeededEntropy(1))
        assert noise.draw_share(60, SeededEntropy(1)).tolist() == (sides[:60] - sides[60:]).tolist()

    def test_draw_side_is_full_geometric_noise(self) -> None:
        want = get_geometric_sampler(Fraction(1, 5)).draw_many(60, SeededEntropy(1)).tolist()
        assert all(
            DistributedLaplace(0.2, CellCounts(), ADD_REMOVE, m)
            .draw_side(60, SeededEntropy(1))
            .tolist()
            == want
            for m in (1, 7)
        )

    @pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
    def test_variance_grows_with_shares(self, epsilon: float) -> None:
        noise = DistributedLaplace(epsilon, CellCounts(2), ADD_REMOVE, 7)
        whole = DiscreteLaplace(epsilon, CellCounts(2), ADD_REMOVE).variance()
        assert noise.variance() == noise.variance(7) == whole
        assert noise.variance(10) == pytest.approx(
            2 * stats.nbinom.var(10 / 7, -math.expm1(-epsilon / 2))
        )
        assert noise.variance(1) == pytest.approx(whole / 7)

    @pytest.mark.parametrize("n", [0, 1, 5])
    def test_draw_share_returns_n_numbers(self, n: int) -> None:
        noise = DistributedLaplace(1.0, CellCounts(), ADD_REMOVE, 3)
        for drawn in (
            noise.draw_share(n, SeededEntropy(1)),
            noise.draw_sum(n, 4, SeededEntropy(1)),
            noise.draw_side(n, SeededEntropy(1)),
        ):
            assert (drawn.shape, drawn.dtype) == ((n,), np.int64)

    def test_rejects_parameters_without_guarantee(self) -> None:
        for n_honest in (0, -3):
            with pytest.raises(MechanismError, match=r"MECH-001.*at least one share"):
                DistributedLaplace(1.0, CellCounts(), ADD_REMOVE, n_honest)
        for epsilon in (0.0, math.inf):
            with pytest.raises(MechanismError, match="MECH-001"):
                DistributedLaplace(epsilon, CellCounts(), ADD_REMOVE, 3)
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedLaplace(1e-9, CellCounts(10**4), ADD_REMOVE, 3)
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedLaplace(1.0, CellCounts(), ADD_REMOVE, 3).draw_sum(4, 0, SeededEntropy(1))


class TestSharedMax:
    @pytest.mark.parametrize("epsilon", [0.2, 1.0])
    @pytest.mark.parametrize(
        ("scope", "max_rows"), [(ADD_REMOVE, 1), (ADD_REMOVE, 2), (REPLACE, 1)]
    )
    def test_worst_log_ratio_over_neighbours_is_epsilon(
        self, epsilon: float, scope: Scope, max_rows: int
    ) -> None:
        m = 7
        noise = DistributedNoisyMax(epsilon, CountScore(max_rows), scope, m)
        rate = float(noise.rate)
        n = math.ceil(45 / rate)
        law = shares_law(rate, 1 / m, n)
        summed = np.array([1.0])
        for _ in range(m):
            summed = np.convolve(summed, law)[:n]
        moves = range(max_rows + 1) if scope is ADD_REMOVE else range(-max_rows, max_rows + 1)
        levels = (3, 4, 7)
        assert worst_log_ratio(
            lambda scores: noisy_max(scores, summed), levels, moves, 2
        ) == pytest.approx(epsilon, abs=1e-9)
        if epsilon == 1.0:
            assert worst_log_ratio(
                lambda scores: noisy_max(scores, summed), levels, moves, 3
            ) == pytest.approx(epsilon, abs=1e-9)

    def test_more_shares_do_not_cost_more_and_fewer_do(self) -> None:
        def worst(shares: float) -> float:
            law = shares_law(1.0, shares, 60)
            return worst_log_ratio(lambda scores: noisy_max(scores, law), (3, 4, 7), range(2), 2)

        assert worst(10 / 7) <= 1.0 + 1e-9 < worst(6 / 7)

    def test_monotone_rate_exceeds_epsilon_for_general_scores(
        self,
    ) -> None:
        def worst(scope: Scope, moves: range) -> float:
            law = geometric(float(DistributedNoisyMax(1.0, CountScore(), scope, 3).rate), 90)
            return worst_log_ratio(lambda scores: noisy_max(scores, law), (1, 2, 5), moves, 2)

        assert worst(REPLACE, range(2)) == pytest.approx(0.5, abs=1e-9)
        assert worst(ADD_REMOVE, range(-1, 2)) == pytest.approx(2.0, abs=1e-9)

    def test_common_noise_of_candidates_protects_nothing(self) -> None:
        """With one draw for all, the largest score always wins, which distinguishes neighbours."""
        law = geometric(1.0, 60)

        def shared(scores: tuple[int, ...]) -> np.ndarray:
            found = np.zeros(len(scores))
            for noise, chance in enumerate(law):
                found[int(np.argmax(np.array(scores) + noise))] += chance
            return found

        with np.errstate(divide="ignore", invalid="ignore"):
            assert np.nanmax(np.abs(np.log(shared((3, 3))) - np.log(shared((3, 4))))) == math.inf

    def test_each_candidate_has_independent_share(self) -> None:
        noise = DistributedNoisyMax(0.1, CountScore(), ADD_REMOVE, 4)
        drawn = noise.draw_share(400, SeededEntropy(1))
        assert (
            drawn.tolist()
            == get_polya_sampler(Fraction(1, 10), Fraction(1, 4))
            .draw_many(400, SeededEntropy(1))
            .tolist()
        )
        assert (drawn >= 0).all()
        assert np.unique(drawn).size > 20
        want = get_polya_sampler(Fraction(1, 10), Fraction(6, 4)).draw_many(50, SeededEntropy(1))
        assert noise.draw_sum(50, 6, SeededEntropy(1)).tolist() == want.tolist()

    def test_n_honest_of_one_is_noisy_max(self) -> None:
        single = NoisyMax(0.1, CountScore(), ADD_REMOVE)
        shared = DistributedNoisyMax(0.1, CountScore(), ADD_REMOVE, 1)
        scores = np.array([3, 5, 4, 4])
        for seed in range(30):
            chosen = single.choose_many(scores[np.newaxis], SeededEntropy(seed))[0]
            assert chosen == np.argmax(scores + shared.draw_share(4, SeededEntropy(seed)))

    def test_event_has_parameters(self) -> None:
        event = DistributedNoisyMax(0.5, CountScore(2), REPLACE, 6).event()
        assert event.mechanism == "noisy-max-shares"
        assert (event.epsilon, event.delta, event.rho, event.scope) == (0.5, 0.0, None, REPLACE)
        assert event.parameters == {
            "sensitivity": 2,
            "scores": "general",
            "scale": 8.0,
            "n_honest": 6,
        }
        assert compose_sequential([event]).epsilon == 0.5
        assert DistributedNoisyMax(0.3, CountScore(), ADD_REMOVE, 2).rate == check_epsilon(0.3)

    def test_rejects_parameters_without_guarantee(self) -> None:
        with pytest.raises(MechanismError, match=r"MECH-001.*at least one share"):
            DistributedNoisyMax(1.0, CountScore(), ADD_REMOVE, 0)
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedNoisyMax(0.0, CountScore(), ADD_REMOVE, 2)
        with pytest.raises(MechanismError, match="MECH-001"):
            DistributedNoisyMax(1e-9, CountScore(10**4), ADD_REMOVE, 2)
