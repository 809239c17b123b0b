"""The schedule: order of devices, updates in flight, and target instances."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.population.arrays import ArrivalBatch
from shoal.protocols.ddml.population.schedule import (
    ArrivalOrder,
    InFlightQueue,
    MergeStrategy,
    Order,
    make_merge_strategy,
    pick_rows,
    shuffle_numbers,
)
from tests.support.ddml import STUDIES

K = 5
DISCARD = MergeStrategy(K, 1.0)
SIZES = np.array([1, 2, 0, 1, 3, 1, 0, 1])
"""Rows of eight devices, two of which have none."""
PRESENT = [0, 1, 3, 4, 5, 7]


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def all_of(line: ArrivalOrder, most: int = 4) -> list[int]:
    taken: list[int] = []
    while (some := line.take(most)).size:
        assert len(some) <= most
        taken += some.tolist()
    return taken


def all_arrivals(queue: InFlightQueue, most: int = 7) -> ArrivalBatch:
    parts = []
    while (some := queue.take(most)).devices.size:
        assert len({len(part) for part in some}) == 1 and len(some.devices) <= most
        parts.append(some)
    return ArrivalBatch(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def make_queue(
    n: int,
    in_flight: int = 0,
    way: MergeStrategy = DISCARD,
    order: Order = "given",
    n_passes: int = 1,
    seed: Any = 0,
) -> InFlightQueue:
    entropy = SeededEntropy(seed)
    return InFlightQueue(
        ArrivalOrder(np.ones(n, np.int64), n_passes, order, entropy), way, in_flight, entropy
    )


def test_shuffle_numbers_permutes_all() -> None:
    numbers = np.arange(1000) * 3
    mixed = shuffle_numbers(numbers, SeededEntropy(1))
    assert sorted(mixed.tolist()) == numbers.tolist() and (mixed != numbers).mean() > 0.9
    assert shuffle_numbers(numbers[:0], SeededEntropy(1)).size == 0 and shuffle_numbers(
        numbers[:1], SeededEntropy(1)
    ).tolist() == [0]


def test_shuffle_numbers_is_uniform_on_three() -> None:
    entropy = SeededEntropy(2)
    counts = Counter(tuple(shuffle_numbers(ints(0, 1, 2), entropy).tolist()) for _ in range(6000))
    assert len(counts) == 6 and all(abs(count - 1000) < 150 for count in counts.values())


def test_each_pass_shuffles_devices_with_rows() -> None:
    line = ArrivalOrder(SIZES, 3, "shuffled", SeededEntropy(3))
    found = np.reshape(all_of(line), (3, len(PRESENT)))
    assert line.n_draws == 18
    assert all(sorted(one.tolist()) == PRESENT for one in found)
    assert len({tuple(one.tolist()) for one in found}) == 3


def test_arrival_order_follows_own_or_given_order() -> None:
    assert all_of(ArrivalOrder(SIZES, 2, "given", SeededEntropy(0))) == PRESENT * 2
    line = ArrivalOrder(SIZES, 5, ints(7, 7, 2, 0, 6, 7), SeededEntropy(0))
    assert line.n_draws == 4 and all_of(line) == [7, 7, 0, 7]
    assert all_of(ArrivalOrder(SIZES[:0], 2, "shuffled", SeededEntropy(0))) == []


@pytest.mark.parametrize("order", [ints(0, 8), ints(-1)])
def test_arrival_order_rejects_unknown_device(order: npt.NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match="not one of 8"):
        ArrivalOrder(SIZES, 1, order, SeededEntropy(0))


def test_update_without_delay_is_based_on_instance() -> None:
    queue = make_queue(2000, order="given")
    found = all_arrivals(queue)
    assert queue.initial_draws.size == 0 and found.devices.tolist() == list(range(2000))
    assert (found.redrawn == -1).all()
    pairs = Counter(zip(found.bases.tolist(), found.slots.tolist(), strict=True))
    assert len(pairs) == K * K and all(40 <= count <= 130 for count in pairs.values()), (
        "place and base are drawn apart"
    )


@pytest.mark.parametrize("in_flight", [1, 3, 40])
@pytest.mark.parametrize("n", [1, 3, 57])
def test_updates_in_flight_return_once_with_their_draw(in_flight: int, n: int) -> None:
    queue = make_queue(n, in_flight, n_passes=2)
    found = all_arrivals(queue)
    order = iter(list(range(n)) * 2)
    held = [next(order) for _ in range(min(in_flight + 1, 2 * n))]
    assert len(queue.initial_draws) == len(held)
    for device, base, redrawn in zip(
        found.devices.tolist(), found.bases.tolist(), found.redrawn.tolist(), strict=True
    ):
        slot = base - K
        assert device == held[slot]
        held[slot] = next(order, -1)
        assert (held[slot] == -1) == (redrawn == -1)
    assert held == [-1] * len(held) and next(order, None) is None, "everyone came back"


def test_update_in_flight_returns_uniformly() -> None:
    slots = all_arrivals(make_queue(8000, in_flight=3)).bases - K
    counts = np.bincount(slots)
    assert len(counts) == 4 and (abs(counts - 2000) < 250).all()
    after = slots[1:][slots[:-1] == 0]
    assert (abs(np.bincount(after) - len(after) / 4) < 120).all()


def test_same_strategy_merges_into_drawn_instance() -> None:
    same = MergeStrategy(K, 1.0, is_same=True)
    found = all_arrivals(make_queue(50, way=same))
    assert (found.slots == found.bases).all()
    queue = make_queue(50, in_flight=4, way=same)
    found, held = all_arrivals(queue), queue.initial_draws.tolist()
    for base, place, redrawn in zip(
        found.bases.tolist(), found.slots.tolist(), found.redrawn.tolist(), strict=True
    ):
        assert place == held[base - K]
        held[base - K] = redrawn


def test_accept_strategy_takes_one_in_k() -> None:
    found = all_arrivals(make_queue(5000, way=make_merge_strategy(STUDIES["closest"], "accept")))
    assert set(found.slots.tolist()) == {0, -1} and not found.bases.any()
    assert abs((found.slots == 0).sum() - 1000) < 150


def test_merge_strategies_match_paper() -> None:
    params = STUDIES["laplace"]
    assert make_merge_strategy(params, None) == MergeStrategy(5, 1.0) and make_merge_strategy(
        STUDIES["closest"], None
    ) == MergeStrategy(5, 0.1)
    assert make_merge_strategy(params, "same") == MergeStrategy(5, 1.0, is_same=True)
    assert make_merge_strategy(params, "average") == MergeStrategy(5, 0.5) and make_merge_strategy(
        params, "same-average"
    ) == MergeStrategy(5, 0.5, is_same=True)
    assert make_merge_strategy(params, "accept") == MergeStrategy(
        1, 1.0, one_in=5
    ) and make_merge_strategy(params, ("batch", 7)) == MergeStrategy(1, 1.0, batch=7)
    with pytest.raises(ValueError, match="no mean"):
        make_merge_strategy(params, ("batch", 0))


STARTS = np.concatenate([[0], np.cumsum(SIZES)])


def test_pick_rows_returns_all_of_few_rows() -> None:
    rows, starts = pick_rows(STARTS, ints(4, 0, 1), 3, SeededEntropy(0))
    assert starts.tolist() == [0, 3, 4, 6] and rows.tolist() == [4, 5, 6, 0, 1, 2]
    assert rows.flags.writeable and starts.dtype == rows.dtype == np.int64


@pytest.mark.parametrize("most", [1, 2, 3])
def test_pick_rows_returns_uniform_subset(most: int) -> None:
    starts = ints(0, 2, 6)
    rows, at = pick_rows(starts, np.tile([1, 0], 6000), most, SeededEntropy(4))
    found = [tuple(rows[at[i] : at[i + 1]].tolist()) for i in range(12_000)]
    few = Counter(found[1::2])
    assert set(few) == ({(0, 1)} if most > 1 else {(0,), (1,)})
    many = Counter(found[::2])
    assert set(many) == set(combinations(range(2, 6), most))
    assert all(abs(count - 6000 / len(many)) < 200 for count in many.values())
