"""One run of an SDQ study: the databases count, their sums carry noise, and what is learned is tried on the rows set aside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.details import calibration, participation
from shoal.sim.details_anonml import model_weights
from shoal.sim.details_exposure import sdq_exposure
from shoal.sim.details_sdq import histograms, questions
from shoal.sim.holders import holders_of, is_used, who_answers
from shoal.sim.runs import Outcome, Split, Task
from shoal.sim.scores import Scores, Yardsticks, most_common, scores_of, without_privacy
from shoal.study.conditions_sums import Members
from shoal.study.sdq import params_of
from shoal.study.spec import Study


def params_for(study: Study, *, without_perturbation: bool) -> Params:
    """The parameters of a study that is to be simulated, with or without noise."""
    params = params_of(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def facts(params: Params) -> dict[str, Any]:
    """What the parameters say about a run, as plain data."""
    is_tree = params.learner == "tree"
    return {
        "learner": params.learner,
        "depth": params.depth if is_tree else None,
        "choice": params.choice if is_tree and params.variant == "plus" else None,
        "noise": None if params.is_bare else params.noise,
        "n_databases": params.n_databases,
        "max_colluders": params.max_colluders,
        "n_honest": None if params.noise == "two-selected" else params.n_honest,
    }


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """The trivial predictor, the study's kind of learner on the rows themselves, and logistic regression on them.

    Notes
    -----
    A tree is held against ID3 of the same bins and depth: the paper's learner, where sums carry no noise.
    """
    central, name = replace(params, epsilon=math.inf), "naive_bayes"
    if params.learner == "tree":
        central, name = replace(central, variant="paper", noise="all-contribute"), "id3"
    table = Table.of(central, split.asked, split.labels, np.zeros(len(split.labels), np.int64))
    # Where there is no noise, nothing is drawn.
    model = simulate(script_of(central), table, SeededEntropy(0)).model
    return {
        "most_common": most_common(params.n_classes, split.labels, split.unseen_labels),
        name: _scores(model, split),
        "without_privacy": without_privacy(params.schema, split.asked, split.labels, split.unseen, split.unseen_labels),
    }


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run: databases that do not drop out count the rows that they may use."""
    params = task.params
    assert isinstance(params, Params)
    whose = holders_of(members_of(params), len(split.labels), split.holders, split.n_holders, task.entropy.spawn("databases"))
    answers = _who_answers(params, task)
    used = answers[whose] & is_used(whose, split.people, params.max_rows)
    columns = {name: column[used] for name, column in split.asked.items()}
    table = Table.of(params, columns, split.labels[used], whose[used])
    script, n_answering = script_of(params), int(answers.sum())
    trained = simulate(script, table, task.entropy.spawn("answers"), n_answering)
    model, learned = trained.model, tuple(map(len, trained.answers))
    chances = model.probabilities(split.unseen)
    scores = scores_of(chances, model.decide(split.unseen), split.unseen_labels)
    outcome = Outcome(scores, n_answering, learned, model.to_plain(), len(table))
    if task.repeat:
        return outcome
    details = {
        "participation": participation(params.n_databases, n_answering, [(name, n_answering) for name in questions(script, len(learned))]),
        "calibration": calibration(params.label.values, chances, split.unseen_labels),
        "histograms": histograms(script, trained, table, n_answering),
        "weights": model_weights(model),
        "exposure": sdq_exposure(script),
    }
    return outcome.with_details(details)


def members_of(params: Params) -> Members:
    """The databases that the study has."""
    return Members("sdq", "n_databases", "databases", params.n_databases, params.minimum, params.max_colluders)


def _who_answers(params: Params, task: Task) -> npt.NDArray[np.bool_]:
    if params.noise == "two-selected":
        why = "Two databases add all of the noise, and nobody knows whether one of them is missing."
        return who_answers(members_of(params), task, why=why, fix='No --dropout, or noise = "all-contribute" under [sdq].')
    return who_answers(members_of(params), task)


def _scores(model: Any, split: Split) -> Scores:
    return scores_of(model.probabilities(split.unseen), model.decide(split.unseen), split.unseen_labels)
