"""Fits with a prior, compared with scikit-learn."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.pfds import fitting
from shoal.protocols.pfds.dataset import draw_dataset
from shoal.protocols.pfds.fitting import (
    OWN_PENALTY,
    CellDesign,
    NewtonKernel,
    WeightPrior,
    compute_targets,
    fit_own_model,
    fit_parameters,
    fit_released_model,
    fit_ridge,
    fit_ridge_model,
    sigmoid,
)
from shoal.protocols.pfds.model import PooledModel, UnreleasedModel, from_plain
from shoal.protocols.pfds.params import GRID, Floats, PFDSParams, PFDSRows, encode_sides

ARITIES = (2, 3, 5)


def make_params(label: Categorical | Numeric, arities: tuple[int, ...] = ARITIES) -> PFDSParams:
    features = [
        Categorical(f"a{j}", [str(i) for i in range(n)], missing=False)
        for j, n in enumerate(arities)
    ]
    return PFDSParams(Schema(features, label=label), epsilon=1.0, size=1000)


CLASSES = make_params(Categorical("kind", ["no", "yes"]))
THREE = make_params(Categorical("kind", ["a", "b", "c"]))
NUMBER = make_params(Numeric("height", 0, 1))


def make_rows(params: PFDSParams, n: int, seed: int) -> PFDSRows:
    """Return rows with labels that depend on their cells; numbers are on the grid of counts."""
    rng = np.random.default_rng(seed)
    cells = (
        np.stack([rng.integers(0, arity, n) for arity in params.arities], axis=1)
        + params.starts[:-1]
    )
    lean = rng.normal(size=params.n_cells)[cells].sum(axis=1) + 0.5 * rng.normal(size=n)
    labels = (
        np.clip(0.5 + lean / 8, 0, 1)
        if params.is_number
        else np.digitize(lean, [0.0, 1.5][: params.n_sides - 1])
    )
    return PFDSRows(cells, encode_sides(params, labels))


def encode_one_hot(params: PFDSParams, rows: PFDSRows) -> Floats:
    dense: Floats = np.eye(params.n_cells)[rows.cells].sum(axis=1)
    return dense


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_logistic_fit_equals_scikit_learn(penalty: float) -> None:
    from sklearn.linear_model import LogisticRegression

    rows = make_rows(CLASSES, 300, seed=1)
    # The intercept has the same penalty, as one more column of ones.
    weights = fit_ridge(CLASSES, rows, penalty, penalty_intercept=penalty)
    oracle = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(
        np.column_stack([encode_one_hot(CLASSES, rows), np.ones(300)]), rows.sides[:, 1] // GRID
    )
    assert weights[:, 0] == pytest.approx(oracle.coef_[0], abs=1e-6)
    model = fit_ridge_model(CLASSES, rows, penalty, penalty_intercept=penalty)
    assert model.compute_scores(rows.cells)[:, 0] == pytest.approx(
        encode_one_hot(CLASSES, rows) @ weights[:-1, 0] + weights[-1, 0]
    )


def test_linear_fit_equals_scikit_learn() -> None:
    from sklearn.linear_model import Ridge

    rows = make_rows(NUMBER, 300, seed=2)
    weights = fit_ridge(NUMBER, rows, OWN_PENALTY)[:, 0]
    # A column larger than 1 turns its penalty of 3 into one of 1e-3 on the intercept.
    constant = math.sqrt(3 / 1e-3)
    oracle = Ridge(alpha=3.0, fit_intercept=False).fit(
        np.column_stack([encode_one_hot(NUMBER, rows), np.full(300, constant)]),
        rows.sides[:, 1] / GRID,
    )
    assert weights[:-1] == pytest.approx(oracle.coef_[:-1], abs=1e-8)
    assert weights[-1] == pytest.approx(oracle.coef_[-1] * constant, abs=1e-8)


def test_several_classes_are_fitted_one_against_the_rest() -> None:
    rows = make_rows(THREE, 300, seed=3)
    model, cells = fit_own_model(THREE, rows), rows.cells
    for one in range(3):
        mine = rows.sides[:, one]
        alone = fit_own_model(CLASSES, PFDSRows(rows.cells, np.stack([GRID - mine, mine], axis=1)))
        assert model.compute_scores(cells)[:, one] == pytest.approx(
            alone.compute_scores(cells)[:, 0]
        )


def test_own_model_has_a_larger_penalty() -> None:
    rows = make_rows(CLASSES, 60, seed=4)
    own, pooled = (
        fit_own_model(CLASSES, rows).compute_scores(rows.cells),
        fit_ridge_model(CLASSES, rows).compute_scores(rows.cells),
    )
    assert own.tolist() == fit_ridge_model(CLASSES, rows, 3.0).compute_scores(rows.cells).tolist()
    assert (
        np.std(own) < np.std(pooled)
        and np.abs(fit_ridge(CLASSES, rows, 3.0)[:-1]).sum()
        < np.abs(fit_ridge(CLASSES, rows)[:-1]).sum()
    )


def test_cells_without_rows_have_weight_zero() -> None:
    rows = make_rows(CLASSES, 200, seed=5)
    kept = rows.take(np.flatnonzero(~np.isin(rows.cells, [3, 9]).any(axis=1)))
    assert CellDesign.from_rows(CLASSES, kept).present.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 10]
    assert np.flatnonzero(fit_ridge(CLASSES, kept)[:, 0] == 0).tolist() == [3, 9]


@pytest.mark.parametrize("params", [CLASSES, THREE, NUMBER], ids=["classes", "three", "number"])
def test_fit_without_rows_is_uniform(params: PFDSParams) -> None:
    model = fit_released_model(params, make_rows(params, 0, seed=6))
    assert not model.weights.any() and not model.intercepts.any()
    assert model.shares == pytest.approx([1 / 2] * 2 + [1 / 3] * 3 + [1 / 5] * 5)


def test_fit_of_a_single_class_is_finite() -> None:
    rows = PFDSRows(make_rows(CLASSES, 1000, seed=7).cells, np.tile([0, GRID], (1000, 1)))
    design, prior = CellDesign.from_rows(CLASSES, rows), WeightPrior.make_ridge(11, 3.0)
    found = fit_parameters(design, np.ones(1000), prior, is_number=False)
    assert sigmoid(design.compute_scores(found)).min() > 0.99
    # At the minimum: the slopes of the losses are those of the penalty.
    assert design.sum_by_cell(sigmoid(design.compute_scores(found)) - 1) == pytest.approx(
        -prior.precision * found, abs=1e-6
    )


def test_fit_does_not_depend_on_the_start() -> None:
    rows = make_rows(CLASSES, 120, seed=8)
    design, prior, targets = (
        CellDesign.from_rows(CLASSES, rows),
        WeightPrior.make_ridge(11, 1.0),
        compute_targets(CLASSES, rows)[:, 0],
    )
    found = fit_parameters(design, targets, prior, is_number=False)
    for start in (found, np.full(11, 5.0), np.linspace(-40, 40, 11)):
        assert fit_parameters(
            design, targets, prior, is_number=False, start=start
        ) == pytest.approx(found, abs=1e-6)


def test_fit_keeps_a_prior_of_very_high_precision() -> None:
    rows = make_rows(CLASSES, 120, seed=9)
    design, rng = CellDesign.from_rows(CLASSES, rows), np.random.default_rng(0)
    prior = WeightPrior(rng.normal(size=(11, 2)), rng.normal(size=13), np.full(13, 1e12))
    for is_number in (False, True):
        assert fit_parameters(
            design, compute_targets(CLASSES, rows)[:, 0], prior, is_number
        ) == pytest.approx(prior.centre, abs=1e-9)


def test_shared_parameters_act_as_additional_columns() -> None:
    from sklearn.linear_model import LogisticRegression

    rows = make_rows(CLASSES, 200, seed=10)
    design, basis = (
        CellDesign.from_rows(CLASSES, rows),
        np.random.default_rng(1).normal(size=(11, 2)),
    )
    found = fit_parameters(
        design,
        compute_targets(CLASSES, rows)[:, 0],
        WeightPrior(basis, np.zeros(13), np.full(13, 2.0)),
        is_number=False,
    )
    dense = np.column_stack([encode_one_hot(CLASSES, rows), np.ones(200)])
    oracle = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(np.hstack([dense @ basis, dense]), rows.sides[:, 1] // GRID)
    assert found == pytest.approx(oracle.coef_[0], abs=1e-6)


MANY = (2, 3, 5, 8, 8, 8)


@pytest.mark.parametrize("penalty_intercept", [3.0, 1e-3])
def test_fit_of_few_rows_equals_scikit_learn(penalty_intercept: float) -> None:
    from sklearn.linear_model import LogisticRegression

    params = make_params(Categorical("kind", ["no", "yes"]), MANY)
    rows = make_rows(params, 25, seed=14)
    # A column larger than 1 turns its penalty of 3 into a smaller one on the intercept.
    constant = math.sqrt(3 / penalty_intercept)
    oracle = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(
        np.column_stack([encode_one_hot(params, rows), np.full(25, constant)]),
        rows.sides[:, 1] // GRID,
    )
    weights = fit_ridge(params, rows, 3.0, penalty_intercept)[:, 0]
    assert weights == pytest.approx(oracle.coef_[0] * np.append(np.ones(34), constant), abs=1e-6)


def make_few_rows_and_prior(
    label: Categorical | Numeric, size: float
) -> tuple[CellDesign, Floats, WeightPrior]:
    """Return 25 rows, their targets, and a prior with more parameters than rows."""
    params = make_params(label, MANY)
    rows, rng = make_rows(params, 25, seed=15), np.random.default_rng(3)
    design = CellDesign.from_rows(params, rows)
    n = len(design.present)
    prior = WeightPrior(
        size * rng.normal(size=(n, 4)),
        rng.normal(size=n + 4),
        np.append(rng.uniform(1, 50, n + 3), 1e-2),
    )
    return design, compute_targets(params, rows)[:, 0], prior


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 30.0])
def test_newton_step_by_rows_equals_step_by_parameters(size: float) -> None:
    design, _, prior = make_few_rows_and_prior(Categorical("kind", ["no", "yes"]), size)
    rng = np.random.default_rng(4)
    away, slopes, curvatures = (
        rng.normal(size=len(prior.precision)),
        rng.uniform(-1, 1, 25),
        rng.uniform(0, 0.25, 25),
    )
    curvatures[:3] = 0, 1e-300, 1e-12  # where a model is very sure
    by_rows = NewtonKernel.from_design(design, prior).compute_step(away, slopes, curvatures)
    assert by_rows == pytest.approx(
        fitting._compute_step(design, prior, away, slopes, curvatures), rel=0, abs=1e-8
    )


@pytest.mark.parametrize(
    "label",
    [Categorical("kind", ["no", "yes"]), Numeric("height", 0, 1)],
    ids=["classes", "number"],
)
def test_fit_by_rows_equals_fit_by_parameters(
    monkeypatch: pytest.MonkeyPatch, label: Categorical | Numeric
) -> None:
    (design, targets, prior), is_number = (
        make_few_rows_and_prior(label, 1.0),
        isinstance(label, Numeric),
    )
    starts = (None, np.linspace(-3, 3, len(prior.precision)))
    found = [fit_parameters(design, targets, prior, is_number, start) for start in starts]
    monkeypatch.setattr(
        NewtonKernel,
        "from_design",
        lambda design, prior: SimpleNamespace(
            compute_step=partial(fitting._compute_step, design, prior)
        ),
    )
    for one, start in zip(found, starts, strict=True):
        assert one == pytest.approx(
            fit_parameters(design, targets, prior, is_number, start), rel=0, abs=1e-8
        )


@pytest.mark.parametrize("n", [10, 34, 35, 36, 200])
def test_fit_solves_by_rows_only_if_rows_are_fewer(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    params = make_params(Categorical("kind", ["no", "yes"]), MANY)
    rows = make_rows(params, n, seed=16)
    n_parameters = len(CellDesign.from_rows(params, rows).present)
    wanted, sizes = fit_ridge(params, rows), []
    solve = np.linalg.solve

    def spy(system: Floats, right: Floats) -> Floats:
        sizes.append(len(system))
        return np.asarray(solve(system, right), np.float64)

    monkeypatch.setattr(np.linalg, "solve", spy)
    assert fit_ridge(params, rows) == pytest.approx(wanted) and set(sizes) == {min(n, n_parameters)}


def test_intercept_without_penalty_is_fitted_to_few_rows() -> None:
    params = make_params(Categorical("kind", ["no", "yes"]), MANY)
    rows = make_rows(params, 25, seed=17)
    free, almost = (fit_ridge(params, rows, 1.0, penalty) for penalty in (0.0, 1e-9))
    assert free == pytest.approx(almost, abs=1e-6)


def test_design_sums_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(CLASSES, 100, seed=11)
    design, values = CellDesign.from_rows(CLASSES, rows), np.random.default_rng(2).random(100)
    dense = np.column_stack([encode_one_hot(CLASSES, rows), np.ones(100)])
    monkeypatch.setattr(fitting, "_BLOCK", 7)
    assert design.compute_gram(values) == pytest.approx((dense * values[:, np.newaxis]).T @ dense)
    assert design.sum_by_cell(values) == pytest.approx(values @ dense)


def test_fit_stops_after_the_maximum_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(CLASSES, 120, seed=8)
    design, prior, targets = (
        CellDesign.from_rows(CLASSES, rows),
        WeightPrior.make_ridge(11, 1.0),
        compute_targets(CLASSES, rows)[:, 0],
    )
    monkeypatch.setattr(fitting, "MAX_STEPS", 2)
    after_two = fit_parameters(design, targets, prior, is_number=False)
    monkeypatch.undo()
    assert (
        1e-4 < np.abs(after_two - fit_parameters(design, targets, prior, is_number=False)).max() < 1
    )


def test_sigmoid_is_correct_for_any_score() -> None:
    assert sigmoid(np.array([-1e9, 0.0, math.log(3), 1e9])).tolist() == pytest.approx(
        [0, 0.5, 0.75, 1]
    )


def test_released_model_can_be_written() -> None:
    rows = make_rows(CLASSES, 300, seed=12)
    model, kept = fit_released_model(CLASSES, rows), fit_ridge_model(CLASSES, rows)
    assert (
        isinstance(model, PooledModel)
        and from_plain(model.to_plain()).to_plain() == model.to_plain()
    )
    assert model.compute_scores(rows.cells).tolist() == kept.compute_scores(rows.cells).tolist()
    assert (
        model.shares == pytest.approx(encode_one_hot(CLASSES, rows).mean(axis=0))
        and not model.variances.any()
    )


@pytest.mark.parametrize("make", [fit_own_model, fit_ridge_model])
def test_own_model_cannot_be_copied_or_written(
    make: Callable[[PFDSParams, PFDSRows], UnreleasedModel],
) -> None:
    model = make(CLASSES, make_rows(CLASSES, 60, seed=13))
    for copy_model in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalProtocolError) as refused:
            copy_model(model)
        assert refused.value.code == "PRIVATE-001"
    assert (
        not isinstance(model, PooledModel)
        and not hasattr(model, "to_plain")
        and not hasattr(model, "__dict__")
    )
    # Exact counts of its rows are not in its attributes or in rows drawn from it.
    assert [name for name in dir(model) if not name.startswith("_")] == [
        "compute_scores",
        "decide",
        "predict",
        "probabilities",
    ]
    assert repr(model) == "UnreleasedModel(fitted to the rows themselves: never leaves)"
    with pytest.raises(AttributeError):
        draw_dataset(model, 10, SeededEntropy(1))  # type: ignore[arg-type]
