"""How well one learns from some rows to predict others: a logistic or linear ridge regression on the cells of the public coding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.domain import Numeric
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.fitting import ridge_model
from shoal.protocols.pfds.params import Floats, Params, Rows

MOST_ROWS = 20_000
"""So many rows are learned from; more would hardly change what is found."""
MOST_WEIGHTS = 1_000
"""A larger model takes too long to be fitted by the way."""


@dataclass(frozen=True)
class Trial:
    """What came of learning: shares of wrong classes, or the root of the mean squared error as a share of the label's range.

    Parameters
    ----------
    error
        Of the regression.
    trivial
        Of always the most common class, or the mean, of the rows that were learned from.
    """

    error: float
    trivial: float


def try_out(params: Params, train: Dataset, test: Dataset) -> Trial | None:
    """Learn from some rows and predict others; None where there are too few rows, or too many weights to do it by the way."""
    if not len(train) or not len(test) or params.n_cells * params.n_models > MOST_WEIGHTS:
        return None
    train = taken(train, slice(MOST_ROWS))
    model = ridge_model(params, Rows.of(params, train.columns, train.labels))
    if isinstance(params.label, Numeric):
        width = float(params.label.high) - float(params.label.low)
        return Trial(_deviation(model.predict(test.columns) - test.labels, width), _deviation(train.labels.mean() - test.labels, width))
    common = int(np.bincount(train.labels).argmax())
    return Trial(float(np.mean(model.decide(test.columns) != test.labels)), float(np.mean(test.labels != common)))


def every_fourth(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Three quarters of the rows, to learn from, and every fourth, to be predicted."""
    is_fourth = np.arange(len(dataset)) % 4 == 3
    return taken(dataset, ~is_fourth), taken(dataset, is_fourth)


def taken(dataset: Dataset, which: slice | np.ndarray) -> Dataset:
    """Some of the rows."""
    return Dataset({name: column[which] for name, column in dataset.columns.items()}, dataset.labels[which])


def _deviation(errors: Floats, width: float) -> float:
    return float(np.sqrt(np.mean((errors / width) ** 2)))
