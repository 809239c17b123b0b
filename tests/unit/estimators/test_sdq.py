"""SDQTreeClassifier and SDQNaiveBayesClassifier: predictions, statements, and errors."""

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

from shoal import (
    Categorical,
    HoldersDealtWarning,
    Numeric,
    Schema,
    SchemaInferredWarning,
    SDQNaiveBayesClassifier,
    SDQTreeClassifier,
    Text,
)
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.estimators.base import NoGuarantee
from shoal.protocols.sdq.params import CellTable, SDQParams, assign_rows
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.study.label import SIMULATED

N, N_SITES = 1500, 6
FEATURES = [
    Numeric("age", 0, 100, bins=[30, 50, 70], missing=False),
    Numeric("size", -5, 5),
    Categorical("kind", ["u", "v", "w"], missing=False),
]
ILL = Categorical("ill", ["yes", "no"], missing=False)
SCHEMA = Schema(FEATURES, ILL)
ignore_assigned_holders = pytest.mark.filterwarnings(
    "ignore::shoal.estimators.inputs.HoldersDealtWarning"
)
ignore_inferred_schema = pytest.mark.filterwarnings(
    "ignore::shoal.data.schema.SchemaInferredWarning"
)


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


def fit_tree(y: Any = Y, x: Any = X, holders: Any = SITES, **settings: Any) -> SDQTreeClassifier:
    return SDQTreeClassifier(
        **{"epsilon": 1.0, "schema": SCHEMA, "random_state": 0, **settings}
    ).fit(x, y, holders)


def fit_naive_bayes(
    y: Any = Y, x: Any = X, holders: Any = SITES, **settings: Any
) -> SDQNaiveBayesClassifier:
    return SDQNaiveBayesClassifier(
        **{"epsilon": 1.0, "schema": SCHEMA, "random_state": 0, **settings}
    ).fit(x, y, holders)


@cache
def fit_default() -> SDQTreeClassifier:
    """Return the model with default settings, which no test changes."""
    return fit_tree()


def encode_model(model: SDQTreeClassifier | SDQNaiveBayesClassifier) -> Any:
    return model.model_.to_plain()


def simulate_model(holders: Any = SITES, **figures: Any) -> Any:
    """Return the model that a simulation of the protocol learns."""
    params = SDQParams(
        SCHEMA,
        **{
            "epsilon": 1.0,
            "size": N,
            "n_databases": N_SITES,
            "minimum": N_SITES,
            "max_colluders": 2,
            **figures,
        },
    )
    table = CellTable.from_columns(
        params, SCHEMA.encode(dict(X)), SCHEMA.encode_label({"ill": Y}), holders
    )
    return simulate(make_sdq_script(params), table, SeededEntropy(0)).model.to_plain()


def unwrap_text(text: object) -> str:
    return " ".join(str(text).replace("│", " ").split())


