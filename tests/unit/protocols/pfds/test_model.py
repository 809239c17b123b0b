"""Additive models that predict, and such models as plain data."""

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

from model_garbage import at, read_with_garbage
from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.errors import LocalProtocolError, SpecError
from shoal.protocols.pfds.model import Kept, KeptModel, Model, chances, choices, from_plain, never_leaves
from shoal.protocols.pfds.params import Params, cells_of

FEATURES = (
    Numeric("age", 0, 10, bins=[3], missing=False),
    Categorical("town", ["x", "y", "z"], groups={"near": ["x", "z"], "far": ["y"]}),
    Numeric("debt", -10, 0, bins=[-5, -math.ulp(0.0)], missing=False),
)
BINARY, THREE, NUMBER = Categorical("ill", ["no", "yes"]), Categorical("ill", ["no", "yes", "maybe"]), Numeric("days", 10, 30)
ROWS = {"age": np.array([3.0, 3.5, 9.0]), "town": np.array([2, 1, -1]), "debt": np.array([0.0, -9.0, -1e-300])}
CELLS = [[0, 2, 7], [1, 3, 5], [1, 4, 6]]


def model_of(label: Feature, **figures: Any) -> Model:
    params = Params(Schema(FEATURES, label), 1.0, 100, **figures)
    generator = np.random.default_rng(1)
    shape = (params.n_cells, params.n_models)
    shares = np.concatenate([generator.dirichlet(np.ones(arity)) for arity in params.arities])
    return Model(params, generator.normal(size=shape), generator.normal(size=shape[1]), generator.random(shape), shares)


def test_scores_are_sums_over_the_cells_of_a_row() -> None:
    model = model_of(THREE)
    assert cells_of(model.params, ROWS).tolist() == CELLS
    expected = [model.intercepts + sum(model.weights[cell] for cell in row) for row in CELLS]
    assert np.allclose(model.scores(np.array(CELLS)), expected)
    assert model.scores(np.zeros((0, 3), np.int64)).shape == (0, 3)


def test_two_classes_have_one_model_and_more_have_one_each() -> None:
    two, three = model_of(BINARY), model_of(THREE)
    z = two.scores(np.array(CELLS))[:, 0]
    assert np.allclose(two.probabilities(ROWS), np.stack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], axis=1))
    assert two.decide(ROWS).tolist() == (z > 0).astype(int).tolist()
    odds = 1 / (1 + np.exp(-three.scores(np.array(CELLS))))
    assert np.allclose(three.probabilities(ROWS), odds / odds.sum(axis=1, keepdims=True))
    assert three.decide(ROWS).tolist() == np.argmax(odds, axis=1).tolist()
    assert (two.classes, three.classes) == (("no", "yes"), ("no", "yes", "maybe"))
    assert two.schema == two.params.schema


def test_certain_scores_are_chances_still() -> None:
    assert chances(np.array([[1e6], [-1e6], [0.0]])).tolist() == [[0, 1], [1, 0], [0.5, 0.5]]
    assert chances(np.array([[1e6, 1e6, -1e6]])).tolist() == [[0.5, 0.5, 0]]
    assert np.allclose(chances(np.array([[-1e6, -1e6 - 1, -1e6]])), np.array([math.e, 1, math.e]) / (2 * math.e + 1))
    assert choices(np.array([[0.0], [1e-9]])).tolist() == [0, 1]
    assert choices(np.array([[1.0, 1.0, 0.0]])).tolist() == [0]


def test_a_number_is_in_the_units_of_the_label_and_inside_its_range() -> None:
    model = model_of(NUMBER)
    z = model.scores(np.array(CELLS))[:, 0]
    assert (z < 0).any() or (z > 1).any()
    assert np.allclose(model.predict(ROWS), np.clip(10 + 20 * z, 10, 30))


def as_file(model: Model) -> dict[str, Any]:
    return json.loads(json.dumps(model.to_plain(), allow_nan=False, sort_keys=True))  # type: ignore[no-any-return]


@pytest.mark.parametrize("label", [BINARY, THREE, NUMBER])
@pytest.mark.parametrize("trust", ["local", "secure-sum"])
def test_a_model_comes_back_from_a_file_as_it_was(label: Feature, trust: Any) -> None:
    model = model_of(label, trust=trust)
    again = from_plain(as_file(model))
    assert again.to_plain() == model.to_plain()
    assert (again.schema, again.params.trust, again.params.is_bare) == (model.schema, trust, True)
    assert np.array_equal(again.scores(np.array(CELLS)), model.scores(np.array(CELLS)))
    assert cells_of(again.params, ROWS).tolist() == CELLS


def test_a_file_has_the_cells_of_every_number() -> None:
    schema = Schema([Numeric("gain", 0, 12800), Numeric("age", 0, 80, missing=False)], BINARY)
    params = Params(schema, 1.0, 100)
    model = Model(params, np.zeros((18, 1)), np.zeros(1), np.zeros((18, 1)), np.repeat([0.1, 0.125], params.arities))
    written = as_file(model)["features"]
    assert [len(feature["bins"]) for feature in written] == [8, 7]
    assert from_plain(as_file(model)).schema == model.schema == params.coded


M = as_file(model_of(BINARY))
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
def test_anything_else_is_refused(fault: str) -> None:
    with pytest.raises(SpecError) as error:
        from_plain(WRONG[fault])
    assert error.value.code.startswith(("MODEL-", "SCHEMA-"))


@given(st.data())
def test_garbage_is_refused_or_predicts(data: st.DataObject) -> None:
    model = read_with_garbage(M, from_plain, data)
    if model is not None and not model.params.is_number:
        assert np.isfinite(model.scores(np.zeros((2, 3), np.int64))).all()


@pytest.mark.parametrize("kind", [Kept, KeptModel])
def test_what_is_kept_predicts_and_never_leaves(kind: type[Kept]) -> None:
    model, number = model_of(THREE), model_of(NUMBER)
    kept = kind(model)
    assert (
        kept.probabilities(ROWS).tolist() == model.probabilities(ROWS).tolist()
        and kept.decide(ROWS).tolist() == model.decide(ROWS).tolist()
    )
    assert kind(number).predict(ROWS).tolist() == number.predict(ROWS).tolist()
    for deed in (pickle.dumps, copy.copy, copy.deepcopy, lambda one: copy.deepcopy({"home": [one]})):
        with pytest.raises(LocalProtocolError, match="A model of rows themselves was about to be copied or pickled"):
            deed(kept)
    assert repr(kept) == f"{kind.__name__}(of rows themselves: never leaves)" and not hasattr(kept, "__dict__")
    assert not any(isinstance(getattr(kept, name), Model) for name in dir(kind) if not name.startswith("_"))


def test_the_refusal_says_what_and_why_and_how() -> None:
    error = never_leaves("A thing")
    assert error.code == "PRIVATE-001" and error.what.startswith("A thing was about") and "without any noise" in str(error.why)
    assert "only the release may be published" in str(error.fix)
