"""DDML on every driver: in one process, and over good and failing networks.

No update counts twice, no ledger counts too little, and the model learns.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import dump
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
from shoal.protocols.base import (
    AGGREGATOR,
    Effects,
    Host,
    Ledger,
    MemoryLedger,
    ProtocolOutcome,
    Release,
    Send,
    run_local,
)
from shoal.protocols.ddml.aggregator import (
    DDMLAggregator,
    DDMLAggregatorResult,
    DDMLAggregatorState,
)
from shoal.protocols.ddml.messages import DDMLInstance
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer, DDMLPeerState
from shoal.protocols.ddml.spam_filter import SpamFilter, calibrate_thresholds
from shoal.simulation.network import Faults
from tests.support.ddml import (
    STUDIES,
    STUDY,
    check,
    check_complete,
    compute_price,
    make,
    people,
    taken,
    updates_sent,
)
from tests.support.machines import HEAVY, LOSSY, Run, over, spent

AMNESIA = replace(HEAVY, amnesia=0.8, crash=0.02)
"""Milder faults: a peer that lost its state draws again, and if it fails more often than it is
answered the run does not end.
"""

BUSY = Faults(
    loss=0.05,
    duplicate=0.1,
    min_delay=5,
    max_delay=20_000,
    crash=0.002,
    amnesia=0.3,
    downtime=3_000,
    retry=30_000,
)


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


@pytest.fixture(params=DRIVERS)
def run(request: pytest.FixtureRequest) -> Run:
    return DRIVERS[request.param]


def play(
    run: Run, params: DDMLParams, seed: int, n: int = 6, **changes: Any
) -> tuple[ProtocolOutcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(params, n, **changes.get("options", {}))
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(
        changes.get("aggregator", aggregator), peers, SeededEntropy(seed), ledgers=ledgers
    ), ledgers


@pytest.mark.parametrize("kind", ["closest", "laplace", "weight", "decay"])
def test_ddml_run_keeps_every_invariant(run: Run, kind: str) -> None:
    for seed in range(2):
        outcome, ledgers = play(run, STUDIES[kind], seed)
        check_complete(STUDIES[kind], outcome, ledgers)


def test_ddml_run_with_same_seed_is_equal(run: Run) -> None:
    first, again, other = (play(run, STUDIES["weight"], seed)[0] for seed in (5, 5, 6))
    assert (first.sent, first.states) == (again.sent, again.states)
    assert first.sent != other.sent


def test_ddml_bad_networks_cause_retries_and_stale_updates() -> None:
    """Check that bytes are sent again, draws answered twice, and updates arrive late."""
    retries = answers = 0
    for seed in range(6):
        outcome, _ = play(DRIVERS["forgetful peers"], STUDIES["laplace"], seed)
        retries += len(outcome.sent) - len(
            {(sent.sender, sent.to, sent.payload) for sent in outcome.sent}
        )
        answers += sum(sent.sender == AGGREGATOR for sent in outcome.sent)
    assert retries > 50
    assert answers > 6 * 12


@pytest.mark.parametrize("driver", ["local", "busy network"])
def test_ddml_learns_strong_signal_from_500_devices(driver: str) -> None:
    params = STUDIES["closest"]
    outcome, ledgers = play(run_local if driver == "local" else over(BUSY), params, 2, n=500)
    check_complete(params, outcome, ledgers)
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, DDMLAggregatorResult) and learned.n_merged == 1000
    columns, labels = people(params.schema, 3000, 9)
    assert (learned.model.decide(columns) == labels).mean() > 0.85


def test_ddml_spam_filter_accepts_honest_updates() -> None:
    params = STUDIES["closest"]
    spam_filter = SpamFilter(params, calibrate_thresholds(params, 50))
    outcome, ledgers = play(
        over(Faults(max_delay=2_000)), params, 3, n=80, options={"spam_filter": spam_filter}
    )
    check_complete(params, outcome, ledgers)
    state = outcome.states[AGGREGATOR]
    assert state.n_merged > 0.9 * taken(state)


def test_ddml_study_that_ends_early_drops_later_updates() -> None:
    params = STUDIES["weight"]
    for seed in range(4):
        for name in ("local", "crashing network"):
            outcome, ledgers = play(DRIVERS[name], params, seed, options={"n_expected": 5})
            check(params, outcome, ledgers)
            learned = outcome.results[AGGREGATOR]
            assert isinstance(learned, DDMLAggregatorResult) and learned.n_merged == 5
            assert outcome.states[AGGREGATOR].n_merged == 5


def test_ddml_study_ends_without_absent_peer() -> None:
    params = STUDIES["laplace"]
    faults = replace(HEAVY, absences={"peer-0": (0, None), "peer-3": (3_000, None)})
    for seed in range(6):
        outcome, ledgers = play(
            over(faults), params, seed, options={"phase_timeout": timedelta(minutes=5)}
        )
        check(params, outcome, ledgers)
        assert "peer-0" not in outcome.results and spent(ledgers["peer-0"]) == 0
        assert isinstance(outcome.results[AGGREGATOR], DDMLAggregatorResult)


def test_ddml_device_stops_at_limit_of_its_ledger(run: Run) -> None:
    params = STUDIES["weight"]
    limit = 2.5 * compute_price(params) / 10**12
    ledgers = {f"peer-{i}": MemoryLedger(limit=limit if i == 2 else None) for i in range(6)}
    outcome, _ = play(run, params, 3, ledgers=ledgers)
    check(params, outcome, ledgers)
    assert outcome.results["peer-2"] == 2
    assert spent(ledgers["peer-2"]) == 2 * compute_price(params)
    assert taken(outcome.states[AGGREGATOR]) == 6 * 3 - 1


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered between storing and sending the second update."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "update/1" and self.entries[study, question].state is ReleaseState.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def test_ddml_device_stops_if_ledger_refuses_at_sending(run: Run) -> None:
    params = STUDIES["weight"]
    ledgers = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(6)}
    for seed in range(2):
        ledgers = {name: type(ledger)() for name, ledger in ledgers.items()}
        outcome, _ = play(run, params, seed, ledgers=ledgers)
        left = [question for sender, question in updates_sent(outcome) if sender == "peer-2"]
        assert left == ["update/0"]
        assert spent(ledgers["peer-2"]) == compute_price(params)
        assert not outcome.failed and not outcome.aborted and not outcome.rejected


@pytest.mark.parametrize("driver", ["local", "crashing network"])
def test_ddml_runs_with_ledger_file(driver: str, tmp_path: Path) -> None:
    params = replace(STUDIES["closest"], epsilon=1.0)
    aggregator, peers = make(params, 3)
    ledgers: dict[str, Ledger] = {
        name: LedgerFile(tmp_path / f"{name}.db", ManualClock()) for name in peers
    }
    outcome = DRIVERS[driver](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = updates_sent(outcome)
    assert len(left) == 6 and all(len(payloads) == 1 for payloads in left.values())
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


# Mutants: each breaks one invariant, and the suite must notice.


class Eager(DDMLPeer):
    """A mutant that answers every instance, requested or not, as the next question."""

    def on_message(
        self, state: DDMLPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[DDMLPeerState, Effects]:
        assert isinstance(message, DDMLInstance)
        return super().on_message(
            state, message.replace(draw=state.draw or message.draw), now, entropy
        )


class Unpriced(DDMLPeer):
    """A mutant that draws without a reservation in its ledger."""

    def on_message(
        self, state: DDMLPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[DDMLPeerState, Effects]:
        assert isinstance(message, DDMLInstance)
        state = state.replace(instance=message, update=bytes(16))
        return state, (Release("update/0", self.answer(state, "update/0", entropy)),)


class Chatty(DDMLPeer):
    """A mutant that sends its update as if it were free."""

    def on_message(
        self, state: DDMLPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[DDMLPeerState, Effects]:
        assert isinstance(message, DDMLInstance)
        state = state.replace(instance=message, update=bytes(16))
        return state, (Send(AGGREGATOR, self.answer(state, "update/0", entropy)),)


class SameId(DDMLPeer):
    """A mutant that gives all its updates one id."""

    def answer(self, state: DDMLPeerState, question: str, entropy: Entropy) -> Message:
        return super().answer(state, question, entropy).replace(id=bytes(16))


class Twice(DDMLAggregator):
    """A mutant that merges every update twice."""

    def _merge(
        self, state: DDMLAggregatorState, weights: Any, entropy: Entropy
    ) -> DDMLAggregatorState:
        return super()._merge(super()._merge(state, weights, entropy), weights, entropy)


def is_caught(
    run: Run, kind: type[DDMLPeer] = DDMLPeer, seeds: range = range(8), aggregator: Any = None
) -> bool:
    """Return whether the suite notices within a few seeds."""
    params = STUDIES["laplace"]
    for seed in seeds:
        changes = {"options": {"kind": kind}} | (
            {} if aggregator is None else {"aggregator": aggregator}
        )
        try:
            outcome, ledgers = play(run, params, seed, **changes)
            check_complete(params, outcome, ledgers)
        except (AssertionError, ShoalError):
            return True
    return False


@pytest.mark.parametrize("mutant", [Unpriced, Chatty])
def test_ddml_update_without_ledger_entry_is_not_sent(run: Run, mutant: type[DDMLPeer]) -> None:
    outcome, ledgers = play(run, STUDIES["laplace"], 0, options={"kind": mutant})
    assert {
        name: error.code for name, error in outcome.aborted.items() if name != AGGREGATOR
    } == dict.fromkeys(ledgers, "PROTO-001")
    assert updates_sent(outcome) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


def test_ddml_suite_catches_reused_id(run: Run) -> None:
    assert is_caught(run, SameId)


def test_ddml_suite_catches_double_merge() -> None:
    assert is_caught(run_local, aggregator=Twice(STUDY, STUDIES["laplace"], n_expected=1 << 60))


def test_ddml_suite_catches_driver_without_submission_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "_index_submission", lambda *_: None)
    assert is_caught(DRIVERS["lossy network"])


def test_ddml_eager_peer_pays_for_every_answer(run: Run) -> None:
    """Check the ledger of a peer that answers every instance.

    The choice of the instance matters for learning only; the ledger counts how often it answers,
    and the price.
    """
    params = STUDIES["laplace"]
    outcome, ledgers = play(run, params, 1, options={"kind": Eager})
    check(params, outcome, ledgers)
    assert all(len(ledger.entries) <= params.n_updates for ledger in ledgers.values())


def test_ddml_aggregator_state_has_no_names_or_ids() -> None:
    outcome, ledgers = play(run_local, STUDIES["laplace"], 1)
    saved = dump(outcome.states[AGGREGATOR])
    ids = [update.id for payloads in updates_sent(outcome).values() for update in payloads.values()]
    assert len(ids) == 12
    assert not any(one in saved for one in (*ids, *(name.encode() for name in ledgers)))
