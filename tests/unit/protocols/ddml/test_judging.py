"""Weights and epochs that arrive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddml_cases import STUDIES, some_weights
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.protocols.ddml.judging import WINDOW, epoch_of, is_stale, not_begun, read_weights
from shoal.protocols.ddml.merging import LIMIT

PARAMS = STUDIES["laplace"]


def test_weights_are_read_as_they_were_sent_without_a_copy() -> None:
    sent = Array.of(some_weights(PARAMS))
    read = read_weights(sent, PARAMS)
    assert read.tolist() == some_weights(PARAMS).tolist()
    assert read.dtype == np.int32 and not read.flags.writeable


@pytest.mark.parametrize("least", [LIMIT, -LIMIT])
def test_the_ends_of_the_range_are_allowed(least: int) -> None:
    weights = some_weights(PARAMS)
    weights[2] = least
    assert read_weights(Array.of(weights), PARAMS)[2] == least


def wrong() -> dict[str, np.ndarray]:
    weights = some_weights(PARAMS)
    beyond = weights.copy()
    beyond[1] = -LIMIT - 1
    return {
        "one too few": weights[:-1],
        "one too many": np.append(weights, np.int32(0)),
        "none": weights[:0],
        "wider": weights.astype(np.int64),
        "without a sign": weights.astype(np.uint32),
        "the one integer out of range": beyond,
    }


@pytest.mark.parametrize("fault", wrong())
def test_other_weights_are_their_senders_fault(fault: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_weights(Array.of(wrong()[fault]), PARAMS)
    assert caught.value.code == "MSG-005"


def test_an_epoch_is_so_many_updates() -> None:
    params = replace(PARAMS, size=1_000_000)
    assert params.epoch_updates == 20_000
    assert [epoch_of(params, n) for n in (0, 19_999, 20_000, 60_001)] == [0, 0, 1, 3]


def test_an_epoch_is_stale_when_the_window_is_past() -> None:
    assert WINDOW == 10
    assert [is_stale(epoch, 15) for epoch in (4, 5, 15, 16)] == [True, False, False, False]


def test_who_sends_from_the_future_is_told_the_time() -> None:
    error = not_begun("?7", 4, 3)
    assert error.code == "DDML-001" and "?7" in error.what and "epoch 4" in error.what
