"""PFDS's variant paper for any messages and networks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, Finish, MemoryLedger, Received, Started
from shoal.protocols.pfds.messages import (
    ForwardedPiece,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LevelSplits,
    PFDSStudyEnd,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import (
    PFDSPaperAggregatorState,
    PFDSPaperResult,
    assemble_tree,
    list_tree_holders,
)
from shoal.protocols.pfds.paper.peer import PFDSPaperSharerState
from shoal.protocols.pfds.paper.script import list_questions
from shoal.protocols.pfds.paper.tree import check_tree
from shoal.simulation.network import Faults, run_network
from tests.support.hostile import hostile
from tests.support.machines import give, spent
from tests.support.pfds import check, cost
from tests.support.pfds_paper import NAMES, STUDIES, check_published, logged, make
from tests.support.toy.any_faults import any_faults

STUDY_NAMES = st.sampled_from(sorted(STUDIES))
names = st.sampled_from([*NAMES, "stranger"])
arrays = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 4), max_size=8).flatmap(
    lambda values: st.sampled_from(["int16", "int32", "int64", "uint8"]).map(
        lambda kind: Array.from_values(np.array(values).astype(kind))
    )
)


def made_up_pieces(study: bytes) -> st.SearchStrategy[LevelSplits | LeafLabels | SyntheticData]:
    """Generate messages that holders could be claimed to have shared."""
    return (
        st.builds(
            LevelSplits,
            study=st.just(study),
            level=st.integers(0, 5),
            attributes=arrays,
            values=arrays,
        )
        | st.builds(LeafLabels, study=st.just(study), labels=arrays)
        | st.builds(
            SyntheticData,
            study=st.just(study),
            n_rows=st.integers(0, 8),
            columns=st.lists(arrays, max_size=5).map(tuple),
            labels=arrays,
        )
    )


def messages_to_peers(study: bytes) -> st.SearchStrategy[Message]:
    holders = st.lists(names, max_size=5).map(tuple)
    return (
        st.builds(ForwardedPiece, study=st.just(study), holder=names, shared=made_up_pieces(study))
        | st.builds(LabellingHolders, study=st.just(study), holders=holders)
        | st.builds(PFDSStudyEnd, study=st.just(study), holders=holders)
    )


def check_kept(params: Any, pieces: tuple[ForwardedPiece, ...]) -> None:
    """Raise AssertionError unless no piece is kept twice and whole trees can be walked."""
    assert len(
        {(piece.holder, getattr(piece.shared, "level", type(piece.shared))) for piece in pieces}
    ) == len(pieces)
    for holder in list_tree_holders(params, pieces, {piece.holder for piece in pieces}):
        tree = assemble_tree(params, pieces, holder)
        check_tree(params, tree.levels, tree.labels)


@hostile(40)
@given(st.data(), STUDY_NAMES, st.integers(0, 3), st.integers(0, 2**32))
def test_pfds_paper_holder_answers_each_question_once_at_its_price(
    data: st.DataObject, name: str, i: int, seed: int
) -> None:
    """Send honest messages in any order, repeated and left out, and made-up ones.

    The state may be lost, the ledger never.
    """
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = [given.message for _, given in peer.log if isinstance(given, Received)]
    state, left, n_data, at = peer.initial_state(), {}, 0, -1
    for number in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.integers(0, 9)) if number else 9
        message: Any = Started()
        if step < 7:
            message = (
                honest[at := min(at + 1, len(honest) - 1)]
                if step
                else data.draw(st.sampled_from(honest))
            )
        elif step < 9:
            message = data.draw(messages_to_peers(peer.study))
        elif data.draw(st.booleans()):
            state, n_data = peer.initial_state(), 0
        try:
            state, sent, work = give(peer, state, message, ledger, seed + number)
        except RemoteProtocolError:
            continue
        state = load(dump(state), PFDSPaperSharerState)
        check_kept(peer.params, state.pieces)
        n_data += sum(isinstance(message, SyntheticData) for message in sent)
        assert n_data <= 1
        for item in work:
            if getattr(item, "question", None) is not None:
                left.setdefault(item.question, set()).add(item.payload)
                ledger.mark_sending(peer.study.hex(), item.question)
    assert (
        {question for _, question in ledger.entries}
        == set(left)
        <= set(list_questions(peer.params))
    )
    assert all(len(payloads) == 1 for payloads in left.values())
    assert spent(ledger) == cost(peer, left) <= grains_up(peer.params.epsilon)


@hostile(25)
@given(st.data(), STUDY_NAMES, st.integers(0, 2**32))
def test_pfds_paper_aggregator_handles_any_messages(
    data: st.DataObject, name: str, seed: int
) -> None:
    aggregator = logged(name)[0]
    received = [
        (given.sender, given.message) for _, given in aggregator.log if isinstance(given, Received)
    ]
    state = aggregator.on_start(aggregator.initial_state(), START, SeededEntropy(1))[0]
    now, at = START, -1
    for number in range(data.draw(st.integers(1, 40))):
        kind, entropy = data.draw(st.integers(0, 9)), SeededEntropy(seed).spawn(number)
        if kind == 9:
            now += timedelta(seconds=data.draw(st.integers(0, 50)))
            state, effects = aggregator.on_tick(state, now, entropy)
        else:
            sender, message = (
                received[at := min(at + 1, len(received) - 1)]
                if kind < 7
                else data.draw(st.sampled_from(received))
            )
            if kind == 8:
                leaves = st.builds(LeafCounts, study=st.just(aggregator.study), counts=arrays)
                sender, message = (
                    data.draw(names),
                    data.draw(
                        messages_to_peers(aggregator.study)
                        | made_up_pieces(aggregator.study)
                        | leaves
                    ),
                )
            try:
                state, effects = aggregator.on_message(state, sender, message, now, entropy)
            except RemoteProtocolError:
                continue
        state = load(dump(state), PFDSPaperAggregatorState)
        check_kept(aggregator.params, state.pieces)
        for effect in effects:
            if isinstance(effect, Finish):
                assert (
                    isinstance(effect.result, PFDSPaperResult)
                    and len(effect.result.trees) >= aggregator.params.minimum
                )


@hostile(6)
@given(
    any_faults(most_lost=0.4), STUDY_NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600])
)
def test_pfds_paper_keeps_every_invariant_on_any_network(
    faults: Faults, name: str, seed: int, phase_timeout: int
) -> None:
    aggregator, peers = make(name, n_readers=1, phase_timeout=timedelta(seconds=phase_timeout))
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    check_published(aggregator.params, outcome)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
