"""Inner loop in NumPy.

It applies updates one after another with the functions of peer and aggregator: ``instances`` has
the rule. `simulate` uses it without numba, and for short runs.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design_matrix import Floats
from shoal.protocols.ddml.merging import (
    Weights,
    add_step,
    is_average_due,
    merge_update,
    round_to_grid,
    update_average,
)
from shoal.protocols.ddml.noisy_step import (
    AdditiveStep,
    ClosestStep,
    Ints,
    NoiselessStep,
    UpdateStep,
)
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import TrainingRows
from shoal.protocols.ddml.population.arrays import LoopSettings, LoopState, NoiseDraws, UpdateBlock

_NO_ENTROPY = SeededEntropy("a step without noise draws nothing")


def run(
    params: DDMLParams,
    step: UpdateStep,
    rows: TrainingRows,
    block: UpdateBlock,
    rule: LoopSettings,
    state: LoopState,
) -> None:
    """Apply the updates of a block, one after another, as `numba_loop.run` does."""
    arrivals = block.arrivals
    for t in range(len(arrivals.bases)):
        base, slot = state.models[arrivals.bases[t]], int(arrivals.slots[t])
        if slot >= 0:
            batch = block.rows[block.row_starts[t] : block.row_starts[t + 1]]
            gradient = TrainingRows(rows.inputs.take(batch), rows.targets[batch]).gradient(
                params, base
            )
            update = add_step(base, _replay_step(step, gradient, block.draws, t))
            _merge_into_state(update, base, slot, rule, state)
        if arrivals.redrawn[t] >= 0:
            base[:] = state.models[arrivals.redrawn[t]]


def _replay_step(step: UpdateStep, gradient: Floats, draws: NoiseDraws, t: int) -> Ints:
    """Return the step of update t: `UpdateStep.draw` with given randomness."""
    if isinstance(step, NoiselessStep):
        return step.draw(gradient, _NO_ENTROPY)
    part, sign = slice(draws.offsets[t], draws.offsets[t] + len(gradient)), draws.signs[t]
    if isinstance(step, AdditiveStep):
        return step.clip_gradient(gradient) + int(sign) * draws.noise[part].astype(np.int64)
    assert isinstance(step, ClosestStep)
    size = float(np.linalg.norm(gradient))
    private = gradient / size if size else np.eye(1, gradient.size)[0]
    if draws.coins[t] >= (1 - min(1.0, size / step.clip)) / 2:
        private = -private
    around = sign * draws.normals[part].astype(np.float64)
    around -= (around @ private) * private
    along = float(draws.alignments[t])
    report = along * private + math.sqrt(1 - along**2) / float(np.linalg.norm(around)) * around
    towards: Ints = np.rint(step.reach * report).astype(np.int64)
    return towards


def _merge_into_state(
    update: Weights, base: Weights, slot: int, rule: LoopSettings, state: LoopState
) -> None:
    """Merge an update into the instances, and update the average if it is due."""
    models, counts = state.models, state.counts
    if rule.batch:
        state.pending_sum[:] += update.astype(np.float64) - base
        counts[2] += 1
        if counts[2] == rule.batch:
            models[0] = round_to_grid(models[0] + state.pending_sum / rule.batch)
            state.pending_sum[:] = 0
            counts[2] = 0
    else:
        models[slot] = merge_update(models[slot], update, rule.part)
    counts[0] += 1
    if is_average_due(int(counts[0]), rule.average_every):
        counts[1] += 1
        state.average[:] = update_average(
            state.average, models[: rule.n_instances].mean(axis=0), int(counts[1])
        )
