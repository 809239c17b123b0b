"""The reference loop."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    Effects,
    MemoryLedger,
    PeerState,
    Send,
    WakeAt,
    run_local,
)  # fmt: skip
from tests.support.toy.checks import spent
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer, make

STUDY = Study()
ENTROPY = SeededEntropy("base")


def test_run_local_records_aborted_peer() -> None:
    aggregator, peers = make(STUDY)
    outcome = run_local(
        aggregator, peers, SeededEntropy(1), ledgers={"peer-0": MemoryLedger(limit=0.1)}
    )
    assert {name: error.code for name, error in outcome.aborted.items()} == {"peer-0": "BUDGET-002"}
    assert len(outcome.states[AGGREGATOR].counted) == 6


def test_run_local_gives_no_input_to_aborted_peer() -> None:
    """The first question is too dear; the second would not be."""

    class Dear(ToyPeer):
        def price(self, question: str) -> Any:
            return (Study(epsilon=5.0) if question == "round-1" else STUDY).mechanism.event()

    outcome = run_local(
        ToyAggregator(STUDY),
        {"ann": Dear(STUDY, 1)},
        ENTROPY,
        ledgers={"ann": MemoryLedger(limit=1.0)},
    )
    assert "ann" in outcome.aborted
    assert [sent for sent in outcome.sent if sent.sender == "ann"] == []


def test_run_local_returns_count_of_answers() -> None:
    outcome = run_local(*make(STUDY), SeededEntropy(1))
    counted = [answer.report[0] for _, answer in outcome.states[AGGREGATOR].counted]
    assert outcome.results[AGGREGATOR] == (sum(counted[:4]), sum(counted[4:]))
    assert {sent.at for sent in outcome.sent} == {START}


def test_run_local_answer_is_independent_of_other_peers() -> None:
    aggregator, peers = make(STUDY)
    first = run_local(aggregator, peers, SeededEntropy(1))
    again = run_local(aggregator, dict(reversed(peers.items())), SeededEntropy(1))
    assert {sent.payload for sent in first.sent} == {sent.payload for sent in again.sent}


def test_run_local_advances_time_only_when_inbox_is_empty() -> None:
    aggregator, peers = make(Study(n_peers=5, phase_timeout=timedelta(seconds=7)))
    del peers["peer-4"]
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert len(outcome.states[AGGREGATOR].counted) == 8
    assert {sent.at - START for sent in outcome.sent} == {timedelta(0), timedelta(seconds=7)}


def test_run_local_records_rejected_message_with_sender() -> None:
    class Liar(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            return state, (Send(AGGREGATOR, Ask(study=self.study, round=1)),)

    aggregator, peers = make(STUDY)
    outcome = run_local(aggregator, {**peers, "peer-1": Liar(STUDY, 1)}, SeededEntropy(1))
    assert [(r.by, r.sender, r.error.code) for r in outcome.rejected] == [
        (AGGREGATOR, "peer-1", "PROTO-003")
    ]
    assert len(outcome.states[AGGREGATOR].counted) == 8


def test_run_local_raises_when_run_does_not_end() -> None:
    class Restless(ToyAggregator):
        def on_tick(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            return state, (WakeAt(START),)

    with pytest.raises(LocalProtocolError) as caught:
        run_local(Restless(STUDY), {}, ENTROPY, max_steps=500)
    assert caught.value.code == "SIM-001"
    assert "500" in str(caught.value)


def test_run_local_max_steps_counts_inputs() -> None:
    """Started for five machines, eight requests, eight answers, two ticks."""
    assert run_local(*make(STUDY), SeededEntropy(1), max_steps=23).results
    with pytest.raises(LocalProtocolError):
        run_local(*make(STUDY), SeededEntropy(1), max_steps=22)


def test_run_local_counts_one_of_two_different_answers() -> None:
    class TwoFaced(ToyPeer):
        def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
            return Answer(study=self.study, round=1, report=b"\x01" + entropy.bytes(8))

    aggregator, peers = make(STUDY)
    outcome = run_local(aggregator, {**peers, "peer-0": TwoFaced(STUDY, 1)}, SeededEntropy(1))
    assert [(r.sender, r.error.code) for r in outcome.rejected] == [("peer-0", "PROTO-003")]
    assert len(outcome.states[AGGREGATOR].counted) == 7


class Lowered(MemoryLedger):
    """A limit is lowered between storing and sending, for one question."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "round-1":
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def test_run_local_gives_refused_when_ledger_refuses_sending() -> None:
    class Patient(ToyPeer):
        def on_refusal(
            self, state: PeerState, question: str, error: ShoalError
        ) -> tuple[PeerState, Effects]:
            return state, ()

    aggregator, peers = make(STUDY)
    ledger = Lowered()
    outcome = run_local(
        aggregator, {**peers, "peer-0": Patient(STUDY, 1)}, ENTROPY, ledgers={"peer-0": ledger}
    )
    assert [sent.question for sent in outcome.sent if sent.sender == "peer-0"] == ["round-2"]
    assert outcome.states["peer-0"] == PeerState(asked=("round-2",), answered=("round-2",))
    assert spent(ledger) == 5 * 10**11
    outcome = run_local(*make(STUDY), ENTROPY, ledgers={"peer-0": Lowered()})
    assert outcome.aborted["peer-0"].code == "BUDGET-002"


def test_run_local_aborts_only_peer_with_failing_ledger() -> None:
    class Damaged(MemoryLedger):
        def mark_sending(self, study: str, question: str) -> bytes:
            raise IntegrityError("LEDGER-006", "The disk is failing.")

    outcome = run_local(*make(STUDY), ENTROPY, ledgers={"peer-0": Damaged()})
    assert {name: error.code for name, error in outcome.aborted.items()} == {"peer-0": "LEDGER-006"}
    assert len(outcome.states[AGGREGATOR].counted) == 6


def test_run_local_sends_stored_answer_of_earlier_run() -> None:
    ledger = MemoryLedger()
    account = Account(ledger, STUDY.digest, "peer-0", AGGREGATOR, "simulation")
    aggregator, peers = make(STUDY)
    first = run_local(aggregator, peers, SeededEntropy(1))
    [payload] = [
        sent.payload for sent in first.sent if (sent.sender, sent.question) == ("peer-0", "round-1")
    ]
    account.reserve("round-1", STUDY.mechanism.event())
    account.store("round-1", payload)
    outcome = run_local(aggregator, peers, SeededEntropy(2), ledgers={"peer-0": ledger})
    assert {
        sent.payload
        for sent in outcome.sent
        if (sent.sender, sent.question) == ("peer-0", "round-1")
    } == {payload}
    assert {entry.state.value for entry in ledger.entries.values()} == {"sent"}
    assert len(outcome.states[AGGREGATOR].counted) == 8
