"""SDQTreeClassifier and SDQNaiveBayesClassifier: real estimators, true statements, and sentences for what they cannot do."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from shoal import Categorical, HoldersDealtWarning, Numeric, Schema, SchemaInferredWarning, SDQNaiveBayesClassifier, SDQTreeClassifier, Text
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.estimators.studies import NoGuarantee
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.rows import deal
from shoal.protocols.sdq.scripts import script_of
from shoal.study.label import SIMULATED

N, N_SITES = 1500, 6
FEATURES = [
    Numeric("age", 0, 100, bins=[30, 50, 70], missing=False),
    Numeric("size", -5, 5),
    Categorical("kind", ["u", "v", "w"], missing=False),
]
ILL = Categorical("ill", ["yes", "no"], missing=False)
SCHEMA = Schema(FEATURES, ILL)
dealing = pytest.mark.filterwarnings("ignore::shoal.estimators.inputs.HoldersDealtWarning")
inferring = pytest.mark.filterwarnings("ignore::shoal.domain.SchemaInferredWarning")


def make_rows(n: int, seed: int = 5) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.45
    age = np.clip(35 + 35 * ill + 12 * rng.normal(size=n), 0, 100)
    kind = np.array(["u", "v", "w"], object)[np.minimum(rng.integers(0, 3, n) + ill, 2)]
    size = np.where(rng.random(n) < 0.1, np.nan, rng.uniform(-5, 5, n))
    return pd.DataFrame({"age": age, "size": size, "kind": kind}), np.where(ill, "yes", "no")


X, Y = make_rows(N)
X_NEW, Y_NEW = make_rows(1000, seed=6)
SITES = np.random.default_rng(7).integers(0, N_SITES, N)
SITES[:N_SITES] = np.arange(N_SITES)


def fitted(y: Any = Y, x: Any = X, holders: Any = SITES, **settings: Any) -> SDQTreeClassifier:
    return SDQTreeClassifier(**{"epsilon": 1.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(x, y, holders)


def bayes(y: Any = Y, x: Any = X, holders: Any = SITES, **settings: Any) -> SDQNaiveBayesClassifier:
    return SDQNaiveBayesClassifier(**{"epsilon": 1.0, "schema": SCHEMA, "random_state": 0, **settings}).fit(x, y, holders)


@cache
def usual() -> SDQTreeClassifier:
    """The model of the usual settings, which no test changes."""
    return fitted()


def plain(model: SDQTreeClassifier | SDQNaiveBayesClassifier) -> Any:
    return model.model_.to_plain()


def simulated(holders: Any = SITES, **figures: Any) -> Any:
    """What the protocol's own simulation learns."""
    params = Params(SCHEMA, **{"epsilon": 1.0, "size": N, "n_databases": N_SITES, "minimum": N_SITES, "max_colluders": 2, **figures})
    table = Table.of(params, SCHEMA.encode(dict(X)), SCHEMA.encode_label({"ill": Y}), holders)
    return simulate(script_of(params), table, SeededEntropy(0)).model.to_plain()


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
            {"choice": "sums"},
            {"max_colluders": 0, "depth": 2},
            {"variant": "paper", "epsilon": 8.0, "depth": 2},
            {"variant": "paper", "epsilon": 8.0, "depth": 2, "noise": "two-selected"},
            {"variant": "paper", "epsilon": 16.0, "depth": 1, "trust": "local"},
            {"epsilon": math.inf},
            {"epsilon": math.inf, "variant": "paper"},
        ],
        ids=str,
    )
    def test_a_tree_learns_what_there_is_to_learn(self, settings: dict[str, Any]) -> None:
        assert fitted(**settings).score(X_NEW, Y_NEW) > 0.8

    @pytest.mark.parametrize("settings", [{}, {"max_colluders": 0}, {"epsilon": math.inf}], ids=str)
    def test_so_does_naive_bayes(self, settings: dict[str, Any]) -> None:
        assert bayes(**settings).score(X_NEW, Y_NEW) > 0.8

    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_noise_grows_as_the_budget_shrinks(self, fit: Any) -> None:
        scores = [np.mean([fit(epsilon=epsilon, random_state=i).score(X_NEW, Y_NEW) for i in range(5)]) for epsilon in (0.002, 1.0)]
        assert scores[0] < scores[1] - 0.02

    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_columns_of_the_chances_are_in_the_order_of_the_classes(self, fit: Any) -> None:
        model = fit()
        chances = model.predict_proba(X_NEW)
        assert model.classes_.tolist() == ["no", "yes"] and model.model_.classes == ("yes", "no")
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        assert np.mean(model.classes_[chances.argmax(axis=1)] == model.predict(X_NEW)) > 0.99

    @inferring
    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_several_classes(self, fit: Any) -> None:
        y = np.where(Y == "no", 0, np.where(X["kind"] == "w", 7, 3))
        model = fit(y, schema=None)
        assert model.classes_.tolist() == [0, 3, 7] and model.predict_proba(X_NEW).shape == (len(X_NEW), 3)
        assert model.score(X, y) > 0.62

    def test_numbers_without_bins_are_cut_into_equal_widths(self) -> None:
        cut = usual().model_.schema["size"]
        assert cut.bins == tuple(np.linspace(-5, 5, 9)[1:-1]) and usual().schema_["size"].bins is None

    def test_the_tree_can_be_looked_at(self) -> None:
        model = usual().model_
        assert "age" in model.to_text() and model.to_svg().lstrip().startswith("<svg")

    @pytest.mark.parametrize("variant", ["paper", "plus"])
    def test_without_noise_sums_are_those_of_one_table(self, variant: str) -> None:
        """Whoever holds the rows, the direct secure sum learns the same: no noise, and the plus variant choosing from sums."""
        settings: dict[str, Any] = {"epsilon": math.inf, "variant": variant, "choice": "sums" if variant == "plus" else None}
        assert plain(fitted(**settings)) == plain(fitted(**settings, holders=np.arange(N) % 4, random_state=3, max_colluders=1))


