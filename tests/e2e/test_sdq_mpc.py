"""Studies of SDQ with joint computations between processes: choices, selections, clean ends."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace

import pytest

from shoal.entropy import Entropy, SeededEntropy
from shoal.mpyc.runner import MPyCWorkers
from shoal.protocols.base import AGGREGATOR, Compute, Feed, MemoryLedger, ProtocolOutcome, run_local
from shoal.protocols.sdq.params import CellTable, Ints
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import SDQRound
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.machines import make_sdq_machines
from shoal.simulation.network import Faults, run_network
from tests.support.machines import spent
from tests.support.sdq import STUDIES, Bare, N, check, check_complete, make, pooled, tables


class Watched(MPyCWorkers):
    """Workers that remember all processes they started."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def begin(self, owner: str, request: Compute) -> None:
        super().begin(owner, request)
        self.seen.append(self.pids[owner, request.task])


def are_gone(pids: list[int]) -> bool:
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return False
    return True


def test_committee_chooses_same_attribute_as_simulation() -> None:
    script = make_sdq_script(replace(STUDIES["plus"], epsilon=math.inf))
    aggregator, peers = make_sdq_machines(script, tables(), peer=Bare)
    ledgers = {name: MemoryLedger() for name in peers}
    with Watched() as children:
        outcome = run_local(aggregator, peers, SeededEntropy(1), ledgers=ledgers, computer=children)
        assert children.pids == {}
    mined = check_complete(peers, outcome, ledgers)
    trained = simulate(script, pooled(), SeededEntropy(1))
    assert [one.tolist() for one in mined.answers] == [one.tolist() for one in trained.answers]
    n_choices = sum(question.startswith("choice/") for _, question in ledgers["peer-0"].entries)
    assert len(children.seen) == 3 * n_choices > 0 and are_gone(children.seen)


def test_committee_survives_lost_repeated_reordered_messages() -> None:
    aggregator, peers = make("plus")
    ledgers = {name: MemoryLedger() for name in peers}
    faults = Faults(loss=0.2, duplicate=0.3, min_delay=1, max_delay=300)
    with Watched() as children:
        outcome = run_network(
            aggregator, peers, SeededEntropy(4), faults, ledgers=ledgers, computer=children
        )
    check_complete(peers, outcome, ledgers)
    assert are_gone(children.seen)


class Chosen(SDQPeer):
    """A peer that records its part in the noise of each question."""

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
        self.roles = {**getattr(self, "roles", {}), asked.question: role}
        return super().draw_noisy_answer(asked, table, role, entropy)


def test_committee_selects_two_databases_for_each_level() -> None:
    aggregator, peers = make("selected", peer=Chosen)
    ledgers = {name: MemoryLedger() for name in peers}
    with Watched() as children:
        outcome = run_local(aggregator, peers, SeededEntropy(2), ledgers=ledgers, computer=children)
        assert children.pids == {}
    mined = check_complete(peers, outcome, ledgers)
    assert len(children.seen) == N * 3 and are_gone(children.seen)
    for level in range(3):
        sizes, answers = (
            [peer.roles[f"{kind}/{level}"] for peer in peers.values()]
            for kind in ("sizes", "answers")
        )  # type: ignore[attr-defined]
        assert sorted(sizes) == [0, 0, 0, 1, 2] and answers == sizes
    assert abs(int(mined.answers[0][0]) - len(pooled())) < 40


class Mortal(Watched):
    """Workers of which one is killed when it is fed for the third time."""

    n_fed = 0

    def feed(self, owner: str, given: Feed) -> None:
        super().feed(owner, given)
        self.n_fed += owner == "peer-1"
        if self.n_fed == 3 and owner == "peer-1":
            os.kill(self.pids[owner, given.task], signal.SIGKILL)


@pytest.mark.parametrize("name", ["plus", "selected"])
def test_killed_process_ends_round_and_sent_answers_are_spent(
    name: str,
) -> None:
    aggregator, peers = make(name)
    ledgers = {one: MemoryLedger() for one in peers}
    with Mortal() as children:
        outcome: ProtocolOutcome = run_local(
            aggregator, peers, SeededEntropy(1), ledgers=ledgers, computer=children
        )
    check(peers, outcome, ledgers)
    assert set(outcome.aborted) == {AGGREGATOR, *peers} and not outcome.rejected
    assert (
        outcome.aborted[AGGREGATOR].what
        == "Round 0 failed: the joint computation of peer-1 failed."
    )
    assert are_gone(children.seen)
    paid = {spent(ledger) for ledger in ledgers.values()}
    if name == "plus":
        assert len(paid) == 1 and 0 not in paid, "scores had left"
    else:
        assert paid == {0}, "no count was sent"
    assert all(outcome.states[one].box == b"" and outcome.states[one].seat.is_over for one in peers)
