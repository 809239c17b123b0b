"""Pooled histograms of PFDS, released rows and real rows, and models of both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import fit_ridge_model
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.tables import assign_attributes, choose_n_tables
from shoal.simulation import pfds
from shoal.simulation.diagnostics import MAX_CELLS
from shoal.simulation.pfds import (
    MAX_ROWS,
    compute_marginals,
    fit_regression,
    list_model_weights,
    list_questions,
    make_histograms,
    run,
    simulate_release,
)
from shoal.simulation.run import RunTask, Split

N = 2000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10, 10)
LOCAL = PFDSParams(SCHEMA, 4.0, N, n_holders=10, minimum=8)
SUMS = replace(LOCAL, trust="secure-sum", max_colluders=3)
NUMBER = replace(SUMS, schema=replace(SCHEMA, label=Numeric("hours", 0, 12, missing=False)))
NUMBERS = replace(SPLIT, train_labels=12 * PEOPLE.chances, test_labels=12 * PEOPLE.chances)
PAPER = PFDSParams(
    SCHEMA, 8.0, N, n_holders=10, minimum=8, variant="paper", max_depth=2, n_levels=2
)
CASES: dict[str, tuple[PFDSParams, Split]] = {
    "local": (LOCAL, SPLIT),
    "sums": (SUMS, SPLIT),
    "number": (NUMBER, NUMBERS),
}
EVERY = {
    "participation",
    "calibration",
    "histograms",
    "weights",
    "exposure",
    "marginals",
    "train_on_released",
}


def digest_of(task: RunTask) -> bytes:
    return task.entropy.spawn("digest").bytes(32)


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
@pytest.mark.parametrize("name", CASES)
def test_histograms_are_those_of_the_used_rows(name: str, epsilon: float) -> None:
    params, split = CASES[name]
    params = replace(params, epsilon=epsilon)
    task = RunTask(params, 1, dropout=0.2)
    shared = simulate_release(task, split)
    told = make_histograms(
        params, digest_of(task), shared.answers, shared.sharers, shared.rows.take(shared.used)
    )
    assert [one["feature"] for one in told] == list(SCHEMA.names)
    for attribute, one in enumerate(told):
        of = [
            holder
            for holder in shared.sharers
            if params.trust != "local"
            or attribute in assign_attributes(params, digest_of(task), holder)
        ]
        behind = np.isin(shared.owners, of)
        feature = params.coded_schema.features[attribute]
        cells = feature.cut(PEOPLE.columns[feature.name])[behind]
        if params.is_number:
            expected = [[np.mean(cells == cell)] for cell in range(len(one["cells"]))]
            assert one["classes"] == ["all rows"]
        else:
            labels = PEOPLE.labels[behind]
            expected = [
                [np.mean((cells == cell) & (labels == label)) for label in (0, 1)]
                for cell in range(len(one["cells"]))
            ]
        assert np.array(one["true"]) == pytest.approx(np.array(expected), abs=1e-6)
        off = np.abs(np.array(one["estimated"]) - one["true"])
        assert (off <= 12 * np.array(one["error"]) + 1e-6).all() and (
            np.max(one["error"]) == 0
        ) == (epsilon == math.inf)


def test_table_without_answers_is_left_out() -> None:
    few = replace(LOCAL, epsilon=0.1)
    task = RunTask(few, 1, dropout=0.9)
    shared = simulate_release(task, SPLIT)
    assert choose_n_tables(few) < len(few.arities) and len(shared.sharers) == 1
    asked = assign_attributes(few, digest_of(task), shared.sharers[0])
    told = make_histograms(
        replace(few), digest_of(task), shared.answers, shared.sharers, shared.rows.take(shared.used)
    )
    assert {one["feature"] for one in told} <= {SCHEMA.names[attribute] for attribute in asked}


def test_trees_have_released_rows_instead_of_histograms() -> None:
    details = run(RunTask(PAPER, 1), SPLIT).details
    assert details.keys() == EVERY - {"histograms", "exposure"}
    assert details["participation"]["phases"] == [
        {"name": "trees and rows", "n": 10}
    ] and list_questions(LOCAL) == ("tables",)
    outcome = run(RunTask(PAPER, 1), SPLIT)
    assert isinstance(outcome.scores.accuracy, float)  # type: ignore[union-attr]
    assert details["train_on_released"]["synthetic"]["accuracy"] == outcome.scores.accuracy  # type: ignore[union-attr]
    assert details["train_on_released"]["real"]["accuracy"] > 0.6


def test_marginals_are_shares_of_cells() -> None:
    one, other = (
        PFDSRows.from_columns(
            LOCAL,
            {name: column[part] for name, column in PEOPLE.columns.items()},
            PEOPLE.labels[part],
        )
        for part in (slice(600), slice(600, N))
    )
    told = compute_marginals(LOCAL, one, other)
    assert [each["feature"] for each in told] == list(SCHEMA.names)
    region = told[-1]
    assert region["cells"] == ["north", "east", "south", "west"]
    assert region["released"] == pytest.approx(
        np.bincount(PEOPLE.columns["region"][:600]) / 600, abs=1e-6
    )
    assert region["true"] == pytest.approx(
        np.bincount(PEOPLE.columns["region"][600:]) / (N - 600), abs=1e-6
    )
    assert all(
        np.sum(each[part]) == pytest.approx(1, abs=1e-4)
        for each in told
        for part in ("released", "true")
    )


def test_marginals_without_rows_are_none() -> None:
    none, some = (
        PFDSRows.from_columns(LOCAL, PEOPLE.columns, PEOPLE.labels).take(np.arange(n))
        for n in (0, 5)
    )
    assert (
        compute_marginals(LOCAL, none, some) == compute_marginals(LOCAL, some, none) == []
        and fit_regression(LOCAL, none) is None
    )


def test_too_many_cells_give_no_marginals_and_no_score() -> None:
    towns = Categorical("town", [str(i) for i in range(1500)], missing=False)
    sex = Categorical("sex", ["f", "m"], missing=False)
    params = PFDSParams(Schema([towns, sex], label=SCHEMA.label), 1.0, 100, n_holders=10)
    columns = {"town": np.arange(100), "sex": np.arange(100) % 2}
    rows = PFDSRows.from_columns(params, columns, np.arange(100) % 2)
    assert len(towns.values) > MAX_CELLS and [
        one["feature"] for one in compute_marginals(params, rows, rows)
    ] == ["sex"]
    assert fit_regression(params, rows) is None
    labels = np.arange(100) % 2
    details = run(
        RunTask(replace(params, trust="secure-sum"), 1),
        Split(columns, labels, columns, labels, np.arange(100) % 10, 10),
    ).details
    assert "train_on_released" not in details


def test_regression_learns_from_evenly_spread_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = PFDSRows.from_columns(LOCAL, PEOPLE.columns, PEOPLE.labels)
    monkeypatch.setattr(pfds, "MAX_ROWS", 400)
    learned = fit_regression(LOCAL, rows)
    evenly = fit_ridge_model(LOCAL, rows.take(np.linspace(0, N - 1, 400).astype(np.int64)))
    assert learned is not None and np.array_equal(
        learned.compute_scores(rows.cells), evenly.compute_scores(rows.cells)
    )
    monkeypatch.setattr(pfds, "MAX_ROWS", N + 1)
    whole = fit_regression(LOCAL, rows)
    assert whole is not None and np.array_equal(
        whole.compute_scores(rows.cells), fit_ridge_model(LOCAL, rows).compute_scores(rows.cells)
    )


def test_released_rows_score_below_real_rows() -> None:
    details = run(RunTask(SUMS, 1), SPLIT).details
    assert details.keys() == EVERY
    trained = details["train_on_released"]
    assert 0.6 < trained["synthetic"]["auc"] <= trained["real"]["auc"]
    assert details["participation"]["phases"][0] == {"name": "tables", "n": 10}
    released, true = (np.array(details["marginals"][3][part]) for part in ("released", "true"))
    assert 0 < np.abs(released - true).max() < 0.1


def test_numeric_label_has_errors_in_place_of_scores() -> None:
    details: dict[str, Any] = run(RunTask(NUMBER, 1), NUMBERS).details
    assert details.keys() == EVERY - {"calibration"}
    assert {*details["train_on_released"]["real"]} == {"rmse", "mean_absolute_error", "r_squared"}
    assert {one["class"] for one in details["weights"]} == {"hours"}


def test_released_rows_are_drawn_up_to_the_limit() -> None:
    large = replace(LOCAL, size=10**9)
    details = run(RunTask(large, 1), SPLIT).details
    share_of_first = details["marginals"][0]["released"][0] * MAX_ROWS
    assert share_of_first == pytest.approx(round(share_of_first), abs=0.02)


def test_weights_are_those_of_cells() -> None:
    model = simulate_release(RunTask(SUMS, 1), SPLIT).model
    told = list_model_weights(model)
    assert (
        abs(told[0]["value"]) == pytest.approx(np.abs(model.weights).max(), rel=1e-5)
        and told[0]["class"] == "yes"
    )
