"""Secure sums on every driver: in one process, over a good network, and over networks that fail in every way. A sum is that of its
survivors, or there is none; and every ledger counts what has left."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from networks import HEAVY, LOSSY, Run, over
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.privacy.ledger import SPENT
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, Effects, MemoryLedger, Outcome, Release, Send, run_local
from shoal.protocols.sums.messages import SumKeys, SumMasked, SumUnmask
from shoal.sim.network import Faults
from toy.any_faults import any_faults
from toy.garbage import survives_garbage
from toy.sums import REGISTRY, Summing, SumPeer, SumStudy, check_sums, make

STUDY = SumStudy(n_members=5, threshold=3, n_rounds=2, patience=timedelta(seconds=90))


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


def play(run: Run, study: SumStudy, seed: int, **changes: Any) -> tuple[Outcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(study)
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), ledgers


def check(study: SumStudy, outcome: Outcome, ledgers: dict[str, MemoryLedger]) -> int:
    """Raise AssertionError unless the run kept every promise; return how many sums there are."""
    assert not outcome.failed and not outcome.aborted
    left: dict[tuple[str, int], set[bytes]] = {}
    opened: dict[tuple[str, int], set[bytes]] = {}
    for sent in outcome.sent:
        message = decode(sent.payload, REGISTRY, study.digest)
        if isinstance(message, SumMasked):
            left.setdefault((sent.sender, message.round), set()).add(sent.payload)
        elif isinstance(message, SumUnmask):
            opened.setdefault((sent.sender, message.round), set()).add(sent.payload)
    assert all(len(payloads) == 1 for payloads in (*left.values(), *opened.values())), "a retry sends the same bytes"
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        spent = {question for question, at in states.items() if at in SPENT}
        assert {f"round-{number}" for sender, number in left if sender == name} <= spent, "what left is spent"
        total = sum(one.spent for one in ledger.totals())
        assert total == len(spent) * grains_up(study.event.epsilon)
    sums = outcome.results[AGGREGATOR]
    assert isinstance(sums, tuple)
    for one in sums:
        assert all((f"peer-{i}", one.round) in left for i in one.survivors)
    return check_sums(study, sums)


def test_every_promise_is_kept(run: Run, request: pytest.FixtureRequest) -> None:
    is_forgetful = "forgetful" in request.node.name
    n_sums = 0
    for seed in range(3):
        outcome, ledgers = play(run, STUDY, seed)
        n_sums += check(STUDY, outcome, ledgers)
        if not is_forgetful:
            assert not outcome.rejected, "honest machines reject nothing of each other"
    assert n_sums == 6 if not is_forgetful else n_sums >= 1


def test_a_member_that_forgets_drops_out_of_the_round_and_is_there_in_the_next() -> None:
    """It would begin the round with other keys, which is refused; and a vector of before, which its ledger hands out, is not taken."""
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


def test_bad_networks_really_are_bad() -> None:
    outcome, _ = play(DRIVERS["crashing network"], STUDY, 1)
    assert len(outcome.sent) - len({(sent.sender, sent.to, sent.payload) for sent in outcome.sent}) > 50


@hostile(15)
@given(any_faults(most_lost=0.5), st.integers(0, 2**32), st.integers(3, 5), st.integers(1, 120))
def test_promises_are_kept_on_any_network(faults: Faults, seed: int, n: int, patience: int) -> None:
    study = SumStudy(n_members=n, threshold=n // 2 + 1, n_rounds=2, patience=timedelta(seconds=patience))
    outcome, ledgers = play(over(faults), study, seed)
    check(study, outcome, ledgers)


def test_too_many_absent_peers_end_each_round_with_a_reason_and_without_a_sum() -> None:
    faults = Faults(absences={f"peer-{i}": (0, None) for i in range(3)})
    outcome, ledgers = play(over(faults), STUDY, 1)
    assert check(STUDY, outcome, ledgers) == 0
    assert [one.reason for one in outcome.results[AGGREGATOR]] == [  # type: ignore[attr-defined]
        f"Round {number} of a secure sum is given up: 2 members sent a sum.keys in time." for number in (1, 2)
    ]
    assert all(not ledger.entries for ledger in ledgers.values()), "nobody was asked"


def test_a_hundred_members_sum() -> None:
    study = SumStudy(n_members=100, threshold=67, n_rounds=1)
    absent = {f"peer-{i}": (0, None) for i in range(20)}
    outcome, ledgers = play(over(Faults(absences=absent)), study, 1)
    assert check(study, outcome, ledgers) == 1
    assert outcome.results[AGGREGATOR][0].survivors == tuple(range(20, 100))  # type: ignore[index]


def test_a_ledger_that_refuses_takes_its_member_out_of_the_round(run: Run) -> None:
    ledgers = {f"peer-{i}": MemoryLedger(limit=0.3 if i == 2 else None) for i in range(5)}
    outcome, _ = play(run, STUDY, 4, ledgers=ledgers)
    check(STUDY, outcome, ledgers)
    first, second = outcome.results[AGGREGATOR]  # type: ignore[misc]
    assert 2 not in second.survivors or 2 not in first.survivors


class LoweredLedger(MemoryLedger):
    """A limit is lowered after the second vector was stored, and before it is sent."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "round-2" and self.entries[study, question].state is State.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def test_a_ledger_that_refuses_at_sending_takes_its_member_out_and_erases_its_secrets() -> None:
    ledgers: dict[str, MemoryLedger] = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(5)}
    outcome, _ = play(run_local, STUDY, 4, ledgers=ledgers)
    assert check(STUDY, outcome, ledgers) == 2
    first, second = outcome.results[AGGREGATOR]  # type: ignore[misc]
    assert 2 in first.survivors and 2 not in second.survivors
    assert outcome.states["peer-2"].sitting.is_over


