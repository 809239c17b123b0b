"""Pooled tables of PFDS, released rows beside real ones, and what is learned from either."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import ridge_model
from shoal.protocols.pfds.local import attributes_of, n_tables
from shoal.protocols.pfds.params import Params, Rows
from shoal.sim import details_pfds
from shoal.sim.details import MOST_CELLS
from shoal.sim.details_pfds import MOST_ROWS, histograms, marginals, model_weights, questions, regression
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.pfds import run, share
from shoal.sim.runs import Split, Task

N = 2000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10, 10)
LOCAL = Params(SCHEMA, 4.0, N, n_holders=10, minimum=8)
SUMS = replace(LOCAL, trust="secure-sum", max_colluders=3)
NUMBER = replace(SUMS, schema=replace(SCHEMA, label=Numeric("hours", 0, 12, missing=False)))
NUMBERS = replace(SPLIT, labels=12 * PEOPLE.chances, unseen_labels=12 * PEOPLE.chances)
PAPER = Params(SCHEMA, 8.0, N, n_holders=10, minimum=8, variant="paper", max_depth=2, n_levels=2)
CASES: dict[str, tuple[Params, Split]] = {"local": (LOCAL, SPLIT), "sums": (SUMS, SPLIT), "number": (NUMBER, NUMBERS)}
EVERY = {"participation", "calibration", "histograms", "weights", "exposure", "marginals", "train_on_released"}


def digest_of(task: Task) -> bytes:
    return task.entropy.spawn("digest").bytes(32)


@pytest.mark.parametrize("epsilon", [4.0, math.inf])
@pytest.mark.parametrize("name", CASES)
def test_tables_are_of_the_rows_behind_them(name: str, epsilon: float) -> None:
    params, split = CASES[name]
    params = replace(params, epsilon=epsilon)
    task = Task(params, 1, dropout=0.2)
    shared = share(task, split)
    told = histograms(params, digest_of(task), shared.answers, shared.sharers, shared.rows.take(shared.used))
    assert [one["feature"] for one in told] == list(SCHEMA.names)
    for attribute, one in enumerate(told):
        of = [holder for holder in shared.sharers if params.trust != "local" or attribute in attributes_of(params, digest_of(task), holder)]
        behind = np.isin(shared.whose, of)
        feature = params.coded.features[attribute]
        cells = feature.cut(PEOPLE.columns[feature.name])[behind]
        if params.is_number:
            expected = [[np.mean(cells == cell)] for cell in range(len(one["cells"]))]
            assert one["classes"] == ["all rows"]
        else:
            labels = PEOPLE.labels[behind]
            expected = [[np.mean((cells == cell) & (labels == label)) for label in (0, 1)] for cell in range(len(one["cells"]))]
        assert np.array(one["true"]) == pytest.approx(np.array(expected), abs=1e-6)
        off = np.abs(np.array(one["estimated"]) - one["true"])
        assert (off <= 12 * np.array(one["error"]) + 1e-6).all() and (np.max(one["error"]) == 0) == (epsilon == math.inf)


def test_a_table_that_nobody_has_answered_is_left_out() -> None:
    few = replace(LOCAL, epsilon=0.1)
    task = Task(few, 1, dropout=0.9)
    shared = share(task, SPLIT)
    assert n_tables(few) < len(few.arities) and len(shared.sharers) == 1
    asked = attributes_of(few, digest_of(task), shared.sharers[0])
    told = histograms(replace(few), digest_of(task), shared.answers, shared.sharers, shared.rows.take(shared.used))
    assert {one["feature"] for one in told} <= {SCHEMA.names[attribute] for attribute in asked}


def test_trees_have_no_tables_but_rows() -> None:
    details = run(Task(PAPER, 1), SPLIT).details
    assert details.keys() == EVERY - {"histograms", "exposure"}
    assert details["participation"]["phases"] == [{"name": "trees and rows", "n": 10}] and questions(LOCAL) == ("tables",)
    outcome = run(Task(PAPER, 1), SPLIT)
    assert isinstance(outcome.scores.accuracy, float)  # type: ignore[union-attr]
    assert details["train_on_released"]["synthetic"]["accuracy"] == outcome.scores.accuracy  # type: ignore[union-attr]
    assert details["train_on_released"]["real"]["accuracy"] > 0.6


def test_marginals_are_shares_of_cells() -> None:
    one, other = (
        Rows.of(LOCAL, {name: column[part] for name, column in PEOPLE.columns.items()}, PEOPLE.labels[part])
        for part in (slice(600), slice(600, N))
    )
    told = marginals(LOCAL, one, other)
    assert [each["feature"] for each in told] == list(SCHEMA.names)
    region = told[-1]
    assert region["cells"] == ["north", "east", "south", "west"]
    assert region["released"] == pytest.approx(np.bincount(PEOPLE.columns["region"][:600]) / 600, abs=1e-6)
    assert region["true"] == pytest.approx(np.bincount(PEOPLE.columns["region"][600:]) / (N - 600), abs=1e-6)
    assert all(np.sum(each[part]) == pytest.approx(1, abs=1e-4) for each in told for part in ("released", "true"))


def test_without_rows_there_is_nothing_to_tell() -> None:
    none, some = (Rows.of(LOCAL, PEOPLE.columns, PEOPLE.labels).take(np.arange(n)) for n in (0, 5))
    assert marginals(LOCAL, none, some) == marginals(LOCAL, some, none) == [] and regression(LOCAL, none) is None


def test_of_too_many_cells_nothing_is_told_or_learned() -> None:
    towns = Categorical("town", [str(i) for i in range(1500)], missing=False)
    sex = Categorical("sex", ["f", "m"], missing=False)
    params = Params(Schema([towns, sex], label=SCHEMA.label), 1.0, 100, n_holders=10)
    columns = {"town": np.arange(100), "sex": np.arange(100) % 2}
    rows = Rows.of(params, columns, np.arange(100) % 2)
    assert len(towns.values) > MOST_CELLS and [one["feature"] for one in marginals(params, rows, rows)] == ["sex"]
    assert regression(params, rows) is None
    labels = np.arange(100) % 2
    details = run(Task(replace(params, trust="secure-sum"), 1), Split(columns, labels, columns, labels, np.arange(100) % 10, 10)).details
    assert "train_on_released" not in details


def test_a_regression_learns_from_rows_that_lie_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows.of(LOCAL, PEOPLE.columns, PEOPLE.labels)
    monkeypatch.setattr(details_pfds, "MOST_ROWS", 400)
    learned = regression(LOCAL, rows)
    evenly = ridge_model(LOCAL, rows.take(np.linspace(0, N - 1, 400).astype(np.int64)))
    assert learned is not None and np.array_equal(learned.scores(rows.cells), evenly.scores(rows.cells))
    monkeypatch.setattr(details_pfds, "MOST_ROWS", N + 1)
    whole = regression(LOCAL, rows)
    assert whole is not None and np.array_equal(whole.scores(rows.cells), ridge_model(LOCAL, rows).scores(rows.cells))


def test_released_rows_teach_less_than_real_ones() -> None:
    details = run(Task(SUMS, 1), SPLIT).details
    assert details.keys() == EVERY
    trained = details["train_on_released"]
    assert 0.6 < trained["synthetic"]["auc"] <= trained["real"]["auc"]
    assert details["participation"]["phases"][0] == {"name": "tables", "n": 10}
    released, true = (np.array(details["marginals"][3][part]) for part in ("released", "true"))
    assert 0 < np.abs(released - true).max() < 0.1


def test_a_number_has_errors_in_the_place_of_scores() -> None:
    details: dict[str, Any] = run(Task(NUMBER, 1), NUMBERS).details
    assert details.keys() == EVERY - {"calibration"}
    assert {*details["train_on_released"]["real"]} == {"rmse", "mean_absolute_error", "r_squared"}
    assert {one["class"] for one in details["weights"]} == {"hours"}


def test_no_more_rows_are_drawn_than_are_looked_at() -> None:
    large = replace(LOCAL, size=10**9)
    details = run(Task(large, 1), SPLIT).details
    share_of_first = details["marginals"][0]["released"][0] * MOST_ROWS
    assert share_of_first == pytest.approx(round(share_of_first), abs=0.02)


def test_weights_are_those_of_cells() -> None:
    model = share(Task(SUMS, 1), SPLIT).model
    told = model_weights(model)
    assert abs(told[0]["value"]) == pytest.approx(np.abs(model.weights).max(), rel=1e-5) and told[0]["class"] == "yes"
