"""Fits under a prior, beside those of scikit-learn."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.pfds import fitting
from shoal.protocols.pfds.dataset import draw
from shoal.protocols.pfds.fitting import (
    OWN_PENALTY,
    Design,
    Kernel,
    Prior,
    fit,
    own_model,
    released_model,
    ridge,
    ridge_model,
    sigmoid,
    targets_of,
)
from shoal.protocols.pfds.model import KeptModel, Model, from_plain
from shoal.protocols.pfds.params import GRID, Floats, Params, Rows, sides_of

ARITIES = (2, 3, 5)


def params_of(label: Categorical | Numeric, arities: tuple[int, ...] = ARITIES) -> Params:
    features = [Categorical(f"a{j}", [str(i) for i in range(n)], missing=False) for j, n in enumerate(arities)]
    return Params(Schema(features, label=label), epsilon=1.0, size=1000)


CLASSES = params_of(Categorical("kind", ["no", "yes"]))
THREE = params_of(Categorical("kind", ["a", "b", "c"]))
NUMBER = params_of(Numeric("height", 0, 1))


def some_rows(params: Params, n: int, seed: int) -> Rows:
    """Rows whose label leans on their cells; numbers are rounded to the grid as they are counted."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(0, arity, n) for arity in params.arities], axis=1) + params.starts[:-1]
    lean = rng.normal(size=params.n_cells)[cells].sum(axis=1) + 0.5 * rng.normal(size=n)
    labels = np.clip(0.5 + lean / 8, 0, 1) if params.is_number else np.digitize(lean, [0.0, 1.5][: params.n_sides - 1])
    return Rows(cells, sides_of(params, labels))


def one_hot(params: Params, rows: Rows) -> Floats:
    dense: Floats = np.eye(params.n_cells)[rows.cells].sum(axis=1)
    return dense


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_logistic_fits_are_those_of_scikit_learn(penalty: float) -> None:
    from sklearn.linear_model import LogisticRegression

    rows = some_rows(CLASSES, 300, seed=1)
    # The intercept is penalised alike: it is one more column of ones.
    weights = ridge(CLASSES, rows, penalty, penalty_intercept=penalty)
    oracle = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(np.column_stack([one_hot(CLASSES, rows), np.ones(300)]), rows.sides[:, 1] // GRID)
    assert weights[:, 0] == pytest.approx(oracle.coef_[0], abs=1e-6)
    model = ridge_model(CLASSES, rows, penalty, penalty_intercept=penalty)
    assert model.scores(rows.cells)[:, 0] == pytest.approx(one_hot(CLASSES, rows) @ weights[:-1, 0] + weights[-1, 0])


def test_fits_of_numbers_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import Ridge

    rows = some_rows(NUMBER, 300, seed=2)
    weights = ridge(NUMBER, rows, OWN_PENALTY)[:, 0]
    # A larger constant than 1 makes of a penalty of 3 on its column one of 1e-3 on the intercept.
    constant = math.sqrt(3 / 1e-3)
    oracle = Ridge(alpha=3.0, fit_intercept=False).fit(
        np.column_stack([one_hot(NUMBER, rows), np.full(300, constant)]), rows.sides[:, 1] / GRID
    )
    assert weights[:-1] == pytest.approx(oracle.coef_[:-1], abs=1e-8)
    assert weights[-1] == pytest.approx(oracle.coef_[-1] * constant, abs=1e-8)


def test_several_classes_are_each_against_the_rest() -> None:
    rows = some_rows(THREE, 300, seed=3)
    model, cells = own_model(THREE, rows), rows.cells
    for one in range(3):
        mine = rows.sides[:, one]
        alone = own_model(CLASSES, Rows(rows.cells, np.stack([GRID - mine, mine], axis=1)))
        assert model.scores(cells)[:, one] == pytest.approx(alone.scores(cells)[:, 0])


def test_a_holder_alone_is_penalised_more_than_all() -> None:
    rows = some_rows(CLASSES, 60, seed=4)
    own, pooled = own_model(CLASSES, rows).scores(rows.cells), ridge_model(CLASSES, rows).scores(rows.cells)
    assert own.tolist() == ridge_model(CLASSES, rows, 3.0).scores(rows.cells).tolist()
    assert np.std(own) < np.std(pooled) and np.abs(ridge(CLASSES, rows, 3.0)[:-1]).sum() < np.abs(ridge(CLASSES, rows)[:-1]).sum()


def test_cells_that_do_not_occur_weigh_nothing() -> None:
    rows = some_rows(CLASSES, 200, seed=5)
    kept = rows.take(np.flatnonzero(~np.isin(rows.cells, [3, 9]).any(axis=1)))
    assert Design.of(CLASSES, kept).present.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 10]
    assert np.flatnonzero(ridge(CLASSES, kept)[:, 0] == 0).tolist() == [3, 9]


