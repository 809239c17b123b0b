"""Diagnostics of a run: participation, calibration, histograms, weights, exposure.

The runs of each protocol return them as plain data, and ``shoal report`` draws them. A simulation
knows the truth, which is given with each estimate. A standard error that is not known is None,
never a guess.

Exposure is the remaining guarantee of secure sums with more colluders than the study allows. Shares
of noise are calibrated for n_honest members, minimum - max_colluders. Colluders know their own
shares, so fewer remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, cell_names
from shoal.mechanisms.distributed_gaussian import DistributedGaussian, compute_shares_rho
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.privacy.accountant import rho_to_epsilon
from shoal.protocols.pfds.params import GRID, PFDSParams
from shoal.protocols.pfds.refinement import compute_clip
from shoal.protocols.pfds.script import RESIDUALS, SecureSumScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.script import SDQScript
from shoal.simulation.metrics import EncodedColumns, Floats, Ints

Details = dict[str, Any]
Counts = Floats | Ints

MAX_CELLS = 200
"""Features with more cells have no histogram: it could not be read."""
MAX_WEIGHTS = 40
N_BINS = 10
"""Bins of predicted probabilities."""
PREDICTED = "the predicted class"
_DIGITS = 6
_MIN_TOTAL_DEVIATIONS = 5.0
"""A noisy number of rows is a divisor only above this number of standard deviations."""


def describe_participation(asked: int, answered: int, phases: Iterable[tuple[str, int]]) -> Details:
    """Return the participants and the answers of each phase.

    Consecutive phases with the same name are merged.

    Examples
    --------
    >>> describe_participation(10, 8, [("placing", 1), ("placing", 2), ("answers", 5)])["phases"]
    [{'name': 'placing', 'n': 3}, {'name': 'answers', 'n': 5}]
    """
    merged = [
        {"name": name, "n": sum(n for _, n in group)}
        for name, group in groupby(phases, key=lambda phase: phase[0])
    ]
    # Simulated participants follow the protocol, so no message is refused.
    return {
        "asked": asked,
        "answered": answered,
        "dropped": asked - answered,
        "phases": merged,
        "refused": {},
    }


def compute_calibration(classes: Sequence[str], chances: Floats, labels: Ints) -> Details:
    """Return predicted probabilities and observed frequencies, in bins.

    They are those of the second of two classes, or of the most likely of several. Bins without rows
    are left out.

    Parameters
    ----------
    chances
        ``(n, L)`` predicted probabilities for the test rows.
    labels
        ``(n,)`` true classes.
    """
    if len(classes) == 2:
        of, predicted, is_hit = classes[1], chances[:, 1], labels == 1
    else:
        of, predicted, is_hit = PREDICTED, chances.max(axis=1), chances.argmax(axis=1) == labels
    bins = np.clip((predicted * N_BINS).astype(np.int64), 0, N_BINS - 1)
    sizes, sums, hits = (
        np.bincount(bins, weights, N_BINS) for weights in (None, predicted, is_hit)
    )
    filled = [
        {
            "low": i / N_BINS,
            "high": (i + 1) / N_BINS,
            "predicted": round_values(sums[i] / n),
            "observed": round_values(hits[i] / n),
            "n": n,
        }
        for i, n in enumerate(sizes.tolist())
        if n
    ]
    return {"of": of, "bins": filled}


def compute_model_calibration(model: Any, test_columns: EncodedColumns, labels: Ints) -> Details:
    """Return the calibration of a model on the test rows; empty if it predicts a number."""
    if not isinstance(model.schema.label, Categorical):
        return {}
    return compute_calibration(model.classes, model.probabilities(test_columns), labels)


def make_histogram(
    feature: Feature,
    classes: Sequence[str],
    estimated: Floats,
    error: Floats | None,
    true: Floats,
    cells: Sequence[str] | None = None,
) -> Details:
    """Return a feature's joint table with the label, as shares of all rows.

    Parameters
    ----------
    estimated, error, true
        ``(cells, L)`` each: the aggregator's estimate, its standard error or None, and the truth.
    cells
        Names of the cells if they are not those of the feature.
    """
    return {
        "feature": feature.name,
        "cells": list(cell_names(feature) if cells is None else cells),
        "classes": list(classes),
        "estimated": round_values(estimated),
        "error": None if error is None else round_values(error),
        "true": round_values(true),
    }


def make_count_histogram(
    feature: Feature, classes: Sequence[str], noisy_counts: Counts, deviation: float, true: Counts
) -> Details | None:
    """Return the table of counts with independent noise; None if noise hides the total.

    Parameters
    ----------
    noisy_counts, true
        ``(cells, L)`` rows.
    deviation
        Standard deviation of the noise on a count.

    Notes
    -----
    A share is a count c over the sum T of all K counts. To first order, the error of c / T is
    (e - f sum of all e) / T, and its variance is s^2 (1 - 2 f + K f^2) / T^2. From five standard
    deviations of T on, higher orders change the standard error by a few percent.
    """
    total, size = float(noisy_counts.sum()), noisy_counts.size
    if (
        size > MAX_CELLS * len(classes)
        or total <= _MIN_TOTAL_DEVIATIONS * deviation * math.sqrt(size)
        or not true.any()
    ):
        return None
    f = noisy_counts / total
    error = deviation / total * np.sqrt(1 - 2 * f + size * f**2)
    return make_histogram(feature, classes, f, error, true / true.sum())


def list_weights(names: Sequence[str], classes: Sequence[str], values: Floats) -> list[Details]:
    """Return the largest weights of ``(n_names, n_classes)``, the largest absolute value first.

    They have no standard errors: the effect of noise on a weight that was shrunk, tempered or
    averaged over time is not known well enough.
    """
    order = np.argsort(-np.abs(values), axis=None, kind="stable")[:MAX_WEIGHTS]
    places = zip(*(axis.tolist() for axis in np.unravel_index(order, values.shape)), strict=True)
    return [
        {"name": names[i], "class": classes[j], "value": round_values(values[i, j]), "error": None}
        for i, j in places
    ]


def list_scored_classes(label: Feature | None) -> tuple[str, ...]:
    """Return the classes that have scores: the second of two, each of several, or the label."""
    assert label is not None
    if not isinstance(label, Categorical):
        return (label.name,)
    return tuple(label.values)[-1:] if len(label.values) == 2 else tuple(label.values)


def round_values(values: npt.ArrayLike) -> Any:
    """Return numbers as plain data, rounded to six significant digits."""

    def cut(value: Any) -> Any:
        return (
            [cut(item) for item in value]
            if isinstance(value, list)
            else float(f"{value:.{_DIGITS}g}")
        )

    return cut(np.asarray(values, np.float64).tolist())


MAX_POINTS = 16
"""Approximate limit on the numbers of colluders in the result."""
_TAIL = 12.0
"""Length of the computed tail of a distribution, in units of 1 / rate.

