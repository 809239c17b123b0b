"""Simulated runs of PFDS, their diagnostics, and its alternatives in a comparison.

`PROTOCOL` is this module's entry in `shoal.simulation.registry`. A run tests the release and some
personal models on rows set aside. Diagnostics compare the pooled tables and the released rows with
the real ones, and models trained on either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, cell_names
from shoal.entropy import SeededEntropy
from shoal.messages.codec import encode
from shoal.models.weights import name_cells
from shoal.protocols.machines import Aggregator, Peer
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.dataset import Dataset, draw_dataset
from shoal.protocols.pfds.fitting import fit_own_model, fit_released_model, fit_ridge_model
from shoal.protocols.pfds.model import PooledModel, UnreleasedModel
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.paper.tree import compute_depth
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate
from shoal.protocols.pfds.script import TABLES, SecureSumScript, choose_budget
from shoal.protocols.pfds.tables import assign_attributes, count_tables, price_tables
from shoal.releases.quality import MAX_WEIGHTS
from shoal.simulation.diagnostics import (
    MAX_CELLS,
    Details,
    compute_model_calibration,
    compute_pfds_exposure,
    describe_participation,
    list_scored_classes,
    list_weights,
    make_count_histogram,
    round_values,
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
    PersonalModelScores,
    RegressionScores,
    average_scores,
    compute_errors,
    compute_scores,
    is_better,
    score_mean_label,
    score_most_common,
)
from shoal.simulation.protocol import Alternative, Engine, MessageVolume, SimulatedProtocol
from shoal.simulation.run import RunOutcome, RunTask, Split
from shoal.study.constraints import DeclaredRoster, compute_default_colluders
from shoal.study.pfds import build_params
from shoal.study.plan import Plan
from shoal.study.spec import Study

ALL_ROWS = "all rows"
"""Name of the only class if the label is a number."""

MAX_ROWS = 5_000
"""Rows that a diagnostic model learns from: enough to compare released rows with real ones."""

AttributeCounts = Iterator[tuple[int, Floats, Floats, float]]
"""Attribute, noisy and true counts ``(cells, sides)`` in rows, and a noisy count's deviation."""


def list_questions(params: PFDSParams) -> tuple[str, ...]:
    """Return the names of the questions that every holder answers."""
    if params.variant == "paper":
        return ("trees and rows",)
    return (TABLES,) if params.trust == "local" else choose_budget(params).questions


def list_model_weights(model: PooledModel) -> list[Details]:
    """Return the largest weights of the cells.

    A weight is the log-odds of the second of two classes, or of each of several classes. If the
    label is a number, it is a share of the label's range.
    """
    return list_weights(
        name_cells(model.schema.features), list_scored_classes(model.schema.label), model.weights
    )


def make_histograms(
    params: PFDSParams,
    digest: bytes,
    answers: Sequence[Ints],
    sharers: Sequence[int],
    rows: PFDSRows,
) -> list[Details]:
    """Return the pooled table of each feature and the label, with the true one.

    Variant ``paper`` has no tables.

    Parameters
    ----------
    digest
        With trust ``local`` it decides which holder answers which tables.
    answers
        The tables of each sharer, or the sums.
    rows
        The rows that the sharers used, with the holder of each.

    Notes
    -----
    With trust ``local`` a feature's table is pooled from some of the holders, and the true table is
    that of the same holders. Readers of the tables cannot know how much these holders differ from
    the others, and the standard error does not include it.
    """
    if params.variant == "paper":
        return []
    tables = (
        _iterate_local_tables(params, digest, answers, sharers, rows)
        if params.trust == "local"
        else _iterate_sums(params, answers, sharers, rows)
    )
    label, histograms = params.label, []
    for attribute, noisy, true, deviation in tables:
        feature = params.coded_schema.features[attribute]
        if isinstance(label, Categorical):
            histogram = make_count_histogram(feature, label.values, noisy, deviation, true)
        else:
            noisy_total, true_total = (table.sum(axis=1, keepdims=True) for table in (noisy, true))
            histogram = make_count_histogram(
                feature,
                (ALL_ROWS,),
                noisy_total,
                math.sqrt(params.n_sides) * deviation,
                true_total,
            )
        histograms += [] if histogram is None else [histogram]
    return histograms


