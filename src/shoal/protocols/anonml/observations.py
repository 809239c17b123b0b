"""Counts as linear observations of how a label leans: what the shrinkage is given, in each of the ways a feature can be asked about.

Everything is about one label against the rest, with shares pi and 1 - pi. In bin b the label's share exceeds its expectation by
pi (1 - pi) M_b delta_b, and the rest falls short by as much.
"""

from __future__ import annotations

import numpy as np

from shoal.mechanisms.reports import norm_sub
from shoal.protocols.anonml.blocks import merged_table
from shoal.protocols.anonml.evidence import Bit, Blocks, Counts, Evidence, Floats, Shape
from shoal.protocols.anonml.posterior import Observed

_MIN_SHARE = 1e-4
# No side is taken to be nearly empty: what it shows could not be told from noise.
_MAX_SIDE = 0.96
# How far a median is off even where many peers placed it: candidate cut points are not everywhere, and values repeat.
_MEDIAN_ERROR2 = 0.1**2
_SHARE_VARIANCE = 0.25


def home_of(evidence: Evidence) -> Counts:
    """What each bin is told apart as: itself in a table; by bits its side, high for bin 1 and low for all others."""
    bins = np.arange(evidence.shape.n_bins)
    return bins if evidence.agree is None else (bins == 1).astype(np.int64)


def observe(evidence: Evidence, pi: Floats, label: int) -> Observed:
    """What a feature's own answers show of how one label leans against the rest."""
    if evidence.agree is None:
        return _observe_table(evidence, pi, label)
    return _observe_bits(evidence, evidence.agree, float(pi[label]))


def _observe_bits(evidence: Evidence, agree: Bit, pi: float) -> Observed:
    """Two sides h = +-1 and whether they agree with the label: E[h (2y - 1)] = (2 pi - 1) mu + 2 pi (1 - pi) h.D, where mu = E h.

    Notes
    -----
    A cut at the median has mu near zero, which is what a bit saves over a table. What is left of mu must be taken off: without that a
    rare side would look like the rare label.
    """
    shape = Shape(2, is_ordered=False, has_missing=False)
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
        return _nothing(shape, M)
    signal = 2 * pi * (1 - pi)
    noise = np.sqrt(agree.variance + (2 * pi - 1) ** 2 * mu_variance)
    return Observed(shape, M, signal / noise * np.array([[-1.0, 1.0]]) * M, np.array([agree.mean - (2 * pi - 1) * mu]) / noise)


def _observe_table(evidence: Evidence, pi: Floats, label: int) -> Observed:
    """A table of bins and labels: D = f1 / pi - f0 / (1 - pi) is M delta plus noise."""
    B = evidence.shape.n_bins
    if evidence.table is None or not evidence.table.n:
        return _nothing(evidence.shape, np.full(B, 1 / B))
    f, v = _balanced(*evidence.table.estimate(pi.size), pi)
    M = _proper(f.sum(1))
    one, rest = pi[label], 1 - pi[label]
    noise = np.sqrt(v[:, label] / one**2 + (v.sum(1) - v[:, label]) / rest**2)
    D = f[:, label] / one - (f.sum(1) - f[:, label]) / rest
    return Observed(evidence.shape, M, M / noise, D / noise)


def observe_tables(evidence: Evidence, pi: Floats, blocks: Blocks, feature: int) -> Observed:
    """A table and the table of levels from the blocks, for two labels; what both say of M is integrated out.

    Notes
    -----
    With H the bins of each level (or I), a cell of label 1 shows pi H (M + (1 - pi) M delta), one of label 0
    (1 - pi) H (M - pi M delta), and beforehand M ~ N(1 / B, 4 / B^2 + 0.02).
    """
    B, one, rest = evidence.shape.n_bins, pi[1], pi[0]
    tables = []
    if evidence.table is not None and evidence.table.n:
        tables.append((np.eye(B), *_balanced(*evidence.table.estimate(2), pi)))
    if blocks.n_singles[feature]:
        H, f, v = merged_table(blocks, feature)
        tables.append((H, *_balanced(f, v, pi)))
    if not tables:
        return _nothing(evidence.shape, np.full(B, 1 / B))
    H = np.vstack([H for H, _, _ in tables])
    f = np.vstack([f for _, f, _ in tables])
    v = np.vstack([v for _, _, v in tables])
    precision = H.T / v.sum(1)
    M = _proper(np.linalg.solve(precision @ H + np.eye(B) / _SHARE_VARIANCE, precision @ f.sum(1) + 1 / (B * _SHARE_VARIANCE)))
    of_delta = np.vstack([H, -H]) * one * rest
    of_shares = np.vstack([one * H, rest * H])
    noise = np.diag(np.concatenate([v[:, 1], v[:, 0]])) + (4 / B**2 + 0.02) * of_shares @ of_shares.T
    root = np.linalg.cholesky(noise)
    values = np.concatenate([f[:, 1], f[:, 0]]) - of_shares.sum(1) / B
    return Observed(evidence.shape, M, np.linalg.solve(root, of_delta * M), np.linalg.solve(root, values))


def _balanced(f: Floats, v: Floats, pi: Floats) -> tuple[Floats, Floats]:
    """The table shifted so that its labels have the pooled shares, each cell by its share of the variance."""
    return f + (pi - f.sum(0)) * v / v.sum(0), v


def _proper(shares: Floats) -> Floats:
    """The nearest shares that could be true, and none of them zero: they are divided by."""
    M = np.maximum(norm_sub(shares, 1.0), _MIN_SHARE)
    return M / float(M.sum())


def _nothing(shape: Shape, M: Floats) -> Observed:
    return Observed(shape, M, np.zeros(shape.n_bins), np.zeros(shape.n_bins))
