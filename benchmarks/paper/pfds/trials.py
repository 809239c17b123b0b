"""One split of a table among holders: own models, the model of all rows, variant plus.

Errors are those on test rows that no holder has: the share of wrong classes, or the mean square
error of a number on [-1, 1].
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

from benchmarks.paper.pfds.baselines import error, targets
from benchmarks.paper.pfds.data import Floats, Ints, Split, splits
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import draw_dataset
from shoal.protocols.pfds.fitting import fit_own_model, fit_released_model, fit_ridge_model
from shoal.protocols.pfds.model import PooledModel, UnreleasedModel
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate

Use = Literal["home", "model", "data"]

N_HOLDERS = 12
"""Largest number of holders of a split with a measured error, drawn from those with rows."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Trust of the holders, and kind of noise.

    Parameters
    ----------
    key, title
        Its name in measures, and for people.
    changes
        Differences from trust local in which every holder answers and none colludes.
    """

    key: str
    title: str
    changes: Mapping[str, Any]


_PURE = {"trust": "secure-sum"}
_GAUSSIAN = {"trust": "secure-sum", "delta": 1e-6}
LOCAL = Setting("local", "local, pure", {})
SUMS = Setting("sums", "secure-sum, pure", _PURE)
SUMS_DELTA = Setting("sums_delta", "secure-sum, delta 1e-6", _GAUSSIAN)
SUMS_C33 = Setting(
    "sums_c33", "secure-sum, pure, 33 of 100 may collude", {**_PURE, "max_colluders": 33}
)
SUMS_DELTA_C33 = Setting(
    "sums_delta_c33",
    "secure-sum, delta 1e-6, 33 of 100 may collude",
    {**_GAUSSIAN, "max_colluders": 33},
)


@dataclass(frozen=True, eq=False)
class Trial:
    """A split, and the results without privacy.

    Parameters
    ----------
    path
        Its name, on which all that it draws depends.
    split
        Rows of holders, and test rows.
    """

    path: tuple[str | int, ...]
    split: Split

    def params(self, epsilon: float, changes: Mapping[str, Any]) -> PFDSParams:
        """Return a study with the true number of rows, in which every holder answers."""
        m = self.split.n_holders
        given = {"size": len(self.split.training), "n_holders": m, "minimum": m, **changes}
        return PFDSParams(self.split.training.schema, epsilon, **given)

    def entropy(self, *path: str | int) -> SeededEntropy:
        """Return the random stream for one purpose."""
        return SeededEntropy("pfds trials").spawn(*self.path, *path)

    @cached_property
    def bare(self) -> PFDSParams:
        """The study without privacy."""
        return self.params(math.inf, {})

    @cached_property
    def rows(self) -> PFDSRows:
        """All training rows in the public coding, with their owners."""
        return PFDSRows.from_columns(
            self.bare, self.split.training.columns, self.split.training.labels, self.split.owners
        )

    @cached_property
    def holders(self) -> Ints:
        """The holders with a measured error, however few rows they have."""
        everyone = np.unique(self.split.owners)
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
        """Error of a model of all rows, without privacy."""
        return self.compute_error(fit_ridge_model(self.bare, self.rows))

    @cached_property
    def own(self) -> Floats:
        """Error of each holder's model of its rows alone."""
        return self.each(lambda rows, _: fit_own_model(self.bare, rows))

    def each(self, learn: Callable[[PFDSRows, int], PooledModel | UnreleasedModel]) -> Floats:
        """Return the error of each holder's personal model."""
        return np.array(
            [
                self.compute_error(learn(self.rows.take(self.split.owners == holder), holder))
                for holder in self.holders.tolist()
            ]
        )

    def compute_error(self, model: PooledModel | UnreleasedModel) -> float:
        """Return the error on the test rows."""
        columns = self.split.test.columns
        return self._error(model.predict(columns) if self.bare.is_number else model.decide(columns))

    def _error(self, predicted: npt.NDArray[Any]) -> float:
        schema = self.split.test.schema
        return error(targets(schema, self.split.test.labels), targets(schema, predicted))


@dataclass(frozen=True, eq=False)
class Release:
    """Uses of the release of one trial.

    Parameters
    ----------
    trial, setting, epsilon
        Where, how and at which budget it was released.
    """

    trial: Trial
    setting: Setting
    epsilon: float

    @cached_property
    def model(self) -> PooledModel:
        """The pooled model."""
        params, digest = (
            self.trial.params(self.epsilon, self.setting.changes),
            repr(self.trial.path).encode(),
        )
        return simulate(params, self.trial.rows, digest, self._entropy("noise")).model

    def errors(self, use: Use) -> Floats:
        """Return the error of each holder.

        It is the error of the personal model, or of a model of the release alone, which is the same
        for all.

        Notes
        -----
        The number of released rows is that of the true rows; the model is the logistic regression
        of their public cells.
        """
        if use == "home":
            return self.trial.each(
                lambda rows, holder: fit_personal_model(
                    self.model, rows, self._entropy("folds", holder)
                )
            )
        model = self.model if use == "model" else self._by_data()
        return np.full(len(self.trial.holders), self.trial.compute_error(model))

    def _by_data(self) -> PooledModel:
        params, data = (
            self.model.params,
            draw_dataset(self.model, len(self.trial.rows), self._entropy("rows")),
        )
        return fit_released_model(params, PFDSRows.from_columns(params, data.columns, data.labels))

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
        """Mean over holders, then over splits."""
        return statistics.fmean(self._means)

    @property
    def uncertainty(self) -> float:
        """Standard error of the mean, over splits; 0 for one split."""
        return (
            statistics.stdev(self._means) / math.sqrt(len(self.splits))
            if len(self.splits) > 1
            else 0.0
        )

    def gains(self, own: Errors) -> float:
        """Return the share of holders, in per cent, with a smaller error than alone."""
        return 100 * float(np.mean(np.concatenate(self.splits) < np.concatenate(own.splits)))

    def to_text(self) -> str:
        return f"{self.value:.4f} ({self.uncertainty:.4f})"

    @property
    def _means(self) -> list[float]:
        return [float(one.mean()) for one in self.splits]


def trials(name: str, seeds: int) -> Iterator[Trial]:
    """Return splits of a task, with test rows from the half that no choice was based on."""
    return (Trial((name, number), split) for number, split in enumerate(splits(name, seeds)))
