"""Updates that are merged in one batch."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.coordinator.ddml.instances.base import (
    MergeOutcome,
    PendingUpdate,
    apply_updates,
    decide_outcomes,
    select_merged,
)


def model(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def test_decide_outcomes_merges_first_update_of_a_name() -> None:
    a, b = PendingUpdate(0, b"a", 5, model(1)), PendingUpdate(1, b"b", 5, model(2))
    again, stale, known = a._replace(slot=1), b._replace(epoch=3), a._replace(epoch=4)
    updates = [a, stale, b, again, known]
    outcomes = decide_outcomes(updates, {(5, b"a"), (5, b"b")}, 10, 4)
    assert outcomes == [
        ("merged", 11),
        ("stale", 11),
        ("merged", 12),
        ("repeated", 12),
        ("repeated", 12),
    ]
    assert select_merged(updates, outcomes) == [a, b]


def test_decide_outcomes_merges_nothing_without_new_names() -> None:
    assert decide_outcomes([], set(), 3, 0) == []
    assert select_merged([PendingUpdate(0, b"a", 0, b"")], [MergeOutcome("repeated", 3)]) == []
    assert apply_updates([], {}, 0.5) == {}


@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_apply_updates_applies_updates_of_one_instance_in_order(wrap: type) -> None:
    updates = [
        PendingUpdate(2, b"a", 0, wrap(model(100, 0))),
        PendingUpdate(0, b"b", 0, wrap(model(8, 8))),
        PendingUpdate(2, b"c", 0, wrap(model(0, 100))),
    ]
    blended = apply_updates(updates, {0: model(0, 0), 2: model(0, 0)}, 0.5)
    assert blended == {2: model(25, 50), 0: model(4, 4)}
    assert apply_updates(updates, {}, 1.0) == {2: model(0, 100), 0: model(8, 8)}