@pytest.mark.parametrize("params", [CLASSES, THREE, NUMBER], ids=["classes", "three", "number"])
def test_without_rows_all_is_equal(params: Params) -> None:
    model = released_model(params, some_rows(params, 0, seed=6))
    assert not model.weights.any() and not model.intercepts.any()
    assert model.shares == pytest.approx([1 / 2] * 2 + [1 / 3] * 3 + [1 / 5] * 5)


def test_all_of_one_class_is_found_likely_and_finite() -> None:
    rows = Rows(some_rows(CLASSES, 1000, seed=7).cells, np.tile([0, GRID], (1000, 1)))
    design, prior = Design.of(CLASSES, rows), Prior.around_zero(11, 3.0)
    found = fit(design, np.ones(1000), prior, is_number=False)
    assert sigmoid(design.scores(found)).min() > 0.99
    # At the minimum: the slopes of the losses are those of the penalty.
    assert design.sums(sigmoid(design.scores(found)) - 1) == pytest.approx(-prior.precision * found, abs=1e-6)


def test_the_start_does_not_matter() -> None:
    rows = some_rows(CLASSES, 120, seed=8)
    design, prior, targets = Design.of(CLASSES, rows), Prior.around_zero(11, 1.0), targets_of(CLASSES, rows)[:, 0]
    found = fit(design, targets, prior, is_number=False)
    for start in (found, np.full(11, 5.0), np.linspace(-40, 40, 11)):
        assert fit(design, targets, prior, is_number=False, start=start) == pytest.approx(found, abs=1e-6)


def test_a_prior_without_doubt_stays() -> None:
    rows = some_rows(CLASSES, 120, seed=9)
    design, rng = Design.of(CLASSES, rows), np.random.default_rng(0)
    prior = Prior(rng.normal(size=(11, 2)), rng.normal(size=13), np.full(13, 1e12))
    for is_number in (False, True):
        assert fit(design, targets_of(CLASSES, rows)[:, 0], prior, is_number) == pytest.approx(prior.centre, abs=1e-9)


def test_shared_parameters_are_columns_of_their_own() -> None:
    from sklearn.linear_model import LogisticRegression

    rows = some_rows(CLASSES, 200, seed=10)
    design, basis = Design.of(CLASSES, rows), np.random.default_rng(1).normal(size=(11, 2))
    found = fit(design, targets_of(CLASSES, rows)[:, 0], Prior(basis, np.zeros(13), np.full(13, 2.0)), is_number=False)
    dense = np.column_stack([one_hot(CLASSES, rows), np.ones(200)])
    oracle = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(np.hstack([dense @ basis, dense]), rows.sides[:, 1] // GRID)
    assert found == pytest.approx(oracle.coef_[0], abs=1e-6)


MANY = (2, 3, 5, 8, 8, 8)


@pytest.mark.parametrize("penalty_intercept", [3.0, 1e-3])
def test_few_rows_are_fitted_as_scikit_learn_does(penalty_intercept: float) -> None:
    from sklearn.linear_model import LogisticRegression

    params = params_of(Categorical("kind", ["no", "yes"]), MANY)
    rows = some_rows(params, 25, seed=14)
    # A larger constant than 1 makes of a penalty of 3 on its column a smaller one on the intercept.
    constant = math.sqrt(3 / penalty_intercept)
    oracle = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(np.column_stack([one_hot(params, rows), np.full(25, constant)]), rows.sides[:, 1] // GRID)
    weights = ridge(params, rows, 3.0, penalty_intercept)[:, 0]
    assert weights == pytest.approx(oracle.coef_[0] * np.append(np.ones(34), constant), abs=1e-6)


def few_rows_and_a_prior(label: Categorical | Numeric, size: float) -> tuple[Design, Floats, Prior]:
    """25 rows, their targets, and a prior with shared parameters of some size, for more parameters than rows."""
    params = params_of(label, MANY)
    rows, rng = some_rows(params, 25, seed=15), np.random.default_rng(3)
    design = Design.of(params, rows)
    n = len(design.present)
    prior = Prior(size * rng.normal(size=(n, 4)), rng.normal(size=n + 4), np.append(rng.uniform(1, 50, n + 3), 1e-2))
    return design, targets_of(params, rows)[:, 0], prior


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 30.0])
def test_a_step_by_rows_is_the_one_by_parameters(size: float) -> None:
    design, _, prior = few_rows_and_a_prior(Categorical("kind", ["no", "yes"]), size)
    rng = np.random.default_rng(4)
    away, slopes, curvatures = rng.normal(size=len(prior.precision)), rng.uniform(-1, 1, 25), rng.uniform(0, 0.25, 25)
    curvatures[:3] = 0, 1e-300, 1e-12  # where a model is very sure
    by_rows = Kernel.of(design, prior).step(away, slopes, curvatures)
    assert by_rows == pytest.approx(fitting._step(design, prior, away, slopes, curvatures), rel=0, abs=1e-8)


