"""How many honest updates the spam filter refuses, and how many of each attack, in real training runs.

Rows are made by a known model; each device has one, draws an instance, and sends its noisy step; others are under way meanwhile. The first
half of a run begins at the beginning of training. The second begins with a model whose weights are `LEARNED` times as large, by their root
mean square, as what deviations are measured in; there honest updates are also turned into each attack, which is judged and thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure
from shoal.attacks import ddml as attacks
from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.mechanisms.directions import normals
from shoal.protocols.ddml.design import Inputs
from shoal.protocols.ddml.honest import centre_and_spread, sigma_of
from shoal.protocols.ddml.links import Link, gradient, means
from shoal.protocols.ddml.merging import Weights, add, initial, merged, part_of, steady_variance, to_grid
from shoal.protocols.ddml.params import Merge, Params
from shoal.protocols.ddml.spam import Filter, calibrate
from shoal.protocols.ddml.step import ClosestStep, Step, make_step

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Unit = Literal["update", "weight"]

UPDATES = {33: 10_000, 387: 5_000, 7_840: 4_000, 50_000: 2_000}
"""Numbers of weights, and honest updates of each half of a run: many, as refusals come in clusters, by the instances' common descent."""
ATTACKED = 10
"""Every so many updates are turned into attacks."""
MERGES: tuple[Merge, ...] = ("blend", "discard")
LEARNED = 5.0
N_ROWS = 500
EPSILON: dict[Unit, float] = {"update": 4.0, "weight": math.log(32)}
GROSS = ("random", "negated", "constant", "scaled_3", "scaled_10")
"""What the filter is made to catch; the other attacks are reported without a target."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows and labels, and the weights ``(C, d)`` behind them."""

    inputs: Inputs
    labels: Floats
    weights: Floats


@dataclass(frozen=True, eq=False)
class Arrival:
    """An honest update that comes back, the instance that it was made from, and the instances that it comes back to."""

    drawn: Weights
    update: Weights
    centre: Floats
    spread: Floats


def study(p: int, unit: Unit, merge: Merge) -> Params:
    """A study with so many weights: numbers, ten classes, or a text."""
    label = Categorical("class", ["no", "yes"] if p != 7_840 else list("0123456789"))
    numbers = [Numeric(f"x{i}", 0, 1, missing=False) for i in range(783 if p == 7_840 else p - 1)] if p < 50_000 else []
    schema = Schema(numbers, label, [] if numbers else [Text("query", buckets=p - 1)])
    link: Link = "multinomial" if p == 7_840 else "logit"
    return Params(schema, EPSILON[unit], size=1_000_000, unit=unit, merge=merge, link=link, fraction_bits=24)


