"""The secure-sum aggregator: models from opened sums, missing holders, failed sums."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Finish, Received, Send, Started, Tick, WakeAt
from shoal.protocols.pfds.aggregator import (
    PFDSResult,
    PFDSSecureSumAggregatorState,
    SecureSumAggregator,
    make_shared_model,
)
from shoal.protocols.pfds.messages import (
    HolderTables,
    LeftOutHolder,
    PFDSAsk,
    PFDSStudyEnd,
    SharedModel,
)
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.secagg.messages import SumKeys, SumMasked, SumParameters, SumUnmask
from tests.support.machines import before
from tests.support.pfds import STUDIES, SUMMED, logged, same_model
from tests.support.toy.garbage import survives_garbage

LATER = timedelta(minutes=1)


def begin_study(name: str = "sums") -> tuple[SecureSumAggregator, PFDSSecureSumAggregatorState]:
    aggregator = logged(name)[0]
    state, effects = aggregator.step(aggregator.initial_state(), Started(), START, SeededEntropy(1))
    assert effects == (
        Send(
            EVERYONE,
            PFDSAsk(study=aggregator.study, round=0, course=aggregator.script.initial_state),
        ),
        WakeAt(START + LATER),
    )
    return aggregator, state


def step(
    aggregator: SecureSumAggregator,
    state: PFDSSecureSumAggregatorState,
    message: Message,
    sender: str = "peer-0",
) -> tuple[PFDSSecureSumAggregatorState, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), PFDSSecureSumAggregatorState), effects


def catch_code(
    aggregator: SecureSumAggregator,
    state: PFDSSecureSumAggregatorState,
    message: Message,
    sender: str = "peer-0",
) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(
    aggregator: SecureSumAggregator, state: PFDSSecureSumAggregatorState, later: timedelta
) -> tuple[PFDSSecureSumAggregatorState, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def find_last_input(aggregator: Any) -> tuple[PFDSSecureSumAggregatorState, Received]:
    """Return the last message before the end, and the state before it."""
    return next((state, given) for state, given in reversed(aggregator.log) if not state.is_over)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SUMMED)
def test_study_begins_once_and_ends_with_the_whole_result(name: str) -> None:
    aggregator, state = begin_study(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), (
        "a restart changes nothing"
    )
    published = logged(name)[2]
    assert (
        published.n_answering == (5,) * len(aggregator.script.questions)
        and published.left_out == ()
    )
    assert [len(answer) for answer in published.answers] == [
        aggregator.script.compute_size(question) for question in aggregator.script.questions
    ]
    assert same_model(published.model, aggregator.script.build_model(published.answers))


def test_aggregator_rejects_roster_that_does_not_fit() -> None:
    aggregator = logged("sums")[0]
    with pytest.raises(LocalProtocolError, match="does not fit the study"):
        SecureSumAggregator(
            SecureSumScript(STUDIES["sums"]),
            SumParameters(aggregator.study, aggregator.sum_params.roster, 5),
            LATER,
        )


def test_state_of_each_round_follows_from_the_answers() -> None:
    aggregator, _, published = logged("sums")
    peer = logged("sums")[1]["peer-0"]
    course = aggregator.script.initial_state
    for i in range(4):
        _, ask = before(peer, PFDSAsk, i)
        assert (ask.round, ask.course) == (i, course)
        course = aggregator.script.advance(course, published.answers[: i + 1])
    assert aggregator.script.find_question(course) is None


@pytest.mark.parametrize("name", SUMMED)
def test_last_answer_publishes_the_model_and_ends(name: str) -> None:
    aggregator = logged(name)[0]
    state, given = find_last_input(aggregator)
    over, effects = step(aggregator, state, given.message, given.sender)
    model, ended, finish = effects
    assert over.is_over and over.gathering is None
    assert isinstance(finish, Finish) and isinstance(finish.result, PFDSResult)
    assert model == Send(EVERYONE, make_shared_model(aggregator.study, finish.result.model))
    assert ended == Send(EVERYONE, PFDSStudyEnd(study=aggregator.study, holders=aggregator.names))
    assert step(aggregator, over, given.message, given.sender) == (over, ()), (
        "messages after the end are ignored"
    )
    assert tick(aggregator, over, timedelta(days=1)) == (over, ())


def test_left_out_names_each_missing_holder_with_its_sums() -> None:
    aggregator = logged("sums")[0]
    state, given = find_last_input(aggregator)
    everyone, some = tuple(range(5)), (0, 1, 2, 4)
    over, effects = step(
        aggregator, state.replace(survivors=(some, everyone, some)), given.message, given.sender
    )
    left = (LeftOutHolder(holder="peer-3", reason="missing in sums: tables, residuals/0"),)
    assert (
        over.is_over
        and effects[-1].result.left_out == left
        and effects[-1].result.n_answering == (4, 5, 4, 5)
    )
    assert effects[1].message == PFDSStudyEnd(
        study=aggregator.study, holders=("peer-0", "peer-1", "peer-2", "peer-4"), left_out=left
    )


def test_failed_sum_ends_the_study_with_its_reason() -> None:
    aggregator, state = begin_study()
    assert tick(aggregator, state, LATER / 2) == (state, ())
    over, (send, wake) = tick(aggregator, state, LATER)
    assert (
        over.is_over
        and over.gathering is None
        and over.failed is not None
        and over.failed.code == "SUM-103"
    )
    assert send == Send(
        EVERYONE, PFDSStudyEnd(study=aggregator.study, reason=over.failed.what)
    ) and wake == WakeAt(START + 2 * LATER)
    _, keys = before(aggregator, SumKeys)
    assert step(aggregator, over, keys) == (over, ()), "too late"


def test_tick_before_start_is_ignored_and_message_rejected() -> None:
    aggregator = logged("sums")[0]
    assert tick(aggregator, aggregator.initial_state(), LATER) == (aggregator.initial_state(), ())
    _, keys = before(aggregator, SumKeys)
    assert catch_code(aggregator, aggregator.initial_state(), keys) == "PFDS-003"


def test_unexpected_message_or_sender_is_rejected() -> None:
    aggregator, state = begin_study()
    sender = "peer-2"
    open_, masked = before(aggregator, SumMasked, sender=sender)
    assert catch_code(aggregator, open_, masked, "peer-3") == "CRYPTO-001", (
        "the signature is of another sender"
    )
    assert (
        catch_code(
            aggregator,
            open_,
            masked.replace(vector=Array.from_values(np.zeros(2, np.uint64))),
            sender,
        )
        == "MSG-005"
    )
    assert catch_code(aggregator, open_, masked.replace(round=1), sender) == "SUM-101"
    assert catch_code(aggregator, open_, masked, "stranger") == "PROTO-003"
    assert catch_code(aggregator, open_, masked, "reader-0") == "PROTO-003"
    _, keys = before(aggregator, SumKeys)
    _, model = before(logged("sums")[1]["peer-0"], SharedModel)
    tables = HolderTables(study=aggregator.study, counts=Array.from_values(np.zeros(3, np.int64)))
    for message in (
        model,
        tables,
        PFDSStudyEnd(study=aggregator.study),
        PFDSAsk(study=aggregator.study, round=0, course=aggregator.script.initial_state),
    ):
        assert catch_code(aggregator, state, message) == "PROTO-003"
    assert catch_code(aggregator, state, keys.replace(query=bytes(32))) == "SUM-101"


def test_messages_of_an_earlier_round_are_dropped() -> None:
    aggregator = logged("sums")[0]
    state, _ = before(aggregator, SumMasked, -1)
    _, early = before(aggregator, SumMasked)
    assert step(aggregator, state, early) == (state, ())


@pytest.mark.parametrize("kind", [SumKeys, SumMasked, SumUnmask])
def test_aggregator_rejects_or_ignores_garbage(kind: type[Message]) -> None:
    aggregator = logged("sums")[0]
    state, message = before(aggregator, kind, sender="peer-0")
    assert (
        survives_garbage(aggregator, [state, aggregator.initial_state()], [message], "peer-0") > 0
    )