def _iterate_sums(
    params: PFDSParams, answers: Sequence[Ints], sharers: Sequence[int], rows: PFDSRows
) -> AttributeCounts:
    mechanism = SecureSumScript(params).find_mechanism(TABLES)
    deviation = 0.0 if mechanism is None else math.sqrt(mechanism.variance(len(sharers))) / GRID
    true = count_tables(params, rows, range(len(params.arities)))
    noisy, exact = (
        np.split(counts.reshape(-1, params.n_sides) / GRID, params.starts[1:-1])
        for counts in (answers[0], true)
    )
    for attribute, pair in enumerate(zip(noisy, exact, strict=True)):
        yield attribute, *pair, deviation


def _iterate_local_tables(
    params: PFDSParams,
    digest: bytes,
    answers: Sequence[Ints],
    sharers: Sequence[int],
    rows: PFDSRows,
) -> AttributeCounts:
    assert rows.owners is not None
    deviation = (
        0.0
        if params.is_noiseless
        else math.sqrt(2) * float(price_tables(params).parameters["scale"]) / GRID
    )
    parts: dict[int, dict[int, Ints]] = {attribute: {} for attribute in range(len(params.arities))}
    for holder, answer in zip(sharers, answers, strict=True):
        attributes = assign_attributes(params, digest, holder)
        ends = np.cumsum([params.arities[attribute] for attribute in attributes])[:-1]
        for attribute, part in zip(
            attributes, np.split(answer.reshape(-1, params.n_sides), ends), strict=True
        ):
            parts[attribute][holder] = part
    for attribute, by_holder in parts.items():
        if by_holder:
            mine = rows.take(np.isin(rows.owners, list(by_holder)))
            true = count_tables(params, mine, [attribute]).reshape(-1, params.n_sides) / GRID
            yield (
                attribute,
                np.sum(list(by_holder.values()), axis=0) / GRID,
                true,
                deviation * math.sqrt(len(by_holder)),
            )


def compute_marginals(params: PFDSParams, released: PFDSRows, real: PFDSRows) -> list[Details]:
    """Return the shares of each feature's cells in the released rows and in the real rows.

    Without released or real rows the list is empty.
    """
    if not len(released) or not len(real):
        return []
    released_shares, real_shares = (
        np.bincount(rows.cells.ravel(), minlength=params.n_cells) / len(rows)
        for rows in (released, real)
    )
    return [
        {
            "feature": feature.name,
            "cells": list(cell_names(feature)),
            "released": round_values(released_shares[start:end]),
            "true": round_values(real_shares[start:end]),
        }
        for feature, start, end in zip(
            params.coded_schema.features, params.starts[:-1], params.starts[1:], strict=True
        )
        if end - start <= MAX_CELLS
    ]


def fit_regression(params: PFDSParams, rows: PFDSRows) -> UnreleasedModel | None:
    """Return a regression on rows; None without rows, or with too many weights for this use."""
    if not len(rows) or params.n_cells * params.n_models > MAX_WEIGHTS:
        return None
    # Tables are often sorted, so evenly spaced rows are taken.
    evenly = np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(np.int64)
    return fit_ridge_model(params, rows.take(evenly))


MAX_PERSONAL_MODELS = 20
"""Holders, drawn at random, with personal models that are tested."""
_DIGEST_BYTES = 32


def make_simulation_params(study: Study, *, without_perturbation: bool) -> PFDSParams:
    """Return the parameters for a simulation of a study, with or without noise."""
    params = build_params(study)
    return replace(params, epsilon=math.inf) if without_perturbation else params


