"""PFDSClassifier and PFDSRegressor: release, predictions, personal models, and errors."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from shoal import (
    Categorical,
    HoldersDealtWarning,
    Numeric,
    PFDSClassifier,
    PFDSRegressor,
    Schema,
    SchemaInferredWarning,
    Text,
)
from shoal.errors import ShoalError
from shoal.estimators.base import TRUE_SIZE, NoGuarantee
from shoal.estimators.released_data import ReleasedDataModel
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.fitting import fit_own_model
from shoal.protocols.pfds.model import PooledModel, UnreleasedPredictor
from shoal.protocols.pfds.paper.tree import PrivateTree
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.study.label import SIMULATED

N, N_SITES = 1500, 6
FEATURES = [
    Numeric("age", 0, 100, missing=False),
    Numeric("size", -5, 5),
    Categorical("kind", ["u", "v", "w"], missing=False),
]
WHOLE = [
    Numeric("age", 0, 100, missing=False),
    Numeric("size", -5, 5, missing=False),
    Categorical("kind", ["u", "v", "w"], missing=False),
]
ILL = Categorical("ill", ["yes", "no"], missing=False)
PAIN = Numeric("pain", 0, 10, missing=False)
SCHEMA = Schema(FEATURES, ILL)
PAPER = {"variant": "paper", "schema": Schema(WHOLE, ILL), "max_depth": 2}
NUMBERS = Schema(FEATURES, PAIN)
SUMS = {"trust": "secure-sum"}
ignore_assigned_holders = pytest.mark.filterwarnings(
    "ignore::shoal.estimators.inputs.HoldersDealtWarning"
)


def make_rows(n: int, seed: int = 5, missing: float = 0.1) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.45
    age = np.clip(35 + 35 * ill + 12 * rng.normal(size=n), 0, 100)
    kind = np.array(["u", "v", "w"], object)[np.minimum(rng.integers(0, 3, n) + ill, 2)]
    size = np.where(rng.random(n) < missing, np.nan, rng.uniform(-5, 5, n))
    return pd.DataFrame({"age": age, "size": size, "kind": kind}), np.where(ill, "yes", "no")


X, Y = make_rows(N)
X_NEW, Y_NEW = make_rows(1000, seed=6)
FULL = X.fillna({"size": 0.0})
PAINS = np.clip(X["age"] / 10, 0, 10).to_numpy()
SITES = np.random.default_rng(7).integers(0, N_SITES, N)
SITES[:N_SITES] = np.arange(N_SITES)
NAMES = np.array([f"site {i}" for i in SITES])


def fit_classifier(y: Any = Y, x: Any = X, holders: Any = NAMES, **settings: Any) -> PFDSClassifier:
    x = FULL if settings.get("variant") == "paper" and x is X else x
    return PFDSClassifier(**{"epsilon": 4.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(
        x, y, holders
    )


def fit_regressor(
    y: Any = PAINS, x: Any = X, holders: Any = NAMES, **settings: Any
) -> PFDSRegressor:
    x = FULL if settings.get("variant") == "paper" and x is X else x
    return PFDSRegressor(**{"epsilon": 4.0, "schema": NUMBERS, "random_state": 0, **settings}).fit(
        x, y, holders
    )


@cache
def fit_default() -> PFDSClassifier:
    """Return the model with default settings, which no test changes."""
    return fit_classifier()


def encode_predictor(model: PFDSClassifier | PFDSRegressor) -> Any:
    return model.predictors_[0].to_plain()


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
            SUMS,
            SUMS | {"delta": 1e-6, "max_colluders": 1},
            {"epsilon": math.inf},
            SUMS | {"epsilon": math.inf},
            {"learner": "logistic"},
            SUMS | {"learner": "svm"},
            {"learner": RandomForestClassifier(20, random_state=0)},
            {"n_sharers": 3},
            PAPER | {"epsilon": math.inf, "max_depth": 3},
        ],
        ids=str,
    )
    def test_classifier_learns_the_label(self, settings: dict[str, Any]) -> None:
        model = fit_classifier(**settings)
        assert model.score(X_NEW.fillna({"size": 0.0}), Y_NEW) > 0.8
        assert np.mean(model.predict(X_NEW.fillna({"size": 0.0}), holder="site 2") == Y_NEW) > 0.8

    @pytest.mark.parametrize(
        "settings",
        [{}, SUMS, SUMS | {"delta": 1e-6}, {"learner": "ridge"}, {"epsilon": math.inf}],
        ids=str,
    )
    def test_regressor_learns_the_label(self, settings: dict[str, Any]) -> None:
        model = fit_regressor(**settings)
        truth = np.clip(X_NEW["age"] / 10, 0, 10)
        assert model.score(X_NEW, truth) > 0.7
        assert np.abs(model.predict(X_NEW, holder="site 1") - truth).mean() < 1

    def test_labels_of_paper_regressor_follow_buckets(self) -> None:
        model = fit_regressor(
            schema=Schema(WHOLE, PAIN), variant="paper", max_depth=3, n_buckets=5, epsilon=math.inf
        )
        labels = np.concatenate([one.y for one in model.datasets_])
        assert (
            labels.dtype == np.float64
            and labels.min() >= 0
            and labels.max() <= 10
            and len(np.unique(np.floor(labels / 2))) > 2
        )
        assert (
            isinstance(model.model_, ReleasedDataModel)
            and type(model.model_.model).__name__ == "Ridge"
        )
        assert model.score(FULL, PAINS) > 0.3

    def test_regressor_accepts_the_widest_label_range(self) -> None:
        wide = fit_regressor(
            1e307 * PAINS,
            schema=Schema(WHOLE, Numeric("pain", 0, 1e308, missing=False)),
            variant="paper",
            epsilon=math.inf,
        )
        assert all(np.isfinite(one.y).all() for one in wide.datasets_)
        assert np.corrcoef(wide.predict(FULL) / 1e307, PAINS)[0, 1] > 0.5
        assert np.corrcoef(wide.predict(FULL, holder="site 1") / 1e307, PAINS)[0, 1] > 0.5

    def test_score_falls_with_a_small_epsilon(self) -> None:
        scores = [
            np.mean(
                [
                    fit_classifier(epsilon=epsilon, random_state=i).score(X_NEW, Y_NEW)
                    for i in range(4)
                ]
            )
            for epsilon in (0.005, 4.0)
        ]
        assert scores[0] < scores[1] - 0.02

    def test_predict_proba_columns_follow_classes(self) -> None:
        for model in (fit_default(), fit_classifier(learner="logistic")):
            assert model.classes_.tolist() == ["no", "yes"]
            for holder in (None, "site 3"):
                chances = model.predict_proba(X_NEW, holder=holder)
                np.testing.assert_allclose(chances.sum(axis=1), 1)
                np.testing.assert_array_equal(
                    model.classes_[chances.argmax(axis=1)], model.predict(X_NEW, holder=holder)
                )

    def test_pooled_model_predicts_without_a_learner(self) -> None:
        model = fit_default()
        [pooled] = model.predictors_
        assert isinstance(pooled, PooledModel) and model.model_ is pooled
        assert isinstance(fit_classifier(learner="logistic").model_, ReleasedDataModel)

    def test_predictors_of_paper_are_trees_of_all_sharers(self) -> None:
        model = fit_classifier(**PAPER, n_sharers=4)
        assert len(model.predictors_) == 4 and all(
            isinstance(tree, PrivateTree) and tree.counts is None for tree in model.predictors_
        )
        assert isinstance(model.model_, ReleasedDataModel)


class TestDatasets:
    def test_plus_releases_the_declared_number_of_rows(self) -> None:
        [dataset] = fit_default().datasets_
        assert len(dataset) == len(dataset.X) == N and dataset.holder is None
        assert list(dataset.X.columns) == ["age", "size", "kind"] and set(dataset.X["kind"]) <= {
            "u",
            "v",
            "w",
        }
        assert (
            dataset.X["age"].between(0, 100).all()
            and set(dataset.y) == {"no", "yes"}
            and dataset.y.dtype == Y.dtype
        )

    def test_labels_of_released_rows_follow_the_model(self) -> None:
        [dataset] = fit_default().datasets_
        assert np.mean(fit_default().predict(dataset.X) == dataset.y) > 0.75
        assert abs(np.mean(dataset.y == "yes") - np.mean(Y == "yes")) < 0.1

    def test_paper_releases_one_dataset_per_sharer(self) -> None:
        model = fit_classifier(**PAPER, epsilon=math.inf, n_sharers=3)
        assert [one.holder for one in model.datasets_] == list(model.sharers_) and len(
            model.sharers_
        ) == 3
        assert [len(one) for one in model.datasets_] == [
            int((name == NAMES).sum()) for name in model.sharers_
        ]

    def test_datasets_have_the_type_of_the_fitted_rows(self) -> None:
        expected = fit_default().datasets_[0].X
        frame = fit_classifier(x=pl.from_pandas(X)).datasets_[0].X
        assert (
            isinstance(frame, pl.DataFrame) and frame["age"].to_list() == expected["age"].to_list()
        )
        array = fit_classifier(x=X.to_numpy()).datasets_[0].X
        assert (
            isinstance(array, np.ndarray)
            and array.shape == (N, 3)
            and array[:, 2].tolist() == expected["kind"].tolist()
        )
        assert (
            fit_classifier(
                y=Y == "yes", schema=Schema(FEATURES, Categorical("ill", ["True", "False"]))
            )
            .datasets_[0]
            .y.dtype
            == bool
        )

    def test_dataset_array_is_numeric_if_all_features_are(self) -> None:
        """An array with a text feature has dtype object."""
        ages, schema = X[["age", "size"]].to_numpy(), Schema(FEATURES[:2], ILL)
        assert fit_classifier(x=ages, schema=schema).datasets_[0].X.dtype == np.float64
        assert fit_classifier(x=X.to_numpy()).datasets_[0].X.dtype == object

    @pytest.mark.parametrize("settings", [{}, PAPER], ids=str)
    def test_labels_of_datasets_have_the_type_of_the_classes(
        self, settings: dict[str, Any]
    ) -> None:
        ill = Y == "yes"
        for y in (
            ill.astype(np.int64),
            ill.astype(np.float32),
            np.where(ill, "1", "0"),
            np.where(ill, "1", "0").astype(object),
        ):
            model = fit_classifier(
                y,
                **settings
                | {
                    "schema": Schema(
                        WHOLE if settings else FEATURES, Categorical("ill", ["1", "0"])
                    )
                },
            )
            assert all(one.y.dtype == model.classes_.dtype == y.dtype for one in model.datasets_)

    def test_repr_of_datasets_shows_their_size(self) -> None:
        assert (
            repr(fit_default().datasets_) == "(SharedDataset(1,500 rows, 3 columns, holder=None),)"
        )
        trees, frame = fit_classifier(**PAPER), fit_classifier(x=pl.from_pandas(X))
        assert (
            repr(trees.datasets_[2])
            == f"SharedDataset({len(trees.datasets_[2]):,} rows, 3 columns, "
            f"holder='{trees.sharers_[2]}')"
        )
        assert repr(frame.datasets_[0]) == repr(fit_default().datasets_[0])

    def test_datasets_can_be_used_for_another_fit(self) -> None:
        [dataset] = fit_default().datasets_
        again = fit_classifier(dataset.y, dataset.X, np.arange(N) % 5, epsilon=math.inf)
        assert again.score(X_NEW, Y_NEW) > 0.8

    def test_numeric_labels_of_datasets_are_predictions_of_the_model(self) -> None:
        model = fit_regressor()
        [dataset] = model.datasets_
        np.testing.assert_allclose(dataset.y, model.predict(dataset.X))


class TestPersonalModels:
    def test_personal_models_differ_between_holders(self) -> None:
        model = fit_default()
        here, there = (model.predict_proba(X_NEW, holder=name) for name in ("site 0", "site 1"))
        assert (here != there).any() and (here != model.predict_proba(X_NEW)).any()
        np.testing.assert_array_equal(here, fit_classifier().predict_proba(X_NEW, holder="site 0"))

    def test_personal_model_without_release_is_the_own_model(self) -> None:
        """With a useless release the personal model is close to the model of the own rows."""
        model = fit_classifier(epsilon=1e-4)
        params = PFDSParams(SCHEMA, 1e-4, N, n_holders=N_SITES)
        mine = PFDSRows.from_columns(
            params, SCHEMA.encode(dict(X[SITES == 2])), SCHEMA.encode_label({"ill": Y[SITES == 2]})
        )
        own = fit_own_model(params, mine).decide(SCHEMA.encode(dict(X_NEW)))
        assert np.mean(model.predict(X_NEW, holder="site 2") == np.array(["yes", "no"])[own]) > 0.95

    @pytest.mark.parametrize("settings", [PAPER, {"learner": "logistic"}], ids=str)
    def test_learner_trains_on_release_and_own_rows(self, settings: dict[str, Any]) -> None:
        model = fit_classifier(**settings)
        schema = model.schema_
        own = Dataset(
            schema.encode(dict(FULL[SITES == 2] if settings is PAPER else X[SITES == 2])),
            schema.encode_label({"ill": Y[SITES == 2]}),
        )
        shared = [
            Dataset(schema.encode(dict(one.X)), schema.encode_label({"ill": one.y}))
            for one in model.datasets_
        ]
        expected = ReleasedDataModel.train(
            model.model_.params, clone(model.model_.model), [*shared, own]
        )
        new = X_NEW.fillna({"size": 0.0})
        np.testing.assert_allclose(
            model.predict_proba(new, holder="site 2"),
            expected.probabilities(schema.encode(dict(new)))[:, ::-1],
            atol=1e-3,
        )

    def test_readers_have_personal_models(self) -> None:
        model = fit_classifier(n_sharers=2)
        readers = sorted(set(NAMES) - set(model.sharers_))
        assert len(readers) == N_SITES - 2
        assert np.mean(model.predict(X_NEW, holder=readers[0]) == Y_NEW) > 0.8

    @ignore_assigned_holders
    def test_assigned_holders_are_numbered(self) -> None:
        model = fit_classifier(holders=None)
        assert (
            model.sharers_ == tuple(range(10))
            and (model.predict(X_NEW, holder=9) == Y_NEW).mean() > 0.8
        )

    @pytest.mark.parametrize("holder", ["SECRET", 3, math.nan])
    def test_predict_rejects_unknown_holder(self, holder: Any) -> None:
        for predict in (
            fit_default().predict,
            fit_default().predict_proba,
            fit_regressor().predict,
        ):
            error = catch_error(predict, X=X_NEW, holder=holder)
            assert (
                error.code == "USAGE-001"
                and "which has 6 holders" in error.what
                and "SECRET" not in str(error)
            )

    def test_predict_for_holder_before_fit_raises_not_fitted(self) -> None:
        with pytest.raises(NotFittedError):
            PFDSClassifier(schema=SCHEMA).predict(X_NEW, holder="site 0")


class TestNothingPrivateLeaves:
    """Only the fitted estimator contains the rows, for personal models."""

    @pytest.mark.parametrize("settings", [{}, PAPER, {"learner": "logistic"}], ids=str)
    def test_copy_of_estimator_contains_the_release_only(self, settings: dict[str, Any]) -> None:
        marked = FULL.assign(size=-4.987654321)
        model = fit_classifier(x=marked, **settings)
        new = X_NEW.fillna({"size": 0.0})
        before = model.predict(new, holder="site 0")
        kept = pickle.dumps(model)
        assert np.float64(-4.987654321).tobytes() not in kept and b"PersonalModels" not in kept
        for copied in (pickle.loads(kept), copy.deepcopy(model), copy.copy(model)):
            np.testing.assert_array_equal(copied.predict(new), model.predict(new))
            error = catch_error(copied.predict, X=new, holder="site 0")
            assert (
                error.code == "USAGE-001"
                and "does not contain the holders' rows" in error.what
                and "is never released" in str(error.why)
            )
            assert not hasattr(clone(copied), "datasets_")
        np.testing.assert_array_equal(model.predict(new, holder="site 0"), before)

    @pytest.mark.parametrize(
        "settings",
        [{}, PAPER, {"learner": "logistic"}, {"learner": KNeighborsClassifier(1)}],
        ids=str,
    )
    def test_personal_classifier_cannot_be_copied_or_pickled(
        self, settings: dict[str, Any]
    ) -> None:
        """This holds for any learner: a nearest-neighbour model consists of the rows."""
        model = fit_classifier(x=FULL, **settings)
        model.predict(X_NEW.fillna({"size": 0.0}), holder="site 0")
        personal_model = model._find_model("site 0")
        assert isinstance(
            personal_model, PersonalModel if settings == {} else UnreleasedPredictor
        ) and personal_model is model._find_model("site 0")
        for kept in (personal_model, model._personal_models, vars(model)):
            for copy_model in (pickle.dumps, copy.deepcopy):
                with pytest.raises(ShoalError) as error:
                    copy_model(kept)
                assert error.value.code == "PRIVATE-001"
        assert (
            not hasattr(personal_model, "to_plain")
            and not hasattr(personal_model, "model")
            and not hasattr(personal_model, "__dict__")
        )

    def test_personal_regressor_cannot_be_pickled(self) -> None:
        for learner in (None, "ridge"):
            personal_model = fit_regressor(learner=learner)._find_model("site 0")
            with pytest.raises(ShoalError, match="A model fitted to the rows themselves"):
                pickle.dumps(personal_model)

    def test_later_fit_removes_rows_of_the_earlier_fit(self) -> None:
        model = fit_classifier()
        model.fit(X, Y, np.arange(N) % 4)
        assert "which has 4 holders" in catch_error(model.predict, X=X_NEW, holder="site 0").what


class TestSettings:
    def test_settings_reach_the_parameters(self) -> None:
        params = fit_classifier(**PAPER, n_candidates=3, labelling="own").predictors_[0].params
        assert (
            params.variant,
            params.max_depth,
            params.n_candidates,
            params.n_levels,
            params.labelling,
        ) == ("paper", 2, 3, 2, "own")
        assert fit_classifier(**PAPER, projection=False).predictors_[0].params.projection is False
        sums = (
            fit_classifier(**SUMS, delta=1e-6, max_colluders=0, n_sharers=5).predictors_[0].params
        )
        assert (sums.trust, sums.delta, sums.max_colluders, sums.n_holders, sums.minimum) == (
            "secure-sum",
            1e-6,
            0,
            5,
            5,
        )
        assert (
            fit_regressor(schema=Schema(WHOLE, PAIN), variant="paper", n_buckets=4)
            .predictors_[0]
            .params.n_buckets
            == 4
        )

    def test_defaults_follow_the_study(self) -> None:
        assert fit_default().predictors_[0].params.max_colluders == 0
        assert fit_classifier(**SUMS).predictors_[0].params.max_colluders == 2
        assert (
            fit_classifier(variant="paper", schema=Schema(WHOLE, ILL))
            .predictors_[0]
            .params.max_depth
            == 3
        )

    def test_size_and_holders_count_sharers_only(self) -> None:
        model = fit_classifier(n_sharers=2)
        params = model.predictors_[0].params
        n = int(np.isin(NAMES, model.sharers_).sum())
        assert (params.n_holders, params.minimum, params.size) == (2, 2, n) and len(
            model.datasets_[0]
        ) == n
        assert {fit_classifier(n_sharers=2, random_state=seed).sharers_ for seed in range(6)} != {
            model.sharers_
        }

    def test_settings_accept_numpy_numbers(self) -> None:
        given = fit_classifier(
            epsilon=np.float64(0.5), n_sharers=np.int64(4), max_colluders=np.int32(1), **SUMS
        )
        assert encode_predictor(given) == encode_predictor(
            fit_classifier(epsilon=0.5, n_sharers=4, max_colluders=1, **SUMS)
        )

    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            ({"variant": "better"}, "SPEC-013", "variant"),
            ({"epsilon": -1}, "SPEC-013", "epsilon = -1"),
            ({"epsilon": "1"}, "SPEC-012", "epsilon"),
            ({"trust": "shuffled"}, "SPEC-020", 'trust = "shuffled"'),
            ({"delta": 1e-6}, "SPEC-022", "it has no delta"),
            ({"delta": 2.0, **SUMS}, "SPEC-013", "delta"),
            ({"max_colluders": 1}, "SPEC-022", "max_colluders has no meaning"),
            ({"max_colluders": 6, **SUMS}, "SPEC-021", "max_colluders = 6"),
            ({"max_depth": 3}, "SPEC-022", "max_depth belongs to the trees"),
            ({"labelling": "own"}, "SPEC-022", "labelling belongs to the trees"),
            ({"projection": False}, "SPEC-022", "projection belongs to the trees"),
            (PAPER | {"max_depth": 9}, "SPEC-021", "max_depth = 9"),
            (PAPER | {"schema": SCHEMA}, "SPEC-021", "size is a number that may be missing"),
            (PAPER | SUMS, "SPEC-020", 'trust = "secure-sum"'),
            (PAPER | {"labelling": "none"}, "SPEC-013", "labelling"),
            ({"n_sharers": 0}, "SPEC-021", "n_sharers = 0, but 6 holders have rows"),
            ({"n_sharers": 7}, "SPEC-021", "n_sharers = 7"),
            ({"n_sharers": 2, **SUMS}, "SPEC-021", "n_sharers = 2"),
            ({"n_sharers": 2.0}, "SPEC-021", "n_sharers = 2.0"),
            ({"n_sharers": True}, "SPEC-021", "n_sharers = True"),
            ({"learner": "ridge"}, "USAGE-001", "learner = 'ridge'"),
            (
                {"learner": KNeighborsClassifier},
                "USAGE-001",
                "The learner is the class KNeighborsClassifier, not an instance",
            ),
            ({"learner": Ridge()}, "USAGE-001", "Ridge, which is not a classifier"),
            (
                PAPER | {"learner": FunctionTransformer()},
                "USAGE-001",
                "FunctionTransformer, which is not a classifier",
            ),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            ({"schema": NUMBERS}, "SPEC-021", "PFDSClassifier predicts categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
        ids=str,
    )
    def test_invalid_arguments_are_rejected_with_fix(
        self, settings: dict[str, Any], code: str, words: str
    ) -> None:
        error = catch_error(**settings)
        assert error.code == code and words in error.what and error.fix

    def test_wrong_learner_is_rejected_before_any_draw(self) -> None:
        source = np.random.default_rng(1)
        before = source.bit_generator.state
        assert (
            "KNeighborsClassifier, which is not a regressor"
            in catch_error(fit_regressor, learner=KNeighborsClassifier(), random_state=source).what
        )
        assert source.bit_generator.state == before

    def test_n_buckets_needs_numeric_label_and_trees(self) -> None:
        assert "n_buckets belongs to the trees" in catch_error(fit_regressor, n_buckets=4).what
        assert catch_error(fit_regressor, schema=SCHEMA).code == "SPEC-021"

    def test_failed_fit_does_not_change_the_estimator(self) -> None:
        model = fit_classifier(epsilon=0.5)
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y, SITES)
        assert vars(model) == before and len(model.predict(X_NEW, holder="site 0")) == len(X_NEW)


class TestHolders:
    def test_holder_has_all_rows_of_one_name(self) -> None:
        expected = encode_predictor(fit_classifier(holders=SITES))
        for names in (
            SITES.astype(float),
            NAMES,
            pd.Series(NAMES, index=np.arange(N)[::-1]),
            pl.Series(SITES),
        ):
            assert encode_predictor(fit_classifier(holders=names)) == expected

    def test_sharers_keep_their_names(self) -> None:
        assert sorted(fit_default().sharers_) == [f"site {i}" for i in range(N_SITES)]
        assert sorted(fit_classifier(holders=SITES).sharers_) == list(range(N_SITES))
        assert "of 6 holders" in fit_default().privacy_.purpose and "fictitious" not in unwrap_text(
            fit_default().privacy_
        )

    @pytest.mark.parametrize(("n", "n_holders"), [(N, 10), (7, 7)])
    def test_missing_holders_are_assigned_with_a_warning(self, n: int, n_holders: int) -> None:
        with pytest.warns(
            HoldersDealtWarning, match=f"assigned at random to {n_holders} holders"
        ) as caught:
            model = PFDSClassifier(1.0, SCHEMA, random_state=0).fit(X[:n], Y[:n])
        assert caught[0].filename == __file__ and len(model.sharers_) == n_holders
        assert "the owners of rows" in unwrap_text(
            model.privacy_
        ) and "to fictitious holders" in unwrap_text(model.privacy_)

    @pytest.mark.parametrize(
        ("holders", "settings", "code", "words"),
        [
            ([None] * N, {}, "DATA-005", "holders: 1,500 rows"),
            (["SECRET"] * 5, {}, "DATA-007", "5 names, but X has 1,500 rows"),
            (np.arange(N) % 2, SUMS, "SPEC-021", "holders names 2 holders; a secure sum needs 3"),
        ],
    )
    def test_invalid_arguments_are_rejected_with_fix(
        self, holders: Any, settings: dict[str, Any], code: str, words: str
    ) -> None:
        with warnings.catch_warnings(record=True) as said:
            error = catch_error(holders=holders, **settings)
        assert (
            error.code == code
            and words in error.what
            and error.fix
            and "SECRET" not in str(error)
            and not said
        )

    def test_single_holder_may_share(self) -> None:
        assert fit_classifier(holders=["here"] * N).sharers_ == ("here",)


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
        for model in (fit_default(), fit_classifier(learner="logistic")):
            np.testing.assert_array_equal(model.predict_proba(known), model.predict_proba(beyond))

    def test_fit_without_schema_warns(self) -> None:
        with pytest.warns(SchemaInferredWarning):
            model = fit_classifier(schema=None)
        assert "a model fitted this way must not be released" in unwrap_text(model.privacy_)

    def test_fit_rejects_texts(self) -> None:
        error = catch_error(
            x=X.assign(said="a b"), schema=Schema(FEATURES, ILL, [Text("said", 32)])
        )
        assert error.code == "SPEC-022" and "said is a text" in error.what

    def test_classifier_learns_several_classes(self) -> None:
        grade = np.select([X["age"] < 40, X["age"] < 65], ["low", "middle"], "high")
        model = fit_classifier(
            grade, schema=Schema(FEATURES, Categorical("grade", ["low", "middle", "high"]))
        )
        assert model.predict_proba(X).shape == (N, 3) and model.score(X, grade) > 0.8
        assert model.predict_proba(X, holder="site 0").shape == (N, 3) and set(
            model.datasets_[0].y
        ) == {"low", "middle", "high"}


class TestPrivacy:
    def test_privacy_prints_as_label_of_a_simulation(self) -> None:
        for model in (
            fit_classifier(epsilon=0.5),
            fit_classifier(epsilon=0.5, **PAPER),
            fit_regressor(epsilon=0.5),
        ):
            statement = model.privacy_
            assert (statement.epsilon, statement.delta, statement.simulated) == (0.5, 0, True)
            assert str(statement.scope) == "record, add-remove, against all who read the release"
            assert SIMULATED in unwrap_text(statement) and "epsilon 0.5, delta 0" in unwrap_text(
                statement
            )

    @ignore_assigned_holders
    def test_privacy_says_that_number_of_rows_is_not_covered(self) -> None:
        """The study declares the exact number of shared rows, which a real study would not."""
        for model in (
            fit_default(),
            fit_classifier(**PAPER),
            fit_classifier(**SUMS),
            fit_classifier(holders=None),
            fit_regressor(),
        ):
            assert model.privacy_.not_covered.count(
                TRUE_SIZE
            ) == 1 and "the simulation uses it as the declared size" in unwrap_text(model.privacy_)

    def test_privacy_states_epsilon_and_delta(self) -> None:
        statement = fit_classifier(**SUMS, epsilon=0.5, delta=1e-6, max_colluders=1).privacy_
        assert (
            statement.epsilon <= 0.5
            and statement.delta == 1e-6
            and "up to 1 colluding holder" in str(statement.scope)
        )

    @pytest.mark.parametrize("settings", [{}, SUMS, PAPER], ids=str)
    def test_fit_without_noise_has_no_guarantee(self, settings: dict[str, Any]) -> None:
        assert fit_classifier(epsilon=np.float32("inf"), **settings).privacy_ == NoGuarantee()


class TestRandomness:
    @pytest.mark.parametrize("settings", [{}, SUMS], ids=str)
    def test_fit_is_repeatable_with_a_seed(self, settings: dict[str, Any]) -> None:
        first, again, other = (fit_classifier(random_state=seed, **settings) for seed in (1, 1, 2))
        assert encode_predictor(first) == encode_predictor(again) != encode_predictor(other)
        np.testing.assert_array_equal(first.datasets_[0].y, again.datasets_[0].y)
        # The order in which personal models are requested does not matter.
        first.predict(X_NEW, holder="site 4")
        np.testing.assert_array_equal(
            first.predict_proba(X_NEW, holder="site 1"), again.predict_proba(X_NEW, holder="site 1")
        )

    def test_fits_without_seed_differ(self) -> None:
        assert encode_predictor(fit_classifier(random_state=None)) != encode_predictor(
            fit_classifier(random_state=None)
        )


class TestTools:
    @ignore_assigned_holders
    def test_classifier_works_in_pipeline_and_grid_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(fit_default()))
        assert cross_val_score(model, X, Y, cv=2).min() > 0.75
        search = GridSearchCV(
            PFDSClassifier(schema=SCHEMA, random_state=0),
            {"epsilon": np.array([0.0001, 4.0])},
            cv=2,
        )
        assert search.fit(X, Y, holders=SITES).best_params_ == {"epsilon": 4.0}

    def test_fit_keeps_schema_and_feature_names(self) -> None:
        model = fit_default()
        assert (
            model.schema_ is model.schema
            and model.feature_names_in_.tolist() == ["age", "size", "kind"]
            and model.n_features_in_ == 3
        )
