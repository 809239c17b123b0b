"""The quality report of a release: computed from its own rows and from what was charged for, never from a real row.

So the report costs nothing, and a reader can compute it again: only the charged count of rows, and what a regression learned, are taken
from the one who signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.domain import Categorical
from shoal.names import shown
from shoal.protocols.pfds.model import Model
from shoal.releases.content import Release
from shoal.releases.findings import Finding, by_chance, by_noise, shares_of, total_variation
from shoal.releases.learning import every_fourth, try_out
from shoal.study.price_holders import forecast_pfds

ROWS = "the released rows"
TABLES = "the released rows and the charged tables that the model holds"
LEARNED = "error of a regression on every fourth of the released rows, learned from the others"


def findings(release: Release) -> tuple[Finding, ...]:
    """All that can be computed again by whoever reads the release."""
    if not len(release.dataset):
        return (_size(release),)
    marginals = [] if release.model is None else _marginals(release, release.model)
    return (_size(release), *marginals, *_labels(release))


def report(release: Release) -> tuple[Finding, ...]:
    """The quality report: the findings, and what a regression learns from the rows, where it can be fitted by the way."""
    trial = try_out(release.params, *every_fourth(release.dataset))
    if trial is None:
        return findings(release)
    trivial = "always the mean" if release.params.is_number else "always the most common class"
    return (*findings(release), Finding(what=LEARNED, value=trial.error, beside={trivial: trial.trivial}, source=ROWS))


def agree(release: Release, stated: Sequence[Finding]) -> bool:
    """Whether a report is the one that follows from the release; what a regression learned is not computed again."""
    expected = findings(release)
    rest = stated[len(expected) :]
    is_whole = len(stated) >= len(expected) and [one.what for one in rest] in ([], [LEARNED])
    return is_whole and all(mine.agrees(theirs) for mine, theirs in zip(expected, stated, strict=False))


def _size(release: Release) -> Finding:
    params, counted = release.params, release.counted
    one = params.variant == "paper"
    beside = {"an equal share of the declared rows" if one else "declared": params.size / (params.n_holders if one else 1)}
    if counted is None:
        return Finding(what="rows", value=float(len(release.dataset)), beside=beside, source=f"{ROWS} and the study")
    beside |= {"counted with noise": counted.rows, "standard deviation of that noise": counted.deviation}
    return Finding(what="rows", value=float(len(release.dataset)), beside=beside, source=f"{ROWS}, the study and a charged count")


def _marginals(release: Release, model: Model) -> list[Finding]:
    """How far the rows of each feature are from the charged table that they were drawn by."""
    params, n = release.params, len(release.dataset)
    [forecast] = forecast_pfds(params)
    # A cell's share is the sum of its sides, each with noise of its own.
    deviation = forecast.value * math.sqrt(params.n_sides)
    found = []
    for feature, start, end in zip(params.coded.features, params.starts[:-1], params.starts[1:], strict=True):
        shares = model.shares[start:end]
        distance = total_variation(shares_of(feature, release.dataset.columns[feature.name]), shares)
        beside = {
            "by drawing so many rows": by_chance(shares, n),
            "by the noise in the table, at most about": by_noise(len(shares), deviation),
        }
        found.append(Finding(what=f"total variation of {shown(feature.name)} from its table", value=distance, beside=beside, source=TABLES))
    return found


def _labels(release: Release) -> list[Finding]:
    label, dataset, model = release.params.label, release.dataset, release.model
    name = shown(label.name)
    if not isinstance(label, Categorical):
        beside = {"lowest": float(label.low), "highest": float(label.high)}
        return [Finding(what=f"mean of {name}", value=float(np.mean(dataset.labels)), beside=beside, source=ROWS)]
    shares = shares_of(label, dataset.labels)
    chances = None if model is None else model.probabilities(dataset.columns).mean(axis=0)
    return [
        Finding(
            what=f"share of {name} = {shown(value)}",
            value=float(share),
            beside={} if chances is None else {"by the model, on the same rows": float(chances[i])},
            source=ROWS if chances is None else f"{ROWS} and the model",
        )
        for i, (value, share) in enumerate(zip(label.values, shares, strict=True))
    ]
