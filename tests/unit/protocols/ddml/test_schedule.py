"""Who comes when: every device as often as it should, updates under way, and where they enter."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ddml_cases import STUDIES
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.blocks import Arrivals
from shoal.protocols.ddml.schedule import Line, Order, Queue, Way, pick_rows, shuffled, way_of

K = 5
DISCARD = Way(K, 1.0)
SIZES = np.array([1, 2, 0, 1, 3, 1, 0, 1])
"""Rows of eight devices, two of which have none."""
PRESENT = [0, 1, 3, 4, 5, 7]


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def all_of(line: Line, most: int = 4) -> list[int]:
    taken: list[int] = []
    while (some := line.take(most)).size:
        assert len(some) <= most
        taken += some.tolist()
    return taken


def all_arrivals(queue: Queue, most: int = 7) -> Arrivals:
    parts = []
    while (some := queue.next(most)).devices.size:
        assert len({len(part) for part in some}) == 1 and len(some.devices) <= most
        parts.append(some)
    return Arrivals(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def make_queue(n: int, in_flight: int = 0, way: Way = DISCARD, order: Order = "given", n_passes: int = 1, seed: Any = 0) -> Queue:
    entropy = SeededEntropy(seed)
    return Queue(Line(np.ones(n, np.int64), n_passes, order, entropy), way, in_flight, entropy)


def test_shuffling_keeps_all_and_moves_them() -> None:
    numbers = np.arange(1000) * 3
    mixed = shuffled(numbers, SeededEntropy(1))
    assert sorted(mixed.tolist()) == numbers.tolist() and (mixed != numbers).mean() > 0.9
    assert shuffled(numbers[:0], SeededEntropy(1)).size == 0 and shuffled(numbers[:1], SeededEntropy(1)).tolist() == [0]


def test_all_orders_of_three_are_equally_likely() -> None:
    entropy = SeededEntropy(2)
    counts = Counter(tuple(shuffled(ints(0, 1, 2), entropy).tolist()) for _ in range(6000))
    assert len(counts) == 6 and all(abs(count - 1000) < 150 for count in counts.values())


def test_each_pass_is_everyone_with_rows_in_a_fresh_order() -> None:
    line = Line(SIZES, 3, "shuffled", SeededEntropy(3))
    found = np.reshape(all_of(line), (3, len(PRESENT)))
    assert line.n_draws == 18
    assert all(sorted(one.tolist()) == PRESENT for one in found)
    assert len({tuple(one.tolist()) for one in found}) == 3


def test_devices_come_in_their_own_order_or_in_any_that_is_given() -> None:
    assert all_of(Line(SIZES, 2, "given", SeededEntropy(0))) == PRESENT * 2
    line = Line(SIZES, 5, ints(7, 7, 2, 0, 6, 7), SeededEntropy(0))
    assert line.n_draws == 4 and all_of(line) == [7, 7, 0, 7]
    assert all_of(Line(SIZES[:0], 2, "shuffled", SeededEntropy(0))) == []


@pytest.mark.parametrize("order", [ints(0, 8), ints(-1)])
def test_an_order_names_devices_that_are_there(order: npt.NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match="not one of 8"):
        Line(SIZES, 1, order, SeededEntropy(0))


def test_an_update_that_comes_back_at_once_is_based_on_an_instance() -> None:
    queue = make_queue(2000, order="given")
    found = all_arrivals(queue)
    assert queue.drawn.size == 0 and found.devices.tolist() == list(range(2000))
    assert (found.redrawn == -1).all()
    pairs = Counter(zip(found.bases.tolist(), found.places.tolist(), strict=True))
    assert len(pairs) == K * K and all(40 <= count <= 130 for count in pairs.values()), "place and base are drawn apart"


@pytest.mark.parametrize("in_flight", [1, 3, 40])
@pytest.mark.parametrize("n", [1, 3, 57])
def test_updates_under_way_come_back_once_each_on_what_they_drew(in_flight: int, n: int) -> None:
    queue = make_queue(n, in_flight, n_passes=2)
    found = all_arrivals(queue)
    order = iter(list(range(n)) * 2)
    held = [next(order) for _ in range(min(in_flight + 1, 2 * n))]
    assert len(queue.drawn) == len(held)
    for device, base, redrawn in zip(found.devices.tolist(), found.bases.tolist(), found.redrawn.tolist(), strict=True):
        slot = base - K
        assert device == held[slot]
        held[slot] = next(order, -1)
        assert (held[slot] == -1) == (redrawn == -1)
    assert held == [-1] * len(held) and next(order, None) is None, "everyone came back"


def test_any_of_those_under_way_may_be_next() -> None:
    slots = all_arrivals(make_queue(8000, in_flight=3)).bases - K
    counts = np.bincount(slots)
    assert len(counts) == 4 and (abs(counts - 2000) < 250).all()
    after = slots[1:][slots[:-1] == 0]
    assert (abs(np.bincount(after) - len(after) / 4) < 120).all()


def test_the_same_instance_is_the_one_that_was_drawn_however_long_ago() -> None:
    same = Way(K, 1.0, is_same=True)
    found = all_arrivals(make_queue(50, way=same))
    assert (found.places == found.bases).all()
    queue = make_queue(50, in_flight=4, way=same)
    found, held = all_arrivals(queue), queue.drawn.tolist()
    for base, place, redrawn in zip(found.bases.tolist(), found.places.tolist(), found.redrawn.tolist(), strict=True):
        assert place == held[base - K]
        held[base - K] = redrawn


def test_one_model_takes_one_update_in_k() -> None:
    found = all_arrivals(make_queue(5000, way=way_of(STUDIES["closest"], "accept")))
    assert set(found.places.tolist()) == {0, -1} and not found.bases.any()
    assert abs((found.places == 0).sum() - 1000) < 150


def test_the_ways_of_the_paper() -> None:
    params = STUDIES["laplace"]
    assert way_of(params, None) == Way(5, 1.0) and way_of(STUDIES["closest"], None) == Way(5, 0.1)
    assert way_of(params, "same") == Way(5, 1.0, is_same=True)
    assert way_of(params, "average") == Way(5, 0.5) and way_of(params, "same-average") == Way(5, 0.5, is_same=True)
    assert way_of(params, "accept") == Way(1, 1.0, one_in=5) and way_of(params, ("batch", 7)) == Way(1, 1.0, batch=7)
    with pytest.raises(ValueError, match="no mean"):
        way_of(params, ("batch", 0))


STARTS = np.concatenate([[0], np.cumsum(SIZES)])


def test_all_rows_of_a_device_are_read_where_they_are_few() -> None:
    rows, starts = pick_rows(STARTS, ints(4, 0, 1), 3, SeededEntropy(0))
    assert starts.tolist() == [0, 3, 4, 6] and rows.tolist() == [4, 5, 6, 0, 1, 2]
    assert rows.flags.writeable and starts.dtype == rows.dtype == np.int64


@pytest.mark.parametrize("most", [1, 2, 3])
def test_of_more_rows_any_subset_is_as_likely(most: int) -> None:
    starts = ints(0, 2, 6)
    rows, at = pick_rows(starts, np.tile([1, 0], 6000), most, SeededEntropy(4))
    found = [tuple(rows[at[i] : at[i + 1]].tolist()) for i in range(12_000)]
    few = Counter(found[1::2])
    assert set(few) == ({(0, 1)} if most > 1 else {(0,), (1,)})
    many = Counter(found[::2])
    assert set(many) == set(combinations(range(2, 6), most))
    assert all(abs(count - 6000 / len(many)) < 200 for count in many.values())
