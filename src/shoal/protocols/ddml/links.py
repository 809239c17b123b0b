"""Generalised linear models: how scores become predictions, and the gradient of a batch of rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric
from shoal.protocols.ddml.design import Floats, Inputs

Link = Literal["identity", "logit", "log", "multinomial"]

MOST = 30.0
"""Scores beyond this are as good as certain; e^30 is far from leaving a float."""


def targets(label: Feature, encoded: npt.NDArray[Any]) -> Floats:
    """The label as a model predicts it: the position of a class, or a number scaled to [0, 1] by its public range."""
    if isinstance(label, Numeric):
        return (np.asarray(encoded, np.float64) - label.low) / (label.high - label.low)
    return np.asarray(encoded, np.float64)


def means(link: Link, scores: Floats) -> Floats:
    """``(n, C)`` predicted means of ``(n, C)`` scores: g^-1.

    Notes
    -----
    Ref: DDML equation (1).
    """
    if link == "identity":
        return scores
    if link == "logit":
        chances: Floats = 1 / (1 + np.exp(-np.clip(scores, -MOST, MOST)))
        return chances
    if link == "log":
        rates: Floats = np.exp(np.clip(scores, -MOST, MOST))
        return rates
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def gradient(link: Link, weights: Floats, inputs: Inputs, target: Floats) -> Floats:
    """``(C, d)``: the average gradient of a batch, before it is clipped.

    Notes
    -----
    Ref: DDML equation (3), Algorithm 1: the mean of (y_hat - y) x. All four links are canonical, so that the form is the same.
    """
    residuals = means(link, inputs.times(weights))
    if link == "multinomial":
        residuals[np.arange(len(target)), target.astype(np.int64)] -= 1
    else:
        residuals -= target[:, np.newaxis]
    return inputs.mean_outer(residuals)
