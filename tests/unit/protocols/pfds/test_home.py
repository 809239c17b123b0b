"""Models at home: between the pooled model and the holder's own rows, and never out of the house."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.pfds import home as module
from shoal.protocols.pfds.fitting import Design, Prior, own_model, released_model, ridge_model, targets_of
from shoal.protocols.pfds.home import Home, around_pooled, at_home, scaled, shares_of, tried
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Floats, Params, Rows

ARITIES = (2, 3, 5)
D = sum(ARITIES)
Columns = Mapping[str, npt.NDArray[Any]]


def params_of(label: Categorical | Numeric, trust: str = "local", size: int = 1000) -> Params:
    features = [Categorical(f"a{j}", [str(i) for i in range(n)], missing=False) for j, n in enumerate(ARITIES)]
    return Params(Schema(features, label=label), epsilon=1.0, size=size, trust=trust)  # type: ignore[arg-type]


CLASSES = params_of(kind := Categorical("kind", ["no", "yes"]))
SUMMED = params_of(kind, "secure-sum", size=100_000)
THREE = params_of(Categorical("kind", ["a", "b", "c"]))
NUMBER = params_of(Numeric("height", -10, 10))


def some_columns(n: int, seed: int) -> tuple[Columns, Floats]:
    """Features, and what the label leans on, which is the same for every seed."""
    rng = np.random.default_rng(seed)
    columns = {f"a{j}": rng.integers(0, arity, n) for j, arity in enumerate(ARITIES)}
    effects = np.random.default_rng(99)
    return columns, sum(effects.normal(size=arity)[columns[f"a{j}"]] for j, arity in enumerate(ARITIES)) + rng.normal(size=n)


def some_rows(params: Params, n: int, seed: int) -> Rows:
    columns, lean = some_columns(n, seed)
    return Rows.of(params, columns, 3 * lean if params.is_number else np.digitize(lean, [0.0, 1.0][: params.n_sides - 1]))


def flat(params: Params, variance: float = 0.0) -> Model:
    """A pooled model that knows nothing."""
    shape = (D, params.n_models)
    return Model(params, np.zeros(shape), np.zeros(params.n_models), np.full(shape, variance), np.ones(D))


def pooled_for(params: Params) -> Model:
    return released_model(params, some_rows(params, 3000, seed=1))


def every_cell(params: Params) -> npt.NDArray[np.int64]:
    return np.indices(ARITIES).reshape(3, -1).T + params.starts[:-1]


@pytest.mark.parametrize("params", [CLASSES, NUMBER], ids=["classes", "number"])
@pytest.mark.parametrize("variance", [0.33, 1e12])
def test_a_pooled_model_of_noise_leaves_the_own_rows(params: Params, variance: float) -> None:
    rows = some_rows(params, 80, seed=2)
    personal = at_home(flat(params, variance), rows, SeededEntropy(1)).personal
    alone = ridge_model(params, rows, penalty=1 / 0.35, penalty_intercept=0.01)
    assert personal.scores(every_cell(params)) == pytest.approx(alone.scores(every_cell(params)), abs=1e-6)


def test_the_more_precise_the_pooled_model_the_less_it_moves() -> None:
    rows, model = some_rows(CLASSES, 80, seed=3), pooled_for(CLASSES)
    moved = []
    for variance in (0.0, 0.1, 0.3):
        noisy = Model(CLASSES, model.weights, model.intercepts, np.full((D, 1), variance), model.shares)
        personal = at_home(noisy, rows, SeededEntropy(1)).personal
        moved.append(np.abs(personal.scores(every_cell(CLASSES)) - model.scores(every_cell(CLASSES))).mean())
    assert 0 < moved[0] < moved[1] < moved[2]


def test_the_personal_model_is_the_minimum_that_was_written_down() -> None:
    from scipy.optimize import minimize

    rows, pooled = some_rows(CLASSES, 60, seed=4), pooled_for(CLASSES)
    variances = np.random.default_rng(5).uniform(0, 0.6, D)
    model = Model(CLASSES, pooled.weights, pooled.intercepts, variances[:, np.newaxis], pooled.shares)
    dense, w, b = np.eye(D)[rows.cells].sum(axis=1), pooled.weights[:, 0], pooled.intercepts[0]
    feature, targets = np.repeat(np.arange(3), ARITIES), targets_of(CLASSES, rows)[:, 0]

    def weights(at: Floats) -> Floats:
        mixed: Floats = at[0] * w + at[1:4][feature] * w + at[4:-1]
        return mixed

    def objective(at: Floats) -> float:
        z = dense @ weights(at) + at[-1]
        penalty = 3 * (at[0] - 1) ** 2 + 30 * np.sum(at[1:4] ** 2) + 0.01 * (at[-1] - b) ** 2
        penalty += np.sum(at[4:-1] ** 2 / (0.02 + np.minimum(variances, 0.33)))
        return float(np.sum(np.logaddexp(0, z) - targets * z) + penalty / 2)

    best = minimize(objective, np.zeros(4 + D + 1), method="BFGS", options={"gtol": 1e-7}).x
    cells = every_cell(CLASSES)
    expected = weights(best)[cells].sum(axis=1) + best[-1]
    assert at_home(model, rows, SeededEntropy(1)).personal.scores(cells)[:, 0] == pytest.approx(expected, abs=1e-4)


def test_cells_never_seen_are_scaled_with_the_others() -> None:
    rows = some_rows(CLASSES, 200, seed=6)
    rows = rows.take(rows.cells[:, 2] != 9)
    # A pooled model that is half as sure as it should be.
    doubtful = pooled_for(CLASSES)
    halved = Model(CLASSES, doubtful.weights / 2, doubtful.intercepts, doubtful.variances, doubtful.shares)
    cell = np.array([[0, 2, 9]])
    personal, home = at_home(halved, rows, SeededEntropy(1)).personal, at_home(halved, rows, SeededEntropy(1))
    basis = scaled(CLASSES, np.append(halved.weights, halved.intercepts))
    design = Design.of(CLASSES, rows)
    prior = around_pooled(design.present, basis, halved.intercepts[0], halved.variances[:, 0])
    found, _ = tried(design, targets_of(CLASSES, rows)[:, 0], np.zeros(len(rows), np.int64), prior, False)
    own, last = found[4:], halved.weights[9, 0] * (found[0] + found[3])
    seen = sum(halved.weights[c, 0] * (found[0] + found[1 + j]) + own[c] for j, c in enumerate((0, 2)))
    assert found[0] > 1.05
    assert personal.scores(cell)[0, 0] == pytest.approx(seen + last + own[-1])
    assert home.scores(cell).shape == (1, 1)


@pytest.mark.parametrize("params", [CLASSES, SUMMED, NUMBER], ids=["local", "secure-sum", "number"])
def test_the_blend_lies_between_its_two(params: Params) -> None:
    rows, model, cells = some_rows(params, 60, seed=7), pooled_for(params), every_cell(params)
    home = at_home(model, rows, SeededEntropy(1))
    other = own_model(params, rows) if params.trust == "local" else model
    (share,) = home.blend
    assert 0 < share < 1
    assert home.scores(cells) == pytest.approx(share * home.personal.scores(cells) + (1 - share) * other.scores(cells))
    assert home.personal.blend.tolist() == [1.0]


@pytest.mark.parametrize("label", [kind, Numeric("height", -10, 10)], ids=["classes", "number"])
def test_noisy_sums_leave_the_own_rows_a_share(label: Categorical | Numeric) -> None:
    params = params_of(label, "secure-sum")
    rows, cells = some_rows(params, 120, seed=20), every_cell(params)
    useless = replace(flat(params), weights=np.random.default_rng(4).normal(size=(D, 1)))
    home = at_home(useless, rows, SeededEntropy(1))
    sources = np.column_stack([one.scores(cells)[:, 0] for one in (home.personal, useless, own_model(params, rows))])
    (personal, pooled, own), rest, *_ = np.linalg.lstsq(sources, home.scores(cells)[:, 0])
    assert rest == pytest.approx(0, abs=1e-9)
    assert personal == pytest.approx(home.blend[0]) and personal + pooled + own == pytest.approx(1)
    assert own > 0.5 > 0.2 > pooled
    # With the same release, where the declared noise is small, the own rows alone are no part of it.
    precise = replace(useless, params=params_of(label, "secure-sum", 100_000))
    assert at_home(precise, rows, SeededEntropy(1)).blend[0] > 0.9


def test_a_good_release_is_used_and_a_misleading_one_is_not() -> None:
    rows, good = some_rows(CLASSES, 100, seed=8), pooled_for(CLASSES)
    bad = Model(CLASSES, 6 * np.random.default_rng(3).normal(size=(D, 1)), good.intercepts, good.variances, good.shares)
    assert at_home(bad, rows, SeededEntropy(1)).blend[0] < 0.2 < 0.5 < at_home(good, rows, SeededEntropy(1)).blend[0]


def test_a_home_model_is_better_than_both_of_its_sources() -> None:
    columns, lean = some_columns(4000, seed=9)
    truth = (lean > 0).astype(np.int64)
    # What was pooled knows one feature; the holder has few rows.
    model = pooled_for(CLASSES)
    blind = np.where(np.arange(D) < 5, 0.0, model.weights[:, 0])[:, np.newaxis]
    part = Model(CLASSES, blind, model.intercepts, np.full((D, 1), 0.2), model.shares)

    def error(decided: npt.NDArray[np.int64]) -> float:
        return float(np.mean(decided != truth))

    errors = []
    for seed in range(20, 32):
        rows = some_rows(CLASSES, 40, seed)
        home = at_home(part, rows, SeededEntropy(seed))
        errors.append((error(home.decide(columns)), error(own_model(CLASSES, rows).decide(columns)), error(part.decide(columns))))
    home_error, own_error, pooled_error = np.mean(errors, axis=0)
    assert home_error < own_error < pooled_error


@pytest.mark.parametrize("params", [CLASSES, SUMMED, THREE, NUMBER], ids=["local", "secure-sum", "three", "number"])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_few_rows_leave_the_pooled_model(params: Params, n: int) -> None:
    model = pooled_for(params)
    home = at_home(model, some_rows(params, n, seed=10), SeededEntropy(1))
    for one in (home, home.personal):
        assert one.scores(every_cell(params)).tolist() == model.scores(every_cell(params)).tolist()
        assert one.blend.tolist() == [1.0] * params.n_models


def test_ten_rows_are_enough_and_one_class_is_not() -> None:
    model, rows = pooled_for(CLASSES), some_rows(CLASSES, 400, seed=11)
    ten = rows.take(np.concatenate([np.flatnonzero(rows.sides[:, side])[:5] for side in (0, 1)]))
    assert at_home(model, ten, SeededEntropy(1)).blend[0] < 1
    same = at_home(model, rows.take(rows.sides[:, 1] > 0), SeededEntropy(1))
    assert same.scores(every_cell(CLASSES)).tolist() == model.scores(every_cell(CLASSES)).tolist()


def test_each_class_is_treated_by_itself() -> None:
    model, rows = pooled_for(THREE), some_rows(THREE, 200, seed=12)
    without = rows.take(rows.sides[:, 2] == 0)
    home, cells = at_home(model, without, SeededEntropy(1)), every_cell(THREE)
    # Of a class that the holder has never met it knows what the others say.
    assert home.scores(cells)[:, 2].tolist() == model.scores(cells)[:, 2].tolist() and home.blend[2] == 1
    assert (home.blend[:2] < 1).all() and (home.scores(cells)[:, :2] != model.scores(cells)[:, :2]).any()
    columns, lean = some_columns(500, seed=13)
    chances = home.probabilities(columns)
    assert chances.shape == (500, 3) and chances.sum(axis=1) == pytest.approx(1)
    assert np.mean(at_home(model, rows, SeededEntropy(1)).decide(columns) == np.digitize(lean, [0.0, 1.0])) > 0.5


def test_it_predicts_numbers_in_their_units() -> None:
    home = at_home(pooled_for(NUMBER), some_rows(NUMBER, 100, seed=14), SeededEntropy(1))
    columns, lean = some_columns(500, seed=15)
    predicted = home.predict(columns)
    assert np.abs(predicted).max() <= 10
    assert np.mean((predicted - np.clip(3 * lean, -10, 10)) ** 2) < 0.6 * np.var(3 * lean)


def test_folds_are_drawn_disjoint_and_even(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[npt.NDArray[np.int64]] = []

    def spy(design: Design, targets: Floats, folds: npt.NDArray[np.int64], prior: Prior, is_number: bool) -> tuple[Floats, Floats]:
        seen.append(folds)
        return tried(design, targets, folds, prior, is_number)

    monkeypatch.setattr(module, "tried", spy)
    model, rows = pooled_for(CLASSES), some_rows(CLASSES, 53, seed=16)
    for seed in (1, 1, 2):
        at_home(model, rows, SeededEntropy(seed))
    assert all(sorted(np.bincount(folds, minlength=5)) == [10, 10, 11, 11, 11] for folds in seen)
    # Both models of a holder are tried on the same folds, and entropy decides them.
    assert seen[0].tolist() == seen[1].tolist() == seen[2].tolist() != seen[4].tolist()


def test_a_row_is_scored_by_the_other_folds_alone() -> None:
    rows = some_rows(CLASSES, 100, seed=17)
    design, targets, folds = Design.of(CLASSES, rows), targets_of(CLASSES, rows)[:, 0], np.arange(100) % 5
    prior = Prior.around_zero(len(design.present), 3.0)
    _, scores = tried(design, targets, folds, prior, False)
    alone = own_model(CLASSES, rows.take(folds != 2))
    assert scores[folds == 2] == pytest.approx(alone.scores(rows.cells[folds == 2])[:, 0], abs=1e-6)
    flipped = np.where(np.arange(100) == 7, 1 - targets, targets)
    _, others = tried(design, flipped, folds, prior, False)
    assert others[folds == 2] == pytest.approx(scores[folds == 2], abs=1e-6)
    assert np.abs(others - scores)[folds != 2].max() > 1e-3


def test_the_same_entropy_makes_the_same_home() -> None:
    model, rows, cells = pooled_for(CLASSES), some_rows(CLASSES, 60, seed=18), every_cell(CLASSES)
    first, second, other = (at_home(model, rows, SeededEntropy(seed)) for seed in (1, 1, 2))
    assert first.scores(cells).tolist() == second.scores(cells).tolist()
    assert first.blend[0] != other.blend[0]
    # The personal model is of all rows, so no draw is in it.
    assert first.personal.scores(cells).tolist() == other.personal.scores(cells).tolist()


def test_shares_by_likelihood() -> None:
    targets, grid = np.array([0.0, 1.0, 1.0, 0.0]), np.linspace(0, 1, 6)
    many = np.tile(targets, 50)
    good = 2 * many - 1
    assert shares_of(np.array([good, -good]), many, False) == pytest.approx([1, 0], abs=1e-6)
    assert shares_of(np.array([-good, good]), many, False) == pytest.approx([0, 1], abs=1e-6)
    assert shares_of(np.array([good, good]), many, False) == pytest.approx(0.5)
    # Each row has the chance 1 / (1 + exp(-g)) by a blend of right scores and of none.
    likelihoods = (1 + np.exp(-grid)) ** -4
    assert shares_of(np.array([2 * targets - 1, np.zeros(4)]), targets, False)[0] == pytest.approx(likelihoods @ grid / likelihoods.sum())
    # Of numbers: squared errors in units of the best blend's variance.
    squares = np.array([4 * (0.3 - 0.2 * g) ** 2 for g in grid])
    weights = np.exp(-4 / 2 * squares / squares.min())
    assert shares_of(np.array([targets + 0.1, targets + 0.3]), targets, True)[0] == pytest.approx(weights @ grid / weights.sum())
    assert shares_of(np.array([targets, targets + 0.3]), targets, True)[0] == pytest.approx(1)
    assert shares_of(np.array([targets, targets]), targets, True) == pytest.approx(0.5)


def test_the_own_rows_next_to_a_pooled_model_are_doubted() -> None:
    targets = np.tile([0.0, 1.0], 100)
    good = 2 * targets - 1
    assert shares_of(np.array([-good, -good, good]), targets, False) == pytest.approx([0, 0, 1], abs=1e-6)
    # Where all three are as good, the share of the third is s in 6 - 5 s of 21 blends, and each of them counts exp(-8 s).
    thirds = np.arange(6) / 5
    counts = (6 - 5 * thirds) * np.exp(-8 * thirds)
    third = counts @ thirds / counts.sum()
    for is_number in (False, True):
        assert shares_of(np.array([good] * 3), targets, is_number) == pytest.approx([(1 - third) / 2, (1 - third) / 2, third])
    assert third < 0.1


def test_it_never_leaves() -> None:
    home = at_home(pooled_for(CLASSES), some_rows(CLASSES, 60, seed=19), SeededEntropy(1))
    for one in (home, home.personal):
        for deed in (pickle.dumps, copy.copy, copy.deepcopy, lambda kept: kept.__reduce_ex__(2)):
            with pytest.raises(LocalProtocolError, match="A model of rows themselves was about to be copied or pickled") as refused:
                deed(one)
            assert refused.value.code == "PRIVATE-001"
        assert "never leaves" in repr(one) and not any(digit in repr(one) for digit in "0123456789")
        assert not hasattr(one, "to_plain") and not hasattr(one, "__dict__")
    assert not any(isinstance(getattr(home, name), Model) for name in dir(Home) if not name.startswith("_"))
