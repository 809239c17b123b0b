"""The quality report of a release: computed from its own rows and from what was charged for, never from a real row.

So the report costs nothing, and a reader can compute it again: only the charged count of rows and of the label's shares, and what a
regression learned, are taken from the one who signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.domain import Categorical
from shoal.names import shown
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Params
from shoal.releases.content import Counted, Release
from shoal.releases.findings import Finding, by_chance, by_noise, shares_of, total_variation
from shoal.releases.learning import Trial, every_fourth, try_out
from shoal.study.price_holders import forecast_pfds

ROWS = "the released rows"
TABLES = "the released rows and the charged tables that the model holds"
LEARNED = (
    "how well the released rows give back what labelled them, which says nothing of real rows: "
    "error of a regression on every fourth of them, learned from the others"
)
TAKEN = f"{ROWS}, by the signer's word"
COUNTED = "the signer's word for a charged count"
ASKED = "among the rows that were asked, by the charged count"


def findings(release: Release) -> tuple[Finding, ...]:
    """All that can be computed again by whoever reads the release."""
    if not len(release.dataset):
        return (_size(release),)
    marginals = [] if release.model is None else _marginals(release, release.model)
    return (_size(release), *marginals, *_labels(release))


def report(release: Release) -> tuple[Finding, ...]:
    """The quality report: the findings, and what a regression learns from the rows, where that says something and is quickly done."""
    trial = try_out(release.params, *every_fourth(release.dataset)) if _is_learned(release.params) else None
    if trial is None:
        return findings(release)
    return (*findings(release), _learned(release.params, trial))


def agree(release: Release, stated: Sequence[Finding]) -> bool:
    """Whether a report is the one that follows from the release; what a regression learned is not computed again, but worded."""
    expected = [*findings(release)]
    if len(stated) > len(expected) and _is_learned(release.params):
        error, beside = stated[-1].value, list(stated[-1].beside.values())
        if len(beside) != 1 or not all(0 <= figure <= 1 for figure in (error, *beside)):
            return False
        expected.append(_learned(release.params, Trial(error, beside[0])))
    return len(stated) == len(expected) and all(mine.agrees(theirs) for mine, theirs in zip(expected, stated, strict=True))


def _is_learned(params: Params) -> bool:
    """Whether a regression is tried: not where it would find the very numbers that the model has put down as labels."""
    return params.variant == "paper" or not params.is_number


def _learned(params: Params, trial: Trial) -> Finding:
    trivial = "always the mean" if params.is_number else "always the most common class"
    return Finding(what=LEARNED, value=trial.error, beside={trivial: trial.trivial}, source=TAKEN)


def _size(release: Release) -> Finding:
    params, counted = release.params, release.counted
    one = params.variant == "paper"
    beside = {"an equal share of the declared rows" if one else "declared": params.size / (params.n_holders if one else 1)}
    if counted is not None:
        beside |= {"counted with noise": counted.rows, "standard deviation of that noise": counted.deviation}
    return Finding(what="rows", value=float(len(release.dataset)), beside=beside, source=_source("the study", counted=counted))


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
    """The label's shares or mean, beside those of the rows that were asked: features are drawn independently, and the two differ."""
    label, dataset, model, counted = release.params.label, release.dataset, release.model, release.counted
    name = shown(label.name)
    if not isinstance(label, Categorical):
        low, high = float(label.low), float(label.high)
        beside = {"lowest": low, "highest": high} | ({} if counted is None else {ASKED: low + counted.shares[1] * (high - low)})
        return [Finding(what=f"mean of {name}", value=float(np.mean(dataset.labels)), beside=beside, source=_source(counted=counted))]
    chances = None if model is None else model.probabilities(dataset.columns).mean(axis=0)
    source = _source(*([] if model is None else ["the model"]), counted=counted)
    found = []
    for i, (value, share) in enumerate(zip(label.values, shares_of(label, dataset.labels), strict=True)):
        beside = {} if chances is None else {"by the model, on the same rows": float(chances[i])}
        beside |= {} if counted is None else {ASKED: counted.shares[i]}
        found.append(Finding(what=f"share of {name} = {shown(value)}", value=float(share), beside=beside, source=source))
    return found


def _source(*others: str, counted: Counted | None) -> str:
    *first, last = [ROWS, *others, *([] if counted is None else [COUNTED])]
    return f"{', '.join(first)} and {last}" if first else last
