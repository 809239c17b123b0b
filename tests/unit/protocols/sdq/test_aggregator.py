"""The SDQ aggregator with misbehaving databases.

The study continues with the other databases, or ends with a reason.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from shoal.crypto.secagg.masking import compute_value_limit
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import (
    EVERYONE,
    START,
    Abort,
    Finish,
    Received,
    Send,
    Started,
    Tick,
    WakeAt,
    run_local,
)
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.aggregator import SDQAggregator, SDQAggregatorState, SDQResult
from shoal.protocols.sdq.committee import CommitteeState
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    ChoiceResult,
    ComputationFailure,
    Counts,
    JointKey,
    SDQAsk,
    SDQScores,
    SDQStudyEnd,
    UnusableShares,
)
from shoal.protocols.sdq.queries import CountQuery
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.collector import RoundFailure
from shoal.protocols.secagg.messages import SumKeys, SumMasked, SumUnmask
from tests.support.machines import before
from tests.support.sdq import (
    FREE,
    QUERIES,
    STUDIES,
    TOO_MUCH,
    LoggedAggregator,
    logged,
    make,
    pooled,
)
from tests.support.toy.garbage import survives_garbage

LATER = timedelta(minutes=1)
NEVER = timedelta(days=1)


def run_study(name: str) -> tuple[LoggedAggregator, SDQResult]:
    aggregator, _, mined = logged(name)
    return aggregator, mined


def step(
    aggregator: SDQAggregator, state: SDQAggregatorState, message: Message, sender: str = "peer-0"
) -> tuple[SDQAggregatorState, tuple[object, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), SDQAggregatorState), effects


def catch_code(
    aggregator: SDQAggregator, state: SDQAggregatorState, message: Message, sender: str = "peer-0"
) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(
    aggregator: SDQAggregator, state: SDQAggregatorState, later: timedelta
) -> tuple[SDQAggregatorState, tuple[object, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def check_failure(
    aggregator: SDQAggregator, state: SDQAggregatorState, effects: tuple[object, ...]
) -> RemoteProtocolError:
    """Return the error of a failed study; the aggregator aborts after the phase timeout."""
    send, wake = effects
    assert (
        state.is_over
        and state.gathering is state.joint is state.counting is None
        and state.failed is not None
    )
    assert send == Send(EVERYONE, SDQStudyEnd(study=aggregator.study, reason=state.failed.what))
    assert isinstance(wake, WakeAt) and wake.when == state.until
    later = wake.when - START
    assert tick(aggregator, state, later - LATER / 60) == (state, ())
    same, (ending,) = tick(aggregator, load(dump(state), SDQAggregatorState), later)
    assert (
        same == state
        and isinstance(ending, Abort)
        and isinstance(ending.error, RemoteProtocolError)
    )
    assert (ending.error.code, ending.error.what, ending.error.why) == (
        state.failed.code,
        state.failed.what,
        state.failed.why,
    )
    return ending.error


def begin_study(name: str) -> tuple[LoggedAggregator, SDQAggregatorState]:
    aggregator, _ = run_study(name)
    state, effects = aggregator.step(aggregator.initial_state(), Started(), START, SeededEntropy(1))
    assert effects == (
        Send(EVERYONE, SDQAsk(study=aggregator.study, round=0, course=SDQScriptState())),
        WakeAt(START + LATER),
    )
    return aggregator, state


def make_late_result(aggregator: SDQAggregator) -> ChoiceResult:
    return ChoiceResult(study=aggregator.study, round=0, position=0)


def make_counts(
    aggregator: SDQAggregator, values: object, number: int = 0, kind: type = np.int64
) -> Counts:
    return Counts(
        study=aggregator.study, round=number, counts=Array.from_values(np.asarray(values, kind))
    )


# Beginning and end.


@pytest.mark.parametrize("name", STUDIES)
def test_study_begins_once_and_ends_with_the_whole_result(name: str) -> None:
    aggregator, state = begin_study(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), (
        "a restart changes nothing"
    )
    mined = run_study(name)[1]
    assert mined.n_answering == (5,) * (len(mined.answers) + 2)
    assert aggregator.script.make_round(mined.course) is None
    tables, count = mined.query_tables
    assert [table.features for table in tables] == [("a0",), ("kind",)]
    assert abs(int(count[0].counts) - int((pooled().labels == 1).sum())) < 10 * count[0].deviation


def test_aggregator_ignores_tick_before_start() -> None:
    aggregator, _ = run_study("paper")
    assert tick(aggregator, aggregator.initial_state(), LATER) == (aggregator.initial_state(), ())


def test_result_without_free_queries_has_no_counts() -> None:
    aggregator, peers = make("bayes")
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    mined = outcome.results["aggregator"]
    assert isinstance(mined, SDQResult) and mined.query_tables == ()


def test_aggregator_rejects_disallowed_free_counts_at_construction() -> None:
    for queries in (
        (TOO_MUCH,),
        (*QUERIES, QUERIES[0]),
        (CountQuery(), CountQuery(), CountQuery()),
    ):
        with pytest.raises(SpecError) as caught:
            make("bayes", free=FREE, queries=queries)
        assert caught.value.code == "SDQ-002"
    with pytest.raises(SpecError, match="no free counts"):
        make("bayes", queries=QUERIES)


def test_aggregator_ignores_all_inputs_after_the_end() -> None:
    aggregator, mined = run_study("paper")
    state, message = before(aggregator, SumUnmask, -2)
    ended = state.replace(is_over=True)
    assert step(aggregator, ended, message) == (ended, ())
    assert tick(aggregator, ended, NEVER) == (ended, ())
    assert mined.model is not None


# Trust local.


def test_local_counts_of_all_databases_are_summed() -> None:
    aggregator, state = begin_study("local")
    for i in range(4):
        state, effects = step(aggregator, state, make_counts(aggregator, [i]), f"peer-{i}")
        assert effects == ()
    state, effects = step(aggregator, state, make_counts(aggregator, [100]), "peer-4")
    assert state.noisy_sums[0].tolist() == [106] and state.n_answering == (5,)
    assert (
        isinstance(effects[0], Send)
        and isinstance(effects[0].message, SDQAsk)
        and effects[0].message.round == 1
    )


def test_local_counts_of_enough_databases_are_summed_at_the_deadline() -> None:
    aggregator, state = begin_study("local")
    for i in range(4):
        state, _ = step(aggregator, state, make_counts(aggregator, [50]), f"peer-{i}")
        if i < 3:
            assert (
                f"{i + 1} databases sent counts in time; 4 are needed"
                in check_failure(aggregator, *tick(aggregator, state, LATER)).what
            )
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, _ = tick(aggregator, state, LATER)
    assert state.n_answering == (4,) and state.noisy_sums[0].tolist() == [200]


def test_wrong_counts_are_rejected_and_the_study_continues() -> None:
    aggregator, state = begin_study("local")
    once, _ = step(aggregator, state, make_counts(aggregator, [5]))
    assert catch_code(aggregator, once, make_counts(aggregator, [5])) == "SDQ-003", "twice"
    assert catch_code(aggregator, once, make_counts(aggregator, [5, 5]), "peer-1") == "MSG-005"
    assert catch_code(aggregator, once, make_counts(aggregator, []), "peer-1") == "MSG-005"
    assert (
        catch_code(aggregator, once, make_counts(aggregator, [5], kind=np.int32), "peer-1")
        == "MSG-005"
    )
    assert catch_code(aggregator, once, make_counts(aggregator, [5]), "stranger") == "PROTO-003"
    assert catch_code(aggregator, once, make_counts(aggregator, [5], 1), "peer-1") == "SDQ-003", (
        "of a round that was not asked"
    )
    assert (
        catch_code(
            aggregator, once, SumKeys.model_construct(study=aggregator.study, round=0), "peer-1"
        )
        == "SDQ-003"
    )


def test_overflowing_count_is_rejected() -> None:
    aggregator, state = begin_study("local")
    most = compute_value_limit(5)
    for value in (most + 1, -most - 1, (1 << 63) - 1, -(1 << 63)):
        assert catch_code(aggregator, state, make_counts(aggregator, [value])) == "MSG-005"
    for i in range(5):
        state, _ = step(aggregator, state, make_counts(aggregator, [most]), f"peer-{i}")
    assert state.noisy_sums[0].tolist() == [5 * most]


# Messages that are not expected.


def test_message_of_earlier_round_is_dropped_and_of_later_round_rejected() -> None:
    for name, kind in (("paper", SumMasked), ("local", Counts), ("plus", SDQScores)):
        aggregator, _ = run_study(name)
        state, message = before(aggregator, kind)
        assert state.ask.round == 0
        assert catch_code(aggregator, state, message.replace(round=1)) == "SDQ-003"
        later = state.replace(ask=state.ask.replace(round=1))
        assert step(aggregator, later, message) == (later, ())
        initial = aggregator.initial_state()
        assert catch_code(aggregator, initial, message) == "SDQ-003"


def test_message_of_another_answer_kind_is_rejected() -> None:
    masked = before(run_study("paper")[0], SumMasked)[1]
    for name, is_sum in (
        ("plus", True),
        ("local", True),
        ("selected", True),
        ("plus", False),
        ("paper", False),
    ):
        aggregator, state = begin_study(name)
        message = masked.replace(study=aggregator.study) if is_sum else make_counts(aggregator, [1])
        assert catch_code(aggregator, state, message) == "SDQ-003"
    aggregator, state = begin_study("paper")
    assert (
        catch_code(aggregator, state, ChoiceResult(study=aggregator.study, round=0, position=0))
        == "SDQ-003"
    )
    for message in (
        SDQStudyEnd(study=aggregator.study),
        SDQAsk(study=aggregator.study, round=0, course=SDQScriptState()),
    ):
        assert catch_code(aggregator, state, message) == "PROTO-003"


# Sums.


def test_failed_sum_ends_the_study_with_its_reason() -> None:
    aggregator, state = begin_study("paper")
    over, effects = tick(aggregator, state, LATER)
    error = check_failure(aggregator, over, effects)
    assert error.code == "SUM-103" and "0 members" in error.what
    assert over.until == START + 2 * LATER, "peers have the usual time to receive the reason"
    _, keys = before(aggregator, SumKeys)
    assert step(aggregator, over, keys) == (over, ()), "too late"
    assert tick(aggregator, state, LATER / 2) == (state, ())


def test_masked_vector_with_wrong_signer_or_size_is_rejected() -> None:
    aggregator, _ = run_study("paper")
    state, masked = before(aggregator, SumMasked, sender="peer-2")
    assert catch_code(aggregator, state, masked, "peer-3") == "CRYPTO-001"
    wrong = masked.replace(vector=Array.from_values(np.zeros(2, np.uint64)))
    assert catch_code(aggregator, state, wrong, "peer-2") == "MSG-005"


# Selection.


def test_sum_begins_after_the_selection_with_a_new_deadline() -> None:
    aggregator, state = begin_study("selected")
    assert state.gathering is None and state.joint is not None and not state.joint.is_choice
    state, last = before(aggregator, JointKey, 4)
    later, effects = aggregator.step(
        state, Received("peer-4", last), START + LATER / 2, SeededEntropy(1)
    )
    assert later.gathering is not None and later.gathering.deadline == START + 1.5 * LATER
    assert [effect for effect in effects if isinstance(effect, WakeAt)][-1] == WakeAt(
        START + 1.5 * LATER
    )
    assert tick(aggregator, later, LATER) == (later, ())
    assert (
        "0 members sent a sum.keys"
        in check_failure(aggregator, *tick(aggregator, later, 1.5 * LATER)).what
    )
    frame = JointFrame(study=aggregator.study, round=0, sender=1, to=3, number=0, sealed=b"")
    _, effects = step(aggregator, later, frame, "peer-1")
    assert effects == (Send("peer-3", frame),)
    assert (
        "0 databases sent keys"
        in check_failure(aggregator, *tick(aggregator, begin_study("selected")[1], LATER)).what
    )


def test_broken_selection_ends_the_study_immediately() -> None:
    aggregator, _ = run_study("selected")
    state, _ = before(aggregator, SumKeys)
    assert state.gathering is not None
    broken = ComputationFailure(study=aggregator.study, round=0, party=3)
    error = check_failure(aggregator, *step(aggregator, state, broken, "peer-1"))
    assert error.code == "SDQ-004" and "peer-1" in error.what and "peer-3" in error.what
    later = state.replace(ask=state.ask.replace(round=1))
    assert step(aggregator, later, broken, "peer-1") == (later, ()), (
        "of a round that succeeded without it"
    )


def test_selection_runs_for_each_level_and_each_free_count() -> None:
    aggregator, _ = run_study("selected")
    joint = {
        state.ask.round: state.joint is not None
        for state, _ in aggregator.log
        if state.ask and not state.is_over
    }
    assert joint == {number: number not in (1, 3, 5) for number in range(8)}


# Choices.


def test_choice_is_the_position_reported_by_all_parties() -> None:
    aggregator, mined = run_study("plus")
    state, last = before(aggregator, ChoiceResult, 2)
    assert isinstance(state.joint, CommitteeState)
    after, effects = step(aggregator, state, last, "peer-2")
    assert after.noisy_sums[0].tolist() == [last.position] and after.n_answering == (5,)
    assert isinstance(effects[0], Send) and effects[0].message.round == 1
    assert mined.answers[0].tolist() == [last.position]
    other = last.replace(position=(last.position + 1) % 3)
    assert (
        "report different results"
        in check_failure(aggregator, *step(aggregator, state, other, "peer-2")).what
    )


def test_bad_dealer_ends_the_study_and_is_named() -> None:
    aggregator, _ = run_study("plus")
    state, _ = before(aggregator, ChoiceResult)
    error = check_failure(
        aggregator,
        *step(
            aggregator, state, UnusableShares(study=aggregator.study, round=0, dealer=3), "peer-1"
        ),
    )
    assert "peer-1" in error.what and "peer-3" in error.what
    error = check_failure(
        aggregator,
        *step(aggregator, state, ComputationFailure(study=aggregator.study, round=0), "peer-2"),
    )
    assert "the joint computation of peer-2 failed" in error.what


def test_long_reason_is_cut_in_the_end_message() -> None:
    aggregator, _ = run_study("plus")
    state, _ = before(aggregator, ChoiceResult)
    failed = RoundFailure(code="SDQ-004", what="x" * 2 * MAX_REASON)
    over, (send, _) = step(
        aggregator,
        state.replace(joint=state.joint.replace(phase="over", failed=failed)),
        make_late_result(aggregator),
    )
    assert (
        isinstance(send, Send)
        and isinstance(send.message, SDQStudyEnd)
        and send.message.reason == "x" * MAX_REASON
    )
    assert over.failed == failed


def test_silent_committee_ends_the_study() -> None:
    aggregator, state = begin_study("plus")
    assert tick(aggregator, state, LATER / 2) == (state, ())
    assert check_failure(aggregator, *tick(aggregator, state, LATER)).code == "SDQ-004"


def test_last_answer_ends_the_study_with_a_result() -> None:
    aggregator, mined = run_study("bayes")
    state, given = next(
        (state, given) for state, given in reversed(aggregator.log) if not state.is_over
    )
    over, effects = step(aggregator, state, given.message, given.sender)  # type: ignore[union-attr]
    assert over.is_over and over.gathering is None
    assert effects[-2] == Send(EVERYONE, SDQStudyEnd(study=aggregator.study))
    assert isinstance(effects[-1], Finish) and effects[-1].result.n_answering == mined.n_answering


# Messages with arbitrary content.


@pytest.mark.parametrize(
    "name, kinds",
    [
        ("paper", [SumKeys, SumMasked, SumUnmask]),
        ("local", [Counts]),
        ("plus", [JointKey, SDQScores, ChoiceResult]),
    ],
)
def test_aggregator_rejects_or_ignores_garbage(name: str, kinds: list[type[Message]]) -> None:
    aggregator, _ = run_study(name)
    for kind in kinds:
        state, message = before(aggregator, kind)
        sender = next(
            given.sender
            for _, given in aggregator.log
            if getattr(given, "message", None) == message
        )
        assert (
            survives_garbage(aggregator, [state, aggregator.initial_state()], [message], sender) > 0
        )
