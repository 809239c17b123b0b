"""SDQ on every driver: in one process, over a good network, and over networks that fail in every way. What leaves is priced and leaves
once; enough databases make a sum, fewer end the study with a reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from machine_runs import Chatty, Unpriced, spent
from networks import HEAVY, LOSSY, Run, over
from sdq_cases import FREE, QUERIES, STUDIES, N, Saved, SavedAggregator, answers_sent, check, check_complete, make
from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Broken,
    Effects,
    Host,
    Input,
    Ledger,
    MemoryLedger,
    Outcome,
    Progress,
    Release,
    Send,
    run_local,
)
from shoal.protocols.sdq.aggregator import Mined
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.messages import Counts, JointKey, Scores, Settled
from shoal.protocols.sdq.params import Ints, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import Round
from shoal.protocols.sums.messages import SumAgreed, SumKeys, SumMasked, SumShares, SumUnmask
from shoal.sim.network import Faults

ROUGH = replace(HEAVY, crash=0.02)


DRIVERS = {
    "local": run_local,
    "lossy network": over(LOSSY),
    "crashing network": over(ROUGH),
    "absent peers": over(Faults(max_delay=50, absences={"peer-1": (200, 260_000), "peer-4": (20_000, 30_000)})),
    "forgetful peers": over(Faults(loss=0.1, max_delay=900, crash=0.005, amnesia=1.0)),
}
GOOD = ("local", "lossy network")


def play(run: Run, name: str, seed: int, **changes: Any) -> tuple[Outcome, dict[str, SDQPeer], dict[str, MemoryLedger]]:
    options = {"free": FREE, "queries": QUERIES, "patience": timedelta(seconds=90), **changes.get("options", {})}
    aggregator, peers = make(name, **options)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), peers, ledgers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", STUDIES)
def test_every_promise_is_kept(driver: str, name: str) -> None:
    outcome, peers, ledgers = play(DRIVERS[driver], name, 1)
    check(peers, outcome, ledgers)
    if driver in GOOD:
        check_complete(peers, outcome, ledgers)
        (paid,) = {spent(ledger) for ledger in ledgers.values()}
        whole = grains_up(STUDIES[name].epsilon) + 2 * grains_up(FREE.epsilon_release)
        assert paid == whole if name != "plus" else paid <= whole, "a course of plus with fewer choices costs less"
    elif "forgetful" not in driver:
        assert not outcome.rejected, "honest machines reject nothing of each other"
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
    if driver == "crashing network" and name in ("paper", "local", "sums", "bayes"):
        assert AGGREGATOR in outcome.results, "a machine that comes back with its state is not missed"


@pytest.mark.parametrize("name", STUDIES)
def test_every_machine_may_go_down_before_every_step(name: str) -> None:
    """Nothing lives outside of what is saved. Sealed boxes are never the same twice, but what is learned is."""
    found = []
    for kinds in ({}, {"peer": Saved, "aggregator": SavedAggregator}):
        outcome, peers, ledgers = play(run_local, name, 4, options=kinds)
        found.append(check_complete(peers, outcome, ledgers))
    first, again = found
    assert first.course == again.course and first.n_answering == again.n_answering
    assert all(np.array_equal(one, other) for one, other in zip(first.answers, again.answers, strict=True))
    assert [str(one) for one in first.counted[0]] == [str(one) for one in again.counted[0]]


def test_a_database_that_is_away_for_a_while_is_in_the_sums_before_and_after() -> None:
    faults = Faults(max_delay=50, absences={"peer-1": (400, 8_000)})
    outcome, peers, ledgers = play(over(faults), "paper", 2, options={"patience": timedelta(seconds=5)})
    check(peers, outcome, ledgers)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined)
    assert min(mined.n_answering) == 4 and max(mined.n_answering) == 5
    assert len(ledgers["peer-1"].entries) < len(ledgers["peer-0"].entries)


# Drop-outs at every phase.


class Leaving(SDQPeer):
    """Vanishes when it is about to send something of a kind."""

    leaves_at: type[Message]

    def step(self, state: Following, given: Input, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        state, effects = super().step(state, given, now, entropy)
        if any(isinstance(effect, Send | Release) and isinstance(effect.message, self.leaves_at) for effect in effects):
            return state, (Abort(LocalProtocolError("PROTO-001", "The power went out.")),)
        return state, effects


def without(
    name: str, leaving: dict[int, type[Message]], run: Run = run_local
) -> tuple[Outcome, dict[str, SDQPeer], dict[str, MemoryLedger]]:
    _, peers = make(name, free=FREE)
    gone = {}
    for i, kind in leaving.items():
        peer = peers[f"peer-{i}"]
        gone[f"peer-{i}"] = Leaving(peer.script, peer.member, peer._table.reveal(), peer.free)
        gone[f"peer-{i}"].leaves_at = kind
    outcome, peers, ledgers = play(run, name, 1, peers=gone)
    check(peers, outcome, ledgers)
    for i in leaving:
        del outcome.aborted[f"peer-{i}"]
    return outcome, peers, ledgers


SUMS = [SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask]


@pytest.mark.parametrize(
    "name, kinds, who", [("paper", SUMS, (1, 3)), ("bayes", SUMS, (0, 4)), ("local", [Counts], (1, 3)), ("plus", [Scores], (3, 4))]
)
def test_as_many_may_drop_out_as_the_study_says_and_no_more(name: str, kinds: list[type[Message]], who: tuple[int, int]) -> None:
    for kind in kinds:
        outcome, _, ledgers = without(name, {who[0]: kind})
        mined = outcome.results[AGGREGATOR]
        assert isinstance(mined, Mined) and not outcome.aborted
        had_left = kind in (SumAgreed, SumUnmask)
        assert mined.n_answering == (5 if had_left else 4, *[4] * (len(mined.n_answering) - 1))
        assert spent(ledgers[f"peer-{who[0]}"]) == (min(spent(ledger) for ledger in ledgers.values()) if had_left else 0)

        outcome, _, ledgers = without(name, {who[0]: kind, who[1]: kinds[0]})
        assert AGGREGATOR not in outcome.results
        assert outcome.aborted[AGGREGATOR].code in ("SUM-103", "SDQ-004")
        assert {len(ledger.entries) for ledger in ledgers.values()} <= {0, 1}, "nothing more is asked"


@pytest.mark.parametrize("kind", [JointKey, SumKeys, SumMasked, SumUnmask])
def test_nobody_may_drop_out_where_two_are_selected(kind: type[Message]) -> None:
    outcome, _, ledgers = without("selected", {2: kind})
    assert outcome.aborted[AGGREGATOR].code in ("SUM-103", "SDQ-004")
    assert "of 5 are needed" in str(outcome.aborted[AGGREGATOR]) or "5 are needed" in str(outcome.aborted[AGGREGATOR])
    begun = sum(spent(ledger) > 0 for ledger in ledgers.values())
    assert begun == {JointKey: 0, SumKeys: 0, SumMasked: 4, SumUnmask: 5}[kind]


@pytest.mark.parametrize("who", range(N))
def test_whoever_is_missing_others_choose(who: int) -> None:
    outcome, _, ledgers = without("plus", {who: JointKey})
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined) and set(mined.n_answering) == {4} and not outcome.aborted
    assert [spent(ledger) > 0 for ledger in ledgers.values()] == [i != who for i in range(N)]


@pytest.mark.parametrize("kind", [Scores, Settled])
def test_a_member_of_the_committee_that_vanishes_once_it_is_seated_ends_the_study(kind: type[Message]) -> None:
    outcome, _, ledgers = without("plus", {1: kind})
    error = outcome.aborted[AGGREGATOR]
    assert error.code == "SDQ-004" and "Round 0 is given up" in error.what and "3 are needed" in error.what
    assert sum(spent(ledger) > 0 for ledger in ledgers.values()) == {Scores: 4, Settled: 5}[kind]


def test_too_few_for_a_committee_end_the_study_before_anything_is_spent() -> None:
    outcome, _, ledgers = without("plus", dict.fromkeys((0, 2, 3), JointKey))
    assert "2 databases sent keys" in outcome.aborted[AGGREGATOR].what
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


# Everyone is told.


def check_told(outcome: Outcome, names: set[str]) -> None:
    """Raise AssertionError unless these databases have ended with the reason for which the study was given up, and know no secrets."""
    reason = outcome.aborted[AGGREGATOR].what
    assert set(outcome.aborted) == {AGGREGATOR, *names}
    for name in names:
        error, state = outcome.aborted[name], outcome.states[name]
        assert error.code == "SDQ-004" and reason in error.what
        assert state.is_over and state.box == b"" and state.role is None
        assert state.sitting is None or state.sitting.own == state.sitting.mask == b""


@pytest.mark.parametrize("driver", ["local", "lossy network"])
@pytest.mark.parametrize("name, kind", [("paper", SumMasked), ("selected", SumKeys), ("plus", Scores), ("local", Counts)])
def test_a_study_that_is_given_up_is_given_up_by_all(driver: str, name: str, kind: type[Message]) -> None:
    outcome, _, _ = without(name, {1: kind, 2: kind}, DRIVERS[driver])
    check_told(outcome, {"peer-0", "peer-3", "peer-4"})


def test_a_database_that_comes_back_in_time_hears_that_the_study_was_given_up() -> None:
    """One that comes back later hears nothing, and answers nothing."""
    for back, told in ((130_000, {f"peer-{i}" for i in range(N)}), (400_000, {"peer-1", "peer-2"})):
        absences = dict.fromkeys(["peer-0", "peer-3", "peer-4"], (0, back))
        outcome, peers, ledgers = play(over(Faults(max_delay=50, absences=absences)), "paper", 3)
        check(peers, outcome, ledgers)
        check_told(outcome, told)


class Faint(SDQPeer):
    """Its joint computations break off."""

    party: int | None = None

    def computing(self, state: Following, given: Progress, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        broken = Broken(given.task, LocalProtocolError("JOINT-001", "It died."), self.party)
        return super().computing(state, broken, now, entropy)


@pytest.mark.parametrize("name", ["plus", "selected"])
@pytest.mark.parametrize("party, named", [(None, "broke off."), (2, "by what peer-2 sent")])
def test_a_computation_that_broke_ends_the_study_at_once(name: str, party: int | None, named: str) -> None:
    _, peers = make(name, free=FREE)
    honest = peers["peer-1"]
    faint = Faint(honest.script, honest.member, honest._table.reveal(), honest.free)
    faint.party = party
    outcome, peers, ledgers = play(run_local, name, 1, peers={"peer-1": faint}, options={"patience": timedelta(days=1)})
    check(peers, outcome, ledgers)
    error = outcome.aborted[AGGREGATOR]
    assert error.code == "SDQ-004" and "Round 0 is given up: the joint computation of peer-1" in error.what and named in error.what
    check_told(outcome, set(peers))
    assert max(sent.at for sent in outcome.sent) == START, "nobody has waited for anything"


# Ledgers.


@pytest.mark.parametrize("name", ["paper", "local", "plus"])
def test_a_ledger_that_refuses_stops_its_database_at_its_limit_and_the_others_go_on(name: str) -> None:
    first = "choice/0" if name == "plus" else "sizes/0"
    price = make(name)[1]["peer-4"].price(first).epsilon
    ledgers = {f"peer-{i}": MemoryLedger(limit=2 * 1.5 * price if i == 4 else None) for i in range(N)}
    outcome, peers, _ = play(run_local, name, 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-4"), BudgetError)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined) and not outcome.aborted
    assert mined.n_answering[:2] == (5, 4) and set(mined.n_answering[1:]) == {4}
    assert spent(ledgers["peer-4"]) == grains_up(price)


class LoweredLedger(MemoryLedger):
    """A limit is lowered after the second answer was stored, and before it is sent."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "answers/0" and self.entries[study, question].state is State.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


