"""What a holder makes of the release and its own rows, at home. It costs no privacy, because it never leaves."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.pfds.fitting import OWN_PENALTY, Design, Prior, fit, targets_of
from shoal.protocols.pfds.model import KeptModel, Model
from shoal.protocols.pfds.params import Floats, Ints, Params, Rows
from shoal.protocols.pfds.spending import affordable

FEWEST_ROWS = 10
"""With fewer rows, or all of one class, a holder keeps to the pooled model."""
N_FOLDS = 5
STEPS = 5
"""Each model's share of a blend is tried in fifths."""
DOUBTS = (0.0, 0.0, 8.0)
"""A share s of the third model, that of the own rows next to a pooled one, takes 8 s off the log likelihood: few rows tell the two apart
badly, and they favour what is good for rows like them."""
PRECISION_OF_SCALE = 3.0
PRECISION_OF_FEATURES = 30.0
PRECISION_OF_INTERCEPT = 0.01
LEAST_VARIANCE = 0.02
"""How far holders differ: even where the pooled weight is exact, that of one holder's rows has this variance around it."""
MOST_VARIANCE = 0.33
"""However noisy a pooled weight is, the own one next to it is not freer than this."""
LEAST_SQUARES = 1e-9


def at_home(model: Model, rows: Rows, entropy: Entropy) -> Home:
    """The home model of the holder of these rows.

    Parameters
    ----------
    model
        The pooled model of a release.
    rows
        All of the holder's own, those that it shared among them.
    entropy
        Draws the folds.

    Notes
    -----
    The personal model follows the pooled one where that is precise and the own rows where it is noise. It is blended with others, by how
    well each predicts own rows that it has not seen: with local trust the model of the own rows alone, which guards against a noisy
    release; with secure sums the pooled model, which guards against few rows, and the own one as well where the noise is too much for any
    round of residuals. Several models are one for each class against all others, and each is treated by itself.

    Ref: PFDS Algorithm 1, line 3, and Theorem 3.3; the prior and the blend are variant plus's own.

    Privacy
    -------
    Nothing is spent, because nothing is released. A home model contains the rows without noise, and must not be published or served.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.pfds.fitting import released_model
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> rows = Rows.of(params := Params(schema, epsilon=1.0, size=100), {"wind": np.arange(40) % 2}, np.arange(40) % 2)
    >>> at_home(released_model(params, rows), rows, SeededEntropy(1))
    Home(of the holder's own rows: never leaves)
    """
    params = model.params
    design, is_summed = Design.of(params, rows), params.trust == "secure-sum"
    has_own = not is_summed or affordable(params).n_rounds == 0
    folds = np.argsort(entropy.words(len(rows), np.uint64), kind="stable") % N_FOLDS
    pooled = np.vstack([model.weights, model.intercepts])
    personal, home, shares = pooled.copy(), pooled.copy(), np.ones(params.n_models)
    for one, targets in enumerate(targets_of(params, rows).T):
        if len(rows) < FEWEST_ROWS or np.ptp(targets) == 0:
            continue
        basis = scaled(params, pooled[:, one])
        prior = around_pooled(design.present, basis, pooled[-1, one], model.variances[:, one])
        found, scores = tried(design, targets, folds, prior, params.is_number)
        # Cells that the holder has never seen are scaled with the others.
        personal[:, one] = basis @ found[: basis.shape[1]]
        personal[design.present, one] = prior.weights(found)
        models, tries = [personal[:, one]], [scores]
        if is_summed:
            models.append(pooled[:, one])
            tries.append(design.scores(pooled[design.present, one]))
        if has_own:
            own, around_zero = np.zeros_like(pooled[:, one]), Prior.around_zero(len(design.present), OWN_PENALTY)
            own[design.present], own_scores = tried(design, targets, folds, around_zero, params.is_number)
            models.append(own)
            tries.append(own_scores)
        blend = shares_of(np.array(tries), targets, params.is_number)
        shares[one], home[:, one] = blend[0], blend @ np.array(models)
    return Home(_with(model, home), _with(model, personal), shares)


