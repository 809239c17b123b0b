"""Pooled models: predictions, plain data, and rejected documents."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.errors import LocalProtocolError, SpecError
from shoal.protocols.pfds.model import (
    PooledModel,
    UnreleasedModel,
    UnreleasedPredictor,
    choose_classes,
    compute_probabilities,
    copy_forbidden_error,
    from_plain,
)
from shoal.protocols.pfds.params import PFDSParams, encode_cells
from tests.support.hostile import at, read_with_garbage

FEATURES = (
    Numeric("age", 0, 10, bins=[3], missing=False),
    Categorical("town", ["x", "y", "z"], groups={"near": ["x", "z"], "far": ["y"]}),
    Numeric("debt", -10, 0, bins=[-5, -math.ulp(0.0)], missing=False),
)
BINARY, THREE, NUMBER = (
    Categorical("ill", ["no", "yes"]),
    Categorical("ill", ["no", "yes", "maybe"]),
    Numeric("days", 10, 30),
)
ROWS = {
    "age": np.array([3.0, 3.5, 9.0]),
    "town": np.array([2, 1, -1]),
    "debt": np.array([0.0, -9.0, -1e-300]),
}
CELLS = [[0, 2, 7], [1, 3, 5], [1, 4, 6]]


def make_model(label: Feature, **figures: Any) -> PooledModel:
    params = PFDSParams(Schema(FEATURES, label), 1.0, 100, **figures)
    generator = np.random.default_rng(1)
    shape = (params.n_cells, params.n_models)
    shares = np.concatenate([generator.dirichlet(np.ones(arity)) for arity in params.arities])
    return PooledModel(
        params,
        generator.normal(size=shape),
        generator.normal(size=shape[1]),
        generator.random(shape),
        shares,
    )


def test_scores_are_sums_of_weights_of_cells() -> None:
    model = make_model(THREE)
    assert encode_cells(model.params, ROWS).tolist() == CELLS
    expected = [model.intercepts + sum(model.weights[cell] for cell in row) for row in CELLS]
    assert np.allclose(model.compute_scores(np.array(CELLS)), expected)
    assert model.compute_scores(np.zeros((0, 3), np.int64)).shape == (0, 3)


def test_two_classes_share_one_model_and_more_have_one_each() -> None:
    two, three = make_model(BINARY), make_model(THREE)
    z = two.compute_scores(np.array(CELLS))[:, 0]
    assert np.allclose(
        two.probabilities(ROWS), np.stack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], axis=1)
    )
    assert two.decide(ROWS).tolist() == (z > 0).astype(int).tolist()
    odds = 1 / (1 + np.exp(-three.compute_scores(np.array(CELLS))))
    assert np.allclose(three.probabilities(ROWS), odds / odds.sum(axis=1, keepdims=True))
    assert three.decide(ROWS).tolist() == np.argmax(odds, axis=1).tolist()
    assert (two.classes, three.classes) == (("no", "yes"), ("no", "yes", "maybe"))
    assert two.schema == two.params.schema


def test_probabilities_of_extreme_scores_are_valid() -> None:
    assert compute_probabilities(np.array([[1e6], [-1e6], [0.0]])).tolist() == [
        [0, 1],
        [1, 0],
        [0.5, 0.5],
    ]
    assert compute_probabilities(np.array([[1e6, 1e6, -1e6]])).tolist() == [[0.5, 0.5, 0]]
    assert np.allclose(
        compute_probabilities(np.array([[-1e6, -1e6 - 1, -1e6]])),
        np.array([math.e, 1, math.e]) / (2 * math.e + 1),
    )
    assert choose_classes(np.array([[0.0], [1e-9]])).tolist() == [0, 1]
    assert choose_classes(np.array([[1.0, 1.0, 0.0]])).tolist() == [0]


def test_predicted_number_is_in_the_label_range() -> None:
    model = make_model(NUMBER)
    z = model.compute_scores(np.array(CELLS))[:, 0]
    assert (z < 0).any() or (z > 1).any()
    assert np.allclose(model.predict(ROWS), np.clip(10 + 20 * z, 10, 30))


def encode_json(model: PooledModel) -> dict[str, Any]:
    return json.loads(json.dumps(model.to_plain(), allow_nan=False, sort_keys=True))  # type: ignore[no-any-return]


@pytest.mark.parametrize("label", [BINARY, THREE, NUMBER])
@pytest.mark.parametrize("trust", ["local", "secure-sum"])
def test_model_file_round_trip_keeps_the_model(label: Feature, trust: Any) -> None:
    model = make_model(label, trust=trust)
    again = from_plain(encode_json(model))
    assert again.to_plain() == model.to_plain()
    assert (again.schema, again.params.trust, again.params.is_noiseless) == (
        model.schema,
        trust,
        True,
    )
    assert np.array_equal(
        again.compute_scores(np.array(CELLS)), model.compute_scores(np.array(CELLS))
    )
    assert encode_cells(again.params, ROWS).tolist() == CELLS


def test_model_file_contains_bins_of_every_number() -> None:
    schema = Schema([Numeric("gain", 0, 12800), Numeric("age", 0, 80, missing=False)], BINARY)
    params = PFDSParams(schema, 1.0, 100)
    model = PooledModel(
        params,
        np.zeros((18, 1)),
        np.zeros(1),
        np.zeros((18, 1)),
        np.repeat([0.1, 0.125], params.arities),
    )
    written = encode_json(model)["features"]
    assert [len(feature["bins"]) for feature in written] == [8, 7]
    assert from_plain(encode_json(model)).schema == model.schema == params.coded_schema


M = encode_json(make_model(BINARY))
WRONG: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "another kind": at(M, ("kind",), "additive"),
    "one more key": {**M, "code": "import os"},
    "no features": at(M, ("features",), []),
    "a feature twice": at(M, ("features", 2), M["features"][0]),
    "a number without bins": at(M, ("features", 0, "bins"), None),
    "no such trust": at(M, ("trust",), "none"),
    "no label": at(M, ("label",), None),
    "a label of more classes": at(M, ("label", "values"), ["no", "yes", "maybe"]),
    "a cell without weights": at(M, ("weights",), M["weights"][:-1]),
    "a cell with two weights": at(M, ("weights", 0), [1.0, 2.0]),
    "a cell without a variance": at(M, ("variances",), M["variances"][1:]),
    "a cell with no variance": at(M, ("variances", 3), []),
    "two intercepts": at(M, ("intercepts",), [1.0, 2.0]),
    "no intercept": at(M, ("intercepts",), []),
    "a cell without a share": at(M, ("shares",), M["shares"][:-1]),
    "shares that do not add up": at(M, ("shares", 0), M["shares"][0] / 2),
    "a negative share": at(M, ("shares", slice(0, 2)), [-0.1, 1.1]),
    "a weight out of all measure": at(M, ("weights", 0), [1e7]),
    "a weight that is none": at(M, ("weights", 0), [math.nan]),
    "a negative variance": at(M, ("variances", 0), [-1.0]),
    "an infinite variance": at(M, ("variances", 0), [math.inf]),
    "a weight in words": at(M, ("weights", 0), ["1"]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_from_plain_rejects_invalid_documents(fault: str) -> None:
    with pytest.raises(SpecError) as error:
        from_plain(WRONG[fault])
    assert error.value.code.startswith(("MODEL-", "SCHEMA-"))


@given(st.data())
def test_from_plain_rejects_garbage_or_returns_a_usable_model(data: st.DataObject) -> None:
    model = read_with_garbage(M, from_plain, data)
    if model is not None and not model.params.is_number:
        assert np.isfinite(model.compute_scores(np.zeros((2, 3), np.int64))).all()


@pytest.mark.parametrize("kind", [UnreleasedPredictor, UnreleasedModel])
def test_unreleased_model_predicts_and_cannot_be_copied(kind: type[UnreleasedPredictor]) -> None:
    model, number = make_model(THREE), make_model(NUMBER)
    kept = kind(model)
    assert (
        kept.probabilities(ROWS).tolist() == model.probabilities(ROWS).tolist()
        and kept.decide(ROWS).tolist() == model.decide(ROWS).tolist()
    )
    assert kind(number).predict(ROWS).tolist() == number.predict(ROWS).tolist()
    for copy_model in (
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda one: copy.deepcopy({"models": [one]}),
    ):
        with pytest.raises(
            LocalProtocolError,
            match="A model fitted to the rows themselves cannot be copied or pickled",
        ):
            copy_model(kept)
    assert repr(kept) == f"{kind.__name__}(fitted to the rows themselves: never leaves)"
    assert not hasattr(kept, "__dict__")
    assert not any(
        isinstance(getattr(kept, name), PooledModel)
        for name in dir(kind)
        if not name.startswith("_")
    )


def test_copy_error_has_what_why_and_fix() -> None:
    error = copy_forbidden_error("A thing")
    assert (
        error.code == "PRIVATE-001"
        and error.what.startswith("A thing cannot be copied")
        and "without noise" in str(error.why)
    )
    assert "publish only the release" in str(error.fix)
