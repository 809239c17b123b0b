"""Learning from some rows to predict others, by the way."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import Params
from shoal.releases import learning
from shoal.releases.learning import every_fourth, taken, try_out

CLASSES = Params(Schema([Numeric("a", 0, 10)], label=Categorical("y", ["no", "yes"], missing=False)), 1.0, 100)
NUMBER = Params(Schema([Numeric("a", 0, 10)], label=Numeric("y", 0, 20, missing=False)), 1.0, 100)
PLACES = np.arange(200) % 11.0


def test_classes_that_follow_from_a_feature_are_learned() -> None:
    rows = Dataset({"a": PLACES}, (PLACES > 6).astype(int))
    trial = try_out(CLASSES, *every_fourth(rows))
    assert trial is not None and trial.error == 0 and trial.trivial == pytest.approx(4 / 11, abs=0.05)


def test_errors_of_a_number_are_shares_of_its_range() -> None:
    rows = Dataset({"a": PLACES}, 2 * PLACES)
    trial = try_out(NUMBER, *every_fourth(rows))
    assert trial is not None and trial.error < 0.03 and trial.trivial == pytest.approx(np.std(PLACES / 10), rel=0.05)


def test_the_trivial_guess_comes_from_the_rows_that_were_learned_from() -> None:
    train, test = Dataset({"a": PLACES}, np.zeros(200, int)), Dataset({"a": PLACES}, np.ones(200, int))
    assert try_out(CLASSES, train, test) == learning.Trial(1.0, 1.0)


def test_too_few_rows_or_too_many_weights_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Dataset({"a": PLACES}, (PLACES > 6).astype(int))
    none = taken(rows, slice(0))
    assert try_out(CLASSES, none, rows) is None and try_out(CLASSES, rows, none) is None
    monkeypatch.setattr(learning, "MOST_WEIGHTS", CLASSES.n_cells - 1)
    assert try_out(CLASSES, rows, rows) is None


def test_only_so_many_rows_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.concatenate([np.zeros(10, int), np.ones(190, int)])
    monkeypatch.setattr(learning, "MOST_ROWS", 10)
    assert try_out(CLASSES, Dataset({"a": PLACES}, labels), Dataset({"a": PLACES}, np.ones(200, int))) == learning.Trial(1.0, 1.0)


def test_every_fourth_row_is_kept_apart() -> None:
    train, test = every_fourth(Dataset({"a": np.arange(9.0)}, np.arange(9)))
    assert train.labels.tolist() == [0, 1, 2, 4, 5, 6, 8] and test.columns["a"].tolist() == [3, 7]
