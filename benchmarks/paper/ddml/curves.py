"""Figures 2, 3 and 4 of the DDML paper: loss and accuracy on MNIST during training.

The curves differ by k, batch, epsilon and merge strategy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.paper.ddml.mnist import (
    BATCHES,
    BUDGETS,
    INSTANCES,
    N_ROWS,
    NAMES,
    PAPER,
    Images,
    images,
    learn,
)
from benchmarks.paper.figure import PALETTE, RAMP, Figure, Line, Panel
from shoal.protocols.ddml.design_matrix import Floats
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population.schedule import StrategyChoice

TRIALS = 1
EVERY = 3_000
"""Updates between two points: half a pass."""
N_FOR_LOSS = 10_000
SLOW = 0.0001
_FEW_BATCHES = (1, 10, 100, 1000)
_COLOURS = [PALETTE[name] for name in ("green", "blue", "purple", "orange", "vermilion")]


@dataclass(frozen=True)
class Curve:
    """Loss on training images and accuracy on test images, by thousands of rows seen."""

    rows: Sequence[float]
    loss: Sequence[float]
    accuracy: Sequence[float]


def figure(name: str, trials: int) -> Figure:
    """Return the figure with that name; each curve is the mean of ``trials`` runs."""
    return {"ddml-2": _by_settings, "ddml-3": _by_strategy, "ddml-4": _at_a_tenth}[name](trials)


@cache
def curve(params: DDMLParams, strategy: StrategyChoice | None, trials: int) -> Curve:
    """Return the curve of one setting."""
    asked, unseen = images()
    some = Images(asked.pixels[:N_FOR_LOSS], asked.digits[:N_FOR_LOSS])
    seen: list[tuple[float, float, float]] = []

    def watch(n: int, weights: Floats) -> None:
        seen.append((n * N_ROWS / 1000, some.loss(weights), unseen.accuracy(weights)))

    for seed in range(trials):
        learn(params, asked, seed, strategy, watch, EVERY)
    rows, loss, accuracy = np.array(seen).reshape(trials, -1, 3).mean(axis=0).T.tolist()
    return Curve(rows, loss, accuracy)


def _by_settings(trials: int) -> Figure:
    """Return Figure 2, with its columns as rows: k; batches; epsilon."""
    by_k = {f"k = {k}": curve(replace(PAPER, n_instances=k), None, trials) for k in INSTANCES}
    batches = {
        f"batches of {size * N_ROWS:,} rows": curve(PAPER, ("batch", size), trials)
        for size in BATCHES
        if size in _FEW_BATCHES
    }
    by_epsilon = {
        "no noise" if budget == math.inf else f"epsilon log {budget:g}": curve(
            replace(PAPER, epsilon=math.log(budget)), None, trials
        )
        for budget in BUDGETS
    }
    beside = {name: by_k[name] for name in ("k = 10", "k = 20")}
    panels = [
        *_pair("Figure 2: number of instances, no noise", by_k, RAMP),
        *_pair(
            "Figure 2: instances and batches, no noise",
            {**beside, **batches},
            [PALETTE["blue"], PALETTE["sky"], *RAMP[2:]],
        ),
        *_pair("Figure 2: epsilon of each weight and update, k = 10", by_epsilon, RAMP),
    ]
    return Figure("ddml-2", panels)


def _by_strategy(trials: int) -> Figure:
    """Return Figure 3: other merge strategies, k = 20."""
    return Figure("ddml-3", _strategies("Figure 3", 20, PAPER, trials))


def _at_a_tenth(trials: int) -> Figure:
    """Return Figure 4: the same with a tenth of the learning rate, several k, and one model."""
    slow = replace(PAPER, learning_rate=SLOW)
    return Figure(
        "ddml-4",
        [panel for k in INSTANCES if k > 1 for panel in _strategies("Figure 4", k, slow, trials)],
    )


def _strategies(title: str, k: int, params: DDMLParams, trials: int) -> list[Panel]:
    found = {
        words: curve(replace(params, n_instances=k), strategy, trials)
        for strategy, words in NAMES.items()
    }
    one = {"k = 1": curve(replace(params, n_instances=1), None, trials)}
    rate = f"{params.gamma():g}".removeprefix("0")
    return _pair(
        f"{title}: k = {k}, learning rate {rate}", {**found, **one}, [*_COLOURS, PALETTE["black"]]
    )


def _pair(title: str, curves: Mapping[str, Curve], colours: Sequence[str]) -> list[Panel]:
    losses = [
        Line(name, one.rows, one.loss, colour=colour)
        for (name, one), colour in zip(curves.items(), colours, strict=False)
    ]
    right = [
        Line(name, one.rows, one.accuracy, colour=colour)
        for (name, one), colour in zip(curves.items(), colours, strict=False)
    ]
    x_label = "thousands of rows seen"
    return [
        Panel(title, x_label, "loss, training images", losses),
        Panel("", x_label, "accuracy, test images", right),
    ]
