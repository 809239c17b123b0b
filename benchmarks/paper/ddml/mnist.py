"""MNIST as in §V-A and §V-B of the DDML paper.

6,000 devices of ten images each, twenty passes, a multinomial model of 7,850 weights. Each figure
is compared with one run of an implementation that shares no code with this one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure
from benchmarks.paper.anonml.data import DATA
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.ddml.design_matrix import Floats, SparseInputs
from shoal.protocols.ddml.merging import Weights, draw_instances, steady_variance
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import (
    DDMLPopulationResult,
    DevicePopulation,
    Engine,
    RunOptions,
    Traffic,
    WatchCallback,
    simulate,
)
from shoal.protocols.ddml.population.schedule import StrategyChoice, make_merge_strategy
from shoal.simulation.metrics import compute_mean

FILE = DATA / "mnist.npz"
N_ROWS, N_PASSES = 10, 20
"""N_c, and the number of updates of each device."""
SEEDS = 3
TOLERANCE = 0.01
ENGINE: Engine | None = "numba" if find_spec("numba") else None
"""The numba engine, compiled once for many runs, however short each is."""

SCHEMA = Schema(
    [Numeric(f"pixel{i}", 0, 1, missing=False) for i in range(784)],
    Categorical("digit", list("0123456789")),
)
PAPER = DDMLParams(
    SCHEMA,
    math.inf,
    6_000,
    variant="paper",
    unit="weight",
    batch_size=N_ROWS,
    n_instances=10,
    merge="discard",
    link="multinomial",
    centred=False,
    learning_rate=0.001,
    clip=1.0,
    fraction_bits=24,
    averaging=False,
)
"""The paper's settings: epsilon is that of one weight of one update."""

INSTANCES = {1: 0.912, 10: 0.875, 20: 0.857, 50: 0.827, 100: 0.784}
BATCHES = {1: 0.912, 10: 0.876, 20: 0.856, 40: 0.834, 100: 0.798, 1000: 0.712}
STRATEGIES: dict[StrategyChoice | None, float] = {
    None: 0.857,
    "same": 0.856,
    "accept": 0.857,
    "average": 0.834,
    "same-average": 0.834,
}
NAMES: dict[StrategyChoice | None, str] = {
    None: "draw and discard",
    "same": "same instance",
    "accept": "one in k accepted",
    "average": "draw, discard and average",
    "same-average": "same instance, averaged",
}
BUDGETS = {math.inf: 0.875, 32.0: 0.852, 16.0: 0.839, 3.0: 0.709}
"""Accuracy by budget; epsilon is the logarithm of the keys."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their digits.

    Parameters
    ----------
    pixels
        ``(n, 785)`` float32, a constant before them.
    digits
        ``(n,)``.
    """

    pixels: npt.NDArray[np.float32]
    digits: npt.NDArray[np.int64]

    def as_in(self, params: DDMLParams) -> Images:
        """Return the images as the inputs of a model: centred or unchanged."""
        return self._centred if params.centred else self

    @cached_property
    def _centred(self) -> Images:
        return Images(
            self.pixels - np.concatenate([[0], np.full(784, 0.5)]).astype(np.float32), self.digits
        )

    @cached_property
    def _inputs(self) -> SparseInputs:
        return SparseInputs.from_dense(self.pixels)

    def devices(self, rng: np.random.Generator) -> DevicePopulation:
        """Return the images distributed at random, ten to each device."""
        n = len(self.digits)
        order = rng.permutation(n)
        return DevicePopulation(
            self._inputs.take(order),
            self.digits[order].astype(np.float64),
            np.arange(0, n + 1, N_ROWS),
        )

    def loss(self, weights: Floats) -> float:
        """Return the mean cross-entropy."""
        scores = (self.pixels @ weights.T.astype(np.float32)).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        return float(
            np.mean(
                np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), self.digits]
            )
        )

    def accuracy(self, weights: Floats) -> float:
        """Return the share of images with a correct prediction."""
        return float(
            np.mean(np.argmax(self.pixels @ weights.T.astype(np.float32), axis=1) == self.digits)
        )


@dataclass(frozen=True)
class Case:
    """Runs with the paper's settings, and the result of another implementation."""

    name: str
    title: str
    params: DDMLParams
    known: float
    strategy: StrategyChoice | None = None


