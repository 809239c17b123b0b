"""PFDS's variant paper on every driver.

Each level leaves once, at its price. A holder that vanishes is named, and the others get the same
result.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
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
    OutgoingMessage,
    ProtocolOutcome,
    Received,
    Release,
    Send,
    Started,
    Work,
    run_input,
    run_local,
)
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import (
    MESSAGES,
    LeafCounts,
    LevelCounts,
    LevelSplits,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import NO_DATA, NO_TREE, PFDSPaperResult
from shoal.protocols.pfds.paper.peer import PaperPeer, PFDSPaperSharerState
from shoal.protocols.pfds.paper.population import draw_release
from shoal.protocols.pfds.paper.script import list_questions
from shoal.protocols.pfds.paper.synthesis import draw_labels, make_columns, take_majority
from shoal.protocols.pfds.paper.tree import compute_depth
from shoal.simulation.machines import make_pfds_paper_machines
from shoal.simulation.network import Faults
from tests.support.machines import HEAVY, LOSSY, Chatty, Run, Unpriced, over, spent
from tests.support.pfds import answers_sent, check, cost
from tests.support.pfds_paper import (
    NAMES,
    STUDIES,
    N,
    Saved,
    SavedAggregator,
    check_complete,
    check_published,
    make,
    make_params,
    make_points,
    random_points,
    same_release,
    same_rows,
    same_tree,
)

ROUGH = replace(HEAVY, crash=0.02)

DRIVERS = {
    "local": run_local,
    "lossy network": over(LOSSY),
    "crashing network": over(ROUGH),
    "absent peers": over(
        Faults(max_delay=50, absences={"peer-1": (200, 260_000), "reader-1": (20, 30_000)})
    ),
    "forgetful peers": over(Faults(loss=0.1, max_delay=900, crash=0.005, amnesia=1.0)),
}
GOOD = ("local", "lossy network", "crashing network")


def play(
    run: Run, name: str, seed: int, **changes: Any
) -> tuple[ProtocolOutcome, dict[str, Any], dict[str, MemoryLedger]]:
    aggregator, peers = make(
        name, **{"phase_timeout": timedelta(seconds=90), **changes.get("options", {})}
    )
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), peers, ledgers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", STUDIES)
def test_pfds_paper_run_keeps_every_invariant(driver: str, name: str) -> None:
    outcome, peers, ledgers = play(DRIVERS[driver], name, 1)
    if driver in GOOD:
        check_complete(peers, outcome, ledgers)
        (paid,) = {spent(ledgers[holder]) for holder in NAMES}
        half = name in ("unprojected", "flat")
        assert paid == grains_up(STUDIES[name].epsilon) // (2 if half else 1), (
            "epsilon / 2 for the tree, epsilon / 2 for the counts"
        )
    else:
        check(peers, outcome, ledgers)
        assert check_published(STUDIES[name], outcome) is not None and AGGREGATOR in outcome.results


def test_pfds_paper_level_entries_add_up_to_epsilon() -> None:
    _, peers, ledgers = play(run_local, "classes", 1)
    entries = ledgers["peer-0"].entries
    paid = {question: cost(peers["peer-0"], [question]) for _, question in entries}
    assert list(paid) == ["split/1", "split/2", "split/3", "leaves", "count/1", "count/2"]
    whole = grains_up(STUDIES["classes"].epsilon)
    assert sum(list(paid.values())[:4]) == sum(list(paid.values())[4:]) == whole // 2
    assert {entry.state for entry in entries.values()} == {ReleaseState.SENT}
    assert not ledgers["reader-0"].entries


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_paper_run_survives_crash_before_every_step(name: str) -> None:
    """Check that the saved state is complete."""
    first, again = (
        check_complete(peers, outcome, ledgers)
        for outcome, peers, ledgers in (
            play(run_local, name, 4, options=kinds)
            for kinds in ({}, {"peer": Saved, "aggregator": SavedAggregator})
        )
    )
    assert same_release(first, again)


# The same draws as the population.


class ManualHolder:
    """A holder that the test drives by hand, with a separate random stream for all draws."""

    def __init__(self, peer: PaperPeer, entropy: Entropy) -> None:
        self.peer, self.entropy, self.state = peer, entropy, peer.initial_state()
        self.account = Account(MemoryLedger(), peer.study, "rows", AGGREGATOR, "a test")

    def give(self, given: Input) -> tuple[Work, ...]:
        self.state, work = run_input(
            self.peer, self.state, given, START, self.entropy, self.account
        )
        return work


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_paper_machines_and_population_draw_the_same(name: str) -> None:
    """Compare trees and rows from the same random streams, to the last digit."""
    aggregator, peers = make(name)
    params, points = aggregator.params, make_points(STUDIES[name])
    holders = {
        holder: ManualHolder(peers[holder], SeededEntropy(3).spawn(holder)) for holder in NAMES
    }
    state, _ = aggregator.step(aggregator.initial_state(), Started(), START, SeededEntropy(1))
    waiting: list[tuple[str, Any]] = [(holder, Started()) for holder in NAMES]
    result = None
    while waiting:
        to, given = waiting.pop(0)
        if to != AGGREGATOR:
            work = holders[to].give(given)
            sent = [
                decode(item.payload, MESSAGES, aggregator.study)
                for item in work
                if isinstance(item, OutgoingMessage)
            ]
            waiting += [(AGGREGATOR, Received(to, message)) for message in sent]
            continue
        state, effects = aggregator.step(state, given, START, SeededEntropy(1))
        result = next((effect.result for effect in effects if isinstance(effect, Finish)), result)
        waiting += [
            (holder, Received(AGGREGATOR, effect.message))
            for effect in effects
            if isinstance(effect, Send)
            for holder in NAMES
        ]
    assert isinstance(result, PFDSPaperResult)

    streams = [SeededEntropy(3).spawn(holder) for holder in NAMES]
    released = [
        draw_release(params, own, stream) for own, stream in zip(points, streams, strict=True)
    ]
    trees = [tree for tree, _ in released]
    for holder, (tree, rows), stream in zip(NAMES, released, streams, strict=True):
        outcomes = (
            tree.labels[rows.leaves].astype(np.int64)
            if name == "own"
            else take_majority(params, trees, rows.values)
        )
        expected = Dataset(
            make_columns(params, rows.values, stream), draw_labels(params, outcomes, stream)
        )
        assert same_tree(tree, result.trees[holder])
        assert same_rows(expected, result.datasets[holder])


def test_pfds_paper_shares_tree_of_100000_leaves() -> None:
    features = [Categorical(f"c{i}", [str(j) for j in range(40)], missing=False) for i in range(6)]
    schema = Schema(
        [*features, Numeric("age", 0, 99, missing=False)], label=Categorical("ill", ["no", "yes"])
    )
    params = make_params(schema, max_depth=5, n_levels=4, n_holders=2, minimum=2, size=2_000)
    assert compute_depth(params) == 5
    points = [random_points(params, 500, seed) for seed in (1, 2)]
    aggregator, peers = make_pfds_paper_machines(params, points, n_readers=1)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    published = outcome.results["reader-0"]
    assert isinstance(published, PFDSPaperResult)
    assert max(len(tree.labels) for tree in published.trees.values()) > 100_000
    assert all(0 < len(dataset) < 2_100 for dataset in published.datasets.values())


# Dropouts in every phase.


class Leaving(PaperPeer):
    """A holder that vanishes when it is about to send a message of a kind."""

    leaves_at: type[Message]

    def step(
        self, state: PFDSPaperSharerState, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[PFDSPaperSharerState, Effects]:
        state, effects = super().step(state, given, now, entropy)
        if any(
            isinstance(effect, Send | Release) and isinstance(effect.message, self.leaves_at)
            for effect in effects
        ):
            return state, (Abort(LocalProtocolError("PROTO-001", "The power went out.")),)
        return state, effects


def run_without(
    name: str, leaving: dict[int, type[Message]], run: Run = run_local
) -> tuple[ProtocolOutcome, dict[str, Any], dict[str, MemoryLedger]]:
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
    [
        ("classes", LevelSplits),
        ("own", LeafCounts),
        ("classes", LevelCounts),
        ("classes", SyntheticData),
        ("own", SyntheticData),
        ("unprojected", SyntheticData),
    ],
)
def test_pfds_paper_names_absent_holder_and_others_continue(
    driver: str, name: str, kind: type[Message]
) -> None:
    outcome, _, ledgers = run_without(name, {1: kind}, DRIVERS[driver])
    published = check_published(STUDIES[name], outcome)
    assert published is not None and not outcome.aborted and not outcome.rejected
    assert len(outcome.results) == N + 2, "all others, the readers and the aggregator"
    assert [left.holder for left in published.left_out] == ["peer-1"] and tuple(
        published.datasets
    ) == ("peer-0", "peer-2", "peer-3")
    had_shared = kind is SyntheticData
    assert tuple(published.trees) == (NAMES if had_shared else ("peer-0", "peer-2", "peer-3"))
    assert published.left_out[0].reason == (NO_DATA if had_shared else NO_TREE)
    assert (spent(ledgers["peer-1"]) > 0) == had_shared


def test_pfds_paper_with_too_few_trees_ends_for_all() -> None:
    outcome, _, ledgers = run_without("classes", {1: LeafCounts, 3: LevelSplits})
    assert not outcome.results
    reason = outcome.aborted[AGGREGATOR].what
    assert "2 holders shared a whole tree in time; 3 are needed" in reason
    assert set(outcome.aborted) == {AGGREGATOR, "peer-0", "peer-2", "reader-0", "reader-1"}
    assert all(
        error.code == "PFDS-004" and reason in error.what
        for error in outcome.aborted.values()
        if error is not None
    )
    assert spent(ledgers["peer-0"]) == grains_up(1.0)


def test_pfds_paper_without_synthetic_data_returns_trees() -> None:
    outcome, _, _ = run_without("classes", dict.fromkeys(range(N), SyntheticData))
    published = check_published(STUDIES["classes"], outcome)
    assert published is not None and tuple(published.trees) == NAMES and not published.datasets
    assert set(outcome.results) == {AGGREGATOR, "reader-0", "reader-1"}


# Ledgers.


def test_pfds_paper_leaves_out_holder_if_ledger_refuses_midway() -> None:
    ledgers = {
        name: MemoryLedger(limit=2 * 0.6 if name == "peer-2" else None)
        for name in make("classes")[1]
    }
    outcome, peers, _ = play(run_local, "classes", 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-2"), BudgetError) and not outcome.aborted
    assert [question for _, question in ledgers["peer-2"].entries] == list(
        list_questions(STUDIES["classes"])
    )[:4]
    assert spent(ledgers["peer-2"]) == 0 and not [
        sent for sent in outcome.sent if sent.sender == "peer-2"
    ]
    published = check_published(STUDIES["classes"], outcome)
    assert (
        published is not None
        and "peer-2" not in published.trees
        and "peer-2" not in published.datasets
    )


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered after two levels were sent."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "split/3":
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


@pytest.mark.parametrize("driver", ["local", "lossy network"])
def test_pfds_paper_answer_stays_if_ledger_refuses_at_sending(driver: str) -> None:
    ledgers = {
        name: LoweredLedger() if name == "peer-2" else MemoryLedger() for name in make("classes")[1]
    }
    outcome, peers, _ = play(DRIVERS[driver], "classes", 1, ledgers=ledgers)
    left = {
        question
        for sender, question in answers_sent(outcome, peers["peer-2"].study)
        if sender == "peer-2"
    }
    assert "split/3" not in left and isinstance(outcome.aborted["peer-2"], BudgetError)
    published = check_published(STUDIES["classes"], outcome)
    assert published is not None and tuple(published.trees) == ("peer-0", "peer-1", "peer-3")


def test_pfds_paper_runs_with_ledger_file(tmp_path: Path) -> None:
    aggregator, peers = make("classes")
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


class ChattyPeer(Chatty, PaperPeer): ...


class UnpricedPeer(Unpriced, PaperPeer): ...


@pytest.mark.parametrize("mutant", [ChattyPeer, UnpricedPeer])
def test_pfds_paper_answer_without_ledger_entry_is_not_sent(mutant: type[PaperPeer]) -> None:
    outcome, peers, ledgers = play(
        run_local, "classes", 0, options={"peer": mutant, "n_readers": 0}
    )
    assert {error.code for who, error in outcome.aborted.items() if who != AGGREGATOR} == {
        "PROTO-001"
    }
    assert answers_sent(outcome, peers["peer-0"].study) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


class Halved(PaperPeer):
    """A mutant that reserves half of the price."""

    def ask(
        self, state: PFDSPaperSharerState, question: str
    ) -> tuple[PFDSPaperSharerState, Effects]:
        state, effects = super().ask(state, question)
        return state, tuple(
            replace(one, event=replace(one.event, epsilon=one.event.epsilon / 2)) for one in effects
        )  # type: ignore[type-var]


class Uncounted(PaperPeer):
    """A mutant that omits the counts of levels, which the projection needs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.questions = tuple(
            question for question in self.questions if not question.startswith("count")
        )


class Drawing(PaperPeer):
    """A mutant that draws new data at every message."""

    def advance(
        self, state: PFDSPaperSharerState, entropy: Entropy
    ) -> tuple[PFDSPaperSharerState, Effects]:
        return super().advance(state.replace(data=None), entropy)


@pytest.mark.parametrize("mutant", [Halved, Uncounted, Drawing])
def test_pfds_paper_suite_catches_mutants(mutant: type[PaperPeer]) -> None:
    with pytest.raises((AssertionError, ShoalError)):
        outcome, peers, ledgers = play(run_local, "classes", 1, options={"peer": mutant})
        check_complete(peers, outcome, ledgers)


def test_pfds_paper_tolerates_driver_without_submission_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deliver messages twice: the second copy is the same piece."""
    monkeypatch.setattr(Host, "_index_submission", lambda *_: None)
    outcome, peers, ledgers = play(DRIVERS["lossy network"], "classes", 1)
    check_complete(peers, outcome, ledgers)