def rows_of(params: Params, seed: int) -> Rows:
    """Twenty inputs of a row differ from zero, or all where there are no more than 386; the label follows the model."""
    rng, d = np.random.default_rng(seed), params.design.width
    per_row = d - 1 if d <= 387 else 20
    others = np.array([rng.choice(d - 1, per_row, replace=False) + 1 for _ in range(N_ROWS)])
    positions = np.concatenate([np.zeros((N_ROWS, 1)), np.sort(others, axis=1)], axis=1).astype(np.int32)
    values = np.concatenate([np.ones((N_ROWS, 1)), rng.uniform(0, 1, others.shape)], axis=1)
    inputs = Inputs(d, np.arange(N_ROWS + 1) * (per_row + 1), positions.ravel(), values.ravel())
    weights = rng.standard_normal((params.n_outputs, d)) * 3 / math.sqrt(per_row)
    chances = means(params.link, inputs.times(weights))
    if params.n_outputs == 1:
        chances = np.concatenate([1 - chances, chances], axis=1)
    labels = (rng.uniform(size=(N_ROWS, 1)) > chances.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return Rows(inputs, labels.astype(np.float64), weights)


def honest_step(step: Step, slope: Floats, entropy: SeededEntropy) -> Ints:
    """``step.draw``; for many weights k-closest is drawn by its alignment, which is the same law without M directions."""
    if not isinstance(step, ClosestStep) or slope.size < 1_000:
        return step.draw(slope, entropy)
    size = float(np.linalg.norm(slope))
    turned = entropy.below(1 << 32) / 2**32 < (1 - min(1.0, size / step.clip)) / 2
    direction = slope / size * (1 if turned else -1)
    rest = normals(slope.size, entropy).astype(np.float64)
    rest -= direction * (rest @ direction)
    along = float(step.mechanism.alignments(1, entropy)[0])
    report = along * direction + math.sqrt(1 - along**2) * rest / float(np.linalg.norm(rest))
    return np.rint(step.reach * report).astype(np.int64)


def arrivals(params: Params, rows: Rows, instances: Weights, in_flight: int, n: int, entropy: SeededEntropy) -> Iterator[Arrival]:
    """Honest updates as they come back, all of them merged; centre and spread are worked out every k updates."""
    k, part, unit, step = params.n_instances, part_of(params.merge), 2.0**-params.fraction_bits, make_step(params)
    pending: list[tuple[Weights, Weights]] = []
    for i in range(n + in_flight):
        drawn = instances[entropy.below(k)].copy()
        row = np.array([entropy.below(N_ROWS)])
        slope = gradient(params.link, drawn.reshape(params.n_outputs, -1) * unit, rows.inputs.take(row), rows.labels[row])
        pending.append((drawn, add(drawn, honest_step(step, slope.ravel(), entropy))))
        if len(pending) <= in_flight:
            continue
        if (i - in_flight) % k == 0:
            centre, spread = centre_and_spread(instances.astype(np.float64))
        drawn, update = pending.pop(entropy.below(len(pending)))
        yield Arrival(drawn, update, centre, spread)
        slot = entropy.below(k)
        instances[slot] = merged(instances[slot], update, part)


def measures(only: str = "") -> Iterator[Measure]:
    """For each unit, merge, number of weights and of updates in flight: honest updates refused, and attacks caught."""
    for unit, merge, p, in_flight in product(EPSILON, MERGES, UPDATES, (0, 5, 20)):
        name = f"spam_{unit}_{merge}_{p}_in_flight_{in_flight}"
        if only in name:
            yield from _measures(name, study(p, unit, merge), in_flight, UPDATES[p])


def _measures(name: str, params: Params, in_flight: int, updates: int) -> Iterator[Measure]:
    rows, entropy = rows_of(params, 1), SeededEntropy(name)
    spam, sigma = Filter(params, calibrate(params, in_flight)), sigma_of(make_step(params))
    variance = steady_variance(params.n_instances, part_of(params.merge))
    instances = initial(params.n_instances, params.n_weights, variance * sigma**2, entropy)
    refused = [_is_refused(spam, one, one.update) for one in arrivals(params, rows, instances, in_flight, updates, entropy)]
    yield Measure("ddml", f"{name}_honest_refused_at_first", float(np.mean(refused)), "of updates", "lower", 0.01)
    learned = rows.weights.ravel() * (LEARNED * sigma * math.sqrt(1 + variance) / math.sqrt(float(np.mean(rows.weights**2))))
    rows = replace(rows, weights=learned.reshape(rows.weights.shape) * 2.0**-params.fraction_bits)
    instances = add(initial(params.n_instances, params.n_weights, variance * sigma**2, entropy), to_grid(learned).astype(np.int64))
    cheats = _cheats(instances[0].copy(), sigma, entropy)
    caught: dict[str, list[bool]] = {cheat: [] for cheat in ("honest", *cheats)}
    for i, one in enumerate(arrivals(params, rows, instances, in_flight, updates, entropy)):
        caught["honest"].append(_is_refused(spam, one, one.update))
        for cheat, sent in cheats.items() if i % ATTACKED == 0 else ():
            caught[cheat].append(_is_refused(spam, one, sent(one)))
    yield Measure("ddml", f"{name}_honest_refused_later", float(np.mean(caught.pop("honest"))), "of updates", "lower", 0.01)
    for cheat, verdicts in caught.items():
        yield Measure("ddml", f"{name}_{cheat}", float(np.mean(verdicts)), "of attacks", "higher", 0.99 if cheat in GROSS else None)


def _is_refused(spam: Filter, one: Arrival, sent: Weights) -> bool:
    return spam.judge(sent, one.centre, one.spread) is not None


def _cheats(old: Weights, sigma: float, entropy: SeededEntropy) -> dict[str, Callable[[Arrival], Weights]]:
    return {
        "random": lambda one: attacks.random(one.update, entropy),
        "negated": lambda one: attacks.negated(one.update),
        "constant": lambda one: attacks.constant(one.update, 0),
        "scaled_3": lambda one: attacks.scaled(one.update, 3),
        "scaled_10": lambda one: attacks.scaled(one.update, 10),
        "scaled_1.1": lambda one: attacks.scaled(one.update, 1.1),
        "stretched_3": lambda one: attacks.stretched(one.drawn, one.update, 3),
        "stretched_10": lambda one: attacks.stretched(one.drawn, one.update, 10),
        "one_coordinate_20_sigma": lambda one: attacks.one_coordinate(one.update, 1, round(20 * sigma)),
        "slow_drift_half_sigma": lambda one: attacks.slow_drift(one.drawn, sigma / 2),
        "stale": lambda one: attacks.stale(old, one.drawn, one.update),
        "replayed": lambda one: attacks.replayed(one.update),
    }
