"""DDMLClassifier and DDMLRegressor: real estimators, true statements, and sentences for what they cannot do."""

from __future__ import annotations

import math
import subprocess
import sys
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from shoal import AnonMLClassifier, Categorical, DDMLClassifier, DDMLRegressor, Numeric, Schema, SchemaInferredWarning, Text
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.estimators.studies import NoGuarantee
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Devices, simulate
from shoal.study.label import SIMULATED

N, N_MANY = 700, 2400
FEATURES = [Numeric("age", 0, 100, missing=False), Numeric("size", -5, 5), Categorical("kind", ["u", "v", "w"], missing=False)]
ILL = Categorical("ill", ["yes", "no"], missing=False)
PAIN = Numeric("pain", 0, 10, missing=False)
SCHEMA, NUMBERS = Schema(FEATURES, ILL), Schema(FEATURES, PAIN)
SPOKEN = Schema([FEATURES[0]], ILL, [Text("said", 32)])
inferring = pytest.mark.filterwarnings("ignore::shoal.domain.SchemaInferredWarning")


def make_rows(n: int, seed: int = 5) -> tuple[pd.DataFrame, Any, Any]:
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.45
    age = np.clip(40 + 30 * ill + 15 * rng.normal(size=n), 0, 100)
    kind = np.array(["u", "v", "w"], object)[np.minimum(rng.integers(0, 3, n) + ill, 2)]
    size = np.where(rng.random(n) < 0.1, np.nan, rng.uniform(-5, 5, n))
    pain = np.clip(age / 10 + rng.normal(size=n), 0, 10)
    return pd.DataFrame({"age": age, "size": size, "kind": kind}), np.where(ill, "yes", "no"), pain


X_MANY, Y_MANY, P_MANY = make_rows(N_MANY)
X, Y, P = X_MANY[:N], Y_MANY[:N], P_MANY[:N]
X_NEW, Y_NEW, P_NEW = make_rows(1000, seed=6)
SAID = X_MANY[["age"]].assign(said=np.where(Y_MANY == "yes", "a bad cough", "fresh red fish"))


def fitted(y: Any = Y, x: Any = X, holders: Any = None, **settings: Any) -> DDMLClassifier:
    return DDMLClassifier(**{"epsilon": 8.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(x, y, holders)


def regressed(y: Any = P, x: Any = X, holders: Any = None, **settings: Any) -> DDMLRegressor:
    return DDMLRegressor(**{"epsilon": 8.0, "schema": NUMBERS, "random_state": 0, **settings}).fit(x, y, holders)


@cache
def usual() -> DDMLClassifier:
    """The model of the usual settings, which no test changes."""
    return fitted()


def auc(model: DDMLClassifier) -> float:
    return float(roc_auc_score(Y_NEW == "yes", model.predict_proba(X_NEW)[:, 1]))


def weights(model: DDMLClassifier | DDMLRegressor) -> Any:
    return model.model_.weights


def flat(text: object) -> str:
    return " ".join(str(text).replace("│", " ").split())


def refused(fit: Any = fitted, **settings: Any) -> ShoalError:
    with pytest.raises(ShoalError) as error:
        fit(**settings)
    assert isinstance(error.value, ValueError)
    return error.value


class TestLearning:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"unit": "weight"},
            {"batch_size": 3},
            {"n_updates": 2, "delta": 1e-3},
            {"variant": "paper", "unit": "weight", "epsilon": 32.0, "n_instances": 5},
            {"epsilon": math.inf},
        ],
    )
    def test_learns_what_there_is_to_learn(self, settings: dict[str, Any]) -> None:
        assert auc(fitted(Y_MANY, X_MANY, **settings)) > 0.8

    @pytest.mark.parametrize("settings", [{}, {"link": "log"}, {"epsilon": math.inf}])
    def test_learns_numbers(self, settings: dict[str, Any]) -> None:
        model = regressed(P_MANY, X_MANY, **settings)
        predicted = model.predict(X_NEW)
        assert model.score(X_NEW, P_NEW) > 0.25 and predicted.min() >= 0 and predicted.max() <= 10
        assert model.model_.link == settings.get("link", "identity")

    def test_noise_grows_as_the_budget_shrinks(self) -> None:
        assert auc(fitted(epsilon=0.01)) < auc(usual()) - 0.02

    def test_columns_of_the_chances_are_in_the_order_of_the_classes(self) -> None:
        model = usual()
        chances = model.predict_proba(X_NEW)
        assert model.classes_.tolist() == ["no", "yes"] and model.model_.classes == ("yes", "no")
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X_NEW))

    @inferring
    def test_several_classes(self) -> None:
        y = np.where(Y_MANY == "no", 0, np.where(X_MANY["kind"] == "w", 7, 3))
        model = fitted(y, X_MANY, schema=None)
        assert model.classes_.tolist() == [0, 3, 7] and model.predict_proba(X_NEW).shape == (len(X_NEW), 3)
        assert model.model_.link == "multinomial" and model.score(X_MANY, y) > 0.62

    def test_learns_from_texts(self) -> None:
        model = fitted(Y_MANY, SAID, schema=SPOKEN)
        assert model.score(SAID, Y_MANY) > 0.95 and model.n_features_in_ == 2
        few, same = (fitted(Y, x, schema=SPOKEN) for x in (SAID[:N], SAID[:N].to_numpy()))
        np.testing.assert_array_equal(same.predict(SAID.to_numpy()), few.predict(SAID))
        assert "2 features" in model.privacy_.purpose

    def test_anonml_does_not(self) -> None:
        error = refused(lambda: AnonMLClassifier(schema=SPOKEN).fit(SAID, Y_MANY))
        assert error.code == "SPEC-022" and "said is a text" in error.what


