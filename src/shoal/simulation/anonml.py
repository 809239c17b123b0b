"""Simulated runs of AnonML, their diagnostics, and its alternatives in a comparison.

`PROTOCOL` is this module's entry in `shoal.simulation.registry`. A run asks the questions of the
script that real peers follow. Diagnostics compare the tables estimated from randomised answers with
those of the rows of all participants; a standard error is about these participants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from shoal.data.schema import Numeric, cell_names
from shoal.errors import SpecError, UsageError
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.models.weights import name_cells
from shoal.protocols.additive_model import AdditiveModel, ClassificationModel
from shoal.protocols.anonml.aggregator import count_answers
from shoal.protocols.anonml.analysis import phase_names
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.evidence import NoisyBit, clip_shares
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import (
    AnonMLPaperParams,
    AnonMLParams,
    AnonMLPlusParams,
    count_cells,
)
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import collect_tallies, simulate
from shoal.protocols.anonml.questions import (
    AgreementQuestion,
    AssignedRows,
    CellQuestion,
    LabelQuestion,
    Question,
    SideQuestion,
    Tally,
)
from shoal.protocols.anonml.script import AnonMLScript, Tallies
from shoal.protocols.anonml.variants import make_script
from shoal.simulation.diagnostics import (
    MAX_CELLS,
    Details,
    compute_calibration,
    describe_participation,
    list_scored_classes,
    list_weights,
    make_histogram,
)
from shoal.simulation.metrics import (
    BaselineScores,
    Floats,
    compute_scores,
    score_most_common,
    score_without_privacy,
)
from shoal.simulation.protocol import (
    Alternative,
    Engine,
    MessageVolume,
    SimulatedProtocol,
)
from shoal.simulation.run import RunOutcome, RunTask, Split, draw_participants
from shoal.study.anonml import build_params
from shoal.study.plan import Plan
from shoal.study.spec import Study

_PAPER_N_SUBSETS, _PAPER_SUBSET_SIZE, _PAPER_N_PARTITIONS = 2, 3, 5
"""k_h, k_s and k_p of the AnonML paper for the data set Adult."""


@dataclass(frozen=True, eq=False)
class TableEstimate:
    """Estimated shares of the cells of one table.

    Parameters
    ----------
    shares
        ``(B, L)``, unbiased.
    inside, outside
        n times the variance that the mechanism adds to the share of a cell if all people are in the
        cell, and if no person is.
    n
        Number of answers.
    """

    shares: Floats
    inside: float
    outside: float
    n: int


def list_model_weights(model: ClassificationModel) -> list[Details]:
    """Return the largest scores of the cells of an additive model.

    A score is the log-odds of the second of two classes, or of each of several classes against the
    rest. Other models have no such scores.
    """
    if not isinstance(model, AdditiveModel):
        return []
    scores = [score[1:] - score[:1] if len(score) == 2 else score for score in model.scores]
    return list_weights(
        name_cells(model.schema.features),
        list_scored_classes(model.schema.label),
        np.concatenate(scores, axis=1).T,
    )


def make_histograms(
    script: AnonMLPlusScript | AnonMLPaperScript,
    tallies: Tallies,
    rows: AssignedRows,
    model: ClassificationModel,
) -> list[Details]:
    """Return the estimated table of each feature and the label, with the true one.

    Parameters
    ----------
    rows
        The rows of the participants.
    model
        The learned model. For a feature with bit questions it has the shares of the classes, if no
        question asked for them.

    Notes
    -----
    Ref: AnonML §VII-D and the appendix, proof of Theorem 2. A standard error is about the
    participants, of whom a random part was asked: it has the noise of the mechanism, and the
    variance of sampling without replacement. Variant ``paper`` asks for tables of several features,
    and for a feature in several partitions: these are summed to tables of one feature, and pooled.
    """
    # The model has the published cut points. Finding them again would take longer than the rest.
    numbers = [model.schema[number.name] for number in script.params.unbinned]
    publication = AnonMLPublication(
        cuts=tuple(tuple(number.bins or ()) for number in numbers if isinstance(number, Numeric))
    )
    asked = tuple(
        zip(script.questions(script.n_steps, publication), tallies[script.n_steps], strict=True)
    )
    bits = {
        (type(question), _feature_name(question)): _make_bit(question, tally)
        for question, tally in asked
        if isinstance(question, SideQuestion | LabelQuestion) and tally.n
    }
    n_people, histograms = len(rows.chosen_labels), []
    for feature in model.schema.features:
        if count_cells(feature) > MAX_CELLS:
            continue
        whole = CellQuestion("", None, (feature,), script.params.n_labels)
        true = (np.bincount(whole.find_cells(rows), minlength=whole.n_cells) / n_people).reshape(
            -1, script.params.n_labels
        )
        tables = [
            _compute_marginal(question, tally, feature.name)
            for question, tally in asked
            if _has_feature(question, feature.name) and tally.n
        ]
        side, agree = (bits.get((kind, feature.name)) for kind in (SideQuestion, AgreementQuestion))
        if tables:
            histograms.append(
                make_histogram(feature, model.classes, *_pool_tables(tables, n_people), true)
            )
        elif side is not None and agree is not None:
            estimated, error = _estimate_from_bits(
                side, agree, bits.get((LabelQuestion, "")), model, n_people
            )
            first, second, *others = cell_names(feature)
            sides = np.stack([true.sum(axis=0) - true[1], true[1]])
            histograms.append(
                make_histogram(
                    feature,
                    model.classes,
                    estimated,
                    error,
                    sides,
                    [" or ".join([first, *others]), second],
                )
            )
    return histograms


def _has_feature(question: Question, name: str) -> TypeGuard[CellQuestion]:
    return isinstance(question, CellQuestion) and any(
        feature.name == name for feature in question.features
    )


def _make_bit(question: Question, tally: Tally) -> NoisyBit:
    assert isinstance(question.mechanism, RandomizedResponse)
    return NoisyBit(int(tally.counts[1]), tally.n, question.mechanism)


def _feature_name(question: Question) -> str:
    return question.feature.name if isinstance(question, SideQuestion) else ""


def _compute_marginal(question: CellQuestion, tally: Tally, name: str) -> TableEstimate:
    """Return the table of one feature from a joint table of several features.

    Notes
    -----
    A share is a sum over s cells, one for each combination of the other features. A report of
    randomised response supports one cell: a set of s cells is supported with probability
    p + (s - 1) q if the true cell is in the set, and s q otherwise. Other reports of several
    features have an independent bit for each cell.
    """
    axis = [feature.name for feature in question.features].index(name)
    counts = tally.counts.reshape(
        *(count_cells(feature) for feature in question.features), question.n_labels
    )
    summed = counts.sum(axis=tuple(i for i in range(len(question.features)) if i != axis))
    if question.mechanism is None:
        return TableEstimate(summed / tally.n, 0.0, 0.0, tally.n)
    s, p, q = counts.size // summed.size, float(question.mechanism.p), float(question.mechanism.q)
    if isinstance(question.mechanism, RandomizedResponse):
        inside, outside = (p + (s - 1) * q) * (1 - p - (s - 1) * q), s * q * (1 - s * q)
    else:
        inside, outside = p * (1 - p) + (s - 1) * q * (1 - q), s * q * (1 - q)
    return TableEstimate(
        (summed / tally.n - s * q) / (p - q), inside / (p - q) ** 2, outside / (p - q) ** 2, tally.n
    )


def _pool_tables(tables: Sequence[TableEstimate], n_people: int) -> tuple[Floats, Floats]:
    """Return the mean of tables that different people answered, and its standard error."""
    n = sum(table.n for table in tables)
    shares = np.sum([table.n * table.shares for table in tables], axis=0) / n
    f = clip_shares(shares, n)
    noise = (
        np.sum([table.n * (f * table.inside + (1 - f) * table.outside) for table in tables], axis=0)
        / n**2
    )
    return shares, np.sqrt(noise + f * (1 - f) * _compute_sampling_variance(n, n_people))


def _compute_sampling_variance(n: int, n_people: int) -> float:
    """Return the variance of the mean of n values of variance 1, drawn without replacement."""
    return (n_people - n) / (n * max(1, n_people - 1))


def _estimate_from_bits(
    side: NoisyBit,
    agree: NoisyBit,
    label: NoisyBit | None,
    model: ClassificationModel,
    n_people: int,
) -> tuple[Floats, Floats | None]:
    """Return the table of two sides and two classes; its error if people were asked their class.

    Notes
    -----
    With signs h of the side and y of the class, P(h, y) = (1 + h E h + y E y + h y E hy) / 4. Each
    bit question estimates one of these means, from different people.
    """
    signs = np.array([-1.0, 1.0])
    h, y = signs[:, np.newaxis], signs[np.newaxis]
    assert isinstance(model, AdditiveModel)
    of_label = 2 * float(model.label_shares[1]) - 1 if label is None else label.mean
    shares = (1 + h * side.mean + y * of_label + h * y * agree.mean) / 4
    if label is None:
        return shares, None
    variance = sum(_compute_bit_variance(bit, n_people) for bit in (side, agree, label)) / 16
    return shares, np.full(shares.shape, math.sqrt(variance))


def _compute_bit_variance(bit: NoisyBit, n_people: int) -> float:
    """Return the variance of the mean of signs over the participants."""
    t, mean = float(bit.mechanism.p - bit.mechanism.q), min(1.0, max(-1.0, bit.mean))
    return (1 - t**2) / (t**2 * bit.n) + (1 - mean**2) * _compute_sampling_variance(bit.n, n_people)


def make_simulation_params(study: Study, *, without_perturbation: bool) -> AnonMLParams:
    """Return the parameters for a simulation of a study, with or without noise."""
    params = build_params(study)
    if not without_perturbation:
        return params
    if isinstance(params, AnonMLPlusParams):
        raise UsageError(
            "SIM-002",
            "Variant plus cannot be simulated without perturbation.",
            why="Its questions follow from epsilon. Without noise it would be another protocol.",
            fix='Set variant = "paper", or remove --without-perturbation.',
        )
    return replace(params, epsilon=math.inf)


def describe_params(params: AnonMLParams) -> dict[str, Any]:
    """Return the facts about a run that follow from its parameters, as plain data."""
    return {"phases": phase_names(make_script(params, b""))}


def score_baselines(params: AnonMLParams, split: Split) -> BaselineScores:
    """Return the scores of the trivial predictor and of a model without privacy."""
    return {
        "most_common": score_most_common(params.n_labels, split.train_labels, split.test_labels),
        "without_privacy": score_without_privacy(
            params.schema,
            split.train_columns,
            split.train_labels,
            split.test_columns,
            split.test_labels,
        ),
    }


def run(task: RunTask, split: Split) -> RunOutcome:
    """Simulate one run: the participants answer, and the model is tested on the other rows."""
    params = task.params
    assert isinstance(params, AnonMLParams)
    script = _make_run_script(params, task)
    stays = draw_participants(len(split.train_labels), task)
    columns = {name: column[stays] for name, column in split.train_columns.items()}
    entropy, labels = task.entropy.spawn("answers"), split.train_labels[stays]
    rows = AssignedRows(columns, labels, draw_words(len(labels), entropy))
    tallies = collect_tallies(script, rows, entropy)
    model, answers = script.learn(tallies, entropy), count_answers(tallies)
    chances = model.probabilities(split.test_columns)
    scores = compute_scores(chances, model.decide(split.test_columns), split.test_labels)
    outcome = RunOutcome(scores, len(labels), answers, model.to_plain())
    if task.repeat:
        return outcome
    assert isinstance(script, AnonMLPlusScript | AnonMLPaperScript)
    details = {
        "participation": describe_participation(
            len(stays), len(labels), zip(phase_names(script), answers, strict=True)
        ),
        "calibration": compute_calibration(model.classes, chances, split.test_labels),
        "histograms": make_histograms(script, tallies, rows, model),
        "weights": list_model_weights(model),
    }
    return outcome.with_details(details)


def _make_run_script(params: AnonMLParams, task: RunTask) -> AnonMLScript:
    """Return the script of a run.

    In variant ``paper`` the digest of the manifest decides which features form a subset. The digest
    is not known before the keys of the coordinator are, so each run draws a value for it.
    """
    return make_script(params, task.entropy.spawn("digest").bytes(32))


def learn_model(task: RunTask, split: Split, engine: Engine) -> ClassificationModel:
    """Return the model of one run in which every person answers."""
    del engine
    params = task.params
    assert isinstance(params, AnonMLParams)
    return simulate(
        _make_run_script(params, task),
        split.train_columns,
        split.train_labels,
        task.entropy.spawn("answers"),
    ).model


def measure_messages(plan: Plan, task: RunTask, split: Split, *, joint: bool) -> MessageVolume:
    """Return the most that one person sends, which the label states."""
    del task, split, joint
    size = plan.make_statement().bytes
    assert size is not None
    return MessageVolume(float(size), float(len(plan.events)))


def complete_content(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Add the numbers that variant ``paper`` requires, reduced if there are few features."""
    if alternative.variant != "paper":
        return
    n_features = len(study.feature)
    n_subsets = min(_PAPER_N_SUBSETS, n_features)
    content["anonml"] = {
        "n_partitions": _PAPER_N_PARTITIONS,
        "n_subsets": n_subsets,
        "subset_size": min(_PAPER_SUBSET_SIZE, n_features // n_subsets),
    }


def check_rows(split: Split) -> Split:
    """Return the rows if no person has more than one.

    Raises
    ------
    SpecError
        ``SIM-002``: people have several rows, and AnonML asks about one.
    """
    max_rows = 1 if split.people is None else int(np.bincount(split.people).max())
    if max_rows > 1:
        raise SpecError(
            "SIM-002",
            f"AnonML asks each person about one row; people of this table have up to {max_rows}.",
        )
    return split


PROTOCOL = SimulatedProtocol(
    name="anonml",
    params_types=(AnonMLPlusParams, AnonMLPaperParams),
    make_params=make_simulation_params,
    describe_params=describe_params,
    score_baselines=score_baselines,
    run=run,
    learn_model=learn_model,
    measure_messages=measure_messages,
    sized_settings="questions and bins are",
    sweep_keys={"n_partitions": int, "n_subsets": int, "subset_size": int},
    alternatives=(
        Alternative("AnonML plus, local", "anonml", "plus", "local"),
        Alternative("AnonML plus, shuffled", "anonml", "plus", "shuffled", has_delta=True),
        Alternative("AnonML paper, local", "anonml", "paper", "local"),
    ),
    complete_content=complete_content,
    adapt_rows=check_rows,
)
