"""What a run shows besides its scores, as plain data: who took part, how sure its predictions are, its tables and its weights.

A simulation knows the truth, which stands beside each estimate. Where no honest standard error is known there is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature
from shoal.protocols.sdq.words import cell_names
from shoal.sim.scores import Encoded, Floats, Ints

Details = dict[str, Any]
Counts = Floats | Ints

MOST_CELLS = 200
"""Features with more cells have no histogram: nobody could look at it."""
MOST_WEIGHTS = 40
N_BINS = 10
"""Bins of predicted chances."""
PREDICTED = "the predicted class"
_DIGITS = 6
_CLEAR = 5.0
"""Standard deviations of its noise, by which a number of rows must exceed 0 to be divided by."""


def participation(asked: int, answered: int, phases: Iterable[tuple[str, int]]) -> Details:
    """Who was asked, who answered, and how many answers each kind of phase had; phases of one name that follow each other are one.

    Examples
    --------
    >>> participation(10, 8, [("placing", 1), ("placing", 2), ("answers", 5)])["phases"]
    [{'name': 'placing', 'n': 3}, {'name': 'answers', 'n': 5}]
    """
    merged = [{"name": name, "n": sum(n for _, n in group)} for name, group in groupby(phases, key=lambda phase: phase[0])]
    # Every simulated participant keeps to the protocol, so that nothing of theirs is refused.
    return {"asked": asked, "answered": answered, "dropped": asked - answered, "phases": merged, "refused": {}}


def calibration(classes: Sequence[str], chances: Floats, labels: Ints) -> Details:
    """How often what was given a chance came true: of two classes the second, of several the most likely one.

    Parameters
    ----------
    classes
        Of the label.
    chances
        ``(n, L)`` predicted for the rows set aside.
    labels
        ``(n,)`` what they are. Bins without rows are left out.
    """
    if len(classes) == 2:
        of, predicted, came = classes[1], chances[:, 1], labels == 1
    else:
        of, predicted, came = PREDICTED, chances.max(axis=1), chances.argmax(axis=1) == labels
    bins = np.clip((predicted * N_BINS).astype(np.int64), 0, N_BINS - 1)
    sizes, sums, hits = (np.bincount(bins, weights, N_BINS) for weights in (None, predicted, came))
    filled = [
        {"low": i / N_BINS, "high": (i + 1) / N_BINS, "predicted": rounded(sums[i] / n), "observed": rounded(hits[i] / n), "n": n}
        for i, n in enumerate(sizes.tolist())
        if n
    ]
    return {"of": of, "bins": filled}


def calibration_of(model: Any, unseen: Encoded, labels: Ints) -> Details:
    """The same of a model, on the rows set aside; nothing where it predicts a number."""
    if not isinstance(model.schema.label, Categorical):
        return {}
    return calibration(model.classes, model.probabilities(unseen), labels)


def histogram(
    feature: Feature, classes: Sequence[str], estimated: Floats, error: Floats | None, true: Floats, cells: Sequence[str] | None = None
) -> Details:
    """A feature's joint table with the label, as shares of all rows.

    Parameters
    ----------
    feature, classes
        What it is a table of.
    estimated, error, true
        ``(cells, L)`` each: what the aggregator believes, the standard error of it, or None where none is known, and what is so.
    cells
        Names of the cells, where they are not those of the feature.
    """
    return {
        "feature": feature.name,
        "cells": list(cell_names(feature) if cells is None else cells),
        "classes": list(classes),
        "estimated": rounded(estimated),
        "error": None if error is None else rounded(error),
        "true": rounded(true),
    }


def histogram_of_counts(feature: Feature, classes: Sequence[str], noisy_counts: Counts, deviation: float, true: Counts) -> Details | None:
    """The table of noisy counts, with independent noise on each; None where noise hides even how many rows there are.

    Parameters
    ----------
    noisy_counts, true
        ``(cells, L)`` rows.
    deviation
        Standard deviation of the noise on a count.

    Notes
    -----
    A share is a count c over the sum T of all K counts. To first order, c / T is off by (e - f sum of all e) / T, and its variance is
    s^2 (1 - 2 f + K f^2) / T^2. From five standard deviations of T on, what is left out changes the error by a few parts in a hundred.
    """
    total, size = float(noisy_counts.sum()), noisy_counts.size
    if size > MOST_CELLS * len(classes) or total <= _CLEAR * deviation * math.sqrt(size) or not true.any():
        return None
    f = noisy_counts / total
    error = deviation / total * np.sqrt(1 - 2 * f + size * f**2)
    return histogram(feature, classes, f, error, true / true.sum())


def weights(names: Sequence[str], classes: Sequence[str], values: Floats) -> list[Details]:
    """The largest weights ``(n_names, n_classes)``, those of the largest size first.

    Notes
    -----
    They have no errors: what noise does to a weight that was shrunk, tempered or averaged over time is not known well enough to be drawn.
    """
    order = np.argsort(-np.abs(values), axis=None, kind="stable")[:MOST_WEIGHTS]
    places = zip(*(axis.tolist() for axis in np.unravel_index(order, values.shape)), strict=True)
    return [{"name": names[i], "class": classes[j], "value": rounded(values[i, j]), "error": None} for i, j in places]


def classes_of(label: Feature | None) -> tuple[str, ...]:
    """What the scores of a model speak for: the classes, of two the second alone; of a number the label itself."""
    assert label is not None
    if not isinstance(label, Categorical):
        return (label.name,)
    return tuple(label.values)[-1:] if len(label.values) == 2 else tuple(label.values)


def rounded(values: npt.ArrayLike) -> Any:
    """Numbers as plain data with as many digits as anyone reads."""

    def cut(value: Any) -> Any:
        return [cut(one) for one in value] if isinstance(value, list) else float(f"{value:.{_DIGITS}g}")

    return cut(np.asarray(values, np.float64).tolist())
