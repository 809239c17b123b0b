"""DDMLClassifier and DDMLRegressor: predictions, statements, and errors."""

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

from shoal import (
    AnonMLClassifier,
    Categorical,
    DDMLClassifier,
    DDMLRegressor,
    Numeric,
    Schema,
    SchemaInferredWarning,
    Text,
)
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.estimators.base import NoGuarantee
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import DevicePopulation, simulate
from shoal.study.label import SIMULATED

N, N_MANY = 700, 2400
FEATURES = [
    Numeric("age", 0, 100, missing=False),
    Numeric("size", -5, 5),
    Categorical("kind", ["u", "v", "w"], missing=False),
]
ILL = Categorical("ill", ["yes", "no"], missing=False)
PAIN = Numeric("pain", 0, 10, missing=False)
SCHEMA, NUMBERS = Schema(FEATURES, ILL), Schema(FEATURES, PAIN)
SPOKEN = Schema([FEATURES[0]], ILL, [Text("said", 32)])
ignore_inferred_schema = pytest.mark.filterwarnings(
    "ignore::shoal.data.schema.SchemaInferredWarning"
)


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


def fit_classifier(y: Any = Y, x: Any = X, holders: Any = None, **settings: Any) -> DDMLClassifier:
    return DDMLClassifier(**{"epsilon": 8.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(
        x, y, holders
    )


def fit_regressor(y: Any = P, x: Any = X, holders: Any = None, **settings: Any) -> DDMLRegressor:
    return DDMLRegressor(**{"epsilon": 8.0, "schema": NUMBERS, "random_state": 0, **settings}).fit(
        x, y, holders
    )


@cache
def fit_default() -> DDMLClassifier:
    """Return the model with default settings, which no test changes."""
    return fit_classifier()


def compute_auc(model: DDMLClassifier) -> float:
    return float(roc_auc_score(Y_NEW == "yes", model.predict_proba(X_NEW)[:, 1]))


def get_weights(model: DDMLClassifier | DDMLRegressor) -> Any:
    return model.model_.weights


def unwrap_text(text: object) -> str:
    return " ".join(str(text).replace("│", " ").split())


def catch_error(fit: Any = fit_classifier, **settings: Any) -> ShoalError:
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
    def test_classifier_learns_the_label(self, settings: dict[str, Any]) -> None:
        assert compute_auc(fit_classifier(Y_MANY, X_MANY, **settings)) > 0.8

    @pytest.mark.parametrize("settings", [{}, {"link": "log"}, {"epsilon": math.inf}])
    def test_regressor_learns_numbers_in_their_range(self, settings: dict[str, Any]) -> None:
        model = fit_regressor(P_MANY, X_MANY, **settings)
        predicted = model.predict(X_NEW)
        assert model.score(X_NEW, P_NEW) > 0.25 and predicted.min() >= 0 and predicted.max() <= 10
        assert model.model_.link == settings.get("link", "identity")

    def test_auc_falls_with_a_small_epsilon(self) -> None:
        assert compute_auc(fit_classifier(epsilon=0.01)) < compute_auc(fit_default()) - 0.02

    def test_predict_proba_columns_follow_classes(self) -> None:
        model = fit_default()
        chances = model.predict_proba(X_NEW)
        assert model.classes_.tolist() == ["no", "yes"] and model.model_.classes == ("yes", "no")
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X_NEW))

    @ignore_inferred_schema
    def test_classifier_learns_several_classes(self) -> None:
        y = np.where(Y_MANY == "no", 0, np.where(X_MANY["kind"] == "w", 7, 3))
        model = fit_classifier(y, X_MANY, schema=None)
        assert model.classes_.tolist() == [0, 3, 7] and model.predict_proba(X_NEW).shape == (
            len(X_NEW),
            3,
        )
        assert model.model_.link == "multinomial" and model.score(X_MANY, y) > 0.62

    def test_classifier_learns_from_texts(self) -> None:
        model = fit_classifier(Y_MANY, SAID, schema=SPOKEN)
        assert model.score(SAID, Y_MANY) > 0.95 and model.n_features_in_ == 2
        few, same = (fit_classifier(Y, x, schema=SPOKEN) for x in (SAID[:N], SAID[:N].to_numpy()))
        np.testing.assert_array_equal(same.predict(SAID.to_numpy()), few.predict(SAID))
        assert "2 features" in model.privacy_.purpose

    def test_anonml_rejects_texts(self) -> None:
        error = catch_error(lambda: AnonMLClassifier(schema=SPOKEN).fit(SAID, Y_MANY))
        assert error.code == "SPEC-022" and "said is a text" in error.what


