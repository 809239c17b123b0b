"""The forecast of DDML: what makes weights noisy, by how much, and that it tells useful studies from useless ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.links import means
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Devices, simulate
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.step import make_step
from shoal.study.price_updates import USELESS_FROM, forecast_ddml, notes_ddml

NUMBERS = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(8)], label=Categorical("y", ["no", "yes"]))


def noise(params: Params) -> float:
    [forecast] = forecast_ddml(params)
    return forecast.value


def params(schema: Schema = NUMBERS, epsilon: float = 2.0, size: int = 20_000, **more: Any) -> Params:
    return Params(schema, epsilon, size, **more)


def test_one_instance_has_no_expected_loss_and_a_delta_that_is_not_used_is_named() -> None:
    assert len(notes_ddml(params(n_instances=1))) == 1
    assert "The delta of 1e-06 is not used: k-closest has less noise" in notes_ddml(params(delta=1e-6))[1]
    assert len(notes_ddml(params())) == 2


def test_the_forecast_says_from_how_many_updates_of_how_many_weights() -> None:
    [forecast] = forecast_ddml(params(size=1000, n_updates=3))
    assert forecast.what == "noise of a weight per unit that is learned of it (0.2 is good, 2 is useless), after 3,000 updates of 9 weights"
    assert forecast.useless_from == USELESS_FROM


def test_more_devices_and_more_epsilon_help_and_more_weights_hurt() -> None:
    base = noise(params())
    assert noise(params(size=40_000)) < base and noise(params(epsilon=4.0)) < base
    assert noise(params(Schema([*NUMBERS.features, Numeric("more", 0, 1)], label=NUMBERS.label))) > base
    assert noise(params(Schema(NUMBERS.features, NUMBERS.label, [Text("note", 100)]))) > 3 * base
    # Four times the devices halve the noise, whatever the rule makes of the step.
    assert noise(params(size=80_000)) == pytest.approx(base / 2, rel=0.15)


def test_discarding_costs_a_factor_k_in_variance() -> None:
    blend, discard = (
        noise(params(merge=merge, n_instances=20, learning_rate=rate)) for merge, rate in (("blend", 0.01), ("discard", 0.001))
    )
    assert discard / blend == pytest.approx(math.sqrt(20 * 0.905), rel=1e-3)


def test_without_averaging_a_large_step_keeps_all_its_noise() -> None:
    size = 10_000_000
    last, averaged = (noise(params(size=size, learning_rate=5.0, averaging=averaging)) for averaging in (False, True))
    assert last > 5 * averaged
    assert noise(params(size=10 * size, learning_rate=5.0, averaging=False)) == pytest.approx(last, rel=0.02)
    assert noise(params(size=size, learning_rate=5.0, averaging=False, decay="sqrt")) < 0.5 * last


def test_a_clip_that_cuts_most_of_a_gradient_teaches_less() -> None:
    # With a step so small that weights move in proportion: half the clip is half of signal and noise alike.
    wide, half, narrow = (noise(params(clip=clip, learning_rate=1e-4 / clip)) for clip in (0.9, 0.45, 0.1))
    assert narrow == pytest.approx(half, rel=1e-2) and half < wide


def test_centring_does_not_change_what_there_is_to_learn() -> None:
    assert noise(params(centred=False)) > noise(params(centred=True))


@pytest.mark.parametrize(
    ("link", "label"), [("identity", Numeric("y", 0, 9)), ("log", Numeric("y", 0, 9)), ("multinomial", Categorical("y", list("abc")))]
)
def test_every_link_has_a_forecast(link: Any, label: Any) -> None:
    assert 0 < noise(params(Schema(NUMBERS.features, label), link=link)) < math.inf


def test_a_few_updates_are_forecast_too() -> None:
    assert noise(params(size=1, n_instances=1)) > USELESS_FROM


def test_one_weight_of_a_later_update_may_tell_what_the_whole_one_before_told() -> None:
    bits = Schema([Categorical(f"x{i}", ["a", "b"], missing=False) for i in range(28)], label=NUMBERS.label)
    twice = params(bits, 1.0, unit="weight", n_updates=2, centred=False, learning_rate=0.01, clip=0.5)
    step, entropy, by_whole, by_one, n = make_step(twice), SeededEntropy("adaptive"), 0, 0, 1000
    held = [Rows.of(twice, {f"x{i}": np.array([1]) for i in range(28)}, np.array([label])) for label in (0, 1)]
    for t in range(n):
        rows, chosen = held[t % 2], np.zeros(twice.n_weights, np.int32)
        first = step.draw(rows.gradient(twice, chosen), entropy)
        # The aggregator puts what all weights of the first update say into one weight of the instance that it sends next.
        told = np.sign(np.sign(first).sum())
        chosen[0] = told << 24
        second = chosen + step.draw(rows.gradient(twice, chosen), entropy)
        by_whole += (told > 0) == (t % 2 == 1)
        by_one += (second[0] > 0) == (t % 2 == 1)
    assert twice.n_weights == 29 and twice.epsilon_release == 0.5
    # If figures of single weights added up, one weight of both updates would be worth epsilon 1, and a guess by it right in 73.1 %.
    assert by_whole / n == pytest.approx(0.886, abs=0.03) and by_one / n == pytest.approx(0.886, abs=0.03)


def auc(params: Params, seed: str) -> float:
    """Of a model that devices with one row each have learned, where all weights matter alike."""
    n, unseen = params.size, 4000
    entropy = SeededEntropy(seed)
    x = entropy.below_many(1 << 20, 8 * (n + unseen)).reshape(8, -1) / 2.0**20
    columns = {f"x{i}": column for i, column in enumerate(x)}
    weights = np.array([1.0, -1, 1, -1, 1, -1, 1, -1])
    scores = 2.4 * (weights @ (x - 0.5))
    labels = (entropy.below_many(1 << 20, n + unseen) / 2.0**20 < means("logit", scores[:, np.newaxis])[:, 0]).astype(np.int64)
    devices = Devices.of(params, {name: column[:n] for name, column in columns.items()}, labels[:n])
    model = simulate(params, devices, entropy).model
    guessed = model.probabilities({name: column[n:] for name, column in columns.items()})[:, 1]
    ranks = np.argsort(np.argsort(guessed))
    ones = labels[n:] == 1
    return float((ranks[ones].mean() - (ones.sum() - 1) / 2) / (~ones).sum())


def test_the_forecast_tells_useful_studies_from_useless_ones() -> None:
    useful, useless = params(epsilon=4.0, size=6000), params(epsilon=0.25, size=2000)
    assert noise(useful) < USELESS_FROM / 8 and noise(useless) > USELESS_FROM
    assert auc(useful, "a") > 0.75
    assert np.mean([auc(replace(useless), f"{i}") for i in range(4)]) < 0.6


def test_a_small_step_adds_noise_and_signal_up_and_averaging_weighs_them() -> None:
    averaged, last = (noise(params(learning_rate=1e-4, averaging=averaging)) for averaging in (True, False))
    # What happens at u of the time counts 1 - u^4: 4/5 of the signal, and the root of 1 - 2/5 + 1/9 of the noise.
    assert averaged / last == pytest.approx(math.sqrt(1 - 2 / 5 + 1 / 9) / (4 / 5), rel=1e-2)
