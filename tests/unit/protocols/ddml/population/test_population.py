"""A whole population: assignment of rows, runs, and results."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.ddml import population
from shoal.protocols.ddml.design_matrix import SparseInputs
from shoal.protocols.ddml.merging import steady_variance
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import (
    DDMLPopulationResult,
    DevicePopulation,
    RunOptions,
    Traffic,
    choose_engine,
    simulate,
)
from shoal.protocols.ddml.population.schedule import make_merge_strategy
from tests.support.ddml import STUDIES, THREE, TWO, people

LINE = Schema(
    [Numeric("x", 0, 1, missing=False)], label=Categorical("y", ["a", "b"], missing=False)
)
EASY = DDMLParams(LINE, 8.0, 400, n_instances=4)


def easy(n: int = 400, params: DDMLParams = EASY) -> DevicePopulation:
    """x above a half is class b."""
    x = np.linspace(0, 1, n)
    return DevicePopulation.from_columns(params, {"x": x}, (x > 0.5).astype(np.int64))


def run(
    params: DDMLParams = EASY,
    devices: DevicePopulation | None = None,
    seed: Any = 1,
    **options: Any,
) -> DDMLPopulationResult:
    return simulate(
        params, easy(params=params) if devices is None else devices, SeededEntropy(seed), **options
    )


def same(one: DDMLPopulationResult, other: DDMLPopulationResult) -> bool:
    return bool(
        (one.instances == other.instances).all()
        and (one.model.weights == other.model.weights).all()
    )


def test_from_columns_assigns_rows_in_order() -> None:
    columns, labels = people(TWO, 7)
    devices = DevicePopulation.from_columns(
        replace(STUDIES["weight"], batch_size=3), columns, labels
    )
    assert len(devices) == 3 and devices.starts.tolist() == [0, 3, 6, 7]
    assert (devices.targets == labels).all()
    none = DevicePopulation.from_columns(STUDIES["weight"], *people(TWO, 0))
    assert len(none) == 0


def test_from_columns_groups_rows_by_holder() -> None:
    columns, labels = people(THREE, 6)
    params = STUDIES["classes"]
    devices = DevicePopulation.from_columns(params, columns, labels, np.array([7, -1, 7, 3, -1, 7]))
    assert devices.starts.tolist() == [0, 2, 3, 6]
    order = [1, 4, 3, 0, 2, 5]
    assert (devices.targets == labels[order]).all()
    assert (devices.inputs.to_dense() == params.design.make_inputs(columns).to_dense()[order]).all()


def test_from_dense_omits_zeros() -> None:
    matrix = np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [-1.0, 2.0, 0.0]])
    inputs = SparseInputs.from_dense(matrix)
    assert (inputs.to_dense() == matrix).all() and len(inputs.values) == 4 and len(inputs) == 3
    assert (
        inputs.starts.dtype == np.int64
        and inputs.positions.dtype == np.int32
        and inputs.values.dtype == np.float64
    )
    assert (
        len(SparseInputs.from_dense(matrix[:0])) == 0
        and SparseInputs.from_dense(matrix.astype(np.float32)).values.dtype == np.float64
    )


def test_simulate_learns_model() -> None:
    learned = run(replace(EASY, epsilon=20.0))
    model = learned.model
    assert (model.decide({"x": np.array([0.05, 0.95])}) == [0, 1]).all()
    assert (
        learned.n_merged == 400
        and learned.instances.shape == (4, 2)
        and learned.instances.dtype == np.int32
    )


def test_simulate_repeats_with_seed() -> None:
    assert same(run(), run()) and not same(run(), run(seed=2))


def test_every_device_sends_all_updates() -> None:
    assert run(replace(EASY, n_updates=3)).n_merged == 1200
    assert run(replace(EASY, n_updates=3), traffic=Traffic(order=np.array([5, 5, 0]))).n_merged == 3
    assert run(devices=easy(0)).n_merged == 0


@pytest.mark.parametrize("in_flight", [1, 30, 1000])
def test_updates_in_flight_all_arrive(in_flight: int) -> None:
    late = run(traffic=Traffic(in_flight))
    assert late.n_merged == 400 and late.instances.shape == (4, 2)
    assert not same(late, run())


def test_updates_all_in_flight_do_not_learn_from_each_other() -> None:
    """With one instance and no noise, each update replaces it by one step from where it began."""
    params = DDMLParams(
        LINE,
        math.inf,
        400,
        n_instances=1,
        merge="discard",
        averaging=False,
        learning_rate=1.0,
        clip=10.0,
    )
    last = run(params, traffic=Traffic(399, order="given")).instances[0] * 2.0**-20
    assert np.abs(last).max() <= 0.5, "one step of a row at weights of zero"
    assert np.abs(run(params, traffic=Traffic(order="given")).instances[0] * 2.0**-20).max() > 1


def test_traffic_rejects_negative_in_flight() -> None:
    with pytest.raises(ValueError, match="in_flight=-1"):
        Traffic(-1)


def test_order_matters_only_if_given() -> None:
    devices, backwards = easy(), np.arange(400)[::-1]
    given = run(devices=devices, traffic=Traffic(order="given"))
    assert same(given, run(devices=devices, traffic=Traffic(order=np.arange(400))))
    assert not same(given, run(devices=devices, traffic=Traffic(order=backwards)))


@pytest.mark.parametrize(
    "strategy, n_kept, n_merged",
    [("same", 4, 400), ("average", 4, 400), ("same-average", 4, 400), (("batch", 7), 1, 400)],
)
def test_strategies_change_number_of_instances(strategy: Any, n_kept: int, n_merged: int) -> None:
    found = run(strategy=strategy)
    assert found.instances.shape == (n_kept, 2) and found.n_merged == n_merged


def test_accept_strategy_takes_quarter_of_updates() -> None:
    found = run(strategy="accept")
    assert found.instances.shape == (1, 2) and 70 < found.n_merged < 130


def test_batch_strategy_moves_model_by_mean_step() -> None:
    """Without noise, and with a batch of everyone, the model takes one step: that of the average
    gradient at zero.
    """
    params = DDMLParams(LINE, math.inf, 400, learning_rate=1.0, clip=10.0, averaging=False)
    devices = easy(params=params)
    found = run(params, devices, strategy=("batch", 400)).instances[0] * 2.0**-20
    residuals = 0.5 - devices.targets
    assert found == pytest.approx(
        -(residuals[:, np.newaxis] * devices.inputs.to_dense()).mean(axis=0), abs=1e-6
    )
    assert not run(params, devices, strategy=("batch", 401)).instances.any(), (
        "a batch that is not full does not enter"
    )


def test_model_is_average_over_time_or_mean_of_instances() -> None:
    averaged, last = run(), run(replace(EASY, averaging=False))
    assert (averaged.instances == last.instances).all()
    assert (last.model.weights == last.instances.mean(axis=0) * 2.0**-20).all()
    assert (averaged.model.weights != last.model.weights).all()
    early = run(traffic=Traffic(order=np.arange(3)))
    assert (early.model.weights == early.instances.mean(axis=0) * 2.0**-20).all(), (
        "before the first fold"
    )


def test_instances_begin_with_steady_variance() -> None:
    many = replace(EASY, n_instances=2000, learning_rate=0.01)
    for params in (many, replace(many, merge="discard")):
        found = run(params, easy(0, params)).instances
        expected = (
            steady_variance(2000, 1.0 if params.merge == "discard" else 0.1)
            * make_step(params).deviation ** 2
        )
        assert found.var() == pytest.approx(expected, rel=0.1)


def test_first_updates_in_flight_are_drawn_instances() -> None:
    drawn = np.array([3, 0, 3])
    models = population._make_state(
        EASY, make_merge_strategy(EASY, None), drawn, SeededEntropy(1)
    ).models
    assert (
        len({tuple(one) for one in models[:4].tolist()}) == 4
        and (models[4:] == models[drawn]).all()
    )


def test_noiseless_instances_begin_equal() -> None:
    bare = DDMLParams(
        LINE,
        math.inf,
        400,
        unit="weight",
        n_instances=2000,
        merge="discard",
        learning_rate=0.01,
        clip=1.0,
    )
    assert not run(bare, easy(0, bare)).instances.any()


def test_start_continues_earlier_run() -> None:
    first = run()
    start = first.instances.copy()
    assert np.array_equal(run(devices=easy(0), options=RunOptions(start=start)).instances, start)
    assert not np.array_equal(
        run(options=RunOptions(start=start)).instances, start
    ) and np.array_equal(first.instances, start)


def test_step_decreases_with_epoch() -> None:
    """With constant residuals, the identity link and one instance, the way gone in each epoch
    shrinks as the root of its number.
    """
    number = Schema([Numeric("x", 0, 1, missing=False)], label=Numeric("y", 0, 1, missing=False))
    study = {
        "learning_rate": 1e-3,
        "clip": 0.01,
        "link": "identity",
        "n_instances": 1,
        "merge": "discard",
        "averaging": False,
    }
    params = DDMLParams(number, math.inf, 3000, unit="weight", decay="sqrt", **study)  # type: ignore[arg-type]
    devices = DevicePopulation.from_columns(params, {"x": np.zeros(3000)}, np.ones(3000))
    seen: list[float] = [0.0]
    simulate(
        params,
        devices,
        SeededEntropy(1),
        options=RunOptions(watch=lambda n, weights: seen.append(float(weights[0, 0])), every=500),
    )
    assert params.epoch_updates == 1000
    way = np.diff(seen).reshape(3, 2).sum(axis=1)
    assert way == pytest.approx(1000 * 1e-3 * 0.01 / np.sqrt([1, 2, 3]), rel=0.1)


def test_watch_is_called_every_n_updates() -> None:
    seen: list[tuple[int, npt.NDArray[Any]]] = []
    run(options=RunOptions(watch=lambda n, weights: seen.append((n, weights)), every=150))
    assert [n for n, _ in seen] == [150, 300] and all(
        weights.shape == (1, 2) for _, weights in seen
    )
    last: list[npt.NDArray[Any]] = []
    final = run(options=RunOptions(watch=lambda n, weights: last.append(weights), every=400))
    assert (last[0] == final.model.weights).all()


@pytest.mark.parametrize("name", ["closest", "weight", "classes", "words"])
def test_trace_receives_instances_without_changing_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = STUDIES[name]
    devices = DevicePopulation.from_columns(params, *people(params.schema, 400))
    options: dict[str, Any] = {"traffic": Traffic(5), "engine": "numpy"}
    monkeypatch.setattr(
        population, "_BLOCK", 90
    )  # no multiple of what follows, so that pieces end inside of blocks and at their ends
    alone = run(params, devices, **options)
    seen: list[tuple[int, npt.NDArray[Any]]] = []
    traced = run(
        params,
        devices,
        options=RunOptions(
            trace=lambda n, instances: seen.append((n, instances.copy())), trace_every=40
        ),
        **options,
    )
    assert same(alone, traced) and alone.n_merged == traced.n_merged
    assert [n for n, _ in seen] == list(range(40, alone.n_merged + 1, 40))
    assert (seen[-1][1] == alone.instances).all()
    assert len({instances.tobytes() for _, instances in seen}) == len(seen)


def test_large_models_use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pass in order and one instance nothing but noise is drawn, and the blocks do not
    show.
    """
    params = DDMLParams(LINE, math.inf, 400, n_instances=1)
    whole = run(params, traffic=Traffic(order="given"))
    monkeypatch.setattr(population, "_BLOCK_WEIGHTS", 2 * 7)
    assert same(whole, run(params, traffic=Traffic(order="given")))


