"""Simulated runs of DDML, their diagnostics, and its alternative in a comparison.

`PROTOCOL` is this module's entry in `shoal.simulation.registry`. Diagnostics are the weights of the
model, and the distance between its instances over the updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Numeric
from shoal.protocols.ddml.design_matrix import SparseInputs
from shoal.protocols.ddml.links import encode_targets
from shoal.protocols.ddml.merging import Weights, find_blend_factor, steady_variance
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import (
    DevicePopulation,
    RunOptions,
    choose_engine,
    simulate,
)
from shoal.simulation.diagnostics import (
    Details,
    compute_model_calibration,
    describe_participation,
    list_scored_classes,
    list_weights,
    round_values,
)
from shoal.simulation.metrics import (
    BaselineScores,
    ClassificationScores,
    Floats,
    Ints,
    RegressionScores,
    compute_errors,
    compute_scores,
    fit,
    import_learners,
    score_logistic,
    score_mean_label,
    score_most_common,
)
from shoal.simulation.protocol import Alternative, Engine, MessageVolume, SimulatedProtocol
from shoal.simulation.run import RunOutcome, RunTask, Split, draw_participants
from shoal.study.ddml import build_params
from shoal.study.plan import Plan
from shoal.study.spec import Study

N_MEASUREMENTS = 40
"""Approximate number of times that a run measures the distance between instances."""
_MAX_WEIGHTS = 2_000
"""A larger model is measured on this number of weights, evenly spaced."""
_N_INSTANCES = 20
"""Instances of the alternative in a comparison."""
_MESSAGES_PER_UPDATE = 2
"""A device requests a model, and sends an update."""


def list_model_weights(model: GLM) -> list[Details]:
    """Return the largest weights with the names of their inputs.

    A weight is one of the log-odds of the second of two classes, or of the label itself.
    """
    classes = model.classes if len(model.weights) > 1 else list_scored_classes(model.schema.label)
    return list_weights(model.design.names, classes, model.weights.T)


class SpreadTrace:
    """The distance between instances over the updates of a run.

    It is the variance of each weight over the instances, averaged over the weights.

    Parameters
    ----------
    n_updates
        Approximate number of updates; 0 measures nothing.
    """

    def __init__(self, params: DDMLParams, n_updates: int) -> None:
        # A single instance has no variance.
        self.every = -(-n_updates // N_MEASUREMENTS) if params.n_instances > 1 else 0
        self.measurements: list[list[float]] = []
        self._stride = max(1, params.n_weights // _MAX_WEIGHTS)
        self._grid = 2.0**-params.fraction_bits

    def __call__(self, n_updates: int, instances: Weights) -> None:
        """Measure the instances ``(k, p)``, k at least 2, in units of the grid."""
        variance = instances[:, :: self._stride].var(axis=0, ddof=1, dtype=np.float64).mean()
        self.measurements.append([n_updates, round_values(variance * self._grid**2)])


def describe_spread(params: DDMLParams, in_flight: int, trace: SpreadTrace) -> Details:
    """Return the measured spread and the one that noise alone causes; empty for one instance.

    Notes
    -----
    Ref: DDML Theorem 1: k/2 sigma^2, if an update replaces an instance and returns immediately.
    With s other updates in flight it is k (k + s - 1) / (2 (k - 1)) sigma^2. If updates are blended
    it is `steady_variance`, and updates in flight change it by less than one percent (errata D-07).
    Gradients, which differ between devices, add to it. If the step size falls, sigma is the last
    one.
    """
    k = params.n_instances
    if k == 1:
        return {}
    sigma = make_step(params, params.last_epoch).deviation * 2.0**-params.fraction_bits
    part = find_blend_factor(params.merge)
    expected = k * (k + in_flight - 1) / (2 * (k - 1)) if part == 1 else steady_variance(k, part)
    return {
        "k": k,
        "sigma_squared": round_values(sigma**2),
        "expected": round_values(expected * sigma**2),
        "measured": trace.measurements,
    }


_MAX_STEPS = 1000


def make_simulation_params(study: Study, *, without_perturbation: bool) -> DDMLParams:
    """Return the parameters for a simulation of a study, with or without noise."""
    params = build_params(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def describe_params(params: DDMLParams) -> dict[str, Any]:
    """Return the facts about a run that follow from its parameters, as plain data."""
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


def score_baselines(params: DDMLParams, split: Split) -> BaselineScores:
    """Return the scores of the trivial predictor and of a model of the same inputs."""
    label = params.schema.label
    if isinstance(label, Categorical):
        guessed: BaselineScores = {
            "most_common": score_most_common(
                len(label.values), split.train_labels, split.test_labels
            )
        }
    else:
        guessed = {"mean_label": score_mean_label(split.train_labels, split.test_labels)}
    return {**guessed, "without_privacy": score_glm_without_privacy(params, split)}


def score_glm_without_privacy(
    params: DDMLParams, split: Split
) -> ClassificationScores | RegressionScores:
    """Return the scores of a regression on the study's inputs without privacy.

    It is logistic, ridge or, for the log link, Poisson regression.

    Raises
    ------
    UsageError
        ``USAGE-002``: scikit-learn is not installed.
    """
    linear, sparse = import_learners()

    def matrix(inputs: SparseInputs) -> Any:
        return sparse.csr_array(
            (inputs.values, inputs.positions, inputs.starts), shape=(len(inputs), inputs.width)
        )

    asked, unseen = (
        matrix(params.design.make_inputs(columns))
        for columns in (split.train_columns, split.test_columns)
    )
    label = params.schema.label
    if isinstance(label, Categorical):
        return score_logistic(
            len(label.values), asked, split.train_labels, unseen, split.test_labels
        )
    assert isinstance(label, Numeric)
    # The same penalty for both: scikit-learn adds it to a sum of squares, or to a mean.
    n = len(split.train_labels)
    model = (
        linear.PoissonRegressor(alpha=1 / n, max_iter=_MAX_STEPS)
        if params.link == "log"
        else linear.Ridge(alpha=1.0)
    )
    share = np.clip(
        fit(model, asked, encode_targets(label, split.train_labels)).predict(unseen), 0, 1
    )
    return compute_errors(label.low + (label.high - label.low) * share, split.test_labels)


def run(task: RunTask, split: Split) -> RunOutcome:
    """Simulate one run: devices that do not drop out send all their updates.

    The task's traffic gives the order and the delays.
    """
    params = task.params
    assert isinstance(params, DDMLParams)
    device = assign_devices(params, split)
    n_devices = int(device.max()) + 1
    stays = draw_participants(n_devices, task)[device]
    columns = {name: column[stays] for name, column in split.train_columns.items()}
    holders = None if split.holders is None else np.unique(device[stays], return_inverse=True)[1]
    devices = DevicePopulation.from_columns(params, columns, split.train_labels[stays], holders)
    trace = SpreadTrace(params, 0 if task.repeat else len(devices) * params.n_updates)
    entropy = task.entropy.spawn("updates")
    trained = simulate(
        params,
        devices,
        entropy,
        traffic=task.traffic,
        options=RunOptions(trace=trace, trace_every=trace.every),
    )
    model = trained.model
    outcome = RunOutcome(
        score_model(params, model, split), len(devices), (trained.n_merged,), model.to_plain()
    )
    if task.repeat:
        return outcome
    details = {
        "participation": describe_participation(
            n_devices, len(devices), [("updates", trained.n_merged)]
        ),
        "calibration": compute_model_calibration(model, split.test_columns, split.test_labels),
        "weights": list_model_weights(model),
        "spread": describe_spread(params, task.traffic.in_flight, trace),
    }
    return outcome.with_details(details)


def assign_devices(params: DDMLParams, split: Split) -> Ints:
    """Return the device of each training row: its holder, or one per batch_size rows."""
    if split.holders is None:
        return np.arange(len(split.train_labels)) // params.batch_size
    return np.unique(split.holders, return_inverse=True)[1].astype(np.int64)


def score_model(
    params: DDMLParams, model: GLM, split: Split
) -> ClassificationScores | RegressionScores:
    """Return the scores of a model on the test rows."""
    if isinstance(params.schema.label, Numeric):
        return compute_errors(
            np.asarray(model.predict(split.test_columns), np.float64), split.test_labels
        )
    chances: Floats = model.probabilities(split.test_columns)
    return compute_scores(chances, model.decide(split.test_columns), split.test_labels)


def learn_model(task: RunTask, split: Split, engine: Engine) -> GLM:
    """Return the model of one run in which every device answers."""
    params = task.params
    assert isinstance(params, DDMLParams)
    devices = DevicePopulation.from_columns(params, split.train_columns, split.train_labels)
    return simulate(params, devices, task.entropy.spawn("updates"), engine=engine).model


def measure_messages(plan: Plan, task: RunTask, split: Split, *, joint: bool) -> MessageVolume:
    """Return the bytes of all updates of a device, which the label states, and its messages."""
    del task, split, joint
    size = plan.make_statement().bytes
    assert size is not None
    return MessageVolume(float(size), float(_MESSAGES_PER_UPDATE * plan.study.privacy.n_updates))


def matches(alternative: Alternative, study: Study) -> bool:
    """Return whether the study protects whole updates, as the alternative does."""
    del alternative
    return study.privacy.unit != "weight"


def complete_content(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Add the batch size, and no more instances than the fewest devices that take part."""
    del alternative
    content["ddml"] = {
        "batch_size": study.max_rows,
        "n_instances": min(_N_INSTANCES, content["participation"]["minimum"]),
    }


