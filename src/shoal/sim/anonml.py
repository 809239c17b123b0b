"""One run of an AnonML study on a table: split the rows, simulate everyone who takes part, score the model on the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.domain import Columns, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError, UsageError
from shoal.names import counted
from shoal.protocols.anonml.params import Params, Plus
from shoal.protocols.anonml.population import make_script, simulate
from shoal.sim.scores import Encoded, Ints, Scores, scores_of
from shoal.study.anonml import params_of
from shoal.study.spec import Study

UNSEEN_PART = 4
"""One row in so many is set aside for testing."""
_FINE = 1 << 32


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded rows: those of the people who may be asked, and those on which the model is tried."""

    asked: Encoded = field(repr=False)
    labels: Ints = field(repr=False)
    unseen: Encoded = field(repr=False)
    unseen_labels: Ints = field(repr=False)


@dataclass(frozen=True)
class Task:
    """One run.

    Parameters
    ----------
    params
        What the parties agree on.
    seed, repeat
        All randomness follows from these two and from the parameters.
    dropout
        Share of the people who do not answer.
    """

    params: Params
    seed: int
    repeat: int = 0
    dropout: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Parameters
    ----------
    scores
        On the rows set aside.
    people
        How many answered.
    answers
        Answers by phase.
    model
        The model as plain data.
    """

    scores: Scores
    people: int
    answers: tuple[int, ...]
    model: dict[str, Any] = field(repr=False)


def split_rows(schema: Schema, columns: Columns, seed: int) -> Split:
    """Encode a table and set a quarter of its rows aside, drawn by the seed.

    Raises
    ------
    SpecError
        The table does not fit the schema, or is too small to learn from a part of it and to test on the other (``SIM-003``).
    """
    encoded, labels = schema.encode(columns), schema.encode_label(columns)
    n = len(labels)
    if len(np.unique(labels)) < 2:
        what = "The table has no rows." if n == 0 else f"All {counted(n, 'row')} of the table have the same label."
        raise SpecError("SIM-003", what, why="There is nothing to tell apart.", fix="Give rows of two classes or more.")
    order = np.argsort(SeededEntropy(seed).spawn("split").words(n, np.uint64), kind="stable")
    unseen, asked = np.split(order, [n // UNSEEN_PART])
    if min(len(np.unique(labels[part])) for part in (unseen, asked)) < 2:
        aside = f"{len(unseen):,} {'is' if len(unseen) == 1 else 'are'} set aside for testing"
        raise SpecError(
            "SIM-003",
            f"Of {counted(n, 'row')}, {aside}, and one of the two parts has fewer than two classes.",
            why="A model is tried on rows that it has not seen, and both parts need rows of two classes.",
            fix="Give more rows, or another --seed.",
        )
    take = [{name: column[part] for name, column in encoded.items()} for part in (asked, unseen)]
    return Split(take[0], labels[asked], take[1], labels[unseen])


def params_for(study: Study, *, without_perturbation: bool = False) -> Params:
    """The parameters of a study that is to be simulated, with or without noise.

    Raises
    ------
    UsageError
        ``SIM-002``: this study cannot be simulated, or not without noise.
    """
    if study.protocol != "anonml":
        raise UsageError(
            "SIM-002",
            f"This version simulates anonml studies only; this one is of {study.protocol}.",
            fix='protocol = "anonml"; shoal check prices studies of every protocol.',
        )
    params = params_of(study)
    if not without_perturbation:
        return params
    if isinstance(params, Plus):
        raise UsageError(
            "SIM-002",
            "Variant plus cannot be simulated without perturbation.",
            why="Its questions follow from epsilon; without noise it would be another protocol.",
            fix='variant = "paper", or leave out --without-perturbation.',
        )
    return replace(params, epsilon=math.inf)


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run: whoever takes part answers, and what is learned is tried on the rows set aside.

    Notes
    -----
    Which features belong together in variant ``paper`` follows from the digest of the manifest, which is not known before its keys are.
    So each run draws a seed of its own in its place.
    """
    entropy = SeededEntropy(task.seed).spawn("run", repr(task.params), task.repeat)
    script = make_script(task.params, entropy.spawn("digest").bytes(32))
    columns, labels = _who_answers(split, task.dropout, entropy.spawn("dropout"))
    learned = simulate(script, columns, labels, entropy.spawn("answers"))
    scores = scores_of(learned.model.probabilities(split.unseen), learned.model.decide(split.unseen), split.unseen_labels)
    return Outcome(scores, len(labels), learned.answers, learned.model.to_plain())


def _who_answers(split: Split, dropout: float, entropy: Entropy) -> tuple[Encoded, Ints]:
    if not dropout:
        return split.asked, split.labels
    stays = entropy.below_many(_FINE, len(split.labels)) >= dropout * _FINE
    if not stays.any():
        raise UsageError(
            "SIM-003", f"With a dropout of {dropout} nobody was left to answer.", fix="Give more rows, or a smaller --dropout."
        )
    return {name: column[stays] for name, column in split.asked.items()}, split.labels[stays]
