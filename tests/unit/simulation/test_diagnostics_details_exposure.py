"""Exposure to colluders: compared with the remaining noise, never below the claim."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.attacks.sdq import RemainingNoise
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.mechanisms.polya import get_polya_sampler
from shoal.privacy.accountant import epsilon_to_rho
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.diagnostics import (
    MAX_POINTS,
    compute_pfds_exposure,
    compute_remaining_epsilon,
    compute_sdq_exposure,
)

SCHEMA = Schema(
    [
        Numeric("age", 0, 90, bins=[30, 60], missing=False),
        Categorical("sex", ["f", "m"], missing=False),
    ],
    label=Categorical("ill", ["no", "yes"], missing=False),
)
BAYES = SDQParams(
    SCHEMA, 1.0, 1000, n_databases=10, minimum=8, max_colluders=3, learner="naive-bayes"
)
SUMS = PFDSParams(SCHEMA, 1.0, 1000, n_holders=10, minimum=8, max_colluders=3, trust="secure-sum")


def epsilons(told: list[dict[str, Any]]) -> list[float | None]:
    return [one["epsilon"] for one in told]


class TestLeftEpsilon:
    @pytest.mark.parametrize("rate", [2.0, 0.3, 0.01])
    @pytest.mark.parametrize("shares", [1.0, 0.6, 0.1])
    def test_privacy_loss_is_that_of_the_distribution(self, rate: float, shares: float) -> None:
        assert compute_remaining_epsilon(rate, shares, 1) == pytest.approx(
            RemainingNoise(rate, shares).epsilon, rel=1e-6
        )

    @pytest.mark.parametrize("distance", [1, 3, 10])
    def test_privacy_loss_bounds_each_ratio_and_is_reached(self, distance: int) -> None:
        logs = RemainingNoise(0.3, 0.4).log_chances
        both = np.concatenate([logs[:0:-1], logs])
        worst = float(np.max(both[:-distance] - both[distance:]))
        assert compute_remaining_epsilon(0.3, 0.4, distance) == pytest.approx(worst, rel=1e-6)

    def test_privacy_loss_of_all_shares_is_the_promised_one(self) -> None:
        assert [compute_remaining_epsilon(0.02, 1.0, d) for d in (1, 256)] == pytest.approx(
            [0.02, 0.02 * 256], rel=1e-6
        )

    def test_privacy_loss_is_concave_in_the_distance(self) -> None:
        reached = [0.0, *(compute_remaining_epsilon(0.1, 0.2, d) for d in range(1, 20))]
        steps = np.diff(reached)
        assert (np.diff(steps) < 0).all() and (steps > 0.1).all()

    def test_privacy_loss_is_that_of_the_drawn_noise(self) -> None:
        """Of half of the shares: zero against one, by a million draws of the mechanism's own
        sampler.
        """
        sides = get_polya_sampler(Fraction(1), Fraction(1, 2)).draw_many(
            2_000_000, SeededEntropy(4)
        )
        noise = sides[:1_000_000] - sides[1_000_000:]
        zero, one = (np.count_nonzero(noise == at) for at in (0, 1))
        # Seven standard errors of the logarithm of a ratio of counts.
        assert math.log(zero / one) == pytest.approx(
            compute_remaining_epsilon(1.0, 0.5, 1), abs=7 * math.sqrt(1 / zero + 1 / one)
        )


class TestDatabases:
    def test_sdq_exposure_to_the_claimed_colluders_is_epsilon_and_to_fewer_is_less(self) -> None:
        told = compute_sdq_exposure(make_sdq_script(BAYES))
        assert [one["colluders"] for one in told] == list(range(10))
        assert [one["claimed"] for one in told] == [True] * 4 + [False] * 6
        found = epsilons(told)
        assert found[:4] == [1.0] * 4
        # Two tables: a row is in one cell of each. Five honest shares were counted on; 8 - c are
        # left, and one where lists may differ.
        for c, left in ((4, 4), (5, 3), (6, 1), (9, 1)):
            assert found[c] == pytest.approx(2 * RemainingNoise(0.5, left / 5).epsilon, rel=1e-5)

    def test_sdq_exposure_adds_the_levels_of_the_paper_tree(self) -> None:
        params = replace(BAYES, learner="tree", variant="paper", depth=2)
        found = epsilons(compute_sdq_exposure(make_sdq_script(params)))
        # Three levels of a size and an answer, 1/6 each; an answer about two attributes is four
        # tables at first.
        sizes, answers = (
            3 * RemainingNoise(1 / 6, 0.8).epsilon,
            4 * RemainingNoise(1 / 24, 0.8).epsilon,
        )
        assert found[3] == 1.0 and found[4] is not None
        assert found[4] == pytest.approx(sizes + 3 * answers, rel=0.02)

    def test_sdq_exposure_of_a_unit_with_several_rows_moves_several_counts(self) -> None:
        params = replace(BAYES, unit="person", max_rows=3)
        assert epsilons(compute_sdq_exposure(make_sdq_script(params)))[4] == pytest.approx(
            6 * RemainingNoise(1 / 6, 0.8).epsilon, rel=1e-5
        )

    def test_sdq_exposure_of_a_joint_choice_has_no_bound_beyond_the_claim(self) -> None:
        found = epsilons(compute_sdq_exposure(make_sdq_script(replace(BAYES, learner="tree"))))
        assert found == [1.0] * 4 + [None] * 6
        ranked = epsilons(
            compute_sdq_exposure(make_sdq_script(replace(BAYES, learner="tree", choice="sums")))
        )
        assert ranked[:4] == [1.0] * 4 and None not in ranked

    def test_sdq_exposure_of_two_selected_databases_has_no_bound_with_colluders(self) -> None:
        params = replace(BAYES, learner="tree", variant="paper", noise="two-selected", minimum=10)
        told = compute_sdq_exposure(make_sdq_script(params))
        assert (
            epsilons(told) == [1.0] + [None] * 9
            and [one["claimed"] for one in told] == [True] + [False] * 9
        )

    @pytest.mark.parametrize(
        "params",
        [
            replace(BAYES, epsilon=math.inf),
            replace(BAYES, learner="tree", variant="paper", trust="local", max_colluders=0),
        ],
    )
    def test_sdq_exposure_without_secure_sums_is_none(self, params: SDQParams) -> None:
        assert compute_sdq_exposure(make_sdq_script(params)) == []

    def test_sdq_exposure_of_many_databases_lists_some(self) -> None:
        told = compute_sdq_exposure(
            make_sdq_script(replace(BAYES, n_databases=500, minimum=450, max_colluders=123))
        )
        numbers = [one["colluders"] for one in told]
        assert (
            len(numbers) <= MAX_POINTS + 2
            and {0, 123, 124, 499} <= set(numbers)
            and numbers == sorted(numbers)
        )
        found = [one for one in epsilons(told) if one is not None]
        assert found == sorted(found) and len(found) == len(told)

    def test_sdq_exposure_allows_a_claim_of_all_but_one(self) -> None:
        told = compute_sdq_exposure(
            make_sdq_script(replace(BAYES, n_databases=3, minimum=3, max_colluders=2))
        )
        assert epsilons(told) == [1.0] * 3 and all(one["claimed"] for one in told)


class TestHolders:
    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_pfds_exposure_to_the_claimed_colluders_is_epsilon_and_to_fewer_is_less(
        self, delta: float
    ) -> None:
        told = compute_pfds_exposure(replace(SUMS, delta=delta))
        found = [one for one in epsilons(told) if one is not None]
        assert found[:4] == [1.0] * 4 and len(found) == 10
        assert (np.diff(found[3:7]) > 0).all() and found[6] == found[9]

    def test_pfds_exposure_of_a_row_moves_one_cell_of_each_table(self) -> None:
        """A study of three classes asks only for the tables."""
        params = replace(
            SUMS,
            schema=replace(SCHEMA, label=Categorical("ill", ["no", "maybe", "yes"], missing=False)),
        )
        logs = RemainingNoise(1 / 512, 0.8).log_chances
        assert epsilons(compute_pfds_exposure(params))[4] == pytest.approx(
            2 * (logs[0] - logs[256]), rel=1e-5
        )

    def test_pfds_exposure_of_gaussian_noise_counts_the_remaining_shares(self) -> None:
        params = replace(SUMS, delta=1e-6)
        # Half of the shares are twice the rho, and about the root of two times epsilon.
        tenth = replace(params, n_holders=10, minimum=10, max_colluders=6)
        found = epsilons(compute_pfds_exposure(tenth))
        assert found[8] is not None and found[6] == 1.0
        rho, doubled = (epsilon_to_rho(epsilon, 1e-6) for epsilon in (1.0, found[8]))
        assert doubled / rho == pytest.approx(2, rel=0.01)

    def test_pfds_exposure_of_a_numeric_label_is_worst_for_half_rows_in_two_cells(self) -> None:
        number = replace(SUMS, schema=replace(SCHEMA, label=Numeric("pain", 0, 10)))
        classes, numbers = (epsilons(compute_pfds_exposure(params))[7] for params in (SUMS, number))
        assert classes is not None and numbers is not None and numbers > classes > 1

    @pytest.mark.parametrize(
        "params", [replace(SUMS, epsilon=math.inf), PFDSParams(SCHEMA, 1.0, 1000)]
    )
    def test_pfds_exposure_without_secure_sums_is_none(self, params: PFDSParams) -> None:
        assert compute_pfds_exposure(params) == []
