"""Home models are finite whatever the rows, whatever was pooled, and in whatever order the rows come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.fitting import OWN_PENALTY, Design, Prior, fit, ridge, targets_of
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Params, Rows, sides_of

labels = st.sampled_from([Categorical("y", ["a", "b"]), Categorical("y", ["a", "b", "c", "d"]), Numeric("y", -3, 5)])
arities = st.lists(st.integers(2, 5), min_size=1, max_size=4)
trusts = st.sampled_from(["local", "secure-sum"])
seeds = st.integers(0, 2**32)


def params_of(sizes: list[int], label: Categorical | Numeric, trust: str = "local") -> Params:
    features = [Categorical(f"a{j}", [str(i) for i in range(n)], missing=False) for j, n in enumerate(sizes)]
    return Params(Schema(features, label=label), epsilon=1.0, size=100, trust=trust)  # type: ignore[arg-type]


def rows_of(params: Params, n: int, seed: int, skew: int) -> Rows:
    """Random rows; the larger the skew, the fewer cells and classes occur."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(0, arity, n) // skew for arity in params.arities], axis=1) + params.starts[:-1]
    drawn = rng.uniform(-3, 5, n) if params.is_number else rng.integers(0, params.n_sides, n) // skew
    return Rows(cells, sides_of(params, drawn))


@hostile(150)
@given(arities, labels, trusts, st.integers(0, 40), st.integers(1, 5), seeds, st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e6]))
def test_any_rows_and_any_release_make_a_home_model(
    sizes: list[int], label: Categorical | Numeric, trust: str, n: int, skew: int, seed: int, size: float
) -> None:
    params = params_of(sizes, label, trust)
    rng, shape = np.random.default_rng(seed), (params.n_cells, params.n_models)
    weights, variances = size * rng.uniform(-1, 1, shape), rng.choice([0.0, 0.1, 1e12], shape)
    model = Model(params, weights, size * rng.uniform(-1, 1, params.n_models), variances, np.ones(params.n_cells))
    home = at_home(model, rows_of(params, n, seed, skew), SeededEntropy(seed))
    cells = np.stack([rng.integers(0, arity, 50) for arity in params.arities], axis=1) + params.starts[:-1]
    for one in (home, home.personal):
        assert np.isfinite(one.scores(cells)).all() and one.scores(cells).shape == (50, params.n_models)
        assert ((one.blend >= 0) & (one.blend <= 1)).all()


@hostile(60)
@given(arities, labels, st.integers(0, 40), st.integers(1, 5), seeds)
def test_the_order_of_rows_and_of_classes_is_nothing(sizes: list[int], label: Categorical | Numeric, n: int, skew: int, seed: int) -> None:
    params = params_of(sizes, label)
    rows, order = rows_of(params, n, seed, skew), np.random.default_rng(seed).permutation(n)
    weights, again = ridge(params, rows, OWN_PENALTY), ridge(params, rows.take(order), OWN_PENALTY)
    assert np.allclose(weights, again, atol=1e-6)
    turned = ridge(params, Rows(rows.cells, rows.sides[:, ::-1]), OWN_PENALTY)
    if params.n_models > 1:
        assert np.allclose(turned, weights[:, ::-1], atol=1e-6)
    elif not params.is_number:
        assert np.allclose(turned, -weights, atol=1e-6)


@hostile(60)
@given(arities, st.integers(1, 60), st.integers(1, 5), seeds, st.sampled_from([0.0, 3.0, 100.0]))
def test_wherever_it_starts_a_fit_ends_where_all_slopes_are_nothing(sizes: list[int], n: int, skew: int, seed: int, far: float) -> None:
    params = params_of(sizes, Categorical("y", ["a", "b"]))
    rows, rng = rows_of(params, n, seed, skew), np.random.default_rng(seed)
    design, targets = Design.of(params, rows), targets_of(params, rows)[:, 0]
    n_present = len(design.present)
    prior = Prior(rng.normal(size=(n_present, 2)), rng.normal(size=n_present + 2), rng.uniform(0.5, 30, n_present + 2))
    found = fit(design, targets, prior, is_number=False, start=far * rng.uniform(-1, 1, n_present + 2))
    means = 1 / (1 + np.exp(-design.scores(prior.weights(found))))
    slopes = prior.gradient(design.sums(means - targets)) + prior.precision * (found - prior.centre)
    assert np.abs(slopes).max() < 1e-5
