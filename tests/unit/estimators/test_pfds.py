"""PFDSClassifier and PFDSRegressor: what is shared, what predicts, what stays at home, and sentences for what they cannot do."""

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

from shoal import Categorical, HoldersDealtWarning, Numeric, PFDSClassifier, PFDSRegressor, Schema, SchemaInferredWarning, Text
from shoal.errors import ShoalError
from shoal.estimators.learners import Learned
from shoal.estimators.studies import TRUE_SIZE, NoGuarantee
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.fitting import own_model
from shoal.protocols.pfds.home import Home
from shoal.protocols.pfds.model import Kept, Model
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.tree import PrivateTree
from shoal.study.label import SIMULATED

N, N_SITES = 1500, 6
FEATURES = [Numeric("age", 0, 100, missing=False), Numeric("size", -5, 5), Categorical("kind", ["u", "v", "w"], missing=False)]
WHOLE = [Numeric("age", 0, 100, missing=False), Numeric("size", -5, 5, missing=False), Categorical("kind", ["u", "v", "w"], missing=False)]
ILL = Categorical("ill", ["yes", "no"], missing=False)
PAIN = Numeric("pain", 0, 10, missing=False)
SCHEMA = Schema(FEATURES, ILL)
PAPER = {"variant": "paper", "schema": Schema(WHOLE, ILL), "max_depth": 2}
NUMBERS = Schema(FEATURES, PAIN)
SUMS = {"trust": "secure-sum"}
dealing = pytest.mark.filterwarnings("ignore::shoal.estimators.inputs.HoldersDealtWarning")


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


def fitted(y: Any = Y, x: Any = X, holders: Any = NAMES, **settings: Any) -> PFDSClassifier:
    x = FULL if settings.get("variant") == "paper" and x is X else x
    return PFDSClassifier(**{"epsilon": 4.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(x, y, holders)


def regressed(y: Any = PAINS, x: Any = X, holders: Any = NAMES, **settings: Any) -> PFDSRegressor:
    x = FULL if settings.get("variant") == "paper" and x is X else x
    return PFDSRegressor(**{"epsilon": 4.0, "schema": NUMBERS, "random_state": 0, **settings}).fit(x, y, holders)


@cache
def usual() -> PFDSClassifier:
    """The model of the usual settings, which no test changes."""
    return fitted()


def plain(model: PFDSClassifier | PFDSRegressor) -> Any:
    return model.predictors_[0].to_plain()


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
    def test_learns_what_there_is_to_learn(self, settings: dict[str, Any]) -> None:
        model = fitted(**settings)
        assert model.score(X_NEW.fillna({"size": 0.0}), Y_NEW) > 0.8
        assert np.mean(model.predict(X_NEW.fillna({"size": 0.0}), holder="site 2") == Y_NEW) > 0.8

    @pytest.mark.parametrize("settings", [{}, SUMS, SUMS | {"delta": 1e-6}, {"learner": "ridge"}, {"epsilon": math.inf}], ids=str)
    def test_so_does_the_regressor(self, settings: dict[str, Any]) -> None:
        model = regressed(**settings)
        truth = np.clip(X_NEW["age"] / 10, 0, 10)
        assert model.score(X_NEW, truth) > 0.7
        assert np.abs(model.predict(X_NEW, holder="site 1") - truth).mean() < 1

    def test_numbers_of_the_papers_trees_come_in_buckets(self) -> None:
        model = regressed(schema=Schema(WHOLE, PAIN), variant="paper", max_depth=3, n_buckets=5, epsilon=math.inf)
        labels = np.concatenate([one.y for one in model.datasets_])
        assert labels.dtype == np.float64 and labels.min() >= 0 and labels.max() <= 10 and len(np.unique(np.floor(labels / 2))) > 2
        assert isinstance(model.model_, Learned) and type(model.model_.model).__name__ == "Ridge"
        assert model.score(FULL, PAINS) > 0.3

    def test_the_range_of_a_label_may_be_as_wide_as_numbers_go(self) -> None:
        wide = regressed(1e307 * PAINS, schema=Schema(WHOLE, Numeric("pain", 0, 1e308, missing=False)), variant="paper", epsilon=math.inf)
        assert all(np.isfinite(one.y).all() for one in wide.datasets_)
        assert np.corrcoef(wide.predict(FULL) / 1e307, PAINS)[0, 1] > 0.5
        assert np.corrcoef(wide.predict(FULL, holder="site 1") / 1e307, PAINS)[0, 1] > 0.5

    def test_noise_grows_as_the_budget_shrinks(self) -> None:
        scores = [np.mean([fitted(epsilon=epsilon, random_state=i).score(X_NEW, Y_NEW) for i in range(4)]) for epsilon in (0.005, 4.0)]
        assert scores[0] < scores[1] - 0.02

    def test_columns_of_the_chances_are_in_the_order_of_the_classes(self) -> None:
        for model in (usual(), fitted(learner="logistic")):
            assert model.classes_.tolist() == ["no", "yes"]
            for holder in (None, "site 3"):
                chances = model.predict_proba(X_NEW, holder=holder)
                np.testing.assert_allclose(chances.sum(axis=1), 1)
                np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X_NEW, holder=holder))

    def test_without_a_learner_the_pooled_model_predicts(self) -> None:
        model = usual()
        [pooled] = model.predictors_
        assert isinstance(pooled, Model) and model.model_ is pooled
        assert isinstance(fitted(learner="logistic").model_, Learned)

    def test_the_papers_predictors_are_the_trees_of_all_who_share(self) -> None:
        model = fitted(**PAPER, n_sharers=4)
        assert len(model.predictors_) == 4 and all(isinstance(tree, PrivateTree) and tree.counts is None for tree in model.predictors_)
        assert isinstance(model.model_, Learned)


