"""Faults happen as often and as late as they are set to, and nothing runs for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, UsageError
from shoal.protocols.base import AGGREGATOR, START, MemoryLedger, Outcome, open_accounts
from shoal.sim.network import Faults, _World, run_network
from toy.protocol import Study, make


def run(faults: Faults, seed: int = 1, **options: Any) -> Outcome:
    return run_network(*make(Study()), SeededEntropy(seed), faults, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": -0.1},
        {"duplicate": 1.5},
        {"crash": float("nan")},
        {"amnesia": 2},
        {"min_delay": 3, "max_delay": 2},
        {"min_delay": -1},
        {"retry": 0},
        {"downtime": 0},
    ],
)
def test_faults_must_make_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Faults(**wrong)


def test_only_a_peer_can_drop_out() -> None:
    with pytest.raises(UsageError, match="nobody"):
        run(Faults(absences={"nobody": (0, 1)}))


def test_a_good_network_sends_everything_once_and_takes_its_time() -> None:
    outcome = run(Faults(min_delay=30, max_delay=30))
    assert len(outcome.sent) == 16
    assert {(sent.at - START) // timedelta(milliseconds=1) for sent in outcome.sent} == {0, 30, 60, 90}


def test_without_any_faults_given_the_network_is_good() -> None:
    outcome = run_network(*make(Study()), SeededEntropy(1))
    assert len(outcome.sent) == 16


def test_when_everything_is_lost_the_aggregator_ends_by_its_deadline_and_the_run_by_its_bound() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        run(Faults(loss=1.0), max_events=2_000)
    assert caught.value.code == "SIM-001"
    assert "2000 events" in str(caught.value)


def test_copies_multiply_what_arrives_and_not_what_is_counted() -> None:
    outcome = run(Faults(duplicate=1.0, max_delay=50))
    assert len(outcome.states[AGGREGATOR].counted) == 8


def test_later_bytes_overtake_earlier_ones() -> None:
    orders = {tuple(sender for sender, _ in run(Faults(max_delay=1_000), seed).states[AGGREGATOR].counted[:4]) for seed in range(6)}
    assert len(orders) > 1


def test_a_peer_that_is_away_answers_when_it_returns() -> None:
    outcome = run(Faults(absences={"peer-2": (0, 12_000)}))
    late = [(sender, answer.round) for sender, answer in outcome.states[AGGREGATOR].late]
    assert late == [("peer-2", 1)]
    assert min(sent.at for sent in outcome.sent if sent.sender == "peer-2") - START >= timedelta(seconds=12)


def test_an_absence_and_a_crash_do_not_shorten_each_other() -> None:
    for seed in range(8):
        outcome = run(Faults(crash=0.2, downtime=300, absences={"peer-1": (100, 15_000)}), seed)
        times = [sent.at - START for sent in outcome.sent if sent.sender == "peer-1"]
        assert not any(timedelta(milliseconds=100) < at < timedelta(seconds=15) for at in times)


def test_a_machine_that_falls_while_it_starts_starts_again() -> None:
    fell = 0
    for seed in range(8):
        outcome = run(Faults(crash=0.3, downtime=1_000, retry=100), seed)
        first = min(sent.at for sent in outcome.sent if sent.sender == AGGREGATOR)
        fell += first > START
        assert AGGREGATOR in outcome.results
    assert fell > 0


def test_a_crash_between_the_ledger_and_the_wire_costs_and_is_made_good() -> None:
    """Over many seeds some peer falls right after it marked its answer as sending; the answer leaves after it has come back."""
    for seed in range(8):
        ledgers = {f"peer-{i}": MemoryLedger() for i in range(4)}
        outcome = run(Faults(crash=0.25, downtime=50), seed, ledgers=ledgers)
        assert {len(ledger.entries) for ledger in ledgers.values()} == {2}
        assert {entry.state.value for ledger in ledgers.values() for entry in ledger.entries.values()} == {"sent"}
        assert len({sent.payload for sent in outcome.sent if sent.question}) == 8


def test_a_shorter_absence_does_not_end_a_longer_fall() -> None:
    aggregator, peers = make(Study())
    world = _World({AGGREGATOR: aggregator, **peers}, open_accounts(peers, None), SeededEntropy(1), Faults())
    world._fall("peer-0", 5_000)
    world._fall("peer-0", 2_000)
    outcome = world.run(10_000)
    assert min(sent.at for sent in outcome.sent if sent.sender == "peer-0") - START >= timedelta(seconds=5)
