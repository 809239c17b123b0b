"""PFDS's variant paper whatever is sent, and however bad the network."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from machine_runs import give, spent
from pfds_cases import check, cost
from pfds_sharing import NAMES, STUDIES, check_published, logged, make
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, Finish, MemoryLedger, Received, Started
from shoal.protocols.pfds.messages import Data, Ended, Label, LeafLabels, Leaves, PassedOn, Splits
from shoal.protocols.pfds.paper import questions
from shoal.protocols.pfds.sharing import PublishedTrees, tree_of, with_tree
from shoal.protocols.pfds.sharing_aggregator import Gathering
from shoal.protocols.pfds.sharing_peer import SharingTrees
from shoal.protocols.pfds.tree import check as check_tree
from shoal.sim.network import Faults, run_network
from toy.any_faults import any_faults

STUDY_NAMES = st.sampled_from(sorted(STUDIES))
names = st.sampled_from([*NAMES, "stranger"])
arrays = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 4), max_size=8).flatmap(
    lambda values: st.sampled_from(["int16", "int32", "int64", "uint8"]).map(lambda kind: Array.of(np.array(values).astype(kind)))
)


def made_up(study: bytes) -> st.SearchStrategy[Splits | LeafLabels | Data]:
    """What holders might be said to have shared."""
    return (
        st.builds(Splits, study=st.just(study), level=st.integers(0, 5), attributes=arrays, values=arrays)
        | st.builds(LeafLabels, study=st.just(study), labels=arrays)
        | st.builds(Data, study=st.just(study), n_rows=st.integers(0, 8), columns=st.lists(arrays, max_size=5).map(tuple), labels=arrays)
    )


def to_peers(study: bytes) -> st.SearchStrategy[Message]:
    holders = st.lists(names, max_size=5).map(tuple)
    return (
        st.builds(PassedOn, study=st.just(study), holder=names, shared=made_up(study))
        | st.builds(Label, study=st.just(study), holders=holders)
        | st.builds(Ended, study=st.just(study), holders=holders)
    )


def check_kept(params: Any, pieces: tuple[PassedOn, ...]) -> None:
    """Raise AssertionError unless nothing is kept twice, and whole trees can be walked."""
    assert len({(piece.holder, getattr(piece.shared, "level", type(piece.shared))) for piece in pieces}) == len(pieces)
    for holder in with_tree(params, pieces, {piece.holder for piece in pieces}):
        tree = tree_of(params, pieces, holder)
        check_tree(params, tree.levels, tree.labels)


@hostile(40)
@given(st.data(), STUDY_NAMES, st.integers(0, 3), st.integers(0, 2**32))
def test_a_holder_answers_each_question_once_at_its_price_whatever_it_is_told(data: st.DataObject, name: str, i: int, seed: int) -> None:
    """Honest messages in any order, doubled and left out, and such that were made up; the state may be lost, the ledger never."""
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = [given.message for _, given in peer.log if isinstance(given, Received)]
    state, left, n_data, at = peer.initial(), {}, 0, -1
    for number in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.integers(0, 9)) if number else 9
        told: Any = Started()
        if step < 7:
            told = honest[at := min(at + 1, len(honest) - 1)] if step else data.draw(st.sampled_from(honest))
        elif step < 9:
            told = data.draw(to_peers(peer.study))
        elif data.draw(st.booleans()):
            state, n_data = peer.initial(), 0
        try:
            state, sent, work = give(peer, state, told, ledger, seed + number)
        except RemoteProtocolError:
            continue
        state = load(dump(state), SharingTrees)
        check_kept(peer.params, state.pieces)
        n_data += sum(isinstance(message, Data) for message in sent)
        assert n_data <= 1
        for item in work:
            if getattr(item, "question", None) is not None:
                left.setdefault(item.question, set()).add(item.payload)
                ledger.mark_sending(peer.study.hex(), item.question)
    assert {question for _, question in ledger.entries} == set(left) <= set(questions(peer.params))
    assert all(len(payloads) == 1 for payloads in left.values())
    assert spent(ledger) == cost(peer, left) <= grains_up(peer.params.epsilon)


@hostile(25)
@given(st.data(), STUDY_NAMES, st.integers(0, 2**32))
def test_an_aggregator_bears_whatever_holders_send(data: st.DataObject, name: str, seed: int) -> None:
    aggregator = logged(name)[0]
    told = [(given.sender, given.message) for _, given in aggregator.log if isinstance(given, Received)]
    state = aggregator.started(aggregator.initial(), START, SeededEntropy(1))[0]
    now, at = START, -1
    for number in range(data.draw(st.integers(1, 40))):
        kind, entropy = data.draw(st.integers(0, 9)), SeededEntropy(seed).spawn(number)
        if kind == 9:
            now += timedelta(seconds=data.draw(st.integers(0, 50)))
            state, effects = aggregator.ticked(state, now, entropy)
        else:
            sender, message = told[at := min(at + 1, len(told) - 1)] if kind < 7 else data.draw(st.sampled_from(told))
            if kind == 8:
                leaves = st.builds(Leaves, study=st.just(aggregator.study), counts=arrays)
                sender, message = data.draw(names), data.draw(to_peers(aggregator.study) | made_up(aggregator.study) | leaves)
            try:
                state, effects = aggregator.received(state, sender, message, now, entropy)
            except RemoteProtocolError:
                continue
        state = load(dump(state), Gathering)
        check_kept(aggregator.params, state.pieces)
        for effect in effects:
            if isinstance(effect, Finish):
                assert isinstance(effect.result, PublishedTrees) and len(effect.result.trees) >= aggregator.params.minimum


@hostile(6)
@given(any_faults(most_lost=0.4), STUDY_NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600]))
def test_promises_are_kept_on_any_network(faults: Faults, name: str, seed: int, patience: int) -> None:
    aggregator, peers = make(name, n_readers=1, patience=timedelta(seconds=patience))
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    check_published(aggregator.params, outcome)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