class TestDatasets:
    def test_plus_releases_as_many_rows_as_were_declared(self) -> None:
        [dataset] = usual().datasets_
        assert len(dataset) == len(dataset.X) == N and dataset.holder is None
        assert list(dataset.X.columns) == ["age", "size", "kind"] and set(dataset.X["kind"]) <= {"u", "v", "w"}
        assert dataset.X["age"].between(0, 100).all() and set(dataset.y) == {"no", "yes"} and dataset.y.dtype == Y.dtype

    def test_its_labels_are_those_of_the_model(self) -> None:
        [dataset] = usual().datasets_
        assert np.mean(usual().predict(dataset.X) == dataset.y) > 0.75
        assert abs(np.mean(dataset.y == "yes") - np.mean(Y == "yes")) < 0.1

    def test_the_paper_releases_those_of_each_who_shares(self) -> None:
        model = fitted(**PAPER, epsilon=math.inf, n_sharers=3)
        assert [one.holder for one in model.datasets_] == list(model.sharers_) and len(model.sharers_) == 3
        assert [len(one) for one in model.datasets_] == [int((name == NAMES).sum()) for name in model.sharers_]

    def test_are_of_the_kind_that_was_fitted(self) -> None:
        expected = usual().datasets_[0].X
        frame = fitted(x=pl.from_pandas(X)).datasets_[0].X
        assert isinstance(frame, pl.DataFrame) and frame["age"].to_list() == expected["age"].to_list()
        array = fitted(x=X.to_numpy()).datasets_[0].X
        assert isinstance(array, np.ndarray) and array.shape == (N, 3) and array[:, 2].tolist() == expected["kind"].tolist()
        assert fitted(y=Y == "yes", schema=Schema(FEATURES, Categorical("ill", ["True", "False"]))).datasets_[0].y.dtype == bool

    def test_an_array_is_of_numbers_where_all_features_are(self) -> None:
        """A text makes it one of objects."""
        ages, schema = X[["age", "size"]].to_numpy(), Schema(FEATURES[:2], ILL)
        assert fitted(x=ages, schema=schema).datasets_[0].X.dtype == np.float64
        assert fitted(x=X.to_numpy()).datasets_[0].X.dtype == object

    @pytest.mark.parametrize("settings", [{}, PAPER], ids=str)
    def test_labels_are_of_the_type_of_the_classes(self, settings: dict[str, Any]) -> None:
        ill = Y == "yes"
        for y in (ill.astype(np.int64), ill.astype(np.float32), np.where(ill, "1", "0"), np.where(ill, "1", "0").astype(object)):
            model = fitted(y, **settings | {"schema": Schema(WHOLE if settings else FEATURES, Categorical("ill", ["1", "0"]))})
            assert all(one.y.dtype == model.classes_.dtype == y.dtype for one in model.datasets_)

    def test_say_how_large_they_are(self) -> None:
        assert repr(usual().datasets_) == "(SharedDataset(1,500 rows, 3 columns, holder=None),)"
        trees, frame = fitted(**PAPER), fitted(x=pl.from_pandas(X))
        assert repr(trees.datasets_[2]) == f"SharedDataset({len(trees.datasets_[2]):,} rows, 3 columns, holder='{trees.sharers_[2]}')"
        assert repr(frame.datasets_[0]) == repr(usual().datasets_[0])

    def test_can_be_fitted_and_predicted_like_rows_of_ones_own(self) -> None:
        [dataset] = usual().datasets_
        again = fitted(dataset.y, dataset.X, np.arange(N) % 5, epsilon=math.inf)
        assert again.score(X_NEW, Y_NEW) > 0.8

    def test_of_numbers_have_the_models_predictions(self) -> None:
        model = regressed()
        [dataset] = model.datasets_
        np.testing.assert_allclose(dataset.y, model.predict(dataset.X))