class TestSettings:
    """What is fitted is what the protocol's own simulation gives for the same figures and the same seed."""

    @pytest.mark.parametrize(
        ("settings", "figures"),
        [
            ({}, {}),
            ({"max_colluders": 0, "depth": 1}, {"max_colluders": 0, "depth": 1}),
            ({"choice": "sums"}, {"choice": "sums"}),
            ({"max_colluders": 3}, {"max_colluders": 3, "choice": "sums"}),
            ({"variant": "paper"}, {"variant": "paper", "depth": 4}),
            ({"variant": "paper", "depth": 2, "noise": "two-selected"}, {"variant": "paper", "depth": 2, "noise": "two-selected"}),
            ({"variant": "paper", "trust": "local"}, {"variant": "paper", "depth": 4, "trust": "local", "max_colluders": 0}),
        ],
        ids=str,
    )
    def test_reach_the_protocol(self, settings: dict[str, Any], figures: dict[str, Any]) -> None:
        assert plain(fitted(**settings)) == simulated(**figures)

    def test_reach_it_for_naive_bayes_too(self) -> None:
        assert plain(bayes(max_colluders=1)) == simulated(learner="naive-bayes", max_colluders=1)
        assert plain(bayes()) == simulated(learner="naive-bayes")

    def test_numbers_may_be_numpys(self) -> None:
        given = fitted(max_colluders=np.int64(1), depth=np.int32(2), epsilon=np.float64(0.5))
        assert plain(given) == plain(fitted(max_colluders=1, depth=2, epsilon=0.5))


