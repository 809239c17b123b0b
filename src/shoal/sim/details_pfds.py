"""What a run of PFDS shows: the pooled tables, the released rows beside the real ones, and what can be learned from either."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from shoal.domain import Categorical
from shoal.models.weights import names_of_cells
from shoal.protocols.pfds.fitting import ridge_model
from shoal.protocols.pfds.local import attributes_of, count, price
from shoal.protocols.pfds.model import KeptModel, Model
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.spending import TABLES, plan_of
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.sdq.words import cell_names
from shoal.releases.learning import MOST_WEIGHTS
from shoal.sim.details import MOST_CELLS, Details, classes_of, histogram_of_counts, rounded, weights

ALL = "all rows"
"""What stands for the classes where the label is a number."""

MOST_ROWS = 5_000
"""So many rows are learned from: enough to tell how far the released ones are from the real ones, and quickly done."""

Counts = Iterator[tuple[int, Floats, Floats, float]]
"""Attributes, their noisy and their true counts ``(cells, sides)`` in rows, and the standard deviation of the noise on each."""


def questions(params: Params) -> tuple[str, ...]:
    """What is asked of every holder."""
    if params.variant == "paper":
        return ("trees and rows",)
    return (TABLES,) if params.trust == "local" else plan_of(params).questions


def model_weights(model: Model) -> list[Details]:
    """The weights of all cells: log-odds of the second of two classes, or of each of several; of a number, parts of its range."""
    return weights(names_of_cells(model.schema.features), classes_of(model.schema.label), model.weights)


def histograms(params: Params, digest: bytes, answers: Sequence[Ints], sharers: Sequence[int], rows: Rows) -> list[Details]:
    """The pooled table of each feature and the label, beside that of the rows behind it; variant paper has none.

    Parameters
    ----------
    digest
        With trust local it says who has answered which tables.
    answers, sharers
        What holders have shared, or what was summed, and who they are.
    rows
        The rows that they used, with whose they are.

    Notes
    -----
    With trust local a feature's table is pooled from some holders only, and the truth beside it is theirs: how much they differ from the
    others is not known to anyone who reads the tables, and no part of the error.
    """
    if params.variant == "paper":
        return []
    tables = _own_tables(params, digest, answers, sharers, rows) if params.trust == "local" else _sums(params, answers, sharers, rows)
    label, found = params.label, []
    for attribute, noisy, true, deviation in tables:
        feature = params.coded.features[attribute]
        if isinstance(label, Categorical):
            told = histogram_of_counts(feature, label.values, noisy, deviation, true)
        else:
            of_cells = (one.sum(axis=1, keepdims=True) for one in (noisy, true))
            told = histogram_of_counts(feature, (ALL,), next(of_cells), math.sqrt(params.n_sides) * deviation, next(of_cells))
        found += [] if told is None else [told]
    return found


def _sums(params: Params, answers: Sequence[Ints], sharers: Sequence[int], rows: Rows) -> Counts:
    mechanism = SumScript(params).mechanism(TABLES)
    deviation = 0.0 if mechanism is None else math.sqrt(mechanism.variance(len(sharers))) / GRID
    true = count(params, rows, range(len(params.arities)))
    noisy, exact = (np.split(one.reshape(-1, params.n_sides) / GRID, params.starts[1:-1]) for one in (answers[0], true))
    for attribute, pair in enumerate(zip(noisy, exact, strict=True)):
        yield attribute, *pair, deviation


def _own_tables(params: Params, digest: bytes, answers: Sequence[Ints], sharers: Sequence[int], rows: Rows) -> Counts:
    assert rows.whose is not None
    deviation = 0.0 if params.is_bare else math.sqrt(2) * float(price(params).parameters["scale"]) / GRID
    parts: dict[int, dict[int, Ints]] = {attribute: {} for attribute in range(len(params.arities))}
    for holder, answer in zip(sharers, answers, strict=True):
        attributes = attributes_of(params, digest, holder)
        ends = np.cumsum([params.arities[attribute] for attribute in attributes])[:-1]
        for attribute, part in zip(attributes, np.split(answer.reshape(-1, params.n_sides), ends), strict=True):
            parts[attribute][holder] = part
    for attribute, by_holder in parts.items():
        if by_holder:
            mine = rows.take(np.isin(rows.whose, list(by_holder)))
            true = count(params, mine, [attribute]).reshape(-1, params.n_sides) / GRID
            yield attribute, np.sum(list(by_holder.values()), axis=0) / GRID, true, deviation * math.sqrt(len(by_holder))


def marginals(params: Params, released: Rows, real: Rows) -> list[Details]:
    """The shares of each feature's cells among the released rows, and among the rows of those who share; nothing without rows."""
    if not len(released) or not len(real):
        return []
    one, other = (np.bincount(rows.cells.ravel(), minlength=params.n_cells) / len(rows) for rows in (released, real))
    return [
        {
            "feature": feature.name,
            "cells": list(cell_names(feature)),
            "released": rounded(one[start:end]),
            "true": rounded(other[start:end]),
        }
        for feature, start, end in zip(params.coded.features, params.starts[:-1], params.starts[1:], strict=True)
        if end - start <= MOST_CELLS
    ]


def regression(params: Params, rows: Rows) -> KeptModel | None:
    """What a regression learns from these rows; None without rows, and where there are too many weights to do it by the way."""
    if not len(rows) or params.n_cells * params.n_models > MOST_WEIGHTS:
        return None
    # Tables are often sorted: of many rows, those are taken that lie evenly among them.
    evenly = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(np.int64)
    return ridge_model(params, rows.take(evenly))