class Unpriced(SumPeer):
    """Masks its vector without asking its ledger."""

    def received(self, state: Summing, message: Message, now: datetime, entropy: Entropy) -> tuple[Summing, Effects]:
        state, effects = super().received(state, message, now, entropy)
        if state.sitting is not None and state.sitting.is_ready:
            return state, (Release("round-1", self.answer(state, "round-1", entropy)),)
        return state, effects


class Chatty(SumPeer):
    """Sends its vector as if it were free."""

    def received(self, state: Summing, message: Message, now: datetime, entropy: Entropy) -> tuple[Summing, Effects]:
        state, effects = super().received(state, message, now, entropy)
        if state.sitting is not None and state.sitting.is_ready:
            return state, (Send(AGGREGATOR, self.answer(state, "round-1", entropy)),)
        return state, effects


@pytest.mark.parametrize("mutant", [Unpriced, Chatty])
def test_a_vector_past_the_ledger_does_not_leave(mutant: type[SumPeer]) -> None:
    outcome, ledgers = play(run_local, STUDY, 1, peers={"peer-3": mutant(STUDY, 3)})
    assert outcome.aborted["peer-3"].code == "PROTO-001"
    sent = [decode(one.payload, REGISTRY, STUDY.digest) for one in outcome.sent if one.sender == "peer-3"]
    assert {type(message) for message in sent} & {SumKeys, SumMasked} == {SumKeys}
    assert not ledgers["peer-3"].entries
    assert check_sums(STUDY, outcome.results[AGGREGATOR]) == 2  # type: ignore[arg-type]


def test_no_garbage_in_any_field_does_more_than_to_be_rejected() -> None:
    study = SumStudy(n_members=3, threshold=2, n_rounds=1, size=2)
    states: dict[str, list[Any]] = {AGGREGATOR: [], "peer-0": []}

    class Watched(SumPeer):
        def received(self, state: Summing, message: Message, now: datetime, entropy: Entropy) -> tuple[Summing, Effects]:
            states["peer-0"].append(state)
            return super().received(state, message, now, entropy)

    aggregator, peers = make(study)
    received = aggregator.received

    def watch(state: Any, *rest: Any) -> Any:
        states[AGGREGATOR].append(state)
        return received(state, *rest)

    aggregator.received = watch  # type: ignore[method-assign]
    outcome = run_local(aggregator, {**peers, "peer-0": Watched(study, 0)}, SeededEntropy(1))
    aggregator.received = received  # type: ignore[method-assign]
    mine = [decode(sent.payload, REGISTRY, study.digest) for sent in outcome.sent if "peer-0" in (sent.sender, sent.to)]
    samples = {type(message): message for message in mine}
    assert len(samples) == 10
    steps = states[AGGREGATOR]
    assert survives_garbage(aggregator, (aggregator.initial(), *steps[::3]), samples.values(), "peer-0") > 30
    assert survives_garbage(peers["peer-0"], states["peer-0"], samples.values()) > 30
