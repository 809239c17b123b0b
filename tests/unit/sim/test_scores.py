"""Scores against scikit-learn's, and the two yardsticks."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import UsageError
from shoal.sim.scores import errors_of, mean_label, most_common, scores_of, without_privacy

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_are_scikit_learns(n_classes: int) -> None:
    labels = RNG.integers(0, n_classes, 300)
    chances = RNG.dirichlet(np.ones(n_classes), 300).round(2)
    decisions = RNG.integers(0, n_classes, 300)
    scores = scores_of(chances, decisions, labels)
    average = "binary" if n_classes == 2 else "macro"
    by_class = [roc_auc_score(labels == c, chances[:, c]) for c in range(n_classes)]
    assert scores.accuracy == accuracy_score(labels, decisions)
    assert scores.f1 == pytest.approx(f1_score(labels, decisions, average=average))
    assert scores.auc == pytest.approx(by_class[1] if n_classes == 2 else np.mean(by_class))


def test_errors_are_scikit_learns() -> None:
    labels, predicted = RNG.normal(5, 3, 200), RNG.normal(5, 3, 200)
    errors = errors_of(predicted, labels)
    assert errors.rmse == pytest.approx(root_mean_squared_error(labels, predicted))
    assert errors.mean_absolute_error == pytest.approx(mean_absolute_error(labels, predicted))
    assert errors.r_squared == pytest.approx(r2_score(labels, predicted))


def test_the_mean_is_that_of_the_rows_to_learn_from() -> None:
    errors = mean_label(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    assert (errors.rmse, errors.mean_absolute_error, errors.r_squared) == (2**0.5, 1.0, -1.0)


def test_a_class_that_no_row_has_is_left_out_of_the_means() -> None:
    labels, decisions = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 1])
    scores = scores_of(np.eye(3)[labels], decisions, labels)
    assert scores.auc == 1 and scores.f1 == pytest.approx((1 + 2 / 3) / 2) and scores.accuracy == 0.75


def test_the_most_common_class_is_that_of_the_rows_to_learn_from() -> None:
    scores = most_common(3, np.array([2, 2, 1]), np.array([1, 1, 1, 2]))
    assert (scores.accuracy, scores.auc) == (0.25, 0.5)


SCHEMA = Schema([Numeric("x", -9, 9), Numeric("blank", 0, 1), Categorical("c", ["a", "b"])], label=Categorical("y", ["n", "m", "z"]))


def made_up(n: int) -> tuple[dict[str, Any], Any]:
    labels = RNG.integers(0, 2, n)
    x = np.clip(RNG.normal(size=n), -9, 9)
    missing = RNG.random(n) < 0.5
    # A missing number tells of the second class half of the time, the category always but for noise.
    columns = {
        "x": np.where(missing & (labels == 1), np.nan, x),
        "blank": np.full(n, np.nan),
        "c": np.where(RNG.random(n) < 0.1, -1, labels),
    }
    return columns, labels


def test_without_privacy_categories_and_gaps_tell() -> None:
    asked, labels = made_up(400)
    unseen, unseen_labels = made_up(400)
    scores = without_privacy(SCHEMA, asked, labels, unseen, unseen_labels)
    assert scores.accuracy > 0.9
    only_gaps = {**asked, "c": np.full(400, -1)}, {**unseen, "c": np.full(400, -1)}
    assert without_privacy(SCHEMA, only_gaps[0], labels, only_gaps[1], unseen_labels).accuracy > 0.65


def test_every_category_tells_by_itself_and_so_does_a_missing_one() -> None:
    schema = Schema([Categorical("c", ["a", "b", "d"])], label=Categorical("y", ["n", "m"]))
    codes = np.tile([-1, 0, 1, 2], 100)
    for of_class in ([-1, 1], [0, 2], [-1, 0]):
        labels = np.isin(codes, of_class).astype(np.int64)
        assert without_privacy(schema, {"c": codes}, labels, {"c": codes}, labels).accuracy == 1


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    columns, labels = made_up(4)
    with pytest.raises(UsageError) as error:
        without_privacy(SCHEMA, columns, labels, columns, labels)
    assert error.value.code == "USAGE-002" and error.value.fix == "pip install 'shoal[learn]'"
