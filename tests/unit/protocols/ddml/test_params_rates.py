"""The rule for learning rate, clip and mechanism."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import MechanismError
from shoal.protocols.ddml.merging import find_blend_factor
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams, l1_clip, noise_lengths

SCHEMA = Schema(
    [Numeric(f"x{i}", 0, 1, missing=False) for i in range(20)]
    + [Categorical("c", ["a", "b", "c"], missing=False)],
    label=Categorical("y", ["no", "yes"]),
)
STUDY = DDMLParams(SCHEMA, epsilon=4.0, size=10_000)


def test_choose_rates_uses_given_values() -> None:
    assert replace(STUDY, learning_rate=0.3, clip=0.7).rates.learning_rate == 0.3
    assert replace(STUDY, learning_rate=0.3, clip=0.7).rates.clip == 0.7


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["clip", "learning_rate"])
def test_choose_rates_rejects_nonpositive_numbers(name: str, value: float) -> None:
    with pytest.raises(MechanismError, match=f"MECH-001.*{name} = "):
        _ = replace(STUDY, **{name: value}).rates  # type: ignore[arg-type]


def test_choose_rates_rejects_clip_without_rate() -> None:
    with pytest.raises(
        MechanismError, match=r"(?s)MECH-001.*learning_rate = inf.*follows from the clip"
    ):
        _ = replace(STUDY, clip=5e-324).rates


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"merge": "discard"},
        {"n_instances": 5},
        {"size": 1_000_000},
        {"epsilon": 1.0},
        {"unit": "weight"},
    ],
)
def test_total_noise_has_constant_length(change: dict[str, object]) -> None:
    params = replace(STUDY, **change)  # type: ignore[arg-type]
    step = make_step(params)
    length = step.deviation * math.sqrt(params.n_weights)
    if params.unit == "weight":
        length = math.hypot(length, step.scale * params.rates.clip * math.sqrt(params.n_weights))
    # An update moves the mean of the instances by beta / k of itself, and noise adds up by squares.
    moved = length * 2**-params.fraction_bits * find_blend_factor(params.merge) / params.n_instances
    assert moved * math.sqrt(params.n_expected) == pytest.approx(3.0, rel=0.01)


def test_radius_depends_on_classes_and_link() -> None:
    three = Schema(SCHEMA.features, label=Categorical("y", ["a", "b", "c"]))
    number = Schema(SCHEMA.features, label=Numeric("y", 0, 1))
    radii = {}
    for link, schema in (
        ("logit", SCHEMA),
        ("multinomial", three),
        ("log", number),
        ("identity", number),
    ):
        params = DDMLParams(schema, 4.0, 10_000, link=link)  # type: ignore[arg-type]
        length = noise_lengths(params, params.rates.clip)[params.rates.mechanism]
        radii[link] = (
            params.rates.learning_rate
            * find_blend_factor(params.merge)
            / params.n_instances
            * length
            * math.sqrt(params.n_expected)
        )
    assert radii == pytest.approx(
        {"logit": 3.0, "multinomial": 3.0 * math.sqrt(3), "log": 1.5, "identity": 0.5}
    )


def test_gradient_length_counts_if_noise_is_small() -> None:
    bare, paper = (
        replace(STUDY, epsilon=epsilon, variant="paper").rates.learning_rate
        for epsilon in (math.inf, 64.0)
    )
    assert paper < bare
    assert bare == pytest.approx(3.0 * 200 / (STUDY.rates.clip * 100))


def test_two_updates_share_epsilon_like_twice_the_devices() -> None:
    twice = replace(STUDY, n_updates=2)
    assert twice.rates.learning_rate == pytest.approx(
        replace(STUDY, epsilon=2.0, size=20_000).rates.learning_rate
    )


def test_clip_is_part_of_largest_row_or_size_of_weight() -> None:
    assert STUDY.rates.clip == pytest.approx(STUDY.design.norms[1] / 4)
    assert replace(STUDY, unit="weight").rates.clip == 0.02
    assert replace(STUDY, unit="weight", variant="paper").rates.clip == 1.0


def test_choose_rates_takes_mechanism_of_least_noise() -> None:
    assert set(noise_lengths(STUDY, 1.0)) == {"laplace", "closest"}
    assert set(noise_lengths(replace(STUDY, delta=1e-6), 1.0)) == {"laplace", "closest", "gaussian"}
    assert set(noise_lengths(replace(STUDY, variant="paper"), 1.0)) == {"laplace"}
    assert set(noise_lengths(replace(STUDY, unit="weight"), 1.0)) == {"each-weight"}
    assert noise_lengths(replace(STUDY, epsilon=math.inf), 1.0) == {"none": 0.0}
    assert STUDY.rates.mechanism == "closest"
    # A single number and much budget: Laplace noise has the least variance.
    alone = DDMLParams(
        Schema([Numeric("x", 0, 1, missing=False)], label=Categorical("y", ["no", "yes"])),
        32.0,
        100,
    )
    assert alone.rates.mechanism == "laplace"
    lengths = noise_lengths(alone, alone.rates.clip)
    assert lengths["laplace"] == min(lengths.values())


@pytest.mark.parametrize(
    "change",
    [{"epsilon": 8.0}, {"variant": "paper"}, {"delta": 1e-5, "epsilon": 60.0}, {"unit": "weight"}],
)
def test_noise_lengths_match_steps(change: dict[str, object]) -> None:
    params = replace(STUDY, **change)  # type: ignore[arg-type]
    step = make_step(params)
    length = noise_lengths(params, params.rates.clip)[params.rates.mechanism]
    assert step.deviation * math.sqrt(params.n_weights) == pytest.approx(
        step.scale * length, rel=0.01
    )


def test_largest_row_reaches_both_clips() -> None:
    l1, l2 = STUDY.design.norms
    assert l1_clip(STUDY, l2) == pytest.approx(l1)
    three = DDMLParams(
        Schema(SCHEMA.features, label=Categorical("y", ["a", "b", "c"])),
        4.0,
        10_000,
        link="multinomial",
    )
    # Residuals (1, -1, 0): L2 sqrt(2), L1 2.
    assert l1_clip(three, math.sqrt(2) * three.design.norms[1]) == pytest.approx(
        2 * three.design.norms[0]
    )
