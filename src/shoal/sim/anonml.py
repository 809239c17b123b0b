"""One run of an AnonML study: everyone who takes part answers, and what is learned is tried on the rows set aside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.protocols.anonml.analysis import phase_names
from shoal.protocols.anonml.params import Params, Plus
from shoal.protocols.anonml.population import make_script, simulate
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
    learned = simulate(script, columns, split.labels[stays], task.entropy.spawn("answers"))
    scores = scores_of(learned.model.probabilities(split.unseen), learned.model.decide(split.unseen), split.unseen_labels)
    return Outcome(scores, int(stays.sum()), learned.answers, learned.model.to_plain())
