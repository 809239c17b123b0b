"""Personal models: made once, found by name, and never copied."""

from __future__ import annotations

import copy
import pickle

import pytest

from shoal.errors import ShoalError
from shoal.estimators.inputs import EstimatorError
from shoal.estimators.pfds import PersonalModels


def test_personal_models_are_made_once_on_request() -> None:
    made: list[int] = []
    personal_models = PersonalModels(
        ["north", "south"], lambda number: made.append(number) or object()
    )
    assert made == []
    assert personal_models.get("south") is personal_models.get(" south ") and made == [1]
    assert personal_models.get("north") is not personal_models.get("south") and made == [1, 0]


def test_personal_models_match_names_by_their_text() -> None:
    personal_models = PersonalModels([3, 4], lambda number: number)
    assert (personal_models.get(3), personal_models.get(4.0), personal_models.get("4")) == (0, 1, 1)


@pytest.mark.parametrize("holder", ["SECRET", 7, float("nan"), ""])
def test_personal_models_reject_unknown_holders(holder: object) -> None:
    with pytest.raises(EstimatorError) as error:
        PersonalModels(["north", "south"], lambda number: number).get(holder)
    assert (
        error.value.code == "USAGE-001"
        and "which has 2 holders" in error.value.what
        and "SECRET" not in str(error.value)
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_personal_models_cannot_be_copied_or_pickled(copied: object) -> None:
    personal_models = PersonalModels(["north"], lambda number: number)
    with pytest.raises(ShoalError) as error:
        copied(personal_models)  # type: ignore[operator]
    assert error.value.code == "PRIVATE-001" and error.value.what.startswith(
        "The personal models of holders cannot"
    )
    assert repr(personal_models) == "<personal models of 1 holder: not released>"
