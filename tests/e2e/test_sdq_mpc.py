"""Whole studies of SDQ with joint computations among real processes: what they choose and select, and a clean end where one dies."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace

import pytest

from machine_runs import spent
from sdq_cases import STUDIES, Bare, N, check, check_complete, make, pooled, tables
from shoal.entropy import Entropy, SeededEntropy
from shoal.mpc.children import Children
from shoal.protocols.base import AGGREGATOR, Compute, Feed, MemoryLedger, Outcome, run_local
from shoal.protocols.sdq.params import Ints, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import Round
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.network import Faults, run_network
from shoal.sim.sdq_machines import machines


class Watched(Children):
    """Remembers every process that it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def begin(self, owner: str, asked: Compute) -> None:
        super().begin(owner, asked)
        self.seen.append(self.pids[owner, asked.task])


def are_gone(pids: list[int]) -> bool:
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return False
    return True


def test_a_committee_of_processes_chooses_what_a_simulation_chooses_where_that_is_certain() -> None:
    script = script_of(replace(STUDIES["plus"], epsilon=math.inf))
    aggregator, peers = machines(script, tables(), peer=Bare)
    ledgers = {name: MemoryLedger() for name in peers}
    with Watched() as children:
        outcome = run_local(aggregator, peers, SeededEntropy(1), ledgers=ledgers, computer=children)
        assert children.pids == {}
    mined = check_complete(peers, outcome, ledgers)
    trained = simulate(script, pooled(), SeededEntropy(1))
    assert [one.tolist() for one in mined.answers] == [one.tolist() for one in trained.answers]
    n_choices = sum(question.startswith("choice/") for _, question in ledgers["peer-0"].entries)
    assert len(children.seen) == 3 * n_choices > 0 and are_gone(children.seen)


def test_a_committee_works_through_a_network_that_loses_doubles_and_reorders() -> None:
    aggregator, peers = make("plus")
    ledgers = {name: MemoryLedger() for name in peers}
    faults = Faults(loss=0.2, duplicate=0.3, min_delay=1, max_delay=300)
    with Watched() as children:
        outcome = run_network(aggregator, peers, SeededEntropy(4), faults, ledgers=ledgers, computer=children)
    check_complete(peers, outcome, ledgers)
    assert are_gone(children.seen)


class Chosen(SDQPeer):
    """Writes down which part it has in the noise of each question."""

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        self.roles = {**getattr(self, "roles", {}), asked.question: role}
        return super().noisy(asked, table, role, entropy)


def test_two_different_databases_are_selected_for_each_level_among_processes() -> None:
    aggregator, peers = make("selected", peer=Chosen)
    ledgers = {name: MemoryLedger() for name in peers}
    with Watched() as children:
        outcome = run_local(aggregator, peers, SeededEntropy(2), ledgers=ledgers, computer=children)
        assert children.pids == {}
    mined = check_complete(peers, outcome, ledgers)
    assert len(children.seen) == N * 3 and are_gone(children.seen)
    for level in range(3):
        sizes, answers = ([peer.roles[f"{kind}/{level}"] for peer in peers.values()] for kind in ("sizes", "answers"))  # type: ignore[attr-defined]
        assert sorted(sizes) == [0, 0, 0, 1, 2] and answers == sizes
    assert abs(int(mined.answers[0][0]) - len(pooled())) < 40


class Mortal(Watched):
    """A party's process is killed when it is fed for the third time."""

    n_fed = 0

    def feed(self, owner: str, given: Feed) -> None:
        super().feed(owner, given)
        self.n_fed += owner == "peer-1"
        if self.n_fed == 3 and owner == "peer-1":
            os.kill(self.pids[owner, given.task], signal.SIGKILL)


@pytest.mark.parametrize("name", ["plus", "selected"])
def test_a_process_that_is_killed_ends_the_round_with_a_reason_and_what_was_sent_is_spent(name: str) -> None:
    aggregator, peers = make(name)
    ledgers = {one: MemoryLedger() for one in peers}
    with Mortal() as children:
        outcome: Outcome = run_local(aggregator, peers, SeededEntropy(1), ledgers=ledgers, computer=children)
    check(peers, outcome, ledgers)
    assert set(outcome.aborted) == {AGGREGATOR, *peers} and not outcome.rejected
    assert outcome.aborted[AGGREGATOR].what == "Round 0 is given up: the joint computation of peer-1 broke off."
    assert are_gone(children.seen)
    paid = {spent(ledger) for ledger in ledgers.values()}
    if name == "plus":
        assert len(paid) == 1 and 0 not in paid, "scores had left"
    else:
        assert paid == {0}, "nobody had counted anything"
    assert all(outcome.states[one].box == b"" and outcome.states[one].seat.is_over for one in peers)