def _cases() -> Iterator[Case]:
    for k, known in INSTANCES.items():
        yield Case(f"mnist_k{k}", f"k = {k}", replace(PAPER, n_instances=k), known)
    for size, known in BATCHES.items():
        yield Case(
            f"mnist_batch_of_{size}_devices",
            f"batches of {size} device{'s' * (size > 1)}",
            PAPER,
            known,
            ("batch", size),
        )
    twenty = replace(PAPER, n_instances=20)
    for strategy, known in STRATEGIES.items():
        yield Case(
            f"mnist_k20_{strategy or 'draw_and_discard'}",
            f"k = 20, {NAMES[strategy]}",
            twenty,
            known,
            strategy,
        )
    for budget, known in BUDGETS.items():
        words = (
            "no noise"
            if budget == math.inf
            else f"epsilon log {budget:g} of each weight and update"
        )
        yield Case(
            f"mnist_epsilon_log{budget:g}",
            f"k = 10, {words}",
            replace(PAPER, epsilon=math.log(budget)),
            known,
        )


CASES = tuple(_cases())


def is_there() -> bool:
    """Return whether the images are on this machine; if not, print a warning."""
    if not FILE.exists():
        print(
            f"{FILE.name} is not in {FILE.parent}, so MNIST is left out. Fetch it: `make data`.",
            file=sys.stderr,
        )
    return FILE.exists()


@cache
def images() -> tuple[Images, Images]:
    """Return the 60,000 training images and the 10,000 test images."""
    with np.load(FILE) as stored:
        return _images(stored["x_train"], stored["y_train"]), _images(
            stored["x_test"], stored["y_test"]
        )


def _images(pixels: npt.NDArray[np.uint8], digits: npt.NDArray[np.uint8]) -> Images:
    n = len(pixels)
    flat = np.concatenate(
        [np.ones((n, 1), np.float32), pixels.reshape(n, -1).astype(np.float32) / 255], axis=1
    )
    return Images(flat, digits.astype(np.int64))


def learn(
    params: DDMLParams,
    asked: Images,
    seed: int,
    strategy: StrategyChoice | None = None,
    watch: WatchCallback | None = None,
    every: int = 0,
) -> DDMLPopulationResult:
    """Return the result of one run: each device sends twenty updates, in random order."""
    rng, entropy = np.random.default_rng(seed), SeededEntropy(seed).spawn("mnist")
    devices = asked.devices(rng)
    traffic = Traffic(
        order=np.concatenate([rng.permutation(len(devices)) for _ in range(N_PASSES)])
    )
    start = spread(params, strategy, entropy.spawn("start")) if params.is_noiseless else None
    return simulate(
        params,
        devices,
        entropy,
        traffic=traffic,
        strategy=strategy,
        engine=ENGINE,
        options=RunOptions(start=start, watch=watch, every=every),
    )


def spread(params: DDMLParams, strategy: StrategyChoice | None, entropy: Entropy) -> Weights:
    """Return the first instances of a run without noise, as different as if epsilon were 1.

    Notes
    -----
    Ref: DDML §V-A, §III-C.
    """
    k, sigma = (
        make_merge_strategy(params, strategy).n_instances,
        math.sqrt(8) * params.gamma() * 2**params.fraction_bits,
    )
    return draw_instances(k, params.n_weights, steady_variance(k, 1.0) * sigma**2, entropy)


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield test accuracy, its standard error, and the distance from the known result.

    Names begin with ``only``.
    """
    for case in CASES if is_there() else ():
        if case.name.startswith(only):
            yield from _measures(case, seeds)


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table; a figure in bold is too far from the known result."""
    found = {one.measure: one.value for one in measures(seeds, only)}
    yield "| setting | accuracy | the other implementation |"
    yield "|---|---:|---:|"
    for case in CASES:
        if (value := found.get(case.name)) is not None:
            shown = short(value) + (f" ({short(found[f'{case.name}_se'])})" if seeds > 1 else "")
            is_near = found[f"{case.name}_distance"] <= TOLERANCE
            yield f"| {case.title} | {shown if is_near else f'**{shown}**'} | {short(case.known)} |"


def short(figure: float) -> str:
    """Return three digits after the point, and none before it."""
    return f"{figure:.3f}".removeprefix("0")


def _measures(case: Case, seeds: int) -> Iterator[Measure]:
    asked, unseen = images()
    reached = compute_mean(
        [
            unseen.accuracy(learn(case.params, asked, seed, case.strategy).model.weights)
            for seed in range(seeds)
        ]
    )
    yield Measure("ddml", case.name, reached.value, "accuracy", "higher")
    if reached.error is not None:
        yield Measure("ddml", f"{case.name}_se", reached.error, "accuracy", "lower")
    yield Measure(
        "ddml",
        f"{case.name}_distance",
        abs(reached.value - case.known),
        "accuracy",
        "lower",
        TOLERANCE,
    )