def describe_params(params: PFDSParams) -> dict[str, Any]:
    """Return the facts about a run that follow from its parameters, as plain data."""
    is_paper = params.variant == "paper"
    return {
        "variant": params.variant,
        "trust": params.trust,
        "noise": None if params.is_noiseless else "own" if params.trust == "local" else "shares",
        "n_holders": params.n_holders,
        "max_colluders": params.max_colluders,
        "n_honest": params.n_honest,
        "n_tables": tables.choose_n_tables(params)
        if params.trust == "local" and not is_paper
        else None,
        "depth": compute_depth(params) if is_paper else None,
        "labelling": params.labelling if is_paper else None,
        "projection": params.projection if is_paper else None,
    }


def score_baselines(params: PFDSParams, split: Split) -> BaselineScores:
    """Return the scores of the trivial predictor and of a regression without privacy.

    The regression is logistic or ridge, on all rows in the public coding.
    """
    if params.is_number:
        guessed: BaselineScores = {
            "mean_label": score_mean_label(split.train_labels, split.test_labels)
        }
    else:
        guessed = {
            "most_common": score_most_common(params.n_sides, split.train_labels, split.test_labels)
        }
    return {
        **guessed,
        "without_privacy": _score_model(
            params,
            fit_ridge_model(
                params, PFDSRows.from_columns(params, split.train_columns, split.train_labels)
            ),
            split,
        ),
    }


@dataclass(frozen=True, eq=False)
class SimulatedRelease:
    """The release of one run.

    Parameters
    ----------
    model
        The pooled model, or a regression on all released rows.
    answers
        Variant plus: the noisy sums of every question, or the tables of each sharer.
    datasets
        Variant paper: the released rows of each sharer. Those of variant plus are drawn from its
        model.
    sharers
        Positions of the holders that share.
    rows
        All training rows in the public coding, with the holder of each.
    used
        ``(n,)`` whether the sharers used a row.
    """

    model: PooledModel
    answers: tuple[Ints, ...]
    datasets: tuple[Dataset, ...]
    sharers: tuple[int, ...]
    rows: PFDSRows
    used: npt.NDArray[np.bool_]

    @property
    def owners(self) -> Ints:
        """``(n,)`` the holder of each row."""
        assert self.rows.owners is not None
        return self.rows.owners

    @property
    def n_rows(self) -> int:
        """Number of rows that the sharers used."""
        return int(self.used.sum())

    def draw_released_rows(self, params: PFDSParams, task: RunTask) -> tuple[Dataset, ...]:
        """Return the released rows: those of each sharer, or the declared number for the pool."""
        return self.datasets or (draw_dataset(self.model, params.size, task.entropy.spawn("rows")),)


def simulate_release(task: RunTask, split: Split) -> SimulatedRelease:
    """Simulate the release of one run: holders that do not drop out share their usable rows."""
    params = task.params
    assert isinstance(params, PFDSParams)
    members = make_members(params)
    holder = assign_holders(
        members,
        len(split.train_labels),
        split.holders,
        split.n_holders,
        task.entropy.spawn("holders"),
    )
    shares = draw_respondents(members, task, is_sum=params.trust == "secure-sum")
    sharers = tuple(np.flatnonzero(shares).tolist())
    used = select_used_rows(holder, split.people, params.max_rows)
    rows = PFDSRows.from_columns(params, split.train_columns, split.train_labels, holder)
    used_by_sharers = used & shares[holder]
    if params.variant == "paper":
        columns = {name: column[used] for name, column in split.train_columns.items()}
        datasets = simulate_paper(
            params,
            columns,
            split.train_labels[used],
            holder[used],
            task.entropy.spawn("answers"),
            sharers,
        ).datasets
        return SimulatedRelease(
            fit_released_model(params, _merge_datasets(params, datasets)),
            (),
            datasets,
            sharers,
            rows,
            used_by_sharers,
        )
    learned = simulate(
        params, rows.take(used), _draw_digest(task), task.entropy.spawn("answers"), sharers=sharers
    )
    return SimulatedRelease(learned.model, learned.answers, (), sharers, rows, used_by_sharers)