class TestHolders:
    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_hold_the_rows_of_one_name(self, fit: Any) -> None:
        expected = plain(fit())
        for names in (SITES.astype(float), [f"site {i}" for i in SITES], pd.Series(SITES, index=np.arange(N)[::-1]), pl.Series(SITES)):
            assert plain(fit(holders=names)) == expected

    def test_are_counted_and_so_are_their_rows(self) -> None:
        statement = usual().privacy_
        assert f"of {N_SITES} databases" in statement.purpose and "dealt" not in flat(statement)
        assert "up to 2 colluding databases" in str(statement.scope)

    @pytest.mark.parametrize(("n", "n_databases"), [(N, 10), (7, 7), (3, 3)])
    def test_that_nobody_names_are_made_up_with_a_warning(self, n: int, n_databases: int) -> None:
        with pytest.warns(HoldersDealtWarning, match=f"dealt at random to {n_databases} databases") as caught:
            model = fitted(Y[:n], X[:n], holders=None, max_colluders=0)
        assert caught[0].filename == __file__
        assert f"of {n_databases} databases" in model.privacy_.purpose and "who holds which row" in flat(model.privacy_)

    @dealing
    def test_that_nobody_names_are_drawn_before_the_noise(self) -> None:
        params = Params(SCHEMA, 1.0, N, max_colluders=4)
        entropy = SeededEntropy(0)
        table = Table.of(params, SCHEMA.encode(dict(X)), SCHEMA.encode_label({"ill": Y}), deal(N, 10, entropy))
        assert plain(fitted(holders=None)) == simulate(script_of(params), table, entropy).model.to_plain()

    @pytest.mark.parametrize(
        ("holders", "n", "code", "words"),
        [
            ([None] * N, N, "DATA-005", "holders: 1,500 rows"),
            (["SECRET"] * 5, N, "DATA-007", "5 rows, and X has 1,500 rows"),
            (["SECRET"] * N, N, "SPEC-021", "holders names 1 database; a secure sum needs 3"),
            (np.arange(N) % 2, N, "SPEC-021", "holders names 2 databases"),
            (None, 2, "SPEC-021", "X has 2 rows to deal to databases"),
            (np.arange(N), N, "SPEC-013", "n_databases"),
        ],
    )
    def test_that_cannot_be_have_a_sentence(self, holders: Any, n: int, code: str, words: str) -> None:
        with warnings.catch_warnings(record=True) as said:
            error = refused(y=Y[:n], x=X[:n], holders=holders)
        assert error.code == code and words in error.what and error.fix and "SECRET" not in str(error) and not said

    def test_without_a_secure_sum_two_are_enough(self) -> None:
        model = fitted(holders=np.arange(N) % 2, variant="paper", trust="local", max_colluders=None)
        assert "of 2 databases" in model.privacy_.purpose
        error = refused(holders=np.zeros(N), variant="paper", trust="local", max_colluders=None)
        assert (error.code, error.what, error.why) == ("SPEC-021", "holders names 1 database; the study needs 2.", None)

    def test_are_known_to_cross_validation(self) -> None:
        scores = cross_val_score(SDQTreeClassifier(1.0, SCHEMA, random_state=0), X, Y, cv=2, params={"holders": SITES})
        assert scores.min() > 0.75


class TestInputs:
    def test_frames_and_arrays_say_the_same(self) -> None:
        expected = usual().predict_proba(X_NEW)
        for x, new in ((pl.from_pandas(X), pl.from_pandas(X_NEW)), (X.to_numpy(), X_NEW.to_numpy())):
            np.testing.assert_array_equal(fitted(x=x).predict_proba(new), expected)

    def test_new_rows_may_be_outside_the_schema(self) -> None:
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        for model in (usual(), bayes()):
            np.testing.assert_array_equal(model.predict_proba(known), model.predict_proba(beyond))

    def test_without_a_schema_it_warns(self) -> None:
        for fit in (fitted, bayes):
            with pytest.warns(SchemaInferredWarning):
                model = fit(schema=None)
            assert "nothing that was fitted so may be released" in flat(model.privacy_)

    def test_texts_cannot_be_learned_from(self) -> None:
        error = refused(x=X.assign(said="a b"), schema=Schema(FEATURES, ILL, [Text("said", 32)]))
        assert error.code == "SPEC-022" and "said is a text" in error.what