def catch_error(fit: Any = fit_tree, **settings: Any) -> ShoalError:
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
    def test_tree_learns_the_label(self, settings: dict[str, Any]) -> None:
        assert fit_tree(**settings).score(X_NEW, Y_NEW) > 0.8

    @pytest.mark.parametrize("settings", [{}, {"max_colluders": 0}, {"epsilon": math.inf}], ids=str)
    def test_naive_bayes_learns_the_label(self, settings: dict[str, Any]) -> None:
        assert fit_naive_bayes(**settings).score(X_NEW, Y_NEW) > 0.8

    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_score_falls_with_a_small_epsilon(self, fit: Any) -> None:
        scores = [
            np.mean([fit(epsilon=epsilon, random_state=i).score(X_NEW, Y_NEW) for i in range(5)])
            for epsilon in (0.002, 1.0)
        ]
        assert scores[0] < scores[1] - 0.02

    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_predict_proba_columns_follow_classes(self, fit: Any) -> None:
        model = fit()
        chances = model.predict_proba(X_NEW)
        assert model.classes_.tolist() == ["no", "yes"] and model.model_.classes == ("yes", "no")
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        assert np.mean(model.classes_[chances.argmax(axis=1)] == model.predict(X_NEW)) > 0.99

    @ignore_inferred_schema
    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_classifiers_learn_several_classes(self, fit: Any) -> None:
        y = np.where(Y == "no", 0, np.where(X["kind"] == "w", 7, 3))
        model = fit(y, schema=None)
        assert model.classes_.tolist() == [0, 3, 7] and model.predict_proba(X_NEW).shape == (
            len(X_NEW),
            3,
        )
        assert model.score(X, y) > 0.62

    def test_numbers_without_bins_have_bins_of_equal_width(self) -> None:
        cut = fit_default().model_.schema["size"]
        assert (
            cut.bins == tuple(np.linspace(-5, 5, 9)[1:-1])
            and fit_default().schema_["size"].bins is None
        )

    def test_tree_has_text_and_svg_views(self) -> None:
        model = fit_default().model_
        assert "age" in model.to_text() and model.to_svg().lstrip().startswith("<svg")

    @pytest.mark.parametrize("variant", ["paper", "plus"])
    def test_model_without_noise_does_not_depend_on_holders(self, variant: str) -> None:
        """Without noise and with choices from sums, the model does not depend on the holders."""
        settings: dict[str, Any] = {
            "epsilon": math.inf,
            "variant": variant,
            "choice": "sums" if variant == "plus" else None,
        }
        assert encode_model(fit_tree(**settings)) == encode_model(
            fit_tree(**settings, holders=np.arange(N) % 4, random_state=3, max_colluders=1)
        )


class TestSettings:
    """A fit equals a simulation of the protocol with the same parameters and seed."""

    @pytest.mark.parametrize(
        ("settings", "figures"),
        [
            ({}, {}),
            ({"max_colluders": 0, "depth": 1}, {"max_colluders": 0, "depth": 1}),
            ({"choice": "sums"}, {"choice": "sums"}),
            ({"max_colluders": 3}, {"max_colluders": 3, "choice": "sums"}),
            ({"variant": "paper"}, {"variant": "paper", "depth": 4}),
            (
                {"variant": "paper", "depth": 2, "noise": "two-selected"},
                {"variant": "paper", "depth": 2, "noise": "two-selected"},
            ),
            (
                {"variant": "paper", "trust": "local"},
                {"variant": "paper", "depth": 4, "trust": "local", "max_colluders": 0},
            ),
        ],
        ids=str,
    )
    def test_settings_of_tree_reach_the_protocol(
        self, settings: dict[str, Any], figures: dict[str, Any]
    ) -> None:
        assert encode_model(fit_tree(**settings)) == simulate_model(**figures)

    def test_settings_of_naive_bayes_reach_the_protocol(self) -> None:
        assert encode_model(fit_naive_bayes(max_colluders=1)) == simulate_model(
            learner="naive-bayes", max_colluders=1
        )
        assert encode_model(fit_naive_bayes()) == simulate_model(learner="naive-bayes")

    def test_settings_accept_numpy_numbers(self) -> None:
        given = fit_tree(max_colluders=np.int64(1), depth=np.int32(2), epsilon=np.float64(0.5))
        assert encode_model(given) == encode_model(fit_tree(max_colluders=1, depth=2, epsilon=0.5))


