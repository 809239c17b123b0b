"""The published model: exact encoding, rejected models, and the end of a study."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import decode, encode
from shoal.protocols.base import EVERYONE, START, Abort, Finish, Send, Tick, WakeAt
from shoal.protocols.pfds.aggregator import (
    LARGEST_VARIANCE,
    LARGEST_WEIGHT,
    PFDSResult,
    make_shared_model,
    read_shared_model,
)
from shoal.protocols.pfds.messages import (
    MAX_REASON,
    MESSAGES,
    LeftOutHolder,
    PFDSStudyEnd,
    SharedModel,
    encode_floats,
)
from shoal.protocols.secagg.collector import RoundFailure
from tests.support.pfds import STUDIES, logged, same_model


@pytest.mark.parametrize("name", STUDIES)
def test_shared_model_round_trip_is_exact(name: str) -> None:
    model = logged(name)[2].model
    message = make_shared_model(bytes(32), model)
    read = read_shared_model(STUDIES[name], decode(encode(message), MESSAGES, bytes(32)))  # type: ignore[arg-type]
    assert same_model(read, model) and read.params is STUDIES[name]


def replace_last_value(message: SharedModel, part: str, value: float) -> SharedModel:
    """Return a model with another last number in one part."""
    values = np.frombuffer(getattr(message, part).data, np.float64).copy()
    values[-1] = value
    return message.replace(**{part: encode_floats(values)})


@pytest.mark.parametrize(
    "part, value",
    [
        ("weights", np.nan),
        ("intercepts", np.inf),
        ("variances", np.nan),
        ("shares", -np.inf),
        ("weights", 1.01 * LARGEST_WEIGHT),
        ("weights", -1e308),
        ("intercepts", -1.01 * LARGEST_WEIGHT),
        ("variances", -1e-9),
        ("variances", 1.01 * LARGEST_VARIANCE),
        ("shares", -0.1),
        ("shares", 1.1),
    ],
)
def test_read_shared_model_rejects_impossible_numbers(part: str, value: float) -> None:
    message = make_shared_model(bytes(32), logged("sums")[2].model)
    with pytest.raises(RemoteProtocolError) as caught:
        read_shared_model(STUDIES["sums"], replace_last_value(message, part, value))
    assert caught.value.code == "MSG-005"


def test_read_shared_model_rejects_shares_that_do_not_add_up() -> None:
    model = logged("sums")[2].model
    message = make_shared_model(bytes(32), model)
    for shares in (model.shares / 2, np.zeros_like(model.shares), np.roll(model.shares, 1)):
        with pytest.raises(RemoteProtocolError, match="The published model is impossible"):
            read_shared_model(STUDIES["sums"], message.replace(shares=encode_floats(shares)))


@pytest.mark.parametrize("part", ["weights", "intercepts", "variances", "shares"])
def test_read_shared_model_rejects_other_sizes_and_types(part: str) -> None:
    message = make_shared_model(bytes(32), logged("sums")[2].model)
    array: Array = getattr(message, part)
    numbers = array.expect("int64", array.count)
    for other in (numbers[:-1], np.append(numbers, 0), numbers.astype(np.uint64)):
        with pytest.raises(RemoteProtocolError) as caught:
            read_shared_model(STUDIES["sums"], message.replace(**{part: Array.from_values(other)}))
        assert caught.value.code == "MSG-005"
    with pytest.raises(RemoteProtocolError):
        read_shared_model(STUDIES["three"], message)


@pytest.mark.parametrize("name", ["local", "sums"])
def test_publish_sends_model_and_missing_holders_to_everyone(name: str) -> None:
    aggregator, _, found = logged(name)
    left = (LeftOutHolder(holder="peer-3", reason="it was late"),)
    published = PFDSResult(found.model, found.answers, found.n_answering, left)
    state, effects = aggregator.publish(aggregator.initial_state(), published)
    assert state.is_over and effects == (
        Send(EVERYONE, make_shared_model(aggregator.study, found.model)),
        Send(
            EVERYONE,
            PFDSStudyEnd(
                study=aggregator.study,
                holders=("peer-0", "peer-1", "peer-2", "peer-4"),
                left_out=left,
            ),
        ),
        Finish(published),
    )
    assert aggregator.step(state, Tick(), START + timedelta(days=1), SeededEntropy(1)) == (
        state,
        (),
    )


@pytest.mark.parametrize("name", ["local", "sums"])
def test_give_up_sends_the_reason_and_aborts_after_the_timeout(name: str) -> None:
    aggregator: Any = logged(name)[0]
    failed = RoundFailure(code="PFDS-004", what="x" * 2 * MAX_REASON, why="Why not.")
    state, (send, wake) = aggregator.give_up(aggregator.initial_state(), failed, START)
    assert send == Send(EVERYONE, PFDSStudyEnd(study=aggregator.study, reason="x" * MAX_REASON))
    assert isinstance(wake, WakeAt) and wake.when == state.until == START + aggregator.phase_timeout
    assert aggregator.step(state, Tick(), START, SeededEntropy(1)) == (state, ())
    same, (ending,) = aggregator.step(state, Tick(), wake.when, SeededEntropy(1))
    assert same == state and isinstance(ending, Abort)
    assert (ending.error.code, ending.error.what, ending.error.why) == (
        "PFDS-004",
        failed.what,
        "Why not.",
    )
