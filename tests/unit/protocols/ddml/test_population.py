"""A whole population: whose rows are whose, how runs go, and what they give."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ddml_cases import STUDIES, THREE, TWO, people
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.ddml import population
from shoal.protocols.ddml.design import Inputs
from shoal.protocols.ddml.merging import steady_variance
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Devices, Traffic, Trained, choose_engine, simulate
from shoal.protocols.ddml.schedule import way_of
from shoal.protocols.ddml.step import make_step

LINE = Schema([Numeric("x", 0, 1, missing=False)], label=Categorical("y", ["a", "b"], missing=False))
EASY = Params(LINE, 8.0, 400, n_instances=4)


def easy(n: int = 400, params: Params = EASY) -> Devices:
    """x above a half is class b."""
    x = np.linspace(0, 1, n)
    return Devices.of(params, {"x": x}, (x > 0.5).astype(np.int64))


def run(params: Params = EASY, devices: Devices | None = None, seed: Any = 1, **options: Any) -> Trained:
    return simulate(params, easy(params=params) if devices is None else devices, SeededEntropy(seed), **options)


def same(one: Trained, other: Trained) -> bool:
    return bool((one.instances == other.instances).all() and (one.model.weights == other.model.weights).all())


def test_rows_are_dealt_out_in_their_order() -> None:
    columns, labels = people(TWO, 7)
    devices = Devices.of(replace(STUDIES["weight"], batch_size=3), columns, labels)
    assert len(devices) == 3 and devices.starts.tolist() == [0, 3, 6, 7]
    assert (devices.targets == labels).all()
    none = Devices.of(STUDIES["weight"], *people(TWO, 0))
    assert len(none) == 0


def test_rows_belong_to_their_holders() -> None:
    columns, labels = people(THREE, 6)
    params = STUDIES["classes"]
    devices = Devices.of(params, columns, labels, np.array([7, -1, 7, 3, -1, 7]))
    assert devices.starts.tolist() == [0, 2, 3, 6]
    order = [1, 4, 3, 0, 2, 5]
    assert (devices.targets == labels[order]).all()
    assert (devices.inputs.dense() == params.design.inputs(columns).dense()[order]).all()


def test_a_matrix_becomes_rows_and_its_zeros_are_left_out() -> None:
    matrix = np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [-1.0, 2.0, 0.0]])
    inputs = Inputs.of_dense(matrix)
    assert (inputs.dense() == matrix).all() and len(inputs.values) == 4 and len(inputs) == 3
    assert inputs.starts.dtype == np.int64 and inputs.positions.dtype == np.int32 and inputs.values.dtype == np.float64
    assert len(Inputs.of_dense(matrix[:0])) == 0 and Inputs.of_dense(matrix.astype(np.float32)).values.dtype == np.float64


def test_a_population_learns() -> None:
    learned = run(replace(EASY, epsilon=20.0))
    model = learned.model
    assert (model.decide({"x": np.array([0.05, 0.95])}) == [0, 1]).all()
    assert learned.n_merged == 400 and learned.instances.shape == (4, 2) and learned.instances.dtype == np.int32


def test_a_seed_gives_the_same_again_and_another_does_not() -> None:
    assert same(run(), run()) and not same(run(), run(seed=2))


def test_everyone_sends_as_often_as_the_study_says() -> None:
    assert run(replace(EASY, n_updates=3)).n_merged == 1200
    assert run(replace(EASY, n_updates=3), traffic=Traffic(order=np.array([5, 5, 0]))).n_merged == 3
    assert run(devices=easy(0)).n_merged == 0


@pytest.mark.parametrize("in_flight", [1, 30, 1000])
def test_updates_under_way_arrive_all_the_same(in_flight: int) -> None:
    late = run(traffic=Traffic(in_flight))
    assert late.n_merged == 400 and late.instances.shape == (4, 2)
    assert not same(late, run())


def test_when_all_draw_before_anyone_answers_nothing_is_learned_from_each_other() -> None:
    """With one instance and no noise, each update replaces it by one step from where it began."""
    params = Params(LINE, math.inf, 400, n_instances=1, merge="discard", averaging=False, learning_rate=1.0, clip=10.0)
    last = run(params, traffic=Traffic(399, order="given")).instances[0] * 2.0**-20
    assert np.abs(last).max() <= 0.5, "one step of a row at weights of zero"
    assert np.abs(run(params, traffic=Traffic(order="given")).instances[0] * 2.0**-20).max() > 1


def test_traffic_is_not_negative() -> None:
    with pytest.raises(ValueError, match="in_flight=-1"):
        Traffic(-1)


def test_the_order_matters_only_where_it_is_given() -> None:
    devices, backwards = easy(), np.arange(400)[::-1]
    given = run(devices=devices, traffic=Traffic(order="given"))
    assert same(given, run(devices=devices, traffic=Traffic(order=np.arange(400))))
    assert not same(given, run(devices=devices, traffic=Traffic(order=backwards)))


@pytest.mark.parametrize(
    "strategy, n_kept, n_merged", [("same", 4, 400), ("average", 4, 400), ("same-average", 4, 400), (("batch", 7), 1, 400)]
)
def test_what_the_study_is_compared_with(strategy: Any, n_kept: int, n_merged: int) -> None:
    found = run(strategy=strategy)
    assert found.instances.shape == (n_kept, 2) and found.n_merged == n_merged


def test_one_model_takes_a_quarter_of_the_updates() -> None:
    found = run(strategy="accept")
    assert found.instances.shape == (1, 2) and 70 < found.n_merged < 130


def test_a_batch_moves_the_model_by_the_mean_of_its_steps() -> None:
    """Without noise, and with a batch of everyone, the model takes one step: that of the average gradient at zero."""
    params = Params(LINE, math.inf, 400, learning_rate=1.0, clip=10.0, averaging=False)
    devices = easy(params=params)
    found = run(params, devices, strategy=("batch", 400)).instances[0] * 2.0**-20
    residuals = 0.5 - devices.targets
    assert found == pytest.approx(-(residuals[:, np.newaxis] * devices.inputs.dense()).mean(axis=0), abs=1e-6)
    assert not run(params, devices, strategy=("batch", 401)).instances.any(), "a batch that is not full does not enter"


def test_the_model_is_the_average_over_time_or_the_mean_of_the_instances() -> None:
    averaged, last = run(), run(replace(EASY, averaging=False))
    assert (averaged.instances == last.instances).all()
    assert (last.model.weights == last.instances.mean(axis=0) * 2.0**-20).all()
    assert (averaged.model.weights != last.model.weights).all()
    early = run(traffic=Traffic(order=np.arange(3)))
    assert (early.model.weights == early.instances.mean(axis=0) * 2.0**-20).all(), "before the first fold"


def test_instances_begin_with_the_spread_that_will_remain() -> None:
    many = replace(EASY, n_instances=2000, learning_rate=0.01)
    for params in (many, replace(many, merge="discard")):
        found = run(params, easy(0, params)).instances
        expected = steady_variance(2000, 1.0 if params.merge == "discard" else 0.1) * make_step(params).deviation ** 2
        assert found.var() == pytest.approx(expected, rel=0.1)


def test_those_under_way_at_first_are_instances_that_were_drawn() -> None:
    drawn = np.array([3, 0, 3])
    models = population._begin(EASY, way_of(EASY, None), drawn, SeededEntropy(1)).models
    assert len({tuple(one) for one in models[:4].tolist()}) == 4 and (models[4:] == models[drawn]).all()


def test_without_noise_they_begin_alike() -> None:
    bare = Params(LINE, math.inf, 400, unit="weight", n_instances=2000, merge="discard", learning_rate=0.01, clip=1.0)
    assert not run(bare, easy(0, bare)).instances.any()


def test_a_run_goes_on_where_another_ended() -> None:
    first = run()
    start = first.instances.copy()
    assert np.array_equal(run(devices=easy(0), start=start).instances, start)
    assert not np.array_equal(run(start=start).instances, start) and np.array_equal(first.instances, start)


def test_the_step_falls_from_epoch_to_epoch() -> None:
    """With constant residuals, the identity link and one instance, the way gone in each epoch shrinks as the root of its number."""
    number = Schema([Numeric("x", 0, 1, missing=False)], label=Numeric("y", 0, 1, missing=False))
    study = {"learning_rate": 1e-3, "clip": 0.01, "link": "identity", "n_instances": 1, "merge": "discard", "averaging": False}
    params = Params(number, math.inf, 3000, unit="weight", decay="sqrt", **study)  # type: ignore[arg-type]
    devices = Devices.of(params, {"x": np.zeros(3000)}, np.ones(3000))
    seen: list[float] = [0.0]
    simulate(params, devices, SeededEntropy(1), watch=lambda n, weights: seen.append(float(weights[0, 0])), every=500)
    assert params.epoch_updates == 1000
    way = np.diff(seen).reshape(3, 2).sum(axis=1)
    assert way == pytest.approx(1000 * 1e-3 * 0.01 / np.sqrt([1, 2, 3]), rel=0.1)


def test_the_model_is_looked_at_every_so_often() -> None:
    seen: list[tuple[int, npt.NDArray[Any]]] = []
    run(watch=lambda n, weights: seen.append((n, weights)), every=150)
    assert [n for n, _ in seen] == [150, 300] and all(weights.shape == (1, 2) for _, weights in seen)
    last: list[npt.NDArray[Any]] = []
    final = run(watch=lambda n, weights: last.append(weights), every=400)
    assert (last[0] == final.model.weights).all()


@pytest.mark.parametrize("name", ["closest", "weight", "classes", "words"])
def test_a_trace_sees_the_instances_and_leaves_the_run_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = STUDIES[name]
    devices = Devices.of(params, *people(params.schema, 400))
    options: dict[str, Any] = {"traffic": Traffic(5), "engine": "numpy"}
    monkeypatch.setattr(population, "_BLOCK", 90)  # no multiple of what follows, so that pieces end inside of blocks and at their ends
    alone = run(params, devices, **options)
    seen: list[tuple[int, npt.NDArray[Any]]] = []
    traced = run(params, devices, trace=lambda n, instances: seen.append((n, instances.copy())), trace_every=40, **options)
    assert same(alone, traced) and alone.n_merged == traced.n_merged
    assert [n for n, _ in seen] == list(range(40, alone.n_merged + 1, 40))
    assert (seen[-1][1] == alone.instances).all()
    assert len({instances.tobytes() for _, instances in seen}) == len(seen)


def test_large_models_are_run_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pass in order and one instance nothing but noise is drawn, and the blocks do not show."""
    params = Params(LINE, math.inf, 400, n_instances=1)
    whole = run(params, traffic=Traffic(order="given"))
    monkeypatch.setattr(population, "_BLOCK_WEIGHTS", 2 * 7)
    assert same(whole, run(params, traffic=Traffic(order="given")))


