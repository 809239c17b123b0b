"""From counts to a model: the label's shares, pooled; each feature's leanings, shrunk; and their logarithms, to be summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.mechanisms.reports import norm_sub
from shoal.protocols.anonml.blocks import cut_levels, factors, merged_table
from shoal.protocols.anonml.evidence import Bit, Blocks, Counts, Evidence, Floats
from shoal.protocols.anonml.observations import home_of, observe, observe_tables
from shoal.protocols.anonml.posterior import leanings

# Together over all classes: none is taken to be all but absent.
_MIN_LABELS = 0.04
_EQUAL_VARIANCE = 1 / 12
_MAX_LEAN = 0.97


@dataclass(frozen=True)
class Scores:
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


def learn(evidence: Sequence[Evidence], n_labels: int, label_bit: Bit | None = None, blocks: Blocks | None = None) -> Scores:
    """The model that all counts together support; bits and blocks are for two label classes.

    Parameters
    ----------
    evidence
        What was counted about each feature.
    n_labels
        L, the number of label classes; several are learned one against the rest.
    label_bit
        Answers about the label alone; yes is label 1.
    blocks
        Answers about several features at once.

    Notes
    -----
    Ref: AnonML §VII-D for the counts. In place of its vote of classifiers the scores of all features are summed.

    Examples
    --------
    >>> from shoal.mechanisms.response import RandomResponse
    >>> from shoal.protocols.anonml.evidence import Shape, Table
    >>> table = Table(np.array([4000, 1000, 1000, 2000]), 8000, RandomResponse(2.0, 4))
    >>> learn([Evidence(Shape(2, False, False), table)], 2).scores[0].round(1)
    array([[ 0.3, -1.5],
           [-1.5,  1. ]])
    """
    pi = _label_shares(evidence, n_labels, label_bit, blocks)
    if n_labels == 2:
        shares, deltas = _fit(evidence, pi, 1, blocks)
        scores = [np.stack([_log_ratio(-delta, pi[0]), _log_ratio(delta, pi[1])]) for delta in deltas]
        if blocks is not None:
            weights = factors(blocks, [score[1] - score[0] for score in scores], shares, deltas)
            scores = [weight * score for weight, score in zip(weights, scores, strict=True)]
        return Scores(pi, tuple(scores), tuple(shares))
    classes = [_fit(evidence, pi, label, None) for label in range(n_labels)]
    by_feature = zip(*(deltas for _, deltas in classes), strict=True)
    scores = [np.stack([_log_ratio(delta, pi[label]) for label, delta in enumerate(deltas)]) for deltas in by_feature]
    return Scores(pi, tuple(scores), tuple(classes[0][0]))


def levels(evidence: Sequence[Evidence], n_labels: int) -> tuple[Counts, ...]:
    """Levels of each feature's bins, by how the label leans in them, for the block question; two label classes."""
    shares, deltas = _fit(evidence, _label_shares(evidence, n_labels, None, None), 1, None)
    return tuple(cut_levels(delta, M) for delta, M in zip(deltas, shares, strict=True))


def _log_ratio(delta: Floats, pi: float) -> Floats:
    """log(P(bin | label) / P(bin)); delta is kept within what can be, as no label is ever ruled out by noisy answers."""
    return np.log1p((1 - pi) * np.clip(delta, -_MAX_LEAN / (1 - pi), _MAX_LEAN / pi))


def _label_shares(evidence: Sequence[Evidence], n_labels: int, label_bit: Bit | None, blocks: Blocks | None) -> Floats:
    """Shares of the label classes: the inverse-variance mean over all answers that carry the label, and equal shares in case of none."""
    tables = [one.table.estimate(n_labels) for one in evidence if one.table is not None and one.table.n]
    if blocks is not None:
        tables += [merged_table(blocks, int(j))[1:] for j in np.flatnonzero(blocks.n_singles)]
    means = [np.full(n_labels, 1 / n_labels), *(shares.sum(0) for shares, _ in tables)]
    variances = [np.full(n_labels, _EQUAL_VARIANCE), *(variance.sum(0) for _, variance in tables)]
    if label_bit is not None and label_bit.n:
        means.append(np.array([1 - label_bit.mean, 1 + label_bit.mean]) / 2)
        variances.append(np.full(2, label_bit.variance / 4))
    weights = 1 / np.array(variances)
    pooled = (np.array(means) * weights).sum(0) / weights.sum(0)
    least = _MIN_LABELS / n_labels
    return least + norm_sub(pooled - least, 1 - _MIN_LABELS)


def _fit(evidence: Sequence[Evidence], pi: Floats, label: int, blocks: Blocks | None) -> tuple[list[Floats], list[Floats]]:
    """Shares of each feature's bins, and how one label leans in them against the rest."""
    if blocks is not None:
        observed = [observe_tables(one, pi, blocks, j) for j, one in enumerate(evidence)]
        return [one.shares for one in observed], leanings(observed)
    observed = [observe(one, pi, label) for one in evidence]
    homes = [home_of(one) for one in evidence]
    shares = [(one.shares / np.bincount(home))[home] for one, home in zip(observed, homes, strict=True)]
    return shares, [delta[home] for delta, home in zip(leanings(observed), homes, strict=True)]
