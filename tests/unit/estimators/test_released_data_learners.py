"""scikit-learn models on released rows: coding, a single class, no rows, and errors."""

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
from shoal.estimators.released_data import ReleasedDataModel, encode_one_hot, make_learner
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import PFDSParams

FEATURES = [Numeric("age", 0, 80), Categorical("kind", ["u", "v", "w"], missing=False)]
PARAMS = PFDSParams(Schema(FEATURES, Categorical("ill", ["no", "maybe", "yes"])), 1.0, 100)
NUMBER = PFDSParams(Schema(FEATURES, Numeric("pain", 0, 10)), 1.0, 100)
RNG = np.random.default_rng(1)
COLUMNS: dict[str, Any] = {"age": RNG.uniform(0, 80, 400), "kind": RNG.integers(0, 3, 400)}


def make_dataset(labels: Any) -> Dataset:
    return Dataset(COLUMNS, np.asarray(labels))


def test_encode_one_hot_has_a_column_for_each_cell() -> None:
    inputs = encode_one_hot(
        PARAMS, {"age": np.array([5.0, 75.0, np.nan]), "kind": np.array([2, 0, 1])}
    ).toarray()
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
def test_make_learner_accepts_names_and_copies_instances(
    learner: Any, is_number: bool, kind: type
) -> None:
    made = make_learner(learner, is_number)
    assert type(made) is kind and made is not learner
    assert not hasattr(made, "estimators_") and getattr(made, "n_estimators", 7) == 7


@pytest.mark.parametrize(
    ("learner", "is_number", "words"),
    [
        ("ridge", False, "learner = 'ridge' cannot be trained."),
        ("logistic", True, "learner = 'logistic' cannot be trained."),
        (
            LogisticRegression,
            False,
            "The learner is the class LogisticRegression, not an instance.",
        ),
        (Ridge, False, "The learner is the class Ridge, not an instance."),
        (int, False, "A learner of type type"),
        (Ridge(), False, "The learner has type Ridge, which is not a classifier."),
        (KMeans(2), False, "The learner has type KMeans, which is not a classifier."),
        (
            StandardScaler(),
            False,
            "The learner has type StandardScaler, which is not a classifier.",
        ),
        (
            make_pipeline(StandardScaler(), Ridge()),
            False,
            "The learner has type Pipeline, which is not a classifier.",
        ),
        (
            make_pipeline(StandardScaler()),
            True,
            "The learner has type Pipeline, which is not a regressor.",
        ),
        (
            LogisticRegression(),
            True,
            "The learner has type LogisticRegression, which is not a regressor.",
        ),
        (3, True, "A learner of type int"),
    ],
)
def test_make_learner_rejects_other_learners(learner: Any, is_number: bool, words: str) -> None:
    with pytest.raises(EstimatorError) as error:
        make_learner(learner, is_number)
    assert error.value.code == "USAGE-001" and words in error.value.what and error.value.fix


@pytest.mark.parametrize(
    "learner",
    [
        LogisticRegression(),
        RandomForestClassifier(20, random_state=0),
        HistGradientBoostingClassifier(),
    ],
)
def test_train_uses_all_datasets(learner: Any) -> None:
    """A learner that accepts no sparse matrix receives a dense one."""
    by_kind = COLUMNS["kind"]
    halves = [
        Dataset({name: column[part] for name, column in COLUMNS.items()}, by_kind[part])
        for part in (slice(0, 200), slice(200, None))
    ]
    learned = ReleasedDataModel.train(PARAMS, learner, halves)
    assert np.mean(learned.decide(COLUMNS) == by_kind) > 0.95
    chances = learned.probabilities(COLUMNS)
    assert (
        chances.shape == (400, 3)
        and np.allclose(chances.sum(axis=1), 1)
        and (chances.argmax(axis=1) == learned.decide(COLUMNS)).all()
    )


