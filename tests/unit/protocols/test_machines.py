"""A peer asks its ledger before it draws, and answers a question once; an aggregator has no ledger."""

from __future__ import annotations

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Aggregator,
    Answered,
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
from toy.protocol import Answer, Ask, Study, ToyAggregator, ToyPeer

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
    state, effects = step(state, Granted("round-1"))
    assert isinstance(effects[0], Release)
    assert state.has_answered("round-1")


def test_a_request_that_comes_again_asks_for_nothing() -> None:
    state, _ = step(PEER.initial(), ASK)
    assert step(state, ASK) == (state, ())
    state, _ = step(state, Granted("round-1"))
    assert step(state, ASK) == (state, ())


@pytest.mark.parametrize("answered", [False, True])
def test_a_grant_that_was_not_asked_for_is_our_own_error(answered: bool) -> None:
    state = PeerState(frozenset({"round-1"}), frozenset({"round-1"})) if answered else PeerState()
    with pytest.raises(LocalProtocolError) as caught:
        step(state, Granted("round-1"))
    assert caught.value.code == "PROTO-001"


def test_a_stored_answer_and_a_fresh_one_lead_to_the_same_state() -> None:
    asked, _ = step(PEER.initial(), ASK)
    fresh, (release,) = step(asked, Granted("round-1"))
    stored, effects = step(asked, Answered("round-1", release.message))
    assert (stored, effects) == (fresh, ())


def test_a_peer_goes_on_after_its_last_answer() -> None:
    state = PeerState(frozenset({"round-1", "round-2"}), frozenset({"round-1"}))
    _, (release, finish) = step(state, Granted("round-2"))
    assert (release.question, finish) == ("round-2", Finish(2))


def test_a_refusal_ends_the_peer_unless_it_says_otherwise() -> None:
    error = BudgetError("BUDGET-002", "No.")
    assert step(PEER.initial(), Refused("round-1", error)) == (PEER.initial(), (Abort(error),))


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

    state = PeerState(frozenset({"round-1"}))
    after, effects = Laconic(STUDY, 1).step(state, Granted("round-1"), START, ENTROPY)
    assert after.has_answered("round-1")
    assert [type(effect) for effect in effects] == [Release]


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
