"""PFDS's variant paper on every driver: each level leaves once, at its price; who vanishes is named, and the others have the same end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from machine_runs import Chatty, Unpriced, spent
from networks import HEAVY, LOSSY, Run, over
from pfds_cases import answers_sent, check, cost
from pfds_sharing import (
    NAMES,
    STUDIES,
    N,
    Saved,
    SavedAggregator,
    check_complete,
    check_published,
    make,
    points_of,
    same_release,
    same_rows,
    same_tree,
)
from pfds_trees import params_of, random_points
from shoal.clock import ManualClock
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Account,
    Effects,
    Finish,
    Host,
    Input,
    Ledger,
    MemoryLedger,
    Outbound,
    Outcome,
    Received,
    Release,
    Send,
    Started,
    Work,
    run_local,
    settle,
)
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import MESSAGES, Data, Leaves, LevelCounts, Splits
from shoal.protocols.pfds.paper import questions
from shoal.protocols.pfds.paper_population import release
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.pfds.sharing_aggregator import NO_DATA, NO_TREE
from shoal.protocols.pfds.sharing_peer import SharingPeer, SharingTrees
from shoal.protocols.pfds.synthesis import columns_of
from shoal.protocols.pfds.tree import depth_of
from shoal.protocols.pfds.voting import labels_of, majority
from shoal.sim.network import Faults
from shoal.sim.pfds_machines import paper_machines

ROUGH = replace(HEAVY, crash=0.02)

DRIVERS = {
    "local": run_local,
    "lossy network": over(LOSSY),
    "crashing network": over(ROUGH),
    "absent peers": over(Faults(max_delay=50, absences={"peer-1": (200, 260_000), "reader-1": (20, 30_000)})),
    "forgetful peers": over(Faults(loss=0.1, max_delay=900, crash=0.005, amnesia=1.0)),
}
GOOD = ("local", "lossy network", "crashing network")


def play(run: Run, name: str, seed: int, **changes: Any) -> tuple[Outcome, dict[str, Any], dict[str, MemoryLedger]]:
    aggregator, peers = make(name, **{"patience": timedelta(seconds=90), **changes.get("options", {})})
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), peers, ledgers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", STUDIES)
def test_every_promise_is_kept(driver: str, name: str) -> None:
    outcome, peers, ledgers = play(DRIVERS[driver], name, 1)
    if driver in GOOD:
        check_complete(peers, outcome, ledgers)
        (paid,) = {spent(ledgers[holder]) for holder in NAMES}
        half = name in ("unprojected", "flat")
        assert paid == grains_up(STUDIES[name].epsilon) // (2 if half else 1), "epsilon / 2 for the tree, epsilon / 2 for the counts"
    else:
        check(peers, outcome, ledgers)
        assert check_published(STUDIES[name], outcome) is not None and AGGREGATOR in outcome.results


def test_each_level_is_an_entry_and_the_two_halves_cost_epsilon() -> None:
    _, peers, ledgers = play(run_local, "classes", 1)
    entries = ledgers["peer-0"].entries
    paid = {question: cost(peers["peer-0"], [question]) for _, question in entries}
    assert list(paid) == ["split/1", "split/2", "split/3", "leaves", "count/1", "count/2"]
    whole = grains_up(STUDIES["classes"].epsilon)
    assert sum(list(paid.values())[:4]) == sum(list(paid.values())[4:]) == whole // 2
    assert {entry.state for entry in entries.values()} == {State.SENT}
    assert not ledgers["reader-0"].entries


@pytest.mark.parametrize("name", STUDIES)
def test_every_machine_may_go_down_before_every_step(name: str) -> None:
    """Nothing lives outside of what is saved."""
    first, again = (
        check_complete(peers, outcome, ledgers)
        for outcome, peers, ledgers in (
            play(run_local, name, 4, options=kinds) for kinds in ({}, {"peer": Saved, "aggregator": SavedAggregator})
        )
    )
    assert same_release(first, again)


# The same law as the population.


class Told:
    """A holder by hand, with a stream of randomness of its own for all that it draws."""

    def __init__(self, peer: SharingPeer, entropy: Entropy) -> None:
        self.peer, self.entropy, self.state = peer, entropy, peer.initial()
        self.account = Account(MemoryLedger(), peer.study, "rows", AGGREGATOR, "a test")

    def give(self, given: Input) -> tuple[Work, ...]:
        self.state, work = settle(self.peer, self.state, given, START, self.entropy, self.account)
        return work


@pytest.mark.parametrize("name", STUDIES)
def test_machines_draw_what_the_population_draws(name: str) -> None:
    """From the same streams they come to the same trees and rows, to the last digit."""
    aggregator, peers = make(name)
    params, points = aggregator.params, points_of(STUDIES[name])
    holders = {holder: Told(peers[holder], SeededEntropy(3).spawn(holder)) for holder in NAMES}
    state, _ = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(1))
    waiting: list[tuple[str, Any]] = [(holder, Started()) for holder in NAMES]
    result = None
    while waiting:
        to, given = waiting.pop(0)
        if to != AGGREGATOR:
            work = holders[to].give(given)
            sent = [decode(item.payload, MESSAGES, aggregator.study) for item in work if isinstance(item, Outbound)]
            waiting += [(AGGREGATOR, Received(to, message)) for message in sent]
            continue
        state, effects = aggregator.step(state, given, START, SeededEntropy(1))
        result = next((effect.result for effect in effects if isinstance(effect, Finish)), result)
        waiting += [(holder, Received(AGGREGATOR, effect.message)) for effect in effects if isinstance(effect, Send) for holder in NAMES]
    assert isinstance(result, PublishedTrees)

    streams = [SeededEntropy(3).spawn(holder) for holder in NAMES]
    released = [release(params, own, stream) for own, stream in zip(points, streams, strict=True)]
    trees = [tree for tree, _ in released]
    for holder, (tree, rows), stream in zip(NAMES, released, streams, strict=True):
        outcomes = tree.labels[rows.leaves].astype(np.int64) if name == "own" else majority(params, trees, rows.values)
        expected = Dataset(columns_of(params, rows.values, stream), labels_of(params, outcomes, stream))
        assert same_tree(tree, result.trees[holder])
        assert same_rows(expected, result.datasets[holder])


def test_a_tree_of_a_hundred_thousand_leaves_is_shared() -> None:
    features = [Categorical(f"c{i}", [str(j) for j in range(40)], missing=False) for i in range(6)]
    schema = Schema([*features, Numeric("age", 0, 99, missing=False)], label=Categorical("ill", ["no", "yes"]))
    params = params_of(schema, max_depth=5, n_levels=4, n_holders=2, minimum=2, size=2_000)
    assert depth_of(params) == 5
    points = [random_points(params, 500, seed) for seed in (1, 2)]
    aggregator, peers = paper_machines(params, points, n_readers=1)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    published = outcome.results["reader-0"]
    assert isinstance(published, PublishedTrees)
    assert max(len(tree.labels) for tree in published.trees.values()) > 100_000
    assert all(0 < len(dataset) < 2_100 for dataset in published.datasets.values())


# Drop-outs at every phase.


class Leaving(SharingPeer):
    """Vanishes when it is about to send something of a kind."""

    leaves_at: type[Message]

    def step(self, state: SharingTrees, given: Input, now: datetime, entropy: Entropy) -> tuple[SharingTrees, Effects]:
        state, effects = super().step(state, given, now, entropy)
        if any(isinstance(effect, Send | Release) and isinstance(effect.message, self.leaves_at) for effect in effects):
            return state, (Abort(LocalProtocolError("PROTO-001", "The power went out.")),)
        return state, effects


def without(name: str, leaving: dict[int, type[Message]], run: Run = run_local) -> tuple[Outcome, dict[str, Any], dict[str, MemoryLedger]]:
    _, peers = make(name)
    gone = {}
    for i, kind in leaving.items():
        peer = peers[f"peer-{i}"]
        gone[peer.name] = Leaving(peer.params, peer.study, peer.name, peer._points.reveal())
        gone[peer.name].leaves_at = kind
    outcome, peers, ledgers = play(run, name, 1, peers=gone)
    check(peers, outcome, ledgers)
    for i in leaving:
        assert "power" in str(outcome.aborted.pop(f"peer-{i}"))
    return outcome, peers, ledgers


@pytest.mark.parametrize("driver", ["local", "lossy network"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("classes", Splits), ("own", Leaves), ("classes", LevelCounts), ("classes", Data), ("own", Data), ("unprojected", Data)],
)
def test_whoever_vanishes_is_named_and_the_others_go_on(driver: str, name: str, kind: type[Message]) -> None:
    outcome, _, ledgers = without(name, {1: kind}, DRIVERS[driver])
    published = check_published(STUDIES[name], outcome)
    assert published is not None and not outcome.aborted and not outcome.rejected
    assert len(outcome.results) == N + 2, "all others, the readers and the aggregator"
    assert [left.holder for left in published.left_out] == ["peer-1"] and tuple(published.datasets) == ("peer-0", "peer-2", "peer-3")
    had_shared = kind is Data
    assert tuple(published.trees) == (NAMES if had_shared else ("peer-0", "peer-2", "peer-3"))
    assert published.left_out[0].reason == (NO_DATA if had_shared else NO_TREE)
    assert (spent(ledgers["peer-1"]) > 0) == had_shared


def test_too_few_trees_end_the_study_and_everyone_is_told() -> None:
    outcome, _, ledgers = without("classes", {1: Leaves, 3: Splits})
    assert not outcome.results
    reason = outcome.aborted[AGGREGATOR].what
    assert "2 holders shared a whole tree in time; 3 are needed" in reason
    assert set(outcome.aborted) == {AGGREGATOR, "peer-0", "peer-2", "reader-0", "reader-1"}
    assert all(error.code == "PFDS-004" and reason in error.what for error in outcome.aborted.values() if error is not None)
    assert spent(ledgers["peer-0"]) == grains_up(1.0)


def test_data_of_nobody_is_a_result_of_trees() -> None:
    outcome, _, _ = without("classes", dict.fromkeys(range(N), Data))
    published = check_published(STUDIES["classes"], outcome)
    assert published is not None and tuple(published.trees) == NAMES and not published.datasets
    assert set(outcome.results) == {AGGREGATOR, "reader-0", "reader-1"}


# Ledgers.


def test_a_ledger_that_refuses_in_the_middle_leaves_its_holder_out_and_nothing_of_it_leaves() -> None:
    ledgers = {name: MemoryLedger(limit=2 * 0.6 if name == "peer-2" else None) for name in make("classes")[1]}
    outcome, peers, _ = play(run_local, "classes", 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-2"), BudgetError) and not outcome.aborted
    assert [question for _, question in ledgers["peer-2"].entries] == list(questions(STUDIES["classes"]))[:4]
    assert spent(ledgers["peer-2"]) == 0 and not [sent for sent in outcome.sent if sent.sender == "peer-2"]
    published = check_published(STUDIES["classes"], outcome)
    assert published is not None and "peer-2" not in published.trees and "peer-2" not in published.datasets


class LoweredLedger(MemoryLedger):
    """A limit is lowered when two levels have left."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "split/3":
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


