"""Ridge and logistic fits on rows in the clear.

`personal_model` and the baselines of simulations and benchmarks call them. A fit contains its rows
without noise: a change must keep that only `fit_released_model` returns a model that can be written
to a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.protocols.pfds.model import PooledModel, UnreleasedModel
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows

OWN_PENALTY = 3.0
"""Penalty on each weight of a model of one holder's rows."""
MAX_STEPS = 25
CLOSE_ENOUGH = 1e-4
"""Length of a step after which the fit stops: the next would be about its square."""
_SHORTEST = 2.0**-20
_BLOCK = 4096


def fit_ridge_model(
    params: PFDSParams, rows: PFDSRows, penalty: float = 1.0, penalty_intercept: float = 1e-3
) -> UnreleasedModel:
    """Return the additive model of all these rows, without any privacy: a baseline.

    No holder that shares can reach it.

    Parameters
    ----------
    penalty, penalty_intercept
        The loss of the rows is increased by half of this times the square of each weight, and of
        the intercept.

    Privacy
    -------
    Nothing is spent, because the model never leaves the process: it predicts, and cannot be
    written.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> params = PFDSParams(schema, epsilon=1.0, size=100)
    >>> rows = PFDSRows.from_columns(params, {"wind": np.arange(100) % 2}, np.arange(100) % 2)
    >>> fit_ridge_model(params, rows).decide({"wind": np.array([0, 1])})
    array([0, 1])
    """
    return UnreleasedModel(
        _make_model(params, fit_ridge(params, rows, penalty, penalty_intercept), rows)
    )


def fit_own_model(params: PFDSParams, rows: PFDSRows) -> UnreleasedModel:
    """Return the model of one holder's rows alone. Like `fit_ridge_model`, it never leaves."""
    return fit_ridge_model(params, rows, OWN_PENALTY)


def fit_released_model(params: PFDSParams, rows: PFDSRows) -> PooledModel:
    """Return the additive model of released rows.

    Every reader of the rows can compute it, so it may be written to a file.
    """
    return _make_model(params, fit_ridge(params, rows), rows)


def fit_ridge(
    params: PFDSParams, rows: PFDSRows, penalty: float = 1.0, penalty_intercept: float = 1e-3
) -> Floats:
    """Return the best weights of the cells, the intercepts last, ``(D + 1, M)``."""
    design = CellDesign.from_rows(params, rows)
    prior = WeightPrior.make_ridge(len(design.present), penalty, penalty_intercept)
    weights = np.zeros((params.n_cells + 1, params.n_models))
    weights[design.present] = np.stack(
        [
            fit_parameters(design, targets, prior, params.is_number)
            for targets in compute_targets(params, rows).T
        ],
        axis=1,
    )
    return weights


def compute_targets(params: PFDSParams, rows: PFDSRows) -> Floats:
    """Return the target of each model for each row, ``(n, M)`` in [0, 1]."""
    sides = rows.sides[:, 1:] if params.n_models == 1 else rows.sides
    return sides / GRID


def fit_parameters(
    design: CellDesign,
    targets: Floats,
    prior: WeightPrior,
    is_number: bool,
    start: Floats | None = None,
) -> Floats:
    """Return the parameters with the least loss under the prior, by Newton's method.

    The loss is the sum of logistic losses, or of half squared errors for a number, plus the prior's
    penalty.

    Parameters
    ----------
    targets
        ``(n,)`` in [0, 1].
    start
        First parameters; the prior's centre if None. There is one minimum, so only the number of
        steps depends on it.

    Notes
    -----
    Steps are halved until the loss does not rise: if the model is too confident, the curvature is
    no guide to the step length. Squared errors need one step. If there are fewer rows than
    parameters, a step is found by a linear system of the size of the rows.
    """
    # The kernel cannot contain a parameter without a prior: its entry would be infinite.
    kernel = (
        NewtonKernel.from_design(design, prior)
        if len(targets) < len(prior.precision) and prior.precision.all()
        else None
    )
    at = prior.centre if start is None else start
    for _ in range(MAX_STEPS):
        scores = design.compute_scores(prior.to_weights(at))
        means = scores if is_number else sigmoid(scores)
        curvatures = np.ones_like(means) if is_number else means * (1 - means)
        if kernel is None:
            step = _compute_step(design, prior, at - prior.centre, means - targets, curvatures)
        else:
            step = kernel.compute_step(at - prior.centre, means - targets, curvatures)
        if is_number or np.abs(step).max() < CLOSE_ENOUGH:
            return at - step
        length, before = 1.0, _compute_loss(design, targets, prior, at)
        while (
            length > _SHORTEST
            and _compute_loss(design, targets, prior, at - length * step) > before
        ):
            length /= 2
        at = at - length * step
    return at


