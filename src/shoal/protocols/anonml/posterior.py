"""Pooled Gaussian shrinkage: how much the label leans in each bin of a feature, given noisy answers and the other features.

A feature's bins have shares M. The label leans by delta: P(bin | label) / M is 1 + (1 - pi) delta for the label at hand
and 1 - pi delta for the others. Answers show A (M delta) plus Gaussian noise. Beforehand delta ~ N(0, tau2 K'): K' lets neighbouring
bins be alike and keeps the mean of delta over the bins at zero. The scale tau2 is unknown for each feature, but all features share a
belief about it, which is learned from all of them at once. So a feature that shows nothing, or has too many bins, is drawn to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.protocols.anonml.evidence import Floats, Shape

_TAU2 = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_LENGTHS = (0.3, 1.0)
_OWN = 0.1
_EM_STEPS = 8
# With few features their own belief would be too sure of itself.
_EM_UNIFORM = 0.1


@dataclass(frozen=True)
class Observed:
    """Answers about one feature, scaled to unit noise.

    Parameters
    ----------
    shape
        The feature's bins.
    shares
        M, the estimated shares of the bins, ``(B,)``, none of them zero.
    design
        What the answers show of delta, ``(R, B)``: rows of A times M, over the noise; ``(B,)`` where each answer shows its own bin.
    values
        The answers, over the noise, ``(R,)``.
    """

    shape: Shape
    shares: Floats
    design: Floats
    values: Floats


def kernel(shape: Shape, shares: Floats, length: float) -> Floats:
    """K' = P K P^T, P = I - 1 M^T: prior covariance of delta at scale 1.

    Notes
    -----
    Categories and the missing bin are unrelated to all others. Ordered bins lie at u, the mean of rank and cumulative share, and are
    related by exp(-|u - u'| / length), but for a tenth that is each bin's own.
    """
    K = np.eye(shape.n_bins)
    if shape.is_ordered:
        n = shape.n_bins - shape.has_missing
        known = shares[:n] / shares[:n].sum()
        u = (np.cumsum(known) - known / 2 + (np.arange(n) + 0.5) / n) / 2
        K[:n, :n] = (1 - _OWN) * np.exp(-np.abs(u[:, None] - u) / length) + _OWN * np.eye(n)
    P = np.eye(shape.n_bins) - shares
    return P @ K @ P.T


def leanings(features: Sequence[Observed]) -> list[Floats]:
    """Posterior mean of delta for each feature, the belief about tau2 pooled over all of them by EM."""
    candidates = [_candidates(feature) for feature in features]
    belief = np.full(_TAU2.size, 1 / _TAU2.size)
    for _ in range(_EM_STEPS):
        found = np.mean([_weights(likelihood, belief).sum(0) for likelihood, _ in candidates], axis=0)
        belief = (1 - _EM_UNIFORM) * found + _EM_UNIFORM / _TAU2.size
    return [np.tensordot(_weights(likelihood, belief), deltas) for likelihood, deltas in candidates]


def _weights(likelihood: Floats, belief: Floats) -> Floats:
    """Posterior of the lengths and the tau2."""
    joint = likelihood * belief
    return joint / float(joint.sum())


def _candidates(feature: Observed) -> tuple[Floats, Floats]:
    """For each length and tau2 the marginal likelihood, up to a factor, and the posterior mean of delta.

    One eigendecomposition serves every tau2: the answers have covariance I + tau2 W, W = A K' A^T.
    """
    if feature.design.ndim == 1 and not feature.shape.is_ordered:
        return _category_candidates(feature)
    design = np.diag(feature.design) if feature.design.ndim == 1 else feature.design
    logs, deltas = [], []
    for length in _LENGTHS if feature.shape.is_ordered else _LENGTHS[:1]:
        KA = kernel(feature.shape, feature.shares, length) @ design.T
        eigenvalues, U = np.linalg.eigh(design @ KA)
        z = U.T @ feature.values
        spread = 1 + _TAU2[:, None] * np.maximum(eigenvalues, 0)
        logs.append(-0.5 * (z**2 / spread + np.log(spread)).sum(1))
        deltas.append(_TAU2[:, None] * ((z / spread) @ (KA @ U).T))
    likelihood = np.array(logs)
    return np.exp(likelihood - likelihood.max()), np.array(deltas)


def _category_candidates(feature: Observed) -> tuple[Floats, Floats]:
    """The same for a table of categories, thousands of them if need be: no matrix is larger than two by two.

    Notes
    -----
    For unrelated bins K' = I - 1 M^T - M 1^T + |M|^2 1 1^T. So the covariance I + tau2 A K' A is a diagonal D plus tau2 V S V^T of rank
    two, with V = (A 1, A M), and is inverted by Woodbury's identity.
    """
    a, M, z = feature.design, feature.shares, feature.values
    V = np.stack([a, a * M], axis=1)
    S = np.array([[M @ M, -1.0], [-1.0, 0.0]])
    logs, deltas = [], []
    for tau2 in _TAU2:
        D = 1 + tau2 * a**2
        core = np.eye(2) + tau2 * S @ (V.T @ (V / D[:, None]))
        x = z / D - V / D[:, None] @ np.linalg.solve(core, tau2 * S @ (V.T @ (z / D)))
        logs.append(-0.5 * (z @ x + np.log(D).sum() + np.log(np.linalg.det(core))))
        u = a * x
        deltas.append(tau2 * (u - M @ u - M * u.sum() + (M @ M) * u.sum()))
    likelihood = np.array(logs)[None]
    return np.exp(likelihood - likelihood.max()), np.array(deltas)[None]
