"""Additive models fitted to rows in the clear, under a prior: what a holder trains at home, and the yardsticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.protocols.pfds.model import KeptModel, Model
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows

OWN_PENALTY = 3.0
"""On each weight of a model of one holder's rows."""
MOST_STEPS = 25
CLOSE_ENOUGH = 1e-4
"""A shorter step is the last: the next would be about its square."""
_SHORTEST = 2.0**-20
_BLOCK = 4096


def ridge_model(params: Params, rows: Rows, penalty: float = 1.0, penalty_intercept: float = 1e-3) -> KeptModel:
    """The additive model of all these rows, without any privacy: what nobody who shares can reach, and a yardstick.

    Parameters
    ----------
    penalty, penalty_intercept
        Half of it times the square of each weight, and of the intercept, is added to the loss of the rows.

    Privacy
    -------
    Nothing is spent, because it never leaves: it predicts, and cannot be written.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=100)
    >>> rows = Rows.of(params, {"wind": np.arange(100) % 2}, np.arange(100) % 2)
    >>> ridge_model(params, rows).decide({"wind": np.array([0, 1])})
    array([0, 1])
    """
    return KeptModel(_model(params, ridge(params, rows, penalty, penalty_intercept), rows))


def own_model(params: Params, rows: Rows) -> KeptModel:
    """What a holder can do alone, with its own rows. It never leaves, as `ridge_model`."""
    return ridge_model(params, rows, OWN_PENALTY)


def released_model(params: Params, rows: Rows) -> Model:
    """As `ridge_model`, of rows that are released: whoever reads them can make it, and so it may be written as they are."""
    return _model(params, ridge(params, rows), rows)


def ridge(params: Params, rows: Rows, penalty: float = 1.0, penalty_intercept: float = 1e-3) -> Floats:
    """``(D + 1, M)`` the weights of the cells, and last the intercepts, that fit these rows best."""
    design = Design.of(params, rows)
    prior = Prior.around_zero(len(design.present), penalty, penalty_intercept)
    weights = np.zeros((params.n_cells + 1, params.n_models))
    weights[design.present] = np.stack([fit(design, targets, prior, params.is_number) for targets in targets_of(params, rows).T], axis=1)
    return weights


def targets_of(params: Params, rows: Rows) -> Floats:
    """What each model is to say of each row, ``(n, M)`` in [0, 1]."""
    sides = rows.sides[:, 1:] if params.n_models == 1 else rows.sides
    return sides / GRID


def fit(design: Design, targets: Floats, prior: Prior, is_number: bool, start: Floats | None = None) -> Floats:
    """The parameters with the least sum of logistic losses (of a number: half squared errors) and the prior's penalty, by Newton.

    Parameters
    ----------
    targets
        ``(n,)`` in [0, 1].
    start
        Where to begin; at the prior's centre if None. There is one minimum, so only the number of steps depends on it.

    Notes
    -----
    Steps are halved until the loss does not rise: where a model is too sure, the curvature does not tell how far to go. Squares need
    one step. Where rows are fewer than parameters, a step is found by a system of their number.
    """
    # A parameter that the prior leaves wholly free has no place in the kernel: it would be infinite.
    kernel = Kernel.of(design, prior) if len(targets) < len(prior.precision) and prior.precision.all() else None
    at = prior.centre if start is None else start
    for _ in range(MOST_STEPS):
        scores = design.scores(prior.weights(at))
        means = scores if is_number else sigmoid(scores)
        curvatures = np.ones_like(means) if is_number else means * (1 - means)
        if kernel is None:
            step = _step(design, prior, at - prior.centre, means - targets, curvatures)
        else:
            step = kernel.step(at - prior.centre, means - targets, curvatures)
        if is_number or np.abs(step).max() < CLOSE_ENOUGH:
            return at - step
        length, before = 1.0, _loss(design, targets, prior, at)
        while length > _SHORTEST and _loss(design, targets, prior, at - length * step) > before:
            length /= 2
        at = at - length * step
    return at


def sigmoid(scores: Floats) -> Floats:
    """1 / (1 + exp(-score)), for scores of any size."""
    return 0.5 + 0.5 * np.tanh(scores / 2)


def _step(design: Design, prior: Prior, away: Floats, slopes: Floats, curvatures: Floats) -> Floats:
    """Newton's step of a fit that is `away` from the prior's centre, by the slopes and curvatures of the losses of each row."""
    gradient = prior.gradient(design.sums(slopes)) + prior.precision * away
    hessian = prior.hessian(design.gram(curvatures)) + np.diag(prior.precision)
    return np.asarray(np.linalg.solve(hessian, gradient), np.float64)


def _loss(design: Design, targets: Floats, prior: Prior, at: Floats) -> float:
    """The sum of logistic losses, and the prior's penalty."""
    scores = design.scores(prior.weights(at))
    return float(np.sum(np.logaddexp(0, scores) - targets * scores) + prior.precision @ (at - prior.centre) ** 2 / 2)


def _model(params: Params, weights: Floats, rows: Rows) -> Model:
    return Model(params, weights[:-1], weights[-1], np.zeros_like(weights[:-1]), _shares(params, rows))


def _shares(params: Params, rows: Rows) -> Floats:
    """The share of rows in each cell; without rows the same for all cells of a feature."""
    counts = np.bincount(rows.cells.ravel(), minlength=params.n_cells)
    return counts / len(rows) if len(rows) else 1 / np.repeat(params.arities, params.arities)