class TestSettings:
    """What is fitted is what the protocol's own simulation gives for the same figures and the same seed."""

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"variant": "paper", "merge": "discard", "averaging": False, "centred": False},
            {"unit": "weight", "n_updates": 2, "n_instances": 7, "merge": "discard", "decay": "sqrt", "averaging": False},
            {"batch_size": 5, "learning_rate": 3.0, "clip": 0.5, "crosses": (("age", "kind"),), "centred": False, "delta": 0.01},
        ],
    )
    def test_reach_the_protocol(self, settings: dict[str, Any]) -> None:
        n_devices = -(-N // settings.get("batch_size", 1))
        expected = simulated(Params(SCHEMA, 8.0, n_devices, **settings))
        np.testing.assert_array_equal(weights(fitted(**settings)), expected)

    @pytest.mark.parametrize("link", ["identity", "log"])
    def test_reach_it_for_numbers_too(self, link: Any) -> None:
        settings: dict[str, Any] = {"link": link, "n_updates": 2, "merge": "discard", "batch_size": 7, "unit": "weight"}
        expected = simulated(Params(NUMBERS, 8.0, -(-N // 7), **settings), P)
        np.testing.assert_array_equal(weights(regressed(**settings)), expected)

    def test_that_are_not_given_follow_the_variant(self) -> None:
        told = {"merge": "discard", "averaging": False, "centred": False}
        np.testing.assert_array_equal(weights(fitted(variant="paper")), weights(fitted(variant="paper", **told)))
        told = {"merge": "blend", "averaging": True, "centred": True}
        np.testing.assert_array_equal(weights(usual()), weights(fitted(**told)))

    def test_crosses_may_be_lists_and_numbers_numpys(self) -> None:
        same = fitted(crosses=((np.str_("age"), "kind"),), n_instances=np.int64(9), batch_size=np.int32(2), averaging=np.True_)
        np.testing.assert_array_equal(
            weights(same), weights(fitted(crosses=[["age", "kind"]], n_instances=9, batch_size=2, averaging=True))
        )


def simulated(params: Params, y: Any = None, holders: Any = None) -> Any:
    assert params.schema.label is not None
    labels = params.schema.encode_label({params.schema.label.name: Y if y is None else y})
    return simulate(params, Devices.of(params, params.schema.encode(dict(X)), labels, holders), SeededEntropy(0)).model.weights


class TestDevices:
    def test_are_the_declared_size(self) -> None:
        assert "of 700 peers" in usual().privacy_.purpose
        assert "of 88 peers" in fitted(batch_size=8).privacy_.purpose
        assert "of 60 peers" in fitted(holders=np.arange(N) % 60, batch_size=8).privacy_.purpose

    def test_hold_the_rows_of_one_name(self) -> None:
        whose = np.random.default_rng(0).integers(0, 200, N)
        numbers = np.unique(whose, return_index=True)[1].argsort().argsort()[np.unique(whose, return_inverse=True)[1]]
        params = Params(SCHEMA, 8.0, len(set(whose.tolist())), batch_size=2)
        expected = simulated(params, holders=numbers)
        for names in (whose, whose.astype(float), [f"device {i}" for i in whose], pd.Series(whose, index=np.arange(N)[::-1])):
            np.testing.assert_array_equal(weights(fitted(holders=names, batch_size=2)), expected)
        np.testing.assert_array_equal(weights(fitted(holders=np.arange(N) // 3, batch_size=3)), weights(fitted(batch_size=3)))

    @pytest.mark.parametrize("n", [1, 2, 19, 30])
    def test_may_be_fewer_than_instances(self, n: int) -> None:
        model = fitted(Y[:n], X[:n])
        assert model.predict(X_NEW).shape == Y_NEW.shape
        np.testing.assert_array_equal(weights(fitted(Y[:n], X[:n], n_instances=min(n, 20))), weights(model))
        assert np.isfinite(regressed(P[:n], X[:n]).predict(X_NEW)).all()

    @pytest.mark.parametrize(
        ("holders", "code", "words"),
        [
            ([None] * N, "DATA-005", "holders: 700 rows"),
            (["SECRET"] * 5, "DATA-007", "5 rows, and X has 700 rows"),
            ("SECRET", "DATA-007", "not a list"),
            (np.zeros((N, 2)), "DATA-007", "2 dimensions"),
        ],
    )
    def test_that_are_not_named_have_a_sentence(self, holders: Any, code: str, words: str) -> None:
        error = refused(holders=holders)
        assert error.code == code and words in error.what and error.fix and "SECRET" not in str(error)

    def test_are_known_to_cross_validation(self) -> None:
        scores = cross_val_score(DDMLClassifier(8.0, SCHEMA, random_state=0), X_MANY, Y_MANY, cv=2, params={"holders": np.arange(N_MANY)})
        assert scores.min() > 0.65


class TestInputs:
    def test_frames_and_arrays_say_the_same(self) -> None:
        expected = usual().predict_proba(X_NEW)
        for x, new in ((pl.from_pandas(X), pl.from_pandas(X_NEW)), (X.to_numpy(), X_NEW.to_numpy())):
            np.testing.assert_array_equal(fitted(x=x).predict_proba(new), expected)

    def test_new_rows_may_be_outside_the_schema(self) -> None:
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        for model in (usual(), regressed()):
            np.testing.assert_array_equal(model.predict(known), model.predict(beyond))

    def test_without_a_schema_it_warns(self) -> None:
        for fit in (fitted, regressed):
            with pytest.warns(SchemaInferredWarning):
                model = fit(schema=None)
            assert "nothing that was fitted so may be released" in flat(model.privacy_)

    @inferring
    def test_without_one_the_classes_are_those_of_y(self) -> None:
        y = np.array([1 if ill else 2.5 for ill in Y == "yes"], object)
        assert [type(value) for value in fitted(y, schema=None).classes_] == [int, float]

    @inferring
    def test_without_one_the_range_is_that_of_y(self) -> None:
        model = regressed(P_MANY, X_MANY, schema=None)
        assert model.schema_.label == Numeric("label", P_MANY.min(), P_MANY.max(), missing=False) and model.score(X_NEW, P_NEW) > 0.25
        whole = regressed(np.rint(P).astype(int), schema=None)
        assert whole.schema_.label == Numeric("label", 0, 10, missing=False) and whole.predict(X).dtype == float

    @pytest.mark.parametrize("schema", [NUMBERS, None])
    @pytest.mark.parametrize(
        ("y", "code"), [(["SECRET"] * N, "DATA-004"), ([None] * N, "DATA-005"), ([None, *P[1:]], "DATA-005")], ids=["texts", "none", "one"]
    )
    @inferring
    def test_labels_that_are_no_numbers(self, schema: Any, y: Any, code: str) -> None:
        error = refused(regressed, y=np.array(y, object), schema=schema)
        assert error.code == code and "SECRET" not in str(error) and error.fix

    def test_numbers_outside_their_range(self) -> None:
        assert refused(regressed, y=P + 5).code == "DATA-002" and refused(x=X.assign(age=1e9)).code == "DATA-002"


class TestPrivacy:
    def test_prints_as_the_label_of_a_simulation(self) -> None:
        statement = fitted(epsilon=2.0, n_updates=2, batch_size=9).privacy_
        assert statement.epsilon == 2.0 and statement.delta == 0 and statement.simulated and str(statement.scope.unit) == "update"
        assert SIMULATED in flat(statement) and "epsilon 2.0, delta 0" in flat(statement) and "epsilon 1.0 each" in flat(statement)
        assert "may be released" not in flat(statement)

    def test_a_weight_is_not_all_that_is_sent(self) -> None:
        statement = fitted(epsilon=2.0, unit="weight", batch_size=9).privacy_
        assert statement.epsilon == 2.0 and str(statement.scope.unit) == "weight" and statement.n_weights == 6
        assert "epsilon 12.0, delta 0 for everything you send, against everyone who sees it (6 weights of 1 update)" in flat(statement)
        several = fitted(epsilon=2.0, unit="weight", n_updates=4, batch_size=9).privacy_
        assert (several.epsilon, several.everything) == (0.5, (12.0, 0)) and "6 weights of 4 updates" in flat(several)

    @pytest.mark.parametrize("variant", ["plus", "paper"])
    @pytest.mark.parametrize("fit", [fitted, regressed])
    def test_without_noise_there_is_no_guarantee(self, variant: str, fit: Any) -> None:
        assert fit(epsilon=np.float32("inf"), variant=variant).privacy_ == NoGuarantee()


class TestRandomness:
    def test_a_seed_makes_a_run_repeatable(self) -> None:
        first, again, other = (weights(fitted(random_state=seed, batch_size=9)) for seed in (1, 1, 2))
        assert (first == again).all() and (first != other).any()

    def test_without_a_seed_runs_differ(self) -> None:
        assert (weights(regressed(random_state=None)) != weights(regressed(random_state=None))).any()


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            ({"variant": "better"}, "SPEC-013", "variant"),
            ({"epsilon": -1}, "SPEC-013", "epsilon = -1"),
            ({"epsilon": "1"}, "SPEC-012", "epsilon"),
            ({"unit": "person"}, "SPEC-020", "person"),
            ({"unit": "weight", "delta": 1e-6}, "SPEC-022", "delta"),
            ({"n_updates": 0}, "SPEC-013", "n_updates"),
            ({"batch_size": 0}, "SPEC-013", "batch_size"),
            ({"batch_size": 2.0}, "SPEC-012", "batch_size"),
            ({"batch_size": True}, "SPEC-012", "batch_size"),
            ({"n_instances": 0}, "SPEC-013", "n_instances"),
            ({"n_instances": "20"}, "SPEC-012", "n_instances"),
            ({"merge": "average"}, "SPEC-013", "merge"),
            ({"merge": "blend", "variant": "paper"}, "SPEC-022", "The paper discards"),
            ({"learning_rate": -1.0}, "SPEC-013", "learning_rate"),
            ({"learning_rate": 1e-9}, "PLAN-001", "less than one"),
            ({"crosses": [("age", "nap")]}, "SPEC-021", "nap"),
            ({"decay": "fast"}, "SPEC-013", "decay"),
            ({"schema": {"age": (0, 100)}}, "SCHEMA-001", "schema is of type dict"),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            ({"schema": NUMBERS}, "SPEC-021", "DDMLClassifier predicts categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
    )
    def test_settings(self, settings: dict[str, Any], code: str, words: str) -> None:
        error = refused(**settings)
        assert error.code == code and words in error.what and error.fix

    @pytest.mark.parametrize(
        ("settings", "words"), [({"link": "logit"}, 'link = "logit"'), ({"schema": SCHEMA}, "DDMLRegressor predicts a number")]
    )
    def test_settings_of_a_regressor(self, settings: dict[str, Any], words: str) -> None:
        error = refused(regressed, **settings)
        assert error.code == "SPEC-021" and words in error.what and error.fix

    def test_a_fit_that_fails_leaves_the_estimator_as_it_was(self) -> None:
        model = copy(usual())
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y)
        assert vars(model) == before


class TestTools:
    def test_clone_pipeline_and_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(usual()))
        assert cross_val_score(model, X_MANY, Y_MANY, cv=2).min() > 0.65
        search = GridSearchCV(DDMLRegressor(schema=NUMBERS, random_state=0), {"epsilon": np.array([0.001, 8.0])}, cv=2).fit(X, P)
        assert search.best_params_ == {"epsilon": 8.0}

    def test_a_regressor_has_the_settings_of_a_classifier_and_a_link(self) -> None:
        ours, theirs = (model.get_params() for model in (DDMLRegressor(), DDMLClassifier()))
        assert ours == {"link": "identity", **theirs}

    def test_settings_of_a_regressor_stay_what_they_are(self) -> None:
        told = {name: object() for name in DDMLRegressor().get_params()}
        assert DDMLRegressor(**told).get_params(deep=False) == told

    def test_the_schema_is_kept(self) -> None:
        model = fitted(schema=replace(SCHEMA, label=Categorical("ill", ["yes", "no"])))
        assert model.schema_ is model.schema and model.feature_names_in_.tolist() == ["age", "size", "kind"]

    def test_a_text_needs_no_scikit_learn(self) -> None:
        code = "import sys; sys.modules['sklearn'] = None; import shoal; shoal.Text"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("settings", "said"), [({"batch_size": None}, "batch_size"), ({"n_instances": 5000}, "n_instances = 5000")])
def test_what_no_study_may_have_is_refused_as_it_was_given(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError) as caught:
        fitted(**settings)
    assert said in str(caught.value)
