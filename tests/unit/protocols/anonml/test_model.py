"""Predictions, and models as plain data."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.additive_model import AdditiveModel, ClassificationModel
from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote
from shoal.protocols.anonml.model import VoteModel, from_plain
from shoal.protocols.anonml.population import simulate
from tests.support.anonml import FEATURES, STUDIES, TWO, build_named_script, people
from tests.support.hostile import at

SCHEMA = Schema(
    [Numeric("age", 0, 10, bins=[3, 6]), Categorical("town", ["x", "y"], missing=False)],
    label=Categorical("ill", ["no", "yes"]),
)
ADDITIVE = AdditiveModel(
    SCHEMA,
    np.array([0.75, 0.25]),
    (
        np.array([[0.1, 0.2, -0.3, 0.0], [-0.1, -0.2, 0.6, 0.1]]),
        np.array([[0.5, -0.5], [-1.0, 1.0]]),
    ),
)
VOTE = VoteModel(
    SCHEMA,
    WeightedVote((PartitionClassifier((1,), (2,), np.array([[0.9, 0.1], [0.2, 0.8]]), 0.6),
          PartitionClassifier((1, 0), (2, 4), np.tile([[0.5, 0.5]], (8, 1)), 0.2)), 2),
)  # fmt: skip
ROWS = {"age": np.array([1.0, 7.0, np.nan, 4.0]), "town": np.array([0, 1, 1, -1])}


def test_additive_scores_sum_to_log_odds() -> None:
    expected = [
        [math.log(0.75) + 0.1 + 0.5, math.log(0.25) - 0.1 - 1.0],
        [math.log(0.75) - 0.3 - 0.5, math.log(0.25) + 0.6 + 1.0],
        [math.log(0.75) + 0.0 - 0.5, math.log(0.25) + 0.1 + 1.0],
        [math.log(0.75) + 0.2, math.log(0.25) - 0.2],
    ]
    assert np.allclose(ADDITIVE.log_odds(ROWS), expected)
    assert np.allclose(
        ADDITIVE.probabilities(ROWS), np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    )
    assert ADDITIVE.decide(ROWS).tolist() == np.argmax(expected, axis=1).tolist()
    assert ADDITIVE.classes == ("no", "yes")


def test_vote_counts_undeclared_category_as_last() -> None:
    assert VOTE.decide(ROWS).tolist() == [0, 1, 1, 1]
    assert np.allclose(
        VOTE.probabilities(ROWS)[3], (0.6 * np.array([0.2, 0.8]) + 0.2 * np.array([0.5, 0.5])) / 0.8
    )


def test_prediction_of_no_rows_is_empty() -> None:
    nobody = {name: column[:0] for name, column in ROWS.items()}
    for model in (ADDITIVE, VOTE):
        assert model.probabilities(nobody).shape == (0, 2)
        assert model.decide(nobody).shape == (0,)


def as_file(model: ClassificationModel, *, sort_keys: bool = False) -> dict[str, Any]:
    return json.loads(json.dumps(model.to_plain(), allow_nan=False, sort_keys=sort_keys))


@pytest.mark.parametrize("name", STUDIES)
def test_model_survives_round_trip(name: str) -> None:
    script = build_named_script(name)
    columns, labels = people(script.params.schema, 3000)
    model = simulate(script, columns, labels, SeededEntropy(1)).model
    again = from_plain(as_file(model, sort_keys=True))
    assert type(again) is type(model)
    assert again.schema == model.schema
    assert [
        list(feature.groups or ())
        for feature in again.schema.features
        if isinstance(feature, Categorical)
    ] == [
        list(feature.groups or ())
        for feature in model.schema.features
        if isinstance(feature, Categorical)
    ]
    assert again.probabilities(columns).tolist() == model.probabilities(columns).tolist()
    assert again.decide(columns).tolist() == model.decide(columns).tolist()
    assert again.to_plain() == model.to_plain()


def test_to_plain_returns_plain_data() -> None:
    grouped = AdditiveModel(
        Schema([FEATURES[3]], TWO.label), np.array([0.5, 0.5]), (np.zeros((2, 4)),)
    )
    assert as_file(grouped)["features"] == [
        {
            "name": "job",
            "missing": True,
            "values": ["p", "q", "r", "s"],
            "groups": [
                {"name": "one", "values": ["s", "p"]},
                {"name": "two", "values": ["q"]},
                {"name": "three", "values": ["r"]},
            ],
        }
    ]


A, V = as_file(ADDITIVE), as_file(VOTE)
WRONG: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "text": "additive",
    "no kind": {},
    "another kind": at(A, ("kind",), "pickle"),
    "a kind that is a list": at(A, ("kind",), []),
    "one more key": {**A, "code": "import os"},
    "no scores": {key: part for key, part in A.items() if key != "scores"},
    "scores of one feature": at(A, ("scores",), A["scores"][:1]),
    "scores of one class": at(A, ("scores", 0), A["scores"][0][:1]),
    "scores of a bin too few": at(A, ("scores", 0, 1), [0.0, 0.0, 0.0]),
    "a score that is not a number": at(A, ("scores", 0, 1, 0), math.nan),
    "a score that is infinite": at(A, ("scores", 0, 1, 0), math.inf),
    "a score beyond reason": at(A, ("scores", 0, 1, 0), 1e300),
    "a score beyond floats": at(A, ("scores", 0, 1, 0), 10**400),
    "a score as text": at(A, ("scores", 0, 1, 0), "0.5"),
    "true as score": at(A, ("scores", 0, 1, 0), True),
    "shares of three classes": at(A, ("label_shares",), [0.2, 0.3, 0.5]),
    "shares that do not add up": at(A, ("label_shares",), [0.5, 0.6]),
    "a class without a share": at(A, ("label_shares",), [0.0, 1.0]),
    "a negative share": at(A, ("label_shares",), [-0.5, 1.5]),
    "no features": at(at(A, ("features",), []), ("scores",), []),
    "a feature twice": at(A, ("features", 1, "name"), "age"),
    "a number without bins": at(A, ("features", 0, "bins"), None),
    "bins outside the range": at(A, ("features", 0, "bins"), [3, 60]),
    "a range of three": at(A, ("features", 0, "range"), [0, 1, 2]),
    "a range beyond floats": at(A, ("features", 0, "range"), [0, 10**400]),
    "missing as a number": at(A, ("features", 0, "missing"), 1),
    "a category without values": at(A, ("features", 1, "values"), []),
    "a group twice": at(
        A,
        ("features", 1, "groups"),
        [{"name": "a", "values": ["x"]}, {"name": "a", "values": ["y"]}],
    ),
    "a number as label": at(A, ("label",), A["features"][0]),
    "a classifier of a stranger": at(V, ("classifiers", 0, "features"), ["height"]),
    "a classifier of nothing": at(V, ("classifiers", 0, "features"), []),
    "a classifier of the label": at(V, ("classifiers", 0, "features"), ["ill"]),
    "a feature twice in a classifier": at(V, ("classifiers", 1, "features"), ["age", "age"]),
    "a table of another size": at(V, ("classifiers", 1, "features"), ["age"]),
    "chances that do not add up": at(
        V, ("classifiers", 0, "probabilities"), [[0.9, 0.2], [0.2, 0.8]]
    ),
    "a negative weight": at(V, ("classifiers", 0, "weight"), -1.0),
    "an infinite weight": at(V, ("classifiers", 0, "weight"), math.inf),
}


@pytest.mark.parametrize("fault", WRONG)
def test_from_plain_rejects_other_documents(fault: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_plain(WRONG[fault])
    assert caught.value.code.startswith(("MODEL-001", "SCHEMA-"))


def test_vote_without_classifiers_is_valid_model() -> None:
    model = from_plain({**V, "classifiers": []})
    assert model.probabilities(ROWS).tolist() == [[0.5, 0.5]] * 4