def make_members(params: PFDSParams) -> DeclaredRoster:
    """Return the holders that the study declares."""
    return DeclaredRoster(
        "pfds", "n_holders", "holders", params.n_holders, params.minimum, params.max_colluders
    )


def _draw_digest(task: RunTask) -> bytes:
    """Return a value for the digest of the manifest, which depends on keys that are not known."""
    return task.entropy.spawn("digest").bytes(_DIGEST_BYTES)


def run(task: RunTask, split: Split) -> RunOutcome:
    """Simulate one run; test the release and some personal models on the test rows."""
    params, shared = task.params, simulate_release(task, split)
    assert isinstance(params, PFDSParams)
    sizes = tuple(map(len, shared.datasets or shared.answers))
    personal = score_personal_models(params, split, shared, task.entropy.spawn("homes"))
    scores = _score_model(params, shared.model, split)
    outcome = RunOutcome(
        scores, len(shared.sharers), sizes, shared.model.to_plain(), shared.n_rows, personal
    )
    return (
        outcome if task.repeat else outcome.with_details(_make_details(params, task, split, shared))
    )


def _make_details(
    params: PFDSParams, task: RunTask, split: Split, shared: SimulatedRelease
) -> dict[str, Any]:
    """Return the diagnostics of a run."""
    sharers, real = shared.sharers, shared.rows.take(shared.used)
    released = _merge_datasets(
        params, shared.draw_released_rows(replace(params, size=min(params.size, MAX_ROWS)), task)
    )
    # The model of variant paper is already a regression on released rows.
    models = {
        "synthetic": shared.model
        if params.variant == "paper"
        else fit_regression(params, released),
        "real": fit_regression(params, real),
    }
    trained = {
        name: asdict(_score_model(params, model, split))
        for name, model in models.items()
        if model is not None
    }
    return {
        "participation": describe_participation(
            params.n_holders,
            len(sharers),
            [(name, len(sharers)) for name in list_questions(params)],
        ),
        "calibration": compute_model_calibration(
            shared.model, split.test_columns, split.test_labels
        ),
        "histograms": make_histograms(params, _draw_digest(task), shared.answers, sharers, real),
        "weights": list_model_weights(shared.model),
        "exposure": compute_pfds_exposure(params),
        "marginals": compute_marginals(params, released, real),
        "train_on_released": trained if len(trained) == len(models) else {},
    }


def score_personal_models(
    params: PFDSParams, split: Split, shared: SimulatedRelease, entropy: SeededEntropy
) -> PersonalModelScores:
    """Return the scores of some personal models.

    Holders that dropped out are among them: they read the release also.
    """
    tested = np.sort(
        np.argsort(entropy.words(params.n_holders, np.uint64), kind="stable")[:MAX_PERSONAL_MODELS]
    ).tolist()
    rows, released = shared.rows, _merge_datasets(params, shared.datasets)
    personal, own = [], []
    for holder in tested:
        mine = rows.take(shared.owners == holder)
        own.append(_score_model(params, fit_own_model(params, mine), split))
        if params.variant == "paper":
            model: Any = fit_ridge_model(params, _concatenate_rows(released, mine))
        else:
            model = fit_personal_model(shared.model, mine, entropy.spawn(holder))
        personal.append(_score_model(params, model, split))
    gains = [is_better(*pair) for pair in zip(personal, own, strict=True)]
    return PersonalModelScores(
        average_scores(personal), average_scores(own), sum(gains) / len(gains), len(tested)
    )


def _merge_datasets(params: PFDSParams, datasets: Sequence[Dataset]) -> PFDSRows:
    """Return the rows of all datasets in the public coding."""
    nothing = PFDSRows(
        np.zeros((0, len(params.arities)), np.int64), np.zeros((0, params.n_sides), np.int64)
    )
    return _concatenate_rows(
        nothing,
        *(PFDSRows.from_columns(params, dataset.columns, dataset.labels) for dataset in datasets),
    )


