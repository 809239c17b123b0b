"""One suite for every driver: the toy protocol and AnonML in one process, over a good network, and over networks that fail in every way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import anonml_cases
from networks import HEAVY, LOSSY, Run, over
from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, RemoteProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import Event
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    Effects,
    Host,
    Ledger,
    MemoryLedger,
    Outcome,
    PeerState,
    Release,
    Send,
    Sent,
    run_local,
)  # fmt: skip
from shoal.protocols.ledger import MemoryStored
from shoal.sim import network
from shoal.sim.network import Faults
from toy.checks import answers_sent, check, check_complete, spent
from toy.garbage import survives_garbage
from toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer, make

AMNESIA = replace(HEAVY, amnesia=0.8, crash=0.1)


DRIVERS = {
    "local": run_local,
    "good network": over(Faults()),
    "lossy network": over(LOSSY),
    "crashing network": over(HEAVY),
    "absent peers": over(replace(HEAVY, absences={"peer-1": (1, 25_000), "peer-2": (4_000, 9_000)})),
    "forgetful peers": over(AMNESIA),
}
PRICE = grains_up(Study().mechanism.event().epsilon)


@pytest.fixture(params=DRIVERS)
def run(request: pytest.FixtureRequest) -> Run:
    return DRIVERS[request.param]


def play(run: Run, study: Study, seed: int, **changes: Any) -> tuple[Outcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(study)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(changes.get("aggregator", aggregator), peers, SeededEntropy(seed), ledgers=ledgers), ledgers


@pytest.mark.parametrize("seed", range(12))
def test_every_promise_is_kept(run: Run, seed: int) -> None:
    study = Study()
    outcome, ledgers = play(run, study, seed)
    check_complete(study, outcome, ledgers)


@pytest.mark.parametrize("kind", ["bits", "blocks", "paper"])
def test_every_promise_is_kept_by_anonml_too(run: Run, kind: str) -> None:
    script = anonml_cases.script_of(kind)
    for seed in range(2):
        aggregator, peers = anonml_cases.make(script, 8, minimum=0)
        ledgers = {name: MemoryLedger() for name in peers}
        outcome = run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers)
        anonml_cases.check_complete(script, outcome, ledgers, peers)


def test_a_perfect_network_loses_no_answer_and_has_none_late() -> None:
    for name in ("local", "good network"):
        outcome, _ = play(DRIVERS[name], Study(), 1)
        assert (len(outcome.states[AGGREGATOR].counted), outcome.states[AGGREGATOR].late) == (8, ())


def test_bad_networks_really_are_bad() -> None:
    """The suite would prove little if nothing went wrong in it: over a few seeds answers are late, bytes are sent again, machines fall."""
    late = retries = 0
    for seed in range(10):
        outcome, _ = play(DRIVERS["absent peers"], Study(), seed)
        late += len(outcome.states[AGGREGATOR].late)
        retries += len(outcome.sent) - len({(sent.sender, sent.to, sent.payload) for sent in outcome.sent})
    assert late > 5
    assert retries > 100


def test_heavy_faults_come_to_an_end_with_many_peers() -> None:
    study = Study(n_peers=40)
    for faults in (HEAVY, AMNESIA):
        outcome, ledgers = play(over(faults), study, 1)
        check_complete(study, outcome, ledgers)


def test_the_same_seed_gives_the_same_run(run: Run) -> None:
    first, _ = play(run, Study(), 5)
    again, _ = play(run, Study(), 5)
    other, _ = play(run, Study(), 6)
    assert (first.sent, first.results, first.states) == (again.sent, again.results, again.states)
    assert first.sent != other.sent


def test_a_peer_that_is_gone_for_good_is_not_waited_for_for_ever() -> None:
    study = Study()
    faults = replace(HEAVY, absences={"peer-0": (0, None), "peer-3": (6_000, None)})
    for seed in range(10):
        outcome, ledgers = play(over(faults), study, seed)
        check(study, outcome, ledgers)
        assert "peer-0" not in outcome.results
        assert spent(ledgers["peer-0"]) == 0


def test_a_ledger_that_refuses_keeps_the_peer_silent(run: Run) -> None:
    study = Study()
    ledgers = {f"peer-{i}": MemoryLedger(limit=0.7 if i == 2 else 9.0) for i in range(study.n_peers)}
    outcome, _ = play(run, study, 3, ledgers=ledgers)
    assert len([key for key in answers_sent(study, outcome) if key[0] == "peer-2"]) == 1
    assert outcome.aborted["peer-2"].code == "BUDGET-002"
    assert spent(ledgers["peer-2"]) <= 7 * 10**11


@pytest.mark.parametrize("driver", ["local", "crashing network"])
def test_the_participants_own_ledger_file_serves_as_well(driver: str, tmp_path: Path) -> None:
    study = Study(epsilon=0.25)
    ledgers: dict[str, Ledger] = {f"peer-{i}": LedgerFile(tmp_path / f"{i}.db", ManualClock()) for i in range(study.n_peers)}
    aggregator, peers = make(study)
    outcome = DRIVERS[driver](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = answers_sent(study, outcome)
    assert len(left) == 8
    assert all(len(payloads) == 1 for payloads in left.values())
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        assert {(entry.state.value, ledger.payload(entry.study, entry.release.question)) for entry in ledger.entries()} == {
            ("sent", payload) for (sender, _), payloads in left.items() if sender == name for payload in payloads
        }
        ledger.close()


class AskedAgain(MemoryLedger):
    """Counts how often it is asked for what was drawn before."""

    times = 0

    def reserve(self, study: str, question: str, event: Event, **place: str) -> MemoryStored | None:
        verdict = super().reserve(study, question, event, **place)
        self.times += verdict is not None
        return verdict


def test_a_peer_that_comes_back_with_its_ledger_alone_draws_nothing_twice_and_delivers_everything() -> None:
    study = Study()
    ledgers = [{f"peer-{i}": AskedAgain() for i in range(4)} for _ in range(12)]
    for seed, books in enumerate(ledgers):
        outcome, _ = play(over(AMNESIA), study, seed, ledgers=books)
        check_complete(study, outcome, books)
    assert sum(ledger.times for books in ledgers for ledger in books.values()) > 12


class CuriousAggregator(ToyAggregator):
    """Asks for a round that is not in the study."""

    def started(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        state, effects = super().started(state, now, entropy)
        return state, (Send(EVERYONE, Ask(study=self.study, round=99)), *effects)


def check_refusal(run: Run, seed: int, peer: type[ToyPeer]) -> None:
    """A question that the study does not contain is not answered and costs nothing; the rest of the study goes on."""
    study = Study()
    peers = {f"peer-{i}": peer(study, 1) for i in range(study.n_peers)}
    outcome, ledgers = play(run, study, seed, aggregator=CuriousAggregator(study), peers=peers)
    assert {number for _, number in answers_sent(study, outcome)} == {1, 2}
    assert {rejected.error.code for rejected in outcome.rejected} == {"PROTO-002"}
    assert {rejected.sender for rejected in outcome.rejected} == {AGGREGATOR}
    assert {spent(ledger) for ledger in ledgers.values()} == {2 * PRICE}


def test_what_cannot_be_priced_is_not_answered(run: Run) -> None:
    check_refusal(run, 2, ToyPeer)


# Mutants: each breaks one promise, and the suite must notice.


class ForgetfulLedger(MemoryLedger):
    """Lets a question be drawn again after its answer was stored."""

    def reserve(self, study: str, question: str, event: Event, **place: str) -> MemoryStored | None:
        self._books.entries.pop((study, question), None)
        self._payloads.pop((study, question), None)
        return super().reserve(study, question, event, **place)


class RedrawingPeer(ToyPeer):
    """Answers every request anew, past its ledger."""

    def received(self, state: PeerState, message: Message, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        assert isinstance(message, Ask)
        question = f"round-{message.round}"
        if state.has_answered(question):
            return state, (Release(question, self.answer(state, question, entropy)),)
        return super().received(state, message, now, entropy)


class UnpricedPeer(ToyPeer):
    """Answers whatever it is asked, at the price of something else."""

    def price(self, question: str) -> Event:
        return self.params.mechanism.event()

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        answer = super().answer(state, "round-1", entropy)
        return answer.model_copy(update={"round": int(question.removeprefix("round-"))})


class ChattyPeer(ToyPeer):
    """Sends its answer as if it were free."""

    def received(self, state: PeerState, message: Message, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (Send(AGGREGATOR, self.answer(state, "round-1", entropy)),)


class UnreservedPeer(ToyPeer):
    """Draws without asking its ledger."""

    def received(self, state: PeerState, message: Message, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (Release("round-1", self.answer(state, "round-1", entropy)),)


def is_caught(run: Run, seeds: range = range(12), **changes: Any) -> bool:
    """Whether the suite notices within a few seeds."""
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


def test_the_checks_pass_on_honest_machines() -> None:
    assert not any(is_caught(run) for run in DRIVERS.values())


def test_a_ledger_that_forgets_is_caught() -> None:
    caught = 0
    for seed in range(12):
        outcome, ledgers = play(over(AMNESIA), Study(), seed, ledgers={f"peer-{i}": ForgetfulLedger() for i in range(4)})
        try:
            check(Study(), outcome, ledgers)
        except AssertionError:
            caught += 1
    assert caught > 0


def test_a_peer_that_redraws_is_caught() -> None:
    assert is_caught(DRIVERS["lossy network"], peers=all_peers(RedrawingPeer))


def test_a_driver_without_an_index_counts_twice_and_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_submission", lambda *_: None)
    assert is_caught(DRIVERS["lossy network"])


@pytest.mark.parametrize("mutant", [ChattyPeer, UnreservedPeer])
def test_an_answer_past_the_ledger_does_not_leave(run: Run, mutant: type[ToyPeer]) -> None:
    outcome, ledgers = play(run, Study(), 0, peers=all_peers(mutant)())
    assert {name: error.code for name, error in outcome.aborted.items()} == dict.fromkeys(ledgers, "PROTO-001")
    assert answers_sent(Study(), outcome) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


def test_a_peer_that_answers_what_it_cannot_price_is_caught(run: Run) -> None:
    with pytest.raises(AssertionError):
        check_refusal(run, 2, UnpricedPeer)


def test_a_driver_that_acknowledges_before_it_saves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = network._World._arrive

    def hasty(self: Any, sent: Any, number: int) -> None:
        if self.nodes[sent.to].is_up:
            self._carry(lambda: self._acknowledged(sent.sender, number))
        honest(self, sent, number)

    monkeypatch.setattr(network._World, "_arrive", hasty)
    assert is_caught(DRIVERS["crashing network"])


class LoweredLedger(MemoryLedger):
    """A limit is lowered after an answer was stored, and before it is sent."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if self.entries[study, question].state is State.STORED:
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def check_refusal_at_sending(run: Run, seed: int) -> None:
    """An answer that its ledger does not let go stays, costs nothing, and its peer gives up; the rest of the study goes on."""
    study = Study()
    ledgers = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(study.n_peers)}
    outcome, _ = play(run, study, seed, ledgers=ledgers)
    assert {sender for sender, _ in answers_sent(study, outcome)} == {"peer-0", "peer-1", "peer-3"}
    assert outcome.aborted.keys() == {"peer-2"}
    assert spent(ledgers["peer-2"]) == 0
    assert AGGREGATOR in outcome.results


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_that_refuses_at_sending_keeps_the_peer_silent(run: Run, seed: int) -> None:
    check_refusal_at_sending(run, seed)


