"""Baselines of PFDS: own rows, all rows without privacy, and DP-Pred.

DP-Pred is the paper's name of the private competitors. Rows are coded as the paper's agents would:
a number by its position in its public range, from 0 to 1, and a category by one column for each
value. Classes are 0 and 1; a numeric label and its error are scaled to [-1, 1].

The competitors' noise uses floats, as in their papers: good enough for figures, never for a
release. Their neighbours differ in the contents of one row, and the number of rows is public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.paper.pfds.data import Floats, Ints, Split
from shoal.data.schema import Categorical, Numeric, Schema

Kind = Literal["logistic", "svm", "linear", "ridge"]
Rng = np.random.Generator

PENALTY = 0.3
"""lambda of objective perturbation for every table, budget and loss.

It was chosen on development splits (numbers 2 to 5; 2 to 13 of retinopathy). The mean error of five
tables, three budgets and two losses is .378 at .03, .362 at .1, .358 at .3 and at 1, and .357 at 3.
"""
HUBER = 0.5
"""h: half width of the smoothed corner at 1 of the support vector machine's loss."""
_CURVATURE = {"logistic": 0.25, "svm": 1 / (2 * HUBER)}


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear predictor of classes or numbers.

    Parameters
    ----------
    weights, intercept
        For rows as `design` codes them.
    is_number
        Whether it predicts numbers.
    """

    weights: Floats
    intercept: float
    is_number: bool

    def predict(self, x: Floats) -> Floats:
        """Return the class, 0 or 1, or a number in [-1, 1]."""
        scores = x @ self.weights + self.intercept
        return np.clip(scores, -1, 1) if self.is_number else (scores > 0).astype(np.float64)


@dataclass(frozen=True)
class Yardsticks:
    """Errors on the test rows without any privacy.

    Parameters
    ----------
    trivial
        Of the most common class or of the mean.
    own
        Of each holder who learns alone: NP-Agt is their mean.
    pooled
        Of who learns from all rows: NP-Pred.
    """

    trivial: float
    own: tuple[float, ...]
    pooled: float


def design(schema: Schema, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Return encoded columns as ``(n, d)`` numbers from 0 to 1.

    Those of one feature sum to at most 1.
    """
    parts = []
    for feature in schema.features:
        column = columns[feature.name]
        if isinstance(feature, Categorical):
            parts.append(np.eye(len(feature.values))[column])
        else:
            parts.append(((column - feature.low) / (feature.high - feature.low))[:, np.newaxis])
    return np.concatenate(parts, axis=1)


def targets(schema: Schema, labels: npt.NDArray[Any]) -> Floats:
    """Return classes unchanged, and numbers on [-1, 1]."""
    label = schema.label
    return (
        2 * (labels - label.low) / (label.high - label.low) - 1
        if isinstance(label, Numeric)
        else labels.astype(np.float64)
    )


def error(y: Floats, predicted: Floats) -> float:
    """Return the mean squared error; for classes it is the share of wrong predictions."""
    return float(np.mean((y - predicted) ** 2))


def erm(kind: Kind, x: Floats, y: Floats) -> Linear:
    """Return scikit-learn's predictor with default settings; of a single class, that class.

    Notes
    -----
    The paper's agents use linear regression, which is unreliable with few rows: a careful agent
    would use ridge regression.
    """
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    if not _is_number(kind) and y.min() == y.max():
        return Linear(np.zeros(x.shape[1]), 2 * float(y[0]) - 1, is_number=False)
    learners = {
        "logistic": LogisticRegression(max_iter=1000),
        "svm": LinearSVC(dual=False),
        "linear": LinearRegression(),
        "ridge": Ridge(),
    }
    learner = learners[kind].fit(x, y)
    return Linear(learner.coef_.ravel(), float(np.ravel(learner.intercept_)[0]), _is_number(kind))


