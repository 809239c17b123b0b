"""Prediction intervals of a forecast: where the score of one real study will lie, from runs on public rows.

What one real study may score differs from the mean of the runs for four reasons, and an interval has room for each:

- noise, and who is asked what: the runs differ by it;
- which rows take part: the runs differ by it too, but less than real studies do, because their rows come out of the same public ones;
- the finite public rows, on which the runs are tested;
- the finite rows on which the real study is tried, where their number is given.

Scores are often skew: a model cannot be much better than the best one and may be much worse. So the two sides of an interval have widths
of their own, each by the runs on that side of the mean (a two-piece normal law), with Student's factor for their small number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import UsageError
from shoal.sim.forecast_rows import Source
from shoal.sim.forecast_runs import Tried

Floats = npt.NDArray[np.float64]

ROW_SHARES = {"local": 0.2, "shuffled": 0.2, "secure-sum": 0.4}
"""So much of the variance between studies is taken to be due to which rows take part, and the rest to noise and questions, by the trust
that a study needs: where everyone adds noise, rows matter little. These are the largest shares that were measured on eight studies of all
protocols, of 1,000 and 4,000 rows at epsilon 0.5 and 2; on average it was 0.04 and 0.15 (docs/guide/forecast.md)."""

_LEAST_KEPT = 0.25
"""Of the variance between runs: so few runs cannot show that all of it is chance among the test rows."""
_TINY = 1e-18
SHARES = ("accuracy", "auc", "f1")
"""Measures between 0 and 1."""
SMALLER_IS_BETTER = ("rmse", "mean_absolute_error")


@dataclass(frozen=True)
class Interval:
    """What is expected of a measure, and between which values the real study's will lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Repeated:
    """The runs of one point: one study on populations of one size."""

    n_rows: int
    runs: Sequence[Tried]

    def scores(self, measure: str) -> Floats:
        """A measure in every run."""
        return np.array([run.scores[measure] for run in self.runs])


def intervals(
    points: Sequence[Repeated],
    source: Source,
    measure: str,
    level: float,
    *,
    row_share: float,
    better_by: float = 0.0,
    n_unseen: int | None = None,
) -> list[Interval]:
    """The prediction interval of each point, for one measure.

    Parameters
    ----------
    points
        With as many runs each; run r of each was tested on part r modulo `Source.n_folds` of the source.
    source
        Where the rows came from.
    measure
        Name of the measure.
    level
        Chance that the interval covers the real study's score.
    row_share
        The share of the variance that is due to rows: see `ROW_SHARES`.
    better_by
        By how much rows that are drawn repeatedly may make a forecast too bad: it moves the better end, and half of it what is expected.
    n_unseen
        On how many rows the real study is tried; None for all that there may ever be.

    Notes
    -----
    Let f be the size of a population in parts of the rows that it is drawn from, and s the share of a study's variance that is due to its
    rows. Drawn without replacement, runs show 1 - s f of the variance, and the variance of their mean is s f of it; drawn with
    replacement they show all, and the mean is off as much.

    That some test rows are easier than others shifts all runs on a part of the source: the shifts are estimated from all points and taken
    out before runs are compared. Two models also differ on some rows by chance, without one being better: a jackknife over groups of
    test rows tells how much, and the runs differ by that much less.
    """
    runs = np.array([point.scores(measure) for point in points])
    without = np.array([[[one[measure] for one in run.without] for run in point.runs] for point in points])
    residuals, free = _without_folds(runs, source.n_folds)
    found = []
    for i, point in enumerate(points):
        f = row_share / source.n_apart(point.n_rows)
        more = 1 + f if source.is_repeated(point.n_rows) else (1 + f) / (1 - f)
        tests = _Tests.of(without[i], [run.n_unseen for run in point.runs], source.n_folds)
        spread = float((residuals[i] ** 2).sum()) / free[i]
        kept = max(_LEAST_KEPT, 1 - tests.of_differences / spread) if spread else 1.0
        factor = _quantile(level, free[i]) ** 2 * kept * (more + 1 / runs.shape[1])
        fixed = _quantile(level, math.inf) ** 2 * (tests.of_mean + (0.0 if n_unseen is None else tests.of_a_row / n_unseen))
        sides = np.minimum(residuals[i], 0), np.maximum(residuals[i], 0)
        below, above = (math.sqrt(factor * 2 * float((side**2).sum()) / free[i] + fixed) for side in sides)
        mean, moved = float(runs[i].mean()), better_by if source.is_repeated(point.n_rows) else 0.0
        ends = (mean - below - moved, mean + above) if measure in SMALLER_IS_BETTER else (mean - below, mean + above + moved)
        expected = mean + (-moved if measure in SMALLER_IS_BETTER else moved) / 2
        found.append(_inside(Interval(expected, *ends), measure))
    return found


def _without_folds(scores: Floats, n_folds: int) -> tuple[Floats, list[float]]:
    """What is left of ``(points, runs)`` without the mean of each point and without what a part adds to all; and degrees of freedom."""
    residuals = scores - scores.mean(axis=1, keepdims=True)
    n_runs = scores.shape[1]
    # A point whose runs differ little tells most about the parts.
    weights = 1 / ((residuals**2).mean(axis=1) + _TINY)
    weights /= weights.sum()
    fold = np.arange(n_runs) % n_folds
    shifts = np.array([weights @ residuals[:, fold == one].mean(axis=1) for one in range(n_folds)])
    return residuals - shifts[fold], [n_runs - 1 - (n_folds - 1) * float(weight) for weight in weights]


@dataclass(frozen=True)
class _Tests:
    """Variances that come of the finite test rows.

    Parameters
    ----------
    of_mean
        Of the mean of all runs.
    of_differences
        Of a run beside others on the same rows.
    of_a_row
        Of a single run, on one row.
    """

    of_mean: float
    of_differences: float
    of_a_row: float

    @classmethod
    def of(cls, without: Floats, n_unseen: Sequence[int], n_folds: int) -> _Tests:
        """From the scores ``(runs, groups)`` without each group of rows."""
        parts = [without[fold::n_folds] for fold in range(n_folds)]
        k = min(map(len, parts))
        apart = [_jackknife(part - part.mean(axis=0)).mean() * k / (k - 1) for part in parts]
        means = [float(_jackknife(part.mean(axis=0))) for part in parts]
        return cls(math.fsum(means) / n_folds**2, math.fsum(apart) / n_folds, float((_jackknife(without) * np.array(n_unseen)).mean()))


def _jackknife(without: Floats) -> Floats:
    """The variance of scores ``(..., groups)`` each without one group."""
    g = without.shape[-1]
    variances: Floats = (g - 1) ** 2 / g * without.var(axis=-1, ddof=1)
    return variances


def _inside(found: Interval, measure: str) -> Interval:
    """No end beyond what the measure can be."""
    lowest = 0.0 if measure != "r_squared" else -math.inf
    highest = 1.0 if measure in SHARES or measure == "r_squared" else math.inf
    return Interval(found.value, max(found.low, lowest), min(found.high, highest))


def _quantile(level: float, df: float) -> float:
    """Student's quantile for an interval with two ends; the normal law's where ``df`` is infinite."""
    try:
        from scipy.special import ndtri, stdtrit
    except ImportError:
        raise UsageError("USAGE-002", "A forecast needs SciPy, which is not installed.", fix="pip install 'shoal[learn]'") from None
    upper = (1 + level) / 2
    return float(ndtri(upper) if math.isinf(df) else stdtrit(df, upper))
