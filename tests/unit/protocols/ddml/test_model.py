"""Predictions, and models as plain data."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import SpecError
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.links import Link
from shoal.protocols.ddml.model import GLM, InstanceEnsemble, from_plain
from tests.support.ddml import (
    FEATURES,
    ILL,
    NUMBER,
    STUDIES,
    THREE,
    TWO,
    WORDS,
    people,
    some_weights,
)
from tests.support.hostile import at

SMALL = Schema(
    [Numeric("age", 0, 10, missing=False), Categorical("town", ["x", "y"], missing=False)],
    label=ILL,
)
CROSS = (("age", "town"),)
ROWS = {"age": np.array([5.0, 10.0]), "town": np.array([0, 1])}


def random_model(
    schema: Schema,
    link: Link,
    crosses: tuple[tuple[str, str], ...] = (),
    n_outputs: int = 1,
    seed: int = 0,
) -> GLM:
    weights = np.random.default_rng(seed).normal(
        size=(n_outputs, InputDesign(schema, crosses).width)
    )
    return GLM(schema, link, crosses, weights)


MODELS: dict[str, GLM] = {
    "logit": random_model(TWO, "logit"),
    "crosses": random_model(TWO, "logit", (("age", "height"), ("town", "height"))),
    "multinomial": random_model(THREE, "multinomial", n_outputs=3),
    "two classes": random_model(TWO, "multinomial", n_outputs=2),
    "identity": random_model(NUMBER, "identity"),
    "log": random_model(NUMBER, "log"),
    "words": random_model(WORDS, "logit", (("age", "query"),)),
    "groups": random_model(
        Schema(
            [Categorical("job", ["p", "q", "r"], groups={"b": ["r", "p"], "a": ["q"]})], label=ILL
        ),
        "logit",
    ),
    "centred": GLM(TWO, "logit", (), np.arange(6.0)[np.newaxis], centred=True),
}


def test_predict_means_uses_inputs_times_weights() -> None:
    model = GLM(SMALL, "logit", CROSS, np.array([[0.5, -1.0, 2.0, 3.0]]))
    scores = np.array([0.5 - 0.5, 0.5 - 1 + 2 + 3])
    chances = 1 / (1 + np.exp(-scores))
    assert np.allclose(model.probabilities(ROWS), np.stack([1 - chances, chances], axis=1))
    assert model.decide(ROWS).tolist() == [0, 1]
    assert model.classes == ("no", "yes")


def test_centred_model_shifts_inputs() -> None:
    weights = np.array([[0.5, -1.0, 2.0]])
    inputs = InputDesign(SMALL, (), centred=True).make_inputs(ROWS).to_dense()
    model = GLM(SMALL, "logit", (), weights, centred=True)
    assert np.allclose(model.predict_means(ROWS), 1 / (1 + np.exp(-inputs @ weights.T)))
    assert not np.allclose(
        model.predict_means(ROWS), GLM(SMALL, "logit", (), weights).predict_means(ROWS)
    )


def test_probabilities_sum_to_one() -> None:
    model = MODELS["multinomial"]
    columns, _ = people(THREE, 50)
    scores = model.design.make_inputs(columns).to_dense() @ model.weights.T
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert np.allclose(model.probabilities(columns), expected)
    assert model.decide(columns).tolist() == scores.argmax(axis=1).tolist()


def test_predict_returns_label_units_inside_range() -> None:
    schema = Schema(SMALL.features, label=Numeric("cost", 100, 300))
    model = GLM(schema, "identity", (), np.array([[0.25, 0.5, 4.0]]))
    assert model.predict(ROWS).tolist() == [200.0, 300.0]
    log = GLM(schema, "log", (), np.array([[-1.0, 0.5, 0.0]]))
    assert np.allclose(log.predict(ROWS), 100 + 200 * np.exp([-0.75, -0.5]))
    assert GLM(schema, "identity", (), -model.weights).predict(ROWS).tolist() == [100.0, 100.0]


def test_prediction_of_no_rows_is_empty() -> None:
    for name in ("logit", "multinomial", "identity"):
        model = MODELS[name]
        nobody = {key: column[:0] for key, column in people(model.schema, 3)[0].items()}
        assert model.predict_means(nobody).shape == (0, len(model.weights))


@pytest.mark.parametrize("name", ["closest", "classes", "number"])
def test_from_grid_weights_converts_units(name: str) -> None:
    params = STUDIES[name]
    instances = np.stack([some_weights(params, seed, 1 << 20) for seed in range(4)])
    columns, _ = people(params.schema, 30)
    model = GLM.from_grid_weights(params, instances[0])
    assert (
        model.weights.tolist()
        == (instances[0].reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits).tolist()
    )
    assert (model.design, model.link) == (params.design, params.link)
    ensemble = InstanceEnsemble.from_grid_weights(params, instances)
    each = [
        GLM.from_grid_weights(params, instance).predict_means(columns) for instance in instances
    ]
    assert np.allclose(ensemble.predict_means(columns), np.mean(each, axis=0))
    assert np.allclose(
        InstanceEnsemble.from_grid_weights(params, instances[:1]).predict_means(columns),
        model.predict_means(columns),
    )


def test_ensemble_averages_probabilities_not_weights() -> None:
    instances = np.array([[[-6.0, 0.0, 0.0]], [[2.0, 0.0, 0.0]]])
    chances = 1 / (1 + np.exp([6.0, -2.0]))
    ensemble = InstanceEnsemble(SMALL, "logit", (), instances)
    assert np.allclose(ensemble.probabilities(ROWS)[:, 1], chances.mean())
    assert (
        GLM(SMALL, "logit", (), instances.mean(axis=0)).probabilities(ROWS)[0, 1]
        < 0.2
        < chances.mean()
    )
    assert ensemble.decide(ROWS).tolist() == [0, 0]


def as_file(model: GLM, *, sort_keys: bool = False) -> dict[str, Any]:
    return json.loads(json.dumps(model.to_plain(), allow_nan=False, sort_keys=sort_keys))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODELS)
def test_model_survives_round_trip(name: str) -> None:
    model = MODELS[name]
    again = from_plain(as_file(model, sort_keys=True))
    columns, _ = people(model.schema, 60)
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
    assert again.predict_means(columns).tolist() == model.predict_means(columns).tolist()
    assert again.to_plain() == model.to_plain()


P, W, N = (
    as_file(GLM(SMALL, "logit", CROSS, np.zeros((1, 4)))),
    as_file(MODELS["words"]),
    as_file(MODELS["identity"]),
)
WRONG: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "no kind": {key: part for key, part in P.items() if key != "kind"},
    "another kind": at(P, ("kind",), "additive"),
    "one more key": {**P, "code": "import os"},
    "another link": at(P, ("link",), "probit"),
    "a link of other labels": at(P, ("link",), "identity"),
    "a link of categories for a number": at(N, ("link",), "logit"),
    "classes for a number": at(N, ("link",), "multinomial"),
    "two classes for three": at(as_file(MODELS["multinomial"]), ("link",), "logit"),
    "a label without classes enough": at(P, ("label", "values"), ["no", "yes", "perhaps"]),
    "no weights": at(P, ("weights",), []),
    "two rows of weights": at(P, ("weights",), P["weights"] * 2),
    "a weight too few": at(P, ("weights", 0), P["weights"][0][:-1]),
    "a weight that is not a number": at(P, ("weights", 0, 1), math.nan),
    "a weight that is infinite": at(P, ("weights", 0, 1), math.inf),
    "a weight beyond reason": at(P, ("weights", 0, 1), 1e12),
    "a weight as text": at(P, ("weights", 0, 1), "0.5"),
    "true as weight": at(P, ("weights", 0, 1), True),
    "a cross of a stranger": at(P, ("crosses", 0), ["age", "height"]),
    "a cross with the label": at(P, ("crosses", 0), ["age", "ill"]),
    "a cross with itself": at(P, ("crosses", 0), ["age", "age"]),
    "a cross of three": at(P, ("crosses", 0), ["age", "town", "age"]),
    "a cross less": at(P, ("crosses",), []),
    "centred as a number": at(P, ("centred",), 0),
    "no features": at(P, ("features",), []),
    "a feature twice": at(P, ("features", 1, "name"), "age"),
    "a range that falls": at(P, ("features", 0, "range"), [10, 0]),
    "bins that change the width": at(P, ("features", 0, "bins"), [1, 2, 3]),
    "missing values that change the width": at(P, ("features", 0, "missing"), True),
    "too many buckets": at(W, ("texts", 0, "buckets"), 1 << 30),
    "other buckets": at(W, ("texts", 0, "buckets"), 17),
    "ngrams as text": at(W, ("texts", 0, "ngrams"), "1"),
    "a text as label": at(W, ("label",), W["texts"][0]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_from_plain_rejects_other_documents(fault: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_plain(WRONG[fault])
    assert caught.value.code.startswith(("MODEL-001", "SCHEMA-"))


def test_model_file_uses_names_of_study_file() -> None:
    assert set(as_file(MODELS["words"])) == {
        "kind",
        "features",
        "texts",
        "label",
        "link",
        "crosses",
        "centred",
        "weights",
    }
    assert as_file(MODELS["words"])["texts"] == [
        {"name": "query", "missing": True, "buckets": 16, "ngrams": 1}
    ]
    assert as_file(MODELS["logit"])["features"][0] == {
        "name": FEATURES[0].name,
        "missing": True,
        "range": [0, 10],
        "bins": None,
    }
