"""Prediction intervals of a forecast: the range of one real study's score.

`ForecastPoints` calls `compute_intervals` with trials on public rows. The score of a real study
differs from the mean of the trials for four reasons, and an interval includes each:

- noise, and the assignment of questions: the trials show this variance;
- the rows that take part: the trials show less of this variance than real studies have, because
  their rows are drawn from the same public ones;
- the finite public rows, on which the trials are tested;
- the finite test rows of the real study, if their number is given.

Scores are often skew: a model cannot be much better than the best one and may be much worse. So
each side of an interval has a separate width, from the trials on that side of the mean (a two-piece
normal distribution), with Student's factor for their small number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import require_extra
from shoal.simulation.forecast.sources import PopulationSource
from shoal.simulation.forecast.trials import ForecastTrialResult

Floats = npt.NDArray[np.float64]

ROW_SHARES = {"local": 0.2, "shuffled": 0.2, "secure-sum": 0.4}
"""Trust level -> share of the variance between studies that is due to the rows that take part.

The rest is due to noise and questions. If every participant adds noise, rows matter little. These
are the largest shares measured on eight studies of all protocols, of 1,000 and 4,000 rows at
epsilon 0.5 and 2; the means were 0.04 and 0.15 (docs/guide/forecast.md).
"""

_MIN_KEPT = 0.25
"""Smallest part of the variance between trials that is kept.

A few trials cannot show that all of it is chance among the test rows.
"""
_TINY = 1e-18
SHARES = ("accuracy", "auc", "f1")
"""Measures between 0 and 1."""
SMALLER_IS_BETTER = ("rmse", "mean_absolute_error")


@dataclass(frozen=True)
class PredictionInterval:
    """The expected value of a measure, and the range of the real study's value."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RepeatedRuns:
    """The trials of one point: one study on populations of one size."""

    n_rows: int
    runs: Sequence[ForecastTrialResult]

    def scores(self, measure: str) -> Floats:
        """Return a measure of every trial."""
        return np.array([run.scores[measure] for run in self.runs])


def compute_intervals(
    points: Sequence[RepeatedRuns],
    source: PopulationSource,
    measure: str,
    level: float,
    *,
    row_share: float,
    pessimism: float = 0.0,
    n_test_rows: int | None = None,
) -> list[PredictionInterval]:
    """Return the prediction interval of each point, for one measure.

    Parameters
    ----------
    points
        Points with equal numbers of trials. Trial r of each was tested on fold r modulo
        `PopulationSource.n_folds`.
    level
        Probability that the interval covers the real study's score.
    row_share
        The share of the variance that is due to rows: see `ROW_SHARES`.
    pessimism
        Largest loss from rows that are drawn repeatedly. It moves the better end, and half of it
        moves the expected value.
    n_test_rows
        Test rows of the real study; None for an unlimited number.

    Notes
    -----
    Let f be the size of a population as a share of the rows that it is drawn from, and s the share
    of a study's variance that is due to its rows. Drawn without replacement, trials show 1 - s f of
    the variance, and the variance of their mean is s f of it; drawn with replacement they show all
    of it, and the variance of the mean is the same.

    Some test rows are easier than others, which shifts all trials on a fold. The shifts are
    estimated from all points and removed before trials are compared. Two models also differ on some
    rows by chance, without one being better: a jackknife over groups of test rows estimates this
    variance, and it is subtracted.
    """
    runs = np.array([point.scores(measure) for point in points])
    without = np.array(
        [[[one[measure] for one in run.jackknife_scores] for run in point.runs] for point in points]
    )
    residuals, free = _remove_fold_effects(runs, source.n_folds)
    found = []
    for i, point in enumerate(points):
        f = row_share / source.count_populations(point.n_rows)
        more = 1 + f if source.is_repeated(point.n_rows) else (1 + f) / (1 - f)
        tests = _TestRowVariances.from_jackknife(
            without[i], [run.n_test_rows for run in point.runs], source.n_folds
        )
        variance = float((residuals[i] ** 2).sum()) / free[i]
        kept = max(_MIN_KEPT, 1 - tests.difference_variance / variance) if variance else 1.0
        factor = _compute_quantile(level, free[i]) ** 2 * kept * (more + 1 / runs.shape[1])
        fixed = _compute_quantile(level, math.inf) ** 2 * (
            tests.mean_variance + (0.0 if n_test_rows is None else tests.row_variance / n_test_rows)
        )
        sides = np.minimum(residuals[i], 0), np.maximum(residuals[i], 0)
        below, above = (
            math.sqrt(factor * 2 * float((side**2).sum()) / free[i] + fixed) for side in sides
        )
        mean, moved = float(runs[i].mean()), pessimism if source.is_repeated(point.n_rows) else 0.0
        ends = (
            (mean - below - moved, mean + above)
            if measure in SMALLER_IS_BETTER
            else (mean - below, mean + above + moved)
        )
        expected = mean + (-moved if measure in SMALLER_IS_BETTER else moved) / 2
        found.append(_clip_interval(PredictionInterval(expected, *ends), measure))
    return found


