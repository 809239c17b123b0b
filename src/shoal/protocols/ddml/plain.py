"""The inner loop of a simulated run without numba: update by update, by the functions that a peer and an aggregator use."""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.blocks import Block, Draws, Rule, State
from shoal.protocols.ddml.design import Floats
from shoal.protocols.ddml.merging import Weights, add, merged, to_grid
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.step import AdditiveStep, BareStep, ClosestStep, Ints, Step

_NONE = SeededEntropy("a step without noise draws nothing")


def run(params: Params, step: Step, rows: Rows, block: Block, rule: Rule, state: State) -> None:
    """Carry out the updates of a block, one after another, as `kernel.run` does."""
    arrivals = block.arrivals
    for t in range(len(arrivals.bases)):
        base, place = state.models[arrivals.bases[t]], int(arrivals.places[t])
        if place >= 0:
            read = block.rows[block.row_starts[t] : block.row_starts[t + 1]]
            gradient = Rows(rows.inputs.take(read), rows.targets[read]).gradient(params, base)
            _enter(add(base, _step(step, gradient, block.draws, t)), base, place, rule, state)
        if arrivals.redrawn[t] >= 0:
            base[:] = state.models[arrivals.redrawn[t]]


def _step(step: Step, gradient: Floats, draws: Draws, t: int) -> Ints:
    """What update t adds to its base: `Step.draw`, with what is random about it given."""
    if isinstance(step, BareStep):
        return step.draw(gradient, _NONE)
    mine, sign = slice(draws.offsets[t], draws.offsets[t] + len(gradient)), draws.signs[t]
    if isinstance(step, AdditiveStep):
        return step.clipped(gradient) + int(sign) * draws.noise[mine].astype(np.int64)
    assert isinstance(step, ClosestStep)
    size = float(np.linalg.norm(gradient))
    private = gradient / size if size else np.eye(1, gradient.size)[0]
    if draws.coins[t] >= (1 - min(1.0, size / step.clip)) / 2:
        private = -private
    around = sign * draws.normals[mine].astype(np.float64)
    around -= (around @ private) * private
    along = float(draws.alignments[t])
    report = along * private + math.sqrt(1 - along**2) / float(np.linalg.norm(around)) * around
    towards: Ints = np.rint(step.reach * report).astype(np.int64)
    return towards


def _enter(update: Weights, base: Weights, place: int, rule: Rule, state: State) -> None:
    """An update enters the instances, and now and then the average over time."""
    models, counts = state.models, state.counts
    if rule.batch:
        state.waiting[:] += update.astype(np.float64) - base
        counts[2] += 1
        if counts[2] == rule.batch:
            models[0] = to_grid(models[0] + state.waiting / rule.batch)
            state.waiting[:] = 0
            counts[2] = 0
    else:
        models[place] = merged(models[place], update, rule.part)
    counts[0] += 1
    if rule.fold_every and counts[0] % rule.fold_every == 0:
        counts[1] += 1
        state.average[:] = fold(state.average, models[: rule.n_instances].mean(axis=0), int(counts[1]))
