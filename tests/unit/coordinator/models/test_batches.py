"""Updates that are merged together."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.coordinator.models.base import Arriving, Merged
from shoal.coordinator.models.batches import changed, going_in, settled


def model(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def test_the_first_of_a_name_counts() -> None:
    a, b = Arriving(0, b"a", 5, model(1)), Arriving(1, b"b", 5, model(2))
    again, stale, known = a._replace(slot=1), b._replace(epoch=3), a._replace(epoch=4)
    updates = [a, stale, b, again, known]
    outcomes = settled(updates, {(5, b"a"), (5, b"b")}, 10, 4)
    assert outcomes == [("merged", 11), ("stale", 11), ("merged", 12), ("repeated", 12), ("repeated", 12)]
    assert going_in(updates, outcomes) == [a, b]


def test_nothing_that_is_new() -> None:
    assert settled([], set(), 3, 0) == []
    assert going_in([Arriving(0, b"a", 0, b"")], [Merged("repeated", 3)]) == []
    assert changed([], {}, 0.5) == {}


@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_updates_of_one_instance_follow_each_other(wrap: type) -> None:
    updates = [
        Arriving(2, b"a", 0, wrap(model(100, 0))),
        Arriving(0, b"b", 0, wrap(model(8, 8))),
        Arriving(2, b"c", 0, wrap(model(0, 100))),
    ]
    blended = changed(updates, {0: model(0, 0), 2: model(0, 0)}, 0.5)
    assert blended == {2: model(25, 50), 0: model(4, 4)}
    assert changed(updates, {}, 1.0) == {2: model(0, 100), 0: model(8, 8)}