def sigmoid(scores: Floats) -> Floats:
    """Return 1 / (1 + exp(-score)), for scores of any size."""
    return 0.5 + 0.5 * np.tanh(scores / 2)


def _compute_step(
    design: CellDesign, prior: WeightPrior, away: Floats, slopes: Floats, curvatures: Floats
) -> Floats:
    """Return Newton's step of a fit at distance ``away`` from the prior's centre.

    ``slopes`` and ``curvatures`` are those of the loss of each row.
    """
    gradient = prior.to_gradient(design.sum_by_cell(slopes)) + prior.precision * away
    hessian = prior.to_hessian(design.compute_gram(curvatures)) + np.diag(prior.precision)
    return np.asarray(np.linalg.solve(hessian, gradient), np.float64)


def _compute_loss(design: CellDesign, targets: Floats, prior: WeightPrior, at: Floats) -> float:
    """Return the sum of logistic losses and the prior's penalty."""
    scores = design.compute_scores(prior.to_weights(at))
    return float(
        np.sum(np.logaddexp(0, scores) - targets * scores)
        + prior.precision @ (at - prior.centre) ** 2 / 2
    )


def _make_model(params: PFDSParams, weights: Floats, rows: PFDSRows) -> PooledModel:
    return PooledModel(
        params,
        weights[:-1],
        weights[-1],
        np.zeros_like(weights[:-1]),
        _compute_shares(params, rows),
    )


def _compute_shares(params: PFDSParams, rows: PFDSRows) -> Floats:
    """Return the share of rows in each cell; without rows, equal shares for each feature."""
    counts = np.bincount(rows.cells.ravel(), minlength=params.n_cells)
    return counts / len(rows) if len(rows) else 1 / np.repeat(params.arities, params.arities)


@dataclass(frozen=True, eq=False)
class WeightPrior:
    """Prior of the weights: each is a mix of r shared parameters and one separate parameter.

    All parameters are independent and normal.

    Parameters
    ----------
    basis
        ``(P, r)`` coefficients of the shared parameters in the weight of each cell of
        `CellDesign.present`.
    centre, precision
        ``(r + P,)`` mean, and 1 / variance, of the shared parameters and of each cell's own.
    """

    basis: Floats
    centre: Floats
    precision: Floats

    @classmethod
    def make_ridge(
        cls, n_present: int, penalty: float, penalty_intercept: float = 1e-3
    ) -> WeightPrior:
        """Return the prior of ridge regression, without shared parameters."""
        return cls(
            np.zeros((n_present, 0)),
            np.zeros(n_present),
            np.append(np.full(n_present - 1, penalty), penalty_intercept),
        )

    def to_weights(self, parameters: Floats) -> Floats:
        """Return the weights of these parameters, ``(P,)``."""
        shared, own = np.split(parameters, [self.basis.shape[1]])
        mixed: Floats = self.basis @ shared + own
        return mixed

    def to_gradient(self, slopes: Floats) -> Floats:
        """Return slopes along the parameters, ``(r + P,)``, from slopes along the weights."""
        return np.concatenate([self.basis.T @ slopes, slopes])

    def to_hessian(self, curvatures: Floats) -> Floats:
        """Return curvatures along the parameters, from curvatures along the weights.

        The shapes are ``(r + P, r + P)`` and ``(P, P)``.
        """
        across = self.basis.T @ curvatures
        return np.block([[across @ self.basis, across], [across.T, curvatures]])


