"""Events are frozen, priced, and plain data."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from shoal.errors import SpecError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit


def test_event_is_frozen_and_comparable():
    event = Event("random-response", {"cardinality": 4}, LOCAL_PERSON, 1.0)
    assert event == Event("random-response", {"cardinality": 4}, LOCAL_PERSON, 1.0)
    assert hash(event) == hash(Event("random-response", {"cardinality": 5}, LOCAL_PERSON, 1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.epsilon = 0.5


@pytest.mark.parametrize(
    "price",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": -1e-9},
        {"epsilon": 1.0, "delta": math.nan},
        {"epsilon": 1.0, "rho": 0.0},
        {"epsilon": 1.0, "rho": math.inf},
    ],
)
def test_event_rejects_impossible_price(price):
    with pytest.raises(SpecError, match="EVENT-001"):
        Event("random-response", {}, LOCAL_PERSON, **price)


def test_with_reads_sorts_features_and_keeps_other_fields():
    event = Event("random-response", {}, LOCAL_PERSON, 1.0).with_reads("sex", "age")
    assert event.reads == ("age", "sex")
    assert event.epsilon == 1.0


def test_to_dict_is_json_and_sorted():
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
    data = Event(
        "discrete-gaussian", {"sigma": 2.0, "sensitivity": 1.0}, scope, 1.0, 1e-6, 0.02, ("age",)
    ).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert list(data["parameters"]) == ["sensitivity", "sigma"]
    assert (data["unit"], data["relation"], data["adversary"]) == (
        "record",
        "add-remove",
        "all who read the release",
    )
    assert (data["epsilon"], data["delta"], data["rho"], data["reads"]) == (
        1.0,
        1e-6,
        0.02,
        ["age"],
    )


def test_scope_has_readable_text():
    assert str(LOCAL_PERSON) == "person, replace, against everyone"
