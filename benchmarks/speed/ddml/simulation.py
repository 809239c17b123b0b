"""A simulated population of DDML, one core: noisy updates a second.

The compiled engine is compared with a plain NumPy loop, and a run on images of MNIST's size is
timed. Rows are dense, a device has one, k = 20, and each weight has separate Laplace noise, from a
pool if the run is long. The plain loop is a direct implementation of the paper: floats, dense rows,
noise drawn by NumPy. A second figure is the plain loop with a pool.
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
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design_matrix import SparseInputs
from shoal.protocols.ddml.params import DDMLParams, Merge
from shoal.protocols.ddml.population import DevicePopulation, Engine, Traffic, simulate

BENCH = "ddml-speed"
N_DEVICES = 2_000
N_PLAIN = 5_000
SIZES = {33: (20_000_000, 4e6), 387: (8_000_000, 1.5e6)}
"""Weights -> timed updates, and the target rate."""
TIMES_PLAIN = 20

Floats = npt.NDArray[np.float64]


def measures() -> Iterator[Measure]:
    """Yield small models against the plain loop, with both merges; then a large one."""
    if not find_spec("numba"):
        return
    for p, (n, target) in SIZES.items():
        devices = make_devices(p)
        plain, pooled = (
            plain_updates_a_second(devices, is_pooled=is_pooled) for is_pooled in (False, True)
        )
        yield Measure(BENCH, f"plain_numpy_{p}", plain, "updates/s", "higher")
        yield Measure(BENCH, f"plain_numpy_{p}_pooled", pooled, "updates/s", "higher")
        for name, params in {
            "discard": make_params(p, "discard"),
            "blend": make_params(p, "blend", averaging=True),
        }.items():
            found = updates_a_second(params, devices, n)
            yield Measure(
                BENCH,
                f"simulated_{p}_{name}",
                found,
                "updates/s",
                "higher",
                target,
                "plain NumPy",
                found / plain,
            )
            yield Measure(
                BENCH, f"simulated_{p}_{name}_vs_plain", found / plain, "x", "higher", TIMES_PLAIN
            )
        slow = updates_a_second(make_params(p, "discard"), devices, N_PLAIN, "numpy")
        yield Measure(BENCH, f"without_numba_{p}", slow, "updates/s", "higher")
    yield Measure(BENCH, "digits_seconds", digits_seconds(), "s", "lower", target=60.0)


def make_params(p: int, merge: Merge, *, averaging: bool = False) -> DDMLParams:
    schema = Schema(
        [Numeric(f"x{i}", 0, 1, missing=False) for i in range(p - 1)],
        label=Categorical("y", ["no", "yes"], missing=False),
    )
    return DDMLParams(
        schema,
        math.log(32),
        N_DEVICES,
        unit="weight",
        merge=merge,
        averaging=averaging,
        centred=False,
    )


def make_devices(p: int) -> DevicePopulation:
    rng = np.random.default_rng(0)
    matrix = rng.random((N_DEVICES, p))
    matrix[:, 0] = 1
    return DevicePopulation(
        SparseInputs.from_dense(matrix),
        (rng.random(N_DEVICES) < matrix[:, 1]).astype(np.float64),
        np.arange(N_DEVICES + 1),
    )


def updates_a_second(
    params: DDMLParams, devices: DevicePopulation, n: int, engine: Engine = "numba"
) -> float:
    """Return updates a second of a run; only compiling is excluded."""
    simulate(params, devices, SeededEntropy(0), engine=engine)
    order = np.random.default_rng(1).integers(0, N_DEVICES, n)
    start = time.process_time()
    simulate(params, devices, SeededEntropy(1), traffic=Traffic(order=order), engine=engine)
    return n / (time.process_time() - start)


def plain_updates_a_second(devices: DevicePopulation, *, is_pooled: bool = False) -> float:
    rng = np.random.default_rng(2)
    pool = rng.laplace(size=1 << 20) if is_pooled else None
    return rate(partial(_plain, devices.inputs.to_dense(), devices.targets, pool, rng), N_PLAIN)


def _plain(
    matrix: Floats, targets: Floats, pool: Floats | None, rng: np.random.Generator
) -> Floats:
    k, p = 20, matrix.shape[1]
    instances = np.zeros((k, p))
    devices, drawn, replaced, offsets = (
        rng.integers(0, bound, N_PLAIN).tolist() for bound in (len(matrix), k, k, (1 << 20) - p)
    )
    for device, i, j, at in zip(devices, drawn, replaced, offsets, strict=True):
        row, base = matrix[device], instances[i]
        gradient = (1 / (1 + math.exp(-float(row @ base))) - targets[device]) * row
        noise = rng.laplace(size=p) if pool is None else pool[at : at + p]
        instances[j] = base - 0.01 * np.clip(gradient, -1, 1) + 0.001 * noise
    return instances


def digits_seconds() -> float:
    """Return seconds of 6,000 devices with ten images of 784 points, compiling included.

    Ten classes, 20 passes, noise on each of 7,850 weights.
    """
    rng = np.random.default_rng(3)
    pictures = rng.random((60_000, 785), np.float32)
    pictures[rng.random(pictures.shape, np.float32) < 0.8] = 0
    pictures[:, 0] = 1
    schema = Schema(
        [Numeric(f"x{i}", 0, 1, missing=False) for i in range(784)],
        label=Categorical("digit", list("0123456789")),
    )
    params = DDMLParams(
        schema,
        20 * math.log(3),
        6_000,
        n_updates=20,
        batch_size=10,
        learning_rate=0.001,
        clip=1.0,
        unit="weight",
        link="multinomial",
        merge="discard",
        averaging=False,
        centred=False,
    )
    devices = DevicePopulation(
        SparseInputs.from_dense(pictures),
        rng.integers(0, 10, 60_000).astype(np.float64),
        np.arange(0, 60_001, 10),
    )
    start = time.process_time()
    simulate(params, devices, SeededEntropy(4), engine="numba")
    return time.process_time() - start