class TestHolders:
    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_holder_has_all_rows_of_one_name(self, fit: Any) -> None:
        expected = encode_model(fit())
        for names in (
            SITES.astype(float),
            [f"site {i}" for i in SITES],
            pd.Series(SITES, index=np.arange(N)[::-1]),
            pl.Series(SITES),
        ):
            assert encode_model(fit(holders=names)) == expected

    def test_privacy_names_number_of_databases_and_colluders(self) -> None:
        statement = fit_default().privacy_
        assert f"of {N_SITES} databases" in statement.purpose and "fictitious" not in unwrap_text(
            statement
        )
        assert "up to 2 colluding databases" in str(statement.scope)

    @pytest.mark.parametrize(("n", "n_databases"), [(N, 10), (7, 7), (3, 3)])
    def test_missing_holders_are_assigned_with_a_warning(self, n: int, n_databases: int) -> None:
        with pytest.warns(
            HoldersDealtWarning, match=f"assigned at random to {n_databases} databases"
        ) as caught:
            model = fit_tree(Y[:n], X[:n], holders=None, max_colluders=0)
        assert caught[0].filename == __file__
        assert (
            f"of {n_databases} databases" in model.privacy_.purpose
            and "the owners of rows" in unwrap_text(model.privacy_)
        )

    @ignore_assigned_holders
    def test_missing_holders_are_drawn_before_the_noise(self) -> None:
        params = SDQParams(SCHEMA, 1.0, N, max_colluders=4)
        entropy = SeededEntropy(0)
        table = CellTable.from_columns(
            params,
            SCHEMA.encode(dict(X)),
            SCHEMA.encode_label({"ill": Y}),
            assign_rows(N, 10, entropy),
        )
        assert (
            encode_model(fit_tree(holders=None))
            == simulate(make_sdq_script(params), table, entropy).model.to_plain()
        )

    @pytest.mark.parametrize(
        ("holders", "n", "code", "words"),
        [
            ([None] * N, N, "DATA-005", "holders: 1,500 rows"),
            (["SECRET"] * 5, N, "DATA-007", "5 names, but X has 1,500 rows"),
            (["SECRET"] * N, N, "SPEC-021", "holders names 1 database; a secure sum needs 3"),
            (np.arange(N) % 2, N, "SPEC-021", "holders names 2 databases"),
            (None, 2, "SPEC-021", "X has 2 rows for databases"),
            (np.arange(N), N, "SPEC-013", "n_databases"),
        ],
    )
    def test_invalid_holders_are_rejected_with_fix(
        self, holders: Any, n: int, code: str, words: str
    ) -> None:
        with warnings.catch_warnings(record=True) as said:
            error = catch_error(y=Y[:n], x=X[:n], holders=holders)
        assert (
            error.code == code
            and words in error.what
            and error.fix
            and "SECRET" not in str(error)
            and not said
        )

    def test_two_databases_suffice_without_secure_sum(self) -> None:
        model = fit_tree(
            holders=np.arange(N) % 2, variant="paper", trust="local", max_colluders=None
        )
        assert "of 2 databases" in model.privacy_.purpose
        error = catch_error(holders=np.zeros(N), variant="paper", trust="local", max_colluders=None)
        assert (error.code, error.what, error.why) == (
            "SPEC-021",
            "holders names 1 database; the study needs 2.",
            None,
        )

    def test_cross_validation_passes_holders(self) -> None:
        scores = cross_val_score(
            SDQTreeClassifier(1.0, SCHEMA, random_state=0), X, Y, cv=2, params={"holders": SITES}
        )
        assert scores.min() > 0.75


class TestInputs:
    def test_frames_and_arrays_give_the_same_predictions(self) -> None:
        expected = fit_default().predict_proba(X_NEW)
        for x, new in (
            (pl.from_pandas(X), pl.from_pandas(X_NEW)),
            (X.to_numpy(), X_NEW.to_numpy()),
        ):
            np.testing.assert_array_equal(fit_tree(x=x).predict_proba(new), expected)

    def test_predict_clips_rows_outside_the_schema(self) -> None:
        known = pd.DataFrame({"age": [100.0], "size": [5.0], "kind": ["u"]})
        beyond = pd.DataFrame({"age": [1e9], "size": [77.0], "kind": ["u"]})
        for model in (fit_default(), fit_naive_bayes()):
            np.testing.assert_array_equal(model.predict_proba(known), model.predict_proba(beyond))

    def test_fit_without_schema_warns(self) -> None:
        for fit in (fit_tree, fit_naive_bayes):
            with pytest.warns(SchemaInferredWarning):
                model = fit(schema=None)
            assert "a model fitted this way must not be released" in unwrap_text(model.privacy_)

    def test_fit_rejects_texts(self) -> None:
        error = catch_error(
            x=X.assign(said="a b"), schema=Schema(FEATURES, ILL, [Text("said", 32)])
        )
        assert error.code == "SPEC-022" and "said is a text" in error.what


