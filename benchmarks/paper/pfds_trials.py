"""One split of a table among holders: what each learns alone, what all learn without privacy, and what variant plus gives them.

Errors are those on test rows that nobody holds: the share of rows taken for another class, or the mean square of a number on [-1, 1].
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.paper.pfds_data import Floats, Ints, Split, splits
from benchmarks.paper.pfds_rivals import error, targets
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import draw
from shoal.protocols.pfds.fitting import own_model, released_model, ridge_model
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import KeptModel, Model
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.population import simulate

Use = Literal["home", "model", "data"]

N_HOLDERS = 12
"""Holders of a split whose error is taken, drawn from all that have rows; all of them where there are fewer."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Whom holders trust, and how noise is made.

    Parameters
    ----------
    key, title
        Its name in measures, and for people.
    changes
        What differs from trust local, where everyone answers and nobody colludes.
    """

    key: str
    title: str
    changes: Mapping[str, Any]


_PURE = {"trust": "secure-sum"}
_GAUSSIAN = {"trust": "secure-sum", "delta": 1e-6}
LOCAL = Setting("local", "local, pure", {})
SUMS = Setting("sums", "secure-sum, pure", _PURE)
SUMS_DELTA = Setting("sums_delta", "secure-sum, delta 1e-6", _GAUSSIAN)
SUMS_C33 = Setting("sums_c33", "secure-sum, pure, 33 of 100 may collude", {**_PURE, "max_colluders": 33})
SUMS_DELTA_C33 = Setting("sums_delta_c33", "secure-sum, delta 1e-6, 33 of 100 may collude", {**_GAUSSIAN, "max_colluders": 33})


@dataclass(frozen=True, eq=False)
class Trial:
    """A split, and what can be had from it without privacy.

    Parameters
    ----------
    path
        Its name, on which all that it draws depends.
    split
        Rows of holders, and test rows.
    """

    path: tuple[str | int, ...]
    split: Split

    def params(self, epsilon: float, changes: Mapping[str, Any]) -> Params:
        """A study that declares the true number of rows, and in which everyone answers."""
        m = self.split.n_holders
        given = {"size": len(self.split.training), "n_holders": m, "minimum": m, **changes}
        return Params(self.split.training.schema, epsilon, **given)

    def entropy(self, *path: str | int) -> SeededEntropy:
        """For one purpose."""
        return SeededEntropy("pfds trials").spawn(*self.path, *path)

    @cached_property
    def bare(self) -> Params:
        """The study without privacy."""
        return self.params(math.inf, {})

    @cached_property
    def rows(self) -> Rows:
        """All training rows in the public coding, with whose they are."""
        return Rows.of(self.bare, self.split.training.columns, self.split.training.labels, self.split.whose)

    @cached_property
    def holders(self) -> Ints:
        """The holders whose error is taken, however few rows they have."""
        everyone = np.unique(self.split.whose)
        order = np.argsort(self.entropy("holders").words(len(everyone), np.uint64), kind="stable")
        return everyone[order[:N_HOLDERS]]

    @cached_property
    def trivial(self) -> float:
        """Error of the mean, or of the most common class."""
        labels = self.split.training.labels
        guess = labels.mean() if self.bare.is_number else np.bincount(labels).argmax()
        return self._error(np.full(len(self.split.test), guess))

    @cached_property
    def pooled(self) -> float:
        """Error of who learns from all rows, without privacy."""
        return self.error_of(ridge_model(self.bare, self.rows))

    @cached_property
    def own(self) -> Floats:
        """Error of each holder who learns alone."""
        return self.each(lambda rows, _: own_model(self.bare, rows))

    def each(self, learn: Callable[[Rows, int], Model | KeptModel]) -> Floats:
        """Error of what each of the holders learns at home."""
        return np.array([self.error_of(learn(self.rows.take(self.split.whose == holder), holder)) for holder in self.holders.tolist()])

    def error_of(self, model: Model | KeptModel) -> float:
        """Error on the test rows."""
        columns = self.split.test.columns
        return self._error(model.predict(columns) if self.bare.is_number else model.decide(columns))

    def _error(self, predicted: npt.NDArray[Any]) -> float:
        schema = self.split.test.schema
        return error(targets(schema, self.split.test.labels), targets(schema, predicted))


@dataclass(frozen=True, eq=False)
class Release:
    """What holders and others can do with what was released in one trial.

    Parameters
    ----------
    trial, setting, epsilon
        Where, how and at which budget it was released.
    """

    trial: Trial
    setting: Setting
    epsilon: float

    @cached_property
    def model(self) -> Model:
        """The pooled model."""
        params, digest = self.trial.params(self.epsilon, self.setting.changes), repr(self.trial.path).encode()
        return simulate(params, self.trial.rows, digest, self._entropy("noise")).model

    def errors(self, use: Use) -> Floats:
        """Error of each holder: with its home model, or with a model by the release alone, which is the same for all of them.

        Notes
        -----
        Released rows are as many as there are true ones; the model is the logistic regression of their public cells.
        """
        if use == "home":
            return self.trial.each(lambda rows, holder: at_home(self.model, rows, self._entropy("folds", holder)))
        model = self.model if use == "model" else self._by_data()
        return np.full(len(self.trial.holders), self.trial.error_of(model))

    def _by_data(self) -> Model:
        params, data = self.model.params, draw(self.model, len(self.trial.rows), self._entropy("rows"))
        return released_model(params, Rows.of(params, data.columns, data.labels))

    def _entropy(self, *path: str | int) -> SeededEntropy:
        return self.trial.entropy(self.setting.key, f"{self.epsilon:g}", *path)


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of holders in several splits.

    Parameters
    ----------
    splits
        Those of each split, by holder.
    """

    splits: Sequence[Floats]

    @property
    def value(self) -> float:
        """Their mean over holders, and over splits."""
        return statistics.fmean(self._means)

    @property
    def uncertainty(self) -> float:
        """Standard error of the mean, over splits; 0 for one split."""
        return statistics.stdev(self._means) / math.sqrt(len(self.splits)) if len(self.splits) > 1 else 0.0

    def gains(self, own: Errors) -> float:
        """The share of holders, in per cent, who have a smaller error than alone."""
        return 100 * float(np.mean(np.concatenate(self.splits) < np.concatenate(own.splits)))

    def to_text(self) -> str:
        return f"{self.value:.4f} ({self.uncertainty:.4f})"

    @property
    def _means(self) -> list[float]:
        return [float(one.mean()) for one in self.splits]


def trials(name: str, seeds: int) -> Iterator[Trial]:
    """So many splits of a task, test rows from the half on which nothing was chosen."""
    return (Trial((name, number), split) for number, split in enumerate(splits(name, seeds)))
