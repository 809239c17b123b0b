"""What more colluders than expected leave of epsilon: against the law of what is left, and never less than what is claimed."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.attacks.sdq import LeftNoise
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.mechanisms.polya import polya_sampler
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.details_exposure import MOST_POINTS, left_epsilon, pfds_exposure, sdq_exposure

SCHEMA = Schema(
    [Numeric("age", 0, 90, bins=[30, 60], missing=False), Categorical("sex", ["f", "m"], missing=False)],
    label=Categorical("ill", ["no", "yes"], missing=False),
)
BAYES = SDQParams(SCHEMA, 1.0, 1000, n_databases=10, minimum=8, max_colluders=3, learner="naive-bayes")
SUMS = PFDSParams(SCHEMA, 1.0, 1000, n_holders=10, minimum=8, max_colluders=3, trust="secure-sum")


def epsilons(told: list[dict[str, Any]]) -> list[float | None]:
    return [one["epsilon"] for one in told]


class TestLeftEpsilon:
    @pytest.mark.parametrize("rate", [2.0, 0.3, 0.01])
    @pytest.mark.parametrize("shares", [1.0, 0.6, 0.1])
    def test_is_that_of_the_law(self, rate: float, shares: float) -> None:
        assert left_epsilon(rate, shares, 1) == pytest.approx(LeftNoise(rate, shares).epsilon, rel=1e-6)

    @pytest.mark.parametrize("distance", [1, 3, 10])
    def test_bounds_every_ratio_and_is_reached(self, distance: int) -> None:
        logs = LeftNoise(0.3, 0.4).log_chances
        both = np.concatenate([logs[:0:-1], logs])
        worst = float(np.max(both[:-distance] - both[distance:]))
        assert left_epsilon(0.3, 0.4, distance) == pytest.approx(worst, rel=1e-6)

    def test_of_all_shares_is_what_was_promised(self) -> None:
        assert [left_epsilon(0.02, 1.0, d) for d in (1, 256)] == pytest.approx([0.02, 0.02 * 256], rel=1e-6)

    def test_is_concave_in_the_distance(self) -> None:
        reached = [0.0, *(left_epsilon(0.1, 0.2, d) for d in range(1, 20))]
        steps = np.diff(reached)
        assert (np.diff(steps) < 0).all() and (steps > 0.1).all()

    def test_is_that_of_the_noise_that_is_drawn(self) -> None:
        """Of half of the shares: zero against one, by a million draws of the mechanism's own sampler."""
        sides = polya_sampler(Fraction(1), Fraction(1, 2)).draw_many(2_000_000, SeededEntropy(4))
        noise = sides[:1_000_000] - sides[1_000_000:]
        zero, one = (np.count_nonzero(noise == at) for at in (0, 1))
        # Seven standard errors of the logarithm of a ratio of counts.
        assert math.log(zero / one) == pytest.approx(left_epsilon(1.0, 0.5, 1), abs=7 * math.sqrt(1 / zero + 1 / one))


