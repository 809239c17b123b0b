"""Faults of the simulated network have their probabilities and delays; each run ends."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, ShoalError, UsageError
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Effects,
    IdealComputation,
    MemoryLedger,
    PeerState,
    ProtocolOutcome,
    Send,
    WakeAt,
    open_hosts,
    run_local,
)  # fmt: skip
from shoal.simulation.network import Faults, _NetworkSimulator, run_network
from tests.support.toy import joint
from tests.support.toy.protocol import Ask, Counting, Study, ToyAggregator, ToyPeer, make


def run(faults: Faults, seed: int = 1, **options: Any) -> ProtocolOutcome:
    return run_network(*make(Study()), SeededEntropy(seed), faults, **options)


def test_absence_of_an_unknown_peer_is_rejected() -> None:
    with pytest.raises(UsageError, match="nobody"):
        run(Faults(absences={"nobody": (0, 1)}))


def test_network_without_faults_sends_everything_once_with_delays() -> None:
    outcome = run(Faults(min_delay=30, max_delay=30))
    assert len(outcome.sent) == 16
    assert {(sent.at - START) // timedelta(milliseconds=1) for sent in outcome.sent} == {
        0,
        30,
        60,
        90,
    }


def test_default_network_has_no_faults() -> None:
    outcome = run_network(*make(Study()), SeededEntropy(1))
    assert len(outcome.sent) == 16


def test_total_loss_ends_the_aggregator_by_its_deadline_and_the_run_by_its_limit() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        run(Faults(loss=1.0), max_events=2_000)
    assert caught.value.code == "SIM-001"
    assert "2000 events" in str(caught.value)


def test_duplicates_arrive_twice_and_count_once() -> None:
    outcome = run(Faults(duplicate=1.0, max_delay=50))
    assert len(outcome.states[AGGREGATOR].counted) == 8


def test_later_bytes_overtake_earlier_ones() -> None:
    orders = {
        tuple(
            sender
            for sender, _ in run(Faults(max_delay=1_000), seed).states[AGGREGATOR].counted[:4]
        )
        for seed in range(6)
    }
    assert len(orders) > 1


def test_absent_peer_answers_when_it_returns() -> None:
    outcome = run(Faults(absences={"peer-2": (0, 12_000)}))
    late = [(sender, answer.round) for sender, answer in outcome.states[AGGREGATOR].late]
    assert late == [("peer-2", 1)]
    assert min(sent.at for sent in outcome.sent if sent.sender == "peer-2") - START >= timedelta(
        seconds=12
    )


def test_absence_and_crash_do_not_shorten_each_other() -> None:
    for seed in range(8):
        outcome = run(Faults(crash=0.2, downtime=300, absences={"peer-1": (100, 15_000)}), seed)
        times = [sent.at - START for sent in outcome.sent if sent.sender == "peer-1"]
        assert not any(timedelta(milliseconds=100) < at < timedelta(seconds=15) for at in times)


@pytest.mark.untraced
def test_machine_that_crashes_at_its_start_starts_again() -> None:
    fell = 0
    for seed in range(12, 20):
        outcome = run(Faults(crash=0.4, downtime=1_000, retry=100), seed)
        first = min(sent.at for sent in outcome.sent if sent.sender == AGGREGATOR)
        fell += first > START
        assert AGGREGATOR in outcome.results
    assert fell > 0


def test_crash_between_ledger_and_delivery_is_charged_and_recovered() -> None:
    """In some of many seeds a peer crashes after it marked its answer as sending.

    The answer is sent after the restart.
    """
    for seed in range(8):
        ledgers = {f"peer-{i}": MemoryLedger() for i in range(4)}
        outcome = run(Faults(crash=0.25, downtime=50), seed, ledgers=ledgers)
        assert {len(ledger.entries) for ledger in ledgers.values()} == {2}
        assert {
            entry.state.value for ledger in ledgers.values() for entry in ledger.entries.values()
        } == {"sent"}
        assert len({sent.payload for sent in outcome.sent if sent.question}) == 8


def test_shorter_absence_does_not_end_a_longer_crash() -> None:
    world = _NetworkSimulator(
        open_hosts(*make(Study()), SeededEntropy(1), None),
        SeededEntropy(1),
        Faults(),
        IdealComputation(SeededEntropy(1)),
    )
    world._crash("peer-0", 5_000)
    world._crash("peer-0", 2_000)
    outcome = world.run(10_000)
    assert min(sent.at for sent in outcome.sent if sent.sender == "peer-0") - START >= timedelta(
        seconds=5
    )


def test_event_limit_counts_events() -> None:
    world = _NetworkSimulator(
        open_hosts(*make(Study()), SeededEntropy(1), None),
        SeededEntropy(1),
        Faults(),
        IdealComputation(SeededEntropy(1)),
    )
    n_events = 0
    while world._queue:
        with suppress(LocalProtocolError):
            world.run(1)
        n_events += 1
    assert run(Faults(), max_events=n_events).results
    with pytest.raises(LocalProtocolError):
        run(Faults(), max_events=n_events - 1)


def test_alarm_that_is_set_twice_fires_once() -> None:
    class Punctual(ToyAggregator):
        ticks = 0

        def on_start(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            moment = START + timedelta(seconds=5)
            return state, (WakeAt(moment), WakeAt(moment - timedelta(microseconds=1)))

        def on_tick(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            self.ticks += 1
            return state, ()

    aggregator = Punctual(Study())
    run_network(aggregator, {}, SeededEntropy(1))
    assert aggregator.ticks == 1


def test_sender_waits_longer_after_each_attempt() -> None:
    with pytest.raises(LocalProtocolError):
        run(Faults(loss=1.0), max_events=300)
    hosts, faults = (
        open_hosts(*make(Study(n_peers=1)), SeededEntropy(1), None),
        Faults(loss=1.0, retry=100),
    )
    world = _NetworkSimulator(hosts, SeededEntropy(1), faults, IdealComputation(SeededEntropy(1)))
    with pytest.raises(LocalProtocolError):
        world.run(25)
    times = [(sent.at - START) // timedelta(milliseconds=1) for sent in world.outcome.sent]
    first = [0, 100, 300, 700, 1_500, 3_100, 6_300, 9_500]
    assert times[: len(first)] == first


class Silent(ToyPeer):
    """Gives up when it is asked for the second round; it has sent nothing but its first answer."""

    def on_message(
        self, state: PeerState, message: Any, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        if message.round == 2:
            return state, (Abort(LocalProtocolError("PROTO-001", "Enough.")),)
        return super().on_message(state, message, now, entropy)


def test_aborted_machine_never_returns() -> None:
    aggregator, peers = make(Study())
    for faults in (Faults(), Faults(crash=0.1, amnesia=0.5, loss=0.3)):
        outcome = run_network(
            aggregator, {**peers, "peer-1": Silent(Study(), 1)}, SeededEntropy(3), faults
        )
        assert outcome.aborted.keys() == {"peer-1"}
        assert {sent.question for sent in outcome.sent if sent.sender == "peer-1"} == {"round-1"}
        assert AGGREGATOR in outcome.results


def test_peers_stop_waiting_for_an_aborted_aggregator() -> None:
    class Weary(ToyAggregator):
        def on_tick(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            return state, (Abort(LocalProtocolError("PROTO-001", "Enough.")),)

    outcome = run_network(
        Weary(Study(n_peers=5)),
        make(Study())[1],
        SeededEntropy(1),
        Faults(absences={"peer-0": (0, 50_000)}),
    )
    assert outcome.aborted.keys() == {AGGREGATOR}


def test_refusal_at_sending_reaches_the_peer_and_survives_crashes() -> None:
    class Lowered(MemoryLedger):
        def mark_sending(self, study: str, question: str) -> bytes:
            if question == "round-1":
                raise BudgetError("BUDGET-002", "The limit was lowered.")
            return super().mark_sending(study, question)

    class Patient(ToyPeer):
        def on_refusal(
            self, state: PeerState, question: str, error: ShoalError
        ) -> tuple[PeerState, Effects]:
            return state, ()

    aggregator, peers = make(Study())
    for seed in range(10):
        faults = Faults(crash=0.2 if seed else 0.0, downtime=50, amnesia=0.3)
        outcome = run_network(
            aggregator,
            {**peers, "peer-0": Patient(Study(), 1)},
            SeededEntropy(seed),
            faults,
            ledgers={"peer-0": Lowered()},
        )
        assert {sent.question for sent in outcome.sent if sent.sender == "peer-0"} == {"round-2"}
        assert not outcome.failed
        assert not outcome.aborted
        assert "round-1" not in outcome.states["peer-0"].answered


def test_refused_message_is_not_sent_again_after_a_restart() -> None:
    class Lowered(MemoryLedger):
        n_refused = 0

        def mark_sending(self, study: str, question: str) -> bytes:
            self.n_refused += 1
            raise BudgetError("BUDGET-002", "The limit was lowered.")

    class Patient(ToyPeer):
        def on_refusal(
            self, state: PeerState, question: str, error: ShoalError
        ) -> tuple[PeerState, Effects]:
            return state, ()

    study, ledger = Study(n_peers=1, n_rounds=1), Lowered()
    faults = Faults(absences={"peer-0": (5_000, 6_000)})
    outcome = run_network(
        ToyAggregator(study),
        {"peer-0": Patient(study, 1)},
        SeededEntropy(1),
        faults,
        ledgers={"peer-0": ledger},
    )
    assert ledger.n_refused == 1
    assert outcome.results[AGGREGATOR] == (0,)


def test_ledger_failure_at_sending_ends_only_its_peer() -> None:
    class Damaged(MemoryLedger):
        def mark_sending(self, study: str, question: str) -> bytes:
            raise IntegrityError("LEDGER-006", "The disk is failing.")

    outcome = run(Faults(), ledgers={"peer-0": Damaged()})
    assert {name: error.code for name, error in outcome.aborted.items()} == {"peer-0": "LEDGER-006"}
    assert AGGREGATOR in outcome.results


def test_failure_at_the_start_ends_only_that_machine() -> None:
    class Broken(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            return state, (Send("peer-1", Ask(study=self.study, round=1)),)

    aggregator, peers = make(Study())
    peers["peer-0"] = Broken(Study(), 1)
    for drive in (run_local, run_network):
        outcome = drive(aggregator, peers, SeededEntropy(1))
        assert (outcome.aborted["peer-0"].code, len(outcome.failed)) == ("PROTO-001", 1)
        assert len(outcome.states[AGGREGATOR].counted) == 6


@pytest.mark.untraced
@pytest.mark.parametrize("crash", [0.0, 0.01])
def test_joint_computation_gives_results_or_breaks_if_a_machine_went_down(
    crash: float,
) -> None:
    ends = set()
    for seed in range(12):
        study, computer = joint.Study("argmax", 3), joint.Chatter()
        faults = Faults(loss=0.2, duplicate=0.3, max_delay=900, crash=crash, downtime=50)
        outcome = run_network(
            *joint.make(study, [5, 9]), SeededEntropy(seed), faults, computer=computer
        )
        assert not outcome.rejected
        assert not outcome.failed
        assert {error.code for error in outcome.aborted.values()} <= {"JOINT-001"}
        assert set(outcome.results.values()) <= {(0,)}
        assert not (outcome.results.keys() & outcome.aborted.keys())
        ends.add((len(outcome.results), len(outcome.aborted)))
    assert (3, 0) in ends
    assert any(aborted for _, aborted in ends) == (crash > 0)


def test_machine_that_went_down_during_a_computation_receives_broken() -> None:
    class Silent(joint.Chatter):
        """Never done."""

        def feed(self, owner: str, given: Any) -> None:
            pass

    for returns, aborted in ((6_000, {"peer-1": "JOINT-001"}), (None, {})):
        computer = Silent()
        faults = Faults(absences={"peer-1": (5_000, returns)})
        outcome = run_network(
            *joint.make(joint.Study("argmax", 3), [5, 9]),
            SeededEntropy(1),
            faults,
            computer=computer,
        )
        assert {name: error.code for name, error in outcome.aborted.items()} == aborted
        assert set(computer.heard) == {"peer-0", "peer-2"}, (
            "what it had under way went down with it"
        )
        assert not outcome.results
