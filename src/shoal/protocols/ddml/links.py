"""Link functions and gradients of generalised linear models.

Peers, models and the NumPy loop of simulations call them; ``population.numba_loop`` has the
compiled form.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Feature, Numeric
from shoal.protocols.ddml.design_matrix import Floats, SparseInputs

Link = Literal["identity", "logit", "log", "multinomial"]

MAX_SCORE = 30.0
"""Scores are clipped to this size: a prediction there is practically certain.

e^30 is far below the largest float.
"""


def encode_targets(label: Feature, encoded: npt.NDArray[Any]) -> Floats:
    """Return the label as a model predicts it.

    It is the position of a class, or a number scaled to [0, 1] by its public range.
    """
    if isinstance(label, Numeric):
        return (np.asarray(encoded, np.float64) - label.low) / (label.high - label.low)
    return np.asarray(encoded, np.float64)


def predict_means(link: Link, scores: Floats) -> Floats:
    """Return the ``(n, C)`` predicted means of ``(n, C)`` scores: g^-1.

    Notes
    -----
    Ref: DDML equation (1).
    """
    if link == "identity":
        return scores
    if link == "logit":
        chances: Floats = 1 / (1 + np.exp(-np.clip(scores, -MAX_SCORE, MAX_SCORE)))
        return chances
    if link == "log":
        rates: Floats = np.exp(np.clip(scores, -MAX_SCORE, MAX_SCORE))
        return rates
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def compute_gradient(link: Link, weights: Floats, inputs: SparseInputs, target: Floats) -> Floats:
    """Return the average gradient of a batch, ``(C, d)``, before it is clipped.

    Notes
    -----
    Ref: DDML equation (3), Algorithm 1: the mean of (y_hat - y) x. All four links are canonical, so
    that the form is the same.
    """
    residuals = predict_means(link, inputs.multiply(weights))
    if link == "multinomial":
        residuals[np.arange(len(target)), target.astype(np.int64)] -= 1
    else:
        residuals -= target[:, np.newaxis]
    return inputs.mean_outer(residuals)
