"""MNIST with the DDML paper's smallest epsilon and settings that suit it.

epsilon is log 3 for each weight of each update, k = 10. Settings are chosen on the last 10,000
training images and measured on the test images; those of the rule need no choice. The table also
shows the total cost of a device: twenty updates of 7,850 weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.ddml import mnist as ddml_mnist
from benchmarks.paper.ddml.mnist import (
    N_ROWS,
    SCHEMA,
    SEEDS,
    Images,
    images,
    is_there,
    learn,
    short,
)
from shoal.protocols.ddml.merging import find_blend_factor
from shoal.protocols.ddml.noisy_step import price_update
from shoal.protocols.ddml.params import DDMLParams, Merge

N_VALIDATION = 10_000
CLIPS = (0.005, 0.01, 0.02, 0.05)
PACES = (0.002, 0.006, 0.02)
"""Candidate settings.

The largest gradient of each weight, and the movement of the instances' mean by an update for a
gradient of 1. Inputs centred or not, and the average over time or the last instances, are chosen
too.
"""
GOALS: dict[Merge, float] = {"blend": 0.905, "discard": 0.89}

_FIRST_SEED = 11
_COLUMNS = (
    "lowest",
    "highest",
    "learning_rate",
    "clip",
    "is_centred",
    "is_averaged",
    "epsilon_of_each_weight",
    "epsilon_of_all_that_is_sent",
)


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield accuracy by settings and merge, and the cost, for names that begin with ``only``."""
    settings: dict[str, Callable[[DDMLParams], DDMLParams]] = {
        "chosen": chosen,
        "rule": lambda params: params,
    }
    for (words, settle), merge in product(settings.items(), GOALS) if is_there() else ():
        if (name := f"mnist_log3_{words}_{merge}").startswith(only):
            yield from _measures(name, settle(private(merge)), GOALS[merge], seeds)


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table; a figure in bold misses its target."""
    found = {one.measure: one for one in measures(seeds, only)}
    yield "| | accuracy | " + " | ".join(column.replace("_", " ") for column in _COLUMNS) + " |"
    yield "|---" + "|---:" * (1 + len(_COLUMNS)) + "|"
    for name, one in found.items():
        if one.target is not None:
            shown = short(one.value) if one.value >= one.target else f"**{short(one.value)}**"
            others = (found[f"{name}_{column}"].value for column in _COLUMNS)
            cells = [
                shown,
                *(f"{value:.4g}" if value < 1_000 else f"{value:,.0f}" for value in others),
            ]
            yield f"| {name.removeprefix('mnist_log3_').replace('_', ', ')} | {' | '.join(cells)} |"


@cache
def without_test() -> tuple[Images, Images]:
    """Return the training images, and the last of them, on which settings are chosen."""
    asked, _ = images()
    n = len(asked.digits) - N_VALIDATION
    return Images(asked.pixels[:n], asked.digits[:n]), Images(asked.pixels[n:], asked.digits[n:])


def private(merge: Merge) -> DDMLParams:
    """Return the paper's smallest epsilon: log 3 for each weight of each of twenty updates.

    Other settings have their defaults.
    """
    return DDMLParams(
        SCHEMA,
        ddml_mnist.N_PASSES * math.log(3),
        6_000,
        unit="weight",
        n_updates=ddml_mnist.N_PASSES,
        batch_size=N_ROWS,
        n_instances=10,
        merge=merge,
        link="multinomial",
    )


def chosen(params: DDMLParams) -> DDMLParams:
    """Return centring, clip, learning rate and averaging that are best on validation images."""
    found: list[tuple[float, DDMLParams]] = []
    for centred, clip, pace in product((False, True), CLIPS, PACES):
        one = replace(
            params,
            centred=centred,
            clip=clip,
            learning_rate=pace * params.n_instances / find_blend_factor(params.merge),
        )
        asked, aside = (part.as_in(one) for part in without_test())
        trained = learn(one, asked, seed=1)
        last = trained.instances.mean(axis=0).reshape(trained.model.weights.shape)
        found += [
            (aside.accuracy(trained.model.weights), one),
            (aside.accuracy(last), replace(one, averaging=False)),
        ]
    return max(found, key=lambda score_and_params: score_and_params[0])[1]


def _measures(name: str, params: DDMLParams, goal: float, seeds: int) -> Iterator[Measure]:
    asked, unseen = (part.as_in(params) for part in images())
    reached = [
        unseen.accuracy(learn(params, asked, _FIRST_SEED + i).model.weights) for i in range(seeds)
    ]
    event = price_update(params)
    assert event is not None
    yield Measure("ddml", name, float(np.mean(reached)), "accuracy", "higher", goal)
    yield Measure("ddml", f"{name}_lowest", min(reached), "accuracy", "higher")
    yield Measure("ddml", f"{name}_highest", max(reached), "accuracy", "higher")
    yield Measure("ddml", f"{name}_learning_rate", params.rates.learning_rate, "", "higher")
    yield Measure("ddml", f"{name}_clip", params.rates.clip, "", "higher")
    yield Measure("ddml", f"{name}_is_centred", float(params.centred), "", "higher")
    yield Measure("ddml", f"{name}_is_averaged", float(params.averaging), "", "higher")
    yield Measure("ddml", f"{name}_epsilon_of_each_weight", params.epsilon, "epsilon", "lower")
    yield Measure(
        "ddml",
        f"{name}_epsilon_of_all_that_is_sent",
        event.epsilon * params.n_updates,
        "epsilon",
        "lower",
    )