def test_choose_engine_uses_numba_for_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "find_spec", lambda name: name == "numba")
    large = DDMLParams(
        Schema([Numeric(f"x{i}", 0, 1) for i in range(2000)], label=LINE.label),
        1.0,
        100,
        batch_size=10,
    )
    assert [choose_engine(n, EASY) for n in (1000, 10_000_000)] == ["numpy", "numba"]
    assert choose_engine(50_000, large) == "numba"
    monkeypatch.setattr(population, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert choose_engine(10_000_000, EASY) == "numpy"
    with pytest.raises(UsageError, match=r"\[sim\]") as caught:
        run(engine="numba")
    assert caught.value.code == "USAGE-002"


@pytest.mark.parametrize("name", ["closest", "weight", "classes", "words"])
def test_engines_give_same_result(name: str) -> None:
    pytest.importorskip("numba")
    params = STUDIES[name]
    columns, labels = people(params.schema, 300)
    devices = DevicePopulation.from_columns(params, columns, labels, np.arange(300) % 100)
    one, other = (
        run(params, devices, traffic=Traffic(5), engine=engine) for engine in ("numba", "numpy")
    )
    assert one.n_merged == other.n_merged == 100 * params.n_updates
    assert np.abs(one.instances.astype(np.int64) - other.instances).max() <= 2
    assert one.model.weights == pytest.approx(other.model.weights, abs=1e-5)
