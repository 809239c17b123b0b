"""A whole population of honest devices at once: the same draws, steps and merges, one after another, without messages.

Everything random is drawn in blocks of updates, by the mechanisms that a peer uses. What then happens is fixed. Compiled by numba (the
extra ``sim``) it happens a few million times a second; without it, or where compiling would take longer than the work, NumPy does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.ddml import kernel, plain
from shoal.protocols.ddml.blocks import ADDITIVE, BARE, CLOSEST, LINKS, Block, Rule, State, Table, pieces
from shoal.protocols.ddml.design import Columns, Floats, Inputs
from shoal.protocols.ddml.judging import epoch_of
from shoal.protocols.ddml.merging import Weights, initial, steady_variance
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.schedule import Ints, Line, Order, Queue, Strategy, Way, pick_rows, way_of
from shoal.protocols.ddml.step import AdditiveStep, BareStep, ClosestStep, Step, make_step
from shoal.protocols.ddml.supply import Supply

Engine = Literal["numba", "numpy"]
Watch = Callable[[int, Floats], None]
Trace = Callable[[int, Weights], None]

_BLOCK, _BLOCK_WEIGHTS = 1 << 13, 1 << 22
"""Updates and weights of updates that are drawn at a time, at most."""

_WORTH_COMPILING, _WEIGHTS_AS_LONG = 100_000, 4_000
"""Updates of a small model that take NumPy as long as compiling takes; weights that take it as long as the rest of an update."""


@dataclass(frozen=True, eq=False)
class Devices:
    """The rows of many devices.

    Parameters
    ----------
    inputs, targets
        Rows as `Rows` has them, those of a device together.
    starts
        ``(n_devices + 1,)`` int64: device i holds the rows from ``starts[i]`` to ``starts[i + 1]``.

    Examples
    --------
    >>> matrix = np.array([[1.0, 0.5], [1.0, 0.0], [1.0, 1.0]])
    >>> len(Devices(Inputs.of_dense(matrix), np.array([0.0, 1.0, 1.0]), np.array([0, 2, 3])))
    2
    """

    inputs: Inputs = field(repr=False)
    targets: Floats = field(repr=False)
    starts: Ints = field(repr=False)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of(cls, params: Params, columns: Columns, labels: npt.NDArray[Any], holders: npt.NDArray[Any] | None = None) -> Devices:
        """The devices that hold encoded rows.

        Parameters
        ----------
        columns, labels
            As ``schema.encode`` and ``schema.encode_label`` give them.
        holders
            ``(n,)``: whose each row is. None deals the rows out in their order, ``batch_size`` to each device.
        """
        rows, n = Rows.of(params, columns, labels), len(labels)
        if holders is None:
            size = params.batch_size
            return cls(rows.inputs, rows.targets, np.minimum(np.arange(0, n + size, size), n))
        order = np.argsort(holders, kind="stable")
        _, counts = np.unique(holders, return_counts=True)
        return cls(rows.inputs.take(order), rows.targets[order], np.concatenate([[0], np.cumsum(counts)]))


@dataclass(frozen=True, eq=False)
class Traffic:
    """How devices come.

    Parameters
    ----------
    in_flight
        How many other updates are under way whenever one is drawn. Which of those under way comes back next is random.
    order
        ``"shuffled"``: all devices in a fresh order, as often as each sends; ``"given"``: in their own order, as often; or the numbers of
        the devices in the order in which they draw, each as often as it stands there.
    """

    in_flight: int = 0
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        if self.in_flight < 0:
            raise ValueError(f"Traffic(in_flight={self.in_flight}): fewer than none cannot be under way")


AT_ONCE = Traffic()


@dataclass(frozen=True, eq=False)
class Trained:
    """What a population learned.

    Parameters
    ----------
    model
        The average over time, or the mean of the instances, as the study says.
    instances
        ``(k, p)`` int32: the last instances, in units of the grid.
    n_merged
        Updates that were merged.
    """

    model: GLM
    instances: Weights = field(repr=False)
    n_merged: int


def simulate(
    params: Params,
    devices: Devices,
    entropy: Entropy,
    *,
    traffic: Traffic = AT_ONCE,
    strategy: Strategy | None = None,
    start: Weights | None = None,
    watch: Watch | None = None,
    every: int = 0,
    trace: Trace | None = None,
    trace_every: int = 0,
    engine: Engine | None = None,
) -> Trained:
    """Let every device send as many updates as the study says, and give what was learned.

    Parameters
    ----------
    params
        The public figures; an infinite epsilon leaves the noise out.
    devices
        Who holds which rows.
    entropy
        What order, draws, noise and merges come from.
    traffic
        In which order devices come, and how many are under way.
    strategy
        None merges as the study says; otherwise what that is compared with: ``"same"`` replaces the instance that was drawn, ``"accept"``
        keeps one model that takes one update in k, ``"average"`` and ``"same-average"`` store the mean of update and instance, and
        ``("batch", b)`` averages b steps into one model.
    start
        ``(k, p)`` int32: the instances to begin with. None: around zero, as far apart as they will stay.
    watch, every
        Called after every so many updates with their number and the weights ``(C, d)`` of the model so far. Blocks end there, so that
        the same seed with another ``every`` is another run.
    trace, trace_every
        Called after every so many updates with their number and the instances ``(k, p)``, in units of the grid. It leaves the run as it is.
    engine
        ``"numba"`` or ``"numpy"``; None for whichever is there and sooner done. Both give the same, but for the last bit of a sum here and
        there, which can move a weight by a unit of the grid.

    Raises
    ------
    UsageError
        ``USAGE-002``: numba is asked for and not installed.

    Notes
    -----
    Ref: DDML Algorithms 1 and 2, §V. Where the step falls over time, an update takes the step of the epoch in which it comes back; a peer
    takes that of the epoch in which it drew.
    """
    way = way_of(params, strategy)
    line = Line(np.diff(devices.starts), params.n_updates, traffic.order, entropy)
    run = _runner(params, devices, engine or choose_engine(line.n_draws, params))
    queue = Queue(line, way, traffic.in_flight, entropy)
    state, n_seen, epoch = _begin(params, way, queue.drawn, entropy, start), 0, -1
    while True:
        if epoch < (now := _epoch(params, state)):
            epoch, step = now, make_step(params, now)
            rule, supply = _rule(params, way, step), Supply(step, params.n_weights, _n_ahead(params, line.n_draws - n_seen), entropy)
        arrivals = queue.next(_most(params, state, n_seen, every))
        if not arrivals.devices.size:
            break
        rows = pick_rows(devices.starts, arrivals.devices, params.batch_size, entropy)
        block = Block(*rows, arrivals, supply.take(len(arrivals.devices)))
        for piece in pieces(block, n_seen, trace_every):
            run(step, rule, piece, state)
            n_seen += len(piece.arrivals.devices)
            if trace is not None and trace_every and n_seen % trace_every == 0:
                trace(n_seen, state.models[: way.n_instances])
        if watch is not None and every and n_seen % every == 0:
            watch(n_seen, _model(params, way, state).weights)
    return Trained(_model(params, way, state), state.models[: way.n_instances], int(state.counts[0]))


def choose_engine(n_updates: int, params: Params) -> Engine:
    """What is sooner done, by figures of the run alone: so that a seed gives the same again."""
    work = n_updates * (1 + params.n_weights * params.batch_size / _WEIGHTS_AS_LONG)
    return "numba" if work > _WORTH_COMPILING and find_spec("numba") else "numpy"


def _runner(params: Params, devices: Devices, engine: Engine) -> Callable[[Step, Rule, Block, State], None]:
    if engine == "numpy":
        rows = Rows(devices.inputs, devices.targets)
        return lambda step, rule, block, state: plain.run(params, step, rows, block, rule, state)
    if not find_spec("numba"):
        raise UsageError("USAGE-002", "A fast simulation needs numba, which is not installed.", fix="pip install 'shoal[sim]'")
    run, table = kernel.compiled(), _table(devices)
    return lambda _, rule, block, state: run(table, block, rule, state)


def _table(devices: Devices) -> Table:
    """The rows for the kernel: dense where half of them or more is not zero, which is as large and much faster."""
    inputs = devices.inputs
    n, width = len(inputs), inputs.width
    if 2 * len(inputs.values) < n * width:
        return Table(False, inputs.starts, inputs.positions, inputs.values, devices.targets)
    return Table(True, np.arange(n + 1) * width, np.zeros(0, np.int32), inputs.dense().ravel(), devices.targets)


def _begin(params: Params, way: Way, drawn: Ints, entropy: Entropy, start: Weights | None = None) -> State:
    """The instances to begin with, and after them those that are drawn already.

    Notes
    -----
    Ref: DDML §III-C. Without noise the instances begin alike; the paper spreads them as if epsilon were 1 (§V-A), at its rate a little.
    """
    k, p = way.n_instances, params.n_weights
    variance = steady_variance(k, way.part) * make_step(params).deviation ** 2
    instances = initial(k, p, variance, entropy) if start is None else start
    models = np.concatenate([instances, instances[drawn]])
    return State(models, np.zeros(p), np.zeros(p), np.zeros(p), np.zeros(params.n_outputs), np.zeros(3, np.int64))


def _epoch(params: Params, state: State) -> int:
    """The epoch by which the step goes; all are one where it does not fall."""
    return 0 if params.decay == "none" else epoch_of(params, int(state.counts[0]))


def _n_ahead(params: Params, n_left: int) -> int:
    """How many updates take the step of this epoch."""
    return n_left if params.decay == "none" else min(n_left, params.epoch_updates)


def _most(params: Params, state: State, n_seen: int, every: int) -> int:
    """How many updates may be carried out at once: up to the next epoch, or the next look at the model."""
    sizes = [_BLOCK, max(1, _BLOCK_WEIGHTS // params.n_weights)]
    if every:
        sizes.append(every - n_seen % every)
    if params.decay != "none":
        sizes.append(params.epoch_updates - int(state.counts[0]) % params.epoch_updates)
    return min(sizes)


def _rule(params: Params, way: Way, step: Step) -> Rule:
    kind, bound, norm, reach = BARE, 0.0, 2, 0.0
    if isinstance(step, AdditiveStep):
        kind, bound, norm = ADDITIVE, step.most, step.norm
    elif isinstance(step, ClosestStep):
        kind, bound, reach = CLOSEST, step.clip, step.reach
    else:
        assert isinstance(step, BareStep)
        bound, norm = step.scale * step.clip, step.norm
    return Rule(
        link=LINKS.index(params.link),
        kind=kind,
        grid=2.0**-params.fraction_bits,
        scale=step.scale,
        bound=bound,
        norm=norm,
        reach=reach,
        part=way.part,
        n_instances=way.n_instances,
        batch=way.batch,
        fold_every=params.n_instances if params.averaging else 0,
    )


def _model(params: Params, way: Way, state: State) -> GLM:
    is_averaged = bool(state.counts[1])
    return GLM.of(params, state.average if is_averaged else state.models[: way.n_instances].mean(axis=0))
