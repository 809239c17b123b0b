"""Holders of a simulation: their rows, dropout, and the used rows of a person."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.pfds.params import PFDSParams
from shoal.simulation.holders import assign_holders, draw_respondents, select_used_rows
from shoal.simulation.run import RunTask
from shoal.study.constraints import DeclaredRoster

N = 1000
TEN = DeclaredRoster("pfds", "n_holders", "holders", 10, 8, 3)
PARAMS = PFDSParams(SCHEMA, 1.0, N)


class TestHolders:
    def test_assign_holders_depends_on_the_entropy(self) -> None:
        first, again, other = (
            assign_holders(TEN, N, None, 0, SeededEntropy(seed)) for seed in (1, 1, 2)
        )
        assert (first == again).all() and (first != other).any()
        assert np.bincount(first).tolist() == [N // 10] * 10

    def test_assign_holders_uses_the_holders_of_the_table(self) -> None:
        named = np.arange(N) % 9
        assert assign_holders(TEN, N, named, 10, SeededEntropy(1)) is named

    @pytest.mark.parametrize("n", [1, 9, 11])
    def test_assign_holders_rejects_another_number_of_holders(self, n: int) -> None:
        with pytest.raises(ShoalError) as error:
            assign_holders(TEN, N, np.arange(N) % n, n, SeededEntropy(1))
        assert (
            error.value.code == "SIM-007"
            and f"names {n} holder" in error.value.what
            and "n_holders = 10" in error.value.what
        )
        assert f"n_holders = {n} under [pfds]" in str(error.value.fix)


class TestDropout:
    def test_dropout_removes_its_share_and_no_more(self) -> None:
        kept = [draw_respondents(TEN, RunTask(PARAMS, seed, dropout=0.2)) for seed in range(8)]
        assert {int(one.sum()) for one in kept} == {8} and len(
            {tuple(one.tolist()) for one in kept}
        ) > 1
        assert draw_respondents(TEN, RunTask(PARAMS, 1)).all()

    @pytest.mark.parametrize(("share", "n_left"), [(0.001, 9), (0.1, 9), (0.11, 8), (0.7, 3)])
    def test_dropout_is_rounded_up(self, share: float, n_left: int) -> None:
        assert (
            draw_respondents(replace(TEN, minimum=1), RunTask(PARAMS, 1, dropout=share)).sum()
            == n_left
        )

    def test_dropout_below_the_minimum_of_a_sum_is_rejected(self) -> None:
        with pytest.raises(ShoalError) as error:
            draw_respondents(TEN, RunTask(PARAMS, 1, dropout=0.3))
        assert (
            error.value.code == "SUM-003"
            and "7 of 10 holders are left; a sum of fewer than 8 is not opened" in error.value.what
        )
        assert "that many shares" in str(error.value.why) and "a smaller minimum" in str(
            error.value.fix
        )

    def test_dropout_without_a_sum_needs_one_respondent(self) -> None:
        assert draw_respondents(TEN, RunTask(PARAMS, 1, dropout=0.9), is_sum=False).sum() == 1
        with pytest.raises(ShoalError) as error:
            draw_respondents(TEN, RunTask(PARAMS, 1, dropout=0.95), is_sum=False)
        assert (
            error.value.code == "SIM-003"
            and "0 of 10 holders are left to answer" in error.value.what
        )


class TestPeople:
    def test_select_used_rows_without_people_uses_each_row(self) -> None:
        assert select_used_rows(np.zeros(5, np.int64), None, 1).all()

    def test_select_used_rows_uses_the_first_rows_of_a_person_at_each_holder(self) -> None:
        people = np.array([0, 0, 1, 0, 0, 0, 1, 1])
        whose = np.array([0, 1, 0, 0, 0, 1, 0, 0])
        assert select_used_rows(whose, people, 2).tolist() == [
            True,
            True,
            True,
            True,
            False,
            True,
            True,
            False,
        ]
        assert select_used_rows(whose, people, 1).tolist() == [
            True,
            True,
            True,
            False,
            False,
            False,
            False,
            False,
        ]

    def test_select_used_rows_of_an_empty_table_is_empty(self) -> None:
        nobody = np.zeros(0, np.int64)
        assert select_used_rows(nobody, nobody, 1).shape == (0,)
