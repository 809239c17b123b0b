"""A simulated population of DDML, one core: noisy updates a second, compiled and in a plain NumPy loop; a run on digits of MNIST's size.

Rows are dense, a device holds one, k = 20, and each weight has Laplace noise of its own, from a pool where the run is long. The plain loop
is what one would write to try the paper out: floats, dense rows, noise as NumPy draws it. The same with a pool is given beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure, rate
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design import Inputs
from shoal.protocols.ddml.params import Merge, Params
from shoal.protocols.ddml.population import Devices, Engine, Traffic, simulate

BENCH = "ddml-speed"
N_DEVICES = 2_000
N_PLAIN = 5_000
SIZES = {33: (20_000_000, 4e6), 387: (8_000_000, 1.5e6)}
"""Weights -> updates that are timed, and how many a second are wanted."""
TIMES_PLAIN = 20

Floats = npt.NDArray[np.float64]


def measures() -> Iterator[Measure]:
    """Small models against the plain loop, with both merges; then a large one."""
    if not find_spec("numba"):
        return
    for p, (n, target) in SIZES.items():
        devices = make_devices(p)
        plain, pooled = (plain_updates_a_second(devices, is_pooled=is_pooled) for is_pooled in (False, True))
        yield Measure(BENCH, f"plain_numpy_{p}", plain, "updates/s", "higher")
        yield Measure(BENCH, f"plain_numpy_{p}_pooled", pooled, "updates/s", "higher")
        for name, params in {"discard": make_params(p, "discard"), "blend": make_params(p, "blend", averaging=True)}.items():
            found = updates_a_second(params, devices, n)
            yield Measure(BENCH, f"simulated_{p}_{name}", found, "updates/s", "higher", target, "plain NumPy", found / plain)
            yield Measure(BENCH, f"simulated_{p}_{name}_vs_plain", found / plain, "x", "higher", TIMES_PLAIN)
        slow = updates_a_second(make_params(p, "discard"), devices, N_PLAIN, "numpy")
        yield Measure(BENCH, f"without_numba_{p}", slow, "updates/s", "higher")
    yield Measure(BENCH, "digits_seconds", digits_seconds(), "s", "lower", target=60.0)


def make_params(p: int, merge: Merge, *, averaging: bool = False) -> Params:
    schema = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)], label=Categorical("y", ["no", "yes"], missing=False))
    return Params(schema, math.log(32), N_DEVICES, unit="weight", merge=merge, averaging=averaging, centred=False)


def make_devices(p: int) -> Devices:
    rng = np.random.default_rng(0)
    matrix = rng.random((N_DEVICES, p))
    matrix[:, 0] = 1
    return Devices(Inputs.of_dense(matrix), (rng.random(N_DEVICES) < matrix[:, 1]).astype(np.float64), np.arange(N_DEVICES + 1))


def updates_a_second(params: Params, devices: Devices, n: int, engine: Engine = "numba") -> float:
    """All of a run counts but compiling: order, draws and the pool of noise too."""
    simulate(params, devices, SeededEntropy(0), engine=engine)
    order = np.random.default_rng(1).integers(0, N_DEVICES, n)
    start = time.process_time()
    simulate(params, devices, SeededEntropy(1), traffic=Traffic(order=order), engine=engine)
    return n / (time.process_time() - start)


def plain_updates_a_second(devices: Devices, *, is_pooled: bool = False) -> float:
    rng = np.random.default_rng(2)
    pool = rng.laplace(size=1 << 20) if is_pooled else None
    return rate(partial(_plain, devices.inputs.dense(), devices.targets, pool, rng), N_PLAIN)


def _plain(matrix: Floats, targets: Floats, pool: Floats | None, rng: np.random.Generator) -> Floats:
    k, p = 20, matrix.shape[1]
    instances = np.zeros((k, p))
    devices, drawn, replaced, offsets = (rng.integers(0, bound, N_PLAIN).tolist() for bound in (len(matrix), k, k, (1 << 20) - p))
    for device, i, j, at in zip(devices, drawn, replaced, offsets, strict=True):
        row, base = matrix[device], instances[i]
        gradient = (1 / (1 + math.exp(-float(row @ base))) - targets[device]) * row
        noise = rng.laplace(size=p) if pool is None else pool[at : at + p]
        instances[j] = base - 0.01 * np.clip(gradient, -1, 1) + 0.001 * noise
    return instances


def digits_seconds() -> float:
    """6,000 devices with ten pictures of 784 points each, ten classes, 20 passes, noise on each of 7,850 weights; compiling included."""
    rng = np.random.default_rng(3)
    pictures = rng.random((60_000, 785), np.float32)
    pictures[rng.random(pictures.shape, np.float32) < 0.8] = 0
    pictures[:, 0] = 1
    schema = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(784)], label=Categorical("digit", list("0123456789")))
    study = {"unit": "weight", "link": "multinomial", "merge": "discard", "averaging": False, "centred": False}
    params = Params(schema, 20 * math.log(3), 6_000, n_updates=20, batch_size=10, learning_rate=0.001, clip=1.0, **study)  # type: ignore[arg-type]
    devices = Devices(Inputs.of_dense(pictures), rng.integers(0, 10, 60_000).astype(np.float64), np.arange(0, 60_001, 10))
    start = time.process_time()
    simulate(params, devices, SeededEntropy(4), engine="numba")
    return time.process_time() - start
