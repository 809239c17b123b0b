"""One run of a DDML study: every device sends its updates, and the model that remains is tried on the rows set aside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.domain import Categorical, Numeric
from shoal.protocols.ddml.design import Inputs
from shoal.protocols.ddml.links import targets
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Devices, simulate
from shoal.protocols.ddml.step import make_step
from shoal.sim.details import calibration_of, participation
from shoal.sim.details_ddml import Looks, model_weights, spread
from shoal.sim.runs import Outcome, Split, Task, who_stays
from shoal.sim.scores import (
    Errors,
    Floats,
    Ints,
    Scores,
    Yardsticks,
    errors_of,
    fit,
    learners,
    logistic,
    mean_label,
    most_common,
    scores_of,
)
from shoal.study.ddml import params_of
from shoal.study.spec import Study

_MOST_STEPS = 1000


def params_for(study: Study, *, without_perturbation: bool) -> Params:
    """The parameters of a study that is to be simulated, with or without noise."""
    params = params_of(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def facts(params: Params) -> dict[str, Any]:
    """What the parameters say about a run, as plain data."""
    event = make_step(params).event
    return {
        "phases": ["updates"],
        "weights": params.n_weights,
        "n_instances": params.n_instances,
        "merge": params.merge,
        "learning_rate": params.rates.learning_rate,
        "clip": params.rates.clip,
        "mechanism": None if event is None else event.mechanism,
    }


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """The trivial predictor, and a model of the same inputs that learns from the rows themselves."""
    label = params.schema.label
    if isinstance(label, Categorical):
        guessed: Yardsticks = {"most_common": most_common(len(label.values), split.labels, split.unseen_labels)}
    else:
        guessed = {"mean_label": mean_label(split.labels, split.unseen_labels)}
    return {**guessed, "without_privacy": without_privacy(params, split)}


def without_privacy(params: Params, split: Split) -> Scores | Errors:
    """What the study's own inputs can tell where nothing is hidden: logistic, ridge or, for the log link, Poisson regression.

    Raises
    ------
    UsageError
        ``USAGE-002``: scikit-learn is not installed.
    """
    linear, sparse = learners()

    def matrix(inputs: Inputs) -> Any:
        return sparse.csr_array((inputs.values, inputs.positions, inputs.starts), shape=(len(inputs), inputs.width))

    asked, unseen = (matrix(params.design.inputs(columns)) for columns in (split.asked, split.unseen))
    label = params.schema.label
    if isinstance(label, Categorical):
        return logistic(len(label.values), asked, split.labels, unseen, split.unseen_labels)
    assert isinstance(label, Numeric)
    # The same penalty for both: scikit-learn weighs it against a sum of squares, or against a mean.
    n = len(split.labels)
    model = linear.PoissonRegressor(alpha=1 / n, max_iter=_MOST_STEPS) if params.link == "log" else linear.Ridge(alpha=1.0)
    share = np.clip(fit(model, asked, targets(label, split.labels)).predict(unseen), 0, 1)
    return errors_of(label.low + (label.high - label.low) * share, split.unseen_labels)


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run: whoever does not drop out sends all updates, in the order and with the delays of the task's traffic."""
    params = task.params
    assert isinstance(params, Params)
    whose = whose_rows(params, split)
    n_devices = int(whose.max()) + 1
    stays = who_stays(n_devices, task)[whose]
    columns = {name: column[stays] for name, column in split.asked.items()}
    holders = None if split.holders is None else np.unique(whose[stays], return_inverse=True)[1]
    devices = Devices.of(params, columns, split.labels[stays], holders)
    looks = Looks(params, 0 if task.repeat else len(devices) * params.n_updates)
    entropy = task.entropy.spawn("updates")
    trained = simulate(params, devices, entropy, traffic=task.traffic, trace=looks, trace_every=looks.every)
    model = trained.model
    outcome = Outcome(scores(params, model, split), len(devices), (trained.n_merged,), model.to_plain())
    if task.repeat:
        return outcome
    details = {
        "participation": participation(n_devices, len(devices), [("updates", trained.n_merged)]),
        "calibration": calibration_of(model, split.unseen, split.unseen_labels),
        "weights": model_weights(model),
        "spread": spread(params, task.traffic.in_flight, looks),
    }
    return outcome.with_details(details)


def whose_rows(params: Params, split: Split) -> Ints:
    """The device of each row to learn from: its holder's, or that of batch_size consecutive rows."""
    if split.holders is None:
        return np.arange(len(split.labels)) // params.batch_size
    return np.unique(split.holders, return_inverse=True)[1].astype(np.int64)


def scores(params: Params, model: GLM, split: Split) -> Scores | Errors:
    """How well a model does on the rows set aside."""
    if isinstance(params.schema.label, Numeric):
        return errors_of(np.asarray(model.predict(split.unseen), np.float64), split.unseen_labels)
    chances: Floats = model.probabilities(split.unseen)
    return scores_of(chances, model.decide(split.unseen), split.unseen_labels)
