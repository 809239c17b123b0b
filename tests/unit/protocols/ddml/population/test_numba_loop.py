"""The inner loop gives the same result in Python, compiled, and with NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import MAX_WEIGHT
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import TrainingRows
from shoal.protocols.ddml.population import (
    DevicePopulation,
    _make_loop_rows,
    _make_settings,
    _make_state,
    numba_loop,
    numpy_loop,
)
from shoal.protocols.ddml.population.arrays import (
    ADDITIVE,
    CLOSEST,
    NOISELESS,
    ArrivalBatch,
    LoopRows,
    LoopState,
    NoiseDraws,
    UpdateBlock,
)
from shoal.protocols.ddml.population.noise import NoiseStream
from shoal.protocols.ddml.population.schedule import (
    ArrivalOrder,
    InFlightQueue,
    StrategyChoice,
    make_merge_strategy,
    pick_rows,
)
from tests.support.ddml import STUDIES, TWO, people

STRATEGIES: list[StrategyChoice | None] = [
    None,
    "same",
    "accept",
    "average",
    "same-average",
    ("batch", 3),
]
BARE_STUDIES = {
    "bare": DDMLParams(
        TWO,
        math.inf,
        500,
        unit="weight",
        n_instances=5,
        merge="discard",
        averaging=False,
        n_updates=2,
    ),
    "bare by its norm": DDMLParams(TWO, math.inf, 500, n_instances=5, clip=0.1),
}
ALL = STUDIES | BARE_STUDIES
DENSE = Schema(
    [Numeric(f"x{i}", 0, 1, missing=False) for i in range(10)], label=Categorical("y", ["a", "b"])
)


class Prepared:
    """A block of updates of a study, ready to be carried out."""

    def __init__(
        self,
        params: DDMLParams,
        strategy: StrategyChoice | None = None,
        in_flight: int = 0,
        n: int = 24,
        n_rows: int = 1,
    ) -> None:
        entropy, way = SeededEntropy("prepared"), make_merge_strategy(params, strategy)
        columns, labels = people(params.schema, n * n_rows)
        self.params, self.step = params, make_step(params)
        self.devices = DevicePopulation.from_columns(
            params, columns, labels, np.arange(n * n_rows) // n_rows
        )
        line = ArrivalOrder(np.diff(self.devices.starts), params.n_updates, "shuffled", entropy)
        queue = InFlightQueue(line, way, in_flight, entropy)
        self.state = _make_state(params, way, queue.initial_draws, entropy)
        arrivals = queue.take(n)
        rows = pick_rows(self.devices.starts, arrivals.devices, params.batch_size, entropy)
        draws = NoiseStream(self.step, params.n_weights, line.n_draws, entropy).take(
            len(arrivals.devices)
        )
        self.block, self.rule, self.table = (
            UpdateBlock(*rows, arrivals, draws),
            _make_settings(params, way, self.step),
            _make_loop_rows(self.devices),
        )

    def copy(self) -> LoopState:
        return LoopState(*(part.copy() for part in self.state))

    def by_python(self, table: LoopRows | None = None) -> LoopState:
        state = self.copy()
        numba_loop.run(table or self.table, self.block, self.rule, state)
        return state

    def by_numba(self) -> LoopState:
        pytest.importorskip("numba")
        state = self.copy()
        numba_loop.compile_loop()(self.table, self.block, self.rule, state)
        return state

    def by_numpy(self) -> LoopState:
        state = self.copy()
        rows = TrainingRows(self.devices.inputs, self.devices.targets)
        numpy_loop.run(self.params, self.step, rows, self.block, self.rule, state)
        return state


def assert_same(one: LoopState, other: LoopState) -> None:
    """The same to a unit of the grid, sums of floats being taken in another order; the average is
    made of those.
    """
    assert one.counts.tolist() == other.counts.tolist()
    assert np.abs(one.models.astype(np.int64) - other.models).max() <= 1
    assert np.abs(one.average - other.average).max() <= 1
    assert np.abs(one.pending_sum - other.pending_sum).max() <= 3
    assert not one.scratch.any() and not other.scratch.any()


@pytest.mark.parametrize("name", ALL)
def test_numpy_python_and_numba_loops_agree(name: str) -> None:
    prepared = Prepared(ALL[name], n_rows=3)
    state = prepared.by_python()
    assert (state.models != prepared.state.models).any() and state.counts[0] == 24
    assert_same(state, prepared.by_numpy())
    assert_same(state, prepared.by_numba())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("in_flight", [0, 4])
def test_loops_agree_on_every_strategy_with_updates_in_flight(
    strategy: StrategyChoice | None, in_flight: int
) -> None:
    prepared = Prepared(ALL["laplace"], strategy, in_flight)
    state = prepared.by_python()
    assert_same(state, prepared.by_numpy())
    assert_same(state, prepared.by_numba())


def test_studies_cover_all_steps_and_rows() -> None:
    prepared = [Prepared(params) for params in ALL.values()]
    assert {(one.rule.kind, one.rule.norm) for one in prepared} == {
        (NOISELESS, 0),
        (NOISELESS, 2),
        (ADDITIVE, 0),
        (ADDITIVE, 1),
        (ADDITIVE, 2),
        (CLOSEST, 2),
    }
    assert {one.rule.link for one in prepared} == {0, 1, 2, 3}
    assert {one.table.is_dense for one in prepared} == {False, True}


@pytest.mark.parametrize("name", ["closest", "classes", "weight"])
def test_dense_and_sparse_rows_give_same_result(name: str) -> None:
    prepared = Prepared(ALL[name], n_rows=2)
    inputs, targets = prepared.devices.inputs, prepared.devices.targets
    sparse = LoopRows(False, inputs.starts, inputs.positions, inputs.values, targets)
    dense = LoopRows(
        True,
        np.arange(len(inputs) + 1) * inputs.width,
        np.zeros(0, np.int32),
        inputs.to_dense().ravel(),
        targets,
    )
    assert_same(prepared.by_python(sparse), prepared.by_python(dense))


# By hand, on one row of two inputs, one instance and a grid of quarters.

LINE = Schema([Numeric("x", 0, 1, missing=False)], label=Numeric("y", 0, 1))


def one_update(
    params: DDMLParams, weights: list[int], target: float = 0.0, *, fold: bool = False, **draws: Any
) -> list[int]:
    way = make_merge_strategy(params, None)
    zero, p = np.zeros(1, np.int64), len(weights)
    drawn = {
        "noise": np.zeros(p, np.int32),
        "normals": np.ones(p, np.float32),
        "signs": np.ones(1),
        "alignments": np.ones(1),
    }
    drawn |= {"offsets": zero, "coins": np.full(1, 0.99), **draws}
    block = UpdateBlock(
        zero, np.array([0, 1]), ArrivalBatch(zero, zero, zero, zero - 1), NoiseDraws(**drawn)
    )
    table = LoopRows(
        True, np.array([0, p]), np.zeros(0, np.int32), np.array([1.0, 0.5]), np.array([target])
    )
    state = LoopState(
        np.array([weights], np.int32),
        np.zeros(p),
        np.zeros(p),
        np.zeros(p),
        np.zeros(1),
        np.zeros(3, np.int64),
    )
    numba_loop.run(
        table, block, _make_settings(replace(params, averaging=fold), way, make_step(params)), state
    )
    return state.models[0].tolist() if not fold else state.average.tolist()


def by_hand(**changes: Any) -> DDMLParams:
    study = {
        "epsilon": math.inf,
        "link": "identity",
        "merge": "discard",
        "n_instances": 1,
        "fraction_bits": 2,
        "unit": "weight",
    }
    return DDMLParams(
        LINE,
        **{"size": 10, "learning_rate": 4.0, "clip": 8.0, "centred": False, **study, **changes},
    )


def test_noiseless_step_is_clipped_gradient() -> None:
    # The score of weights 8/4 and 4/4 is 2.5, and the target 0.5: a residual of 2 and a gradient of
    # (2, 1), 16 units of the grid to one.
    assert one_update(by_hand(), [8, 4], 0.5) == [8 - 32, 4 - 16]
    assert one_update(by_hand(clip=1.5), [8, 4], 0.5) == [8 - 24, 4 - 16]
    assert one_update(by_hand(unit="update", clip=math.sqrt(5) / 2), [8, 4], 0.5) == [8 - 16, 4 - 8]


def test_blend_moves_instance_a_tenth() -> None:
    assert one_update(by_hand(merge="blend"), [8, 4], 0.5) == [8 - 3, 4 - 2]
    assert one_update(by_hand(merge="blend"), [8, 4], 0.5, fold=True) == [5.0, 2.0]


def test_noise_is_added_with_sign() -> None:
    noisy = by_hand(epsilon=4.0)
    assert one_update(noisy, [8, 4], 0.5, noise=np.array([5, -7], np.int32)) == [
        8 - 32 + 5,
        4 - 16 - 7,
    ]
    assert one_update(noisy, [8, 4], 0.5, noise=np.array([5, -7], np.int32), signs=-np.ones(1)) == [
        8 - 32 - 5,
        4 - 16 + 7,
    ]


def test_weights_stay_in_range() -> None:
    far = np.array([MAX_WEIGHT, -MAX_WEIGHT], np.int32)
    assert one_update(by_hand(epsilon=4.0), [MAX_WEIGHT, -MAX_WEIGHT], 0.5, noise=far) == [
        MAX_WEIGHT,
        -MAX_WEIGHT,
    ]


def test_direction_is_reported_or_reversed() -> None:
    """With an alignment of 1 a report is the private direction itself."""
    study = by_hand(epsilon=1.0, unit="update", clip=math.sqrt(20), fraction_bits=10)
    step = make_step(study)
    length = step.reach / math.sqrt(5)  # type: ignore[attr-defined]
    apart = {"normals": np.array([1, 3], np.float32)}
    start = [2 << 10, 1 << 10]
    towards = [round(-2 * length), round(-length)]
    assert one_update(study, start, 0.5, **apart) == [start[0] + towards[0], start[1] + towards[1]]
    # The gradient is half as long as the clip: a quarter of the coins turn it.
    assert one_update(study, start, 0.5, **apart, coins=np.full(1, 0.251)) == [
        start[0] + towards[0],
        start[1] + towards[1],
    ]
    assert one_update(study, start, 0.5, **apart, coins=np.full(1, 0.249)) == [
        start[0] - towards[0],
        start[1] - towards[1],
    ]
    # Across: orthogonal to (2, 1), on the side where the normals point, whichever sign they have.
    across = [round(-length), round(2 * length)]
    assert one_update(study, start, 0.5, **apart, alignments=np.zeros(1)) == [
        start[0] + across[0],
        start[1] + across[1],
    ]
    assert one_update(study, start, 0.5, **apart, alignments=np.zeros(1), signs=-np.ones(1)) == [
        start[0] - across[0],
        start[1] - across[1],
    ]


@pytest.mark.parametrize("coin, sign", [(0.49, 1), (0.51, -1)])
def test_zero_gradient_uses_first_axis(coin: float, sign: int) -> None:
    study = by_hand(epsilon=1.0, unit="update", clip=1.0, fraction_bits=10)
    found = one_update(study, [0, 0], 0.0, coins=np.full(1, coin))
    assert found == [sign * round(make_step(study).reach), 0]  # type: ignore[attr-defined]
