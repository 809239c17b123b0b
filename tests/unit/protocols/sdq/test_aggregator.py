"""The miner's side against databases that do not keep to the rules: the study goes on with the others, or ends and says why."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from machine_runs import before
from sdq_cases import FREE, QUERIES, STUDIES, TOO_MUCH, LoggedAggregator, logged, make, pooled
from shoal.crypto.secure_sum import limit
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Abort, Finish, Received, Send, Started, Tick, WakeAt, run_local
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.aggregator import Mined, Mining, SDQAggregator
from shoal.protocols.sdq.committee import Joint
from shoal.protocols.sdq.messages import MAX_REASON, Ask, BrokenOff, Counts, Ended, JointKey, Scores, Settled, Unusable
from shoal.protocols.sdq.queries import Count
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.gathering import Failure
from shoal.protocols.sums.messages import SumKeys, SumMasked, SumUnmask
from toy.garbage import survives_garbage

LATER = timedelta(minutes=1)
NEVER = timedelta(days=1)


def played(name: str) -> tuple[LoggedAggregator, Mined]:
    aggregator, _, mined = logged(name)
    return aggregator, mined


def step(aggregator: SDQAggregator, state: Mining, message: Message, sender: str = "peer-0") -> tuple[Mining, tuple[object, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), Mining), effects


def refusal(aggregator: SDQAggregator, state: Mining, message: Message, sender: str = "peer-0") -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(aggregator: SDQAggregator, state: Mining, later: timedelta) -> tuple[Mining, tuple[object, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def told(aggregator: SDQAggregator, state: Mining, effects: tuple[object, ...]) -> RemoteProtocolError:
    """The error with which the aggregator gives up, once everyone had time to hear why."""
    send, wake = effects
    assert state.is_over and state.gathering is state.joint is state.counting is None and state.failed is not None
    assert send == Send(EVERYONE, Ended(study=aggregator.study, reason=state.failed.what))
    assert isinstance(wake, WakeAt) and wake.when == state.until
    later = wake.when - START
    assert tick(aggregator, state, later - LATER / 60) == (state, ())
    same, (ending,) = tick(aggregator, load(dump(state), Mining), later)
    assert same == state and isinstance(ending, Abort) and isinstance(ending.error, RemoteProtocolError)
    assert (ending.error.code, ending.error.what, ending.error.why) == (state.failed.code, state.failed.what, state.failed.why)
    return ending.error


def begun(name: str) -> tuple[LoggedAggregator, Mining]:
    aggregator, _ = played(name)
    state, effects = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(1))
    assert effects == (Send(EVERYONE, Ask(study=aggregator.study, round=0, course=Course())), WakeAt(START + LATER))
    return aggregator, state


def settled_late(aggregator: SDQAggregator) -> Settled:
    return Settled(study=aggregator.study, round=0, position=0)


def counts(aggregator: SDQAggregator, values: object, number: int = 0, kind: type = np.int64) -> Counts:
    return Counts(study=aggregator.study, round=number, counts=Array.of(np.asarray(values, kind)))


# Beginning and end.


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_begins_once_and_ends_with_all_that_was_learned(name: str) -> None:
    aggregator, state = begun(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), "it went down, and is up again"
    mined = played(name)[1]
    assert mined.n_answering == (5,) * (len(mined.answers) + 2)
    assert aggregator.script.round(mined.course) is None
    tables, count = mined.counted
    assert [table.features for table in tables] == [("a0",), ("kind",)]
    assert abs(int(count[0].counts) - int((pooled().labels == 1).sum())) < 10 * count[0].deviation


def test_a_tick_before_the_beginning_is_borne() -> None:
    aggregator, _ = played("paper")
    assert tick(aggregator, aggregator.initial(), LATER) == (aggregator.initial(), ())


def test_without_free_counts_none_are_read() -> None:
    aggregator, peers = make("bayes")
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    mined = outcome.results["aggregator"]
    assert isinstance(mined, Mined) and mined.counted == ()


def test_free_counts_that_no_database_would_answer_are_found_at_once() -> None:
    for queries in ((TOO_MUCH,), (*QUERIES, QUERIES[0]), (Count(), Count(), Count())):
        with pytest.raises(SpecError) as caught:
            make("bayes", free=FREE, queries=queries)
        assert caught.value.code == "SDQ-002"
    with pytest.raises(SpecError, match="no free counts"):
        make("bayes", queries=QUERIES)


def test_after_the_end_nothing_matters() -> None:
    aggregator, mined = played("paper")
    state, message = before(aggregator, SumUnmask, -2)
    ended = state.replace(is_over=True)
    assert step(aggregator, ended, message) == (ended, ())
    assert tick(aggregator, ended, NEVER) == (ended, ())
    assert mined.model is not None


# Trust local.


def test_counts_of_all_are_added_up() -> None:
    aggregator, state = begun("local")
    for i in range(4):
        state, effects = step(aggregator, state, counts(aggregator, [i]), f"peer-{i}")
        assert effects == ()
    state, effects = step(aggregator, state, counts(aggregator, [100]), "peer-4")
    assert state.learned[0].tolist() == [106] and state.n_answering == (5,)
    assert isinstance(effects[0], Send) and isinstance(effects[0].message, Ask) and effects[0].message.round == 1


def test_counts_of_enough_do_when_the_time_is_up() -> None:
    aggregator, state = begun("local")
    for i in range(4):
        state, _ = step(aggregator, state, counts(aggregator, [50]), f"peer-{i}")
        if i < 3:
            assert f"{i + 1} databases sent counts in time; 4 are needed" in told(aggregator, *tick(aggregator, state, LATER)).what
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, _ = tick(aggregator, state, LATER)
    assert state.n_answering == (4,) and state.learned[0].tolist() == [200]


def test_counts_of_another_size_kind_or_sender_are_refused_and_the_study_goes_on() -> None:
    aggregator, state = begun("local")
    once, _ = step(aggregator, state, counts(aggregator, [5]))
    assert refusal(aggregator, once, counts(aggregator, [5])) == "SDQ-003", "twice"
    assert refusal(aggregator, once, counts(aggregator, [5, 5]), "peer-1") == "MSG-005"
    assert refusal(aggregator, once, counts(aggregator, []), "peer-1") == "MSG-005"
    assert refusal(aggregator, once, counts(aggregator, [5], kind=np.int32), "peer-1") == "MSG-005"
    assert refusal(aggregator, once, counts(aggregator, [5]), "stranger") == "PROTO-003"
    assert refusal(aggregator, once, counts(aggregator, [5], 1), "peer-1") == "SDQ-003", "of a round that was not asked"
    assert refusal(aggregator, once, SumKeys.model_construct(study=aggregator.study, round=0), "peer-1") == "SDQ-003"


def test_a_count_that_would_overflow_is_refused_and_never_wraps() -> None:
    aggregator, state = begun("local")
    most = limit(5)
    for value in (most + 1, -most - 1, (1 << 63) - 1, -(1 << 63)):
        assert refusal(aggregator, state, counts(aggregator, [value])) == "MSG-005"
    for i in range(5):
        state, _ = step(aggregator, state, counts(aggregator, [most]), f"peer-{i}")
    assert state.learned[0].tolist() == [5 * most]


# Whatever is not due.


def test_what_is_of_an_earlier_round_is_dropped_and_of_a_later_one_refused() -> None:
    for name, kind in (("paper", SumMasked), ("local", Counts), ("plus", Scores)):
        aggregator, _ = played(name)
        state, message = before(aggregator, kind)
        assert state.ask.round == 0
        assert refusal(aggregator, state, message.replace(round=1)) == "SDQ-003"
        later = state.replace(ask=state.ask.replace(round=1))
        assert step(aggregator, later, message) == (later, ())
        initial = aggregator.initial()
        assert refusal(aggregator, initial, message) == "SDQ-003"


def test_what_does_not_belong_to_the_way_of_answering_is_refused() -> None:
    masked = before(played("paper")[0], SumMasked)[1]
    for name, is_sum in (("plus", True), ("local", True), ("selected", True), ("plus", False), ("paper", False)):
        aggregator, state = begun(name)
        message = masked.replace(study=aggregator.study) if is_sum else counts(aggregator, [1])
        assert refusal(aggregator, state, message) == "SDQ-003"
    aggregator, state = begun("paper")
    assert refusal(aggregator, state, Settled(study=aggregator.study, round=0, position=0)) == "SDQ-003"
    for message in (Ended(study=aggregator.study), Ask(study=aggregator.study, round=0, course=Course())):
        assert refusal(aggregator, state, message) == "PROTO-003"


# Sums.


def test_a_sum_that_fails_ends_the_study_with_its_reason() -> None:
    aggregator, state = begun("paper")
    over, effects = tick(aggregator, state, LATER)
    error = told(aggregator, over, effects)
    assert error.code == "SUM-103" and "0 members" in error.what
    assert over.until == START + 2 * LATER, "everyone has as long to hear of it as for any other step"
    _, keys = before(aggregator, SumKeys)
    assert step(aggregator, over, keys) == (over, ()), "too late"
    assert tick(aggregator, state, LATER / 2) == (state, ())


def test_a_database_that_signs_what_it_did_not_send_is_refused() -> None:
    aggregator, _ = played("paper")
    state, masked = before(aggregator, SumMasked, sender="peer-2")
    assert refusal(aggregator, state, masked, "peer-3") == "CRYPTO-001"
    wrong = masked.replace(vector=Array.of(np.zeros(2, np.uint64)))
    assert refusal(aggregator, state, wrong, "peer-2") == "MSG-005"


# Selection.


def test_a_sum_waits_for_the_selection_and_has_its_own_time() -> None:
    aggregator, state = begun("selected")
    assert state.gathering is None and state.joint is not None and not state.joint.is_choice
    state, last = before(aggregator, JointKey, 4)
    later, effects = aggregator.step(state, Received("peer-4", last), START + LATER / 2, SeededEntropy(1))
    assert later.gathering is not None and later.gathering.deadline == START + 1.5 * LATER
    assert [effect for effect in effects if isinstance(effect, WakeAt)][-1] == WakeAt(START + 1.5 * LATER)
    assert tick(aggregator, later, LATER) == (later, ())
    assert "0 members sent a sum.keys" in told(aggregator, *tick(aggregator, later, 1.5 * LATER)).what
    frame = JointFrame(study=aggregator.study, round=0, sender=1, to=3, number=0, sealed=b"")
    assert step(aggregator, later, frame, "peer-1") == (later, (Send("peer-3", frame),))
    assert "0 databases sent keys" in told(aggregator, *tick(aggregator, begun("selected")[1], LATER)).what


def test_a_selection_that_broke_ends_the_study_at_once_and_not_by_missing_keys_of_a_sum() -> None:
    aggregator, _ = played("selected")
    state, _ = before(aggregator, SumKeys)
    assert state.gathering is not None
    broken = BrokenOff(study=aggregator.study, round=0, party=3)
    error = told(aggregator, *step(aggregator, state, broken, "peer-1"))
    assert error.code == "SDQ-004" and "peer-1" in error.what and "peer-3" in error.what
    later = state.replace(ask=state.ask.replace(round=1))
    assert step(aggregator, later, broken, "peer-1") == (later, ()), "of a round that went well without it"


def test_two_are_selected_for_each_level_and_for_each_free_count() -> None:
    aggregator, _ = played("selected")
    joint = {state.ask.round: state.joint is not None for state, _ in aggregator.log if state.ask and not state.is_over}
    assert joint == {number: number not in (1, 3, 5) for number in range(8)}


# Choices.


def test_a_choice_is_the_position_that_all_parties_say() -> None:
    aggregator, mined = played("plus")
    state, last = before(aggregator, Settled, 2)
    assert isinstance(state.joint, Joint)
    after, effects = step(aggregator, state, last, "peer-2")
    assert after.learned[0].tolist() == [last.position] and after.n_answering == (5,)
    assert isinstance(effects[0], Send) and effects[0].message.round == 1
    assert mined.answers[0].tolist() == [last.position]
    other = last.replace(position=(last.position + 1) % 3)
    assert "say different things" in told(aggregator, *step(aggregator, state, other, "peer-2")).what


def test_a_database_that_deals_badly_ends_the_study_and_is_named() -> None:
    aggregator, _ = played("plus")
    state, _ = before(aggregator, Settled)
    error = told(aggregator, *step(aggregator, state, Unusable(study=aggregator.study, round=0, dealer=3), "peer-1"))
    assert "peer-1" in error.what and "peer-3" in error.what
    error = told(aggregator, *step(aggregator, state, BrokenOff(study=aggregator.study, round=0), "peer-2"))
    assert "the joint computation of peer-2 broke off" in error.what


def test_a_long_reason_is_cut_where_it_is_told() -> None:
    aggregator, _ = played("plus")
    state, _ = before(aggregator, Settled)
    failed = Failure(code="SDQ-004", what="x" * 2 * MAX_REASON)
    over, (send, _) = step(aggregator, state.replace(joint=state.joint.replace(phase="over", failed=failed)), settled_late(aggregator))
    assert isinstance(send, Send) and isinstance(send.message, Ended) and send.message.reason == "x" * MAX_REASON
    assert over.failed == failed


def test_a_committee_that_says_nothing_ends_the_study() -> None:
    aggregator, state = begun("plus")
    assert tick(aggregator, state, LATER / 2) == (state, ())
    assert told(aggregator, *tick(aggregator, state, LATER)).code == "SDQ-004"


def test_the_last_answer_ends_the_study() -> None:
    aggregator, mined = played("bayes")
    state, given = next((state, given) for state, given in reversed(aggregator.log) if not state.is_over)
    over, effects = step(aggregator, state, given.message, given.sender)  # type: ignore[union-attr]
    assert over.is_over and over.gathering is None
    assert effects[-2] == Send(EVERYONE, Ended(study=aggregator.study))
    assert isinstance(effects[-1], Finish) and effects[-1].result.n_answering == mined.n_answering


# Whatever a message says.


@pytest.mark.parametrize(
    "name, kinds", [("paper", [SumKeys, SumMasked, SumUnmask]), ("local", [Counts]), ("plus", [JointKey, Scores, Settled])]
)
def test_garbage_is_refused_or_does_nothing(name: str, kinds: list[type[Message]]) -> None:
    aggregator, _ = played(name)
    for kind in kinds:
        state, message = before(aggregator, kind)
        sender = next(given.sender for _, given in aggregator.log if getattr(given, "message", None) == message)
        assert survives_garbage(aggregator, [state, aggregator.initial()], [message], sender) > 0
