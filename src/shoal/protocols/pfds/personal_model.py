"""A holder's personal model from the release and its own rows.

Peers call `fit_personal_model` when the pooled model is published. It costs no privacy, because it
never leaves the holder. A change must keep this: no message, state or file contains it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.pfds.fitting import (
    OWN_PENALTY,
    CellDesign,
    WeightPrior,
    compute_targets,
    fit_parameters,
)
from shoal.protocols.pfds.model import PooledModel, UnreleasedModel
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.script import compute_affordable_budget

MIN_ROWS = 10
"""Smallest number of rows for a personal model.

With fewer rows, or rows of one class only, a holder keeps the pooled model.
"""
N_FOLDS = 5
STEPS = 5
"""The share of each model in a blend is a multiple of one fifth."""
BLEND_PENALTIES = (0.0, 0.0, 8.0)
"""Penalties on the share of each model in a blend.

A share s of the third model, that of the own rows in addition to a pooled one, reduces the log
likelihood by 8 s. Few rows distinguish the two models badly, and they favour a model that fits
similar rows.
"""
PRECISION_OF_SCALE = 3.0
PRECISION_OF_FEATURES = 30.0
PRECISION_OF_INTERCEPT = 0.01
MIN_VARIANCE = 0.02
"""Variance of one holder's weight around an exact pooled weight: holders differ."""
MAX_VARIANCE = 0.33
"""Largest variance of a holder's weight around a pooled weight, however noisy that is."""
MIN_SQUARES = 1e-9


def fit_personal_model(model: PooledModel, rows: PFDSRows, entropy: Entropy) -> PersonalModel:
    """Return the personal model of the holder of these rows.

    Parameters
    ----------
    model
        The pooled model of a release.
    rows
        All rows of the holder, including the shared ones.
    entropy
        Source of the folds.

    Notes
    -----
    The personal model follows the pooled model where that is precise, and the holder's rows where
    it is noisy. It is blended with other models, by how well each predicts rows of the holder that
    it has not seen. With trust local it is blended with the model of the holder's rows alone, which
    guards against a noisy release. With secure sums it is blended with the pooled model, which
    guards against few rows, and also with the model of the holder's rows if the noise permits no
    residual round. With several models, one for each class against all others, each is treated
    separately.

    Ref: PFDS Algorithm 1, line 3, and Theorem 3.3; the prior and the blend belong to variant plus.

    Privacy
    -------
    Nothing is spent, because nothing is released. A personal model contains the rows without noise,
    and must not be published or served.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.pfds.fitting import fit_released_model
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> rows = PFDSRows.from_columns(
    ...     params := PFDSParams(schema, epsilon=1.0, size=100),
    ...     {"wind": np.arange(40) % 2},
    ...     np.arange(40) % 2,
    ... )
    >>> fit_personal_model(fit_released_model(params, rows), rows, SeededEntropy(1))
    PersonalModel(fitted to the holder's rows: never leaves)
    """
    params = model.params
    design, is_summed = CellDesign.from_rows(params, rows), params.trust == "secure-sum"
    has_own = not is_summed or compute_affordable_budget(params).n_rounds == 0
    folds = np.argsort(entropy.words(len(rows), np.uint64), kind="stable") % N_FOLDS
    pooled = np.vstack([model.weights, model.intercepts])
    personal, blended, shares = pooled.copy(), pooled.copy(), np.ones(params.n_models)
    for model_number, targets in enumerate(compute_targets(params, rows).T):
        if len(rows) < MIN_ROWS or np.ptp(targets) == 0:
            continue
        basis = make_basis(params, pooled[:, model_number])
        prior = make_pooled_prior(
            design.present, basis, pooled[-1, model_number], model.variances[:, model_number]
        )
        parameters, scores = cross_validate(design, targets, folds, prior, params.is_number)
        # Cells without a row of the holder are scaled like the others.
        personal[:, model_number] = basis @ parameters[: basis.shape[1]]
        personal[design.present, model_number] = prior.to_weights(parameters)
        models, tries = [personal[:, model_number]], [scores]
        if is_summed:
            models.append(pooled[:, model_number])
            tries.append(design.compute_scores(pooled[design.present, model_number]))
        if has_own:
            own, around_zero = (
                np.zeros_like(pooled[:, model_number]),
                WeightPrior.make_ridge(len(design.present), OWN_PENALTY),
            )
            own[design.present], own_scores = cross_validate(
                design, targets, folds, around_zero, params.is_number
            )
            models.append(own)
            tries.append(own_scores)
        blend = compute_blend(np.array(tries), targets, params.is_number)
        shares[model_number], blended[:, model_number] = blend[0], blend @ np.array(models)
    return PersonalModel(
        _replace_weights(model, blended), _replace_weights(model, personal), shares
    )