def test_a_driver_that_ignores_a_refusal_at_sending_is_caught(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "send", lambda self, letter, now, outcome: Sent(now, self.name, letter.to, letter.payload, letter.question))
    monkeypatch.setattr(Host, "acknowledged", lambda *_: None)
    with pytest.raises(AssertionError):
        check_refusal_at_sending(run, 0)
    assert is_caught(run)


class LateBlamer(ToyPeer):
    """Finds fault with a message after its answer to it is stored."""

    def released(self, state: PeerState, question: str, message: Message) -> tuple[PeerState, Effects]:
        raise RemoteProtocolError("PROTO-003", "The context does not fit.")


def test_a_peer_that_blames_after_its_answer_is_stored_is_caught_and_has_drawn_once(run: Run) -> None:
    outcome, ledgers = play(run, Study(), 1, peers=all_peers(LateBlamer)())
    assert is_caught(run, peers=all_peers(LateBlamer))
    assert not outcome.rejected, "the aggregator did nothing wrong"
    assert {name: error.code for name, error in outcome.aborted.items()} == dict.fromkeys(ledgers, "PROTO-001")
    assert {len(ledger.entries) for ledger in ledgers.values()} == {1}
    assert {entry.state for ledger in ledgers.values() for entry in ledger.entries.values()} <= {State.STORED, State.SENDING, State.SENT}


def test_a_driver_that_does_not_refill_the_outbox_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_unsent", lambda _: ())
    assert is_caught(DRIVERS["forgetful peers"])


def test_no_garbage_in_any_field_does_more_than_to_be_rejected() -> None:
    study = Study()
    aggregator, peers = make(study)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    samples = {type(message): message for message in (decode(sent.payload, ToyPeer.messages, study.digest) for sent in outcome.sent)}
    opened, _ = aggregator.started(aggregator.initial(), network.START, SeededEntropy(1))
    states = (aggregator.initial(), opened, outcome.states[AGGREGATOR])
    assert survives_garbage(aggregator, states, samples.values(), "peer-0") > 15
    assert survives_garbage(peers["peer-0"], (PeerState(), outcome.states["peer-0"]), samples.values()) > 15


def test_a_machine_that_chokes_on_garbage_is_caught() -> None:
    class Trusting(ToyAggregator):
        def received(self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
            assert isinstance(message, Answer)
            return state.replace(round=(1, 2)[message.report[0]]), ()

    aggregator = Trusting(Study())
    with pytest.raises(IndexError):
        survives_garbage(aggregator, [Counting(round=1)], [Answer(study=Study().digest, round=1, report=b"x")])