def _concatenate_rows(*parts: PFDSRows) -> PFDSRows:
    return PFDSRows(
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.sides for part in parts]),
    )


def _score_model(
    params: PFDSParams, model: PooledModel | UnreleasedModel, split: Split
) -> ClassificationScores | RegressionScores:
    if params.is_number:
        return compute_errors(model.predict(split.test_columns), split.test_labels)
    return compute_scores(
        model.probabilities(split.test_columns), model.decide(split.test_columns), split.test_labels
    )


def learn_model(task: RunTask, split: Split, engine: Engine) -> PooledModel:
    """Return the model of one run in which every holder shares."""
    del engine
    return simulate_release(task, split).model


def make_machines(task: RunTask, split: Split) -> tuple[Aggregator[Any], Mapping[str, Peer[Any]]]:
    """Return the real aggregator and peers of a run, each holder with its rows."""
    from shoal.simulation import machines

    params = task.params
    assert isinstance(params, PFDSParams)
    parts = split_by_member(make_members(params), task, split, params.max_rows)
    if params.variant == "paper":
        return machines.make_pfds_paper_machines(
            params, [TreeRows.from_columns(params, *part) for part in parts]
        )
    return machines.make_pfds_machines(
        params, [PFDSRows.from_columns(params, *part) for part in parts]
    )


def measure_messages(
    plan: Plan, task: RunTask, split: Split, *, joint: bool
) -> MessageVolume | None:
    """Run the real machines, and return what one holder sends; None for too many holders.

    With trust ``local`` a holder of variant ``plus`` sends one message. Most of its work comes
    after that, so only the message is made.
    """
    from shoal.simulation import machines

    del plan, joint
    params, entropy = task.params, task.entropy.spawn("machines")
    assert isinstance(params, PFDSParams)
    if params.n_holders > machines.MAX_MEMBERS[params.trust]:
        return None
    aggregator, peers = make_machines(task, split)
    if params.trust == "secure-sum" or params.variant == "paper":
        return machines.run_and_measure((aggregator, peers), entropy, nullcontext())
    sizes = [
        len(encode(peer.answer(peer.initial_state(), TABLES, task.entropy.spawn(name))))
        for name, peer in peers.items()
    ]
    return MessageVolume(sum(sizes) / len(sizes), 1.0)


def complete_content(alternative: Alternative, study: Study, content: dict[str, Any]) -> None:
    """Remove bins if the alternative has trees, which choose their split values themselves."""
    del study
    if alternative.variant == "paper":
        content["feature"] = [
            {key: value for key, value in feature.items() if key != "bins"}
            for feature in content["feature"]
        ]


def list_derived_keys(study: Study) -> frozenset[str]:
    """Return the keys that have the value of their default rule."""
    settings = study.pfds
    assert settings is not None
    defaults = {
        "n_levels": min(PFDSParams.n_levels, settings.max_depth or 0),
        "max_colluders": compute_default_colluders(settings.n_holders),
    }
    return frozenset(key for key, value in defaults.items() if getattr(settings, key) == value)


PROTOCOL = SimulatedProtocol(
    name="pfds",
    params_types=(PFDSParams,),
    make_params=make_simulation_params,
    describe_params=describe_params,
    score_baselines=score_baselines,
    run=run,
    learn_model=learn_model,
    measure_messages=measure_messages,
    sized_settings="the questions to each holder are",
    sweep_keys={"n_holders": int, "max_colluders": int, "max_depth": int},
    alternatives=(
        Alternative("PFDS plus, local", "pfds", "plus", "local"),
        Alternative("PFDS plus, secure sums", "pfds", "plus", "secure-sum"),
        Alternative(
            "PFDS plus, secure sums with delta", "pfds", "plus", "secure-sum", has_delta=True
        ),
        Alternative("PFDS paper, local", "pfds", "paper", "local"),
    ),
    complete_content=complete_content,
    list_derived_keys=list_derived_keys,
)