def test_numba_is_used_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "find_spec", lambda name: name == "numba")
    large = Params(Schema([Numeric(f"x{i}", 0, 1) for i in range(2000)], label=LINE.label), 1.0, 100, batch_size=10)
    assert [choose_engine(n, EASY) for n in (1000, 10_000_000)] == ["numpy", "numba"]
    assert choose_engine(50_000, large) == "numba"
    monkeypatch.setattr(population, "find_spec", lambda name: None)
    assert choose_engine(10_000_000, EASY) == "numpy"
    with pytest.raises(UsageError, match=r"shoal\[sim\]") as caught:
        run(engine="numba")
    assert caught.value.code == "USAGE-002"


@pytest.mark.parametrize("name", ["closest", "weight", "classes", "words"])
def test_both_engines_give_the_same(name: str) -> None:
    pytest.importorskip("numba")
    params = STUDIES[name]
    columns, labels = people(params.schema, 300)
    devices = Devices.of(params, columns, labels, np.arange(300) % 100)
    one, other = (run(params, devices, traffic=Traffic(5), engine=engine) for engine in ("numba", "numpy"))
    assert one.n_merged == other.n_merged == 100 * params.n_updates
    assert np.abs(one.instances.astype(np.int64) - other.instances).max() <= 2
    assert one.model.weights == pytest.approx(other.model.weights, abs=1e-5)