class TestHome:
    def test_is_the_holders_own(self) -> None:
        model = usual()
        here, there = (model.predict_proba(X_NEW, holder=name) for name in ("site 0", "site 1"))
        assert (here != there).any() and (here != model.predict_proba(X_NEW)).any()
        np.testing.assert_array_equal(here, fitted().predict_proba(X_NEW, holder="site 0"))

    def test_is_what_the_protocol_makes_at_home(self) -> None:
        """With a worthless release it is close to the model of the holder's own rows."""
        model = fitted(epsilon=1e-4)
        params = Params(SCHEMA, 1e-4, N, n_holders=N_SITES)
        mine = Rows.of(params, SCHEMA.encode(dict(X[SITES == 2])), SCHEMA.encode_label({"ill": Y[SITES == 2]}))
        own = own_model(params, mine).decide(SCHEMA.encode(dict(X_NEW)))
        assert np.mean(model.predict(X_NEW, holder="site 2") == np.array(["yes", "no"])[own]) > 0.95

    @pytest.mark.parametrize("settings", [PAPER, {"learner": "logistic"}], ids=str)
    def test_with_a_learner_it_learns_from_the_release_and_from_own_rows(self, settings: dict[str, Any]) -> None:
        model = fitted(**settings)
        schema = model.schema_
        own = Dataset(
            schema.encode(dict(FULL[SITES == 2] if settings is PAPER else X[SITES == 2])), schema.encode_label({"ill": Y[SITES == 2]})
        )
        shared = [Dataset(schema.encode(dict(one.X)), schema.encode_label({"ill": one.y})) for one in model.datasets_]
        expected = Learned.of(model.model_.params, clone(model.model_.model), [*shared, own])
        new = X_NEW.fillna({"size": 0.0})
        np.testing.assert_allclose(
            model.predict_proba(new, holder="site 2"), expected.probabilities(schema.encode(dict(new)))[:, ::-1], atol=1e-3
        )

    def test_readers_have_one_too(self) -> None:
        model = fitted(n_sharers=2)
        readers = sorted(set(NAMES) - set(model.sharers_))
        assert len(readers) == N_SITES - 2
        assert np.mean(model.predict(X_NEW, holder=readers[0]) == Y_NEW) > 0.8

    @dealing
    def test_dealt_holders_are_numbered(self) -> None:
        model = fitted(holders=None)
        assert model.sharers_ == tuple(range(10)) and (model.predict(X_NEW, holder=9) == Y_NEW).mean() > 0.8

    @pytest.mark.parametrize("holder", ["SECRET", 3, math.nan])
    def test_a_stranger_has_a_sentence(self, holder: Any) -> None:
        for predict in (usual().predict, usual().predict_proba, regressed().predict):
            error = refused(predict, X=X_NEW, holder=holder)
            assert error.code == "USAGE-001" and "there are 6 holders" in error.what and "SECRET" not in str(error)

    def test_is_not_fitted_before_the_fit(self) -> None:
        with pytest.raises(NotFittedError):
            PFDSClassifier(schema=SCHEMA).predict(X_NEW, holder="site 0")


