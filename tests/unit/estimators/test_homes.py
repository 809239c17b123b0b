"""Home models: made once, by name, and never out of the process."""

from __future__ import annotations

import copy
import pickle

import pytest

from shoal.errors import ShoalError
from shoal.estimators.homes import Homes
from shoal.estimators.inputs import EstimatorError


def test_are_made_when_they_are_asked_for_and_once() -> None:
    made: list[int] = []
    homes = Homes(["north", "south"], lambda number: made.append(number) or object())
    assert made == []
    assert homes.of("south") is homes.of(" south ") and made == [1]
    assert homes.of("north") is not homes.of("south") and made == [1, 0]


def test_names_that_read_alike_are_one_holders() -> None:
    homes = Homes([3, 4], lambda number: number)
    assert (homes.of(3), homes.of(4.0), homes.of("4")) == (0, 1, 1)


@pytest.mark.parametrize("holder", ["SECRET", 7, float("nan"), ""])
def test_a_stranger_has_none(holder: object) -> None:
    with pytest.raises(EstimatorError) as error:
        Homes(["north", "south"], lambda number: number).of(holder)
    assert error.value.code == "USAGE-001" and "there are 2 holders" in error.value.what and "SECRET" not in str(error.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_never_leave(copied: object) -> None:
    homes = Homes(["north"], lambda number: number)
    with pytest.raises(ShoalError) as error:
        copied(homes)  # type: ignore[operator]
    assert error.value.code == "PRIVATE-001" and error.value.what.startswith("What holders have at home was about")
    assert repr(homes) == "<what 1 holder have at home: never leaves>"
