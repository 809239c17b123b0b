"""Inner loop in numba.

It is plain Python, which `compile_loop` compiles; without numba it would be too slow, and
``numpy_loop`` does the same with NumPy. Nothing is drawn here: the same input gives the same
output. Both loops must agree up to one unit of the grid, because sums of floats are taken in
another order. This is one of the two second forms of the rule in ``instances``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shoal.protocols.ddml.links import MAX_SCORE
from shoal.protocols.ddml.merging import AVERAGING_EXPONENT, MAX_WEIGHT, Weights
from shoal.protocols.ddml.population.arrays import (
    CLOSEST,
    LOG,
    LOGIT,
    MULTINOMIAL,
    NOISELESS,
    Floats,
    Ints,
    LoopRows,
    LoopSettings,
    LoopState,
    NoiseDraws,
    Singles,
    UpdateBlock,
)


def run(table: LoopRows, block: UpdateBlock, rule: LoopSettings, state: LoopState) -> None:
    """Apply the updates of a block, one after another."""
    arrivals = block.arrivals
    for t in range(len(arrivals.bases)):
        base, place = state.models[arrivals.bases[t]], arrivals.slots[t]
        if place >= 0:
            rows = block.rows[block.row_starts[t] : block.row_starts[t + 1]]
            _sum_gradients(table, rows, rule, base, state.scratch, state.scores)
            _perturb(block.draws, t, rule, state.scratch)
            if rule.batch > 0:
                _add_to_batch(rule, base, state)
            else:
                _merge(base, state.scratch, state.models[place], rule.part)
            state.counts[0] += 1
            if rule.average_every > 0 and state.counts[0] % rule.average_every == 0:
                _update_average(rule, state)
        if arrivals.redrawn[t] >= 0:
            _copy(state.models[arrivals.redrawn[t]], base)


def _sum_gradients(
    table: LoopRows,
    rows: Ints,
    rule: LoopSettings,
    weights: Weights,
    gradient: Floats,
    scores: Floats,
) -> None:
    """Add the average gradient of some rows to zeros."""
    width = len(weights) // len(scores)
    for row in rows:
        values = table.values[table.starts[row] : table.starts[row + 1]]
        positions = table.positions[table.starts[row] : table.starts[row + 1]]
        for c in range(len(scores)):
            part = weights[c * width : (c + 1) * width]
            scores[c] = rule.grid * (
                _dot(values, part) if table.is_dense else _sparse_dot(values, positions, part)
            )
        _to_residuals(rule.link, scores, table.targets[row])
        for c in range(len(scores)):
            part_gradient = gradient[c * width : (c + 1) * width]
            if table.is_dense:
                for i in range(width):
                    part_gradient[i] += values[i] * scores[c]
            else:
                for i in range(len(values)):
                    part_gradient[positions[i]] += values[i] * scores[c]
    if len(rows) > 1:
        for i in range(len(gradient)):
            gradient[i] /= len(rows)


def _dot(values: Floats, weights: Weights) -> float:
    total = 0.0
    for i in range(len(values)):
        total += values[i] * weights[i]
    return total


def _sparse_dot(values: Floats, positions: npt.NDArray[np.int32], weights: Weights) -> float:
    total = 0.0
    for i in range(len(values)):
        total += values[i] * weights[positions[i]]
    return total


def _to_residuals(link: int, scores: Floats, target: float) -> None:
    """Replace the scores by predicted means minus the target."""
    if link == MULTINOMIAL:
        max_score, total = scores[0], 0.0
        for c in range(1, len(scores)):
            max_score = max(max_score, scores[c])
        for c in range(len(scores)):
            scores[c] = math.exp(scores[c] - max_score)
            total += scores[c]
        for c in range(len(scores)):
            scores[c] /= total
        scores[int(target)] -= 1
        return
    score = scores[0]
    if link == LOGIT:
        score = 1 / (1 + math.exp(-min(max(score, -MAX_SCORE), MAX_SCORE)))
    elif link == LOG:
        score = math.exp(min(max(score, -MAX_SCORE), MAX_SCORE))
    scores[0] = score - target


def _perturb(draws: NoiseDraws, t: int, rule: LoopSettings, gradient: Floats) -> None:
    """Replace the gradient by the noisy step."""
    if rule.kind == CLOSEST:
        _perturb_direction(draws, t, rule, gradient)
        return
    p, factor, max_step = len(gradient), -rule.scale, rule.bound
    if rule.norm > 0:
        size = _l1(gradient) if rule.norm == 1 else math.sqrt(_product(gradient, gradient))
        factor, max_step = (
            -rule.scale if rule.scale * size <= rule.bound else -rule.bound / size,
            math.inf,
        )
    if rule.kind == NOISELESS:
        for i in range(p):
            gradient[i] = np.rint(min(max(factor * gradient[i], -max_step), max_step))
    else:
        noise, sign = draws.noise[draws.offsets[t] : draws.offsets[t] + p], draws.signs[t]
        for i in range(p):
            gradient[i] = (
                np.trunc(min(max(factor * gradient[i], -max_step), max_step)) + sign * noise[i]
            )


def _l1(vector: Floats) -> float:
    total = 0.0
    for i in range(len(vector)):
        total += abs(vector[i])
    return total


def _product(one: Floats | Singles, other: Floats | Singles) -> float:
    total = 0.0
    for i in range(len(one)):
        total += np.float64(one[i]) * other[i]
    return total


def _perturb_direction(draws: NoiseDraws, t: int, rule: LoopSettings, gradient: Floats) -> None:
    """Replace the gradient by a step along the reported direction.

    The direction has the drawn alignment with the private one, and is uniform around it.
    """
    sign, alignment = draws.signs[t], draws.alignments[t]
    normals = draws.normals[draws.offsets[t] : draws.offsets[t] + len(gradient)]
    size = math.sqrt(_product(gradient, gradient))
    share = min(1.0, size / rule.bound)
    if size == 0:
        gradient[0] = size = 1.0
    # The private direction is this factor times the gradient.
    factor = (1.0 if draws.coins[t] < (1 - share) / 2 else -1.0) / size
    along, square = factor * sign * _product(gradient, normals), _product(normals, normals)
    across = math.sqrt((1 - alignment * alignment) / (square - along * along))
    for_gradient, for_normal = (
        rule.reach * (alignment - across * along) * factor,
        rule.reach * across * sign,
    )
    for i in range(len(gradient)):
        gradient[i] = np.rint(for_gradient * gradient[i] + for_normal * normals[i])


def _merge(base: Weights, step: Floats, instance: Weights, part: float) -> None:
    """Move the instance towards the update, and reset the step to zeros."""
    if part == 1:
        for i in range(len(step)):
            instance[i] = np.int32(min(max(base[i] + step[i], -MAX_WEIGHT), MAX_WEIGHT))
            step[i] = 0.0
        return
    for i in range(len(step)):
        old = float(instance[i])
        update = min(max(base[i] + step[i], -MAX_WEIGHT), MAX_WEIGHT)
        instance[i] = np.int32(np.rint(old + part * (update - old)))
        step[i] = 0.0


def _add_to_batch(rule: LoopSettings, base: Weights, state: LoopState) -> None:
    """Add the step to the waiting ones; merge their mean into the only model when complete."""
    step, waiting, model = state.scratch, state.pending_sum, state.models[0]
    for i in range(len(step)):
        waiting[i] += min(max(base[i] + step[i], -MAX_WEIGHT), MAX_WEIGHT) - base[i]
        step[i] = 0.0
    state.counts[2] += 1
    if state.counts[2] == rule.batch:
        for i in range(len(waiting)):
            model[i] = np.int32(
                min(max(np.rint(model[i] + waiting[i] / rule.batch), -MAX_WEIGHT), MAX_WEIGHT)
            )
            waiting[i] = 0.0
        state.counts[2] = 0


def _update_average(rule: LoopSettings, state: LoopState) -> None:
    """Fold the mean of the instances into the average over time."""
    state.counts[1] += 1
    total, average, models = state.scratch, state.average, state.models
    fours = rule.n_instances // 4 * 4
    for j in range(0, fours, 4):
        # Four at a time: most of the work is to read and write the total.
        a, b, c, d = models[j], models[j + 1], models[j + 2], models[j + 3]
        for i in range(len(total)):
            total[i] += (float(a[i]) + float(b[i])) + (float(c[i]) + float(d[i]))
    for j in range(fours, rule.n_instances):
        last = models[j]
        for i in range(len(total)):
            total[i] += last[i]
    weight = (1 + AVERAGING_EXPONENT) / (state.counts[1] + AVERAGING_EXPONENT)
    for i in range(len(total)):
        average[i] += (total[i] / rule.n_instances - average[i]) * weight
        total[i] = 0.0


def _copy(source: Weights, target: Weights) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@cache
def compile_loop() -> Callable[[LoopRows, UpdateBlock, LoopSettings, LoopState], None]:
    """Return `run`, compiled: a few seconds of work, once in a process."""
    from numba import njit

    # Nothing is allocated here, and counting references to slices (_nrt) would take the time of all
    # the rest of a small update.
    options: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
    sums = (_dot, _l1, _product)
    names: dict[str, Any] = dict(globals())
    # A compiled function calls compiled functions only, so that each is built after those that it
    # calls.
    for function in (
        *sums,
        _sparse_dot,
        _to_residuals,
        _sum_gradients,
        _perturb_direction,
        _perturb,
        _merge,
        _add_to_batch,
        _update_average,
        _copy,
        run,
    ):
        source = cast(FunctionType, function)
        # Sums of many floats may be taken in any order, several at a time.
        fast: set[str] = {"reassoc"} if function in sums else set()
        names[source.__name__] = njit(
            FunctionType(source.__code__, names, source.__name__), fastmath=fast, **options
        )
    return cast(Callable[[LoopRows, UpdateBlock, LoopSettings, LoopState], None], names["run"])