def scaled(params: Params, pooled: Floats) -> Floats:
    """The pooled weights ``(D + 1,)`` as a whole, and those of each feature alone: ``(D + 1, 1 + k)``, without the intercept."""
    columns = np.zeros((params.n_cells + 1, 1 + len(params.arities)))
    columns[:-1, 0] = pooled[:-1]
    columns[np.arange(params.n_cells), 1 + np.repeat(np.arange(len(params.arities)), params.arities)] = pooled[:-1]
    return columns


def around_pooled(present: Ints, basis: Floats, intercept: float, variances: Floats) -> Prior:
    """The prior of a personal model.

    Parameters
    ----------
    present
        The cells that occur among the holder's rows, the last the intercept's.
    basis
        As `scaled` gives it.
    variances
        ``(D,)`` of the noise in the pooled weights.

    Notes
    -----
    The score of a row is ``alpha * w.x + sum over features of gamma_a * w_a.x_a + u.x + b``: the pooled weights w are scaled all
    together by alpha, around 1, and by feature; a weight of its own u_v is added to each, the freer the noisier the pooled one.
    """
    k = basis.shape[1] - 1
    free = 1 / (LEAST_VARIANCE + np.minimum(variances[present[:-1]], MOST_VARIANCE))
    centre = np.concatenate([[1.0], np.zeros(k + len(free)), [intercept]])
    precision = np.concatenate([[PRECISION_OF_SCALE], np.full(k, PRECISION_OF_FEATURES), free, [PRECISION_OF_INTERCEPT]])
    return Prior(basis[present], centre, precision)


def tried(design: Design, targets: Floats, folds: Ints, prior: Prior, is_number: bool) -> tuple[Floats, Floats]:
    """The parameters by all rows, and the score of each row ``(n,)`` by those of the other folds."""
    found, scores = fit(design, targets, prior, is_number), np.zeros(len(targets))
    for fold in range(N_FOLDS):
        inside = folds == fold
        without = fit(design.take(~inside), targets[~inside], prior, is_number, start=found)
        scores[inside] = design.take(inside).scores(prior.weights(without))
    return found, scores


def shares_of(tries: Floats, targets: Floats, is_number: bool) -> Floats:
    """The share of each model ``(A,)`` in the blend: the mean of all that are tried, each weighted by the likelihood of the targets.

    Parameters
    ----------
    tries
        ``(A, n)`` scores by each model.

    Notes
    -----
    Errors of a number are normal, with the variance that the best blend leaves.
    """
    blends = np.array([parts for parts in product(range(STEPS + 1), repeat=len(tries)) if sum(parts) == STEPS]) / STEPS
    scores = blends @ tries
    if is_number:
        squares = np.sum((scores - targets) ** 2, axis=1)
        losses = len(targets) / 2 * squares / max(squares.min(), LEAST_SQUARES)
    else:
        losses = np.sum(np.logaddexp(0, scores) - targets * scores, axis=1)
    losses += blends @ np.array(DOUBTS[: len(tries)])
    return np.asarray(np.average(blends, axis=0, weights=np.exp(losses.min() - losses)), np.float64)


def _with(model: Model, weights: Floats) -> Model:
    return replace(model, weights=weights[:-1], intercepts=weights[-1])


class Home(KeptModel):
    """A model that contains its holder's rows in the clear: it never leaves.

    Attributes
    ----------
    blend
        ``(M,)`` the share of the personal model; the rest is that of the others. 1 where there were too few rows to learn from, and the
        personal model is the pooled one.
    """

    __slots__ = ("__personal", "blend")

    def __init__(self, model: Model, personal: Model, blend: Floats) -> None:
        super().__init__(model)
        self.__personal = personal
        self.blend = blend

    @property
    def personal(self) -> Home:
        """The personal model alone, not blended with anything."""
        return Home(self.__personal, self.__personal, np.ones_like(self.blend))

    def __repr__(self) -> str:
        return "Home(of the holder's own rows: never leaves)"
