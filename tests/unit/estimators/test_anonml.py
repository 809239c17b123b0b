"""AnonMLClassifier: predictions, statement, and errors."""

from __future__ import annotations

import math
import subprocess
import sys
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

from shoal import AnonMLClassifier, Categorical, Numeric, Schema, SchemaInferredWarning
from shoal.errors import ShoalError, format_install_command
from shoal.estimators.base import NoGuarantee
from shoal.estimators.inputs import EstimatorError
from shoal.protocols.anonml.model import VoteModel
from shoal.study.label import SIMULATED

N = 6000
SCHEMA = Schema(
    [
        Numeric("age", 0, 100, missing=False),
        Numeric("size", -5, 5, bins=[0]),
        Categorical("kind", ["u", "v", "w"], missing=False),
    ],
    label=Categorical("ill", ["yes", "no"]),
)
PAPER: dict[str, Any] = {"variant": "paper", "n_partitions": 2, "n_subsets": 1, "subset_size": 2}
ignore_inferred_schema = pytest.mark.filterwarnings(
    "ignore::shoal.data.schema.SchemaInferredWarning"
)


def make_rows(n: int = N, seed: int = 5) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.4
    age = np.clip(45 + 25 * ill + 15 * rng.normal(size=n), 0, 100)
    kind = np.array(["u", "v", "w"], object)[np.minimum(rng.integers(0, 3, n) + ill, 2)]
    size = np.where(rng.random(n) < 0.1, np.nan, rng.uniform(-5, 5, n))
    return pd.DataFrame({"age": age, "size": size, "kind": kind}), np.where(ill, "yes", "no")


X, Y = make_rows()
X_NEW, Y_NEW = make_rows(2000, seed=6)


def fit_classifier(y: Any = Y, x: Any = X, **settings: Any) -> AnonMLClassifier:
    return AnonMLClassifier(
        **{"epsilon": 4.0, "schema": SCHEMA, "random_state": 0, **settings}
    ).fit(x, y)


def unwrap_text(text: object) -> str:
    return " ".join(str(text).replace("│", " ").split())


def catch_error(**settings: Any) -> ShoalError:
    with pytest.raises(ShoalError) as error:
        fit_classifier(**settings)
    assert isinstance(error.value, ValueError)
    return error.value


class TestLearning:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            PAPER,
            {**PAPER, "classifier": "tree", "scoring": "auc"},
            {"trust": "shuffled", "delta": 1e-6},
        ],
    )
    def test_classifier_learns_the_label(self, settings: dict[str, Any]) -> None:
        model = fit_classifier(**settings)
        assert model.score(X_NEW, Y_NEW) > 0.7
        assert roc_auc_score(Y_NEW == "yes", model.predict_proba(X_NEW)[:, 1]) > 0.78

    def test_auc_falls_with_a_small_epsilon(self) -> None:
        auc = [
            roc_auc_score(Y_NEW == "yes", fit_classifier(epsilon=e).predict_proba(X_NEW)[:, 1])
            for e in (0.01, 8.0)
        ]
        assert auc[1] > 0.8 and auc[0] < auc[1] - 0.02

    def test_predict_proba_columns_follow_classes(self) -> None:
        model = fit_classifier()
        chances = model.predict_proba(X_NEW)
        assert (
            model.schema_.label is not None
            and model.schema_.label.values == ("yes", "no")
            and model.classes_.tolist() == ["no", "yes"]
        )
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X_NEW))
        assert cross_val_score(model, X, Y, scoring="roc_auc", cv=3).min() > 0.75

    def test_declared_size_is_the_number_of_rows(self) -> None:
        assert fit_classifier(trust="shuffled", delta=1e-6).privacy_.shuffled.n == N

    def test_settings_of_paper_reach_the_protocol(self) -> None:
        model = fit_classifier(variant="paper", n_partitions=3, n_subsets=2, subset_size=1).model_
        assert isinstance(model, VoteModel)
        assert [len(one.features) for one in model.vote.classifiers] == [1] * 6
        weights = [
            [one.weight for one in fit_classifier(**PAPER, scoring=scoring).model_.vote.classifiers]
            for scoring in ("f1", "accuracy")
        ]
        assert weights[0] != weights[1]

    def test_fit_keeps_the_schema_and_adds_bins_to_the_model(self) -> None:
        model = fit_classifier()
        assert (
            model.schema_ is SCHEMA
            and model.schema_["age"].bins is None
            and model.model_.schema["age"].bins
        )
        assert model.n_features_in_ == 3 and model.feature_names_in_.tolist() == [
            "age",
            "size",
            "kind",
        ]