def make_basis(params: PFDSParams, pooled: Floats) -> Floats:
    """Return the pooled weights as a whole, and those of each feature alone.

    The shape is ``(D + 1, 1 + k)``; ``pooled`` is ``(D + 1,)``, and its last entry, the intercept,
    is not used.
    """
    columns = np.zeros((params.n_cells + 1, 1 + len(params.arities)))
    columns[:-1, 0] = pooled[:-1]
    columns[
        np.arange(params.n_cells), 1 + np.repeat(np.arange(len(params.arities)), params.arities)
    ] = pooled[:-1]
    return columns


def make_pooled_prior(
    present: Ints, basis: Floats, intercept: float, variances: Floats
) -> WeightPrior:
    """Return the prior of a personal model.

    Parameters
    ----------
    present
        The cells that occur in the holder's rows; the last is the intercept's.
    basis
        Result of `make_basis`.
    variances
        ``(D,)`` of the noise in the pooled weights.

    Notes
    -----
    The score of a row is ``alpha * w.x + sum over features of gamma_a * w_a.x_a + u.x + b``. The
    pooled weights w are scaled together by alpha, around 1, and by feature. A separate weight u_v
    is added to each; its variance grows with the noise of the pooled weight.
    """
    k = basis.shape[1] - 1
    free = 1 / (MIN_VARIANCE + np.minimum(variances[present[:-1]], MAX_VARIANCE))
    centre = np.concatenate([[1.0], np.zeros(k + len(free)), [intercept]])
    precision = np.concatenate(
        [[PRECISION_OF_SCALE], np.full(k, PRECISION_OF_FEATURES), free, [PRECISION_OF_INTERCEPT]]
    )
    return WeightPrior(basis[present], centre, precision)


def cross_validate(
    design: CellDesign, targets: Floats, folds: Ints, prior: WeightPrior, is_number: bool
) -> tuple[Floats, Floats]:
    """Return the parameters of all rows, and the score of each row ``(n,)``.

    The score of a row comes from a fit to the other folds.
    """
    parameters, scores = fit_parameters(design, targets, prior, is_number), np.zeros(len(targets))
    for fold in range(N_FOLDS):
        inside = folds == fold
        without = fit_parameters(
            design.take(~inside), targets[~inside], prior, is_number, start=parameters
        )
        scores[inside] = design.take(inside).compute_scores(prior.to_weights(without))
    return parameters, scores


def compute_blend(tries: Floats, targets: Floats, is_number: bool) -> Floats:
    """Return the share of each model ``(A,)`` in the blend.

    It is the mean of all candidate blends, weighted by the likelihood of the targets.

    Parameters
    ----------
    tries
        ``(A, n)`` scores by each model.

    Notes
    -----
    Errors of a number are normal, with the residual variance of the best blend.
    """
    blends = (
        np.array(
            [parts for parts in product(range(STEPS + 1), repeat=len(tries)) if sum(parts) == STEPS]
        )
        / STEPS
    )
    scores = blends @ tries
    if is_number:
        squares = np.sum((scores - targets) ** 2, axis=1)
        losses = len(targets) / 2 * squares / max(squares.min(), MIN_SQUARES)
    else:
        losses = np.sum(np.logaddexp(0, scores) - targets * scores, axis=1)
    losses += blends @ np.array(BLEND_PENALTIES[: len(tries)])
    return np.asarray(np.average(blends, axis=0, weights=np.exp(losses.min() - losses)), np.float64)


def _replace_weights(model: PooledModel, weights: Floats) -> PooledModel:
    return replace(model, weights=weights[:-1], intercepts=weights[-1])


class PersonalModel(UnreleasedModel):
    """A model that contains its holder's rows in the clear: it never leaves.

    Attributes
    ----------
    blend
        ``(M,)`` the share of the personal model; the other models have the rest. It is 1 if there
        were too few rows to learn from, so that the personal model is the pooled one.
    """

    __slots__ = ("__personal", "blend")

    def __init__(self, model: PooledModel, personal: PooledModel, blend: Floats) -> None:
        super().__init__(model)
        self.__personal = personal
        self.blend = blend

    @property
    def unblended(self) -> PersonalModel:
        """The personal model alone, without a blend."""
        return PersonalModel(self.__personal, self.__personal, np.ones_like(self.blend))

    def __repr__(self) -> str:
        return "PersonalModel(fitted to the holder's rows: never leaves)"