class TestNothingPrivateLeaves:
    """The rows are in the fitted estimator, for home models, and nowhere else."""

    @pytest.mark.parametrize("settings", [{}, PAPER, {"learner": "logistic"}], ids=str)
    def test_a_copy_has_the_release_only(self, settings: dict[str, Any]) -> None:
        marked = FULL.assign(size=-4.987654321)
        model = fitted(x=marked, **settings)
        new = X_NEW.fillna({"size": 0.0})
        before = model.predict(new, holder="site 0")
        kept = pickle.dumps(model)
        assert np.float64(-4.987654321).tobytes() not in kept and b"Homes" not in kept
        for copied in (pickle.loads(kept), copy.deepcopy(model), copy.copy(model)):
            np.testing.assert_array_equal(copied.predict(new), model.predict(new))
            error = refused(copied.predict, X=new, holder="site 0")
            assert error.code == "USAGE-001" and "rows are not in it" in error.what and "never leaves" in str(error.why)
            assert not hasattr(clone(copied), "datasets_")
        np.testing.assert_array_equal(model.predict(new, holder="site 0"), before)

    @pytest.mark.parametrize("settings", [{}, PAPER, {"learner": "logistic"}, {"learner": KNeighborsClassifier(1)}], ids=str)
    def test_a_home_model_cannot_be_written(self, settings: dict[str, Any]) -> None:
        """Whatever it is made by: a nearest neighbour is the rows."""
        model = fitted(x=FULL, **settings)
        model.predict(X_NEW.fillna({"size": 0.0}), holder="site 0")
        home = model._model_of("site 0")
        assert isinstance(home, Home if settings == {} else Kept) and home is model._model_of("site 0")
        for kept in (home, model._homes, vars(model)):
            for deed in (pickle.dumps, copy.deepcopy):
                with pytest.raises(ShoalError) as error:
                    deed(kept)
                assert error.value.code == "PRIVATE-001"
        assert not hasattr(home, "to_plain") and not hasattr(home, "model") and not hasattr(home, "__dict__")

    def test_a_home_regressor_cannot_be_written_either(self) -> None:
        for learner in (None, "ridge"):
            home = regressed(learner=learner)._model_of("site 0")
            with pytest.raises(ShoalError, match="A model of rows themselves"):
                pickle.dumps(home)

    def test_a_later_fit_forgets_the_rows_of_the_earlier_one(self) -> None:
        model = fitted()
        model.fit(X, Y, np.arange(N) % 4)
        assert "there are 4 holders" in refused(model.predict, X=X_NEW, holder="site 0").what


class TestSettings:
    def test_reach_the_study_and_its_figures(self) -> None:
        params = fitted(**PAPER, n_candidates=3, labelling="own").predictors_[0].params
        assert (params.variant, params.max_depth, params.n_candidates, params.n_levels, params.labelling) == ("paper", 2, 3, 2, "own")
        assert fitted(**PAPER, projection=False).predictors_[0].params.projection is False
        sums = fitted(**SUMS, delta=1e-6, max_colluders=0, n_sharers=5).predictors_[0].params
        assert (sums.trust, sums.delta, sums.max_colluders, sums.n_holders, sums.minimum) == ("secure-sum", 1e-6, 0, 5, 5)
        assert regressed(schema=Schema(WHOLE, PAIN), variant="paper", n_buckets=4).predictors_[0].params.n_buckets == 4

    def test_defaults_follow_the_study(self) -> None:
        assert usual().predictors_[0].params.max_colluders == 0
        assert fitted(**SUMS).predictors_[0].params.max_colluders == 2
        assert fitted(variant="paper", schema=Schema(WHOLE, ILL)).predictors_[0].params.max_depth == 3

    def test_size_and_number_of_holders_are_those_who_share(self) -> None:
        model = fitted(n_sharers=2)
        params = model.predictors_[0].params
        n = int(np.isin(NAMES, model.sharers_).sum())
        assert (params.n_holders, params.minimum, params.size) == (2, 2, n) and len(model.datasets_[0]) == n
        assert {fitted(n_sharers=2, random_state=seed).sharers_ for seed in range(6)} != {model.sharers_}

    def test_numbers_may_be_numpys(self) -> None:
        given = fitted(epsilon=np.float64(0.5), n_sharers=np.int64(4), max_colluders=np.int32(1), **SUMS)
        assert plain(given) == plain(fitted(epsilon=0.5, n_sharers=4, max_colluders=1, **SUMS))

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
            ({"n_sharers": 0}, "SPEC-021", "n_sharers = 0, where 6 holders have rows"),
            ({"n_sharers": 7}, "SPEC-021", "n_sharers = 7"),
            ({"n_sharers": 2, **SUMS}, "SPEC-021", "n_sharers = 2"),
            ({"n_sharers": 2.0}, "SPEC-021", "n_sharers = 2.0"),
            ({"n_sharers": True}, "SPEC-021", "n_sharers = True"),
            ({"learner": "ridge"}, "USAGE-001", "learner = 'ridge'"),
            ({"learner": KNeighborsClassifier}, "USAGE-001", "learner is a class: give KNeighborsClassifier()"),
            ({"learner": Ridge()}, "USAGE-001", "Ridge, which is no classifier"),
            (PAPER | {"learner": FunctionTransformer()}, "USAGE-001", "FunctionTransformer, which is no classifier"),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            ({"schema": NUMBERS}, "SPEC-021", "PFDSClassifier predicts categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
        ids=str,
    )
    def test_that_cannot_be_have_a_sentence(self, settings: dict[str, Any], code: str, words: str) -> None:
        error = refused(**settings)
        assert error.code == code and words in error.what and error.fix

    def test_a_learner_of_the_wrong_kind_is_refused_before_anything_is_drawn(self) -> None:
        source = np.random.default_rng(1)
        before = source.bit_generator.state
        assert "KNeighborsClassifier, which is no regressor" in refused(regressed, learner=KNeighborsClassifier(), random_state=source).what
        assert source.bit_generator.state == before

    def test_buckets_are_of_numbers_and_of_trees(self) -> None:
        assert "n_buckets belongs to the trees" in refused(regressed, n_buckets=4).what
        assert refused(regressed, schema=SCHEMA).code == "SPEC-021"

    def test_a_fit_that_fails_leaves_the_estimator_as_it_was(self) -> None:
        model = fitted(epsilon=0.5)
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y, SITES)
        assert vars(model) == before and len(model.predict(X_NEW, holder="site 0")) == len(X_NEW)


