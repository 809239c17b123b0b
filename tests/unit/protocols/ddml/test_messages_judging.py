"""Checks of received weights and epochs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.protocols.ddml.merging import EPOCH_WINDOW, MAX_WEIGHT, compute_epoch, is_stale
from shoal.protocols.ddml.messages import future_epoch_error, read_weights
from tests.support.ddml import STUDIES, some_weights

PARAMS = STUDIES["laplace"]


def test_read_weights_returns_sent_weights_without_copy() -> None:
    sent = Array.from_values(some_weights(PARAMS))
    read = read_weights(sent, PARAMS)
    assert read.tolist() == some_weights(PARAMS).tolist()
    assert read.dtype == np.int32 and not read.flags.writeable


@pytest.mark.parametrize("least", [MAX_WEIGHT, -MAX_WEIGHT])
def test_read_weights_accepts_ends_of_range(least: int) -> None:
    weights = some_weights(PARAMS)
    weights[2] = least
    assert read_weights(Array.from_values(weights), PARAMS)[2] == least


def wrong() -> dict[str, np.ndarray]:
    weights = some_weights(PARAMS)
    beyond = weights.copy()
    beyond[1] = -MAX_WEIGHT - 1
    return {
        "one too few": weights[:-1],
        "one too many": np.append(weights, np.int32(0)),
        "none": weights[:0],
        "wider": weights.astype(np.int64),
        "without a sign": weights.astype(np.uint32),
        "the one integer out of range": beyond,
    }


@pytest.mark.parametrize("fault", wrong())
def test_read_weights_blames_sender_for_wrong_weights(fault: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_weights(Array.from_values(wrong()[fault]), PARAMS)
    assert caught.value.code == "MSG-005"


def test_compute_epoch_counts_merged_updates() -> None:
    params = replace(PARAMS, size=1_000_000)
    assert params.epoch_updates == 20_000
    assert [compute_epoch(n, params.epoch_updates) for n in (0, 19_999, 20_000, 60_001)] == [
        0,
        0,
        1,
        3,
    ]


def test_is_stale_after_epoch_window() -> None:
    assert EPOCH_WINDOW == 10
    assert [is_stale(epoch, 15) for epoch in (4, 5, 15, 16)] == [True, False, False, False]


def test_future_epoch_error_names_sender_and_epoch() -> None:
    error = future_epoch_error("?7", 4, 3)
    assert error.code == "DDML-001" and "?7" in error.what and "epoch 4" in error.what