class TestSettings:
    """A fit equals a simulation of the protocol with the same parameters and seed."""

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"variant": "paper", "merge": "discard", "averaging": False, "centred": False},
            {
                "unit": "weight",
                "n_updates": 2,
                "n_instances": 7,
                "merge": "discard",
                "decay": "sqrt",
                "averaging": False,
            },
            {
                "batch_size": 5,
                "learning_rate": 3.0,
                "clip": 0.5,
                "crosses": (("age", "kind"),),
                "centred": False,
                "delta": 0.01,
            },
        ],
    )
    def test_settings_of_classifier_reach_the_protocol(self, settings: dict[str, Any]) -> None:
        n_devices = -(-N // settings.get("batch_size", 1))
        expected = simulate_weights(DDMLParams(SCHEMA, 8.0, n_devices, **settings))
        np.testing.assert_array_equal(get_weights(fit_classifier(**settings)), expected)

    @pytest.mark.parametrize("link", ["identity", "log"])
    def test_settings_of_regressor_reach_the_protocol(self, link: Any) -> None:
        settings: dict[str, Any] = {
            "link": link,
            "n_updates": 2,
            "merge": "discard",
            "batch_size": 7,
            "unit": "weight",
        }
        expected = simulate_weights(DDMLParams(NUMBERS, 8.0, -(-N // 7), **settings), P)
        np.testing.assert_array_equal(get_weights(fit_regressor(**settings)), expected)

    def test_defaults_follow_the_variant(self) -> None:
        told = {"merge": "discard", "averaging": False, "centred": False}
        np.testing.assert_array_equal(
            get_weights(fit_classifier(variant="paper")),
            get_weights(fit_classifier(variant="paper", **told)),
        )
        told = {"merge": "blend", "averaging": True, "centred": True}
        np.testing.assert_array_equal(
            get_weights(fit_default()), get_weights(fit_classifier(**told))
        )

    def test_settings_accept_lists_and_numpy_numbers(self) -> None:
        same = fit_classifier(
            crosses=((np.str_("age"), "kind"),),
            n_instances=np.int64(9),
            batch_size=np.int32(2),
            averaging=np.True_,
        )
        np.testing.assert_array_equal(
            get_weights(same),
            get_weights(
                fit_classifier(
                    crosses=[["age", "kind"]], n_instances=9, batch_size=2, averaging=True
                )
            ),
        )


def simulate_weights(params: DDMLParams, y: Any = None, holders: Any = None) -> Any:
    assert params.schema.label is not None
    labels = params.schema.encode_label({params.schema.label.name: Y if y is None else y})
    return simulate(
        params,
        DevicePopulation.from_columns(params, params.schema.encode(dict(X)), labels, holders),
        SeededEntropy(0),
    ).model.weights


class TestDevices:
    def test_declared_size_is_the_number_of_devices(self) -> None:
        assert "of 700 peers" in fit_default().privacy_.purpose
        assert "of 88 peers" in fit_classifier(batch_size=8).privacy_.purpose
        assert (
            "of 60 peers"
            in fit_classifier(holders=np.arange(N) % 60, batch_size=8).privacy_.purpose
        )

    def test_device_holds_all_rows_of_one_name(self) -> None:
        owners = np.random.default_rng(0).integers(0, 200, N)
        numbers = (
            np.unique(owners, return_index=True)[1]
            .argsort()
            .argsort()[np.unique(owners, return_inverse=True)[1]]
        )
        params = DDMLParams(SCHEMA, 8.0, len(set(owners.tolist())), batch_size=2)
        expected = simulate_weights(params, holders=numbers)
        for names in (
            owners,
            owners.astype(float),
            [f"device {i}" for i in owners],
            pd.Series(owners, index=np.arange(N)[::-1]),
        ):
            np.testing.assert_array_equal(
                get_weights(fit_classifier(holders=names, batch_size=2)), expected
            )
        np.testing.assert_array_equal(
            get_weights(fit_classifier(holders=np.arange(N) // 3, batch_size=3)),
            get_weights(fit_classifier(batch_size=3)),
        )

    @pytest.mark.parametrize("n", [1, 2, 19, 30])
    def test_devices_may_be_fewer_than_instances(self, n: int) -> None:
        model = fit_classifier(Y[:n], X[:n])
        assert model.predict(X_NEW).shape == Y_NEW.shape
        np.testing.assert_array_equal(
            get_weights(fit_classifier(Y[:n], X[:n], n_instances=min(n, 20))), get_weights(model)
        )
        assert np.isfinite(fit_regressor(P[:n], X[:n]).predict(X_NEW)).all()

    @pytest.mark.parametrize(
        ("holders", "code", "words"),
        [
            ([None] * N, "DATA-005", "holders: 700 rows"),
            (["SECRET"] * 5, "DATA-007", "5 names, but X has 700 rows"),
            ("SECRET", "DATA-007", "not a list"),
            (np.zeros((N, 2)), "DATA-007", "2 dimensions"),
        ],
    )
    def test_invalid_holders_are_rejected_without_repeating_them(
        self, holders: Any, code: str, words: str
    ) -> None:
        error = catch_error(holders=holders)
        assert (
            error.code == code and words in error.what and error.fix and "SECRET" not in str(error)
        )

    def test_cross_validation_passes_holders(self) -> None:
        scores = cross_val_score(
            DDMLClassifier(8.0, SCHEMA, random_state=0),
            X_MANY,
            Y_MANY,
            cv=2,
            params={"holders": np.arange(N_MANY)},
        )
        assert scores.min() > 0.65


class TestInputs:
    def test_frames_and_arrays_give_the_same_predictions(self) -> None:
        expected = fit_default().predict_proba(X_NEW)
        for x, new in (
            (pl.from_pandas(X), pl.from_pandas(X_NEW)),
            (X.to_numpy(), X_NEW.to_numpy()),
        ):
            np.testing.assert_array_equal(fit_classifier(x=x).predict_proba(new), expected)

    def test_predict_clips_rows_outside_the_schema(self) -> None:
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        for model in (fit_default(), fit_regressor()):
            np.testing.assert_array_equal(model.predict(known), model.predict(beyond))

    def test_fit_without_schema_warns(self) -> None:
        for fit in (fit_classifier, fit_regressor):
            with pytest.warns(SchemaInferredWarning):
                model = fit(schema=None)
            assert "a model fitted this way must not be released" in unwrap_text(model.privacy_)

    @ignore_inferred_schema
    def test_classes_are_those_of_y_without_a_schema(self) -> None:
        y = np.array([1 if ill else 2.5 for ill in Y == "yes"], object)
        assert [type(value) for value in fit_classifier(y, schema=None).classes_] == [int, float]

    @ignore_inferred_schema
    def test_range_is_that_of_y_without_a_schema(self) -> None:
        model = fit_regressor(P_MANY, X_MANY, schema=None)
        assert (
            model.schema_.label == Numeric("label", P_MANY.min(), P_MANY.max(), missing=False)
            and model.score(X_NEW, P_NEW) > 0.25
        )
        whole = fit_regressor(np.rint(P).astype(int), schema=None)
        assert (
            whole.schema_.label == Numeric("label", 0, 10, missing=False)
            and whole.predict(X).dtype == float
        )

    @pytest.mark.parametrize("schema", [NUMBERS, None])
    @pytest.mark.parametrize(
        ("y", "code"),
        [(["SECRET"] * N, "DATA-004"), ([None] * N, "DATA-005"), ([None, *P[1:]], "DATA-005")],
        ids=["texts", "none", "one"],
    )
    @ignore_inferred_schema
    def test_regressor_rejects_labels_that_are_not_numbers(
        self, schema: Any, y: Any, code: str
    ) -> None:
        error = catch_error(fit_regressor, y=np.array(y, object), schema=schema)
        assert error.code == code and "SECRET" not in str(error) and error.fix

    def test_fit_rejects_numbers_outside_their_range(self) -> None:
        assert (
            catch_error(fit_regressor, y=P + 5).code == "DATA-002"
            and catch_error(x=X.assign(age=1e9)).code == "DATA-002"
        )


class TestPrivacy:
    def test_privacy_prints_as_label_of_a_simulation(self) -> None:
        statement = fit_classifier(epsilon=2.0, n_updates=2, batch_size=9).privacy_
        assert (
            statement.epsilon == 2.0
            and statement.delta == 0
            and statement.simulated
            and str(statement.scope.unit) == "update"
        )
        assert (
            SIMULATED in unwrap_text(statement)
            and "epsilon 2.0, delta 0" in unwrap_text(statement)
            and "epsilon 1.0 each" in unwrap_text(statement)
        )
        assert "may be released" not in unwrap_text(statement)

    def test_privacy_of_unit_weight_states_epsilon_of_everything(self) -> None:
        statement = fit_classifier(epsilon=2.0, unit="weight", batch_size=9).privacy_
        assert (
            statement.epsilon == 2.0
            and str(statement.scope.unit) == "weight"
            and statement.n_weights == 6
        )
        assert (
            "epsilon 12.0, delta 0 for everything you send, against everyone who sees it (6 "
            "weights of 1 update)" in unwrap_text(statement)
        )
        several = fit_classifier(epsilon=2.0, unit="weight", n_updates=4, batch_size=9).privacy_
        assert (several.epsilon, several.everything) == (
            0.5,
            (12.0, 0),
        ) and "6 weights of 4 updates" in unwrap_text(several)

    @pytest.mark.parametrize("variant", ["plus", "paper"])
    @pytest.mark.parametrize("fit", [fit_classifier, fit_regressor])
    def test_fit_without_noise_has_no_guarantee(self, variant: str, fit: Any) -> None:
        assert fit(epsilon=np.float32("inf"), variant=variant).privacy_ == NoGuarantee()


class TestRandomness:
    def test_fit_is_repeatable_with_a_seed(self) -> None:
        first, again, other = (
            get_weights(fit_classifier(random_state=seed, batch_size=9)) for seed in (1, 1, 2)
        )
        assert (first == again).all() and (first != other).any()

    def test_fits_without_seed_differ(self) -> None:
        assert (
            get_weights(fit_regressor(random_state=None))
            != get_weights(fit_regressor(random_state=None))
        ).any()


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
            ({"schema": {"age": (0, 100)}}, "SCHEMA-001", "The schema has type dict"),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            ({"schema": NUMBERS}, "SPEC-021", "DDMLClassifier predicts categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
    )
    def test_classifier_rejects_invalid_settings(
        self, settings: dict[str, Any], code: str, words: str
    ) -> None:
        error = catch_error(**settings)
        assert error.code == code and words in error.what and error.fix

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"link": "logit"}, 'link = "logit"'),
            ({"schema": SCHEMA}, "DDMLRegressor predicts a number"),
        ],
    )
    def test_regressor_rejects_invalid_settings(self, settings: dict[str, Any], words: str) -> None:
        error = catch_error(fit_regressor, **settings)
        assert error.code == "SPEC-021" and words in error.what and error.fix

    def test_failed_fit_does_not_change_the_estimator(self) -> None:
        model = copy(fit_default())
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y)
        assert vars(model) == before


class TestTools:
    def test_estimators_work_in_pipeline_and_grid_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(fit_default()))
        assert cross_val_score(model, X_MANY, Y_MANY, cv=2).min() > 0.65
        search = GridSearchCV(
            DDMLRegressor(schema=NUMBERS, random_state=0), {"epsilon": np.array([0.001, 8.0])}, cv=2
        ).fit(X, P)
        assert search.best_params_ == {"epsilon": 8.0}

    def test_regressor_has_settings_of_classifier_and_link(self) -> None:
        ours, theirs = (model.get_params() for model in (DDMLRegressor(), DDMLClassifier()))
        assert ours == {"link": "identity", **theirs}

    def test_regressor_keeps_its_settings_unchanged(self) -> None:
        told = {name: object() for name in DDMLRegressor().get_params()}
        assert DDMLRegressor(**told).get_params(deep=False) == told

    def test_fit_keeps_schema_and_feature_names(self) -> None:
        model = fit_classifier(schema=replace(SCHEMA, label=Categorical("ill", ["yes", "no"])))
        assert model.schema_ is model.schema and model.feature_names_in_.tolist() == [
            "age",
            "size",
            "kind",
        ]

    def test_text_is_imported_without_scikit_learn(self) -> None:
        code = "import sys; sys.modules['sklearn'] = None; import shoal; shoal.Text"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"batch_size": None}, "batch_size"), ({"n_instances": 5000}, "n_instances = 5000")],
)
def test_error_of_invalid_setting_names_the_given_value(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ShoalError) as caught:
        fit_classifier(**settings)
    assert said in str(caught.value)