def own_and_pooled(kind: Kind, split: Split, holders: Iterable[int] | None = None) -> Yardsticks:
    """Return errors without privacy: of single holders, and of all rows together.

    The single holders are those given, or all that have rows.
    """
    schema = split.training.schema
    x, y = design(schema, split.training.columns), targets(schema, split.training.labels)
    unseen, truth = design(schema, split.test.columns), targets(schema, split.test.labels)
    trivial = np.full(len(truth), y.mean() if _is_number(kind) else y.mean() > 0.5)
    own = [erm(kind, x[mine], y[mine]) for mine in _each(split, holders)]
    pooled = erm(kind, x, y)
    return Yardsticks(
        error(truth, trivial),
        tuple(error(truth, one.predict(unseen)) for one in own),
        error(truth, pooled.predict(unseen)),
    )


def dp_pred(
    kind: Kind,
    split: Split,
    epsilon: float,
    rng: Rng,
    sharers: Iterable[int] | None = None,
    penalty: float = PENALTY,
) -> float:
    """Return the error of DP-Pred: holders publish private predictors, which vote.

    For numbers the mean of the predictors is taken.

    Notes
    -----
    Ref: PFDS §2.2 and §4, Mechanisms.
    """
    schema = split.training.schema
    x, y = design(schema, split.training.columns), targets(schema, split.training.labels)
    unseen, truth = design(schema, split.test.columns), targets(schema, split.test.labels)
    n_features = len(schema.features)
    models = [
        private(kind, x[mine], y[mine], n_features, epsilon, rng, penalty)
        for mine in _each(split, sharers)
    ]
    return error(truth, together(models, unseen))


def private(
    kind: Kind,
    x: Floats,
    y: Floats,
    n_features: int,
    epsilon: float,
    rng: Rng,
    penalty: float = PENALTY,
) -> Linear:
    """Return one holder's private predictor; its rows get a constant column."""
    rows = np.column_stack([x, np.ones(len(x))])
    if _is_number(kind):
        weights = functional_mechanism(rows, y, n_features + 1, epsilon, rng)
        return Linear(weights[:-1], float(weights[-1]), is_number=True)
    # Each feature adds at most 1 to a row, and the constant adds 1: the scale is public, and no row
    # is longer than 1.
    scale = 1 / math.sqrt(n_features + 1)
    weights = scale * objective_perturbation(kind, scale * rows, 2 * y - 1, epsilon, rng, penalty)
    return Linear(weights[:-1], float(weights[-1]), is_number=False)


def together(models: Sequence[Linear], x: Floats) -> Floats:
    """Return the majority of the predictors, class 0 in a tie; for numbers, their mean."""
    mean = np.mean([model.predict(x) for model in models], axis=0)
    return np.asarray(mean if models[0].is_number else mean > 0.5, np.float64)


def spent(kind: Kind, n: int, epsilon: float, penalty: float) -> tuple[float, float]:
    """Return the epsilon left for the noise on the objective, and the additional penalty.

    Notes
    -----
    Ref: Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2. A row changes the curvature of the
    objective by a factor of at most (1 + c / (n lambda))^2, which costs its logarithm. If that is
    too much, the penalty grows until it costs half of epsilon.
    """
    c = _CURVATURE[kind]
    left = epsilon - 2 * math.log1p(c / (n * penalty))
    return (left, 0.0) if left > 0 else (epsilon / 2, c / (n * math.expm1(epsilon / 4)) - penalty)


