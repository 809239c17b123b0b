"""The sensitivity of a step, in integers, for any two gradients.

Clipped gradients differ by no more than the sensitivity that the noise is made for.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.privacy.events import Relation, Scope, Unit
from shoal.protocols.ddml.noisy_step import AdditiveStep, ClosestStep, make_step
from shoal.protocols.ddml.params import DDMLParams

SCOPE = Scope(Unit.UPDATE, Relation.REPLACE, "everyone who sees an update")

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.one_of(
    st.just(0.0),
    FINITE,
    st.floats(-2, 2),
    st.sampled_from([5e-324, -5e-324, 1.7e308, -1.7e308, 1.0, 1 / 3]),
)
BOUNDS = st.one_of(st.integers(1, 20), st.integers(1, 1 << 39))
"""Noise of a scale beyond 2^40 is rejected, and Gaussian noise for such a norm is a little wider
than it.
"""
SCALES = st.one_of(st.just(1.0), st.floats(1e-12, 1e12))


@st.composite
def steps(draw) -> tuple[AdditiveStep, int]:
    """Generate a step and its number of weights."""
    p, bound, norm = draw(st.integers(1, 40)), draw(BOUNDS), draw(st.sampled_from([0, 1, 2]))
    if norm == 2:
        noise: DiscreteLaplace | DiscreteGaussian = DiscreteGaussian(
            8.0, 1e-6, ClippedVector(bound, 2, p), SCOPE
        )
    else:
        noise = DiscreteLaplace(8.0, ClippedVector(bound, 1, p if norm else 1), SCOPE)
    return AdditiveStep(draw(SCALES), bound, norm, noise), p


def vectors(p: int) -> st.SearchStrategy[np.ndarray]:
    """Generate vectors with different entries, or equal ones, for which rounding adds up."""
    return st.one_of(arrays(np.float64, p, elements=NUMBERS), NUMBERS.map(lambda x: np.full(p, x)))


@given(data=st.data())
def test_clipped_gradients_differ_at_most_by_sensitivity(data):
    step, p = data.draw(steps())
    one, other = (step.clip_gradient(data.draw(vectors(p))) for _ in range(2))
    differences = [abs(int(a) - int(b)) for a, b in zip(one, other, strict=True)]
    if step.norm == 0:
        assert max(differences) <= step.noise.sensitivity
    elif step.norm == 1:
        assert sum(differences) <= step.noise.sensitivity
    else:
        assert sum(x * x for x in differences) <= step.noise.l2_squared


@given(data=st.data())
def test_clipped_gradient_is_inside_bound_and_not_far_inside(data):
    step, p = data.draw(steps())
    gradient = data.draw(vectors(p))
    sizes = [abs(int(x)) for x in step.clip_gradient(gradient)]
    norm = {0: max(sizes), 1: sum(sizes), 2: math.sqrt(sum(x * x for x in sizes))}[step.norm]
    if step.norm:
        assert sum(x**step.norm for x in sizes) <= step.bound**step.norm
    else:
        assert norm <= step.bound
    wanted = float(np.abs(gradient).max()) * step.scale
    assert norm >= min(wanted, step.bound / p) * (1 - 1e-8) - p


@given(data=st.data())
def test_gradient_inside_bound_is_only_rounded(data):
    step, p = data.draw(steps())
    gradient = data.draw(arrays(np.float64, p, elements=st.floats(-1, 1))) * (
        step.bound / (p * step.scale)
    )
    assert (
        np.abs(step.clip_gradient(gradient) + gradient * step.scale).max() <= 1 + step.bound * 1e-8
    )


@given(
    epsilon=st.floats(0.01, 64),
    n=st.integers(1, 12),
    unit=st.sampled_from(["update", "weight"]),
    variant=st.sampled_from(["plus", "paper"]),
    delta=st.sampled_from([0.0, 1e-6]),
    rate=st.one_of(st.none(), st.floats(1e-6, 10)),
    seed=st.integers(0, 1000),
)
def test_step_of_any_study_covers_any_gradient(epsilon, n, unit, variant, delta, rate, seed):
    schema = Schema(
        [Numeric(f"x{i}", 0, 1) for i in range(n)], label=Categorical("y", ["no", "yes"])
    )
    params = DDMLParams(
        schema, epsilon, 1000, variant=variant, unit=unit, delta=delta, learning_rate=rate
    )
    try:
        step = make_step(params)
    except MechanismError:
        assume(False)
    assert step.event.epsilon <= epsilon
    gradient = np.linspace(-1e6, 1e6, params.n_weights)
    if isinstance(step, ClosestStep):
        assert abs(
            np.linalg.norm(step.draw(gradient, SeededEntropy(seed))) - step.reach
        ) <= math.sqrt(params.n_weights)
    else:
        differences = np.abs(step.clip_gradient(gradient) - step.clip_gradient(-gradient))
        assert {0: differences.max(), 1: differences.sum(), 2: math.hypot(*differences.tolist())}[
            step.norm
        ] <= 2 * step.bound
