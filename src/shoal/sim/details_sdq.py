"""What a run of SDQ shows: the tables that its noisy sums give, beside those of the rows that were counted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from shoal.mechanisms.shares import SharedLaplace
from shoal.protocols.sdq.bayes import TABLES
from shoal.protocols.sdq.noise import mechanism_of
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.plus import PlusScript
from shoal.protocols.sdq.population import Trained
from shoal.protocols.sdq.script import Course, Part, Script
from shoal.sim.details import Details, histogram_of_counts

Counts = Iterator[tuple[int, Ints, Ints, float]]
"""Attributes, their noisy and their true counts ``(cells, L)``, and the standard deviation of the noise on each."""


def histograms(script: Script, trained: Trained, table: Table, n_answering: int) -> list[Details]:
    """The table of each attribute and the label that the miner has seen: of all of them, or of the one at the root of a tree.

    Parameters
    ----------
    script, trained
        The course of the study, and what came of it.
    table
        The rows that were counted.
    n_answering
        Databases whose shares of noise are in the sums.

    Notes
    -----
    Ref: SDQ §IV. The noise of all shares together is what an error is made of; rows are counted, not drawn, and add nothing to it.
    """
    params, found = script.params, []
    for attribute, noisy_counts, true, deviation in _tables(script, trained, table, n_answering):
        told = histogram_of_counts(params.schema.features[attribute], params.label.values, noisy_counts, deviation, true)
        found += [] if told is None else [told]
    return found


def questions(script: Script, n_rounds: int) -> list[str]:
    """What was asked in so many rounds."""
    if isinstance(script, PaperScript):
        return [f"{('sizes', 'answers')[i % 2]}/{i // 2}" for i in range(n_rounds)]
    if isinstance(script, PlusScript):
        return [*(f"choice/{i}" for i in range(n_rounds - 1)), "table"]
    return [TABLES, "table"][:n_rounds]


def _tables(script: Script, trained: Trained, table: Table, n_answering: int) -> Counts:
    params = script.params
    if isinstance(script, PlusScript):
        yield from _root(script, trained, table, n_answering)
        return
    is_paper = isinstance(script, PaperScript)
    if is_paper and trained.course.choices[0] < 0:
        return
    # The root of the paper's tree is asked how many rows it has, and then for the tables of all attributes, if it is split.
    at = Course(step=1, leaves=(False,)) if is_paper else Course()
    part, deviation = _asked(script, at, n_answering)
    for_cells = 1 if is_paper else 0
    noisy, true = (
        counts.reshape(-1, for_cells + params.n_classes)[:, for_cells:] for counts in (trained.answers[at.step], part.count(table))
    )
    ends = np.cumsum(params.arities)[:-1]
    for attribute, pair in enumerate(zip(np.split(noisy, ends), np.split(true, ends), strict=True)):
        yield attribute, *pair, deviation


def _root(script: PlusScript, trained: Trained, table: Table, n_answering: int) -> Counts:
    """The first attribute of the joint table: each of its cells is a sum over those of all others."""
    root = int(trained.model.splits[0])
    if root < 0:
        return
    part, deviation = _asked(script, trained.course.replace(step=trained.course.step - 1), n_answering)
    arity, n_classes = script.params.arities[root], script.params.n_classes
    noisy, true = (counts.reshape(arity, -1, n_classes) for counts in (trained.answers[-1], part.count(table)))
    yield root, noisy.sum(axis=1), true.sum(axis=1), deviation * math.sqrt(noisy.shape[1])


def _asked(script: Script, course: Course, n_answering: int) -> tuple[Part, float]:
    """The one part of a round, and the standard deviation of the noise on each of its sums."""
    asked = script.round(course)
    assert asked is not None
    [part] = asked.parts
    return part, _deviation(script.params, part, n_answering)


def _deviation(params: Params, part: Part, n_answering: int) -> float:
    mechanism = mechanism_of(params, part)
    if mechanism is None:
        return 0.0
    assert isinstance(mechanism, SharedLaplace)
    return math.sqrt(mechanism.variance(1 if params.noise == "two-selected" else n_answering))