def use_personal_devices(split: Split) -> Split:
    """Return the rows with one device for each person, or for each row without people."""
    if split.holders is split.people:
        return split
    return replace(split, holders=split.people, n_holders=0)


def count_rows(study: Study) -> int:
    """Return the rows of all devices at the declared size."""
    assert study.ddml is not None
    return study.participation.size * study.ddml.batch_size


def choose_trial_engine(trials: Sequence[tuple[DDMLParams, int]]) -> Engine:
    """Return the faster engine for several trials, given their parameters and rows.

    Only numbers of the runs decide, so that a seed always gives the same result.
    """
    updates = sum(n_rows // params.batch_size * params.n_updates for params, n_rows in trials)
    return choose_engine(updates, trials[0][0])


PROTOCOL = SimulatedProtocol(
    name="ddml",
    params_types=(DDMLParams,),
    make_params=make_simulation_params,
    describe_params=describe_params,
    score_baselines=score_baselines,
    run=run,
    learn_model=learn_model,
    measure_messages=measure_messages,
    sized_settings="learning rate and clip, unless given, are",
    sweep_keys={"n_instances": int, "learning_rate": float, "clip": float, "batch_size": int},
    alternatives=(Alternative("DDML plus, local", "ddml", "plus", "local"),),
    matches=matches,
    complete_content=complete_content,
    adapt_rows=use_personal_devices,
    count_rows=count_rows,
    choose_engine=choose_trial_engine,
)
