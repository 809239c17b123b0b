"""Gaussian shrinkage of the label's association with each feature.

`AnonMLPlusScript` calls `learn_scores` for the model and `choose_levels` for its block question.
Everything is computed from noisy counts.

A feature's bins have shares M. The association of the label with them is delta: P(bin | label) / M
is 1 + (1 - pi) delta for one label, with share pi, and 1 - pi delta for the rest, with share 1 -
pi. So in bin b the label's share exceeds its expectation by pi (1 - pi) M_b delta_b, and the rest
falls short by the same amount. Answers show A (M delta) plus Gaussian noise: `observe` and
`observe_tables` express counts as such linear observations, for each kind of question.

The prior is delta ~ N(0, tau2 K'): K' makes neighbouring bins similar and keeps the mean of delta
over the bins at zero. The scale tau2 is unknown for each feature, but all features share a prior of
it, which is estimated from all of them together. So a feature that shows nothing, or has too many
bins, is shrunk to zero.

The model has the pooled shares of the label, and the logarithms of the shrunk associations, which
are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.mechanisms.frequency_oracle import norm_sub
from shoal.protocols.anonml.evidence import (
    BlockCounts,
    Counts,
    FeatureBins,
    FeatureEvidence,
    Floats,
    NoisyBit,
    compute_score_factors,
    cut_levels,
    estimate_level_table,
)

_TAU2 = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_LENGTHS = (0.3, 1.0)
_OWN = 0.1
_EM_STEPS = 8
# Keeps the estimated prior of tau2 wide if there are few features.
_EM_UNIFORM = 0.1


@dataclass(frozen=True)
class LinearObservations:
    """Answers about one feature, scaled to unit noise.

    Parameters
    ----------
    shape
        The feature's bins.
    shares
        M, the estimated shares of the bins, ``(B,)``, none of them zero.
    design
        The linear map from delta to the expected answers, ``(R, B)``: rows of A times M, over the
        noise; ``(B,)`` if each answer is about one bin.
    values
        The answers, over the noise, ``(R,)``.
    """

    shape: FeatureBins
    shares: Floats
    design: Floats
    values: Floats


def compute_kernel(shape: FeatureBins, shares: Floats, length: float) -> Floats:
    """Return K' = P K P^T, P = I - 1 M^T: the prior covariance of delta at scale 1.

    Notes
    -----
    Categories and the missing bin are unrelated to all others. Ordered bins lie at u, the mean of
    rank and cumulative share, and are related by exp(-|u - u'| / length), except for a tenth that
    is independent in each bin.
    """
    K = np.eye(shape.n_bins)
    if shape.is_ordered:
        n = shape.n_bins - shape.has_missing
        known = shares[:n] / shares[:n].sum()
        u = (np.cumsum(known) - known / 2 + (np.arange(n) + 0.5) / n) / 2
        K[:n, :n] = (1 - _OWN) * np.exp(-np.abs(u[:, None] - u) / length) + _OWN * np.eye(n)
    P = np.eye(shape.n_bins) - shares
    return P @ K @ P.T


def estimate_associations(features: Sequence[LinearObservations]) -> list[Floats]:
    """Return the posterior mean of delta for each feature.

    The prior of tau2 is pooled over all features by EM.
    """
    candidates = [_fit_candidates(feature) for feature in features]
    belief = np.full(_TAU2.size, 1 / _TAU2.size)
    for _ in range(_EM_STEPS):
        updated = np.mean(
            [_compute_weights(likelihood, belief).sum(0) for likelihood, _ in candidates], axis=0
        )
        belief = (1 - _EM_UNIFORM) * updated + _EM_UNIFORM / _TAU2.size
    return [
        np.tensordot(_compute_weights(likelihood, belief), deltas)
        for likelihood, deltas in candidates
    ]


def _compute_weights(likelihood: Floats, belief: Floats) -> Floats:
    """Return the posterior of the lengths and the tau2."""
    joint = likelihood * belief
    return joint / float(joint.sum())


def _fit_candidates(feature: LinearObservations) -> tuple[Floats, Floats]:
    """Return marginal likelihoods, up to a factor, and posterior means of delta.

    There is one for each length and tau2. One eigendecomposition serves every tau2: the answers
    have covariance I + tau2 W, W = A K' A^T.
    """
    if feature.design.ndim == 1 and not feature.shape.is_ordered:
        return _fit_category_candidates(feature)
    design = np.diag(feature.design) if feature.design.ndim == 1 else feature.design
    logs, deltas = [], []
    for length in _LENGTHS if feature.shape.is_ordered else _LENGTHS[:1]:
        KA = compute_kernel(feature.shape, feature.shares, length) @ design.T
        eigenvalues, U = np.linalg.eigh(design @ KA)
        z = U.T @ feature.values
        variances = 1 + _TAU2[:, None] * np.maximum(eigenvalues, 0)
        logs.append(-0.5 * (z**2 / variances + np.log(variances)).sum(1))
        deltas.append(_TAU2[:, None] * ((z / variances) @ (KA @ U).T))
    likelihood = np.array(logs)
    return np.exp(likelihood - likelihood.max()), np.array(deltas)


def _fit_category_candidates(feature: LinearObservations) -> tuple[Floats, Floats]:
    """Return the same as `_fit_candidates` for a table of categories, perhaps thousands.

    No matrix is larger than two by two.

    Notes
    -----
    For unrelated bins K' = I - 1 M^T - M 1^T + |M|^2 1 1^T. So the covariance I + tau2 A K' A is a
    diagonal D plus tau2 V S V^T of rank two, with V = (A 1, A M), and is inverted by Woodbury's
    identity.
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


_MIN_SHARE = 1e-4
# Limit of a side's mean: observations of a nearly empty side would be noise.
_MAX_SIDE = 0.96
# Error of a median even if many peers placed it: candidate cut points are not everywhere, and
# values repeat.
_MEDIAN_ERROR2 = 0.1**2
_SHARE_VARIANCE = 0.25


def map_bins(evidence: FeatureEvidence) -> Counts:
    """Return the cell that represents each bin in the observations.

    It is the bin itself in a table; in bit mode the side, high for bin 1 and low for all others.
    """
    bins = np.arange(evidence.shape.n_bins)
    return bins if evidence.agree is None else (bins == 1).astype(np.int64)


def observe(evidence: FeatureEvidence, pi: Floats, label: int) -> LinearObservations:
    """Return the observations of one label against the rest from a feature's own answers."""
    if evidence.agree is None:
        return _observe_table(evidence, pi, label)
    return _observe_bits(evidence, evidence.agree, float(pi[label]))


def _observe_bits(evidence: FeatureEvidence, agree: NoisyBit, pi: float) -> LinearObservations:
    """Return the observation of two sides h = +-1, and of their agreement with the label.

    E[h (2y - 1)] = (2 pi - 1) mu + 2 pi (1 - pi) h.D, where mu = E h.

    Notes
    -----
    A cut at the median has mu near zero, which is the advantage of a bit over a table. The
    remaining mu must be subtracted: otherwise a rare side would look like the rare label.
    """
    shape = FeatureBins(2, is_ordered=False, has_missing=False)
    mu, mu_variance = 0.0, 1.0
    if evidence.n_placed and not evidence.is_lowest:
        t = float(agree.mechanism.p - agree.mechanism.q)
        mu_variance = min(1.0, _MEDIAN_ERROR2 + 1 / (t**2 * evidence.n_placed))
    if evidence.side is not None and evidence.side.n:
        mu = evidence.side.mean * mu_variance / (mu_variance + evidence.side.variance)
        mu_variance = 1 / (1 / mu_variance + 1 / evidence.side.variance)
    known = float(np.clip(mu, -_MAX_SIDE, _MAX_SIDE))
    M = np.array([1 - known, 1 + known]) / 2
    if not agree.n:
        return _make_empty_observations(shape, M)
    signal = 2 * pi * (1 - pi)
    noise = np.sqrt(agree.variance + (2 * pi - 1) ** 2 * mu_variance)
    return LinearObservations(
        shape,
        M,
        signal / noise * np.array([[-1.0, 1.0]]) * M,
        np.array([agree.mean - (2 * pi - 1) * mu]) / noise,
    )


def _observe_table(evidence: FeatureEvidence, pi: Floats, label: int) -> LinearObservations:
    """Return the observations of a table: D = f1 / pi - f0 / (1 - pi) is M delta plus noise."""
    B = evidence.shape.n_bins
    if evidence.table is None or not evidence.table.n:
        return _make_empty_observations(evidence.shape, np.full(B, 1 / B))
    f, v = _balance_labels(*evidence.table.estimate(pi.size), pi)
    M = _project_shares(f.sum(1))
    one, rest = pi[label], 1 - pi[label]
    noise = np.sqrt(v[:, label] / one**2 + (v.sum(1) - v[:, label]) / rest**2)
    D = f[:, label] / one - (f.sum(1) - f[:, label]) / rest
    return LinearObservations(evidence.shape, M, M / noise, D / noise)


def observe_tables(
    evidence: FeatureEvidence, pi: Floats, blocks: BlockCounts, feature: int
) -> LinearObservations:
    """Return the observations of a table and of the blocks' table of levels, for two labels.

    M is integrated out.

    Notes
    -----
    With H the bins of each level (or I), a cell of label 1 shows pi H (M + (1 - pi) M delta), one
    of label 0 (1 - pi) H (M - pi M delta), and the prior is M ~ N(1 / B, 4 / B^2 + 0.02).
    """
    B, one, rest = evidence.shape.n_bins, pi[1], pi[0]
    tables = []
    if evidence.table is not None and evidence.table.n:
        tables.append((np.eye(B), *_balance_labels(*evidence.table.estimate(2), pi)))
    if blocks.n_singles[feature]:
        H, f, v = estimate_level_table(blocks, feature)
        tables.append((H, *_balance_labels(f, v, pi)))
    if not tables:
        return _make_empty_observations(evidence.shape, np.full(B, 1 / B))
    H = np.vstack([H for H, _, _ in tables])
    f = np.vstack([f for _, f, _ in tables])
    v = np.vstack([v for _, _, v in tables])
    precision = H.T / v.sum(1)
    M = _project_shares(
        np.linalg.solve(
            precision @ H + np.eye(B) / _SHARE_VARIANCE,
            precision @ f.sum(1) + 1 / (B * _SHARE_VARIANCE),
        )
    )
    of_delta = np.vstack([H, -H]) * one * rest
    of_shares = np.vstack([one * H, rest * H])
    noise = (
        np.diag(np.concatenate([v[:, 1], v[:, 0]])) + (4 / B**2 + 0.02) * of_shares @ of_shares.T
    )
    root = np.linalg.cholesky(noise)
    values = np.concatenate([f[:, 1], f[:, 0]]) - of_shares.sum(1) / B
    return LinearObservations(
        evidence.shape, M, np.linalg.solve(root, of_delta * M), np.linalg.solve(root, values)
    )


def _balance_labels(f: Floats, v: Floats, pi: Floats) -> tuple[Floats, Floats]:
    """Return the table shifted so that its labels have the pooled shares.

    Each cell is shifted in proportion to its variance.
    """
    return f + (pi - f.sum(0)) * v / v.sum(0), v


def _project_shares(shares: Floats) -> Floats:
    """Return the nearest valid shares, none of them zero because they are divided by."""
    M = np.maximum(norm_sub(shares, 1.0), _MIN_SHARE)
    return M / float(M.sum())


def _make_empty_observations(shape: FeatureBins, M: Floats) -> LinearObservations:
    return LinearObservations(shape, M, np.zeros(shape.n_bins), np.zeros(shape.n_bins))


# Smallest total share, split equally over all classes.
_MIN_LABELS = 0.04
_EQUAL_VARIANCE = 1 / 12
_MAX_ASSOCIATION = 0.97


@dataclass(frozen=True)
class AnonMLScores:
    """A naive Bayes model: log label share, plus a score for the bin of each feature.

    Parameters
    ----------
    label_shares
        pi, the share of each label class, ``(L,)``.
    scores
        For each feature log(P(bin | label) / P(bin)), ``(L, B)``.
    bin_shares
        For each feature the shares of its bins, ``(B,)``.
    """

    label_shares: Floats
    scores: tuple[Floats, ...]
    bin_shares: tuple[Floats, ...]


def learn_scores(
    evidence: Sequence[FeatureEvidence],
    n_labels: int,
    label_bit: NoisyBit | None = None,
    blocks: BlockCounts | None = None,
) -> AnonMLScores:
    """Return the model that all counts together support.

    Bits and blocks are for two label classes.

    Parameters
    ----------
    n_labels
        L, the number of label classes; several are learned one against the rest.
    label_bit
        Answers about the label alone; yes is label 1.
    blocks
        Answers about several features.

    Notes
    -----
    Ref: AnonML §VII-D for the counts. In place of its vote of classifiers the scores of all
    features are summed.

    Examples
    --------
    >>> from shoal.mechanisms.randomized_response import RandomizedResponse
    >>> from shoal.protocols.anonml.evidence import FeatureBins, NoisyLabelTable
    >>> table = NoisyLabelTable(
    ...     np.array([4000, 1000, 1000, 2000]), 8000, RandomizedResponse(2.0, 4)
    ... )
    >>> learn_scores([FeatureEvidence(FeatureBins(2, False, False), table)], 2).scores[0].round(1)
    array([[ 0.3, -1.5],
           [-1.5,  1. ]])
    """
    pi = _estimate_label_shares(evidence, n_labels, label_bit, blocks)
    if n_labels == 2:
        shares, deltas = _fit_label(evidence, pi, 1, blocks)
        scores = [
            np.stack([_log_ratio(-delta, pi[0]), _log_ratio(delta, pi[1])]) for delta in deltas
        ]
        if blocks is not None:
            weights = compute_score_factors(
                blocks, [score[1] - score[0] for score in scores], shares, deltas
            )
            scores = [weight * score for weight, score in zip(weights, scores, strict=True)]
        return AnonMLScores(pi, tuple(scores), tuple(shares))
    classes = [_fit_label(evidence, pi, label, None) for label in range(n_labels)]
    by_feature = zip(*(deltas for _, deltas in classes), strict=True)
    scores = [
        np.stack([_log_ratio(delta, pi[label]) for label, delta in enumerate(deltas)])
        for deltas in by_feature
    ]
    return AnonMLScores(pi, tuple(scores), tuple(classes[0][0]))


def choose_levels(evidence: Sequence[FeatureEvidence], n_labels: int) -> tuple[Counts, ...]:
    """Return the levels of each feature's bins for the block question.

    They follow the label's association with the bins; there must be two label classes.
    """
    shares, deltas = _fit_label(
        evidence, _estimate_label_shares(evidence, n_labels, None, None), 1, None
    )
    return tuple(cut_levels(delta, M) for delta, M in zip(deltas, shares, strict=True))


def _log_ratio(delta: Floats, pi: float) -> Floats:
    """Return log(P(bin | label) / P(bin)).

    Delta is clipped to its valid range, because noisy answers never exclude a label.
    """
    return np.log1p((1 - pi) * np.clip(delta, -_MAX_ASSOCIATION / (1 - pi), _MAX_ASSOCIATION / pi))


def _estimate_label_shares(
    evidence: Sequence[FeatureEvidence],
    n_labels: int,
    label_bit: NoisyBit | None,
    blocks: BlockCounts | None,
) -> Floats:
    """Return the shares of the label classes.

    They are the inverse-variance mean over all answers that contain the label, and equal shares if
    there are none.
    """
    tables = [
        feature.table.estimate(n_labels)
        for feature in evidence
        if feature.table is not None and feature.table.n
    ]
    if blocks is not None:
        tables += [
            estimate_level_table(blocks, int(j))[1:] for j in np.flatnonzero(blocks.n_singles)
        ]
    means = [np.full(n_labels, 1 / n_labels), *(shares.sum(0) for shares, _ in tables)]
    variances = [np.full(n_labels, _EQUAL_VARIANCE), *(variance.sum(0) for _, variance in tables)]
    if label_bit is not None and label_bit.n:
        means.append(np.array([1 - label_bit.mean, 1 + label_bit.mean]) / 2)
        variances.append(np.full(2, label_bit.variance / 4))
    weights = 1 / np.array(variances)
    pooled = (np.array(means) * weights).sum(0) / weights.sum(0)
    min_share = _MIN_LABELS / n_labels
    return min_share + norm_sub(pooled - min_share, 1 - _MIN_LABELS)


def _fit_label(
    evidence: Sequence[FeatureEvidence], pi: Floats, label: int, blocks: BlockCounts | None
) -> tuple[list[Floats], list[Floats]]:
    """Return the shares of each feature's bins, and one label's association with them."""
    if blocks is not None:
        observed = [observe_tables(one, pi, blocks, j) for j, one in enumerate(evidence)]
        return [one.shares for one in observed], estimate_associations(observed)
    observed = [observe(one, pi, label) for one in evidence]
    cells = [map_bins(one) for one in evidence]
    shares = [
        (one.shares / np.bincount(cell))[cell] for one, cell in zip(observed, cells, strict=True)
    ]
    return shares, [
        delta[cell] for delta, cell in zip(estimate_associations(observed), cells, strict=True)
    ]