class TestInputs:
    def test_frames_and_arrays_give_the_same_predictions(self) -> None:
        chances = [
            fit_classifier(x=x).predict_proba(new)
            for x, new in (
                (X, X_NEW),
                (pl.from_pandas(X), pl.from_pandas(X_NEW)),
                (X.to_numpy(), X_NEW.to_numpy()),
            )
        ]
        np.testing.assert_array_equal(chances[0], chances[1])
        np.testing.assert_array_equal(chances[0], chances[2])

    def test_frame_may_have_other_columns_and_another_order(self) -> None:
        more = X.assign(other=1)[["other", "kind", "age", "size"]]
        model = fit_classifier(x=more)
        np.testing.assert_array_equal(model.predict_proba(more), fit_classifier().predict_proba(X))
        assert model.n_features_in_ == 4

    def test_predict_clips_rows_outside_the_schema(self) -> None:
        model = fit_classifier()
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        np.testing.assert_array_equal(model.predict_proba(known), model.predict_proba(beyond))
        assert np.isfinite(model.predict_proba(known.assign(kind="unheard of"))).all()

    def test_fit_rejects_rows_outside_the_schema(self) -> None:
        assert catch_error(x=X.assign(age=X["age"] + 50)).code == "DATA-002"

    @pytest.mark.parametrize("name", ["age", "kind"])
    def test_predict_rejects_missing_cells_of_required_features(self, name: str) -> None:
        model = fit_classifier()
        with pytest.raises(EstimatorError, match=f"{name}: 2,000 rows.* missing") as error:
            model.predict(X_NEW.assign(**{name: None}))
        assert error.value.code == "DATA-005"

    @pytest.mark.parametrize(
        ("y", "values", "classes"),
        [
            (Y == "yes", ["True", "False"], [False, True]),
            (pd.Series(Y == "yes", dtype="boolean"), ["True", "False"], [False, True]),
            ((Y == "yes").astype(int), ["1", "0"], [0, 1]),
            ((Y == "yes").astype(int), ["0", "1", "2"], [0, 1, 2]),
            (np.where(Y == "yes", 2.0, 1.0), ["1", "2"], [1.0, 2.0]),
            (np.where(Y == "yes", "yes ", "no"), ["yes", "no"], ["no", "yes "]),
        ],
    )
    def test_classes_have_the_type_of_y_with_a_schema(
        self, y: Any, values: list[str], classes: list[Any]
    ) -> None:
        model = fit_classifier(y, schema=Schema(SCHEMA.features, Categorical("ill", values)))
        assert (
            model.classes_.tolist() == classes
            and model.classes_.dtype.kind == np.asarray(y).dtype.kind
        )
        assert model.score(X, y) > 0.7 and cross_val_score(model, X, y, cv=2).min() > 0.7

    @ignore_inferred_schema
    @pytest.mark.parametrize(
        "y",
        [
            Y,
            (Y == "yes"),
            (Y == "yes").astype(int),
            np.where(Y == "yes", 1.0, -1.0),
            pd.Series(Y, dtype=object),
        ],
    )
    def test_classes_are_those_of_y_without_a_schema(self, y: Any) -> None:
        model = fit_classifier(y, schema=None)
        assert model.classes_.dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(model.classes_, np.unique(y))
        assert (model.predict(X) == y).mean() > 0.7

    def test_fit_without_schema_warns(self) -> None:
        with pytest.warns(SchemaInferredWarning):
            fit_classifier(schema=None)

    @ignore_inferred_schema
    def test_classifier_learns_several_classes(self) -> None:
        y = np.where(Y == "no", "no", np.where(X["kind"] == "w", "very", "little"))
        model = fit_classifier(y, schema=None, epsilon=8.0)
        assert model.classes_.tolist() == ["little", "no", "very"] and model.predict_proba(
            X
        ).shape == (N, 3)
        assert model.score(X, y) > 0.6