The rest changes a sum of products by a relative error of about exp(-24).
"""


def compute_remaining_epsilon(rate: float, shares: float, distance: int) -> float:
    """Return the smallest epsilon of one sum under the remaining shares of Laplace noise.

    Parameters
    ----------
    rate
        Rate of the promised noise, for each unit of the sum.
    shares
        r: shares that are still secret, over the number for which noise was calibrated; at most 1.
    distance
        d: change of the sum by one unit of privacy, in units of the sum.

    Notes
    -----
    The noise is X - Y, two Polya variables. For r <= 1 their probabilities p(n) are mixtures of
    geometric ones, and so log-convex; so is every p(y + n) in n >= 0, and so is their sum
    P(n) = sum p(y) p(y + n). Therefore P(x) / P(x + d) is largest at x = 0, and its logarithm f(d)
    is concave in d, with f(0) = 0. For r = 1 it is rate d.

    Examples
    --------
    >>> [round(compute_remaining_epsilon(1.0, shares, 1), 3) for shares in (1.0, 0.5)]
    [1.0, 1.675]
    """
    k = np.arange(math.ceil(_TAIL / rate) + distance)
    steps = np.log((k + shares) / (k + 1)) - rate
    side: npt.NDArray[np.float64] = np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    return math.log(side @ side) - math.log(side[:-distance] @ side[distance:])


def compute_sdq_exposure(script: SDQScript) -> list[Details]:
    """Return epsilon against the miner and each number of colluding databases.

    Without secure sums, or without noise, the list is empty.

    Notes
    -----
    If one of two selected databases colludes, no epsilon remains (errata S-02). A joint choice
    needs an honest majority of its committee: with too many colluders the scores of each database
    may be known, and their noise is one-sided. A unit changes a number of counts of a question by
    1; this number is its L1 sensitivity.

    Privacy
    -------
    Unit and relation are those of the study.
    """
    params = script.params
    if params.trust == "local" or params.is_noiseless:
        return []

    def left(n_shares: int) -> float | None:
        if any(question.startswith("choice/") for question, _ in script.costliest_questions):
            return None
        total = 0.0
        for question, times in script.costliest_questions:
            noise = script.prices[question].parameters
            rate, shares = 1 / float(noise["scale"]), n_shares / params.n_honest
            epsilon = compute_remaining_epsilon(rate, shares, 1)
            total += times * float(noise["sensitivity"]) * epsilon
        return total

    if params.noise == "two-selected":
        return _make_exposure(params, params.n_databases, 0, lambda _: None)
    return _make_exposure(params, params.n_databases, params.max_colluders, left)


def compute_pfds_exposure(params: PFDSParams) -> list[Details]:
    """Return epsilon against the readers of the sums and each number of colluding holders.

    Without secure sums, or without noise, the list is empty.

    Notes
    -----
    A row changes one cell of each table by a whole row, or two cells by half a row if the label is
    a number; by concavity this is the worst case. It changes each residual by its clip.
    """
    if params.trust == "local" or params.is_noiseless:
        return []
    script = SecureSumScript(params)

    def left(n_shares: int) -> float:
        total = rho = 0.0
        for question in script.questions:
            mechanism = script.find_mechanism(question)
            if isinstance(mechanism, DistributedGaussian):
                rho += compute_shares_rho(
                    mechanism.sigma_squared, n_shares, mechanism.l2_squared, mechanism.dimension
                )
                continue
            assert isinstance(mechanism, DistributedLaplace)
            move = (
                compute_clip(params)
                if question.startswith(RESIDUALS)
                else GRID // 2
                if params.is_number
                else GRID
            )
            n_moved = float(mechanism.sensitivity) / move
            total += n_moved * compute_remaining_epsilon(
                float(mechanism.rate), n_shares / params.n_honest, move
            )
        return rho_to_epsilon(rho, params.delta) if rho else total

    return _make_exposure(params, params.n_holders, params.max_colluders, left)


def _make_exposure(
    params: SDQParams | PFDSParams, n: int, claimed: int, left: Callable[[int], float | None]
) -> list[Details]:
    """Return epsilon by number of colluders.

    Up to the claimed number it is the study's; above, it follows from the remaining shares.
    """
    exposure, remaining = [], cache(left)
    for c in _list_colluder_counts(n, claimed):
        epsilon = (
            params.epsilon if c <= claimed else remaining(_count_remaining_shares(params, n, c))
        )
        exposure.append(
            {
                "colluders": c,
                "epsilon": None if epsilon is None else round_values(epsilon),
                "claimed": c <= claimed,
            }
        )
    return exposure


def _count_remaining_shares(params: SDQParams | PFDSParams, n: int, c: int) -> int:
    """Return the shares of noise that c colluders cannot remove.

    Notes
    -----
    They choose which members are among the fewest that answer. From 2 minimum - n colluders on, two
    lists of survivors need not have an honest signer in common. With one list of each kind they
    open the values of a single member, and only its own share of noise remains.
    """
    return params.minimum - c if c < 2 * params.minimum - n else 1


def _list_colluder_counts(n: int, claimed: int) -> list[int]:
    """Return numbers of colluders from 0 to n - 1, with the claimed number and the next."""
    counts = np.linspace(0, n - 1, min(n, MAX_POINTS)).round().astype(int).tolist()
    return sorted({*counts, claimed, min(claimed + 1, n - 1)})
