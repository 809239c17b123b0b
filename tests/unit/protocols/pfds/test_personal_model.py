"""Personal models: a blend of the pooled model and the holder's rows, never copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.pfds import personal_model as module
from shoal.protocols.pfds.fitting import (
    CellDesign,
    WeightPrior,
    compute_targets,
    fit_own_model,
    fit_released_model,
    fit_ridge_model,
)
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Floats, PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import (
    PersonalModel,
    compute_blend,
    cross_validate,
    fit_personal_model,
    make_basis,
    make_pooled_prior,
)

ARITIES = (2, 3, 5)
D = sum(ARITIES)
Columns = Mapping[str, npt.NDArray[Any]]


def make_params(label: Categorical | Numeric, trust: str = "local", size: int = 1000) -> PFDSParams:
    features = [
        Categorical(f"a{j}", [str(i) for i in range(n)], missing=False)
        for j, n in enumerate(ARITIES)
    ]
    return PFDSParams(Schema(features, label=label), epsilon=1.0, size=size, trust=trust)  # type: ignore[arg-type]


CLASSES = make_params(kind := Categorical("kind", ["no", "yes"]))
SUMMED = make_params(kind, "secure-sum", size=100_000)
THREE = make_params(Categorical("kind", ["a", "b", "c"]))
NUMBER = make_params(Numeric("height", -10, 10))


def make_columns(n: int, seed: int) -> tuple[Columns, Floats]:
    """Return features and a score of the label, whose effects are the same for every seed."""
    rng = np.random.default_rng(seed)
    columns = {f"a{j}": rng.integers(0, arity, n) for j, arity in enumerate(ARITIES)}
    effects = np.random.default_rng(99)
    return columns, sum(
        effects.normal(size=arity)[columns[f"a{j}"]] for j, arity in enumerate(ARITIES)
    ) + rng.normal(size=n)


def make_rows(params: PFDSParams, n: int, seed: int) -> PFDSRows:
    columns, lean = make_columns(n, seed)
    return PFDSRows.from_columns(
        params,
        columns,
        3 * lean if params.is_number else np.digitize(lean, [0.0, 1.0][: params.n_sides - 1]),
    )


def make_flat_model(params: PFDSParams, variance: float = 0.0) -> PooledModel:
    """Return a pooled model without information."""
    shape = (D, params.n_models)
    return PooledModel(
        params, np.zeros(shape), np.zeros(params.n_models), np.full(shape, variance), np.ones(D)
    )


def fit_pooled_model(params: PFDSParams) -> PooledModel:
    return fit_released_model(params, make_rows(params, 3000, seed=1))


def list_cells(params: PFDSParams) -> npt.NDArray[np.int64]:
    return np.indices(ARITIES).reshape(3, -1).T + params.starts[:-1]


@pytest.mark.parametrize("params", [CLASSES, NUMBER], ids=["classes", "number"])
@pytest.mark.parametrize("variance", [0.33, 1e12])
def test_noisy_pooled_model_gives_the_own_model(params: PFDSParams, variance: float) -> None:
    rows = make_rows(params, 80, seed=2)
    personal = fit_personal_model(
        make_flat_model(params, variance), rows, SeededEntropy(1)
    ).unblended
    alone = fit_ridge_model(params, rows, penalty=1 / 0.35, penalty_intercept=0.01)
    assert personal.compute_scores(list_cells(params)) == pytest.approx(
        alone.compute_scores(list_cells(params)), abs=1e-6
    )


def test_personal_model_moves_less_from_a_precise_pooled_model() -> None:
    rows, model = make_rows(CLASSES, 80, seed=3), fit_pooled_model(CLASSES)
    moved = []
    for variance in (0.0, 0.1, 0.3):
        noisy = PooledModel(
            CLASSES, model.weights, model.intercepts, np.full((D, 1), variance), model.shares
        )
        personal = fit_personal_model(noisy, rows, SeededEntropy(1)).unblended
        moved.append(
            np.abs(
                personal.compute_scores(list_cells(CLASSES))
                - model.compute_scores(list_cells(CLASSES))
            ).mean()
        )
    assert 0 < moved[0] < moved[1] < moved[2]


def test_personal_model_minimises_the_stated_objective() -> None:
    from scipy.optimize import minimize

    rows, pooled = make_rows(CLASSES, 60, seed=4), fit_pooled_model(CLASSES)
    variances = np.random.default_rng(5).uniform(0, 0.6, D)
    model = PooledModel(
        CLASSES, pooled.weights, pooled.intercepts, variances[:, np.newaxis], pooled.shares
    )
    dense, w, b = np.eye(D)[rows.cells].sum(axis=1), pooled.weights[:, 0], pooled.intercepts[0]
    feature, targets = np.repeat(np.arange(3), ARITIES), compute_targets(CLASSES, rows)[:, 0]

    def weights(at: Floats) -> Floats:
        mixed: Floats = at[0] * w + at[1:4][feature] * w + at[4:-1]
        return mixed

    def objective(at: Floats) -> float:
        z = dense @ weights(at) + at[-1]
        penalty = 3 * (at[0] - 1) ** 2 + 30 * np.sum(at[1:4] ** 2) + 0.01 * (at[-1] - b) ** 2
        penalty += np.sum(at[4:-1] ** 2 / (0.02 + np.minimum(variances, 0.33)))
        return float(np.sum(np.logaddexp(0, z) - targets * z) + penalty / 2)

    best = minimize(objective, np.zeros(4 + D + 1), method="BFGS", options={"gtol": 1e-7}).x
    cells = list_cells(CLASSES)
    expected = weights(best)[cells].sum(axis=1) + best[-1]
    assert fit_personal_model(model, rows, SeededEntropy(1)).unblended.compute_scores(cells)[
        :, 0
    ] == pytest.approx(expected, abs=1e-4)


def test_cells_without_rows_are_scaled_with_the_others() -> None:
    rows = make_rows(CLASSES, 200, seed=6)
    rows = rows.take(rows.cells[:, 2] != 9)
    # A pooled model with half of the correct weights.
    doubtful = fit_pooled_model(CLASSES)
    halved = PooledModel(
        CLASSES, doubtful.weights / 2, doubtful.intercepts, doubtful.variances, doubtful.shares
    )
    cell = np.array([[0, 2, 9]])
    personal, personal_model = (
        fit_personal_model(halved, rows, SeededEntropy(1)).unblended,
        fit_personal_model(halved, rows, SeededEntropy(1)),
    )
    basis = make_basis(CLASSES, np.append(halved.weights, halved.intercepts))
    design = CellDesign.from_rows(CLASSES, rows)
    prior = make_pooled_prior(design.present, basis, halved.intercepts[0], halved.variances[:, 0])
    found, _ = cross_validate(
        design, compute_targets(CLASSES, rows)[:, 0], np.zeros(len(rows), np.int64), prior, False
    )
    own, last = found[4:], halved.weights[9, 0] * (found[0] + found[3])
    seen = sum(
        halved.weights[c, 0] * (found[0] + found[1 + j]) + own[c] for j, c in enumerate((0, 2))
    )
    assert found[0] > 1.05
    assert personal.compute_scores(cell)[0, 0] == pytest.approx(seen + last + own[-1])
    assert personal_model.compute_scores(cell).shape == (1, 1)


@pytest.mark.parametrize("params", [CLASSES, SUMMED, NUMBER], ids=["local", "secure-sum", "number"])
def test_blend_is_between_its_two_models(params: PFDSParams) -> None:
    rows, model, cells = make_rows(params, 60, seed=7), fit_pooled_model(params), list_cells(params)
    personal_model = fit_personal_model(model, rows, SeededEntropy(1))
    other = fit_own_model(params, rows) if params.trust == "local" else model
    (share,) = personal_model.blend
    assert 0 < share < 1
    assert personal_model.compute_scores(cells) == pytest.approx(
        share * personal_model.unblended.compute_scores(cells)
        + (1 - share) * other.compute_scores(cells)
    )
    assert personal_model.unblended.blend.tolist() == [1.0]


@pytest.mark.parametrize("label", [kind, Numeric("height", -10, 10)], ids=["classes", "number"])
def test_blend_with_noisy_sums_includes_the_own_model(label: Categorical | Numeric) -> None:
    params = make_params(label, "secure-sum")
    rows, cells = make_rows(params, 120, seed=20), list_cells(params)
    useless = replace(make_flat_model(params), weights=np.random.default_rng(4).normal(size=(D, 1)))
    personal_model = fit_personal_model(useless, rows, SeededEntropy(1))
    sources = np.column_stack(
        [
            one.compute_scores(cells)[:, 0]
            for one in (personal_model.unblended, useless, fit_own_model(params, rows))
        ]
    )
    (personal, pooled, own), rest, *_ = np.linalg.lstsq(
        sources, personal_model.compute_scores(cells)[:, 0]
    )
    assert rest == pytest.approx(0, abs=1e-9)
    assert personal == pytest.approx(
        personal_model.blend[0]
    ) and personal + pooled + own == pytest.approx(1)
    assert own > 0.5 > 0.2 > pooled
    # With the same release and small declared noise, the own model has almost no share.
    precise = replace(useless, params=make_params(label, "secure-sum", 100_000))
    assert fit_personal_model(precise, rows, SeededEntropy(1)).blend[0] > 0.9


def test_blend_uses_a_good_release_and_ignores_a_bad_one() -> None:
    rows, good = make_rows(CLASSES, 100, seed=8), fit_pooled_model(CLASSES)
    bad = PooledModel(
        CLASSES,
        6 * np.random.default_rng(3).normal(size=(D, 1)),
        good.intercepts,
        good.variances,
        good.shares,
    )
    assert (
        fit_personal_model(bad, rows, SeededEntropy(1)).blend[0]
        < 0.2
        < 0.5
        < fit_personal_model(good, rows, SeededEntropy(1)).blend[0]
    )


def test_personal_model_is_better_than_both_of_its_sources() -> None:
    columns, lean = make_columns(4000, seed=9)
    truth = (lean > 0).astype(np.int64)
    # The pooled model knows one feature; the holder has few rows.
    model = fit_pooled_model(CLASSES)
    blind = np.where(np.arange(D) < 5, 0.0, model.weights[:, 0])[:, np.newaxis]
    part = PooledModel(CLASSES, blind, model.intercepts, np.full((D, 1), 0.2), model.shares)

    def error(decided: npt.NDArray[np.int64]) -> float:
        return float(np.mean(decided != truth))

    errors = []
    for seed in range(20, 32):
        rows = make_rows(CLASSES, 40, seed)
        personal_model = fit_personal_model(part, rows, SeededEntropy(seed))
        errors.append(
            (
                error(personal_model.decide(columns)),
                error(fit_own_model(CLASSES, rows).decide(columns)),
                error(part.decide(columns)),
            )
        )
    personal_error, own_error, pooled_error = np.mean(errors, axis=0)
    assert personal_error < own_error < pooled_error


@pytest.mark.parametrize(
    "params", [CLASSES, SUMMED, THREE, NUMBER], ids=["local", "secure-sum", "three", "number"]
)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_fewer_than_ten_rows_give_the_pooled_model(params: PFDSParams, n: int) -> None:
    model = fit_pooled_model(params)
    personal_model = fit_personal_model(model, make_rows(params, n, seed=10), SeededEntropy(1))
    for one in (personal_model, personal_model.unblended):
        assert (
            one.compute_scores(list_cells(params)).tolist()
            == model.compute_scores(list_cells(params)).tolist()
        )
        assert one.blend.tolist() == [1.0] * params.n_models


def test_ten_rows_suffice_but_one_class_does_not() -> None:
    model, rows = fit_pooled_model(CLASSES), make_rows(CLASSES, 400, seed=11)
    ten = rows.take(np.concatenate([np.flatnonzero(rows.sides[:, side])[:5] for side in (0, 1)]))
    assert fit_personal_model(model, ten, SeededEntropy(1)).blend[0] < 1
    same = fit_personal_model(model, rows.take(rows.sides[:, 1] > 0), SeededEntropy(1))
    assert (
        same.compute_scores(list_cells(CLASSES)).tolist()
        == model.compute_scores(list_cells(CLASSES)).tolist()
    )


def test_each_class_is_fitted_separately() -> None:
    model, rows = fit_pooled_model(THREE), make_rows(THREE, 200, seed=12)
    without = rows.take(rows.sides[:, 2] == 0)
    personal_model, cells = fit_personal_model(model, without, SeededEntropy(1)), list_cells(THREE)
    # A class without rows of the holder has the scores of the pooled model.
    assert (
        personal_model.compute_scores(cells)[:, 2].tolist()
        == model.compute_scores(cells)[:, 2].tolist()
        and personal_model.blend[2] == 1
    )
    assert (personal_model.blend[:2] < 1).all() and (
        personal_model.compute_scores(cells)[:, :2] != model.compute_scores(cells)[:, :2]
    ).any()
    columns, lean = make_columns(500, seed=13)
    chances = personal_model.probabilities(columns)
    assert chances.shape == (500, 3) and chances.sum(axis=1) == pytest.approx(1)
    assert (
        np.mean(
            fit_personal_model(model, rows, SeededEntropy(1)).decide(columns)
            == np.digitize(lean, [0.0, 1.0])
        )
        > 0.5
    )


def test_personal_model_predicts_numbers_in_their_range() -> None:
    personal_model = fit_personal_model(
        fit_pooled_model(NUMBER), make_rows(NUMBER, 100, seed=14), SeededEntropy(1)
    )
    columns, lean = make_columns(500, seed=15)
    predicted = personal_model.predict(columns)
    assert np.abs(predicted).max() <= 10
    assert np.mean((predicted - np.clip(3 * lean, -10, 10)) ** 2) < 0.6 * np.var(3 * lean)


def test_folds_are_even_and_follow_from_the_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[npt.NDArray[np.int64]] = []

    def spy(
        design: CellDesign,
        targets: Floats,
        folds: npt.NDArray[np.int64],
        prior: WeightPrior,
        is_number: bool,
    ) -> tuple[Floats, Floats]:
        seen.append(folds)
        return cross_validate(design, targets, folds, prior, is_number)

    monkeypatch.setattr(module, "cross_validate", spy)
    model, rows = fit_pooled_model(CLASSES), make_rows(CLASSES, 53, seed=16)
    for seed in (1, 1, 2):
        fit_personal_model(model, rows, SeededEntropy(seed))
    assert all(sorted(np.bincount(folds, minlength=5)) == [10, 10, 11, 11, 11] for folds in seen)
    # Both models of a holder use the same folds, which follow from the entropy.
    assert seen[0].tolist() == seen[1].tolist() == seen[2].tolist() != seen[4].tolist()


def test_cross_validate_scores_a_row_by_other_folds_only() -> None:
    rows = make_rows(CLASSES, 100, seed=17)
    design, targets, folds = (
        CellDesign.from_rows(CLASSES, rows),
        compute_targets(CLASSES, rows)[:, 0],
        np.arange(100) % 5,
    )
    prior = WeightPrior.make_ridge(len(design.present), 3.0)
    _, scores = cross_validate(design, targets, folds, prior, False)
    alone = fit_own_model(CLASSES, rows.take(folds != 2))
    assert scores[folds == 2] == pytest.approx(
        alone.compute_scores(rows.cells[folds == 2])[:, 0], abs=1e-6
    )
    flipped = np.where(np.arange(100) == 7, 1 - targets, targets)
    _, others = cross_validate(design, flipped, folds, prior, False)
    assert others[folds == 2] == pytest.approx(scores[folds == 2], abs=1e-6)
    assert np.abs(others - scores)[folds != 2].max() > 1e-3


def test_same_entropy_gives_the_same_personal_model() -> None:
    model, rows, cells = (
        fit_pooled_model(CLASSES),
        make_rows(CLASSES, 60, seed=18),
        list_cells(CLASSES),
    )
    first, second, other = (
        fit_personal_model(model, rows, SeededEntropy(seed)) for seed in (1, 1, 2)
    )
    assert first.compute_scores(cells).tolist() == second.compute_scores(cells).tolist()
    assert first.blend[0] != other.blend[0]
    # The unblended model uses all rows, so it contains no draw.
    assert (
        first.unblended.compute_scores(cells).tolist()
        == other.unblended.compute_scores(cells).tolist()
    )


def test_compute_blend_weights_models_by_likelihood() -> None:
    targets, grid = np.array([0.0, 1.0, 1.0, 0.0]), np.linspace(0, 1, 6)
    many = np.tile(targets, 50)
    good = 2 * many - 1
    assert compute_blend(np.array([good, -good]), many, False) == pytest.approx([1, 0], abs=1e-6)
    assert compute_blend(np.array([-good, good]), many, False) == pytest.approx([0, 1], abs=1e-6)
    assert compute_blend(np.array([good, good]), many, False) == pytest.approx(0.5)
    # Each row has chance 1 / (1 + exp(-g)) in a blend of correct scores and zero scores.
    likelihoods = (1 + np.exp(-grid)) ** -4
    assert compute_blend(np.array([2 * targets - 1, np.zeros(4)]), targets, False)[
        0
    ] == pytest.approx(likelihoods @ grid / likelihoods.sum())
    # Numbers: squared errors in units of the variance of the best blend.
    squares = np.array([4 * (0.3 - 0.2 * g) ** 2 for g in grid])
    weights = np.exp(-4 / 2 * squares / squares.min())
    assert compute_blend(np.array([targets + 0.1, targets + 0.3]), targets, True)[
        0
    ] == pytest.approx(weights @ grid / weights.sum())
    assert compute_blend(np.array([targets, targets + 0.3]), targets, True)[0] == pytest.approx(1)
    assert compute_blend(np.array([targets, targets]), targets, True) == pytest.approx(0.5)


def test_compute_blend_penalises_the_own_model_as_third() -> None:
    targets = np.tile([0.0, 1.0], 100)
    good = 2 * targets - 1
    assert compute_blend(np.array([-good, -good, good]), targets, False) == pytest.approx(
        [0, 0, 1], abs=1e-6
    )
    # If all three are equally good, the third has share s in 6 - 5 s of 21 blends, each with
    # weight exp(-8 s).
    thirds = np.arange(6) / 5
    counts = (6 - 5 * thirds) * np.exp(-8 * thirds)
    third = counts @ thirds / counts.sum()
    for is_number in (False, True):
        assert compute_blend(np.array([good] * 3), targets, is_number) == pytest.approx(
            [(1 - third) / 2, (1 - third) / 2, third]
        )
    assert third < 0.1


def test_personal_model_cannot_be_copied_or_shown() -> None:
    personal_model = fit_personal_model(
        fit_pooled_model(CLASSES), make_rows(CLASSES, 60, seed=19), SeededEntropy(1)
    )
    for one in (personal_model, personal_model.unblended):
        for copy_model in (
            pickle.dumps,
            copy.copy,
            copy.deepcopy,
            lambda kept: kept.__reduce_ex__(2),
        ):
            with pytest.raises(
                LocalProtocolError,
                match="A model fitted to the rows themselves cannot be copied or pickled",
            ) as refused:
                copy_model(one)
            assert refused.value.code == "PRIVATE-001"
        assert "never leaves" in repr(one) and not any(digit in repr(one) for digit in "0123456789")
        assert not hasattr(one, "to_plain") and not hasattr(one, "__dict__")
    assert not any(
        isinstance(getattr(personal_model, name), PooledModel)
        for name in dir(PersonalModel)
        if not name.startswith("_")
    )
