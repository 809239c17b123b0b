"""What a run of AnonML shows: the tables that randomised answers give, with their errors, beside those of everyone who took part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from shoal.domain import Numeric
from shoal.mechanisms.response import RandomResponse
from shoal.models.weights import names_of_cells
from shoal.protocols.anonml.evidence import Bit, within
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.model import AdditiveModel, Model
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import cells_of
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.questions import Agree, Cell, LabelIs, Question, Rows, Side, Tally
from shoal.protocols.anonml.script import Tallies
from shoal.protocols.sdq.words import cell_names
from shoal.sim.details import MOST_CELLS, Details, classes_of, histogram, weights
from shoal.sim.scores import Floats


@dataclass(frozen=True, eq=False)
class Estimate:
    """Shares of the cells of one table, from some of those who took part.

    Parameters
    ----------
    shares
        ``(B, L)``, unbiased.
    inside, outside
        n times the variance that the mechanism adds to the share of a cell, where everyone is in it, and where nobody is.
    n
        Answers.
    """

    shares: Floats
    inside: float
    outside: float
    n: int


def model_weights(model: Model) -> list[Details]:
    """The scores of all cells of an additive model: log-odds of the second of two classes, or of each of several against the rest."""
    if not isinstance(model, AdditiveModel):
        return []
    scores = [score[1:] - score[:1] if len(score) == 2 else score for score in model.scores]
    return weights(names_of_cells(model.schema.features), classes_of(model.schema.label), np.concatenate(scores, axis=1).T)


def histograms(script: PlusScript | PaperScript, tallies: Tallies, rows: Rows, model: Model) -> list[Details]:
    """The table of each feature and the label, as the counts of everyone's answers have it.

    Parameters
    ----------
    script, tallies
        The course of the study, and what was counted.
    rows
        Those who took part.
    model
        What was learned. Of a feature that was asked about by bits it tells the shares of the classes, where nobody was asked for them.

    Notes
    -----
    Ref: AnonML §VII-D and the appendix, proof of Theorem 2. An error is about those who took part, of whom some at random were asked: the
    noise of the mechanism, and what is left of sampling without replacement. Variant ``paper`` asks for tables of several features, and
    a feature in several partitions: they are summed to those of each feature, and pooled.
    """
    # The model has the cut points that were published; to find them again would take longer than all the rest.
    numbers = [model.schema[number.name] for number in script.params.unbinned]
    publication = Publication(cuts=tuple(tuple(number.bins or ()) for number in numbers if isinstance(number, Numeric)))
    asked = tuple(zip(script.questions(script.n_steps, publication), tallies[script.n_steps], strict=True))
    bits = {(type(one), _name_of(one)): _bit(one, tally) for one, tally in asked if isinstance(one, Side | LabelIs) and tally.n}
    n_people, found = len(rows.label), []
    for feature in model.schema.features:
        if cells_of(feature) > MOST_CELLS:
            continue
        whole = Cell("", None, (feature,), script.params.n_labels)
        true = (np.bincount(whole.cells(rows), minlength=whole.n_cells) / n_people).reshape(-1, script.params.n_labels)
        tables = [_marginal(one, tally, feature.name) for one, tally in asked if _is_table_of(one, feature.name) and tally.n]
        side, agree = (bits.get((kind, feature.name)) for kind in (Side, Agree))
        if tables:
            found.append(histogram(feature, model.classes, *_pooled(tables, n_people), true))
        elif side is not None and agree is not None:
            estimated, error = _of_bits(side, agree, bits.get((LabelIs, "")), model, n_people)
            first, second, *others = cell_names(feature)
            sides = np.stack([true.sum(axis=0) - true[1], true[1]])
            found.append(histogram(feature, model.classes, estimated, error, sides, [" or ".join([first, *others]), second]))
    return found


def _is_table_of(question: Question, name: str) -> TypeGuard[Cell]:
    return isinstance(question, Cell) and any(feature.name == name for feature in question.features)


def _bit(question: Question, tally: Tally) -> Bit:
    assert isinstance(question.mechanism, RandomResponse)
    return Bit(int(tally.counts[1]), tally.n, question.mechanism)


def _name_of(question: Question) -> str:
    return question.feature.name if isinstance(question, Side) else ""


def _marginal(question: Cell, tally: Tally, name: str) -> Estimate:
    """One feature's table out of that of several.

    Notes
    -----
    A share is a sum over as many cells as the other features have. A report of random response supports one cell, so that of a set of s
    cells one is supported with chance p + (s - 1) q or s q. Other reports of several features have a coin of its own for each cell.
    """
    axis = [feature.name for feature in question.features].index(name)
    counts = tally.counts.reshape(*(cells_of(feature) for feature in question.features), question.n_labels)
    summed = counts.sum(axis=tuple(i for i in range(len(question.features)) if i != axis))
    if question.mechanism is None:
        return Estimate(summed / tally.n, 0.0, 0.0, tally.n)
    s, p, q = counts.size // summed.size, float(question.mechanism.p), float(question.mechanism.q)
    if isinstance(question.mechanism, RandomResponse):
        inside, outside = (p + (s - 1) * q) * (1 - p - (s - 1) * q), s * q * (1 - s * q)
    else:
        inside, outside = p * (1 - p) + (s - 1) * q * (1 - q), s * q * (1 - q)
    return Estimate((summed / tally.n - s * q) / (p - q), inside / (p - q) ** 2, outside / (p - q) ** 2, tally.n)


def _pooled(tables: Sequence[Estimate], n_people: int) -> tuple[Floats, Floats]:
    """The mean over all answers to some tables, which different people have given, and its standard error."""
    n = sum(table.n for table in tables)
    shares = np.sum([table.n * table.shares for table in tables], axis=0) / n
    f = within(shares, n)
    noise = np.sum([table.n * (f * table.inside + (1 - f) * table.outside) for table in tables], axis=0) / n**2
    return shares, np.sqrt(noise + f * (1 - f) * _sampling(n, n_people))


def _sampling(n: int, n_people: int) -> float:
    """Variance of the mean of n values of variance 1, of different people who are drawn from all."""
    return (n_people - n) / (n * max(1, n_people - 1))


def _of_bits(side: Bit, agree: Bit, label: Bit | None, model: Model, n_people: int) -> tuple[Floats, Floats | None]:
    """The table of two sides and two classes, with its error where people were asked for their class.

    Notes
    -----
    With signs h of the side and y of the class, P(h, y) = (1 + h E h + y E y + h y E hy) / 4: each bit is about one of these means, and
    different people have answered it.
    """
    signs = np.array([-1.0, 1.0])
    h, y = signs[:, np.newaxis], signs[np.newaxis]
    assert isinstance(model, AdditiveModel)
    of_label = 2 * float(model.label_shares[1]) - 1 if label is None else label.mean
    shares = (1 + h * side.mean + y * of_label + h * y * agree.mean) / 4
    if label is None:
        return shares, None
    variance = sum(_variance(bit, n_people) for bit in (side, agree, label)) / 16
    return shares, np.full(shares.shape, math.sqrt(variance))


def _variance(bit: Bit, n_people: int) -> float:
    """Of the mean of signs, about those who took part."""
    t, mean = float(bit.mechanism.p - bit.mechanism.q), min(1.0, max(-1.0, bit.mean))
    return (1 - t**2) / (t**2 * bit.n) + (1 - mean**2) * _sampling(bit.n, n_people)
