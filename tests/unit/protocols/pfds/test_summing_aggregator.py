"""Secure sums, the aggregator's side: it learns from the sums that open, names who is missing, and ends with a reason where one fails."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from machine_runs import before
from pfds_cases import STUDIES, SUMMED, logged, same_model
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Finish, Received, Send, Started, Tick, WakeAt
from shoal.protocols.pfds.messages import Ask, Ended, Left, SharedModel, Tables
from shoal.protocols.pfds.publishing import Published, shared
from shoal.protocols.pfds.summing_aggregator import Summing, SummingAggregator
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.sums.messages import SumKeys, SumMasked, SumUnmask
from shoal.protocols.sums.terms import Terms
from toy.garbage import survives_garbage

LATER = timedelta(minutes=1)


def begun(name: str = "sums") -> tuple[SummingAggregator, Summing]:
    aggregator = logged(name)[0]
    state, effects = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(1))
    assert effects == (Send(EVERYONE, Ask(study=aggregator.study, round=0, course=aggregator.script.start)), WakeAt(START + LATER))
    return aggregator, state


def step(aggregator: SummingAggregator, state: Summing, message: Message, sender: str = "peer-0") -> tuple[Summing, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), Summing), effects


def refusal(aggregator: SummingAggregator, state: Summing, message: Message, sender: str = "peer-0") -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(aggregator: SummingAggregator, state: Summing, later: timedelta) -> tuple[Summing, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def last(aggregator: Any) -> tuple[Summing, Received]:
    """The last message that mattered, and the state before it."""
    return next((state, given) for state, given in reversed(aggregator.log) if not state.is_over)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SUMMED)
def test_a_study_begins_once_and_ends_with_all_that_was_learned(name: str) -> None:
    aggregator, state = begun(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), "it went down, and is up again"
    published = logged(name)[2]
    assert published.n_answering == (5,) * len(aggregator.script.questions) and published.left_out == ()
    assert [len(answer) for answer in published.answers] == [aggregator.script.size(question) for question in aggregator.script.questions]
    assert same_model(published.model, aggregator.script.model(published.answers))


def test_a_roster_that_does_not_fit_is_refused() -> None:
    aggregator = logged("sums")[0]
    with pytest.raises(LocalProtocolError, match="cannot keep"):
        SummingAggregator(SumScript(STUDIES["sums"]), Terms(aggregator.study, aggregator.terms.roster, 5), LATER)


def test_rounds_follow_the_answers() -> None:
    aggregator, _, published = logged("sums")
    peer = logged("sums")[1]["peer-0"]
    course = aggregator.script.start
    for i in range(4):
        _, ask = before(peer, Ask, i)
        assert (ask.round, ask.course) == (i, course)
        course = aggregator.script.advance(course, published.answers[: i + 1])
    assert aggregator.script.question(course) is None


@pytest.mark.parametrize("name", SUMMED)
def test_the_last_answer_publishes_and_ends(name: str) -> None:
    aggregator = logged(name)[0]
    state, given = last(aggregator)
    over, effects = step(aggregator, state, given.message, given.sender)
    model, ended, finish = effects
    assert over.is_over and over.gathering is None
    assert isinstance(finish, Finish) and isinstance(finish.result, Published)
    assert model == Send(EVERYONE, shared(aggregator.study, finish.result.model))
    assert ended == Send(EVERYONE, Ended(study=aggregator.study, holders=aggregator.names))
    assert step(aggregator, over, given.message, given.sender) == (over, ()), "after the end nothing matters"
    assert tick(aggregator, over, timedelta(days=1)) == (over, ())


def test_who_is_missing_in_a_sum_is_named_with_the_sum() -> None:
    aggregator = logged("sums")[0]
    state, given = last(aggregator)
    everyone, some = tuple(range(5)), (0, 1, 2, 4)
    over, effects = step(aggregator, state.replace(survivors=(some, everyone, some)), given.message, given.sender)
    left = (Left(holder="peer-3", reason="its rows are not in: tables, residuals/0"),)
    assert over.is_over and effects[-1].result.left_out == left and effects[-1].result.n_answering == (4, 5, 4, 5)
    assert effects[1].message == Ended(study=aggregator.study, holders=("peer-0", "peer-1", "peer-2", "peer-4"), left_out=left)


def test_a_sum_that_fails_ends_the_study_with_its_reason() -> None:
    aggregator, state = begun()
    assert tick(aggregator, state, LATER / 2) == (state, ())
    over, (send, wake) = tick(aggregator, state, LATER)
    assert over.is_over and over.gathering is None and over.failed is not None and over.failed.code == "SUM-103"
    assert send == Send(EVERYONE, Ended(study=aggregator.study, reason=over.failed.what)) and wake == WakeAt(START + 2 * LATER)
    _, keys = before(aggregator, SumKeys)
    assert step(aggregator, over, keys) == (over, ()), "too late"


def test_a_tick_or_a_message_before_the_beginning_is_borne() -> None:
    aggregator = logged("sums")[0]
    assert tick(aggregator, aggregator.initial(), LATER) == (aggregator.initial(), ())
    _, keys = before(aggregator, SumKeys)
    assert refusal(aggregator, aggregator.initial(), keys) == "PFDS-003"


def test_what_is_not_due_or_not_a_holders_is_refused() -> None:
    aggregator, state = begun()
    sender = "peer-2"
    open_, masked = before(aggregator, SumMasked, sender=sender)
    assert refusal(aggregator, open_, masked, "peer-3") == "CRYPTO-001", "it signs what it did not send"
    assert refusal(aggregator, open_, masked.replace(vector=Array.of(np.zeros(2, np.uint64))), sender) == "MSG-005"
    assert refusal(aggregator, open_, masked.replace(round=1), sender) == "SUM-101"
    assert refusal(aggregator, open_, masked, "stranger") == "PROTO-003"
    assert refusal(aggregator, open_, masked, "reader-0") == "PROTO-003"
    _, keys = before(aggregator, SumKeys)
    _, model = before(logged("sums")[1]["peer-0"], SharedModel)
    tables = Tables(study=aggregator.study, counts=Array.of(np.zeros(3, np.int64)))
    for message in (model, tables, Ended(study=aggregator.study), Ask(study=aggregator.study, round=0, course=aggregator.script.start)):
        assert refusal(aggregator, state, message) == "PROTO-003"
    assert refusal(aggregator, state, keys.replace(query=bytes(32))) == "SUM-101"


def test_what_is_of_an_earlier_round_is_dropped() -> None:
    aggregator = logged("sums")[0]
    state, _ = before(aggregator, SumMasked, -1)
    _, early = before(aggregator, SumMasked)
    assert step(aggregator, state, early) == (state, ())


@pytest.mark.parametrize("kind", [SumKeys, SumMasked, SumUnmask])
def test_garbage_is_refused_or_does_nothing(kind: type[Message]) -> None:
    aggregator = logged("sums")[0]
    state, message = before(aggregator, kind, sender="peer-0")
    assert survives_garbage(aggregator, [state, aggregator.initial()], [message], "peer-0") > 0
