"""A whole population of honest devices: `simulate`.

Simulations, forecasts and estimators call it. It makes the same draws, steps and merges as the
message path, one after another, without messages.

All randomness is drawn in blocks of updates, by the mechanisms that a peer uses. The rest is
deterministic: one of two inner loops applies the updates. Compiled by numba (the extra ``sim``) it
applies a few million small updates a second; without numba, or if compiling would take longer than
the work, NumPy does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import require_extra
from shoal.protocols.ddml.design_matrix import Columns, Floats, SparseInputs
from shoal.protocols.ddml.merging import Weights, compute_epoch, draw_instances, steady_variance
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.noisy_step import (
    AdditiveStep,
    ClosestStep,
    NoiselessStep,
    UpdateStep,
    make_step,
)
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import TrainingRows
from shoal.protocols.ddml.population import numba_loop, numpy_loop
from shoal.protocols.ddml.population.arrays import (
    ADDITIVE,
    CLOSEST,
    LINKS,
    NOISELESS,
    LoopRows,
    LoopSettings,
    LoopState,
    UpdateBlock,
    split_block,
)
from shoal.protocols.ddml.population.noise import NoiseStream
from shoal.protocols.ddml.population.schedule import (
    ArrivalOrder,
    InFlightQueue,
    Ints,
    MergeStrategy,
    Order,
    StrategyChoice,
    make_merge_strategy,
    pick_rows,
)

Engine = Literal["numba", "numpy"]
WatchCallback = Callable[[int, Floats], None]
TraceCallback = Callable[[int, Weights], None]

_BLOCK, _BLOCK_WEIGHTS = 1 << 13, 1 << 22
"""Most updates, and most weights of updates, that are drawn together."""

_WORTH_COMPILING, _WEIGHTS_AS_LONG = 100_000, 4_000
"""Figures for the choice of the engine.

