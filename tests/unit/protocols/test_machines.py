"""A peer asks its ledger before it draws, and answers a question once; an aggregator has no ledger."""

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
    Computed,
    Emitted,
    Finish,
    Granted,
    Peer,
    PeerState,
    Progress,
    Received,
    Refused,
    Release,
    Spend,
    Started,
    Tick,
)  # fmt: skip
from toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer

STUDY = Study()
PEER = ToyPeer(STUDY, 1)
ASK = Received(AGGREGATOR, Ask(study=STUDY.digest, round=1))
ENTROPY = SeededEntropy("machines")


def step(state: PeerState, given):
    return PEER.step(state, given, START, ENTROPY)


def test_nothing_is_drawn_before_the_ledger_grants_it() -> None:
    state, effects = step(PEER.initial(), ASK)
    assert effects == (Spend("round-1", STUDY.mechanism.event()),)
    assert not state.has_answered("round-1")
    state, (release,) = step(state, Granted("round-1"))
    assert isinstance(release, Release)
    assert not state.has_answered("round-1"), "not before it is stored"
    state, effects = step(state, Answered("round-1", release.message))
    assert state.has_answered("round-1")


def test_a_request_that_comes_again_asks_for_nothing() -> None:
    state, _ = step(PEER.initial(), ASK)
    assert step(state, ASK) == (state, ())
    state, (release,) = step(state, Granted("round-1"))
    state, _ = step(state, Answered("round-1", release.message))
    assert step(state, ASK) == (state, ())


@pytest.mark.parametrize("answered", [False, True])
def test_a_grant_that_was_not_asked_for_is_our_own_error(answered: bool) -> None:
    state = PeerState(asked=("round-1",), answered=("round-1",)) if answered else PeerState()
    with pytest.raises(LocalProtocolError) as caught:
        step(state, Granted("round-1"))
    assert caught.value.code == "PROTO-001"


def test_a_peer_goes_on_after_its_last_answer() -> None:
    state = PeerState(asked=("round-1", "round-2"), answered=("round-1",))
    after, effects = step(state, Answered("round-2", Answer(study=STUDY.digest, round=2, report=b"")))
    assert (after.answered, effects) == (("round-1", "round-2"), (Finish(2),))


def test_a_refusal_ends_the_peer_unless_it_says_otherwise() -> None:
    error = BudgetError("BUDGET-002", "No.")
    assert step(PEER.initial(), Refused("round-1", error)) == (PEER.initial(), (Abort(error),))


def test_a_refused_question_is_open_again() -> None:
    for answered in ((), ("round-1",)):
        state = PeerState(asked=("round-1", "round-2"), answered=answered)
        after, _ = step(state, Refused("round-1", BudgetError("BUDGET-002", "No.")))
        assert after == PeerState(asked=("round-2",))
        assert step(after, ASK)[1] == (Spend("round-1", STUDY.mechanism.event()),)


def test_a_state_is_saved_and_read_with_its_moments() -> None:
    state = Counting(round=1, deadline=START + timedelta(microseconds=1), late=(("ann", Answer(study=STUDY.digest, round=1, report=b"x")),))
    assert load(dump(state), Counting) == state
    assert load(dump(state), Counting).deadline.utcoffset() == timedelta(0)
    for wrong in (1 << 62, -(1 << 62), 1.5, "2030-01-01"):
        with pytest.raises(IntegrityError) as caught:
            load(dumps({"deadline": wrong}), Counting)
        assert caught.value.code == "MSG-008"
    with pytest.raises(LocalProtocolError):
        Counting(deadline=datetime(2030, 1, 1))


def test_what_the_study_does_not_ask_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        step(PEER.initial(), Received(AGGREGATOR, Ask(study=STUDY.digest, round=3)))
    assert caught.value.code == "PROTO-002"


def test_peers_do_not_talk_to_each_other() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        step(PEER.initial(), Received("peer-1", ASK.message))
    assert caught.value.code == "PROTO-003"


def test_a_peer_need_not_go_on_after_an_answer() -> None:
    class Laconic(ToyPeer):
        released = Peer.released

    stored = Answered("round-1", Answer(study=STUDY.digest, round=1, report=b""))
    after, effects = Laconic(STUDY, 1).step(PeerState(asked=("round-1",)), stored, START, ENTROPY)
    assert (after.answered, effects) == (("round-1",), ())


def test_a_peer_with_nothing_to_do_does_nothing() -> None:
    for given in (Started(), Tick()):
        assert step(PEER.initial(), given) == (PEER.initial(), ())


def test_an_aggregator_has_no_ledger() -> None:
    aggregator = ToyAggregator(STUDY)
    error = BudgetError("BUDGET-002", "No.")
    for given in (Granted("q"), Refused("q", error), Answered("q", Answer(study=STUDY.digest, round=1, report=b""))):
        with pytest.raises(LocalProtocolError) as caught:
            aggregator.step(aggregator.initial(), given, START, ENTROPY)
        assert caught.value.code == "PROTO-001"


def test_an_aggregator_need_not_mind_the_time() -> None:
    class Timeless(ToyAggregator):
        ticked = Aggregator.ticked

    aggregator = Timeless(STUDY)
    assert aggregator.step(aggregator.initial(), Tick(), START, ENTROPY) == (aggregator.initial(), ())


@pytest.mark.parametrize("progress", [Emitted("t", 1, b""), Computed("t", (1,)), Broken("t", LocalProtocolError("JOINT-001", "No."))])
def test_a_peer_that_asks_for_no_computation_hears_of_none(progress: Progress) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        step(PEER.initial(), progress)
    assert caught.value.code == "PROTO-001"
    with pytest.raises(LocalProtocolError, match="nor computes"):
        ToyAggregator(STUDY).step(Counting(), progress, START, ENTROPY)