class TestRandomness:
    @pytest.mark.parametrize("settings", [{}, PAPER])
    def test_fit_is_repeatable_with_a_seed(self, settings: dict[str, Any]) -> None:
        first, again, other = (
            fit_classifier(random_state=seed, **settings).predict_proba(X_NEW) for seed in (1, 1, 2)
        )
        assert (first == again).all() and (first != other).any()

    def test_fits_without_seed_differ(self) -> None:
        assert (
            fit_classifier(random_state=None).predict_proba(X_NEW)
            != fit_classifier(random_state=None).predict_proba(X_NEW)
        ).any()

    def test_subsets_of_paper_follow_from_the_seed(self) -> None:
        asked = {
            tuple(
                one.features
                for one in fit_classifier(random_state=seed, **PAPER).model_.vote.classifiers
            )
            for seed in range(6)
        }
        assert len(asked) > 1


class TestPrivacy:
    def test_privacy_prints_as_label_of_a_simulation(self) -> None:
        statement = fit_classifier(epsilon=2.0).privacy_
        assert statement.epsilon == 2.0 and statement.delta == 0 and statement.simulated
        assert (
            SIMULATED in unwrap_text(statement)
            and "epsilon 2.0, delta 0" in unwrap_text(statement)
            and "may be released" not in unwrap_text(statement)
        )

    @ignore_inferred_schema
    def test_privacy_says_that_the_schema_was_inferred(self) -> None:
        assert "a model fitted this way must not be released" in unwrap_text(
            fit_classifier(schema=None).privacy_
        )

    def test_privacy_states_real_epsilon_and_that_of_the_paper(self) -> None:
        statement = fit_classifier(
            epsilon=2.0, accounting="paper", variant="paper", n_subsets=2, subset_size=1
        ).privacy_
        assert statement.paper_epsilon == pytest.approx(2.0) and statement.epsilon == pytest.approx(
            3.0
        )
        assert "by the paper's own accounting: epsilon 2" in unwrap_text(statement)
        assert fit_classifier(epsilon=2.0, **PAPER).privacy_.epsilon == pytest.approx(2.0)

    def test_privacy_states_amplified_epsilon_and_its_assumption(self) -> None:
        everyone, half = (
            fit_classifier(epsilon=1.0, trust="shuffled", delta=1e-6, honest_share=share).privacy_
            for share in (None, 0.5)
        )
        assert everyone.epsilon == half.epsilon == 1.0 and half.shuffled.n == N // 2
        assert (
            everyone.shuffled.epsilon < half.shuffled.epsilon < 1.0
            and everyone.shuffled.delta <= 1e-6
        )
        assert "assumes that all are honest" in unwrap_text(
            everyone
        ) and "assumes that all are honest" not in unwrap_text(half)

    @pytest.mark.parametrize("infinity", [math.inf, np.float64("inf"), np.float32("inf")])
    def test_fit_without_perturbation_has_no_guarantee(self, infinity: Any) -> None:
        model = fit_classifier(epsilon=infinity, **PAPER)
        assert model.privacy_ == NoGuarantee() and not hasattr(model.privacy_, "scope")
        assert model.score(X_NEW, Y_NEW) > 0.7


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            ({"variant": "better"}, "SPEC-013", "variant"),
            ({"trust": "blind"}, "SPEC-013", "trust"),
            ({"epsilon": -1}, "SPEC-013", "epsilon = -1"),
            ({"epsilon": math.inf}, "SPEC-013", "epsilon = inf"),
            ({"epsilon": "1"}, "SPEC-012", "epsilon"),
            ({"trust": "shuffled"}, "SPEC-011", "delta"),
            ({"trust": "shuffled", "delta": 1e-6, **PAPER}, "SPEC-020", "shuffled"),
            ({"delta": 1e-6}, "SPEC-022", "delta"),
            ({"honest_share": 0.5}, "SPEC-022", "honest_share"),
            ({"accounting": "paper"}, "SPEC-022", "equation 6"),
            ({"variant": "paper"}, "SPEC-021", "n_subsets"),
            ({**PAPER, "n_partitions": 0}, "SPEC-013", "n_partitions"),
            ({**PAPER, "classifier": "forest"}, "SPEC-013", "classifier"),
            ({**PAPER, "scoring": "luck"}, "SPEC-013", "score"),
            ({"schema": {"age": (0, 100)}}, "SCHEMA-001", "The schema has type dict"),
            ({"schema": Schema(SCHEMA.features)}, "SCHEMA-001", "no label"),
            ({"schema": Schema(SCHEMA.features, Numeric("ill", 0, 1))}, "SPEC-021", "categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
    )
    def test_fit_rejects_invalid_settings(
        self, settings: dict[str, Any], code: str, words: str
    ) -> None:
        error = catch_error(**settings)
        assert error.code == code and words in error.what

    @ignore_inferred_schema
    def test_fit_rejects_too_many_features(self) -> None:
        error = catch_error(x=np.zeros((10, 2001)), y=[0, 1] * 5, schema=None)
        assert error.code == "SPEC-013" and "2000" in error.what

    @ignore_inferred_schema
    def test_fit_accepts_one_class_only_with_a_schema(self) -> None:
        assert "only one class" in catch_error(y=["no"] * N, schema=None).what
        assert set(fit_classifier(["no"] * N).predict(X_NEW)) == {"no"}

    def test_fit_rejects_unknown_labels_without_repeating_them(self) -> None:
        error = catch_error(y=np.where(Y == "yes", "SECRET", "no"))
        assert (
            error.code == "DATA-003"
            and "ill" in error.what
            and error.why
            and error.fix
            and "SECRET" not in str(error)
        )

    def test_fit_rejects_missing_columns(self) -> None:
        assert catch_error(x=X.drop(columns="age")).code == "DATA-001"

    def test_errors_contain_no_cells(self) -> None:
        for x in (["SECRET", "B"], {"a": ["SECRET", "B"]}):
            assert "SECRET" not in str(catch_error(x=x, y=[0, 1], schema=None))

    @ignore_inferred_schema
    def test_fit_without_schema_rejects_columns_of_names(self) -> None:
        error = catch_error(x=X.assign(who=[f"SECRET{i}" for i in range(N)]), schema=None)
        assert error.code == "DATA-007" and "who: " in error.what and "SECRET" not in str(error)

    @pytest.mark.parametrize("x", [X.assign(other=1, age=1e9), X.to_numpy()[:, :2]])
    def test_failed_fit_does_not_change_the_estimator(self, x: Any) -> None:
        model = fit_classifier()
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(x, Y)
        assert vars(model) == before and model.feature_names_in_.tolist() == ["age", "size", "kind"]
        assert model.predict(X_NEW).shape == Y_NEW.shape

    def test_failed_first_fit_sets_no_attribute(self) -> None:
        model = AnonMLClassifier(schema=SCHEMA)
        with pytest.raises(ValueError):
            model.fit(X.assign(age=1e9), Y)
        assert vars(model) == vars(AnonMLClassifier(schema=SCHEMA))

    def test_fit_on_an_array_removes_feature_names(self) -> None:
        assert not hasattr(fit_classifier().fit(X.to_numpy(), Y), "feature_names_in_")


class TestTools:
    def test_classifier_works_in_pipeline_and_grid_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(fit_classifier()))
        assert cross_val_score(model, X, Y, cv=3).min() > 0.65
        search = GridSearchCV(
            AnonMLClassifier(schema=SCHEMA, random_state=0),
            {"epsilon": np.array([0.001, 8.0])},
            cv=2,
        ).fit(X, Y)
        assert search.best_params_ == {"epsilon": 8.0}

    def test_fitted_estimator_has_an_html_view(self) -> None:
        assert "AnonMLClassifier" in fit_classifier()._repr_html_()

    def test_estimator_is_imported_lazily(self) -> None:
        code = (
            "import shoal, sys; assert 'sklearn' not in sys.modules; shoal.AnonMLClassifier; "
            "assert 'sklearn' in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_missing_scikit_learn_raises_usage_002(self) -> None:
        code = "import sys; sys.modules['sklearn'] = None; import shoal; shoal.AnonMLClassifier"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "USAGE-002" in run.stderr and format_install_command("learn") in run.stderr