@dataclass(frozen=True, eq=False)
class Prior:
    """What is believed of the weights before any row: each is a mix of r shared parameters and one of its own, all independent and normal.

    Parameters
    ----------
    basis
        ``(P, r)`` how much of the shared parameters is in the weight of each cell that is `Design.present`.
    centre, precision
        ``(r + P,)`` mean, and 1 / variance, of the shared parameters and of each cell's own.
    """

    basis: Floats
    centre: Floats
    precision: Floats

    @classmethod
    def around_zero(cls, n_present: int, penalty: float, penalty_intercept: float = 1e-3) -> Prior:
        """Ridge: nothing is shared."""
        return cls(np.zeros((n_present, 0)), np.zeros(n_present), np.append(np.full(n_present - 1, penalty), penalty_intercept))

    def weights(self, parameters: Floats) -> Floats:
        """``(P,)`` the weights that parameters make."""
        shared, own = np.split(parameters, [self.basis.shape[1]])
        mixed: Floats = self.basis @ shared + own
        return mixed

    def gradient(self, slopes: Floats) -> Floats:
        """``(r + P,)`` slopes along the parameters, by those along the weights."""
        return np.concatenate([self.basis.T @ slopes, slopes])

    def hessian(self, curvatures: Floats) -> Floats:
        """``(r + P, r + P)`` curvatures along the parameters, by those along the weights."""
        across = self.basis.T @ curvatures
        return np.block([[across @ self.basis, across], [across.T, curvatures]])


@dataclass(frozen=True, eq=False)
class Design:
    """Rows by the cells that occur among them: nothing can be learned of the others, which stay what the prior says.

    Parameters
    ----------
    present
        ``(P,)`` the cells that occur, among all D. The intercept is the weight of one more, the last, which every row is in.
    positions
        ``(n, k + 1)`` where each row's cells are in `present`.
    """

    present: Ints
    positions: Ints

    @classmethod
    def of(cls, params: Params, rows: Rows) -> Design:
        """Of these rows."""
        n, last = len(rows), params.n_cells
        cells = np.column_stack([rows.cells, np.full(n, last)])
        present = np.union1d(np.flatnonzero(np.bincount(rows.cells.ravel(), minlength=last)), last)
        place = np.zeros(last + 1, np.int64)
        place[present] = np.arange(len(present))
        return cls(present, place[cells])

    def take(self, which: npt.NDArray[np.bool_]) -> Design:
        """Some of the rows, by the same cells."""
        return replace(self, positions=self.positions[which])

    def scores(self, weights: Floats) -> Floats:
        """``(n,)`` the sum of each row's weights."""
        total: Floats = weights[self.positions].sum(axis=1)
        return total

    def sums(self, values: Floats) -> Floats:
        """``(P,)`` for each cell the sum of a value over its rows."""
        repeated = np.repeat(values, self.positions.shape[1])
        return np.asarray(np.bincount(self.positions.ravel(), repeated, len(self.present)), np.float64)

    def gram(self, values: Floats) -> Floats:
        """``(P, P)`` for each pair of cells the sum of a value, not negative, over the rows that are in both."""
        total, roots = np.zeros((len(self.present),) * 2), np.sqrt(values)[:, np.newaxis]
        for start in range(0, len(values), _BLOCK):
            rows = slice(start, start + _BLOCK)
            block = self.dense(rows) * roots[rows]
            total += block.T @ block
        return total

    def dense(self, which: slice) -> Floats:
        """``(n, P)`` 1 where one of these rows is in a cell."""
        positions = self.positions[which]
        inside = np.zeros((len(positions), len(self.present)))
        np.put_along_axis(inside, positions, 1.0, axis=1)
        return inside


@dataclass(frozen=True, eq=False)
class Kernel:
    """Newton's steps where rows are fewer than parameters.

    Parameters
    ----------
    mixed
        ``(n, r + P)`` how much of each parameter is in the score of each row.
    reach
        ``(r + P, n)`` how far each row draws each parameter: the same, times its variance before any row.
    likeness
        ``(n, n)`` covariances of the rows' scores before any row.

    Notes
    -----
    With X for `mixed`, L the precisions, W the curvatures, s the slopes and d how far it is from the centre, a step ends
    ``(L + X'WX)^-1 X'(W X d - s)`` from the centre, which is ``L^-1 X' (I + W X L^-1 X')^-1 (W X d - s)``. No large terms cancel in
    it, as they do in Woodbury's formula for the inverse alone.
    """

    mixed: Floats
    reach: Floats
    likeness: Floats

    @classmethod
    def of(cls, design: Design, prior: Prior) -> Kernel:
        """Of the rows of a design."""
        inside = design.dense(slice(None))
        mixed = np.hstack([inside @ prior.basis, inside])
        reach = (mixed / prior.precision).T
        return cls(mixed, reach, mixed @ reach)

    def step(self, away: Floats, slopes: Floats, curvatures: Floats) -> Floats:
        """As `_step`."""
        system = np.eye(len(slopes)) + curvatures[:, np.newaxis] * self.likeness
        ends: Floats = self.reach @ np.linalg.solve(system, curvatures * (self.mixed @ away) - slopes)
        return away - ends