class TestDatabases:
    def test_as_many_as_claimed_face_epsilon_and_more_face_less(self) -> None:
        told = sdq_exposure(script_of(BAYES))
        assert [one["colluders"] for one in told] == list(range(10))
        assert [one["claimed"] for one in told] == [True] * 4 + [False] * 6
        found = epsilons(told)
        assert found[:4] == [1.0] * 4
        # Two tables: a row is in one cell of each. Five honest shares were counted on; 8 - c are left, and one where lists may differ.
        for c, left in ((4, 4), (5, 3), (6, 1), (9, 1)):
            assert found[c] == pytest.approx(2 * LeftNoise(0.5, left / 5).epsilon, rel=1e-5)

    def test_levels_of_the_papers_tree_add_up(self) -> None:
        params = replace(BAYES, learner="tree", variant="paper", depth=2)
        found = epsilons(sdq_exposure(script_of(params)))
        # Three levels of a size and an answer, 1/6 each; an answer about two attributes is four tables at first.
        sizes, answers = 3 * LeftNoise(1 / 6, 0.8).epsilon, 4 * LeftNoise(1 / 24, 0.8).epsilon
        assert found[3] == 1.0 and found[4] is not None
        assert found[4] == pytest.approx(sizes + 3 * answers, rel=0.02)

    def test_a_unit_of_several_rows_moves_several_counts(self) -> None:
        params = replace(BAYES, unit="person", max_rows=3)
        assert epsilons(sdq_exposure(script_of(params)))[4] == pytest.approx(6 * LeftNoise(1 / 6, 0.8).epsilon, rel=1e-5)

    def test_a_joint_choice_has_no_bound_beyond(self) -> None:
        found = epsilons(sdq_exposure(script_of(replace(BAYES, learner="tree"))))
        assert found == [1.0] * 4 + [None] * 6
        ranked = epsilons(sdq_exposure(script_of(replace(BAYES, learner="tree", choice="sums"))))
        assert ranked[:4] == [1.0] * 4 and None not in ranked

    def test_nothing_but_silence_protects_two_selected(self) -> None:
        params = replace(BAYES, learner="tree", variant="paper", noise="two-selected", minimum=10)
        told = sdq_exposure(script_of(params))
        assert epsilons(told) == [1.0] + [None] * 9 and [one["claimed"] for one in told] == [True] + [False] * 9

    @pytest.mark.parametrize(
        "params", [replace(BAYES, epsilon=math.inf), replace(BAYES, learner="tree", variant="paper", trust="local", max_colluders=0)]
    )
    def test_where_no_sum_is_secure_there_is_nothing_to_tell(self, params: SDQParams) -> None:
        assert sdq_exposure(script_of(params)) == []

    def test_of_many_some_are_told(self) -> None:
        told = sdq_exposure(script_of(replace(BAYES, n_databases=500, minimum=450, max_colluders=123)))
        numbers = [one["colluders"] for one in told]
        assert len(numbers) <= MOST_POINTS + 2 and {0, 123, 124, 499} <= set(numbers) and numbers == sorted(numbers)
        found = [one for one in epsilons(told) if one is not None]
        assert found == sorted(found) and len(found) == len(told)

    def test_all_but_one_may_be_claimed(self) -> None:
        told = sdq_exposure(script_of(replace(BAYES, n_databases=3, minimum=3, max_colluders=2)))
        assert epsilons(told) == [1.0] * 3 and all(one["claimed"] for one in told)


class TestHolders:
    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_as_many_as_claimed_face_epsilon_and_more_face_less(self, delta: float) -> None:
        told = pfds_exposure(replace(SUMS, delta=delta))
        found = [one for one in epsilons(told) if one is not None]
        assert found[:4] == [1.0] * 4 and len(found) == 10
        assert (np.diff(found[3:7]) > 0).all() and found[6] == found[9]

    def test_a_row_moves_one_cell_of_each_table(self) -> None:
        """Of three classes the tables are all that is asked."""
        params = replace(SUMS, schema=replace(SCHEMA, label=Categorical("ill", ["no", "maybe", "yes"], missing=False)))
        logs = LeftNoise(1 / 512, 0.8).log_chances
        assert epsilons(pfds_exposure(params))[4] == pytest.approx(2 * (logs[0] - logs[256]), rel=1e-5)

    def test_gaussian_shares_are_as_many_as_are_left(self) -> None:
        params = replace(SUMS, delta=1e-6)
        # Half of the shares are twice the rho, and about the root of two times epsilon.
        tenth = replace(params, n_holders=10, minimum=10, max_colluders=6)
        found = epsilons(pfds_exposure(tenth))
        assert found[8] is not None and found[6] == 1.0
        rho, doubled = (epsilon_to_rho(epsilon, 1e-6) for epsilon in (1.0, found[8]))
        assert doubled / rho == pytest.approx(2, rel=0.01)

    def test_half_rows_in_two_cells_are_the_worst_of_a_number(self) -> None:
        number = replace(SUMS, schema=replace(SCHEMA, label=Numeric("pain", 0, 10)))
        classes, numbers = (epsilons(pfds_exposure(params))[7] for params in (SUMS, number))
        assert classes is not None and numbers is not None and numbers > classes > 1

    @pytest.mark.parametrize("params", [replace(SUMS, epsilon=math.inf), PFDSParams(SCHEMA, 1.0, 1000)])
    def test_where_no_sum_is_secure_there_is_nothing_to_tell(self, params: PFDSParams) -> None:
        assert pfds_exposure(params) == []
