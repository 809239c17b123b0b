"""One run of an AnonML study: everyone who takes part answers, and what is learned is tried on the rows set aside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.protocols.anonml.aggregator import answers_by_phase
from shoal.protocols.anonml.analysis import phase_names
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import Params, Plus
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import collect, make_script
from shoal.protocols.anonml.questions import Rows
from shoal.sim.details import calibration, participation
from shoal.sim.details_anonml import histograms, model_weights
from shoal.sim.runs import Outcome, Split, Task, who_stays
from shoal.sim.scores import Yardsticks, most_common, scores_of, without_privacy
from shoal.study.anonml import params_of
from shoal.study.spec import Study


def params_for(study: Study, *, without_perturbation: bool) -> Params:
    """The parameters of a study that is to be simulated, with or without noise."""
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


def facts(params: Params) -> dict[str, Any]:
    """What the parameters say about a run, as plain data."""
    return {"phases": phase_names(make_script(params, b""))}


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """The trivial predictor, and a model of the rows themselves."""
    return {
        "most_common": most_common(params.n_labels, split.labels, split.unseen_labels),
        "without_privacy": without_privacy(params.schema, split.asked, split.labels, split.unseen, split.unseen_labels),
    }


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run: whoever takes part answers, and what is learned is tried on the rows set aside.

    Notes
    -----
    Which features belong together in variant ``paper`` follows from the digest of the manifest, which is not known before its keys are.
    So each run draws a seed of its own in its place.
    """
    params = task.params
    assert isinstance(params, Params)
    script = make_script(params, task.entropy.spawn("digest").bytes(32))
    stays = who_stays(len(split.labels), task)
    columns = {name: column[stays] for name, column in split.asked.items()}
    entropy, labels = task.entropy.spawn("answers"), split.labels[stays]
    rows = Rows(columns, labels, draw_words(len(labels), entropy))
    tallies = collect(script, rows, entropy)
    model, answers = script.learn(tallies, entropy), answers_by_phase(tallies)
    chances = model.probabilities(split.unseen)
    scores = scores_of(chances, model.decide(split.unseen), split.unseen_labels)
    outcome = Outcome(scores, len(labels), answers, model.to_plain())
    if task.repeat:
        return outcome
    assert isinstance(script, PlusScript | PaperScript)
    details = {
        "participation": participation(len(stays), len(labels), zip(phase_names(script), answers, strict=True)),
        "calibration": calibration(model.classes, chances, split.unseen_labels),
        "histograms": histograms(script, tallies, rows, model),
        "weights": model_weights(model),
    }
    return outcome.with_details(details)
