"""Settling an input: what the ledger says reaches the machine in order, and nobody is blamed once it has moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.participant.ledger_file import LedgerFile
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    START,
    Abort,
    Account,
    Compute,
    Effects,
    Feed,
    Ledger,
    MemoryLedger,
    Outbound,
    PeerState,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    Started,
    Tick,
    settle,
)  # fmt: skip
from toy.checks import spent
from toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer

STUDY = Study()
ASK = Received(AGGREGATOR, Ask(study=STUDY.digest, round=1))
ANSWER = Answer(study=STUDY.digest, round=1, report=b"")
ENTROPY = SeededEntropy("settle")


def account(ledger: Ledger) -> Account:
    return Account(ledger, STUDY.digest, "rows", AGGREGATOR, "toy")


def run(peer: ToyPeer, given: Any = ASK, ledger: Ledger | None = None, state: PeerState | None = None) -> Any:
    return settle(peer, state or peer.initial(), given, START, ENTROPY, account(ledger or MemoryLedger()))


def error_of(act: Callable[[], object]) -> ShoalError:
    with pytest.raises(LocalProtocolError) as caught:
        act()
    assert caught.value.code == "PROTO-001"
    return caught.value


def asking(*effects: Any) -> ToyPeer:
    """A peer that asks for these when it starts."""

    class Asking(ToyPeer):
        def started(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
            return state, effects

    return Asking(STUDY, 1)


def states(ledger: MemoryLedger) -> dict[str, str]:
    return {key.question: entry.state.value for key, entry in ledger.entries.items()}


def test_an_answer_is_stored_when_the_input_is_settled() -> None:
    ledger = MemoryLedger()
    state, (outbound,) = run(ToyPeer(STUDY, 1), ledger=ledger)
    assert outbound == Outbound(AGGREGATOR, ledger.unsent(STUDY.digest.hex())["round-1"], "round-1")
    assert state.has_answered("round-1")


def test_a_peer_without_memory_gets_its_answer_back_from_the_ledger() -> None:
    ledger, peer = MemoryLedger(), ToyPeer(STUDY, 1)
    first = run(peer, ledger=ledger)
    assert run(peer, ledger=ledger) == first


def test_a_refusal_reaches_the_peer() -> None:
    _, (abort,) = run(ToyPeer(STUDY, 1), ledger=MemoryLedger(limit=0.1))
    assert isinstance(abort, Abort)
    assert abort.error.code == "BUDGET-002"


def test_what_was_refused_can_be_asked_again() -> None:
    peer = ToyPeer(STUDY, 1)
    state, _ = run(peer, ledger=MemoryLedger(limit=0.1))
    _, (outbound,) = run(peer, ledger=MemoryLedger(limit=9), state=state)
    assert outbound.question == "round-1"


def test_a_stored_answer_that_cannot_be_read_is_not_blamed_on_the_aggregator() -> None:
    ledger = MemoryLedger()
    account(ledger).reserve("round-1", STUDY.mechanism.event())
    account(ledger).store("round-1", b"rubbish")
    with pytest.raises(IntegrityError) as caught:
        run(ToyPeer(STUDY, 1), ledger=ledger)
    assert caught.value.code == "PROTO-004"


class LatePeer(ToyPeer):
    """Finds fault with a message when the ledger has moved already."""

    def __init__(self, hook: str) -> None:
        super().__init__(STUDY, 1)
        self.hook = hook
        self.draws = 0

    def blame(self, hook: str) -> None:
        if self.hook == hook:
            raise RemoteProtocolError("PROTO-003", "The model does not fit.")

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        self.draws += 1
        self.blame("answer")
        return super().answer(state, question, entropy)

    def released(self, state: PeerState, question: str, message: Message) -> tuple[PeerState, Effects]:
        self.blame("released")
        return super().released(state, question, message)

    def refused(self, state: PeerState, question: str, error: ShoalError) -> tuple[PeerState, Effects]:
        self.blame("refused")
        return super().refused(state, question, error)

    def ticked(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        self.blame("ticked")
        return state, ()


@pytest.mark.parametrize(
    ("hook", "given"),
    [("answer", ASK), ("released", ASK), ("refused", Refused("round-1", BudgetError("BUDGET-002", "No."))), ("ticked", Tick())],
)
def test_nobody_is_blamed_after_the_first_step_or_for_anything_but_a_message(hook: str, given: Any) -> None:
    error = error_of(lambda: run(LatePeer(hook), given))
    assert "The model does not fit." in error.what


def test_an_answer_is_drawn_once_however_often_a_peer_fails_afterwards() -> None:
    peer, ledger = LatePeer("released"), MemoryLedger()
    for _ in range(5):
        error_of(lambda: run(peer, ledger=ledger))
    assert peer.draws == 1
    assert states(ledger) == {"round-1": "stored"}


def test_released_is_called_when_the_answer_is_stored() -> None:
    seen = []

    class Watching(ToyPeer):
        def released(self, state: PeerState, question: str, message: Message) -> tuple[PeerState, Effects]:
            seen.append(states(ledger))
            return super().released(state, question, message)

    ledger = MemoryLedger()
    run(Watching(STUDY, 1), ledger=ledger)
    assert seen == [{"round-1": "stored"}]


def test_a_question_is_put_once_per_input() -> None:
    class Stubborn(ToyPeer):
        def refused(self, state: PeerState, question: str, error: ShoalError) -> tuple[PeerState, Effects]:
            return self.ask(state, question)

    assert "put twice" in error_of(lambda: run(Stubborn(STUDY, 1), ledger=MemoryLedger(limit=0.1))).what
    event = STUDY.mechanism.event()
    assert "put twice" in error_of(lambda: run(asking(Spend("round-1", event), Spend("round-1", event)), Started())).what


def test_an_abort_is_the_end_of_the_input() -> None:
    """The second question is not even put, and the letter does not leave."""
    event, ledger = STUDY.mechanism.event(), MemoryLedger(limit=0.1)
    peer = asking(Send(AGGREGATOR, ASK.message), Spend("round-1", event), Spend("round-2", event))
    _, work = run(peer, Started(), ledger)
    assert [type(item) for item in work] == [Abort]
    assert states(ledger) == {}


def test_only_a_peer_has_a_ledger_to_ask() -> None:
    for effect in (Spend("q", STUDY.mechanism.event()), Release("q", ANSWER), Compute("t", "select", 0, 3), Feed("t", 1, b"")):

        class Spender(ToyAggregator):
            def started(self, state: Counting, now: datetime, entropy: Entropy, effect: Any = effect) -> tuple[Counting, Effects]:
                return state, (effect,)

        aggregator = Spender(STUDY)
        error = error_of(lambda aggregator=aggregator: settle(aggregator, aggregator.initial(), Started(), START, ENTROPY, None))
        assert "no ledger" in error.what


def test_an_effect_that_nobody_knows_is_named() -> None:
    @dataclass(frozen=True)
    class Dream:
        what: int

    assert "asked for Dream, which this driver does not know" in error_of(lambda: run(asking(Dream(1)), Started())).what


def test_what_a_computer_is_to_do_is_handed_to_the_driver() -> None:
    for effect in (Compute("t", "select", 0, 3), Feed("t", 1, b"")):
        _, work = run(asking(effect), Started())
        assert work == (effect,)


def test_what_was_not_granted_is_not_released() -> None:
    ledger = MemoryLedger()
    assert "without having been granted" in error_of(lambda: run(asking(Release("round-1", ANSWER)), Started(), ledger)).what
    assert states(ledger) == {}


def test_a_peer_does_not_send_what_spends_and_an_aggregator_may_pass_it_on() -> None:
    assert "without a price" in error_of(lambda: run(asking(Send(AGGREGATOR, ANSWER)), Started())).what

    class Relay(ToyAggregator):
        def received(self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
            return state, (Send(EVERYONE, message),)

    relay = Relay(STUDY)
    _, (outbound,) = settle(relay, relay.initial(), Received("ann", ANSWER), START, ENTROPY, None)
    assert isinstance(outbound, Outbound)
    assert (outbound.to, outbound.question) == (EVERYONE, None)


class Foreign(Ask):
    type_name = "other.ask"


@pytest.mark.parametrize("message", [Ask(study=bytes(32), round=1), Foreign(study=STUDY.digest, round=1)])
def test_a_message_of_another_study_or_protocol_is_not_sent(message: Message) -> None:
    assert "not of this protocol and study" in error_of(lambda: run(asking(Send(AGGREGATOR, message)), Started())).what


def test_an_answer_for_another_study_is_neither_stored_nor_spent() -> None:
    class Astray(ToyPeer):
        def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
            return super().answer(state, question, entropy).replace(study=bytes(32))

    ledger = MemoryLedger()
    error_of(lambda: run(Astray(STUDY, 1), ledger=ledger))
    assert states(ledger) == {"round-1": "reserved"}
    assert spent(ledger) == 0


class Interrupted(ToyPeer):
    """Something happens to its ledger while it draws."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(Study(epsilon=0.25), 1)
        self.act = act

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        self.act()
        return super().answer(state, question, entropy)


def test_the_slower_of_two_processes_takes_the_answer_of_the_faster(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "l.db", ManualClock()) as mine, LedgerFile(tmp_path / "l.db", ManualClock()) as theirs:
        faster: list[Outbound] = []
        peer = Interrupted(lambda: faster.extend(run(ToyPeer(Study(epsilon=0.25), 1), ledger=theirs)[1]))
        state, work = run(peer, ledger=mine)
        assert list(work) == faster
        assert state.has_answered("round-1")


def test_a_question_that_is_voided_while_it_is_drawn_is_refused(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "l.db", ManualClock()) as ledger:
        state, (abort,) = run(Interrupted(lambda: ledger.void(STUDY.digest.hex(), "round-1")), ledger=ledger)
    assert abort.error.code == "BUDGET-005"
    assert state == PeerState()


def test_a_ledger_that_breaks_its_word_is_not_asked_for_ever() -> None:
    class Torn(MemoryLedger):
        def store(self, study: str, question: str, payload: bytes) -> None:
            raise LocalProtocolError("LEDGER-008", "No.")

    with pytest.raises(LocalProtocolError) as caught:
        run(ToyPeer(STUDY, 1), ledger=Torn())
    assert caught.value.code == "LEDGER-008"