@dataclass(frozen=True, eq=False)
class CellDesign:
    """Rows as positions among the cells that occur in them.

    The rows contain no information about other cells, which keep their prior weights.

    Parameters
    ----------
    present
        ``(P,)`` the cells that occur, among all D. The last entry is an additional cell that
        contains every row; its weight is the intercept.
    positions
        ``(n, k + 1)`` positions of each row's cells in `present`.
    """

    present: Ints
    positions: Ints

    @classmethod
    def from_rows(cls, params: PFDSParams, rows: PFDSRows) -> CellDesign:
        """Return the design of these rows."""
        n, last = len(rows), params.n_cells
        cells = np.column_stack([rows.cells, np.full(n, last)])
        present = np.union1d(np.flatnonzero(np.bincount(rows.cells.ravel(), minlength=last)), last)
        place = np.zeros(last + 1, np.int64)
        place[present] = np.arange(len(present))
        return cls(present, place[cells])

    def take(self, which: npt.NDArray[np.bool_]) -> CellDesign:
        """Return the design of the selected rows, with the same cells."""
        return replace(self, positions=self.positions[which])

    def compute_scores(self, weights: Floats) -> Floats:
        """Return the sum of each row's weights, ``(n,)``."""
        total: Floats = weights[self.positions].sum(axis=1)
        return total

    def sum_by_cell(self, values: Floats) -> Floats:
        """Return for each cell the sum of a value over its rows, ``(P,)``."""
        repeated = np.repeat(values, self.positions.shape[1])
        return np.asarray(
            np.bincount(self.positions.ravel(), repeated, len(self.present)), np.float64
        )

    def compute_gram(self, values: Floats) -> Floats:
        """Return for each pair of cells the sum of a value over the rows in both, ``(P, P)``.

        The values must not be negative.
        """
        total, roots = np.zeros((len(self.present),) * 2), np.sqrt(values)[:, np.newaxis]
        for start in range(0, len(values), _BLOCK):
            rows = slice(start, start + _BLOCK)
            block = self.to_dense(rows) * roots[rows]
            total += block.T @ block
        return total

    def to_dense(self, which: slice) -> Floats:
        """Return a matrix ``(n, P)`` with 1 if a row is in a cell and 0 otherwise."""
        positions = self.positions[which]
        inside = np.zeros((len(positions), len(self.present)))
        np.put_along_axis(inside, positions, 1.0, axis=1)
        return inside


@dataclass(frozen=True, eq=False)
class NewtonKernel:
    """Newton's steps for fewer rows than parameters.

    Parameters
    ----------
    mixed
        ``(n, r + P)`` coefficient of each parameter in the score of each row.
    reach
        ``(r + P, n)`` effect of each row on each parameter: `mixed` times the prior variance.
    likeness
        ``(n, n)`` prior covariances of the rows' scores.

    Notes
    -----
    Let X be `mixed`, L the precisions, W the curvatures, s the slopes and d the distance from the
    centre. A step ends at ``(L + X'WX)^-1 X'(W X d - s)`` from the centre, which equals ``L^-1 X'
    (I + W X L^-1 X')^-1 (W X d - s)``. No large terms cancel in it, unlike in Woodbury's formula
    for the inverse alone.
    """

    mixed: Floats
    reach: Floats
    likeness: Floats

    @classmethod
    def from_design(cls, design: CellDesign, prior: WeightPrior) -> NewtonKernel:
        """Return the kernel of the rows of a design."""
        inside = design.to_dense(slice(None))
        mixed = np.hstack([inside @ prior.basis, inside])
        reach = (mixed / prior.precision).T
        return cls(mixed, reach, mixed @ reach)

    def compute_step(self, away: Floats, slopes: Floats, curvatures: Floats) -> Floats:
        """Return the same step as `_compute_step`."""
        system = np.eye(len(slopes)) + curvatures[:, np.newaxis] * self.likeness
        ends: Floats = self.reach @ np.linalg.solve(
            system, curvatures * (self.mixed @ away) - slopes
        )
        return away - ends
