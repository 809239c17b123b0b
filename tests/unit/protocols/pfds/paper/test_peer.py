"""Peers of variant paper: releases of a holder, and a misbehaving aggregator."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    START,
    Abort,
    Finish,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Started,
)
from shoal.protocols.pfds.messages import (
    ForwardedPiece,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LeftOutHolder,
    LevelCounts,
    LevelSplits,
    PFDSStudyEnd,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import PFDSPaperResult
from shoal.protocols.pfds.paper.peer import (
    PaperPeer,
    PaperReadOnlyPeer,
    PFDSPaperPeerState,
    PFDSPaperSharerState,
)
from shoal.protocols.pfds.paper.script import list_questions
from tests.support.machines import before, endings, give, spent
from tests.support.pfds import cost
from tests.support.pfds_paper import NAMES, STUDIES, Logged, logged, make, same_release, same_tree
from tests.support.toy.garbage import survives_garbage


def start_peer() -> tuple[Logged, PFDSPaperSharerState, list[Any]]:
    """Return a holder after its releases, its state, and all later messages in order."""
    peer = logged("classes")[1]["peer-0"]
    return (
        peer,
        before(peer, ForwardedPiece)[0],
        [given.message for _, given in peer.log if isinstance(given, Received)],
    )


def give_all(
    peer: Any, state: Any, messages: list[Message]
) -> tuple[Any, list[Message], list[Finish | Abort]]:
    sent, ended = [], []
    for message in messages:
        state, out, work = give(peer, load(dump(state), type(state)), message)
        sent, ended = [*sent, *out], [*ended, *endings(work)]
    return state, sent, ended


def catch_code(peer: Any, state: Any, message: Message) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message)
    return caught.value.code


def filter_messages(told: list[Any], kind: type[Any]) -> list[Any]:
    return [message for message in told if isinstance(message, kind)]


# Releases of a holder.


@pytest.mark.parametrize("name", STUDIES)
def test_start_answers_each_question_once_at_its_price(name: str) -> None:
    peer, ledger = make(name)[1]["peer-0"], MemoryLedger()
    state, sent, work = give(peer, peer.initial_state(), Started(), ledger)
    asked = list_questions(peer.params)
    assert [item.question for item in work if isinstance(item, OutgoingMessage)] == list(asked)
    kinds = {"split": LevelSplits, "leaves": LeafCounts, "count": LevelCounts}
    assert [type(message) for message in sent] == [
        kinds[question.partition("/")[0]] for question in asked
    ]
    assert [message.level for message in sent if isinstance(message, LevelSplits)] == list(
        range(1, len(filter_messages(sent, LevelSplits)) + 1)
    )
    assert [message.level for message in sent if isinstance(message, LevelCounts)] == list(
        range(1, len(filter_messages(sent, LevelCounts)) + 1)
    )
    assert state.own == tuple(sent)
    for question in asked:
        ledger.mark_sending(peer.study.hex(), question)
    assert spent(ledger) == cost(peer, asked) <= grains_up(peer.params.epsilon)


def test_stored_answers_are_reused_and_not_drawn_again() -> None:
    peer, ledger = make("classes")[1]["peer-0"], MemoryLedger()
    first = give(peer, peer.initial_state(), Started(), ledger, seed=1)
    again = give(peer, peer.initial_state(), Started(), ledger, seed=2)
    assert again == first
    assert give(peer, first[0], Started(), ledger, seed=3) == (first[0], [], ())


def test_peer_rejects_noiseless_study() -> None:
    peer = make("classes")[1]["peer-0"]
    with pytest.raises(LocalProtocolError, match="without noise"):
        PaperPeer(
            replace(peer.params, epsilon=float("inf")), peer.study, "peer-0", peer._points.reveal()
        )


def test_unknown_questions_have_no_price() -> None:
    _, peers = make("classes")
    for question in ("split/0", "split/4", "count/3", "tables", ""):
        for name in ("peer-0", "reader-0"):
            with pytest.raises(RemoteProtocolError) as caught:
                peers[name].price(question)
            assert caught.value.code == "PROTO-002"
    reader = peers["reader-0"]
    with pytest.raises(RemoteProtocolError):
        reader.answer(reader.initial_state(), "split/1", SeededEntropy(1))


def test_rows_are_not_shown_or_sent() -> None:
    peer = make("classes")[1]["peer-0"]
    assert "Private" in repr(peer._points)
    with pytest.raises(LocalProtocolError):
        LeafCounts(study=peer.study, counts=peer._points)


# Data.


def test_data_is_made_once_after_label_and_all_trees() -> None:
    peer, state, told = start_peer()
    trees = [
        message
        for message in filter_messages(told, ForwardedPiece)
        if not isinstance(message.shared, SyntheticData)
    ]
    (label,) = filter_messages(told, LabellingHolders)
    assert len(trees) == 16
    for last in (label, trees[0], trees[7], trees[-1]):
        others = [message for message in (*trees, label) if message is not last]
        almost, sent, _ = give_all(peer, state, others)
        assert sent == [] and almost.data is None
        done, sent, _ = give_all(peer, almost, [last])
        (data,) = sent
        assert isinstance(data, SyntheticData) and done.data == data
        assert give_all(peer, done, [last, label, trees[3]]) == (done, [], []), (
            "repeated messages send nothing"
        )


def test_sent_data_equals_published_data() -> None:
    _, peers, published = logged("classes")
    for name in NAMES:
        state = before(peers[name], PFDSStudyEnd)[0]
        assert state.data is not None and state.data.n_rows == len(published.datasets[name])


def test_holder_that_is_not_named_makes_no_data_but_finishes() -> None:
    peer, state, told = start_peer()
    label = LabellingHolders(study=peer.study, holders=NAMES[1:])
    ended = PFDSStudyEnd(
        study=peer.study,
        holders=NAMES[1:],
        left_out=(LeftOutHolder(holder="peer-0", reason="it was late"),),
    )
    others = [
        message for message in filter_messages(told, ForwardedPiece) if message.holder != "peer-0"
    ]
    _, sent, (ending,) = give_all(peer, state, [*others, label, ended])
    assert sent == [] and isinstance(ending, Finish) and isinstance(ending.result, PFDSPaperResult)
    assert (
        tuple(ending.result.trees) == tuple(ending.result.datasets) == NAMES[1:]
        and ending.result.left_out == ended.left_out
    )


def test_without_its_own_answers_a_peer_makes_no_data() -> None:
    """It received messages before its start; it listens, and has nothing to share."""
    peer, _, told = start_peer()
    messages = [
        message
        for message in told
        if getattr(message, "holder", "") != "peer-0" and not isinstance(message, PFDSStudyEnd)
    ]
    state, sent, ended = give_all(peer, peer.initial_state(), [*messages])
    assert state.label is not None and sent == ended == []


# The end.


@pytest.mark.parametrize("name", STUDIES)
def test_read_only_result_does_not_depend_on_the_order_of_messages(name: str) -> None:
    _, peers, published = logged(name)
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    reader = peers["reader-0"]
    assert isinstance(reader, PaperReadOnlyPeer)
    for messages in (told, told[::-1], told[5:] + told[:5]):
        state, sent, (ending,) = give_all(reader, reader.initial_state(), messages)
        assert isinstance(state, PFDSPaperPeerState) and state.is_over and sent == []
        assert isinstance(ending, Finish) and same_release(ending.result, published)
        assert give_all(reader, state, told) == (state, [], []), (
            "messages after the end are ignored"
        )


def test_peer_finishes_when_all_named_messages_arrived() -> None:
    _, peers, _ = logged("classes")
    reader = peers["reader-0"]
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    (label,), (ended,), passed = (
        filter_messages(told, kind) for kind in (LabellingHolders, PFDSStudyEnd, ForwardedPiece)
    )
    for last in (label, ended, passed[0], passed[-1]):
        others = [message for message in told if message is not last]
        state, _, endings_so_far = give_all(reader, reader.initial_state(), others)
        assert endings_so_far == [] and not state.is_over
        assert len(give_all(reader, state, [last])[2]) == 1


def test_failed_study_aborts_with_the_reason() -> None:
    peer, state, _ = start_peer()
    state, _, (ending,) = give_all(
        peer, state, [PFDSStudyEnd(study=peer.study, reason="too few\x1b[2J")]
    )
    assert (
        isinstance(ending, Abort)
        and ending.error.code == "PFDS-004"
        and "too few" in str(ending.error)
    )
    assert "\x1b" not in str(ending.error) and state.is_over


def test_trees_without_data_are_a_result() -> None:
    _, peers, published = logged("classes")
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    trees = [
        message
        for message in filter_messages(told, ForwardedPiece)
        if not isinstance(message.shared, SyntheticData)
    ]
    reader = peers["reader-0"]
    ended = PFDSStudyEnd(study=reader.study)
    _, _, (ending,) = give_all(
        reader, reader.initial_state(), [*trees, *filter_messages(told, LabellingHolders), ended]
    )
    assert (
        isinstance(ending, Finish)
        and isinstance(ending.result, PFDSPaperResult)
        and ending.result.datasets == {}
    )
    assert all(same_tree(ending.result.trees[name], published.trees[name]) for name in NAMES)


# A misbehaving aggregator.


def test_messages_of_holders_are_rejected() -> None:
    peer, state, _ = start_peer()
    for message in state.own:
        assert catch_code(peer, state, message) == "PROTO-003"
    assert catch_code(peer, state.replace(is_over=True), state.own[0]) == "PROTO-003"
    with pytest.raises(RemoteProtocolError):
        peer.step(
            state,
            Received("peer-1", LabellingHolders(study=peer.study, holders=NAMES)),
            START,
            SeededEntropy(1),
        )


def test_pieces_in_its_own_name_must_match_its_answers() -> None:
    peer, state, told = start_peer()
    own = {
        type(message.shared): message
        for message in filter_messages(told, ForwardedPiece)
        if message.holder == "peer-0"
    }
    other = {
        type(message.shared): message
        for message in filter_messages(told, ForwardedPiece)
        if message.holder == "peer-1"
    }
    made, _, _ = give_all(
        peer,
        state,
        [
            message
            for message in told
            if not isinstance(getattr(message, "shared", None), SyntheticData | PFDSStudyEnd)
        ][:-1],
    )
    assert made.data is not None
    for kind in (LevelSplits, LeafLabels, SyntheticData):
        assert catch_code(peer, made, other[kind].replace(holder="peer-0")) == "PFDS-003"
        again = (
            give(peer, made, own[kind])[0]
            if kind is not SyntheticData
            else give(peer, made, own[kind].replace(shared=made.data))[0]
        )
        assert len(again.pieces) == len(made.pieces) + (kind is SyntheticData)
    assert (
        catch_code(peer, peer.initial_state(), own[LevelSplits])
        == catch_code(peer, peer.initial_state(), own[LeafLabels])
        == "PFDS-003"
    )
    forgetful = state.replace(data=None)
    assert give(peer, forgetful, own[SyntheticData])[0].pieces == (own[SyntheticData],), (
        "the state is lost, so it cannot check"
    )


def test_pieces_of_too_many_holders_are_rejected() -> None:
    _, peers, _ = logged("classes")
    reader = peers["reader-0"]
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    state, _, _ = give_all(reader, reader.initial_state(), filter_messages(told, ForwardedPiece))
    assert (
        catch_code(
            reader, state, filter_messages(told, ForwardedPiece)[0].replace(holder="stranger")
        )
        == "PFDS-003"
    )


@pytest.mark.parametrize(
    "holders",
    [NAMES[:2], (), ("peer-0", "peer-0", "peer-1"), (*NAMES, "peer-9"), (*NAMES, *NAMES)],
    ids=["few", "none", "twice", "many", "all"],
)
def test_label_with_too_few_or_repeated_holders_is_rejected(holders: tuple[str, ...]) -> None:
    peer, state, _ = start_peer()
    assert (
        catch_code(peer, state, LabellingHolders(study=peer.study, holders=holders)) == "PFDS-003"
    )


def test_end_with_repeated_or_too_many_holders_is_rejected() -> None:
    peer, state, _ = start_peer()
    for holders in (("peer-0", "peer-0"), (*NAMES, "peer-9")):
        assert (
            catch_code(peer, state, PFDSStudyEnd(study=peer.study, holders=holders)) == "PFDS-003"
        )


def test_changed_label_or_end_is_rejected() -> None:
    peer, state, _ = start_peer()
    label, ended = (
        LabellingHolders(study=peer.study, holders=NAMES),
        PFDSStudyEnd(study=peer.study, holders=NAMES),
    )
    for one, other in permutations([label, label.replace(holders=NAMES[:3])]):
        after, _, _ = give_all(peer, state, [one, one])
        assert catch_code(peer, after, other) == "PFDS-003"
    for first, second in permutations([ended, ended.replace(holders=NAMES[:3])]):
        after, _, _ = give_all(peer, state, [first, first])
        assert catch_code(peer, after, second) == "PFDS-003"


def test_impossible_tree_is_rejected_and_other_pieces_are_kept() -> None:
    peer, state, told = start_peer()
    pieces = [
        message for message in filter_messages(told, ForwardedPiece) if message.holder == "peer-1"
    ]
    bad = pieces[0].replace(
        shared=pieces[0].shared.replace(attributes=Array.from_values(np.array([9], np.int16)))
    )
    state, _, _ = give_all(peer, state, [bad, *pieces[1:3]])
    assert catch_code(peer, state, pieces[3]) == "PFDS-101"
    cut = pieces[4].replace(shared=pieces[4].shared.replace(n_rows=1))
    assert catch_code(peer, state, cut) == "MSG-005"
    assert len(state.pieces) == 3


@pytest.mark.untraced
def test_peer_rejects_or_ignores_garbage() -> None:
    peer, state, told = start_peer()
    made = before(peer, PFDSStudyEnd)[0]
    samples = [filter_messages(told, LabellingHolders)[0], filter_messages(told, PFDSStudyEnd)[0]]
    samples += [
        next(
            one
            for one in filter_messages(told, ForwardedPiece)
            if isinstance(one.shared, kind) and one.holder == "peer-1"
        )
        for kind in (LevelSplits, LeafLabels, SyntheticData)
    ]
    reader = logged("classes")[1]["reader-0"]
    assert survives_garbage(peer, [peer.initial_state(), state, made], samples) > 50
    assert survives_garbage(reader, [reader.initial_state()], samples) > 50
