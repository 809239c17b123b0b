"""The forecast of DDML: causes and size of noise, and useful or useless studies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.links import predict_means
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import TrainingRows
from shoal.protocols.ddml.population import DevicePopulation, simulate
from shoal.study.ddml import USELESS_FROM, forecast_ddml, list_notes_ddml

NUMBERS = Schema(
    [Numeric(f"x{i}", 0, 1, missing=False) for i in range(8)], label=Categorical("y", ["no", "yes"])
)


def forecast_noise(params: DDMLParams) -> float:
    [forecast] = forecast_ddml(params)
    return forecast.value


def make_params(
    schema: Schema = NUMBERS, epsilon: float = 2.0, size: int = 20_000, **more: Any
) -> DDMLParams:
    return DDMLParams(schema, epsilon, size, **more)


def test_notes_omit_loss_of_one_instance_and_name_unused_delta() -> None:
    assert len(list_notes_ddml(make_params(n_instances=1))) == 1
    assert (
        "The delta of 1e-06 is not used: k-closest has less noise"
        in list_notes_ddml(make_params(delta=1e-6))[1]
    )
    assert len(list_notes_ddml(make_params())) == 2


def test_forecast_names_number_of_updates_and_weights() -> None:
    [forecast] = forecast_ddml(make_params(size=1000, n_updates=3))
    assert (
        forecast.what
        == "noise in a weight per unit learned of it (0.2 is good, 2 is useless), after "
        "3,000 updates of 9 weights"
    )
    assert forecast.useless_from == USELESS_FROM


def test_noise_falls_with_devices_and_epsilon_and_grows_with_weights() -> None:
    base = forecast_noise(make_params())
    assert (
        forecast_noise(make_params(size=40_000)) < base
        and forecast_noise(make_params(epsilon=4.0)) < base
    )
    assert (
        forecast_noise(
            make_params(Schema([*NUMBERS.features, Numeric("more", 0, 1)], label=NUMBERS.label))
        )
        > base
    )
    assert (
        forecast_noise(make_params(Schema(NUMBERS.features, NUMBERS.label, [Text("note", 100)])))
        > 3 * base
    )
    # Four times the devices halve the noise for any step.
    assert forecast_noise(make_params(size=80_000)) == pytest.approx(base / 2, rel=0.15)


def test_discarding_costs_a_factor_k_in_variance() -> None:
    blend, discard = (
        forecast_noise(make_params(merge=merge, n_instances=20, learning_rate=rate))
        for merge, rate in (("blend", 0.01), ("discard", 0.001))
    )
    assert discard / blend == pytest.approx(math.sqrt(20 * 0.905), rel=1e-3)


def test_large_step_without_averaging_keeps_all_noise() -> None:
    size = 10_000_000
    last, averaged = (
        forecast_noise(make_params(size=size, learning_rate=5.0, averaging=averaging))
        for averaging in (False, True)
    )
    assert last > 5 * averaged
    assert forecast_noise(
        make_params(size=10 * size, learning_rate=5.0, averaging=False)
    ) == pytest.approx(last, rel=0.02)
    assert (
        forecast_noise(make_params(size=size, learning_rate=5.0, averaging=False, decay="sqrt"))
        < 0.5 * last
    )


def test_clip_that_cuts_most_of_a_gradient_reduces_signal() -> None:
    # With a very small step weights move in proportion: half the clip halves signal and noise.
    wide, half, narrow = (
        forecast_noise(make_params(clip=clip, learning_rate=1e-4 / clip))
        for clip in (0.9, 0.45, 0.1)
    )
    assert narrow == pytest.approx(half, rel=1e-2) and half < wide


def test_forecast_noise_is_smaller_with_centred_inputs() -> None:
    assert forecast_noise(make_params(centred=False)) > forecast_noise(make_params(centred=True))


@pytest.mark.parametrize(
    ("link", "label"),
    [
        ("identity", Numeric("y", 0, 9)),
        ("log", Numeric("y", 0, 9)),
        ("multinomial", Categorical("y", list("abc"))),
    ],
)
def test_forecast_is_finite_for_every_link(link: Any, label: Any) -> None:
    assert 0 < forecast_noise(make_params(Schema(NUMBERS.features, label), link=link)) < math.inf


def test_single_update_is_forecast_as_useless() -> None:
    assert forecast_noise(make_params(size=1, n_instances=1)) > USELESS_FROM


def test_one_weight_of_a_later_update_can_reveal_the_earlier_update() -> None:
    bits = Schema(
        [Categorical(f"x{i}", ["a", "b"], missing=False) for i in range(28)], label=NUMBERS.label
    )
    twice = make_params(
        bits, 1.0, unit="weight", n_updates=2, centred=False, learning_rate=0.01, clip=0.5
    )
    step, entropy, by_whole, by_one, n = make_step(twice), SeededEntropy("adaptive"), 0, 0, 1000
    held = [
        TrainingRows.from_columns(
            twice, {f"x{i}": np.array([1]) for i in range(28)}, np.array([label])
        )
        for label in (0, 1)
    ]
    for t in range(n):
        rows, chosen = held[t % 2], np.zeros(twice.n_weights, np.int32)
        first = step.draw(rows.gradient(twice, chosen), entropy)
        # The aggregator writes the sum of all weights of the first update into one weight of the
        # instance that it sends next.
        told = np.sign(np.sign(first).sum())
        chosen[0] = told << 24
        second = chosen + step.draw(rows.gradient(twice, chosen), entropy)
        by_whole += (told > 0) == (t % 2 == 1)
        by_one += (second[0] > 0) == (t % 2 == 1)
    assert twice.n_weights == 29 and twice.epsilon_release == 0.5
    # If epsilons of single weights added up, one weight of both updates would have epsilon 1, and
    # a guess by it would be right in 73.1 %.
    assert by_whole / n == pytest.approx(0.886, abs=0.03) and by_one / n == pytest.approx(
        0.886, abs=0.03
    )


def simulate_auc(params: DDMLParams, seed: str) -> float:
    """Return the AUC of a model learned by devices with one row each and equal weights."""
    n, unseen = params.size, 4000
    entropy = SeededEntropy(seed)
    x = entropy.below_many(1 << 20, 8 * (n + unseen)).reshape(8, -1) / 2.0**20
    columns = {f"x{i}": column for i, column in enumerate(x)}
    weights = np.array([1.0, -1, 1, -1, 1, -1, 1, -1])
    scores = 2.4 * (weights @ (x - 0.5))
    labels = (
        entropy.below_many(1 << 20, n + unseen) / 2.0**20
        < predict_means("logit", scores[:, np.newaxis])[:, 0]
    ).astype(np.int64)
    devices = DevicePopulation.from_columns(
        params, {name: column[:n] for name, column in columns.items()}, labels[:n]
    )
    model = simulate(params, devices, entropy).model
    guessed = model.probabilities({name: column[n:] for name, column in columns.items()})[:, 1]
    ranks = np.argsort(np.argsort(guessed))
    ones = labels[n:] == 1
    return float((ranks[ones].mean() - (ones.sum() - 1) / 2) / (~ones).sum())


def test_forecast_separates_useful_from_useless_studies() -> None:
    useful, useless = make_params(epsilon=4.0, size=6000), make_params(epsilon=0.25, size=2000)
    assert forecast_noise(useful) < USELESS_FROM / 8 and forecast_noise(useless) > USELESS_FROM
    assert simulate_auc(useful, "a") > 0.75
    assert np.mean([simulate_auc(replace(useless), f"{i}") for i in range(4)]) < 0.6


def test_averaging_weights_signal_and_noise_of_small_steps() -> None:
    averaged, last = (
        forecast_noise(make_params(learning_rate=1e-4, averaging=averaging))
        for averaging in (True, False)
    )
    # A step at time u has weight 1 - u^4: 4/5 of the signal, and the root of 1 - 2/5 + 1/9 of the
    # noise.
    assert averaged / last == pytest.approx(math.sqrt(1 - 2 / 5 + 1 / 9) / (4 / 5), rel=1e-2)
