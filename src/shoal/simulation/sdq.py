"""Simulated runs of SDQ, their diagnostics, and its alternatives in a comparison.

`PROTOCOL` is this module's entry in `shoal.simulation.registry`. Diagnostics compare the tables of
the noisy sums with those of the rows that were counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.protocols.machines import Aggregator, Peer
from shoal.protocols.sdq.committee import has_choices
from shoal.protocols.sdq.naive_bayes import TABLES
from shoal.protocols.sdq.noise import make_mechanism
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams, compute_default_choice
from shoal.protocols.sdq.plus import SDQPlusScript
from shoal.protocols.sdq.population import SDQSimulationResult, simulate
from shoal.protocols.sdq.script import RoundPart, SDQScript, SDQScriptState
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.anonml import list_model_weights
from shoal.simulation.diagnostics import (
    Details,
    compute_calibration,
    compute_sdq_exposure,
    describe_participation,
    make_count_histogram,
)
from shoal.simulation.holders import (
    assign_holders,
    draw_respondents,
    select_used_rows,
    split_by_member,
)
from shoal.simulation.metrics import (
    BaselineScores,
    ClassificationScores,
    compute_scores,
    score_most_common,
    score_without_privacy,
)
from shoal.simulation.protocol import Alternative, Engine, MessageVolume, SimulatedProtocol
from shoal.simulation.run import RunOutcome, RunTask, Split
from shoal.study.constraints import DeclaredRoster, compute_default_colluders
from shoal.study.plan import Plan
from shoal.study.sdq import build_params
from shoal.study.spec import Study

AttributeCounts = Iterator[tuple[int, Ints, Ints, float]]
"""Attribute, noisy and true counts ``(cells, L)``, and the standard deviation of a noisy count."""


def make_histograms(
    script: SDQScript, trained: SDQSimulationResult, table: CellTable, n_answering: int
) -> list[Details]:
    """Return each table of an attribute and the label that the miner has received.

    A tree of variant ``plus`` has one such table, of the attribute at its root.

    Parameters
    ----------
    table
        The rows that were counted.
    n_answering
        Databases with shares of noise in the sums.

    Notes
    -----
    Ref: SDQ §IV. The standard error is that of the noise of all shares. Rows are counted, not
    sampled, and add nothing to it.
    """
    params, histograms = script.params, []
    for attribute, noisy_counts, true, deviation in _iterate_tables(
        script, trained, table, n_answering
    ):
        histogram = make_count_histogram(
            params.schema.features[attribute], params.label.values, noisy_counts, deviation, true
        )
        histograms += [] if histogram is None else [histogram]
    return histograms


def list_questions(script: SDQScript, n_rounds: int) -> list[str]:
    """Return the names of the questions of the first n_rounds rounds."""
    if isinstance(script, SDQPaperScript):
        return [f"{('sizes', 'answers')[i % 2]}/{i // 2}" for i in range(n_rounds)]
    if isinstance(script, SDQPlusScript):
        return [*(f"choice/{i}" for i in range(n_rounds - 1)), "table"]
    return [TABLES, "table"][:n_rounds]


def _iterate_tables(
    script: SDQScript, trained: SDQSimulationResult, table: CellTable, n_answering: int
) -> AttributeCounts:
    params = script.params
    if isinstance(script, SDQPlusScript):
        yield from _iterate_root_table(script, trained, table, n_answering)
        return
    is_paper = isinstance(script, SDQPaperScript)
    if is_paper and trained.course.choices[0] < 0:
        return
    # The first round of the paper's tree asks for the number of rows at the root. The second asks
    # for the tables of all attributes, if the root is split.
    at = SDQScriptState(step=1, leaves=(False,)) if is_paper else SDQScriptState()
    part, deviation = _find_part(script, at, n_answering)
    for_cells = 1 if is_paper else 0
    noisy, true = (
        counts.reshape(-1, for_cells + params.n_classes)[:, for_cells:]
        for counts in (trained.answers[at.step], part.count(table))
    )
    ends = np.cumsum(params.arities)[:-1]
    for attribute, pair in enumerate(zip(np.split(noisy, ends), np.split(true, ends), strict=True)):
        yield attribute, *pair, deviation


def _iterate_root_table(
    script: SDQPlusScript, trained: SDQSimulationResult, table: CellTable, n_answering: int
) -> AttributeCounts:
    """Yield the table of the root attribute: sums of the joint table over all others."""
    root = int(trained.model.splits[0])
    if root < 0:
        return
    part, deviation = _find_part(
        script, trained.course.replace(step=trained.course.step - 1), n_answering
    )
    arity, n_classes = script.params.arities[root], script.params.n_classes
    noisy, true = (
        counts.reshape(arity, -1, n_classes) for counts in (trained.answers[-1], part.count(table))
    )
    yield root, noisy.sum(axis=1), true.sum(axis=1), deviation * math.sqrt(noisy.shape[1])


def _find_part(
    script: SDQScript, state: SDQScriptState, n_answering: int
) -> tuple[RoundPart, float]:
    """Return the only part of a round, and the standard deviation of its sums."""
    sum_round = script.make_round(state)
    assert sum_round is not None
    [part] = sum_round.parts
    return part, _compute_deviation(script.params, part, n_answering)


def _compute_deviation(params: SDQParams, part: RoundPart, n_answering: int) -> float:
    mechanism = make_mechanism(params, part)
    if mechanism is None:
        return 0.0
    assert isinstance(mechanism, DistributedLaplace)
    return math.sqrt(mechanism.variance(1 if params.noise == "two-selected" else n_answering))


def make_simulation_params(study: Study, *, without_perturbation: bool) -> SDQParams:
    """Return the parameters for a simulation of a study, with or without noise."""
    params = build_params(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def describe_params(params: SDQParams) -> dict[str, Any]:
    """Return the facts about a run that follow from its parameters, as plain data."""
    is_tree = params.learner == "tree"
    return {
        "learner": params.learner,
        "depth": params.depth if is_tree else None,
        "choice": params.choice if is_tree and params.variant == "plus" else None,
        "noise": None if params.is_noiseless else params.noise,
        "n_databases": params.n_databases,
        "max_colluders": params.max_colluders,
        "n_honest": None if params.noise == "two-selected" else params.n_honest,
    }


def score_baselines(params: SDQParams, split: Split) -> BaselineScores:
    """Return the scores of the trivial predictor and of two models without privacy.

    One is logistic regression; the other is the study's kind of learner. For a tree that is ID3
    with the same bins and depth: the paper's learner with sums that have no noise.
    """
    central, name = replace(params, epsilon=math.inf), "naive_bayes"
    if params.learner == "tree":
        central, name = replace(central, variant="paper", noise="all-contribute"), "id3"
    table = CellTable.from_columns(
        central,
        split.train_columns,
        split.train_labels,
        np.zeros(len(split.train_labels), np.int64),
    )
    # Without noise nothing is drawn.
    model = simulate(make_sdq_script(central), table, SeededEntropy(0)).model
    return {
        "most_common": score_most_common(params.n_classes, split.train_labels, split.test_labels),
        name: _score_model(model, split),
        "without_privacy": score_without_privacy(
            params.schema,
            split.train_columns,
            split.train_labels,
            split.test_columns,
            split.test_labels,
        ),
    }


def run(task: RunTask, split: Split) -> RunOutcome:
    """Simulate one run: databases that do not drop out count the rows that they may use."""
    params = task.params
    assert isinstance(params, SDQParams)
    answers = _draw_respondents(params, task)
    table = _make_table(params, task, split, answers)
    script, n_answering = make_sdq_script(params), int(answers.sum())
    trained = simulate(script, table, task.entropy.spawn("answers"), n_answering)
    model, learned = trained.model, tuple(map(len, trained.answers))
    chances = model.probabilities(split.test_columns)
    scores = compute_scores(chances, model.decide(split.test_columns), split.test_labels)
    outcome = RunOutcome(scores, n_answering, learned, model.to_plain(), len(table))
    if task.repeat:
        return outcome
    details = {
        "participation": describe_participation(
            params.n_databases,
            n_answering,
            [(name, n_answering) for name in list_questions(script, len(learned))],
        ),
        "calibration": compute_calibration(params.label.values, chances, split.test_labels),
        "histograms": make_histograms(script, trained, table, n_answering),
        "weights": list_model_weights(model),
        "exposure": compute_sdq_exposure(script),
    }
    return outcome.with_details(details)


def make_members(params: SDQParams) -> DeclaredRoster:
    """Return the databases that the study declares."""
    return DeclaredRoster(
        "sdq", "n_databases", "databases", params.n_databases, params.minimum, params.max_colluders
    )


def _draw_respondents(params: SDQParams, task: RunTask) -> npt.NDArray[np.bool_]:
    if params.noise == "two-selected":
        why = "Two databases add all of the noise, and no party knows whether one of them is gone."
        return draw_respondents(
            make_members(params),
            task,
            why=why,
            fix='Remove --dropout, or set noise = "all-contribute" under [sdq].',
        )
    return draw_respondents(make_members(params), task)


def _score_model(model: Any, split: Split) -> ClassificationScores:
    return compute_scores(
        model.probabilities(split.test_columns), model.decide(split.test_columns), split.test_labels
    )


def _make_table(
    params: SDQParams, task: RunTask, split: Split, answers: npt.NDArray[np.bool_]
) -> CellTable:
    """Return the rows that the answering databases count, with the database of each."""
    database = assign_holders(
        make_members(params),
        len(split.train_labels),
        split.holders,
        split.n_holders,
        task.entropy.spawn("databases"),
    )
    used = answers[database] & select_used_rows(database, split.people, params.max_rows)
    columns = {name: column[used] for name, column in split.train_columns.items()}
    return CellTable.from_columns(params, columns, split.train_labels[used], database[used])


def learn_model(task: RunTask, split: Split, engine: Engine) -> Any:
    """Return the model of one run in which every database answers."""
    del engine
    params = task.params
    assert isinstance(params, SDQParams)
    table = _make_table(params, task, split, np.ones(params.n_databases, bool))
    return simulate(
        make_sdq_script(params), table, task.entropy.spawn("answers"), params.n_databases
    ).model


def make_machines(task: RunTask, split: Split) -> tuple[Aggregator[Any], Mapping[str, Peer[Any]]]:
    """Return the real aggregator and peers of a run, each database with its rows."""
    from shoal.simulation import machines

    params = task.params
    assert isinstance(params, SDQParams)
    tables = [
        CellTable.from_columns(params, *part)
        for part in split_by_member(make_members(params), task, split, params.max_rows)
    ]
    return machines.make_sdq_machines(make_sdq_script(params), tables)


def measure_messages(
    plan: Plan, task: RunTask, split: Split, *, joint: bool
) -> MessageVolume | None:
    """Run the real machines, and return what one database sends.

    Parameters
    ----------
    joint
        Whether a committee that computes jointly is run also. This starts processes and takes a
        second or more for each attribute of a tree. Most of what its members send is part of the
        computation, so without it the result is None.
    """
    from shoal.mpyc.runner import MPyCWorkers
    from shoal.simulation import machines

    del plan
    params = task.params
    assert isinstance(params, SDQParams)
    is_joint = params.noise == "two-selected" or has_choices(params)
    if params.n_databases > machines.MAX_MEMBERS[params.trust] or (is_joint and not joint):
        return None
    return machines.run_and_measure(
        make_machines(task, split),
        task.entropy.spawn("machines"),
        MPyCWorkers() if is_joint else nullcontext(),
    )


def matches(alternative: Alternative, study: Study) -> bool:
    """Return whether the study has the alternative's learner, with noise from all databases."""
    settings = study.sdq
    assert settings is not None
    return settings.learner == alternative.learner and settings.noise == "all-contribute"


