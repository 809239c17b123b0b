"""A model travels without loss, and what cannot have been learned is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from pfds_cases import STUDIES, logged, same_model
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import decode, encode
from shoal.protocols.base import EVERYONE, START, Abort, Finish, Send, Tick, WakeAt
from shoal.protocols.pfds.messages import MAX_REASON, MESSAGES, Ended, Left, SharedModel, floats_in
from shoal.protocols.pfds.publishing import LARGEST_VARIANCE, LARGEST_WEIGHT, Published, model_of, shared
from shoal.protocols.sums.gathering import Failure


@pytest.mark.parametrize("name", STUDIES)
def test_a_model_travels_without_loss(name: str) -> None:
    model = logged(name)[2].model
    message = shared(bytes(32), model)
    read = model_of(STUDIES[name], decode(encode(message), MESSAGES, bytes(32)))  # type: ignore[arg-type]
    assert same_model(read, model) and read.params is STUDIES[name]


def with_one(message: SharedModel, part: str, value: float) -> SharedModel:
    """A model with another number in one place."""
    values = np.frombuffer(getattr(message, part).data, np.float64).copy()
    values[-1] = value
    return message.replace(**{part: floats_in(values)})


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
def test_a_number_that_no_model_has_is_refused(part: str, value: float) -> None:
    message = shared(bytes(32), logged("sums")[2].model)
    with pytest.raises(RemoteProtocolError) as caught:
        model_of(STUDIES["sums"], with_one(message, part, value))
    assert caught.value.code == "MSG-005"


def test_shares_that_do_not_add_up_are_refused() -> None:
    model = logged("sums")[2].model
    message = shared(bytes(32), model)
    for shares in (model.shares / 2, np.zeros_like(model.shares), np.roll(model.shares, 1)):
        with pytest.raises(RemoteProtocolError, match="cannot have been learned"):
            model_of(STUDIES["sums"], message.replace(shares=floats_in(shares)))


@pytest.mark.parametrize("part", ["weights", "intercepts", "variances", "shares"])
def test_a_model_of_another_size_or_kind_is_refused(part: str) -> None:
    message = shared(bytes(32), logged("sums")[2].model)
    array: Array = getattr(message, part)
    numbers = array.expect("int64", array.count)
    for other in (numbers[:-1], np.append(numbers, 0), numbers.astype(np.uint64)):
        with pytest.raises(RemoteProtocolError) as caught:
            model_of(STUDIES["sums"], message.replace(**{part: Array.of(other)}))
        assert caught.value.code == "MSG-005"
    with pytest.raises(RemoteProtocolError):
        model_of(STUDIES["three"], message)


@pytest.mark.parametrize("name", ["local", "sums"])
def test_everyone_is_told_what_was_learned_and_who_is_missing(name: str) -> None:
    aggregator, _, found = logged(name)
    left = (Left(holder="peer-3", reason="it was late"),)
    published = Published(found.model, found.answers, found.n_answering, left)
    state, effects = aggregator.publish(aggregator.initial(), published)
    assert state.is_over and effects == (
        Send(EVERYONE, shared(aggregator.study, found.model)),
        Send(EVERYONE, Ended(study=aggregator.study, holders=("peer-0", "peer-1", "peer-2", "peer-4"), left_out=left)),
        Finish(published),
    )
    assert aggregator.step(state, Tick(), START + timedelta(days=1), SeededEntropy(1)) == (state, ())


@pytest.mark.parametrize("name", ["local", "sums"])
def test_everyone_is_told_why_there_is_nothing_and_has_time_to_hear_it(name: str) -> None:
    aggregator: Any = logged(name)[0]
    failed = Failure(code="PFDS-004", what="x" * 2 * MAX_REASON, why="Why not.")
    state, (send, wake) = aggregator.give_up(aggregator.initial(), failed, START)
    assert send == Send(EVERYONE, Ended(study=aggregator.study, reason="x" * MAX_REASON))
    assert isinstance(wake, WakeAt) and wake.when == state.until == START + aggregator.patience
    assert aggregator.step(state, Tick(), START, SeededEntropy(1)) == (state, ())
    same, (ending,) = aggregator.step(state, Tick(), wake.when, SeededEntropy(1))
    assert same == state and isinstance(ending, Abort)
    assert (ending.error.code, ending.error.what, ending.error.why) == ("PFDS-004", failed.what, "Why not.")