class TestPrivacy:
    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_privacy_prints_as_label_of_a_simulation(self, fit: Any) -> None:
        statement = fit(epsilon=0.5, max_colluders=1).privacy_
        assert statement.epsilon == 0.5 and statement.delta == 0 and statement.simulated
        assert (
            str(statement.scope)
            == "record, add-remove, against the miner and up to 1 colluding database"
        )
        assert SIMULATED in unwrap_text(statement) and "epsilon 0.5, delta 0" in unwrap_text(
            statement
        )
        assert (
            "the total number of rows: the simulation uses it as the declared size"
            in statement.not_covered
        )

    def test_privacy_of_other_variants_names_their_adversary(self) -> None:
        statement = fit_tree(variant="paper", noise="two-selected").privacy_
        assert "if no database tells it anything" in str(statement.scope)
        assert "all other databases" in str(fit_tree(variant="paper", trust="local").privacy_.scope)

    @pytest.mark.parametrize("variant", ["plus", "paper"])
    def test_fit_without_noise_has_no_guarantee(self, variant: str) -> None:
        assert fit_tree(epsilon=np.float32("inf"), variant=variant).privacy_ == NoGuarantee()
        assert fit_naive_bayes(epsilon=math.inf).privacy_ == NoGuarantee()


class TestRandomness:
    @pytest.mark.parametrize("fit", [fit_tree, fit_naive_bayes])
    def test_fit_is_repeatable_with_a_seed(self, fit: Any) -> None:
        first, again, other = (encode_model(fit(random_state=seed)) for seed in (1, 1, 2))
        assert first == again and first != other

    def test_fits_without_seed_differ(self) -> None:
        assert encode_model(fit_naive_bayes(random_state=None)) != encode_model(
            fit_naive_bayes(random_state=None)
        )


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            ({"variant": "better"}, "SPEC-013", "variant"),
            ({"epsilon": -1}, "SPEC-013", "epsilon = -1"),
            ({"epsilon": "1"}, "SPEC-012", "epsilon"),
            ({"trust": "local"}, "SPEC-020", 'trust = "local"'),
            (
                {"trust": "local", "variant": "paper", "max_colluders": 1},
                "SPEC-022",
                "max_colluders has no meaning",
            ),
            ({"noise": "two-selected"}, "SPEC-022", "Two selected databases"),
            ({"depth": 0}, "SPEC-013", "depth"),
            ({"depth": 2.0}, "SPEC-012", "depth"),
            ({"max_colluders": -1}, "SPEC-013", "max_colluders"),
            ({"max_colluders": 6}, "SPEC-021", "max_colluders"),
            ({"max_colluders": 3, "choice": "mpc"}, "SPEC-021", "honest majority"),
            ({"choice": "mpc", "variant": "paper"}, "SPEC-022", "choice has no meaning"),
            ({"choice": "best"}, "SPEC-013", "choice"),
            ({"schema": Schema(FEATURES)}, "SCHEMA-001", "no label"),
            (
                {"schema": Schema(FEATURES, Numeric("pain", 0, 10))},
                "SPEC-021",
                "SDQTreeClassifier predicts categories",
            ),
            ({"random_state": "7"}, "USAGE-001", "random_state"),
        ],
        ids=str,
    )
    def test_tree_rejects_invalid_settings(
        self, settings: dict[str, Any], code: str, words: str
    ) -> None:
        error = catch_error(**settings)
        assert error.code == code and words in error.what and error.fix

    def test_naive_bayes_rejects_variant_paper(self) -> None:
        error = catch_error(fit_naive_bayes, variant="paper")
        assert error.code == "SPEC-022" and "The paper learns trees" in error.what

    def test_failed_fit_does_not_change_the_estimator(self) -> None:
        model = fit_tree(epsilon=0.5)
        before = dict(vars(model))
        with pytest.raises(ValueError):
            model.fit(X.assign(other=1, age=1e9), Y, SITES)
        assert vars(model) == before


class TestTools:
    @ignore_assigned_holders
    def test_classifiers_work_in_pipeline_and_grid_search(self) -> None:
        model = make_pipeline(FunctionTransformer(), clone(fit_default()))
        assert cross_val_score(model, X, Y, cv=2).min() > 0.75
        search = GridSearchCV(
            SDQNaiveBayesClassifier(schema=SCHEMA, random_state=0),
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