NumPy applies the first number of updates of a small model in the time of compiling; the second
number of weights takes it the time of the rest of an update.
"""


@dataclass(frozen=True, eq=False)
class DevicePopulation:
    """The rows of many devices.

    Parameters
    ----------
    inputs, targets
        Rows as `TrainingRows` has them, those of a device together.
    starts
        ``(n_devices + 1,)`` int64: device i has the rows from ``starts[i]`` to ``starts[i + 1]``.

    Examples
    --------
    >>> matrix = np.array([[1.0, 0.5], [1.0, 0.0], [1.0, 1.0]])
    >>> len(
    ...     DevicePopulation(
    ...         SparseInputs.from_dense(matrix), np.array([0.0, 1.0, 1.0]), np.array([0, 2, 3])
    ...     )
    ... )
    2
    """

    inputs: SparseInputs = field(repr=False)
    targets: Floats = field(repr=False)
    starts: Ints = field(repr=False)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def from_columns(
        cls,
        params: DDMLParams,
        columns: Columns,
        labels: npt.NDArray[Any],
        holders: npt.NDArray[Any] | None = None,
    ) -> DevicePopulation:
        """Return the devices of encoded rows.

        Parameters
        ----------
        columns, labels
            The results of ``schema.encode`` and ``schema.encode_label``.
        holders
            ``(n,)``: the holder of each row. None assigns the rows in their order, ``batch_size``
            to each device.
        """
        rows, n = TrainingRows.from_columns(params, columns, labels), len(labels)
        if holders is None:
            size = params.batch_size
            return cls(rows.inputs, rows.targets, np.minimum(np.arange(0, n + size, size), n))
        order = np.argsort(holders, kind="stable")
        _, counts = np.unique(holders, return_counts=True)
        return cls(
            rows.inputs.take(order), rows.targets[order], np.concatenate([[0], np.cumsum(counts)])
        )


@dataclass(frozen=True, eq=False)
class Traffic:
    """The order and the delay of updates.

    Parameters
    ----------
    in_flight
        Number of other updates in flight whenever one is drawn. A random one of those in flight
        returns next.
    order
        ``"shuffled"``: all devices in a new random order, once for each update that a device sends;
        ``"given"``: in their own order, the same number of times; or the numbers of the devices in
        the order in which they draw.
    """

    in_flight: int = 0
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        if self.in_flight < 0:
            raise ValueError(
                f"Traffic(in_flight={self.in_flight}): the number must not be negative"
            )


NO_DELAY = Traffic()


@dataclass(frozen=True, eq=False)
class DDMLPopulationResult:
    """The result of a simulated population.

    Parameters
    ----------
    model
        The average over time, or the mean of the instances, as the study sets.
    instances
        ``(k, p)`` int32: the last instances, in units of the grid.
    """

    model: GLM
    instances: Weights = field(repr=False)
    n_merged: int


@dataclass(frozen=True, eq=False)
class RunOptions:
    """The start of a run, and callbacks during it.

    Parameters
    ----------
    start
        ``(k, p)`` int32: the first instances. None draws them around zero, with the variance that
        stays constant.
    watch, every
        Callback after each ``every`` updates with their number and the weights ``(C, d)`` of the
        model so far. Blocks end there, so the same seed with another ``every`` is another run.
    trace, trace_every
        Callback after each ``trace_every`` updates with their number and the instances ``(k, p)``,
        in units of the grid. It does not change the run.
    """

    start: Weights | None = None
    watch: WatchCallback | None = None
    every: int = 0
    trace: TraceCallback | None = None
    trace_every: int = 0


DEFAULT_OPTIONS = RunOptions()


def simulate(
    params: DDMLParams,
    devices: DevicePopulation,
    entropy: Entropy,
    *,
    traffic: Traffic = NO_DELAY,
    strategy: StrategyChoice | None = None,
    engine: Engine | None = None,
    options: RunOptions = DEFAULT_OPTIONS,
) -> DDMLPopulationResult:
    """Let every device send its updates, and return the result.

    Parameters
    ----------
    params
        An infinite epsilon leaves the noise out.
    entropy
        Randomness of order, draws, noise and merges.
    strategy
        None merges as the study sets. The others are for comparison: ``"same"`` replaces the
        instance that was drawn, ``"accept"`` has one model that accepts one update in k,
        ``"average"`` and ``"same-average"`` store the mean of update and instance, and ``("batch",
        b)`` averages b steps into one model.
    engine
        ``"numba"`` or ``"numpy"``; None for the faster one that is installed. Both give the same
        result, except for the last bit of some sums, which can move a weight by a unit of the grid.

    Raises
    ------
    UsageError
        ``USAGE-002``: numba is requested and not installed.

    Notes
    -----
    Ref: DDML Algorithms 1 and 2, §V. If the step decreases over time, an update takes the step of
    the epoch in which it returns; a peer takes that of the epoch in which it drew.
    """
    merging = make_merge_strategy(params, strategy)
    order = ArrivalOrder(np.diff(devices.starts), params.n_updates, traffic.order, entropy)
    run = _make_runner(params, devices, engine or choose_engine(order.n_draws, params))
    queue = InFlightQueue(order, merging, traffic.in_flight, entropy)
    state = _make_state(params, merging, queue.initial_draws, entropy, options.start)
    watch, trace, n_seen, epoch = options.watch, options.trace, 0, -1
    while True:
        if epoch < (now := _find_epoch(params, state)):
            epoch, step = now, make_step(params, now)
            settings = _make_settings(params, merging, step)
            n_ahead = _count_ahead(params, order.n_draws - n_seen)
            stream = NoiseStream(step, params.n_weights, n_ahead, entropy)
        arrivals = queue.take(_limit_block(params, state, n_seen, options.every))
        if not arrivals.devices.size:
            break
        rows = pick_rows(devices.starts, arrivals.devices, params.batch_size, entropy)
        block = UpdateBlock(*rows, arrivals, stream.take(len(arrivals.devices)))
        for piece in split_block(block, n_seen, options.trace_every):
            run(step, settings, piece, state)
            n_seen += len(piece.arrivals.devices)
            if trace is not None and options.trace_every and n_seen % options.trace_every == 0:
                trace(n_seen, state.models[: merging.n_instances])
        if watch is not None and options.every and n_seen % options.every == 0:
            watch(n_seen, _make_model(params, merging, state).weights)
    return DDMLPopulationResult(
        _make_model(params, merging, state),
        state.models[: merging.n_instances],
        int(state.counts[0]),
    )


def choose_engine(n_updates: int, params: DDMLParams) -> Engine:
    """Return the faster engine.

    The choice depends on figures of the run alone, so that a seed gives the same result again.
    """
    work = n_updates * (1 + params.n_weights * params.batch_size / _WEIGHTS_AS_LONG)
    return "numba" if work > _WORTH_COMPILING and find_spec("numba") else "numpy"


def _make_runner(
    params: DDMLParams, devices: DevicePopulation, engine: Engine
) -> Callable[[UpdateStep, LoopSettings, UpdateBlock, LoopState], None]:
    if engine == "numpy":
        rows = TrainingRows(devices.inputs, devices.targets)
        return lambda step, rule, block, state: numpy_loop.run(
            params, step, rows, block, rule, state
        )
    require_extra("sim", "numba", purpose="A fast simulation")
    run, table = numba_loop.compile_loop(), _make_loop_rows(devices)
    return lambda _, rule, block, state: run(table, block, rule, state)


def _make_loop_rows(devices: DevicePopulation) -> LoopRows:
    """Return the rows for the numba loop.

    They are dense if at least half of the values are not zero: that takes no more memory and is
    much faster.
    """
    inputs = devices.inputs
    n, width = len(inputs), inputs.width
    if 2 * len(inputs.values) < n * width:
        return LoopRows(False, inputs.starts, inputs.positions, inputs.values, devices.targets)
    return LoopRows(
        True,
        np.arange(n + 1) * width,
        np.zeros(0, np.int32),
        inputs.to_dense().ravel(),
        devices.targets,
    )


def _make_state(
    params: DDMLParams,
    strategy: MergeStrategy,
    drawn: Ints,
    entropy: Entropy,
    start: Weights | None = None,
) -> LoopState:
    """Return the first state: the instances, followed by those already drawn.

    Notes
    -----
    Ref: DDML §III-C. Without noise the instances begin equal; the paper spreads them as for epsilon
    1 (§V-A), which at its rate is little.
    """
    k, p = strategy.n_instances, params.n_weights
    variance = steady_variance(k, strategy.part) * make_step(params).deviation ** 2
    instances = draw_instances(k, p, variance, entropy) if start is None else start
    models = np.concatenate([instances, instances[drawn]])
    return LoopState(
        models,
        np.zeros(p),
        np.zeros(p),
        np.zeros(p),
        np.zeros(params.n_outputs),
        np.zeros(3, np.int64),
    )


def _find_epoch(params: DDMLParams, state: LoopState) -> int:
    """Return the epoch that determines the step; always 0 if the step is constant."""
    return (
        0 if params.decay == "none" else compute_epoch(int(state.counts[0]), params.epoch_updates)
    )


def _count_ahead(params: DDMLParams, n_left: int) -> int:
    """Return the number of updates that take the step of this epoch."""
    return n_left if params.decay == "none" else min(n_left, params.epoch_updates)


def _limit_block(params: DDMLParams, state: LoopState, n_seen: int, every: int) -> int:
    """Return the most updates in the next block, up to the next epoch or callback."""
    sizes = [_BLOCK, max(1, _BLOCK_WEIGHTS // params.n_weights)]
    if every:
        sizes.append(every - n_seen % every)
    if params.decay != "none":
        sizes.append(params.epoch_updates - int(state.counts[0]) % params.epoch_updates)
    return min(sizes)


def _make_settings(params: DDMLParams, strategy: MergeStrategy, step: UpdateStep) -> LoopSettings:
    kind, bound, norm, reach = NOISELESS, 0.0, 2, 0.0
    if isinstance(step, AdditiveStep):
        kind, bound, norm = ADDITIVE, step.max_norm, step.norm
    elif isinstance(step, ClosestStep):
        kind, bound, reach = CLOSEST, step.clip, step.reach
    else:
        assert isinstance(step, NoiselessStep)
        bound, norm = step.scale * step.clip, step.norm
    return LoopSettings(
        link=LINKS.index(params.link),
        kind=kind,
        grid=2.0**-params.fraction_bits,
        scale=step.scale,
        bound=bound,
        norm=norm,
        reach=reach,
        part=strategy.part,
        n_instances=strategy.n_instances,
        batch=strategy.batch,
        average_every=params.n_instances if params.averaging else 0,
    )


def _make_model(params: DDMLParams, strategy: MergeStrategy, state: LoopState) -> GLM:
    is_averaged = bool(state.counts[1])
    return GLM.from_grid_weights(
        params, state.average if is_averaged else state.models[: strategy.n_instances].mean(axis=0)
    )
