"""Models of scikit-learn on released rows: the public coding, one class only, nothing at all, and what cannot be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeRegressor

from shoal import Categorical, Numeric, Schema
from shoal.estimators.inputs import EstimatorError
from shoal.estimators.learners import Learned, make_learner, one_hot
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import Params

FEATURES = [Numeric("age", 0, 80), Categorical("kind", ["u", "v", "w"], missing=False)]
PARAMS = Params(Schema(FEATURES, Categorical("ill", ["no", "maybe", "yes"])), 1.0, 100)
NUMBER = Params(Schema(FEATURES, Numeric("pain", 0, 10)), 1.0, 100)
RNG = np.random.default_rng(1)
COLUMNS: dict[str, Any] = {"age": RNG.uniform(0, 80, 400), "kind": RNG.integers(0, 3, 400)}


def rows(labels: Any) -> Dataset:
    return Dataset(COLUMNS, np.asarray(labels))


def test_a_column_stands_for_each_cell() -> None:
    inputs = one_hot(PARAMS, {"age": np.array([5.0, 75.0, np.nan]), "kind": np.array([2, 0, 1])}).toarray()
    assert inputs.shape == (3, PARAMS.n_cells) and (inputs.sum(axis=1) == 2).all()
    assert [np.flatnonzero(row).tolist() for row in inputs] == [[0, 11], [7, 9], [8, 10]]


@pytest.mark.parametrize(
    ("learner", "is_number", "kind"),
    [
        ("logistic", False, LogisticRegression),
        ("svm", False, LinearSVC),
        ("ridge", True, Ridge),
        (RandomForestClassifier(7), False, RandomForestClassifier),
        (make_pipeline(StandardScaler(with_mean=False), SVC()), False, Pipeline),
        (make_pipeline(StandardScaler(with_mean=False), Ridge()), True, Pipeline),
        (GridSearchCV(SVC(), {"C": [1, 2]}), False, GridSearchCV),
    ],
)
def test_are_made_by_name_or_copied(learner: Any, is_number: bool, kind: type) -> None:
    made = make_learner(learner, is_number)
    assert type(made) is kind and made is not learner
    assert not hasattr(made, "estimators_") and getattr(made, "n_estimators", 7) == 7


@pytest.mark.parametrize(
    ("learner", "is_number", "words"),
    [
        ("ridge", False, "learner = 'ridge', which cannot be trained."),
        ("logistic", True, "learner = 'logistic', which cannot be trained."),
        (LogisticRegression, False, "learner is a class: give LogisticRegression()."),
        (Ridge, False, "learner is a class: give Ridge()."),
        (int, False, "learner is of type type"),
        (Ridge(), False, "learner is of type Ridge, which is no classifier."),
        (KMeans(2), False, "learner is of type KMeans, which is no classifier."),
        (StandardScaler(), False, "learner is of type StandardScaler, which is no classifier."),
        (make_pipeline(StandardScaler(), Ridge()), False, "learner is of type Pipeline, which is no classifier."),
        (make_pipeline(StandardScaler()), True, "learner is of type Pipeline, which is no regressor."),
        (LogisticRegression(), True, "learner is of type LogisticRegression, which is no regressor."),
        (3, True, "learner is of type int"),
    ],
)
def test_others_are_refused(learner: Any, is_number: bool, words: str) -> None:
    with pytest.raises(EstimatorError) as error:
        make_learner(learner, is_number)
    assert error.value.code == "USAGE-001" and words in error.value.what and error.value.fix


@pytest.mark.parametrize("learner", [LogisticRegression(), RandomForestClassifier(20, random_state=0), HistGradientBoostingClassifier()])
def test_learn_from_all_datasets(learner: Any) -> None:
    """One that takes no sparse matrix is given a dense one."""
    by_kind = COLUMNS["kind"]
    halves = [
        Dataset({name: column[part] for name, column in COLUMNS.items()}, by_kind[part]) for part in (slice(0, 200), slice(200, None))
    ]
    learned = Learned.of(PARAMS, learner, halves)
    assert np.mean(learned.decide(COLUMNS) == by_kind) > 0.95
    chances = learned.probabilities(COLUMNS)
    assert chances.shape == (400, 3) and np.allclose(chances.sum(axis=1), 1) and (chances.argmax(axis=1) == learned.decide(COLUMNS)).all()


def test_a_class_that_nobody_has_gets_no_chance() -> None:
    learned = Learned.of(PARAMS, LogisticRegression(), [rows(2 * (COLUMNS["age"] > 40))])
    chances = learned.probabilities({"age": np.array([5.0, 75.0]), "kind": np.array([0, 0])})
    assert (chances[:, 1] == 0).all() and chances.argmax(axis=1).tolist() == [0, 2]
    assert learned.decide({"age": np.array([5.0, 75.0]), "kind": np.array([0, 0])}).tolist() == [0, 2]


@pytest.mark.parametrize("learner", ["logistic", "svm"])
def test_one_class_alone_is_what_is_predicted(learner: str) -> None:
    learned = Learned.of(PARAMS, make_learner(learner, False), [rows(np.ones(400, int)), rows(np.ones(400, int))])
    assert (learned.decide(COLUMNS) == 1).all() and (learned.probabilities(COLUMNS) == [0, 1, 0]).all()


@pytest.mark.parametrize(
    "datasets", [(), (Dataset({"age": np.zeros(0), "kind": np.zeros(0, int)}, np.zeros(0, int)),)], ids=["none", "empty"]
)
def test_nothing_says_that_all_is_alike(datasets: Any) -> None:
    learned = Learned.of(PARAMS, LogisticRegression(), datasets)
    assert np.allclose(learned.probabilities(COLUMNS), 1 / 3)
    assert (Learned.of(NUMBER, Ridge(), datasets).predict(COLUMNS) == 5).all()


def test_numbers_stay_in_the_labels_range() -> None:
    pain = np.clip(COLUMNS["age"] / 4 - 3, 0, 10)
    learned = Learned.of(NUMBER, Ridge(1e-6), [rows(pain)])
    predicted = learned.predict(COLUMNS)
    assert predicted.shape == (400,) and predicted.min() >= 0 and predicted.max() <= 10 and np.abs(predicted - pain).mean() < 1
    tree = Learned.of(NUMBER, DecisionTreeRegressor(random_state=0), [rows(pain)])
    assert np.abs(tree.predict(COLUMNS) - pain).mean() < 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e308), (-8e307, 8e307), (1e-300, 1.7e308)])
@pytest.mark.parametrize("learner", [Ridge(), DecisionTreeRegressor(random_state=0)])
def test_numbers_may_be_as_large_as_numbers_are(learner: Any, low: float, high: float) -> None:
    """Their sums, and their squares, are no numbers."""
    shares = COLUMNS["age"] / 80
    wide = Params(Schema(FEATURES, Numeric("pain", low, high)), 1.0, 100)
    predicted = Learned.of(wide, learner, [rows(low + (high - low) * shares)]).predict(COLUMNS)
    assert low <= predicted.min() and predicted.max() <= high
    expected = Learned.of(NUMBER, learner, [rows(10 * shares)]).predict(COLUMNS) / 10
    np.testing.assert_allclose((predicted - low) / (high - low), expected, atol=1e-6)


def test_what_only_decides_has_no_chances() -> None:
    learned = Learned.of(PARAMS, LinearSVC(), [rows(COLUMNS["kind"])])
    assert (learned.decide(COLUMNS) == COLUMNS["kind"]).mean() > 0.95
    with pytest.raises(EstimatorError, match="LinearSVC decides"):
        learned.probabilities(COLUMNS)


def test_what_does_not_converge_is_taken_as_it_is() -> None:
    assert Learned.of(PARAMS, LogisticRegression(max_iter=1), [rows(COLUMNS["kind"])]).decide(COLUMNS).shape == (400,)