class TestHolders:
    def test_hold_the_rows_of_one_name(self) -> None:
        expected = plain(fitted(holders=SITES))
        for names in (SITES.astype(float), NAMES, pd.Series(NAMES, index=np.arange(N)[::-1]), pl.Series(SITES)):
            assert plain(fitted(holders=names)) == expected

    def test_are_called_as_they_were_named(self) -> None:
        assert sorted(usual().sharers_) == [f"site {i}" for i in range(N_SITES)]
        assert sorted(fitted(holders=SITES).sharers_) == list(range(N_SITES))
        assert "of 6 holders" in usual().privacy_.purpose and "dealt" not in flat(usual().privacy_)

    @pytest.mark.parametrize(("n", "n_holders"), [(N, 10), (7, 7)])
    def test_that_nobody_names_are_made_up_with_a_warning(self, n: int, n_holders: int) -> None:
        with pytest.warns(HoldersDealtWarning, match=f"dealt at random to {n_holders} holders") as caught:
            model = PFDSClassifier(1.0, SCHEMA, random_state=0).fit(X[:n], Y[:n])
        assert caught[0].filename == __file__ and len(model.sharers_) == n_holders
        assert "who holds which row" in flat(model.privacy_) and "to holders that do not exist" in flat(model.privacy_)

    @pytest.mark.parametrize(
        ("holders", "settings", "code", "words"),
        [
            ([None] * N, {}, "DATA-005", "holders: 1,500 rows"),
            (["SECRET"] * 5, {}, "DATA-007", "5 rows, and X has 1,500 rows"),
            (np.arange(N) % 2, SUMS, "SPEC-021", "holders names 2 holders; a secure sum needs 3"),
        ],
    )
    def test_that_cannot_be_have_a_sentence(self, holders: Any, settings: dict[str, Any], code: str, words: str) -> None:
        with warnings.catch_warnings(record=True) as said:
            error = refused(holders=holders, **settings)
        assert error.code == code and words in error.what and error.fix and "SECRET" not in str(error) and not said

    def test_one_alone_may_share(self) -> None:
        assert fitted(holders=["here"] * N).sharers_ == ("here",)


