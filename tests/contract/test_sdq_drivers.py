"""SDQ on every driver: in one process, and over good and failing networks.

Every message that leaves is priced and leaves once. Enough databases make a sum; fewer end the
study with a reason.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Broken,
    ComputationInput,
    Effects,
    Host,
    Input,
    Ledger,
    MemoryLedger,
    ProtocolOutcome,
    Release,
    Send,
    run_local,
)
from shoal.protocols.sdq.aggregator import SDQResult
from shoal.protocols.sdq.messages import ChoiceResult, Counts, JointKey, SDQScores
from shoal.protocols.sdq.params import CellTable, Ints
from shoal.protocols.sdq.peer import SDQPeer, SDQPeerState
from shoal.protocols.sdq.script import SDQRound
from shoal.protocols.secagg.messages import SumAgreed, SumKeys, SumMasked, SumShares, SumUnmask
from shoal.simulation.network import Faults
from tests.support.machines import HEAVY, LOSSY, Chatty, Run, Unpriced, over, spent
from tests.support.sdq import (
    FREE,
    QUERIES,
    STUDIES,
    N,
    Saved,
    SavedAggregator,
    answers_sent,
    check,
    check_complete,
    make,
)

ROUGH = replace(HEAVY, crash=0.02)


DRIVERS = {
    "local": run_local,
    "lossy network": over(LOSSY),
    "crashing network": over(ROUGH),
    "absent peers": over(
        Faults(max_delay=50, absences={"peer-1": (200, 260_000), "peer-4": (20_000, 30_000)})
    ),
    "forgetful peers": over(Faults(loss=0.1, max_delay=900, crash=0.005, amnesia=1.0)),
}
GOOD = ("local", "lossy network")


def play(
    run: Run, name: str, seed: int, **changes: Any
) -> tuple[ProtocolOutcome, dict[str, SDQPeer], dict[str, MemoryLedger]]:
    options = {
        "free": FREE,
        "queries": QUERIES,
        "phase_timeout": timedelta(seconds=90),
        **changes.get("options", {}),
    }
    aggregator, peers = make(name, **options)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), peers, ledgers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", STUDIES)
def test_sdq_run_keeps_every_invariant(driver: str, name: str) -> None:
    outcome, peers, ledgers = play(DRIVERS[driver], name, 1)
    check(peers, outcome, ledgers)
    if driver in GOOD:
        check_complete(peers, outcome, ledgers)
        (paid,) = {spent(ledger) for ledger in ledgers.values()}
        whole = grains_up(STUDIES[name].epsilon) + 2 * grains_up(FREE.epsilon_release)
        assert paid == whole if name != "plus" else paid <= whole, (
            "a run of plus with fewer choices costs less"
        )
    elif "forgetful" not in driver:
        assert not outcome.rejected, "honest machines reject nothing of each other"
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
    if driver == "crashing network" and name in ("paper", "local", "sums", "bayes"):
        assert AGGREGATOR in outcome.results, (
            "a machine that comes back with its state is not missed"
        )


@pytest.mark.parametrize("name", STUDIES)
def test_sdq_run_survives_crash_before_every_step(name: str) -> None:
    """Check that the saved state is complete.

    Sealed boxes are never the same twice, but the result is.
    """
    found = []
    for kinds in ({}, {"peer": Saved, "aggregator": SavedAggregator}):
        outcome, peers, ledgers = play(run_local, name, 4, options=kinds)
        found.append(check_complete(peers, outcome, ledgers))
    first, again = found
    assert first.course == again.course and first.n_answering == again.n_answering
    assert all(
        np.array_equal(one, other) for one, other in zip(first.answers, again.answers, strict=True)
    )
    assert [str(one) for one in first.query_tables[0]] == [
        str(one) for one in again.query_tables[0]
    ]


def test_sdq_database_absent_for_a_while_is_in_sums_before_and_after() -> None:
    faults = Faults(max_delay=50, absences={"peer-1": (400, 8_000)})
    outcome, peers, ledgers = play(
        over(faults), "paper", 2, options={"phase_timeout": timedelta(seconds=5)}
    )
    check(peers, outcome, ledgers)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, SDQResult)
    assert min(mined.n_answering) == 4 and max(mined.n_answering) == 5
    assert len(ledgers["peer-1"].entries) < len(ledgers["peer-0"].entries)


# Dropouts in every phase.


class Leaving(SDQPeer):
    """A database that vanishes when it is about to send a message of a kind."""

    leaves_at: type[Message]

    def step(
        self, state: SDQPeerState, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        state, effects = super().step(state, given, now, entropy)
        if any(
            isinstance(effect, Send | Release) and isinstance(effect.message, self.leaves_at)
            for effect in effects
        ):
            return state, (Abort(LocalProtocolError("PROTO-001", "The power went out.")),)
        return state, effects


def run_without(
    name: str, leaving: dict[int, type[Message]], run: Run = run_local
) -> tuple[ProtocolOutcome, dict[str, SDQPeer], dict[str, MemoryLedger]]:
    _, peers = make(name, free=FREE)
    gone = {}
    for i, kind in leaving.items():
        peer = peers[f"peer-{i}"]
        gone[f"peer-{i}"] = Leaving(
            peer.script, peer.member, peer._table.reveal(), peer.query_rules
        )
        gone[f"peer-{i}"].leaves_at = kind
    outcome, peers, ledgers = play(run, name, 1, peers=gone)
    check(peers, outcome, ledgers)
    for i in leaving:
        del outcome.aborted[f"peer-{i}"]
    return outcome, peers, ledgers


SUMS = [SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask]


@pytest.mark.parametrize(
    "name, kinds, who",
    [
        ("paper", SUMS, (1, 3)),
        ("bayes", SUMS, (0, 4)),
        ("local", [Counts], (1, 3)),
        ("plus", [SDQScores], (3, 4)),
    ],
)
def test_sdq_tolerates_declared_dropouts_and_no_more(
    name: str, kinds: list[type[Message]], who: tuple[int, int]
) -> None:
    for kind in kinds:
        outcome, _, ledgers = run_without(name, {who[0]: kind})
        mined = outcome.results[AGGREGATOR]
        assert isinstance(mined, SDQResult) and not outcome.aborted
        had_left = kind in (SumAgreed, SumUnmask)
        assert mined.n_answering == (5 if had_left else 4, *[4] * (len(mined.n_answering) - 1))
        assert spent(ledgers[f"peer-{who[0]}"]) == (
            min(spent(ledger) for ledger in ledgers.values()) if had_left else 0
        )

        outcome, _, ledgers = run_without(name, {who[0]: kind, who[1]: kinds[0]})
        assert AGGREGATOR not in outcome.results
        assert outcome.aborted[AGGREGATOR].code in ("SUM-103", "SDQ-004")
        assert {len(ledger.entries) for ledger in ledgers.values()} <= {0, 1}, (
            "nothing more is asked"
        )


@pytest.mark.parametrize("kind", [JointKey, SumKeys, SumMasked, SumUnmask])
def test_sdq_with_two_selected_tolerates_no_dropout(kind: type[Message]) -> None:
    outcome, _, ledgers = run_without("selected", {2: kind})
    assert outcome.aborted[AGGREGATOR].code in ("SUM-103", "SDQ-004")
    assert "of 5 are needed" in str(outcome.aborted[AGGREGATOR]) or "5 are needed" in str(
        outcome.aborted[AGGREGATOR]
    )
    begun = sum(spent(ledger) > 0 for ledger in ledgers.values())
    assert begun == {JointKey: 0, SumKeys: 0, SumMasked: 4, SumUnmask: 5}[kind]


@pytest.mark.parametrize("who", range(N))
def test_sdq_committee_chooses_without_absent_member(who: int) -> None:
    outcome, _, ledgers = run_without("plus", {who: JointKey})
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, SDQResult) and set(mined.n_answering) == {4} and not outcome.aborted
    assert [spent(ledger) > 0 for ledger in ledgers.values()] == [i != who for i in range(N)]


@pytest.mark.parametrize("kind", [SDQScores, ChoiceResult])
def test_sdq_study_ends_if_committee_member_vanishes(
    kind: type[Message],
) -> None:
    outcome, _, ledgers = run_without("plus", {1: kind})
    error = outcome.aborted[AGGREGATOR]
    assert (
        error.code == "SDQ-004" and "Round 0 failed" in error.what and "3 are needed" in error.what
    )
    assert (
        sum(spent(ledger) > 0 for ledger in ledgers.values())
        == {SDQScores: 4, ChoiceResult: 5}[kind]
    )


def test_sdq_study_without_committee_ends_before_any_spending() -> None:
    outcome, _, ledgers = run_without("plus", dict.fromkeys((0, 2, 3), JointKey))
    assert "2 databases sent keys" in outcome.aborted[AGGREGATOR].what
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


# Every database gets the reason.


def check_aborted(outcome: ProtocolOutcome, names: set[str]) -> None:
    """Raise AssertionError unless these databases aborted with the reason of the study.

    They must have erased their secrets.
    """
    reason = outcome.aborted[AGGREGATOR].what
    assert set(outcome.aborted) == {AGGREGATOR, *names}
    for name in names:
        error, state = outcome.aborted[name], outcome.states[name]
        assert error.code == "SDQ-004" and reason in error.what
        assert state.is_over and state.box == b"" and state.role is None
        assert state.sitting is None or state.sitting.own == state.sitting.mask == b""


@pytest.mark.parametrize("driver", ["local", "lossy network"])
@pytest.mark.parametrize(
    "name, kind",
    [("paper", SumMasked), ("selected", SumKeys), ("plus", SDQScores), ("local", Counts)],
)
def test_sdq_aborted_study_is_aborted_by_all(driver: str, name: str, kind: type[Message]) -> None:
    outcome, _, _ = run_without(name, {1: kind, 2: kind}, DRIVERS[driver])
    check_aborted(outcome, {"peer-0", "peer-3", "peer-4"})


def test_sdq_database_that_returns_in_time_learns_of_abort() -> None:
    """Let one database return in time and another too late.

    The second gets no message and answers nothing.
    """
    for back, aborted in (
        (130_000, {f"peer-{i}" for i in range(N)}),
        (400_000, {"peer-1", "peer-2"}),
    ):
        absences = dict.fromkeys(["peer-0", "peer-3", "peer-4"], (0, back))
        outcome, peers, ledgers = play(over(Faults(max_delay=50, absences=absences)), "paper", 3)
        check(peers, outcome, ledgers)
        check_aborted(outcome, aborted)


class Faint(SDQPeer):
    """A database with joint computations that fail."""

    party: int | None = None

    def on_computation(
        self, state: SDQPeerState, given: ComputationInput, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        broken = Broken(given.task, LocalProtocolError("JOINT-001", "It died."), self.party)
        return super().on_computation(state, broken, now, entropy)


@pytest.mark.parametrize("name", ["plus", "selected"])
@pytest.mark.parametrize(
    "party, named", [(None, "peer-1 failed."), (2, "an unusable message of peer-2")]
)
def test_sdq_broken_computation_ends_study_immediately(
    name: str, party: int | None, named: str
) -> None:
    _, peers = make(name, free=FREE)
    honest = peers["peer-1"]
    faint = Faint(honest.script, honest.member, honest._table.reveal(), honest.query_rules)
    faint.party = party
    outcome, peers, ledgers = play(
        run_local, name, 1, peers={"peer-1": faint}, options={"phase_timeout": timedelta(days=1)}
    )
    check(peers, outcome, ledgers)
    error = outcome.aborted[AGGREGATOR]
    assert (
        error.code == "SDQ-004"
        and "Round 0 failed: the joint computation of peer-1" in error.what
        and named in error.what
    )
    check_aborted(outcome, set(peers))
    assert max(sent.at for sent in outcome.sent) == START, "no machine has waited"


# Ledgers.


@pytest.mark.parametrize("name", ["paper", "local", "plus"])
def test_sdq_database_stops_at_limit_of_ledger_and_others_continue(
    name: str,
) -> None:
    first = "choice/0" if name == "plus" else "sizes/0"
    price = make(name)[1]["peer-4"].price(first).epsilon
    ledgers = {
        f"peer-{i}": MemoryLedger(limit=2 * 1.5 * price if i == 4 else None) for i in range(N)
    }
    outcome, peers, _ = play(run_local, name, 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-4"), BudgetError)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, SDQResult) and not outcome.aborted
    assert mined.n_answering[:2] == (5, 4) and set(mined.n_answering[1:]) == {4}
    assert spent(ledgers["peer-4"]) == grains_up(price)


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered between storing and sending the second answer."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "answers/0" and self.entries[study, question].state is ReleaseState.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


@pytest.mark.parametrize("driver", ["local", "lossy network"])
def test_sdq_answer_stays_if_ledger_refuses_at_sending(driver: str) -> None:
    ledgers = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(N)}
    outcome, peers, _ = play(DRIVERS[driver], "paper", 1, ledgers=ledgers)
    left = [
        question
        for sender, question in answers_sent(outcome, peers["peer-2"].study)
        if sender == "peer-2"
    ]
    assert left == ["sizes/0"]
    assert isinstance(outcome.aborted["peer-2"], BudgetError)
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, SDQResult) and mined.n_answering[:3] == (5, 4, 4)


def test_sdq_runs_with_ledger_file(tmp_path: Path) -> None:
    aggregator, peers = make("plus", changes={"epsilon": 1.0})
    ledgers: dict[str, Ledger] = {
        name: LedgerFile(tmp_path / f"{name}.db", ManualClock()) for name in peers
    }
    outcome = DRIVERS["lossy network"](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = answers_sent(outcome, aggregator.study)
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        stored = {
            (entry.state.value, ledger.read_payload(entry.study, entry.release.question))
            for entry in ledger.entries()
        }
        assert stored == {
            ("sent", payload)
            for (sender, _), payloads in left.items()
            if sender == name
            for payload in payloads
        }
        ledger.close()


# Mutants: each breaks one invariant, and the suite must notice.


class ChattyPeer(Chatty, SDQPeer): ...


class UnpricedPeer(Unpriced, SDQPeer): ...


@pytest.mark.parametrize("mutant", [ChattyPeer, UnpricedPeer])
@pytest.mark.parametrize("name", ["paper", "local", "plus"])
def test_sdq_answer_without_ledger_entry_is_not_sent(name: str, mutant: type[SDQPeer]) -> None:
    outcome, peers, ledgers = play(run_local, name, 0, options={"peer": mutant})
    assert {error.code for who, error in outcome.aborted.items() if who != AGGREGATOR} == {
        "PROTO-001"
    }
    assert answers_sent(outcome, peers["peer-0"].study) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


class Repeating(SDQPeer):
    """A mutant that restarts a round when asked again, and forgets its answers."""

    def on_message(
        self, state: SDQPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        return super().on_message(state.replace(asked=(), answered=()), message, now, entropy)


class Halved(SDQPeer):
    """A mutant that reserves half of the price."""

    def ask(self, state: SDQPeerState, question: str) -> tuple[SDQPeerState, Effects]:
        state, effects = super().ask(state, question)
        return state, tuple(
            replace(one, event=replace(one.event, epsilon=one.event.epsilon / 2)) for one in effects
        )  # type: ignore[type-var]


class Longer(SDQPeer):
    """A mutant that answers with one number too many."""

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
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
def test_sdq_suite_catches_mutants(name: str, mutant: type[SDQPeer]) -> None:
    assert is_caught(name, mutant)


def test_sdq_suite_catches_driver_without_submission_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "_index_submission", lambda *_: None)
    assert is_caught("local", SDQPeer, DRIVERS["lossy network"])
    assert is_caught("paper", SDQPeer, DRIVERS["lossy network"])


def test_sdq_ledger_protects_peer_that_forgets_its_answers() -> None:
    outcome, peers, ledgers = play(
        DRIVERS["lossy network"], "paper", 1, options={"peer": Repeating}
    )
    check(peers, outcome, ledgers)
