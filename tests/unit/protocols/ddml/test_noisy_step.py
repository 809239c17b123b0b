"""The private step: clipping, choice of mechanism, and charge."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.k_closest import KClosest
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.privacy.accountant import compose_sequential, compose_zcdp, epsilon_to_rho
from shoal.privacy.events import Unit
from shoal.protocols.ddml.noisy_step import (
    AdditiveStep,
    ClosestStep,
    NoiselessStep,
    charge_update,
    make_step,
    price_update,
)
from shoal.protocols.ddml.params import DDMLParams, l1_clip

LABEL = Categorical("y", ["no", "yes"])


def schema(n: int, label: Categorical = LABEL) -> Schema:
    return Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(n)], label=label)


def params(n: int = 4, epsilon: float = 4.0, **more) -> DDMLParams:
    return DDMLParams(schema(n), epsilon, 10_000, **more)


def test_default_study_uses_closest_step():
    step = make_step(params())
    assert isinstance(step, ClosestStep)
    assert step.mechanism.dimension == 5
    assert step.event == step.mechanism.event()
    assert step.event.scope.unit is Unit.UPDATE
    assert step.event.epsilon <= 4.0
    assert math.isclose(step.scale, params().gamma() * 2**20)


def test_paper_variant_uses_laplace_on_whole_update():
    step = make_step(params(variant="paper", merge="discard"))
    assert isinstance(step, AdditiveStep)
    assert step.norm == 1
    assert isinstance(step.noise, DiscreteLaplace)
    assert step.noise.sensitivity == 2 * step.bound
    assert step.event.epsilon == 4.0


def test_huge_epsilon_with_few_directions_uses_laplace():
    assert isinstance(make_step(params(1, 64.0)).noise, DiscreteLaplace)


def test_delta_allows_gaussian_if_directions_are_worse():
    step = make_step(params(400, 64.0, delta=1e-6, n_updates=1))
    assert isinstance(step.noise, DiscreteGaussian)
    assert step.norm == 2
    assert step.noise.l2_squared == (2 * step.bound) ** 2
    assert (step.event.epsilon, step.event.delta) == (64.0, 1e-6)
    assert isinstance(make_step(params(400, 4.0, delta=1e-6)), ClosestStep)


def test_single_weight_does_not_use_directions():
    lone = DDMLParams(
        Schema([Numeric("x", 0, 1, bins=(), missing=False)], label=LABEL), 1.0, 1000, centred=False
    )
    assert lone.n_weights == 1
    assert isinstance(make_step(lone).noise, DiscreteLaplace)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 16.0, 64.0])
@pytest.mark.parametrize("n", [1, 30])
def test_make_step_chooses_least_variance(n, epsilon, entropy):
    """Each with the same clip, in the norm that it needs, for the row of the largest norm."""
    one = params(n, epsilon, delta=1e-6)
    taken = make_step(one)
    p, clip, (l1, l2) = one.n_weights, one.rates.clip * taken.scale, one.design.norms
    deviations = [
        DiscreteLaplace(epsilon, ClippedVector(int(clip * l1 / l2), 1, p), one.scope).variance()
        ** 0.5,
        DiscreteGaussian(epsilon, 1e-6, ClippedVector(int(clip), 2, p), one.scope).variance()
        ** 0.5,
        clip / KClosest(epsilon, p, one.scope).alignment / math.sqrt(p),
    ]
    assert math.isclose(taken.deviation, min(deviations), rel_tol=1e-9)


@pytest.mark.parametrize(
    "more", [{}, {"unit": "weight"}, {"variant": "paper"}, {"epsilon": 64.0, "delta": 1e-6}]
)
def test_deviation_is_that_of_steps_without_gradient(more, entropy):
    step = make_step(params(400, **more))
    drawn = np.array([step.draw(np.zeros(401), entropy) for _ in range(20)])
    assert math.isclose(np.mean(drawn.astype(float) ** 2), step.deviation**2, rel_tol=0.15)


def test_draw_returns_integers_of_right_shape(entropy):
    gradient = np.linspace(-1, 1, 5)
    for more in ({}, {"unit": "weight"}, {"variant": "paper"}, {"epsilon": math.inf}):
        drawn = make_step(params(**more)).draw(gradient, entropy)
        assert drawn.shape == (5,)
        assert drawn.dtype == np.int64


def test_closest_step_has_constant_length(entropy):
    step = make_step(params(30))
    for size in (0.0, 1e-300, 0.1, 1e300):
        drawn = step.draw(np.full(31, size), entropy)
        assert abs(np.linalg.norm(drawn) - step.reach) < math.sqrt(31)


def test_closest_step_ignores_length_beyond_clip():
    """By the same stream: the same step for every length from the clip on, and of the same length
    up to rounding for every other.
    """
    one = params(30)
    step = make_step(one)
    along = np.linspace(-1, 2, 31)
    along *= one.rates.clip * (1 - 1e-12) / np.linalg.norm(along)
    for seed in range(5):
        at = step.draw(along, SeededEntropy(seed))
        for factor in (1 + 1e-9, 2.0, 100.0, 1e300):
            assert step.draw(factor * along, SeededEntropy(seed)).tolist() == at.tolist()
        for factor in (0.0, 0.3, 1.0, 100.0):
            # Each weight is rounded by half a unit at most.
            assert (
                abs(np.linalg.norm(step.draw(factor * along, SeededEntropy(seed))) - step.reach)
                <= math.sqrt(31) / 2
            )


def test_noiseless_step_clips_like_noisy_step(entropy):
    whole, each = (
        make_step(params(epsilon=math.inf, unit=unit, clip=0.5, learning_rate=1.0))
        for unit in ("update", "weight")
    )
    assert isinstance(whole, NoiselessStep) and isinstance(each, NoiselessStep)
    assert whole.event is None and whole.deviation == 0
    gradient = np.array([3.0, -4.0, 0.0, 0.0, 0.0])
    assert whole.draw(gradient, entropy).tolist() == [
        -round(0.3 * 2**20),
        round(0.4 * 2**20),
        0,
        0,
        0,
    ]
    assert each.draw(gradient, entropy).tolist() == [-(2**19), 2**19, 0, 0, 0]
    for bare in (whole, each):
        assert (
            bare.draw(gradient / 100, entropy).tolist() == np.rint(-gradient / 100 * 2**20).tolist()
        )


def largest_row(one: DDMLParams) -> np.ndarray:
    return one.design.make_inputs({name: np.ones(1) for name in one.schema.names}).to_dense()[0]


def test_l1_clip_is_reached_with_l2_clip():
    """A binary model: the largest row. A class model: the same row, with all of the residual on two
    classes.
    """
    given = {"variant": "paper", "clip": 1.0, "learning_rate": 1.0}
    for one, residual in (
        (params(8, **given), np.ones(1)),
        (
            DDMLParams(
                schema(8, Categorical("y", list("abc"))), 4.0, 10_000, link="multinomial", **given
            ),
            np.array([1, -1, 0]),
        ),
    ):
        gradient = np.outer(residual, largest_row(one)).ravel()
        gradient /= np.linalg.norm(gradient)
        assert abs(make_step(one).bound - np.abs(gradient).sum() * 2**20) <= 1


def test_small_steps_reach_bound():
    """With bounds of a few units of the grid, rounding towards zero must not take the last one."""
    for norm in (0, 1, 2):
        step = AdditiveStep(1.0, 3, norm, make_step(params(variant="paper")).noise)
        assert step.clip_gradient(np.array([1e6, 0, 0])).tolist() == [-3, 0, 0]
        assert step.clip_gradient(np.array([0, 2.0, 0])).tolist() == [0, -2, 0]


def test_nonfinite_gradient_is_not_sent(entropy):
    step = make_step(params(variant="paper"))
    with np.errstate(invalid="ignore"), pytest.raises(MechanismError, match="MECH-002"):
        step.draw(np.full(5, np.nan), entropy)


@pytest.mark.parametrize(
    "more", [{}, {"unit": "weight"}, {"variant": "paper"}, {"delta": 1e-6, "epsilon": 64.0}]
)
def test_make_step_rejects_coarse_grid(more):
    with pytest.raises(
        MechanismError, match=r"(?s)MECH-001.*units of the grid: less than one.*fraction_bits"
    ):
        make_step(params(**more, learning_rate=1e-9))


def test_make_step_rejects_grid_that_only_l1_norm_reaches():
    with pytest.raises(
        MechanismError, match=r"MECH-001  The clipped step is 0\.7 units of the grid"
    ):
        make_step(params(30, epsilon=0.1, merge="discard", clip=1.0, learning_rate=0.7 / 2**20))


EVERY = {
    "closest": {},
    "each weight": {"unit": "weight"},
    "laplace": {"variant": "paper"},
    "gaussian": {"n": 400, "delta": 1e-2, "epsilon": 64.0},
    "none": {"epsilon": math.inf},
}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    "size",
    [
        {"learning_rate": 1e6, "clip": 1e6},
        {"learning_rate": 1e308, "clip": 1e308},
        {"learning_rate": 2048.1, "clip": 1.0},
    ],
)
def test_make_step_rejects_step_larger_than_weight(kind, size):
    with pytest.raises(
        MechanismError,
        match=r"(?s)MECH-001.*a weight has room for 2,147,483,647.*learning_rate or clip"
        r".*fraction_bits.*larger epsilon",
    ):
        make_step(params(**EVERY[kind] | size))


@pytest.mark.parametrize("kind", ["closest", "each weight", "laplace"])
def test_make_step_rejects_noise_larger_than_weight(kind):
    """The step itself is a thousandth of the range."""
    with pytest.raises(MechanismError, match=r"MECH-001.*a weight has room for"):
        make_step(params(**EVERY[kind] | {"epsilon": 1e-6, "learning_rate": 2.0, "clip": 1.0}))


@pytest.mark.parametrize("kind", EVERY)
def test_largest_allowed_step_can_be_drawn(kind, entropy):
    """Noise and all: a range of 32 bits, and integers of 64."""
    one = params(**EVERY[kind])
    noise = make_step(one).deviation / make_step(one).scale
    rate = (2**31 - 1) / 2**20 / max(one.rates.clip, noise) * 0.999
    step = make_step(replace(one, clip=one.rates.clip, learning_rate=rate))
    for size in (0.0, 1e-300, 1.0, 1e300):
        drawn = step.draw(np.full(one.n_weights, size), entropy)
        assert np.abs(drawn).max() < 2**40


@pytest.mark.parametrize(("merge", "rate"), [("blend", 4.0), ("discard", 0.4)])
def test_make_step_rejects_grid_that_rounds_updates_away(merge, rate):
    """Noise and step of some units, of which an instance takes a tenth, or less than one in the
    last epoch.
    """
    one = params(epsilon=math.inf, clip=1.0, learning_rate=rate / 2**20, merge=merge)
    with pytest.raises(
        MechanismError,
        match=r"MECH-001  An update would move an instance by 0\.4 units of the grid",
    ):
        make_step(one)
    late = replace(one, learning_rate=5 * rate / 2**20)
    assert make_step(late).scale == pytest.approx(5 * rate)
    with pytest.raises(
        MechanismError,
        match=r"MECH-001  An update would move an instance by 0\.6 units of the grid",
    ):
        make_step(replace(late, decay="sqrt"))


def test_step_decreases_with_rate_only():
    falling = replace(params(400, 64.0, delta=1e-6, decay="sqrt"), size=1_000_000)
    steps = [make_step(falling, epoch) for epoch in (0, 3, 99)]
    assert [round(steps[0].scale / step.scale, 9) for step in steps] == [1, 2, 10]
    assert make_step(falling, 1 << 40).scale == make_step(falling, falling.last_epoch).scale
    assert {type(step.noise) for step in steps} == {DiscreteGaussian}
    charge = price_update(falling)
    for step in steps:
        assert step.event.epsilon == charge.epsilon
        assert step.event.delta == charge.delta
        assert step.event.rho <= charge.rho < step.event.rho * (1 + 1e-4)


def test_make_step_is_cached():
    assert make_step(params(), 3) is make_step(params(), 3)


def test_price_update_charges_whole_update():
    one = params(unit="weight", epsilon=1.1, n_updates=11)
    event = make_step(one).event
    charge = price_update(one)
    assert (event.scope.unit, event.epsilon) == (Unit.WEIGHT, 0.1)
    assert (charge.scope.unit, charge.epsilon) == (Unit.UPDATE, 0.5)
    assert charge.parameters["weights"] == 5
    assert charge.reads == ("x0", "x1", "x2", "x3", "y")
    assert compose_sequential([charge] * 11).epsilon == 5.5


def test_charge_update_of_whole_update_is_unchanged():
    event = make_step(params()).event
    assert charge_update(event, 5) is event
    assert price_update(params()) == replace(event, reads=("x0", "x1", "x2", "x3", "y"))


def test_prices_of_all_updates_sum_to_budget():
    for more in (
        {},
        {"variant": "paper"},
        {"delta": 1e-6, "epsilon": 64.0, "n_updates": 1},
        {"epsilon": 1.0},
    ):
        one = params(**({"n_updates": 7} | more))
        together = compose_sequential([price_update(one)] * one.n_updates)
        assert together.epsilon <= one.epsilon
        assert together.delta <= one.delta


def several(kind: str, n_updates: int) -> DDMLParams:
    """A study whose updates have this noise: Gaussian, where several share a budget, only if
    directions are few for the weights.
    """
    if kind == "gaussian" and n_updates > 1:
        return DDMLParams(
            Schema([], label=LABEL, texts=[Text("t", 100_000)]),
            64.0,
            10_000,
            delta=1e-2,
            n_updates=n_updates,
        )
    return params(**EVERY[kind] | {"n_updates": n_updates})


@pytest.mark.parametrize("n_updates", [1, 2])
@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [
        ("closest", "k-closest"),
        ("laplace", "discrete-laplace"),
        ("each weight", "discrete-laplace"),
        ("gaussian", "discrete-gaussian"),
    ],
)
def test_noise_is_made_for_one_update_and_charges_add_up(kind, mechanism, n_updates):
    one = several(kind, n_updates)
    charge, event = price_update(one), make_step(one).event
    assert charge.mechanism == mechanism
    p = one.n_weights if one.unit == "weight" else 1
    together = compose_sequential([charge] * n_updates)
    assert together.epsilon <= p * one.epsilon
    assert together.delta <= one.delta
    assert event.epsilon <= one.epsilon / n_updates
    assert event.delta <= one.delta / n_updates


@pytest.mark.parametrize("n_updates", [1, 2])
@pytest.mark.parametrize("kind", ["each weight", "laplace", "gaussian"])
def test_additive_noise_uses_twice_bound_and_epsilon_of_update(kind, n_updates):
    one = several(kind, n_updates)
    step = make_step(one)
    clip = l1_clip(one, one.rates.clip) if kind == "laplace" else one.rates.clip
    assert step.bound == math.floor(step.scale * clip)
    assert step.norm == {"each weight": 0, "laplace": 1, "gaussian": 2}[kind]
    if kind == "gaussian":
        rho = epsilon_to_rho(one.epsilon / n_updates, one.delta / n_updates)
        assert step.noise.l2_squared == (2 * step.bound) ** 2
        assert step.noise.sigma_squared >= Fraction(2 * step.bound) ** 2 / (2 * Fraction(rho))
        assert math.isclose(step.noise.sigma, 2 * step.bound / math.sqrt(2 * rho), rel_tol=1e-5)
    else:
        assert step.noise.sensitivity == 2 * step.bound
        assert math.isclose(
            step.noise.scale, 2 * step.bound * n_updates / one.epsilon, rel_tol=1e-12
        )
    assert math.isclose(step.deviation**2, step.noise.variance())


def test_gaussian_updates_compose_by_rho():
    charge = price_update(params(400, 64.0, delta=1e-6))
    assert compose_zcdp([charge], 1e-6).epsilon <= 64.0


def test_price_update_without_noise_is_none():
    assert price_update(params(epsilon=math.inf)) is None