@pytest.mark.parametrize("label", [Categorical("kind", ["no", "yes"]), Numeric("height", 0, 1)], ids=["classes", "number"])
def test_and_so_are_whole_fits(monkeypatch: pytest.MonkeyPatch, label: Categorical | Numeric) -> None:
    (design, targets, prior), is_number = few_rows_and_a_prior(label, 1.0), isinstance(label, Numeric)
    starts = (None, np.linspace(-3, 3, len(prior.precision)))
    found = [fit(design, targets, prior, is_number, start) for start in starts]
    monkeypatch.setattr(Kernel, "of", lambda design, prior: SimpleNamespace(step=partial(fitting._step, design, prior)))
    for one, start in zip(found, starts, strict=True):
        assert one == pytest.approx(fit(design, targets, prior, is_number, start), rel=0, abs=1e-8)


@pytest.mark.parametrize("n", [10, 34, 35, 36, 200])
def test_only_fewer_rows_than_parameters_are_taken_by_rows(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    params = params_of(Categorical("kind", ["no", "yes"]), MANY)
    rows = some_rows(params, n, seed=16)
    n_parameters = len(Design.of(params, rows).present)
    wanted, sizes = ridge(params, rows), []
    solve = np.linalg.solve

    def spy(system: Floats, right: Floats) -> Floats:
        sizes.append(len(system))
        return np.asarray(solve(system, right), np.float64)

    monkeypatch.setattr(np.linalg, "solve", spy)
    assert ridge(params, rows) == pytest.approx(wanted) and set(sizes) == {min(n, n_parameters)}


def test_an_intercept_without_penalty_is_fitted_to_few_rows_too() -> None:
    params = params_of(Categorical("kind", ["no", "yes"]), MANY)
    rows = some_rows(params, 25, seed=17)
    free, almost = (ridge(params, rows, 1.0, penalty) for penalty in (0.0, 1e-9))
    assert free == pytest.approx(almost, abs=1e-6)


def test_rows_are_gone_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(CLASSES, 100, seed=11)
    design, values = Design.of(CLASSES, rows), np.random.default_rng(2).random(100)
    dense = np.column_stack([one_hot(CLASSES, rows), np.ones(100)])
    monkeypatch.setattr(fitting, "_BLOCK", 7)
    assert design.gram(values) == pytest.approx((dense * values[:, np.newaxis]).T @ dense)
    assert design.sums(values) == pytest.approx(values @ dense)


def test_steps_end_where_no_minimum_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(CLASSES, 120, seed=8)
    design, prior, targets = Design.of(CLASSES, rows), Prior.around_zero(11, 1.0), targets_of(CLASSES, rows)[:, 0]
    monkeypatch.setattr(fitting, "MOST_STEPS", 2)
    after_two = fit(design, targets, prior, is_number=False)
    monkeypatch.undo()
    assert 1e-4 < np.abs(after_two - fit(design, targets, prior, is_number=False)).max() < 1


def test_sigmoid_of_any_score() -> None:
    assert sigmoid(np.array([-1e9, 0.0, math.log(3), 1e9])).tolist() == pytest.approx([0, 0.5, 0.75, 1])


def test_a_model_of_released_rows_is_one_that_may_be_written() -> None:
    rows = some_rows(CLASSES, 300, seed=12)
    model, kept = released_model(CLASSES, rows), ridge_model(CLASSES, rows)
    assert isinstance(model, Model) and from_plain(model.to_plain()).to_plain() == model.to_plain()
    assert model.scores(rows.cells).tolist() == kept.scores(rows.cells).tolist()
    assert model.shares == pytest.approx(one_hot(CLASSES, rows).mean(axis=0)) and not model.variances.any()


@pytest.mark.parametrize("make", [own_model, ridge_model])
def test_a_model_of_rows_themselves_never_leaves(make: Callable[[Params, Rows], KeptModel]) -> None:
    model = make(CLASSES, some_rows(CLASSES, 60, seed=13))
    for deed in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalProtocolError) as refused:
            deed(model)
        assert refused.value.code == "PRIVATE-001"
    assert not isinstance(model, Model) and not hasattr(model, "to_plain") and not hasattr(model, "__dict__")
    # Nor are exact counts of its rows in anything that it shows, or in rows that are drawn from it.
    assert [name for name in dir(model) if not name.startswith("_")] == ["decide", "predict", "probabilities", "scores"]
    assert repr(model) == "KeptModel(of rows themselves: never leaves)"
    with pytest.raises(AttributeError):
        draw(model, 10, SeededEntropy(1))  # type: ignore[arg-type]
