"""The average over time of the instances' mean: a model with less noise than the instances of any moment."""

from __future__ import annotations

from shoal.protocols.ddml.design import Floats

ETA = 3
"""How much more recent models count: the weight of a model grows as the third power of time."""


def fold(average: Floats, mean: Floats, n: int) -> Floats:
    """The average after the n-th mean, n = 1, 2, ..: A + (m - A) (1 + eta) / (n + eta).

    Notes
    -----
    Polynomial-decay averaging (Shamir and Zhang 2013): what was learned at first is forgotten without knowing how long learning will
    last. The first mean takes the place of whatever was there.

    Examples
    --------
    >>> import numpy as np
    >>> fold(np.array([8.0]), np.array([2.0]), 1), fold(np.array([2.0]), np.array([7.0]), 2)
    (array([2.]), array([6.]))
    """
    return average + (mean - average) * ((1 + ETA) / (n + ETA))