def test_class_without_rows_has_probability_zero() -> None:
    learned = ReleasedDataModel.train(
        PARAMS, LogisticRegression(), [make_dataset(2 * (COLUMNS["age"] > 40))]
    )
    chances = learned.probabilities({"age": np.array([5.0, 75.0]), "kind": np.array([0, 0])})
    assert (chances[:, 1] == 0).all() and chances.argmax(axis=1).tolist() == [0, 2]
    assert learned.decide({"age": np.array([5.0, 75.0]), "kind": np.array([0, 0])}).tolist() == [
        0,
        2,
    ]


@pytest.mark.parametrize("learner", ["logistic", "svm"])
def test_single_class_is_always_predicted(learner: str) -> None:
    learned = ReleasedDataModel.train(
        PARAMS,
        make_learner(learner, False),
        [make_dataset(np.ones(400, int)), make_dataset(np.ones(400, int))],
    )
    assert (learned.decide(COLUMNS) == 1).all() and (
        learned.probabilities(COLUMNS) == [0, 1, 0]
    ).all()


@pytest.mark.parametrize(
    "datasets",
    [(), (Dataset({"age": np.zeros(0), "kind": np.zeros(0, int)}, np.zeros(0, int)),)],
    ids=["none", "empty"],
)
def test_training_without_rows_predicts_uniformly(datasets: Any) -> None:
    learned = ReleasedDataModel.train(PARAMS, LogisticRegression(), datasets)
    assert np.allclose(learned.probabilities(COLUMNS), 1 / 3)
    assert (ReleasedDataModel.train(NUMBER, Ridge(), datasets).predict(COLUMNS) == 5).all()


def test_predictions_stay_in_the_label_range() -> None:
    pain = np.clip(COLUMNS["age"] / 4 - 3, 0, 10)
    learned = ReleasedDataModel.train(NUMBER, Ridge(1e-6), [make_dataset(pain)])
    predicted = learned.predict(COLUMNS)
    assert (
        predicted.shape == (400,)
        and predicted.min() >= 0
        and predicted.max() <= 10
        and np.abs(predicted - pain).mean() < 1
    )
    tree = ReleasedDataModel.train(
        NUMBER, DecisionTreeRegressor(random_state=0), [make_dataset(pain)]
    )
    assert np.abs(tree.predict(COLUMNS) - pain).mean() < 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e308), (-8e307, 8e307), (1e-300, 1.7e308)])
@pytest.mark.parametrize("learner", [Ridge(), DecisionTreeRegressor(random_state=0)])
def test_predictions_are_finite_for_the_widest_range(learner: Any, low: float, high: float) -> None:
    """Sums and squares of such labels overflow."""
    shares = COLUMNS["age"] / 80
    wide = PFDSParams(Schema(FEATURES, Numeric("pain", low, high)), 1.0, 100)
    predicted = ReleasedDataModel.train(
        wide, learner, [make_dataset(low + (high - low) * shares)]
    ).predict(COLUMNS)
    assert low <= predicted.min() and predicted.max() <= high
    expected = (
        ReleasedDataModel.train(NUMBER, learner, [make_dataset(10 * shares)]).predict(COLUMNS) / 10
    )
    np.testing.assert_allclose((predicted - low) / (high - low), expected, atol=1e-6)


def test_learner_without_probabilities_only_decides() -> None:
    learned = ReleasedDataModel.train(PARAMS, LinearSVC(), [make_dataset(COLUMNS["kind"])])
    assert (learned.decide(COLUMNS) == COLUMNS["kind"]).mean() > 0.95
    with pytest.raises(EstimatorError, match="LinearSVC does not predict"):
        learned.probabilities(COLUMNS)


def test_learner_that_does_not_converge_is_accepted() -> None:
    assert ReleasedDataModel.train(
        PARAMS, LogisticRegression(max_iter=1), [make_dataset(COLUMNS["kind"])]
    ).decide(COLUMNS).shape == (400,)