def objective_perturbation(
    kind: Kind, rows: Floats, signs: Floats, epsilon: float, rng: Rng, penalty: float = PENALTY
) -> Floats:
    """Return weights that minimise mean loss, penalty and a random linear term.

    Rows have length at most 1.

    Notes
    -----
    Ref: Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2; PFDS §5, where the noise depends on
    lambda and the number of rows, as it does for noise on the weights themselves. Infinite epsilon:
    no noise.

    Privacy
    -------
    epsilon-DP for the contents of one row, if the minimum is found exactly.
    """
    from scipy.optimize import minimize

    n, d = rows.shape
    left, more = spent(kind, n, epsilon, penalty)
    direction = rng.normal(size=d)
    b = direction / np.linalg.norm(direction) * rng.gamma(d, 2 / left) / n
    signed, weight = rows * signs[:, np.newaxis], penalty + more

    def objective(w: Floats) -> tuple[float, Floats]:
        loss, slope = _loss(kind, signed @ w)
        return float(
            loss.mean() + weight / 2 * (w @ w) + b @ w
        ), slope @ signed / n + weight * w + b

    found = minimize(
        objective,
        -b / weight,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 10_000, "gtol": 1e-7, "ftol": 1e-14},
    )
    return np.asarray(found.x)


def _loss(kind: Kind, margin: Floats) -> tuple[Floats, Floats]:
    """Return the loss of each row, and its slope.

    It is logistic, or that of the support vector machine with a smoothed corner.
    """
    if kind == "logistic":
        # 1 / (1 + e^z), without overflow.
        return np.logaddexp(0, -margin), -np.exp(-np.logaddexp(0, margin))
    short = np.clip(1 + HUBER - margin, 0, 2 * HUBER)
    return short**2 / (4 * HUBER) + np.maximum(1 - HUBER - margin, 0), -short / (2 * HUBER)


def noisy_quadratic(
    rows: Floats, y: Floats, bound: float, epsilon: float, rng: Rng
) -> tuple[Floats, Floats, float]:
    """Return the noisy coefficients Q and v of the squared error, and the noise's deviation.

    The squared error is w'Qw - 2v'w + constant.

    Notes
    -----
    Ref: Zhang et al. 2012; PFDS §5. The coefficients of a row whose numbers add up to at most s,
    with a label in [-1, 1], add up to at most 1 + 2 s + s^2, and those of another row take their
    place: the sensitivity is 2 (1 + 2 s + s^2). It is the papers' figure for s = d + 1. A category
    in many columns adds no more than 1 to s, as a number does: d is the number of features, not of
    columns.
    """
    scale = 2 * (1 + bound) ** 2 / epsilon
    d = rows.shape[1]
    # The coefficient of w_j w_l is the sum of two equal entries, so each gets half of the noise.
    upper = np.triu(rng.laplace(0, scale, (d, d)), 1) / 2
    q = rows.T @ rows + upper + upper.T + np.diag(rng.laplace(0, scale, d))
    return q, rows.T @ y + rng.laplace(0, scale, d) / 2, math.sqrt(2) * scale


def functional_mechanism(rows: Floats, y: Floats, bound: float, epsilon: float, rng: Rng) -> Floats:
    """Return weights that minimise the noisy squared error.

    The numbers of a row are from 0 to 1 and sum to at most ``bound``.

    Notes
    -----
    Ref: Zhang et al. 2012, regularisation and spectral trimming: a penalty of four standard
    deviations of the noise; directions in which the error still falls for ever are left out.
    Infinite epsilon: no noise, and the shortest weights of least squares.

    Privacy
    -------
    epsilon-DP for the contents of one row.
    """
    q, v, deviation = noisy_quadratic(rows, y, bound, epsilon, rng)
    values, vectors = np.linalg.eigh(q + 4 * deviation * np.eye(len(q)))
    kept = values > 1e-10 * np.abs(values).max()
    return np.asarray(vectors[:, kept] @ ((v @ vectors[:, kept]) / values[kept]))


def _is_number(kind: Kind) -> bool:
    return kind in ("linear", "ridge")


def _each(split: Split, holders: Iterable[int] | None) -> list[Ints]:
    """Yield the rows of each holder that has any."""
    every = [
        np.flatnonzero(split.owners == holder)
        for holder in (range(split.n_holders) if holders is None else holders)
    ]
    return [mine for mine in every if mine.size]