def complete_content(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Add the learner to the table."""
    del study
    content["sdq"]["learner"] = alternative.learner


def list_derived_keys(study: Study) -> frozenset[str]:
    """Return the keys that have the value of their default rule."""
    settings = study.sdq
    assert settings is not None
    n, c = settings.n_databases, settings.max_colluders
    defaults = {
        "choice": compute_default_choice(n, c),
        "max_colluders": compute_default_colluders(n),
    }
    return frozenset(key for key, value in defaults.items() if getattr(settings, key) == value)


PROTOCOL = SimulatedProtocol(
    name="sdq",
    params_types=(SDQParams,),
    make_params=make_simulation_params,
    describe_params=describe_params,
    score_baselines=score_baselines,
    run=run,
    learn_model=learn_model,
    measure_messages=measure_messages,
    sized_settings="the number of questions and of cells is",
    sweep_keys={"n_databases": int, "max_colluders": int, "depth": int},
    alternatives=(
        Alternative("SDQ plus, secure sums, tree", "sdq", "plus", "secure-sum", "tree"),
        Alternative(
            "SDQ plus, secure sums, naive Bayes", "sdq", "plus", "secure-sum", "naive-bayes"
        ),
        Alternative("SDQ paper, secure sums", "sdq", "paper", "secure-sum", "tree"),
        Alternative("SDQ paper, local (SuLQ)", "sdq", "paper", "local", "tree"),
    ),
    matches=matches,
    complete_content=complete_content,
    list_derived_keys=list_derived_keys,
)