class TestPrivacy:
    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_prints_as_the_label_of_a_simulation(self, fit: Any) -> None:
        statement = fit(epsilon=0.5, max_colluders=1).privacy_
        assert statement.epsilon == 0.5 and statement.delta == 0 and statement.simulated
        assert str(statement.scope) == "record, add-remove, against the miner and up to 1 colluding database"
        assert SIMULATED in flat(statement) and "epsilon 0.5, delta 0" in flat(statement)
        assert "how many rows there are in all: here it is the declared size" in statement.not_covered

    def test_two_selected_databases_protect_less(self) -> None:
        statement = fitted(variant="paper", noise="two-selected").privacy_
        assert "if no database tells it anything" in str(statement.scope)
        assert "all other databases" in str(fitted(variant="paper", trust="local").privacy_.scope)

    @pytest.mark.parametrize("variant", ["plus", "paper"])
    def test_without_noise_there_is_no_guarantee(self, variant: str) -> None:
        assert fitted(epsilon=np.float32("inf"), variant=variant).privacy_ == NoGuarantee()
        assert bayes(epsilon=math.inf).privacy_ == NoGuarantee()


class TestRandomness:
    @pytest.mark.parametrize("fit", [fitted, bayes])
    def test_a_seed_makes_a_run_repeatable(self, fit: Any) -> None:
        first, again, other = (plain(fit(random_state=seed)) for seed in (1, 1, 2))
        assert first == again and first != other

    def test_without_a_seed_runs_differ(self) -> None:
        assert plain(bayes(random_state=None)) != plain(bayes(random_state=None))


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            ({"variant": "better"}, "SPEC-013", "variant"),
            ({"epsilon": -1}, "SPEC-013", "epsilon = -1"),
            ({"epsilon": "1"}, "SPEC-012", "epsilon"),
            ({"trust": "local"}, "SPEC-020", 'trust = "local"'),
            ({"trust": "local", "variant": "paper", "max_colluders": 1}, "SPEC-022", "max_colluders has no meaning"),
            ({"noise": "two-selected"}, "SPEC-022", "Two selected databases"),
            ({"depth": 0}, "SPEC-013", "depth"),
            ({"depth": 2.0}, "SPEC-012", "depth"),
            ({"max_colluders": -1}, "SPEC-013", "max_colluders"),
            ({"max_colluders": 6}, "SPEC-021", "max_colluders"),
            ({"max_colluders": 3, "choice": "mpc"}, "SPEC-021", "honest majority"),
            ({"choice": "mpc", "variant": "paper"}, "SPEC-022", "choice has no meaning"),
            ({"choice": "best"}, "SPEC-013", "choice"),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            ({"schema": Schema(FEATURES, Numeric("pain", 0, 10))}, "SPEC-021", "SDQTreeClassifier predicts categories"),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
        ids=str,
    )
    def test_settings(self, settings: dict[str, Any], code: str, words: str) -> None:
        error = refused(**settings)
        assert error.code == code and words in error.what and error.fix

    def test_naive_bayes_is_not_the_papers(self) -> None:
        error = refused(bayes, variant="paper")
        assert error.code == "SPEC-022" and "The paper learns trees" in error.what

    def test_a_fit_that_fails_leaves_the_estimator_as_it_was(self) -> None:
        model = fitted(epsilon=0.5)
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y, SITES)
        assert vars(model) == before


class TestTools:
    @dealing
    def test_clone_pipeline_and_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(usual()))
        assert cross_val_score(model, X, Y, cv=2).min() > 0.75
        search = GridSearchCV(SDQNaiveBayesClassifier(schema=SCHEMA, random_state=0), {"epsilon": np.array([0.0001, 4.0])}, cv=2)
        assert search.fit(X, Y, holders=SITES).best_params_ == {"epsilon": 4.0}

    def test_the_schema_and_the_names_of_columns_are_kept(self) -> None:
        model = usual()
        assert model.schema_ is model.schema and model.feature_names_in_.tolist() == ["age", "size", "kind"] and model.n_features_in_ == 3
