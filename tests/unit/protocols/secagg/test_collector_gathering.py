from __future__ import annotations

import numpy as np
import pytest

from shoal.messages.codec import dump, load
from shoal.protocols.base import START
from shoal.protocols.secagg.collector import CollectorState
from shoal.protocols.secagg.messages import SumMasked, SumUnmask
from tests.support.toy.sums import Bench, SumStudy

STUDY = SumStudy(n_members=4, threshold=3)


def test_collector_state_survives_dump_and_adds_vectors_on_arrival() -> None:
    bench = Bench(STUDY)
    bench.play(gone={3: "masked"})
    for _, gathering, _ in bench.told:
        assert load(dump(gathering), CollectorState) == gathering
    first, second = (bench.heard(SumMasked, i) for i in (0, 1))
    assert first[0].masked_sum.tolist() == [0] * STUDY.size
    assert second[0].masked_sum.tolist() == first[1].vector.expect("uint64", STUDY.size).tolist()
    assert second[0].present_members == (0,) and all(came.rows == () for came in second[0].came)
    assert bench.heard(SumUnmask, 0)[0].read_commitments(2).keys() == {0, 1, 2, 3}


def test_collector_state_keeps_only_sum_or_failure_after_end() -> None:
    bench = Bench(STUDY)
    over = bench.play(gone={3: "unmask"})
    assert over.failure is None and over.survivors == (0, 1, 2, 3)
    assert over.total.dtype == np.int64 and not over.total.flags.writeable
    assert (over.came, over.expected, over.listed, over.dealers, over.commitments) == (
        (),
        (),
        None,
        (),
        (),
    )
    failed = bench.play(2, gone={2: "keys", 3: "keys"})
    assert failed.failure is not None and failed.failure.code == "SUM-103"
    assert failed.round == 2 and failed.vectors is None
    with pytest.raises(AssertionError):
        _ = failed.total


def test_collector_state_of_new_round_has_no_keys() -> None:
    assert CollectorState(round=1, query=bytes(32), size=1, deadline=START).public_keys == {}
