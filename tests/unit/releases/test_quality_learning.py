"""The regression of the quality report."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import PFDSParams
from shoal.releases import quality
from shoal.releases.quality import evaluate_regression, select_rows, split_every_fourth

CLASSES = PFDSParams(
    Schema([Numeric("a", 0, 10)], label=Categorical("y", ["no", "yes"], missing=False)), 1.0, 100
)
NUMBER = PFDSParams(
    Schema([Numeric("a", 0, 10)], label=Numeric("y", 0, 20, missing=False)), 1.0, 100
)
PLACES = np.arange(200) % 11.0


def test_regression_learns_classes_that_follow_from_a_feature() -> None:
    rows = Dataset({"a": PLACES}, (PLACES > 6).astype(int))
    trial = evaluate_regression(CLASSES, *split_every_fourth(rows))
    assert (
        trial is not None
        and trial.error == 0
        and trial.baseline_error == pytest.approx(4 / 11, abs=0.05)
    )


def test_regression_error_of_a_number_is_a_share_of_its_range() -> None:
    rows = Dataset({"a": PLACES}, 2 * PLACES)
    trial = evaluate_regression(NUMBER, *split_every_fourth(rows))
    assert (
        trial is not None
        and trial.error < 0.03
        and trial.baseline_error == pytest.approx(np.std(PLACES / 10), rel=0.05)
    )


def test_baseline_comes_from_the_training_rows() -> None:
    train, test = (
        Dataset({"a": PLACES}, np.zeros(200, int)),
        Dataset({"a": PLACES}, np.ones(200, int)),
    )
    assert evaluate_regression(CLASSES, train, test) == quality.RegressionTrial(1.0, 1.0)


def test_regression_is_omitted_without_rows_or_with_many_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Dataset({"a": PLACES}, (PLACES > 6).astype(int))
    none = select_rows(rows, slice(0))
    assert (
        evaluate_regression(CLASSES, none, rows) is None
        and evaluate_regression(CLASSES, rows, none) is None
    )
    monkeypatch.setattr(quality, "MAX_WEIGHTS", CLASSES.n_cells - 1)
    assert evaluate_regression(CLASSES, rows, rows) is None


def test_regression_uses_at_most_max_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.concatenate([np.zeros(10, int), np.ones(190, int)])
    monkeypatch.setattr(quality, "MAX_ROWS", 10)
    assert evaluate_regression(
        CLASSES, Dataset({"a": PLACES}, labels), Dataset({"a": PLACES}, np.ones(200, int))
    ) == quality.RegressionTrial(1.0, 1.0)


def test_split_every_fourth_puts_every_fourth_row_in_the_test_set() -> None:
    train, test = split_every_fourth(Dataset({"a": np.arange(9.0)}, np.arange(9)))
    assert train.labels.tolist() == [0, 1, 2, 4, 5, 6, 8] and test.columns["a"].tolist() == [3, 7]
