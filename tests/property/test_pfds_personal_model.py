"""Personal models are finite for any rows, pooled model and order of rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import (
    OWN_PENALTY,
    CellDesign,
    WeightPrior,
    compute_targets,
    fit_parameters,
    fit_ridge,
)
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import PFDSParams, PFDSRows, encode_sides
from shoal.protocols.pfds.personal_model import fit_personal_model
from tests.support.hostile import hostile

labels = st.sampled_from(
    [Categorical("y", ["a", "b"]), Categorical("y", ["a", "b", "c", "d"]), Numeric("y", -3, 5)]
)
arities = st.lists(st.integers(2, 5), min_size=1, max_size=4)
trusts = st.sampled_from(["local", "secure-sum"])
seeds = st.integers(0, 2**32)


def make_params(sizes: list[int], label: Categorical | Numeric, trust: str = "local") -> PFDSParams:
    features = [
        Categorical(f"a{j}", [str(i) for i in range(n)], missing=False) for j, n in enumerate(sizes)
    ]
    return PFDSParams(Schema(features, label=label), epsilon=1.0, size=100, trust=trust)  # type: ignore[arg-type]


def make_rows(params: PFDSParams, n: int, seed: int, skew: int) -> PFDSRows:
    """Return random rows; with a larger skew, fewer cells and classes occur."""
    rng = np.random.default_rng(seed)
    cells = (
        np.stack([rng.integers(0, arity, n) // skew for arity in params.arities], axis=1)
        + params.starts[:-1]
    )
    drawn = (
        rng.uniform(-3, 5, n) if params.is_number else rng.integers(0, params.n_sides, n) // skew
    )
    return PFDSRows(cells, encode_sides(params, drawn))


@hostile(150)
@given(
    arities,
    labels,
    trusts,
    st.integers(0, 40),
    st.integers(1, 5),
    seeds,
    st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e6]),
)
def test_personal_model_is_finite_for_any_rows_and_release(
    sizes: list[int],
    label: Categorical | Numeric,
    trust: str,
    n: int,
    skew: int,
    seed: int,
    size: float,
) -> None:
    params = make_params(sizes, label, trust)
    rng, shape = np.random.default_rng(seed), (params.n_cells, params.n_models)
    weights, variances = size * rng.uniform(-1, 1, shape), rng.choice([0.0, 0.1, 1e12], shape)
    model = PooledModel(
        params,
        weights,
        size * rng.uniform(-1, 1, params.n_models),
        variances,
        np.ones(params.n_cells),
    )
    personal = fit_personal_model(model, make_rows(params, n, seed, skew), SeededEntropy(seed))
    cells = (
        np.stack([rng.integers(0, arity, 50) for arity in params.arities], axis=1)
        + params.starts[:-1]
    )
    for one in (personal, personal.unblended):
        assert np.isfinite(one.compute_scores(cells)).all() and one.compute_scores(cells).shape == (
            50,
            params.n_models,
        )
        assert ((one.blend >= 0) & (one.blend <= 1)).all()


@hostile(60)
@given(arities, labels, st.integers(0, 40), st.integers(1, 5), seeds)
def test_personal_model_ignores_order_of_rows_and_classes(
    sizes: list[int], label: Categorical | Numeric, n: int, skew: int, seed: int
) -> None:
    params = make_params(sizes, label)
    rows, order = make_rows(params, n, seed, skew), np.random.default_rng(seed).permutation(n)
    weights, again = (
        fit_ridge(params, rows, OWN_PENALTY),
        fit_ridge(params, rows.take(order), OWN_PENALTY),
    )
    assert np.allclose(weights, again, atol=1e-6)
    turned = fit_ridge(params, PFDSRows(rows.cells, rows.sides[:, ::-1]), OWN_PENALTY)
    if params.n_models > 1:
        assert np.allclose(turned, weights[:, ::-1], atol=1e-6)
    elif not params.is_number:
        assert np.allclose(turned, -weights, atol=1e-6)


@hostile(60)
@given(arities, st.integers(1, 60), st.integers(1, 5), seeds, st.sampled_from([0.0, 3.0, 100.0]))
def test_fit_ends_with_zero_gradient_from_any_start(
    sizes: list[int], n: int, skew: int, seed: int, far: float
) -> None:
    params = make_params(sizes, Categorical("y", ["a", "b"]))
    rows, rng = make_rows(params, n, seed, skew), np.random.default_rng(seed)
    design, targets = CellDesign.from_rows(params, rows), compute_targets(params, rows)[:, 0]
    n_present = len(design.present)
    prior = WeightPrior(
        rng.normal(size=(n_present, 2)),
        rng.normal(size=n_present + 2),
        rng.uniform(0.5, 30, n_present + 2),
    )
    found = fit_parameters(
        design, targets, prior, is_number=False, start=far * rng.uniform(-1, 1, n_present + 2)
    )
    means = 1 / (1 + np.exp(-design.compute_scores(prior.to_weights(found))))
    slopes = prior.to_gradient(design.sum_by_cell(means - targets)) + prior.precision * (
        found - prior.centre
    )
    assert np.abs(slopes).max() < 1e-5
