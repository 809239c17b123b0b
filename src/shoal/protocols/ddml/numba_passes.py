"""Single-pass kernels for large models.

The coordinator runs them for each update. They are plain Python, which numba compiles if it is
installed. NumPy needs several passes for each of these, and a temporary array for most, but is
better for small models: compiling takes seconds and tens of megabytes. The results must equal those
of the functions in ``merging`` and ``spam_filter``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

WORTH_COMPILING = 10_000
"""Number of weights from which compiling is worth the wait."""

_BLOCK = 2_048
"""Weights of all instances that are read together, so that the sums stay in the cache."""


class CompiledPasses(NamedTuple):
    """The functions of this module, compiled."""

    blend: Callable[[Weights, Weights, float, Weights], None]
    compute_moments: Callable[[Weights, Floats, Floats, Floats, Floats], None]
    compute_scales: Callable[[Floats, float, Singles], None]
    sum_deviations: Callable[[Weights, Singles, Singles, float], tuple[float, int, int]]


def blend(instance: Weights, update: Weights, blend_factor: float, merged: Weights) -> None:
    """Compute `shoal.protocols.ddml.merging.merge_update` into ``merged``."""
    for i in range(len(merged)):
        old = np.float64(instance[i])
        merged[i] = np.int32(np.rint(old + blend_factor * (np.float64(update[i]) - old)))


def compute_moments(
    instances: Weights, centre: Floats, deviation: Floats, sums: Floats, squares: Floats
) -> None:
    """Compute mean and standard deviation of each weight over the instances ``(k, p)``.

    The divisor is k - 1; the deviation is 0 for one instance.

    Notes
    -----
    Sums are of differences from the first instance, which are integers of the size of the
    deviation: there is no cancellation, and the mean equals that of the instances to the last bit.
    """
    k, p = instances.shape
    fours = k - k % 4
    for start in range(0, p, _BLOCK):
        end = min(p, start + _BLOCK)
        first, total, square = instances[0, start:end], sums[: end - start], squares[: end - start]
        for i in range(len(total)):
            total[i] = 0.0
            square[i] = 0.0
        for j in range(0, fours, 4):
            # Four at a time: most of the work is to read and write the sums.
            a, b, c, d = (
                instances[j, start:end],
                instances[j + 1, start:end],
                instances[j + 2, start:end],
                instances[j + 3, start:end],
            )
            for i in range(len(total)):
                base = np.float64(first[i])
                w, x, y, z = a[i] - base, b[i] - base, c[i] - base, d[i] - base
                total[i] += (w + x) + (y + z)
                square[i] += (w * w + x * x) + (y * y + z * z)
        for j in range(fours, k):
            last = instances[j, start:end]
            for i in range(len(total)):
                w = last[i] - np.float64(first[i])
                total[i] += w
                square[i] += w * w
        means, deviating = centre[start:end], deviation[start:end]
        for i in range(len(total)):
            means[i] = (total[i] + k * np.float64(first[i])) / k
            deviating[i] = np.sqrt(max(square[i] - total[i] * total[i] / k, 0.0) / max(k - 1, 1))


def compute_scales(deviation: Floats, rest: float, parts: Singles) -> None:
    """Compute the factors of the deviations.

    A factor is one over the root of half the variance plus a term that is the same for all weights.
    """
    for i in range(len(parts)):
        parts[i] = np.float32(1 / np.sqrt(0.5 * deviation[i] * deviation[i] + rest))


def sum_deviations(
    weights: Weights, centre: Singles, parts: Singles, limit: float
) -> tuple[float, int, int]:
    """Return sum of squares, number of squares beyond a limit, and the lowest weight.

    The squares are of the deviations (w - centre) times parts.
    """
    total, n_beyond, lowest = np.float32(0), 0, np.int32(0)
    for i in range(len(weights)):
        z = (np.float32(weights[i]) - centre[i]) * parts[i]
        square = z * z
        total += square
        n_beyond += square > limit
        lowest = min(lowest, weights[i])
    return total, n_beyond, lowest  # type: ignore[return-value]


def make_contiguous(weights: Weights) -> Weights:
    """Return the weights in contiguous, aligned memory; a copy only if needed."""
    flags = weights.flags
    return weights if flags.c_contiguous and flags.aligned else np.array(weights, np.int32)


def load_passes(n_weights: int) -> CompiledPasses | None:
    """Return the compiled functions if a model is large enough and numba is installed."""
    return compile_passes() if n_weights >= WORTH_COMPILING else None


@cache
def compile_passes() -> CompiledPasses | None:
    """Compile all functions for contiguous arrays; return None without numba.

    It takes a few seconds, once in a process.
    """
    if not find_spec("numba"):
        return None
    from numba import njit, types

    weights, singles, floats = types.int32[::1], types.float32[::1], types.float64[::1]
    fixed, rows = (
        types.Array(types.int32, 1, "C", readonly=True),
        types.Array(types.int32, 2, "C", readonly=True),
    )
    judged: Any = types.Tuple([types.float32, types.int64, types.int32])  # type: ignore[no-untyped-call]
    # Nothing is allocated here. Sums of squares may be taken in any order, several at a time.
    build: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
    in_any_order = {"reassoc", "nnan", "ninf", "nsz"}
    return CompiledPasses(
        njit(types.void(fixed, fixed, types.float64, weights), **build)(blend),
        njit(types.void(rows, floats, floats, floats, floats), **build)(compute_moments),
        njit(types.void(floats, types.float64, singles), **build)(compute_scales),
        njit(judged(fixed, singles, singles, types.float32), fastmath=in_any_order, **build)(
            sum_deviations
        ),
    )


def run_moments(passes: CompiledPasses, instances: Weights) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each weight over the instances ``(k, p)``."""
    p = instances.shape[1]
    centre, deviation = np.empty(p), np.empty(p)
    passes.compute_moments(instances, centre, deviation, np.empty(_BLOCK), np.empty(_BLOCK))
    return centre, deviation