@pytest.mark.parametrize("driver", ["local", "lossy network"])
def test_a_ledger_that_refuses_at_sending_keeps_the_answer_back(driver: str) -> None:
    ledgers = {name: LoweredLedger() if name == "peer-2" else MemoryLedger() for name in make("classes")[1]}
    outcome, peers, _ = play(DRIVERS[driver], "classes", 1, ledgers=ledgers)
    left = {question for sender, question in answers_sent(outcome, peers["peer-2"].study) if sender == "peer-2"}
    assert "split/3" not in left and isinstance(outcome.aborted["peer-2"], BudgetError)
    published = check_published(STUDIES["classes"], outcome)
    assert published is not None and tuple(published.trees) == ("peer-0", "peer-1", "peer-3")


def test_the_participants_own_ledger_file_serves_as_well(tmp_path: Path) -> None:
    aggregator, peers = make("classes")
    ledgers: dict[str, Ledger] = {name: LedgerFile(tmp_path / f"{name}.db", ManualClock()) for name in peers}
    outcome = DRIVERS["lossy network"](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = answers_sent(outcome, aggregator.study)
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        stored = {(entry.state.value, ledger.payload(entry.study, entry.release.question)) for entry in ledger.entries()}
        assert stored == {("sent", payload) for (sender, _), payloads in left.items() if sender == name for payload in payloads}
        ledger.close()


# Mutants: each breaks one promise, and the suite must notice.


class ChattyPeer(Chatty, SharingPeer): ...


class UnpricedPeer(Unpriced, SharingPeer): ...


@pytest.mark.parametrize("mutant", [ChattyPeer, UnpricedPeer])
def test_an_answer_past_the_ledger_does_not_leave(mutant: type[SharingPeer]) -> None:
    outcome, peers, ledgers = play(run_local, "classes", 0, options={"peer": mutant, "n_readers": 0})
    assert {error.code for who, error in outcome.aborted.items() if who != AGGREGATOR} == {"PROTO-001"}
    assert answers_sent(outcome, peers["peer-0"].study) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


class Halved(SharingPeer):
    """Tells its ledger half of the price."""

    def ask(self, state: SharingTrees, question: str) -> tuple[SharingTrees, Effects]:
        state, effects = super().ask(state, question)
        return state, tuple(replace(one, event=replace(one.event, epsilon=one.event.epsilon / 2)) for one in effects)  # type: ignore[type-var]


class Uncounted(SharingPeer):
    """Leaves out the counts of levels, which the projection needs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.questions = tuple(question for question in self.questions if not question.startswith("count"))


class Drawing(SharingPeer):
    """Makes its data anew at every message."""

    def heard(self, state: SharingTrees, entropy: Entropy) -> tuple[SharingTrees, Effects]:
        return super().heard(state.replace(data=None), entropy)


@pytest.mark.parametrize("mutant", [Halved, Uncounted, Drawing])
def test_mutants_are_caught(mutant: type[SharingPeer]) -> None:
    with pytest.raises((AssertionError, ShoalError)):
        outcome, peers, ledgers = play(run_local, "classes", 1, options={"peer": mutant})
        check_complete(peers, outcome, ledgers)


def test_a_driver_without_an_index_is_borne(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes twice is the same piece."""
    monkeypatch.setattr(Host, "_submission", lambda *_: None)
    outcome, peers, ledgers = play(DRIVERS["lossy network"], "classes", 1)
    check_complete(peers, outcome, ledgers)
