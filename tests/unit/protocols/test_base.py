"""Settling an input, and the reference loop."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import IntegrityError, LocalProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import encode
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    START,
    Abort,
    Account,
    Effects,
    MemoryLedger,
    Outbound,
    PeerState,
    Received,
    Release,
    Send,
    Spend,
    Started,
    WakeAt,
    recipients,
    run_local,
    settle,
)  # fmt: skip
from toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer, make

STUDY = Study()
ASK = Received(AGGREGATOR, Ask(study=STUDY.digest, round=1))
ENTROPY = SeededEntropy("base")


def account(ledger: MemoryLedger) -> Account:
    return Account(ledger, STUDY.digest, "rows", AGGREGATOR, "toy")


def test_an_answer_is_stored_when_the_input_is_settled() -> None:
    ledger, peer = MemoryLedger(), ToyPeer(STUDY, 1)
    state, (outbound,) = settle(peer, peer.initial(), ASK, START, ENTROPY, account(ledger))
    assert isinstance(outbound, Outbound)
    assert (outbound.to, outbound.question) == (AGGREGATOR, "round-1")
    assert ledger.entries[STUDY.digest.hex(), "round-1"].payload == outbound.payload
    assert state.has_answered("round-1")


def test_a_peer_without_memory_gets_its_answer_back_from_the_ledger() -> None:
    ledger, peer = MemoryLedger(), ToyPeer(STUDY, 1)
    first = settle(peer, peer.initial(), ASK, START, ENTROPY, account(ledger))
    again = settle(peer, peer.initial(), ASK, START, ENTROPY, account(ledger))
    assert again == first


def test_a_refusal_reaches_the_peer() -> None:
    peer = ToyPeer(STUDY, 1)
    _, (abort,) = settle(peer, peer.initial(), ASK, START, ENTROPY, account(MemoryLedger(limit=0.1)))
    assert isinstance(abort, Abort)
    assert abort.error.code == "BUDGET-002"


def test_a_stored_answer_that_cannot_be_read_is_not_blamed_on_the_aggregator() -> None:
    ledger, peer = MemoryLedger(), ToyPeer(STUDY, 1)
    settle(peer, peer.initial(), ASK, START, ENTROPY, account(ledger))
    ledger.entries[STUDY.digest.hex(), "round-1"].payload = b"rubbish"
    with pytest.raises(IntegrityError) as caught:
        settle(peer, peer.initial(), ASK, START, ENTROPY, account(ledger))
    assert caught.value.code == "PROTO-004"


@pytest.mark.parametrize("effect", [Spend("q", STUDY.mechanism.event()), Release("q", Answer(study=STUDY.digest, round=1, report=b""))])
def test_only_a_peer_has_a_ledger_to_ask(effect: Any) -> None:
    class Spender(ToyAggregator):
        def started(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
            return state, (effect,)

    aggregator = Spender(STUDY)
    with pytest.raises(LocalProtocolError) as caught:
        settle(aggregator, aggregator.initial(), Started(), START, ENTROPY, None)
    assert caught.value.code == "PROTO-001"


def test_a_peer_that_gives_up_is_noted() -> None:
    aggregator, peers = make(STUDY)
    outcome = run_local(aggregator, peers, SeededEntropy(1), ledgers={"peer-0": MemoryLedger(limit=0.1)})
    assert {name: error.code for name, error in outcome.aborted.items()} == {"peer-0": "BUDGET-002"}
    assert len(outcome.states[AGGREGATOR].counted) == 6


def test_recipients_are_the_other_side() -> None:
    peers = ["ann", "bob"]
    assert recipients(AGGREGATOR, EVERYONE, peers) == ["ann", "bob"]
    assert recipients(AGGREGATOR, "bob", peers) == ["bob"]
    assert recipients("ann", AGGREGATOR, peers) == [AGGREGATOR]
    for sender, to in (("ann", "bob"), ("ann", EVERYONE), (AGGREGATOR, AGGREGATOR), (AGGREGATOR, "eve")):
        with pytest.raises(LocalProtocolError) as caught:
            recipients(sender, to, peers)
        assert caught.value.code == "PROTO-001"


@pytest.mark.parametrize("name", [AGGREGATOR, EVERYONE])
def test_a_peer_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        run_local(ToyAggregator(STUDY), {name: ToyPeer(STUDY, 1)}, ENTROPY)


def test_a_run_gives_the_count_of_what_was_answered() -> None:
    outcome = run_local(*make(STUDY), SeededEntropy(1))
    counted = [answer.report[0] for _, answer in outcome.states[AGGREGATOR].counted]
    assert outcome.results[AGGREGATOR] == (sum(counted[:4]), sum(counted[4:]))
    assert {sent.at for sent in outcome.sent} == {START}


def test_time_passes_only_when_nobody_has_anything_to_do() -> None:
    aggregator, peers = make(Study(n_peers=5, patience=timedelta(seconds=7)))
    del peers["peer-4"]
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert len(outcome.states[AGGREGATOR].counted) == 8
    assert {sent.at - START for sent in outcome.sent} == {timedelta(0), timedelta(seconds=7)}


def test_a_message_that_breaks_the_rules_is_put_down_to_its_sender() -> None:
    class Liar(ToyPeer):
        def started(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
            return state, (Send(AGGREGATOR, Ask(study=self.study, round=1)), Send(AGGREGATOR, Ask(study=bytes(32), round=1)))

    aggregator, peers = make(STUDY)
    outcome = run_local(aggregator, {**peers, "peer-1": Liar(STUDY, 1)}, SeededEntropy(1))
    assert [(r.by, r.sender, r.error.code) for r in outcome.rejected] == [
        (AGGREGATOR, "peer-1", "PROTO-003"),
        (AGGREGATOR, "peer-1", "MSG-006"),
    ]
    assert len(outcome.states[AGGREGATOR].counted) == 8


def test_a_run_without_end_is_given_up() -> None:
    class Restless(ToyAggregator):
        def ticked(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
            return state, (WakeAt(START),)

    with pytest.raises(LocalProtocolError) as caught:
        run_local(Restless(STUDY), {}, ENTROPY, max_steps=500)
    assert caught.value.code == "SIM-001"
    assert "500" in str(caught.value)


def test_two_different_answers_of_one_peer_are_not_both_counted() -> None:
    class TwoFaced(ToyPeer):
        def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
            return Answer(study=self.study, round=1, report=b"\x01" + entropy.bytes(8))

    aggregator, peers = make(STUDY)
    outcome = run_local(aggregator, {**peers, "peer-0": TwoFaced(STUDY, 1)}, SeededEntropy(1))
    assert [(r.sender, r.error.code) for r in outcome.rejected] == [("peer-0", "PROTO-003")]
    assert encode(outcome.states[AGGREGATOR].counted[0][1])
