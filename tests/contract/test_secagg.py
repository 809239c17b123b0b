"""Secure sums on every driver: in one process, and over good and failing networks.

A sum is that of its survivors, or there is none. Every ledger counts all that was sent.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    Effects,
    MemoryLedger,
    ProtocolOutcome,
    Release,
    Send,
    run_local,
)
from shoal.protocols.secagg.messages import SumKeys, SumMasked, SumUnmask
from shoal.simulation.network import Faults
from tests.support.hostile import hostile
from tests.support.machines import HEAVY, LOSSY, Run, over
from tests.support.toy.any_faults import any_faults
from tests.support.toy.garbage import survives_garbage
from tests.support.toy.sums import REGISTRY, Summing, SumPeer, SumStudy, check_sums, make

STUDY = SumStudy(n_members=5, threshold=3, n_rounds=2, phase_timeout=timedelta(seconds=90))


DRIVERS = {
    "local": run_local,
    "good network": over(Faults()),
    "lossy network": over(LOSSY),
    "crashing network": over(HEAVY),
    "absent peers": over(replace(HEAVY, absences={"peer-1": (1, None), "peer-2": (4_000, 9_000)})),
    "forgetful peers": over(replace(HEAVY, crash=0.01, amnesia=1.0)),
}


@pytest.fixture(params=DRIVERS)
def run(request: pytest.FixtureRequest) -> Run:
    return DRIVERS[request.param]


def play(
    run: Run, study: SumStudy, seed: int, **changes: Any
) -> tuple[ProtocolOutcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(study)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), ledgers


def check(study: SumStudy, outcome: ProtocolOutcome, ledgers: dict[str, MemoryLedger]) -> int:
    """Raise AssertionError unless the run kept every invariant; return the number of sums."""
    assert not outcome.failed and not outcome.aborted
    left: dict[tuple[str, int], set[bytes]] = {}
    opened: dict[tuple[str, int], set[bytes]] = {}
    for sent in outcome.sent:
        message = decode(sent.payload, REGISTRY, study.digest)
        if isinstance(message, SumMasked):
            left.setdefault((sent.sender, message.round), set()).add(sent.payload)
        elif isinstance(message, SumUnmask):
            opened.setdefault((sent.sender, message.round), set()).add(sent.payload)
    assert all(len(payloads) == 1 for payloads in (*left.values(), *opened.values())), (
        "a retry sends the same bytes"
    )
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        spent = {question for question, at in states.items() if at in SPENT_STATES}
        assert {f"round-{number}" for sender, number in left if sender == name} <= spent, (
            "what left is spent"
        )
        total = sum(one.spent for one in ledger.totals())
        assert total == len(spent) * grains_up(study.event.epsilon)
    sums = outcome.results[AGGREGATOR]
    assert isinstance(sums, tuple)
    for one in sums:
        assert all((f"peer-{i}", one.round) in left for i in one.survivors)
    return check_sums(study, sums)


def test_secagg_run_keeps_every_invariant(run: Run, request: pytest.FixtureRequest) -> None:
    is_forgetful = "forgetful" in request.node.name
    n_sums = 0
    for seed in range(3):
        outcome, ledgers = play(run, STUDY, seed)
        n_sums += check(STUDY, outcome, ledgers)
        if not is_forgetful:
            assert not outcome.rejected, "honest machines reject nothing of each other"
    assert n_sums == 6 if not is_forgetful else n_sums >= 1


def test_secagg_member_that_loses_state_returns_in_next_round() -> None:
    """Check that a member that lost its state drops out of the current round.

    It would begin the round with other keys, which is rejected. The collector also rejects an
    earlier vector, which the ledger returns.
    """
    rejected: set[str] = set()
    came_back = False
    for seed in range(12):
        outcome, ledgers = play(DRIVERS["forgetful peers"], STUDY, seed)
        check(STUDY, outcome, ledgers)
        rejected |= {one.error.code for one in outcome.rejected}
        forgot = {one.sender for one in outcome.rejected if one.by == AGGREGATOR}
        last = outcome.results[AGGREGATOR][-1]  # type: ignore[index]
        came_back |= any(int(name.removeprefix("peer-")) in last.survivors for name in forgot)
    assert "PROTO-003" in rejected and rejected <= {"PROTO-003", "SUM-101", "SUM-102", "CRYPTO-001"}
    assert came_back


def test_secagg_bad_networks_cause_dropouts() -> None:
    outcome, _ = play(DRIVERS["crashing network"], STUDY, 1)
    assert (
        len(outcome.sent) - len({(sent.sender, sent.to, sent.payload) for sent in outcome.sent})
        > 50
    )


@hostile(15)
@given(any_faults(most_lost=0.5), st.integers(0, 2**32), st.integers(3, 5), st.integers(1, 120))
def test_secagg_keeps_every_invariant_on_any_network(
    faults: Faults, seed: int, n: int, timeout: int
) -> None:
    study = SumStudy(
        n_members=n, threshold=n // 2 + 1, n_rounds=2, phase_timeout=timedelta(seconds=timeout)
    )
    outcome, ledgers = play(over(faults), study, seed)
    check(study, outcome, ledgers)


def test_secagg_round_with_too_many_absent_peers_ends_without_sum() -> None:
    faults = Faults(absences={f"peer-{i}": (0, None) for i in range(3)})
    outcome, ledgers = play(over(faults), STUDY, 1)
    assert check(STUDY, outcome, ledgers) == 0
    assert [one.reason for one in outcome.results[AGGREGATOR]] == [  # type: ignore[attr-defined]
        f"Round {number} of a secure sum failed: 2 members sent a sum.keys in time."
        for number in (1, 2)
    ]
    assert all(not ledger.entries for ledger in ledgers.values()), "no member was asked"


def test_secagg_sums_a_hundred_members() -> None:
    study = SumStudy(n_members=100, threshold=67, n_rounds=1)
    absent = {f"peer-{i}": (0, None) for i in range(20)}
    outcome, ledgers = play(over(Faults(absences=absent)), study, 1)
    assert check(study, outcome, ledgers) == 1
    assert outcome.results[AGGREGATOR][0].survivors == tuple(range(20, 100))  # type: ignore[index]


def test_secagg_member_leaves_round_if_ledger_refuses(run: Run) -> None:
    ledgers = {f"peer-{i}": MemoryLedger(limit=0.3 if i == 2 else None) for i in range(5)}
    outcome, _ = play(run, STUDY, 4, ledgers=ledgers)
    check(STUDY, outcome, ledgers)
    first, second = outcome.results[AGGREGATOR]  # type: ignore[misc]
    assert 2 not in second.survivors or 2 not in first.survivors


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered between storing and sending the second vector."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "round-2" and self.entries[study, question].state is ReleaseState.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def test_secagg_member_erases_secrets_if_ledger_refuses_at_sending() -> None:
    ledgers: dict[str, MemoryLedger] = {
        f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(5)
    }
    outcome, _ = play(run_local, STUDY, 4, ledgers=ledgers)
    assert check(STUDY, outcome, ledgers) == 2
    first, second = outcome.results[AGGREGATOR]  # type: ignore[misc]
    assert 2 in first.survivors and 2 not in second.survivors
    assert outcome.states["peer-2"].sitting.is_over


class Unpriced(SumPeer):
    """A mutant that masks its vector without a reservation in its ledger."""

    def on_message(
        self, state: Summing, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Summing, Effects]:
        state, effects = super().on_message(state, message, now, entropy)
        if state.sitting is not None and state.sitting.is_ready:
            return state, (Release("round-1", self.answer(state, "round-1", entropy)),)
        return state, effects


class Chatty(SumPeer):
    """A mutant that sends its vector as if it were free."""

    def on_message(
        self, state: Summing, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Summing, Effects]:
        state, effects = super().on_message(state, message, now, entropy)
        if state.sitting is not None and state.sitting.is_ready:
            return state, (Send(AGGREGATOR, self.answer(state, "round-1", entropy)),)
        return state, effects


@pytest.mark.parametrize("mutant", [Unpriced, Chatty])
def test_secagg_vector_without_ledger_entry_is_not_sent(mutant: type[SumPeer]) -> None:
    outcome, ledgers = play(run_local, STUDY, 1, peers={"peer-3": mutant(STUDY, 3)})
    assert outcome.aborted["peer-3"].code == "PROTO-001"
    sent = [
        decode(one.payload, REGISTRY, STUDY.digest)
        for one in outcome.sent
        if one.sender == "peer-3"
    ]
    assert {type(message) for message in sent} & {SumKeys, SumMasked} == {SumKeys}
    assert not ledgers["peer-3"].entries
    assert check_sums(STUDY, outcome.results[AGGREGATOR]) == 2  # type: ignore[arg-type]


def test_secagg_machines_reject_garbage_in_every_field() -> None:
    study = SumStudy(n_members=3, threshold=2, n_rounds=1, size=2)
    states: dict[str, list[Any]] = {AGGREGATOR: [], "peer-0": []}

    class Watched(SumPeer):
        def on_message(
            self, state: Summing, message: Message, now: datetime, entropy: Entropy
        ) -> tuple[Summing, Effects]:
            states["peer-0"].append(state)
            return super().on_message(state, message, now, entropy)

    aggregator, peers = make(study)
    received = aggregator.on_message

    def watch(state: Any, *rest: Any) -> Any:
        states[AGGREGATOR].append(state)
        return received(state, *rest)

    aggregator.on_message = watch  # type: ignore[method-assign]
    outcome = run_local(aggregator, {**peers, "peer-0": Watched(study, 0)}, SeededEntropy(1))
    aggregator.on_message = received  # type: ignore[method-assign]
    mine = [
        decode(sent.payload, REGISTRY, study.digest)
        for sent in outcome.sent
        if "peer-0" in (sent.sender, sent.to)
    ]
    samples = {type(message): message for message in mine}
    assert len(samples) == 10
    steps = states[AGGREGATOR]
    assert (
        survives_garbage(
            aggregator, (aggregator.initial_state(), *steps[::3]), samples.values(), "peer-0"
        )
        > 30
    )
    assert survives_garbage(peers["peer-0"], states["peer-0"], samples.values()) > 30
