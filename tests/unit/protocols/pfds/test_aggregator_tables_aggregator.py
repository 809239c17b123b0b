"""The local-trust aggregator: pooling of usable tables, missing holders, bad messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Finish, Received, Send, Started, Tick, WakeAt
from shoal.protocols.pfds.aggregator import (
    LocalAggregator,
    PFDSLocalAggregatorState,
    PFDSResult,
    make_shared_model,
)
from shoal.protocols.pfds.messages import HolderTables, LeftOutHolder, PFDSStudyEnd, SharedModel
from shoal.protocols.pfds.tables import pool_tables
from tests.support.machines import before
from tests.support.pfds import STUDIES, logged, same_model
from tests.support.toy.garbage import survives_garbage

PARAMS = STUDIES["local"]
LATER = timedelta(minutes=1)


def get_tables(i: int) -> HolderTables:
    """Return the tables that a holder sent in an honest run."""
    return before(logged("local")[0], HolderTables, sender=f"peer-{i}")[1]  # type: ignore[no-any-return]


def begin_study() -> tuple[LocalAggregator, PFDSLocalAggregatorState]:
    aggregator = logged("local")[0]
    state, effects = aggregator.step(aggregator.initial_state(), Started(), START, SeededEntropy(1))
    assert effects == (WakeAt(START + LATER),)
    return aggregator, state


def step(
    aggregator: LocalAggregator, state: PFDSLocalAggregatorState, message: Message, sender: str
) -> tuple[PFDSLocalAggregatorState, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), PFDSLocalAggregatorState), effects


def tick(
    aggregator: LocalAggregator, state: PFDSLocalAggregatorState, later: timedelta
) -> tuple[PFDSLocalAggregatorState, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def catch_code(
    aggregator: LocalAggregator,
    state: PFDSLocalAggregatorState,
    message: Message,
    sender: str = "peer-0",
) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def send_tables(*holders: int) -> tuple[LocalAggregator, PFDSLocalAggregatorState]:
    aggregator, state = begin_study()
    for i in holders:
        state, effects = step(aggregator, state, get_tables(i), f"peer-{i}")
        assert effects == ()
    return aggregator, state


def read_counts(message: HolderTables) -> Any:
    return message.counts.expect("int64", message.counts.count)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_aggregator_needs_all_holders_of_the_study(n: int) -> None:
    """With fewer names than holders, fewer answers than the minimum would be enough."""
    with pytest.raises(
        SpecError, match=f"PFDS-005  {n} holders were given to a study that has n_holders = 5"
    ):
        LocalAggregator(PARAMS, bytes(32), tuple(f"peer-{i}" for i in range(n)), LATER)


def test_aggregator_begins_once_and_ignores_tick_before_start() -> None:
    aggregator, state = begin_study()
    assert aggregator.step(state, Started(), START + LATER, SeededEntropy(1)) == (state, ())
    assert tick(aggregator, aggregator.initial_state(), LATER) == (aggregator.initial_state(), ())


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 4, 0, 2)])
def test_tables_of_all_holders_are_pooled_in_any_order_of_arrival(
    order: tuple[int, ...],
) -> None:
    aggregator, state = send_tables(*order[:-1])
    state, effects = step(aggregator, state, get_tables(order[-1]), f"peer-{order[-1]}")
    (model, ended, finish) = effects
    answers = {i: read_counts(get_tables(i)) for i in range(5)}
    assert isinstance(finish, Finish) and isinstance(finish.result, PFDSResult)
    assert same_model(finish.result.model, pool_tables(PARAMS, aggregator.study, answers))
    assert [one.tolist() for one in finish.result.answers] == [
        one.tolist() for one in answers.values()
    ]
    assert finish.result.n_answering == (5,) and finish.result.left_out == ()
    assert model == Send(EVERYONE, make_shared_model(aggregator.study, finish.result.model))
    assert ended == Send(EVERYONE, PFDSStudyEnd(study=aggregator.study, holders=aggregator.names))
    assert state.is_over and state.held == ()
    assert step(aggregator, state, get_tables(0), "peer-0") == (state, ()), "too late"


def test_enough_tables_are_pooled_at_the_deadline() -> None:
    aggregator, state = send_tables(4, 0, 2, 1)
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, effects = tick(aggregator, state, LATER)
    result = effects[-1].result
    left = (LeftOutHolder(holder="peer-3", reason="no usable tables arrived in time"),)
    assert result.n_answering == (4,) and result.left_out == left
    assert effects[1] == Send(
        EVERYONE,
        PFDSStudyEnd(
            study=aggregator.study, holders=("peer-0", "peer-1", "peer-2", "peer-4"), left_out=left
        ),
    )
    assert same_model(
        result.model,
        pool_tables(
            PARAMS, aggregator.study, {i: read_counts(get_tables(i)) for i in (0, 1, 2, 4)}
        ),
    )


def test_too_few_tables_end_the_study_with_the_reason() -> None:
    aggregator, state = send_tables(0, 1, 2)
    over, (send, wake) = tick(aggregator, state, LATER)
    reason = "The study failed: 3 holders sent usable tables in time; 4 are needed."
    assert send == Send(
        EVERYONE, PFDSStudyEnd(study=aggregator.study, reason=reason)
    ) and wake == WakeAt(START + 2 * LATER)
    assert over.is_over and over.failed is not None and over.failed.code == "PFDS-004"
    assert step(aggregator, over, get_tables(3), "peer-3") == (over, ())


def test_unusable_tables_are_rejected() -> None:
    aggregator, state = send_tables(0, 1)
    honest = read_counts(get_tables(2))
    for bad, code in (
        (honest[:-1], "MSG-005"),
        (np.append(honest, 0), "MSG-005"),
        (honest.astype(np.int32), "MSG-005"),
        (np.full_like(honest, 1 << 60), "PFDS-001"),
        (np.full_like(honest, -(1 << 63)), "PFDS-001"),
    ):
        assert (
            catch_code(
                aggregator,
                state,
                HolderTables(study=aggregator.study, counts=Array.from_values(bad)),
                "peer-2",
            )
            == code
        )
    assert catch_code(aggregator, state, get_tables(0)) == "PFDS-003", "twice"
    assert catch_code(aggregator, state, get_tables(2), "stranger") == "PROTO-003"
    assert catch_code(aggregator, state, get_tables(2), "reader-0") == "PROTO-003"
    _, model = before(logged("local")[1]["peer-0"], SharedModel)
    assert catch_code(aggregator, state, model) == "PROTO-003"
    assert tick(aggregator, state, LATER)[0].failed is not None


def test_aggregator_rejects_or_ignores_garbage() -> None:
    aggregator, state = send_tables(1)
    assert (
        survives_garbage(aggregator, [state, aggregator.initial_state()], [get_tables(0)], "peer-0")
        > 0
    )