def _remove_fold_effects(scores: Floats, n_folds: int) -> tuple[Floats, list[float]]:
    """Return the residuals of ``(points, runs)`` without means of points and folds.

    The second value has the degrees of freedom of each point.
    """
    residuals = scores - scores.mean(axis=1, keepdims=True)
    n_runs = scores.shape[1]
    # A point with a small variance has most information about the folds.
    weights = 1 / ((residuals**2).mean(axis=1) + _TINY)
    weights /= weights.sum()
    fold = np.arange(n_runs) % n_folds
    shifts = np.array([weights @ residuals[:, fold == one].mean(axis=1) for one in range(n_folds)])
    return residuals - shifts[fold], [
        n_runs - 1 - (n_folds - 1) * float(weight) for weight in weights
    ]


@dataclass(frozen=True)
class _TestRowVariances:
    """Variances due to the finite test rows.

    Parameters
    ----------
    mean_variance
        Variance of the mean of all trials.
    difference_variance
        Variance of a trial relative to others on the same rows.
    row_variance
        Variance of a single trial on one row.
    """

    mean_variance: float
    difference_variance: float
    row_variance: float

    @classmethod
    def from_jackknife(
        cls, without: Floats, n_test_rows: Sequence[int], n_folds: int
    ) -> _TestRowVariances:
        """Return the variances, from scores ``(runs, groups)`` without each group of rows."""
        parts = [without[fold::n_folds] for fold in range(n_folds)]
        k = min(map(len, parts))
        apart = [
            _compute_jackknife_variance(part - part.mean(axis=0)).mean() * k / (k - 1)
            for part in parts
        ]
        means = [float(_compute_jackknife_variance(part.mean(axis=0))) for part in parts]
        return cls(
            math.fsum(means) / n_folds**2,
            math.fsum(apart) / n_folds,
            float((_compute_jackknife_variance(without) * np.array(n_test_rows)).mean()),
        )


def _compute_jackknife_variance(without: Floats) -> Floats:
    """Return the variance of scores ``(..., groups)``, each without one group."""
    g = without.shape[-1]
    variances: Floats = (g - 1) ** 2 / g * without.var(axis=-1, ddof=1)
    return variances


def _clip_interval(found: PredictionInterval, measure: str) -> PredictionInterval:
    """Return an interval within the range of the measure."""
    lowest = 0.0 if measure != "r_squared" else -math.inf
    highest = 1.0 if measure in SHARES or measure == "r_squared" else math.inf
    return PredictionInterval(found.value, max(found.low, lowest), min(found.high, highest))


def _compute_quantile(level: float, df: float) -> float:
    """Return Student's two-sided quantile; the normal one if ``df`` is infinite."""
    require_extra("learn", "scipy", purpose="A forecast")
    from scipy.special import ndtri, stdtrit

    upper = (1 + level) / 2
    return float(ndtri(upper) if math.isinf(df) else stdtrit(df, upper))
