"""`run_input`: the ledger's replies reach the machine in order, and blame is limited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import (
    BudgetError,
    IntegrityError,
    LocalProtocolError,
    RemoteProtocolError,
    ShoalError,
)
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
    OutgoingMessage,
    PeerState,
    Received,
    Refused,
    Release,
    Send,
    Spend,
    Started,
    Tick,
    run_input,
)  # fmt: skip
from tests.support.toy.checks import spent
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer

STUDY = Study()
ASK = Received(AGGREGATOR, Ask(study=STUDY.digest, round=1))
ANSWER = Answer(study=STUDY.digest, round=1, report=b"")
ENTROPY = SeededEntropy("settle")


def account(ledger: Ledger) -> Account:
    return Account(ledger, STUDY.digest, "rows", AGGREGATOR, "toy")


def run(
    peer: ToyPeer, given: Any = ASK, ledger: Ledger | None = None, state: PeerState | None = None
) -> Any:
    return run_input(
        peer,
        state or peer.initial_state(),
        given,
        START,
        ENTROPY,
        account(ledger or MemoryLedger()),
    )


def error_of(act: Callable[[], object]) -> ShoalError:
    with pytest.raises(LocalProtocolError) as caught:
        act()
    assert caught.value.code == "PROTO-001"
    return caught.value


def asking(*effects: Any) -> ToyPeer:
    """A peer that asks for these when it starts."""

    class Asking(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            return state, effects

    return Asking(STUDY, 1)


def states(ledger: MemoryLedger) -> dict[str, str]:
    return {key.question: entry.state.value for key, entry in ledger.entries.items()}


def test_run_input_stores_answer_before_it_returns() -> None:
    ledger = MemoryLedger()
    state, (outbound,) = run(ToyPeer(STUDY, 1), ledger=ledger)
    assert outbound == OutgoingMessage(
        AGGREGATOR, ledger.list_unsent(STUDY.digest.hex())["round-1"], "round-1"
    )
    assert state.has_answered("round-1")


def test_run_input_returns_stored_answer_to_peer_without_state() -> None:
    ledger, peer = MemoryLedger(), ToyPeer(STUDY, 1)
    first = run(peer, ledger=ledger)
    assert run(peer, ledger=ledger) == first


def test_run_input_gives_refusal_to_peer() -> None:
    _, (abort,) = run(ToyPeer(STUDY, 1), ledger=MemoryLedger(limit=0.1))
    assert isinstance(abort, Abort)
    assert abort.error.code == "BUDGET-002"


def test_run_input_asks_refused_question_again() -> None:
    peer = ToyPeer(STUDY, 1)
    state, _ = run(peer, ledger=MemoryLedger(limit=0.1))
    _, (outbound,) = run(peer, ledger=MemoryLedger(limit=9), state=state)
    assert outbound.question == "round-1"


def test_run_input_raises_integrity_error_for_unreadable_answer() -> None:
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

    def on_answer_stored(
        self, state: PeerState, question: str, message: Message
    ) -> tuple[PeerState, Effects]:
        self.blame("on_answer_stored")
        return super().on_answer_stored(state, question, message)

    def on_refusal(
        self, state: PeerState, question: str, error: ShoalError
    ) -> tuple[PeerState, Effects]:
        self.blame("on_refusal")
        return super().on_refusal(state, question, error)

    def on_tick(
        self, state: PeerState, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        self.blame("on_tick")
        return state, ()


@pytest.mark.parametrize(
    ("hook", "given"),
    [
        ("answer", ASK),
        ("on_answer_stored", ASK),
        ("on_refusal", Refused("round-1", BudgetError("BUDGET-002", "No."))),
        ("on_tick", Tick()),
    ],
)
def test_run_input_allows_blame_only_for_received_message(hook: str, given: Any) -> None:
    error = error_of(lambda: run(LatePeer(hook), given))
    assert "The model does not fit." in error.what


def test_run_input_draws_answer_once_despite_later_failures() -> None:
    peer, ledger = LatePeer("on_answer_stored"), MemoryLedger()
    for _ in range(5):
        error_of(lambda: run(peer, ledger=ledger))
    assert peer.draws == 1
    assert states(ledger) == {"round-1": "stored"}


def test_run_input_calls_on_answer_stored_after_storing() -> None:
    seen = []

    class Watching(ToyPeer):
        def on_answer_stored(
            self, state: PeerState, question: str, message: Message
        ) -> tuple[PeerState, Effects]:
            seen.append(states(ledger))
            return super().on_answer_stored(state, question, message)

    ledger = MemoryLedger()
    run(Watching(STUDY, 1), ledger=ledger)
    assert seen == [{"round-1": "stored"}]


def test_run_input_rejects_question_asked_twice() -> None:
    class Stubborn(ToyPeer):
        def on_refusal(
            self, state: PeerState, question: str, error: ShoalError
        ) -> tuple[PeerState, Effects]:
            return self.ask(state, question)

    assert (
        "asked twice"
        in error_of(lambda: run(Stubborn(STUDY, 1), ledger=MemoryLedger(limit=0.1))).what
    )
    event = STUDY.mechanism.event()
    assert (
        "asked twice"
        in error_of(
            lambda: run(asking(Spend("round-1", event), Spend("round-1", event)), Started())
        ).what
    )


def test_run_input_returns_only_abort() -> None:
    """The second question is not even put, and the letter does not leave."""
    event, ledger = STUDY.mechanism.event(), MemoryLedger(limit=0.1)
    peer = asking(Send(AGGREGATOR, ASK.message), Spend("round-1", event), Spend("round-2", event))
    _, work = run(peer, Started(), ledger)
    assert [type(item) for item in work] == [Abort]
    assert states(ledger) == {}


def test_run_input_rejects_ledger_effects_of_aggregator() -> None:
    for effect in (
        Spend("q", STUDY.mechanism.event()),
        Release("q", ANSWER),
        Compute("t", "select", 0, 3),
        Feed("t", 1, b""),
    ):

        class Spender(ToyAggregator):
            def on_start(
                self, state: Counting, now: datetime, entropy: Entropy, effect: Any = effect
            ) -> tuple[Counting, Effects]:
                return state, (effect,)

        aggregator = Spender(STUDY)
        error = error_of(
            lambda aggregator=aggregator: run_input(
                aggregator, aggregator.initial_state(), Started(), START, ENTROPY, None
            )
        )
        assert "no ledger" in error.what


def test_run_input_names_unknown_effect() -> None:
    @dataclass(frozen=True)
    class Dream:
        what: int

    assert (
        "asked for Dream, which this driver does not know"
        in error_of(lambda: run(asking(Dream(1)), Started())).what
    )


def test_run_input_passes_computation_effects_to_driver() -> None:
    for effect in (Compute("t", "select", 0, 3), Feed("t", 1, b"")):
        _, work = run(asking(effect), Started())
        assert work == (effect,)


def test_run_input_rejects_release_without_grant() -> None:
    ledger = MemoryLedger()
    assert (
        "before it was granted"
        in error_of(lambda: run(asking(Release("round-1", ANSWER)), Started(), ledger)).what
    )
    assert states(ledger) == {}


def test_run_input_rejects_unpriced_message_of_peer_only() -> None:
    assert (
        "without a price" in error_of(lambda: run(asking(Send(AGGREGATOR, ANSWER)), Started())).what
    )

    class Relay(ToyAggregator):
        def on_message(
            self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            return state, (Send(EVERYONE, message),)

    relay = Relay(STUDY)
    _, (outbound,) = run_input(
        relay, relay.initial_state(), Received("ann", ANSWER), START, ENTROPY, None
    )
    assert isinstance(outbound, OutgoingMessage)
    assert (outbound.to, outbound.question) == (EVERYONE, None)


class Foreign(Ask):
    type_name = "other.ask"


@pytest.mark.parametrize(
    "message", [Ask(study=bytes(32), round=1), Foreign(study=STUDY.digest, round=1)]
)
def test_run_input_rejects_message_of_other_study_or_protocol(message: Message) -> None:
    assert (
        "not of this protocol and study"
        in error_of(lambda: run(asking(Send(AGGREGATOR, message)), Started())).what
    )


def test_run_input_neither_stores_nor_spends_for_other_study() -> None:
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


def test_run_input_uses_answer_stored_by_faster_process(tmp_path: Path) -> None:
    with (
        LedgerFile(tmp_path / "l.db", ManualClock()) as mine,
        LedgerFile(tmp_path / "l.db", ManualClock()) as theirs,
    ):
        faster: list[OutgoingMessage] = []
        peer = Interrupted(
            lambda: faster.extend(run(ToyPeer(Study(epsilon=0.25), 1), ledger=theirs)[1])
        )
        state, work = run(peer, ledger=mine)
        assert list(work) == faster
        assert state.has_answered("round-1")


def test_run_input_refuses_question_voided_during_draw(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "l.db", ManualClock()) as ledger:
        state, (abort,) = run(
            Interrupted(lambda: ledger.void(STUDY.digest.hex(), "round-1")), ledger=ledger
        )
    assert abort.error.code == "BUDGET-005"
    assert state == PeerState()


def test_run_input_raises_when_ledger_contradicts_itself() -> None:
    class Torn(MemoryLedger):
        def store(self, study: str, question: str, payload: bytes) -> None:
            raise LocalProtocolError("LEDGER-008", "No.")

    with pytest.raises(LocalProtocolError) as caught:
        run(ToyPeer(STUDY, 1), ledger=Torn())
    assert caught.value.code == "LEDGER-008"
