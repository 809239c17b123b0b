"""The rule for learning rate, clip and mechanism: what follows from what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import MechanismError
from shoal.protocols.ddml.merging import part_of
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.rates import l1_clip, noise_lengths
from shoal.protocols.ddml.step import make_step

SCHEMA = Schema(
    [Numeric(f"x{i}", 0, 1, missing=False) for i in range(20)] + [Categorical("c", ["a", "b", "c"], missing=False)],
    label=Categorical("y", ["no", "yes"]),
)
STUDY = Params(SCHEMA, epsilon=4.0, size=10_000)


def test_what_the_study_says_is_taken() -> None:
    assert replace(STUDY, learning_rate=0.3, clip=0.7).rates.learning_rate == 0.3
    assert replace(STUDY, learning_rate=0.3, clip=0.7).rates.clip == 0.7


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["clip", "learning_rate"])
def test_what_is_no_positive_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(MechanismError, match=f"MECH-001.*{name} = "):
        _ = replace(STUDY, **{name: value}).rates  # type: ignore[arg-type]


def test_a_clip_for_which_the_rule_has_no_rate_is_refused() -> None:
    with pytest.raises(MechanismError, match=r"(?s)MECH-001.*learning_rate = inf.*follows from the clip"):
        _ = replace(STUDY, clip=5e-324).rates


@pytest.mark.parametrize(
    "change", [{}, {"merge": "discard"}, {"n_instances": 5}, {"size": 1_000_000}, {"epsilon": 1.0}, {"unit": "weight"}]
)
def test_the_noise_of_all_updates_adds_up_to_the_same_length(change: dict[str, object]) -> None:
    params = replace(STUDY, **change)  # type: ignore[arg-type]
    step = make_step(params)
    length = step.deviation * math.sqrt(params.n_weights)
    if params.unit == "weight":
        length = math.hypot(length, step.scale * params.rates.clip * math.sqrt(params.n_weights))
    # An update moves the mean of the instances by beta / k of itself, and noise adds up by squares.
    moved = length * 2**-params.fraction_bits * part_of(params.merge) / params.n_instances
    assert moved * math.sqrt(params.n_expected) == pytest.approx(3.0, rel=0.01)


def test_several_classes_may_have_as_much_longer_weights_and_numbers_shorter_ones() -> None:
    three = Schema(SCHEMA.features, label=Categorical("y", ["a", "b", "c"]))
    number = Schema(SCHEMA.features, label=Numeric("y", 0, 1))
    radii = {}
    for link, schema in (("logit", SCHEMA), ("multinomial", three), ("log", number), ("identity", number)):
        params = Params(schema, 4.0, 10_000, link=link)  # type: ignore[arg-type]
        length = noise_lengths(params, params.rates.clip)[params.rates.hiding]
        radii[link] = params.rates.learning_rate * part_of(params.merge) / params.n_instances * length * math.sqrt(params.n_expected)
    assert radii == pytest.approx({"logit": 3.0, "multinomial": 3.0 * math.sqrt(3), "log": 1.5, "identity": 0.5})


def test_where_there_is_little_noise_the_gradients_themselves_count() -> None:
    bare, paper = (replace(STUDY, epsilon=epsilon, variant="paper").rates.learning_rate for epsilon in (math.inf, 64.0))
    assert paper < bare
    assert bare == pytest.approx(3.0 * 200 / (STUDY.rates.clip * 100))


def test_two_updates_share_epsilon_and_are_as_many_as_twice_the_devices() -> None:
    twice = replace(STUDY, n_updates=2)
    assert twice.rates.learning_rate == pytest.approx(replace(STUDY, epsilon=2.0, size=20_000).rates.learning_rate)


def test_the_clip_is_a_part_of_the_largest_row_for_a_whole_update_and_a_size_for_each_weight() -> None:
    assert STUDY.rates.clip == pytest.approx(STUDY.design.norms[1] / 4)
    assert replace(STUDY, unit="weight").rates.clip == 0.02
    assert replace(STUDY, unit="weight", variant="paper").rates.clip == 1.0


def test_the_mechanism_with_the_least_noise_is_taken_among_those_allowed() -> None:
    assert set(noise_lengths(STUDY, 1.0)) == {"laplace", "closest"}
    assert set(noise_lengths(replace(STUDY, delta=1e-6), 1.0)) == {"laplace", "closest", "gaussian"}
    assert set(noise_lengths(replace(STUDY, variant="paper"), 1.0)) == {"laplace"}
    assert set(noise_lengths(replace(STUDY, unit="weight"), 1.0)) == {"each-weight"}
    assert noise_lengths(replace(STUDY, epsilon=math.inf), 1.0) == {"none": 0.0}
    assert STUDY.rates.hiding == "closest"
    # A single number and much budget: Laplace noise has the least variance.
    alone = Params(Schema([Numeric("x", 0, 1, missing=False)], label=Categorical("y", ["no", "yes"])), 32.0, 100)
    assert alone.rates.hiding == "laplace"
    lengths = noise_lengths(alone, alone.rates.clip)
    assert lengths["laplace"] == min(lengths.values())


@pytest.mark.parametrize("change", [{"epsilon": 8.0}, {"variant": "paper"}, {"delta": 1e-5, "epsilon": 60.0}, {"unit": "weight"}])
def test_lengths_are_those_of_the_step_that_is_made(change: dict[str, object]) -> None:
    params = replace(STUDY, **change)  # type: ignore[arg-type]
    step = make_step(params)
    length = noise_lengths(params, params.rates.clip)[params.rates.hiding]
    assert step.deviation * math.sqrt(params.n_weights) == pytest.approx(step.scale * length, rel=0.01)


def test_the_largest_row_meets_both_clips() -> None:
    l1, l2 = STUDY.design.norms
    assert l1_clip(STUDY, l2) == pytest.approx(l1)
    three = Params(Schema(SCHEMA.features, label=Categorical("y", ["a", "b", "c"])), 4.0, 10_000, link="multinomial")
    # Residuals (1, -1, 0): L2 sqrt(2), L1 2.
    assert l1_clip(three, math.sqrt(2) * three.design.norms[1]) == pytest.approx(2 * three.design.norms[0])