@pytest.mark.parametrize("driver", ["local", "lossy network"])
def test_a_ledger_that_refuses_at_sending_keeps_the_answer_back(driver: str) -> None:
    ledgers = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(N)}
    outcome, peers, _ = play(DRIVERS[driver], "paper", 1, ledgers=ledgers)
    left = [question for sender, question in answers_sent(outcome, peers["peer-2"].study) if sender == "peer-2"]
    assert left == ["sizes/0"]
    assert isinstance(outcome.aborted["peer-2"], BudgetError)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined) and mined.n_answering[:3] == (5, 4, 4)


def test_the_participants_own_ledger_file_serves_as_well(tmp_path: Path) -> None:
    aggregator, peers = make("plus", changes={"epsilon": 1.0})
    ledgers: dict[str, Ledger] = {name: LedgerFile(tmp_path / f"{name}.db", ManualClock()) for name in peers}
    outcome = DRIVERS["lossy network"](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = answers_sent(outcome, aggregator.study)
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        stored = {(entry.state.value, ledger.payload(entry.study, entry.release.question)) for entry in ledger.entries()}
        assert stored == {("sent", payload) for (sender, _), payloads in left.items() if sender == name for payload in payloads}
        ledger.close()


# Mutants: each breaks one promise, and the suite must notice.


class ChattyPeer(Chatty, SDQPeer): ...


class UnpricedPeer(Unpriced, SDQPeer): ...


@pytest.mark.parametrize("mutant", [ChattyPeer, UnpricedPeer])
@pytest.mark.parametrize("name", ["paper", "local", "plus"])
def test_an_answer_past_the_ledger_does_not_leave(name: str, mutant: type[SDQPeer]) -> None:
    outcome, peers, ledgers = play(run_local, name, 0, options={"peer": mutant})
    assert {error.code for who, error in outcome.aborted.items() if who != AGGREGATOR} == {"PROTO-001"}
    assert answers_sent(outcome, peers["peer-0"].study) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


class Repeating(SDQPeer):
    """Begins every round anew when it is asked again, and forgets what it has answered."""

    def received(self, state: Following, message: Message, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        return super().received(state.replace(asked=(), answered=()), message, now, entropy)


class Halved(SDQPeer):
    """Tells its ledger half of the price."""

    def ask(self, state: Following, question: str) -> tuple[Following, Effects]:
        state, effects = super().ask(state, question)
        return state, tuple(replace(one, event=replace(one.event, epsilon=one.event.epsilon / 2)) for one in effects)  # type: ignore[type-var]


class Longer(SDQPeer):
    """Answers with one number too many."""

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        return np.zeros(asked.size + 1, np.int64)


def is_caught(name: str, kind: type[SDQPeer], run: Run = run_local) -> bool:
    try:
        outcome, peers, ledgers = play(run, name, 1, options={"peer": kind})
        check_complete(peers, outcome, ledgers)
    except (AssertionError, ShoalError):
        return True
    return False


@pytest.mark.parametrize("mutant", [Halved, Longer])
@pytest.mark.parametrize("name", ["paper", "local", "plus"])
def test_mutants_are_caught(name: str, mutant: type[SDQPeer]) -> None:
    assert is_caught(name, mutant)


def test_a_driver_without_an_index_counts_twice_and_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_submission", lambda *_: None)
    assert is_caught("local", SDQPeer, DRIVERS["lossy network"])
    assert is_caught("paper", SDQPeer, DRIVERS["lossy network"])


def test_a_peer_that_forgets_what_it_answered_is_saved_by_its_ledger() -> None:
    outcome, peers, ledgers = play(DRIVERS["lossy network"], "paper", 1, options={"peer": Repeating})
    check(peers, outcome, ledgers)
