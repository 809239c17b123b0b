"""A peer asks its ledger before it draws, and answers once; an aggregator has no ledger."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import dump, dumps, load
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Aggregator,
    Answered,
    Broken,
    ComputationInput,
    Computed,
    Emitted,
    Finish,
    Granted,
    Peer,
    PeerState,
    Received,
    Refused,
    Release,
    Spend,
    Started,
    Tick,
)  # fmt: skip
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer

STUDY = Study()
PEER = ToyPeer(STUDY, 1)
ASK = Received(AGGREGATOR, Ask(study=STUDY.digest, round=1))
ENTROPY = SeededEntropy("machines")


def step(state: PeerState, given):
    return PEER.step(state, given, START, ENTROPY)


def test_peer_draws_nothing_before_grant() -> None:
    state, effects = step(PEER.initial_state(), ASK)
    assert effects == (Spend("round-1", STUDY.mechanism.event()),)
    assert not state.has_answered("round-1")
    state, (release,) = step(state, Granted("round-1"))
    assert isinstance(release, Release)
    assert not state.has_answered("round-1"), "not before it is stored"
    state, effects = step(state, Answered("round-1", release.message))
    assert state.has_answered("round-1")


def test_peer_ignores_repeated_request() -> None:
    state, _ = step(PEER.initial_state(), ASK)
    assert step(state, ASK) == (state, ())
    state, (release,) = step(state, Granted("round-1"))
    state, _ = step(state, Answered("round-1", release.message))
    assert step(state, ASK) == (state, ())


@pytest.mark.parametrize("answered", [False, True])
def test_peer_raises_local_error_for_unrequested_grant(answered: bool) -> None:
    state = PeerState(asked=("round-1",), answered=("round-1",)) if answered else PeerState()
    with pytest.raises(LocalProtocolError) as caught:
        step(state, Granted("round-1"))
    assert caught.value.code == "PROTO-001"


def test_peer_continues_after_last_answer() -> None:
    state = PeerState(asked=("round-1", "round-2"), answered=("round-1",))
    after, effects = step(
        state, Answered("round-2", Answer(study=STUDY.digest, round=2, report=b""))
    )
    assert (after.answered, effects) == (("round-1", "round-2"), (Finish(2),))


def test_peer_aborts_on_refusal_by_default() -> None:
    error = BudgetError("BUDGET-002", "No.")
    assert step(PEER.initial_state(), Refused("round-1", error)) == (
        PEER.initial_state(),
        (Abort(error),),
    )


def test_peer_can_ask_refused_question_again() -> None:
    for answered in ((), ("round-1",)):
        state = PeerState(asked=("round-1", "round-2"), answered=answered)
        after, _ = step(state, Refused("round-1", BudgetError("BUDGET-002", "No.")))
        assert after == PeerState(asked=("round-2",))
        assert step(after, ASK)[1] == (Spend("round-1", STUDY.mechanism.event()),)


def test_state_with_moments_survives_dump_and_load() -> None:
    state = Counting(
        round=1,
        deadline=START + timedelta(microseconds=1),
        late=(("ann", Answer(study=STUDY.digest, round=1, report=b"x")),),
    )
    assert load(dump(state), Counting) == state
    assert load(dump(state), Counting).deadline.utcoffset() == timedelta(0)
    for wrong in (1 << 62, -(1 << 62), 1.5, "2030-01-01"):
        with pytest.raises(IntegrityError) as caught:
            load(dumps({"deadline": wrong}), Counting)
        assert caught.value.code == "MSG-008"
    with pytest.raises(LocalProtocolError):
        Counting(deadline=datetime(2030, 1, 1))


def test_peer_rejects_question_outside_study() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        step(PEER.initial_state(), Received(AGGREGATOR, Ask(study=STUDY.digest, round=3)))
    assert caught.value.code == "PROTO-002"


def test_peer_rejects_message_of_other_peer() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        step(PEER.initial_state(), Received("peer-1", ASK.message))
    assert caught.value.code == "PROTO-003"


def test_peer_default_on_answer_stored_does_nothing() -> None:
    class Laconic(ToyPeer):
        on_answer_stored = Peer.on_answer_stored

    stored = Answered("round-1", Answer(study=STUDY.digest, round=1, report=b""))
    after, effects = Laconic(STUDY, 1).step(PeerState(asked=("round-1",)), stored, START, ENTROPY)
    assert (after.answered, effects) == (("round-1",), ())


def test_peer_default_hooks_do_nothing() -> None:
    for given in (Started(), Tick()):
        assert step(PEER.initial_state(), given) == (PEER.initial_state(), ())


def test_aggregator_rejects_ledger_inputs() -> None:
    aggregator = ToyAggregator(STUDY)
    error = BudgetError("BUDGET-002", "No.")
    for given in (
        Granted("q"),
        Refused("q", error),
        Answered("q", Answer(study=STUDY.digest, round=1, report=b"")),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            aggregator.step(aggregator.initial_state(), given, START, ENTROPY)
        assert caught.value.code == "PROTO-001"


def test_aggregator_default_on_tick_does_nothing() -> None:
    class Timeless(ToyAggregator):
        on_tick = Aggregator.on_tick

    aggregator = Timeless(STUDY)
    assert aggregator.step(aggregator.initial_state(), Tick(), START, ENTROPY) == (
        aggregator.initial_state(),
        (),
    )


@pytest.mark.parametrize(
    "progress",
    [
        Emitted("t", 1, b""),
        Computed("t", (1,)),
        Broken("t", LocalProtocolError("JOINT-001", "No.")),
    ],
)
def test_machine_without_computations_rejects_their_inputs(progress: ComputationInput) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        step(PEER.initial_state(), progress)
    assert caught.value.code == "PROTO-001"
    with pytest.raises(LocalProtocolError, match="an input for peers"):
        ToyAggregator(STUDY).step(Counting(), progress, START, ENTROPY)