class TestInputs:
    def test_frames_and_arrays_say_the_same(self) -> None:
        expected = usual().predict_proba(X_NEW)
        for x, new in ((pl.from_pandas(X), pl.from_pandas(X_NEW)), (X.to_numpy(), X_NEW.to_numpy())):
            np.testing.assert_array_equal(fitted(x=x).predict_proba(new), expected)

    def test_new_rows_may_be_outside_the_schema(self) -> None:
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        for model in (usual(), fitted(learner="logistic")):
            np.testing.assert_array_equal(model.predict_proba(known), model.predict_proba(beyond))

    def test_without_a_schema_it_warns(self) -> None:
        with pytest.warns(SchemaInferredWarning):
            model = fitted(schema=None)
        assert "nothing that was fitted so may be released" in flat(model.privacy_)

    def test_texts_cannot_be_learned_from(self) -> None:
        error = refused(x=X.assign(said="a b"), schema=Schema(FEATURES, ILL, [Text("said", 32)]))
        assert error.code == "SPEC-022" and "said is a text" in error.what

    def test_several_classes(self) -> None:
        grade = np.select([X["age"] < 40, X["age"] < 65], ["low", "middle"], "high")
        model = fitted(grade, schema=Schema(FEATURES, Categorical("grade", ["low", "middle", "high"])))
        assert model.predict_proba(X).shape == (N, 3) and model.score(X, grade) > 0.8
        assert model.predict_proba(X, holder="site 0").shape == (N, 3) and set(model.datasets_[0].y) == {"low", "middle", "high"}


class TestPrivacy:
    def test_prints_as_the_label_of_a_simulation(self) -> None:
        for model in (fitted(epsilon=0.5), fitted(epsilon=0.5, **PAPER), regressed(epsilon=0.5)):
            statement = model.privacy_
            assert (statement.epsilon, statement.delta, statement.simulated) == (0.5, 0, True)
            assert str(statement.scope) == "record, add-remove, against all who read the release"
            assert SIMULATED in flat(statement) and "epsilon 0.5, delta 0" in flat(statement)

    @dealing
    def test_says_that_the_number_of_rows_is_not_covered(self) -> None:
        """The study declares how many rows those who share have, which nobody would count in public."""
        for model in (usual(), fitted(**PAPER), fitted(**SUMS), fitted(holders=None), regressed()):
            assert model.privacy_.not_covered.count(TRUE_SIZE) == 1 and "in all: here it is the declared size" in flat(model.privacy_)

    def test_with_a_delta_it_says_both(self) -> None:
        statement = fitted(**SUMS, epsilon=0.5, delta=1e-6, max_colluders=1).privacy_
        assert statement.epsilon <= 0.5 and statement.delta == 1e-6 and "up to 1 colluding holder" in str(statement.scope)

    @pytest.mark.parametrize("settings", [{}, SUMS, PAPER], ids=str)
    def test_without_noise_there_is_no_guarantee(self, settings: dict[str, Any]) -> None:
        assert fitted(epsilon=np.float32("inf"), **settings).privacy_ == NoGuarantee()


class TestRandomness:
    @pytest.mark.parametrize("settings", [{}, SUMS], ids=str)
    def test_a_seed_makes_a_run_repeatable(self, settings: dict[str, Any]) -> None:
        first, again, other = (fitted(random_state=seed, **settings) for seed in (1, 1, 2))
        assert plain(first) == plain(again) != plain(other)
        np.testing.assert_array_equal(first.datasets_[0].y, again.datasets_[0].y)
        # In whatever order home models are asked for.
        first.predict(X_NEW, holder="site 4")
        np.testing.assert_array_equal(first.predict_proba(X_NEW, holder="site 1"), again.predict_proba(X_NEW, holder="site 1"))

    def test_without_a_seed_runs_differ(self) -> None:
        assert plain(fitted(random_state=None)) != plain(fitted(random_state=None))


class TestTools:
    @dealing
    def test_clone_pipeline_and_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(usual()))
        assert cross_val_score(model, X, Y, cv=2).min() > 0.75
        search = GridSearchCV(PFDSClassifier(schema=SCHEMA, random_state=0), {"epsilon": np.array([0.0001, 4.0])}, cv=2)
        assert search.fit(X, Y, holders=SITES).best_params_ == {"epsilon": 4.0}

    def test_the_schema_and_the_names_of_columns_are_kept(self) -> None:
        model = usual()
        assert model.schema_ is model.schema and model.feature_names_in_.tolist() == ["age", "size", "kind"] and model.n_features_in_ == 3
