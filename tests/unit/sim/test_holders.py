"""Who holds which rows of a simulation, who drops out, and which rows of a person are used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.pfds.params import Params
from shoal.sim.holders import holders_of, is_used, who_answers
from shoal.sim.people import SCHEMA
from shoal.sim.runs import Task
from shoal.study.conditions_sums import Members

N = 1000
TEN = Members("pfds", "n_holders", "holders", 10, 8, 3)
PARAMS = Params(SCHEMA, 1.0, N)


class TestHolders:
    def test_have_rows_that_are_dealt_by_the_entropy(self) -> None:
        first, again, other = (holders_of(TEN, N, None, 0, SeededEntropy(seed)) for seed in (1, 1, 2))
        assert (first == again).all() and (first != other).any()
        assert np.bincount(first).tolist() == [N // 10] * 10

    def test_have_the_rows_that_the_table_says(self) -> None:
        named = np.arange(N) % 9
        assert holders_of(TEN, N, named, 10, SeededEntropy(1)) is named

    @pytest.mark.parametrize("n", [1, 9, 11])
    def test_are_as_many_as_the_study_says(self, n: int) -> None:
        with pytest.raises(ShoalError) as error:
            holders_of(TEN, N, np.arange(N) % n, n, SeededEntropy(1))
        assert error.value.code == "SIM-007" and f"names {n} holder" in error.value.what and "n_holders = 10" in error.value.what
        assert f"n_holders = {n} under [pfds]" in str(error.value.fix)


class TestDropout:
    def test_takes_its_share_and_no_more(self) -> None:
        kept = [who_answers(TEN, Task(PARAMS, seed, dropout=0.2)) for seed in range(8)]
        assert {int(one.sum()) for one in kept} == {8} and len({tuple(one.tolist()) for one in kept}) > 1
        assert who_answers(TEN, Task(PARAMS, 1)).all()

    @pytest.mark.parametrize(("share", "n_left"), [(0.001, 9), (0.1, 9), (0.11, 8), (0.7, 3)])
    def test_is_rounded_up(self, share: float, n_left: int) -> None:
        assert who_answers(replace(TEN, minimum=1), Task(PARAMS, 1, dropout=share)).sum() == n_left

    def test_below_the_minimum_there_is_no_sum(self) -> None:
        with pytest.raises(ShoalError) as error:
            who_answers(TEN, Task(PARAMS, 1, dropout=0.3))
        assert error.value.code == "SUM-003" and "7 of 10 holders are left; a sum of fewer than 8 is not opened" in error.value.what
        assert "that many shares" in str(error.value.why) and "a smaller minimum" in str(error.value.fix)

    def test_without_a_sum_one_is_enough(self) -> None:
        assert who_answers(TEN, Task(PARAMS, 1, dropout=0.9), is_sum=False).sum() == 1
        with pytest.raises(ShoalError) as error:
            who_answers(TEN, Task(PARAMS, 1, dropout=0.95), is_sum=False)
        assert error.value.code == "SIM-003" and "0 of 10 holders are left to answer" in error.value.what


class TestPeople:
    def test_without_people_every_row_is_used(self) -> None:
        assert is_used(np.zeros(5, np.int64), None, 1).all()

    def test_the_first_rows_of_a_person_are_used_with_each_holder(self) -> None:
        people = np.array([0, 0, 1, 0, 0, 0, 1, 1])
        whose = np.array([0, 1, 0, 0, 0, 1, 0, 0])
        assert is_used(whose, people, 2).tolist() == [True, True, True, True, False, True, True, False]
        assert is_used(whose, people, 1).tolist() == [True, True, True, False, False, False, False, False]

    def test_an_empty_table_has_none(self) -> None:
        nobody = np.zeros(0, np.int64)
        assert is_used(nobody, nobody, 1).shape == (0,)
