"""Trust local, the aggregator's side: it pools what is usable, names who is missing, and bears whatever comes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from machine_runs import before
from pfds_cases import STUDIES, logged, same_model
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Finish, Received, Send, Started, Tick, WakeAt
from shoal.protocols.pfds.local import pooled
from shoal.protocols.pfds.messages import Ended, Left, SharedModel, Tables
from shoal.protocols.pfds.publishing import Published, shared
from shoal.protocols.pfds.tables_aggregator import Pooling, TablesAggregator
from toy.garbage import survives_garbage

PARAMS = STUDIES["local"]
LATER = timedelta(minutes=1)


def tables(i: int) -> Tables:
    """What a holder has sent in an honest run."""
    return before(logged("local")[0], Tables, sender=f"peer-{i}")[1]  # type: ignore[no-any-return]


def begun() -> tuple[TablesAggregator, Pooling]:
    aggregator = logged("local")[0]
    state, effects = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(1))
    assert effects == (WakeAt(START + LATER),)
    return aggregator, state


def step(aggregator: TablesAggregator, state: Pooling, message: Message, sender: str) -> tuple[Pooling, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), Pooling), effects


def tick(aggregator: TablesAggregator, state: Pooling, later: timedelta) -> tuple[Pooling, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def refusal(aggregator: TablesAggregator, state: Pooling, message: Message, sender: str = "peer-0") -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def given(*holders: int) -> tuple[TablesAggregator, Pooling]:
    aggregator, state = begun()
    for i in holders:
        state, effects = step(aggregator, state, tables(i), f"peer-{i}")
        assert effects == ()
    return aggregator, state


def numbers(message: Tables) -> Any:
    return message.counts.expect("int64", message.counts.count)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_it_is_given_all_holders_of_the_study(n: int) -> None:
    """With fewer names than holders all of them would be enough, however few the minimum forbids."""
    with pytest.raises(SpecError, match=f"PFDS-005  {n} holders were given to a study that has n_holders = 5"):
        TablesAggregator(PARAMS, bytes(32), tuple(f"peer-{i}" for i in range(n)), LATER)


def test_it_begins_once_and_a_tick_before_is_borne() -> None:
    aggregator, state = begun()
    assert aggregator.step(state, Started(), START + LATER, SeededEntropy(1)) == (state, ())
    assert tick(aggregator, aggregator.initial(), LATER) == (aggregator.initial(), ())


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 4, 0, 2)])
def test_the_tables_of_all_are_pooled_at_once_in_whatever_order_they_came(order: tuple[int, ...]) -> None:
    aggregator, state = given(*order[:-1])
    state, effects = step(aggregator, state, tables(order[-1]), f"peer-{order[-1]}")
    (model, ended, finish) = effects
    answers = {i: numbers(tables(i)) for i in range(5)}
    assert isinstance(finish, Finish) and isinstance(finish.result, Published)
    assert same_model(finish.result.model, pooled(PARAMS, aggregator.study, answers))
    assert [one.tolist() for one in finish.result.answers] == [one.tolist() for one in answers.values()]
    assert finish.result.n_answering == (5,) and finish.result.left_out == ()
    assert model == Send(EVERYONE, shared(aggregator.study, finish.result.model))
    assert ended == Send(EVERYONE, Ended(study=aggregator.study, holders=aggregator.names))
    assert state.is_over and state.held == ()
    assert step(aggregator, state, tables(0), "peer-0") == (state, ()), "too late"


def test_enough_will_do_when_the_time_is_up_and_the_others_are_named() -> None:
    aggregator, state = given(4, 0, 2, 1)
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, effects = tick(aggregator, state, LATER)
    result = effects[-1].result
    left = (Left(holder="peer-3", reason="nothing usable came from it in time"),)
    assert result.n_answering == (4,) and result.left_out == left
    assert effects[1] == Send(EVERYONE, Ended(study=aggregator.study, holders=("peer-0", "peer-1", "peer-2", "peer-4"), left_out=left))
    assert same_model(result.model, pooled(PARAMS, aggregator.study, {i: numbers(tables(i)) for i in (0, 1, 2, 4)}))


def test_too_few_end_the_study_with_the_reason() -> None:
    aggregator, state = given(0, 1, 2)
    over, (send, wake) = tick(aggregator, state, LATER)
    reason = "The study is given up: 3 holders sent usable tables in time; 4 are needed."
    assert send == Send(EVERYONE, Ended(study=aggregator.study, reason=reason)) and wake == WakeAt(START + 2 * LATER)
    assert over.is_over and over.failed is not None and over.failed.code == "PFDS-004"
    assert step(aggregator, over, tables(3), "peer-3") == (over, ())


def test_what_cannot_be_used_is_refused_and_the_holder_may_send_nothing_else() -> None:
    aggregator, state = given(0, 1)
    honest = numbers(tables(2))
    for bad, code in (
        (honest[:-1], "MSG-005"),
        (np.append(honest, 0), "MSG-005"),
        (honest.astype(np.int32), "MSG-005"),
        (np.full_like(honest, 1 << 60), "PFDS-001"),
        (np.full_like(honest, -(1 << 63)), "PFDS-001"),
    ):
        assert refusal(aggregator, state, Tables(study=aggregator.study, counts=Array.of(bad)), "peer-2") == code
    assert refusal(aggregator, state, tables(0)) == "PFDS-003", "twice"
    assert refusal(aggregator, state, tables(2), "stranger") == "PROTO-003"
    assert refusal(aggregator, state, tables(2), "reader-0") == "PROTO-003"
    _, model = before(logged("local")[1]["peer-0"], SharedModel)
    assert refusal(aggregator, state, model) == "PROTO-003"
    assert tick(aggregator, state, LATER)[0].failed is not None


def test_garbage_is_refused_or_does_nothing() -> None:
    aggregator, state = given(1)
    assert survives_garbage(aggregator, [state, aggregator.initial()], [tables(0)], "peer-0") > 0
