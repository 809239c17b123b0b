"""Scores compared with those of scikit-learn, and the two baselines."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import UsageError, format_install_command
from shoal.simulation.metrics import (
    compute_errors,
    compute_scores,
    score_mean_label,
    score_most_common,
    score_without_privacy,
)

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_equal_those_of_scikit_learn(n_classes: int) -> None:
    labels = RNG.integers(0, n_classes, 300)
    chances = RNG.dirichlet(np.ones(n_classes), 300).round(2)
    decisions = RNG.integers(0, n_classes, 300)
    scores = compute_scores(chances, decisions, labels)
    average = "binary" if n_classes == 2 else "macro"
    by_class = [roc_auc_score(labels == c, chances[:, c]) for c in range(n_classes)]
    assert scores.accuracy == accuracy_score(labels, decisions)
    assert scores.f1 == pytest.approx(f1_score(labels, decisions, average=average))
    assert scores.auc == pytest.approx(by_class[1] if n_classes == 2 else np.mean(by_class))


def test_errors_equal_those_of_scikit_learn() -> None:
    labels, predicted = RNG.normal(5, 3, 200), RNG.normal(5, 3, 200)
    errors = compute_errors(predicted, labels)
    assert errors.rmse == pytest.approx(root_mean_squared_error(labels, predicted))
    assert errors.mean_absolute_error == pytest.approx(mean_absolute_error(labels, predicted))
    assert errors.r_squared == pytest.approx(r2_score(labels, predicted))


def test_mean_baseline_uses_the_training_rows() -> None:
    errors = score_mean_label(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    assert (errors.rmse, errors.mean_absolute_error, errors.r_squared) == (2**0.5, 1.0, -1.0)


def test_absent_class_is_left_out_of_the_means() -> None:
    labels, decisions = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 1])
    scores = compute_scores(np.eye(3)[labels], decisions, labels)
    assert (
        scores.auc == 1 and scores.f1 == pytest.approx((1 + 2 / 3) / 2) and scores.accuracy == 0.75
    )


def test_most_common_baseline_uses_the_training_rows() -> None:
    scores = score_most_common(3, np.array([2, 2, 1]), np.array([1, 1, 1, 2]))
    assert (scores.accuracy, scores.auc) == (0.25, 0.5)


SCHEMA = Schema(
    [Numeric("x", -9, 9), Numeric("blank", 0, 1), Categorical("c", ["a", "b"])],
    label=Categorical("y", ["n", "m", "z"]),
)


def made_up(n: int) -> tuple[dict[str, Any], Any]:
    labels = RNG.integers(0, 2, n)
    x = np.clip(RNG.normal(size=n), -9, 9)
    missing = RNG.random(n) < 0.5
    # A missing number tells of the second class half of the time, the category always but for
    # noise.
    columns = {
        "x": np.where(missing & (labels == 1), np.nan, x),
        "blank": np.full(n, np.nan),
        "c": np.where(RNG.random(n) < 0.1, -1, labels),
    }
    return columns, labels


def test_model_without_privacy_uses_categories_and_missing_values() -> None:
    asked, labels = made_up(400)
    unseen, unseen_labels = made_up(400)
    scores = score_without_privacy(SCHEMA, asked, labels, unseen, unseen_labels)
    assert scores.accuracy > 0.9
    only_gaps = {**asked, "c": np.full(400, -1)}, {**unseen, "c": np.full(400, -1)}
    assert (
        score_without_privacy(SCHEMA, only_gaps[0], labels, only_gaps[1], unseen_labels).accuracy
        > 0.65
    )


def test_each_category_and_a_missing_value_has_its_own_input() -> None:
    schema = Schema([Categorical("c", ["a", "b", "d"])], label=Categorical("y", ["n", "m"]))
    codes = np.tile([-1, 0, 1, 2], 100)
    for of_class in ([-1, 1], [0, 2], [-1, 0]):
        labels = np.isin(codes, of_class).astype(np.int64)
        assert (
            score_without_privacy(schema, {"c": codes}, labels, {"c": codes}, labels).accuracy == 1
        )


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    columns, labels = made_up(4)
    with pytest.raises(UsageError) as error:
        score_without_privacy(SCHEMA, columns, labels, columns, labels)
    assert error.value.code == "USAGE-002"
    assert error.value.fix == format_install_command("learn")
