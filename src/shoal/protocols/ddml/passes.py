"""Passes over many weights, which a coordinator makes for each update: plain Python that numba compiles, where it is installed.

NumPy takes several passes for each of these, and a temporary array for most. Models of few weights are better off with that: compiling
takes seconds and tens of megabytes.
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
"""Weights of a model from which on it is worth the wait."""

_BLOCK = 2_048
"""Weights of all instances that are looked at together, so that what is summed stays in the cache."""


class Passes(NamedTuple):
    """The functions of this module, compiled."""

    blend: Callable[[Weights, Weights, float, Weights], None]
    moments: Callable[[Weights, Floats, Floats, Floats, Floats], None]
    units: Callable[[Floats, float, Singles], None]
    deviations: Callable[[Weights, Singles, Singles, float], tuple[float, int, int]]


def blend(instance: Weights, update: Weights, part: float, merged: Weights) -> None:
    """`shoal.protocols.ddml.merging.merged`, written to ``merged``."""
    for i in range(len(merged)):
        old = np.float64(instance[i])
        merged[i] = np.int32(np.rint(old + part * (np.float64(update[i]) - old)))


def moments(instances: Weights, centre: Floats, spread: Floats, sums: Floats, squares: Floats) -> None:
    """Mean and standard deviation (divisor k - 1; 0 for one instance) of each weight over the instances ``(k, p)``.

    Notes
    -----
    Sums are of differences from the first instance, which are whole numbers and as small as the spread: nothing cancels, and the mean
    is the one that summing the instances themselves would give, to the last bit.
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
            a, b, c, d = instances[j, start:end], instances[j + 1, start:end], instances[j + 2, start:end], instances[j + 3, start:end]
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
        means, deviating = centre[start:end], spread[start:end]
        for i in range(len(total)):
            means[i] = (total[i] + k * np.float64(first[i])) / k
            deviating[i] = np.sqrt(max(square[i] - total[i] * total[i] / k, 0.0) / max(k - 1, 1))


def units(spread: Floats, rest: float, parts: Singles) -> None:
    """What deviations are multiplied by: one over the root of half the variance and what is the same for all weights."""
    for i in range(len(parts)):
        parts[i] = np.float32(1 / np.sqrt(0.5 * spread[i] * spread[i] + rest))


def deviations(weights: Weights, centre: Singles, parts: Singles, limit: float) -> tuple[float, int, int]:
    """Of the deviations (w - centre) times parts: the sum of squares, and how many squares exceed a limit; and the lowest weight."""
    total, n_beyond, lowest = np.float32(0), 0, np.int32(0)
    for i in range(len(weights)):
        z = (np.float32(weights[i]) - centre[i]) * parts[i]
        square = z * z
        total += square
        n_beyond += square > limit
        lowest = min(lowest, weights[i])
    return total, n_beyond, lowest  # type: ignore[return-value]


def in_one_piece(weights: Weights) -> Weights:
    """Weights as compiled functions take them; a copy where they lie otherwise."""
    flags = weights.flags
    return weights if flags.c_contiguous and flags.aligned else np.array(weights, np.int32)


def passes_for(n_weights: int) -> Passes | None:
    """Compiled functions, where a model is large enough for them and numba is installed."""
    return compiled() if n_weights >= WORTH_COMPILING else None


@cache
def compiled() -> Passes | None:
    """All of them, for arrays that lie in one piece: a few seconds of work, once in a process. None without numba."""
    if not find_spec("numba"):
        return None
    from numba import njit, types

    weights, singles, floats = types.int32[::1], types.float32[::1], types.float64[::1]
    fixed, rows = types.Array(types.int32, 1, "C", readonly=True), types.Array(types.int32, 2, "C", readonly=True)
    judged: Any = types.Tuple([types.float32, types.int64, types.int32])  # type: ignore[no-untyped-call]
    # Nothing is allocated here. Sums of squares may be taken in any order, several at a time.
    build: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
    in_any_order = {"reassoc", "nnan", "ninf", "nsz"}
    return Passes(
        njit(types.void(fixed, fixed, types.float64, weights), **build)(blend),
        njit(types.void(rows, floats, floats, floats, floats), **build)(moments),
        njit(types.void(floats, types.float64, singles), **build)(units),
        njit(judged(fixed, singles, singles, types.float32), fastmath=in_any_order, **build)(deviations),
    )


def moments_by(passes: Passes, instances: Weights) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each weight over the instances ``(k, p)``."""
    p = instances.shape[1]
    centre, spread = np.empty(p), np.empty(p)
    passes.moments(instances, centre, spread, np.empty(_BLOCK), np.empty(_BLOCK))
    return centre, spread
