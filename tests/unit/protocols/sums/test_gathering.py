from __future__ import annotations

import numpy as np
import pytest

from shoal.messages.codec import dump, load
from shoal.protocols.base import START
from shoal.protocols.sums.gathering import Gathering
from shoal.protocols.sums.messages import SumMasked, SumUnmask
from toy.sums import Bench, SumStudy

STUDY = SumStudy(n_members=4, threshold=3)


def test_every_state_survives_being_saved_and_vectors_are_added_up_as_they_come() -> None:
    bench = Bench(STUDY)
    bench.play(gone={3: "masked"})
    for _, gathering, _ in bench.told:
        assert load(dump(gathering), Gathering) == gathering
    first, second = (bench.heard(SumMasked, i) for i in (0, 1))
    assert first[0].summed.tolist() == [0] * STUDY.size
    assert second[0].summed.tolist() == first[1].vector.expect("uint64", STUDY.size).tolist()
    assert second[0].present == (0,) and all(came.rows == () for came in second[0].came)
    assert bench.heard(SumUnmask, 0)[0].committed_to(2).keys() == {0, 1, 2, 3}


def test_what_is_over_has_the_sum_or_the_reason_and_nothing_else() -> None:
    bench = Bench(STUDY)
    over = bench.play(gone={3: "unmask"})
    assert over.failure is None and over.survivors == (0, 1, 2, 3)
    assert over.total.dtype == np.int64 and not over.total.flags.writeable
    assert (over.came, over.expected, over.listed, over.dealers, over.commitments) == ((), (), None, (), ())
    failed = bench.play(2, gone={2: "keys", 3: "keys"})
    assert failed.failure is not None and failed.failure.code == "SUM-103"
    assert failed.round == 2 and failed.vectors is None
    with pytest.raises(AssertionError):
        _ = failed.total


def test_a_new_round_has_no_keys() -> None:
    assert Gathering(round=1, query=bytes(32), size=1, deadline=START).public_keys == {}
