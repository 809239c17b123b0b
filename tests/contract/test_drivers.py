"""One suite for every driver, with the toy protocol and AnonML.

The drivers run in one process, over a good network, and over networks that fail in every way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, RemoteProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import Event
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    Effects,
    Host,
    Ledger,
    MemoryLedger,
    PeerState,
    ProtocolOutcome,
    Release,
    Send,
    SentMessage,
    run_local,
)  # fmt: skip
from shoal.protocols.ledger import MemoryPayload
from shoal.simulation import network
from shoal.simulation.network import Faults
from tests.support import anonml as anonml_cases
from tests.support.machines import HEAVY, LOSSY, Run, over
from tests.support.toy.checks import answers_sent, check, check_complete, spent
from tests.support.toy.garbage import survives_garbage
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer, make

AMNESIA = replace(HEAVY, amnesia=0.8, crash=0.1)


DRIVERS = {
    "local": run_local,
    "good network": over(Faults()),
    "lossy network": over(LOSSY),
    "crashing network": over(HEAVY),
    "absent peers": over(
        replace(HEAVY, absences={"peer-1": (1, 25_000), "peer-2": (4_000, 9_000)})
    ),
    "forgetful peers": over(AMNESIA),
}
PRICE = grains_up(Study().mechanism.event().epsilon)


@pytest.fixture(params=DRIVERS)
def run(request: pytest.FixtureRequest) -> Run:
    return DRIVERS[request.param]


def play(
    run: Run, study: Study, seed: int, **changes: Any
) -> tuple[ProtocolOutcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(study)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(
        changes.get("aggregator", aggregator), peers, SeededEntropy(seed), ledgers=ledgers
    ), ledgers


@pytest.mark.parametrize("seed", range(12))
def test_toy_run_keeps_every_invariant(run: Run, seed: int) -> None:
    study = Study()
    outcome, ledgers = play(run, study, seed)
    check_complete(study, outcome, ledgers)


@pytest.mark.parametrize("kind", ["bits", "blocks", "paper"])
def test_anonml_run_keeps_every_invariant(run: Run, kind: str) -> None:
    script = anonml_cases.build_named_script(kind)
    for seed in range(2):
        aggregator, peers = anonml_cases.make(script, 8, minimum=0)
        ledgers = {name: MemoryLedger() for name in peers}
        outcome = run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers)
        anonml_cases.check_complete(script, outcome, ledgers, peers)


def test_perfect_network_delivers_every_answer_in_time() -> None:
    for name in ("local", "good network"):
        outcome, _ = play(DRIVERS[name], Study(), 1)
        assert (len(outcome.states[AGGREGATOR].counted), outcome.states[AGGREGATOR].late) == (8, ())


def test_bad_networks_cause_late_answers_retries_and_crashes() -> None:
    """Check that the faults of the suite occur.

    Over a few seeds answers are late, bytes are sent again, and machines crash. Otherwise the suite
    would prove little.
    """
    late = retries = 0
    for seed in range(10):
        outcome, _ = play(DRIVERS["absent peers"], Study(), seed)
        late += len(outcome.states[AGGREGATOR].late)
        retries += len(outcome.sent) - len(
            {(sent.sender, sent.to, sent.payload) for sent in outcome.sent}
        )
    assert late > 5
    assert retries > 100


def test_run_with_heavy_faults_and_many_peers_ends() -> None:
    study = Study(n_peers=40)
    for faults in (HEAVY, AMNESIA):
        outcome, ledgers = play(over(faults), study, 1)
        check_complete(study, outcome, ledgers)


def test_run_with_same_seed_is_equal(run: Run) -> None:
    first, _ = play(run, Study(), 5)
    again, _ = play(run, Study(), 5)
    other, _ = play(run, Study(), 6)
    assert (first.sent, first.results, first.states) == (again.sent, again.results, again.states)
    assert first.sent != other.sent


def test_study_ends_without_absent_peer() -> None:
    study = Study()
    faults = replace(HEAVY, absences={"peer-0": (0, None), "peer-3": (6_000, None)})
    for seed in range(10):
        outcome, ledgers = play(over(faults), study, seed)
        check(study, outcome, ledgers)
        assert "peer-0" not in outcome.results
        assert spent(ledgers["peer-0"]) == 0


def test_peer_sends_nothing_if_ledger_refuses(run: Run) -> None:
    study = Study()
    ledgers = {
        f"peer-{i}": MemoryLedger(limit=0.7 if i == 2 else 9.0) for i in range(study.n_peers)
    }
    outcome, _ = play(run, study, 3, ledgers=ledgers)
    assert len([key for key in answers_sent(study, outcome) if key[0] == "peer-2"]) == 1
    assert outcome.aborted["peer-2"].code == "BUDGET-002"
    assert spent(ledgers["peer-2"]) <= 7 * 10**11


@pytest.mark.parametrize("driver", ["local", "crashing network"])
def test_run_with_ledger_file_keeps_every_invariant(driver: str, tmp_path: Path) -> None:
    study = Study(epsilon=0.25)
    ledgers: dict[str, Ledger] = {
        f"peer-{i}": LedgerFile(tmp_path / f"{i}.db", ManualClock()) for i in range(study.n_peers)
    }
    aggregator, peers = make(study)
    outcome = DRIVERS[driver](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = answers_sent(study, outcome)
    assert len(left) == 8
    assert all(len(payloads) == 1 for payloads in left.values())
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        assert {
            (entry.state.value, ledger.read_payload(entry.study, entry.release.question))
            for entry in ledger.entries()
        } == {
            ("sent", payload)
            for (sender, _), payloads in left.items()
            if sender == name
            for payload in payloads
        }
        ledger.close()


class AskedAgain(MemoryLedger):
    """A ledger that counts requests for answers that were drawn before."""

    times = 0

    def reserve(
        self, study: str, question: str, event: Event, **place: str
    ) -> MemoryPayload | None:
        verdict = super().reserve(study, question, event, **place)
        self.times += verdict is not None
        return verdict


def test_peer_restored_from_ledger_draws_once_and_delivers_all() -> None:
    study = Study()
    ledgers = [{f"peer-{i}": AskedAgain() for i in range(4)} for _ in range(12)]
    for seed, books in enumerate(ledgers):
        outcome, _ = play(over(AMNESIA), study, seed, ledgers=books)
        check_complete(study, outcome, books)
    assert sum(ledger.times for books in ledgers for ledger in books.values()) > 12


class CuriousAggregator(ToyAggregator):
    """An aggregator that asks for a round that is not in the study."""

    def on_start(
        self, state: Counting, now: datetime, entropy: Entropy
    ) -> tuple[Counting, Effects]:
        state, effects = super().on_start(state, now, entropy)
        return state, (Send(EVERYONE, Ask(study=self.study, round=99)), *effects)


def check_refusal(run: Run, seed: int, peer: type[ToyPeer]) -> None:
    """Check that a question outside the study is not answered and costs nothing.

    The rest of the study must continue.
    """
    study = Study()
    peers = {f"peer-{i}": peer(study, 1) for i in range(study.n_peers)}
    outcome, ledgers = play(run, study, seed, aggregator=CuriousAggregator(study), peers=peers)
    assert {number for _, number in answers_sent(study, outcome)} == {1, 2}
    assert {rejected.error.code for rejected in outcome.rejected} == {"PROTO-002"}
    assert {rejected.sender for rejected in outcome.rejected} == {AGGREGATOR}
    assert {spent(ledger) for ledger in ledgers.values()} == {2 * PRICE}


def test_peer_does_not_answer_unpriced_question(run: Run) -> None:
    check_refusal(run, 2, ToyPeer)


# Mutants: each breaks one invariant, and the suite must notice.


class ForgetfulLedger(MemoryLedger):
    """A mutant that lets a question be drawn again after its answer was stored."""

    def reserve(
        self, study: str, question: str, event: Event, **place: str
    ) -> MemoryPayload | None:
        self._ledger_state.entries.pop((study, question), None)
        self._payloads.pop((study, question), None)
        return super().reserve(study, question, event, **place)


class RedrawingPeer(ToyPeer):
    """A mutant that draws a new answer to every request, without its ledger."""

    def on_message(
        self, state: PeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        assert isinstance(message, Ask)
        question = f"round-{message.round}"
        if state.has_answered(question):
            return state, (Release(question, self.answer(state, question, entropy)),)
        return super().on_message(state, message, now, entropy)


class UnpricedPeer(ToyPeer):
    """A mutant that answers any question, at the price of another one."""

    def price(self, question: str) -> Event:
        return self.params.mechanism.event()

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        answer = super().answer(state, "round-1", entropy)
        return answer.model_copy(update={"round": int(question.removeprefix("round-"))})


class ChattyPeer(ToyPeer):
    """A mutant that sends its answer as if it were free."""

    def on_message(
        self, state: PeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (Send(AGGREGATOR, self.answer(state, "round-1", entropy)),)


class UnreservedPeer(ToyPeer):
    """A mutant that draws without a reservation in its ledger."""

    def on_message(
        self, state: PeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (Release("round-1", self.answer(state, "round-1", entropy)),)


def is_caught(run: Run, seeds: range = range(12), **changes: Any) -> bool:
    """Return whether the suite notices within a few seeds."""
    for seed in seeds:
        try:
            fresh = {key: make_it() for key, make_it in changes.items()}
            outcome, ledgers = play(run, Study(), seed, **fresh)
            check_complete(Study(), outcome, ledgers)
        except (AssertionError, ShoalError):
            return True
    return False


def all_peers(kind: type[ToyPeer]) -> Callable[[], Mapping[str, ToyPeer]]:
    return lambda: {f"peer-{i}": kind(Study(), 1) for i in range(4)}


def test_suite_accepts_honest_machines() -> None:
    assert not any(is_caught(run) for run in DRIVERS.values())


def test_suite_catches_forgetful_ledger() -> None:
    caught = 0
    for seed in range(12):
        outcome, ledgers = play(
            over(AMNESIA), Study(), seed, ledgers={f"peer-{i}": ForgetfulLedger() for i in range(4)}
        )
        try:
            check(Study(), outcome, ledgers)
        except AssertionError:
            caught += 1
    assert caught > 0


def test_suite_catches_redrawing_peer() -> None:
    assert is_caught(DRIVERS["lossy network"], peers=all_peers(RedrawingPeer))


def test_suite_catches_driver_without_submission_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "_index_submission", lambda *_: None)
    assert is_caught(DRIVERS["lossy network"])


@pytest.mark.parametrize("mutant", [ChattyPeer, UnreservedPeer])
def test_answer_without_ledger_entry_is_not_sent(run: Run, mutant: type[ToyPeer]) -> None:
    outcome, ledgers = play(run, Study(), 0, peers=all_peers(mutant)())
    assert {name: error.code for name, error in outcome.aborted.items()} == dict.fromkeys(
        ledgers, "PROTO-001"
    )
    assert answers_sent(Study(), outcome) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


def test_suite_catches_peer_that_answers_unpriced_question(run: Run) -> None:
    with pytest.raises(AssertionError):
        check_refusal(run, 2, UnpricedPeer)


def test_suite_catches_driver_that_acknowledges_before_saving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = network._NetworkSimulator._receive

    def acknowledge_first(self: Any, sent: Any, number: int) -> None:
        if self.nodes[sent.to].is_up:
            self._deliver_or_lose(lambda: self._receive_acknowledgement(sent.sender, number))
        honest(self, sent, number)

    monkeypatch.setattr(network._NetworkSimulator, "_receive", acknowledge_first)
    assert is_caught(DRIVERS["crashing network"])


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered between storing and sending an answer."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if self.entries[study, question].state is ReleaseState.STORED:
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def check_refusal_at_sending(run: Run, seed: int) -> None:
    """Check that an answer that the ledger refuses at sending stays and costs nothing.

    Its peer must abort, and the rest of the study must continue.
    """
    study = Study()
    ledgers = {
        f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(study.n_peers)
    }
    outcome, _ = play(run, study, seed, ledgers=ledgers)
    assert {sender for sender, _ in answers_sent(study, outcome)} == {"peer-0", "peer-1", "peer-3"}
    assert outcome.aborted.keys() == {"peer-2"}
    assert spent(ledgers["peer-2"]) == 0
    assert AGGREGATOR in outcome.results


@pytest.mark.parametrize("seed", range(4))
def test_peer_sends_nothing_if_ledger_refuses_at_sending(run: Run, seed: int) -> None:
    check_refusal_at_sending(run, seed)


def test_suite_catches_driver_that_ignores_refusal_at_sending(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Host,
        "begin_send",
        lambda self, message, now, outcome: SentMessage(
            now, self.name, message.to, message.payload, message.question
        ),
    )
    monkeypatch.setattr(Host, "mark_acknowledged", lambda *_: None)
    with pytest.raises(AssertionError):
        check_refusal_at_sending(run, 0)
    assert is_caught(run)


class LateBlamer(ToyPeer):
    """A mutant that rejects a message after its answer to it is stored."""

    def on_answer_stored(
        self, state: PeerState, question: str, message: Message
    ) -> tuple[PeerState, Effects]:
        raise RemoteProtocolError("PROTO-003", "The context does not fit.")


def test_suite_catches_peer_that_rejects_message_after_storing(
    run: Run,
) -> None:
    outcome, ledgers = play(run, Study(), 1, peers=all_peers(LateBlamer)())
    assert is_caught(run, peers=all_peers(LateBlamer))
    assert not outcome.rejected, "the aggregator did nothing wrong"
    assert {name: error.code for name, error in outcome.aborted.items()} == dict.fromkeys(
        ledgers, "PROTO-001"
    )
    assert {len(ledger.entries) for ledger in ledgers.values()} == {1}
    assert {entry.state for ledger in ledgers.values() for entry in ledger.entries.values()} <= {
        ReleaseState.STORED,
        ReleaseState.SENDING,
        ReleaseState.SENT,
    }


def test_suite_catches_driver_that_does_not_refill_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "_list_unsent", lambda _: ())
    assert is_caught(DRIVERS["forgetful peers"])


def test_toy_machines_reject_garbage_in_every_field() -> None:
    study = Study()
    aggregator, peers = make(study)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    samples = {
        type(message): message
        for message in (
            decode(sent.payload, ToyPeer.messages, study.digest) for sent in outcome.sent
        )
    }
    opened, _ = aggregator.on_start(aggregator.initial_state(), network.START, SeededEntropy(1))
    states = (aggregator.initial_state(), opened, outcome.states[AGGREGATOR])
    assert survives_garbage(aggregator, states, samples.values(), "peer-0") > 15
    assert (
        survives_garbage(peers["peer-0"], (PeerState(), outcome.states["peer-0"]), samples.values())
        > 15
    )


def test_garbage_check_catches_trusting_machine() -> None:
    class Trusting(ToyAggregator):
        def on_message(
            self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            assert isinstance(message, Answer)
            return state.replace(round=(1, 2)[message.report[0]]), ()

    aggregator = Trusting(Study())
    with pytest.raises(IndexError):
        survives_garbage(
            aggregator, [Counting(round=1)], [Answer(study=Study().digest, round=1, report=b"x")]
        )
