"""Peers of variant paper: what a holder releases and when, and what it makes of an aggregator that does not keep to the rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from machine_runs import before, endings, give, spent
from pfds_cases import cost
from pfds_sharing import NAMES, STUDIES, Logged, logged, make, same_release, same_tree
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import START, Abort, Finish, MemoryLedger, Outbound, Received, Started
from shoal.protocols.pfds.messages import Data, Ended, Label, LeafLabels, Leaves, Left, LevelCounts, PassedOn, Splits
from shoal.protocols.pfds.paper import questions
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.pfds.sharing_peer import HearingTrees, SharingPeer, SharingReader, SharingTrees
from toy.garbage import survives_garbage


def heard() -> tuple[Logged, SharingTrees, list[Any]]:
    """A holder that has released everything, and all that it was told after that, in order."""
    peer = logged("classes")[1]["peer-0"]
    return peer, before(peer, PassedOn)[0], [given.message for _, given in peer.log if isinstance(given, Received)]


def given(peer: Any, state: Any, messages: list[Message]) -> tuple[Any, list[Message], list[Finish | Abort]]:
    sent, ended = [], []
    for message in messages:
        state, out, work = give(peer, load(dump(state), type(state)), message)
        sent, ended = [*sent, *out], [*ended, *endings(work)]
    return state, sent, ended


def refusal(peer: Any, state: Any, message: Message) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message)
    return caught.value.code


def of_kind(told: list[Any], kind: type[Any]) -> list[Any]:
    return [message for message in told if isinstance(message, kind)]


# What a holder releases.


@pytest.mark.parametrize("name", STUDIES)
def test_all_questions_are_answered_at_the_start_each_once_at_its_price(name: str) -> None:
    peer, ledger = make(name)[1]["peer-0"], MemoryLedger()
    state, sent, work = give(peer, peer.initial(), Started(), ledger)
    asked = questions(peer.params)
    assert [item.question for item in work if isinstance(item, Outbound)] == list(asked)
    kinds = {"split": Splits, "leaves": Leaves, "count": LevelCounts}
    assert [type(message) for message in sent] == [kinds[question.partition("/")[0]] for question in asked]
    assert [message.level for message in sent if isinstance(message, Splits)] == list(range(1, len(of_kind(sent, Splits)) + 1))
    assert [message.level for message in sent if isinstance(message, LevelCounts)] == list(range(1, len(of_kind(sent, LevelCounts)) + 1))
    assert state.own == tuple(sent)
    for question in asked:
        ledger.mark_sending(peer.study.hex(), question)
    assert spent(ledger) == cost(peer, asked) <= grains_up(peer.params.epsilon)


def test_what_the_ledger_holds_is_taken_up_again_and_not_drawn_again() -> None:
    peer, ledger = make("classes")[1]["peer-0"], MemoryLedger()
    first = give(peer, peer.initial(), Started(), ledger, seed=1)
    again = give(peer, peer.initial(), Started(), ledger, seed=2)
    assert again == first
    assert give(peer, first[0], Started(), ledger, seed=3) == (first[0], [], ())


def test_a_study_without_noise_has_no_peers() -> None:
    peer = make("classes")[1]["peer-0"]
    with pytest.raises(LocalProtocolError, match="without noise"):
        SharingPeer(replace(peer.params, epsilon=float("inf")), peer.study, "peer-0", peer._points.reveal())


def test_questions_that_the_study_does_not_ask_have_no_price() -> None:
    _, peers = make("classes")
    for question in ("split/0", "split/4", "count/3", "tables", ""):
        for name in ("peer-0", "reader-0"):
            with pytest.raises(RemoteProtocolError) as caught:
                peers[name].price(question)
            assert caught.value.code == "PROTO-002"
    reader = peers["reader-0"]
    with pytest.raises(RemoteProtocolError):
        reader.answer(reader.initial(), "split/1", SeededEntropy(1))


def test_rows_are_not_in_what_is_saved_or_shown() -> None:
    peer = make("classes")[1]["peer-0"]
    assert "Private" in repr(peer._points)
    with pytest.raises(LocalProtocolError):
        Leaves(study=peer.study, counts=peer._points)


# Data.


def test_data_is_made_once_when_the_last_tree_is_there_whatever_comes_last() -> None:
    peer, state, told = heard()
    trees = [message for message in of_kind(told, PassedOn) if not isinstance(message.shared, Data)]
    (label,) = of_kind(told, Label)
    assert len(trees) == 16
    for last in (label, trees[0], trees[7], trees[-1]):
        others = [message for message in (*trees, label) if message is not last]
        almost, sent, _ = given(peer, state, others)
        assert sent == [] and almost.data is None
        done, sent, _ = given(peer, almost, [last])
        (data,) = sent
        assert isinstance(data, Data) and done.data == data
        assert given(peer, done, [last, label, trees[3]]) == (done, [], []), "what comes twice sends nothing"


def test_data_that_was_sent_is_what_was_published() -> None:
    _, peers, published = logged("classes")
    for name in NAMES:
        state = before(peers[name], Ended)[0]
        assert state.data is not None and state.data.n_rows == len(published.datasets[name])


def test_who_is_not_named_makes_no_data_and_still_hears_everything() -> None:
    peer, state, told = heard()
    label = Label(study=peer.study, holders=NAMES[1:])
    ended = Ended(study=peer.study, holders=NAMES[1:], left_out=(Left(holder="peer-0", reason="it was late"),))
    others = [message for message in of_kind(told, PassedOn) if message.holder != "peer-0"]
    _, sent, (ending,) = given(peer, state, [*others, label, ended])
    assert sent == [] and isinstance(ending, Finish) and isinstance(ending.result, PublishedTrees)
    assert tuple(ending.result.trees) == tuple(ending.result.datasets) == NAMES[1:] and ending.result.left_out == ended.left_out


def test_without_its_own_answers_a_peer_makes_no_data() -> None:
    """It was told before it was started; it hears, and has nothing to share."""
    peer, _, told = heard()
    messages = [message for message in told if getattr(message, "holder", "") != "peer-0" and not isinstance(message, Ended)]
    state, sent, ended = given(peer, peer.initial(), [*messages])
    assert state.label is not None and sent == ended == []


# The end.


@pytest.mark.parametrize("name", STUDIES)
def test_a_reader_finishes_with_the_same_whatever_the_order(name: str) -> None:
    _, peers, published = logged(name)
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    reader = peers["reader-0"]
    assert isinstance(reader, SharingReader)
    for messages in (told, told[::-1], told[5:] + told[:5]):
        state, sent, (ending,) = given(reader, reader.initial(), messages)
        assert isinstance(state, HearingTrees) and state.is_over and sent == []
        assert isinstance(ending, Finish) and same_release(ending.result, published)
        assert given(reader, state, told) == (state, [], []), "after the end nothing matters"


def test_the_end_waits_for_all_that_it_names() -> None:
    _, peers, _ = logged("classes")
    reader = peers["reader-0"]
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    (label,), (ended,), passed = (of_kind(told, kind) for kind in (Label, Ended, PassedOn))
    for last in (label, ended, passed[0], passed[-1]):
        others = [message for message in told if message is not last]
        state, _, endings_so_far = given(reader, reader.initial(), others)
        assert endings_so_far == [] and not state.is_over
        assert len(given(reader, state, [last])[2]) == 1


def test_a_study_that_is_given_up_is_given_up_for_its_reason() -> None:
    peer, state, _ = heard()
    state, _, (ending,) = given(peer, state, [Ended(study=peer.study, reason="too few\x1b[2J")])
    assert isinstance(ending, Abort) and ending.error.code == "PFDS-004" and "too few" in str(ending.error)
    assert "\x1b" not in str(ending.error) and state.is_over


def test_trees_without_data_are_a_result() -> None:
    _, peers, published = logged("classes")
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    trees = [message for message in of_kind(told, PassedOn) if not isinstance(message.shared, Data)]
    reader = peers["reader-0"]
    ended = Ended(study=reader.study)
    _, _, (ending,) = given(reader, reader.initial(), [*trees, *of_kind(told, Label), ended])
    assert isinstance(ending, Finish) and isinstance(ending.result, PublishedTrees) and ending.result.datasets == {}
    assert all(same_tree(ending.result.trees[name], published.trees[name]) for name in NAMES)


# An aggregator that does not keep to the rules.


def test_what_an_aggregator_does_not_send_is_refused() -> None:
    peer, state, _ = heard()
    for message in state.own:
        assert refusal(peer, state, message) == "PROTO-003"
    assert refusal(peer, state.replace(is_over=True), state.own[0]) == "PROTO-003"
    with pytest.raises(RemoteProtocolError):
        peer.step(state, Received("peer-1", Label(study=peer.study, holders=NAMES)), START, SeededEntropy(1))


def test_under_its_own_name_a_holder_knows_what_it_shared() -> None:
    peer, state, told = heard()
    own = {type(message.shared): message for message in of_kind(told, PassedOn) if message.holder == "peer-0"}
    other = {type(message.shared): message for message in of_kind(told, PassedOn) if message.holder == "peer-1"}
    made, _, _ = given(peer, state, [message for message in told if not isinstance(getattr(message, "shared", None), Data | Ended)][:-1])
    assert made.data is not None
    for kind in (Splits, LeafLabels, Data):
        assert refusal(peer, made, other[kind].replace(holder="peer-0")) == "PFDS-003"
        again = give(peer, made, own[kind])[0] if kind is not Data else give(peer, made, own[kind].replace(shared=made.data))[0]
        assert len(again.pieces) == len(made.pieces) + (kind is Data)
    assert refusal(peer, peer.initial(), own[Splits]) == refusal(peer, peer.initial(), own[LeafLabels]) == "PFDS-003"
    forgetful = state.replace(data=None)
    assert give(peer, forgetful, own[Data])[0].pieces == (own[Data],), "it has lost its state, and cannot know"


def test_of_more_holders_than_the_study_has_nothing_is_kept() -> None:
    _, peers, _ = logged("classes")
    reader = peers["reader-0"]
    told = [given.message for _, given in peers["peer-0"].log if isinstance(given, Received)]
    state, _, _ = given(reader, reader.initial(), of_kind(told, PassedOn))
    assert refusal(reader, state, of_kind(told, PassedOn)[0].replace(holder="stranger")) == "PFDS-003"


@pytest.mark.parametrize(
    "holders",
    [NAMES[:2], (), ("peer-0", "peer-0", "peer-1"), (*NAMES, "peer-9"), (*NAMES, *NAMES)],
    ids=["few", "none", "twice", "many", "all"],
)
def test_a_label_names_enough_different_holders(holders: tuple[str, ...]) -> None:
    peer, state, _ = heard()
    assert refusal(peer, state, Label(study=peer.study, holders=holders)) == "PFDS-003"


def test_the_end_names_different_holders() -> None:
    peer, state, _ = heard()
    for holders in (("peer-0", "peer-0"), (*NAMES, "peer-9")):
        assert refusal(peer, state, Ended(study=peer.study, holders=holders)) == "PFDS-003"


def test_a_second_label_or_end_that_differs_is_refused() -> None:
    peer, state, _ = heard()
    label, ended = Label(study=peer.study, holders=NAMES), Ended(study=peer.study, holders=NAMES)
    for one, other in permutations([label, label.replace(holders=NAMES[:3])]):
        after, _, _ = given(peer, state, [one, one])
        assert refusal(peer, after, other) == "PFDS-003"
    for first, second in permutations([ended, ended.replace(holders=NAMES[:3])]):
        after, _, _ = given(peer, state, [first, first])
        assert refusal(peer, after, second) == "PFDS-003"


def test_a_tree_that_cannot_be_is_refused_and_the_rest_is_kept() -> None:
    peer, state, told = heard()
    pieces = [message for message in of_kind(told, PassedOn) if message.holder == "peer-1"]
    bad = pieces[0].replace(shared=pieces[0].shared.replace(attributes=Array.of(np.array([9], np.int16))))
    state, _, _ = given(peer, state, [bad, *pieces[1:3]])
    assert refusal(peer, state, pieces[3]) == "PFDS-101"
    cut = pieces[4].replace(shared=pieces[4].shared.replace(n_rows=1))
    assert refusal(peer, state, cut) == "MSG-005"
    assert len(state.pieces) == 3


@pytest.mark.untraced
def test_garbage_is_borne_in_every_field() -> None:
    peer, state, told = heard()
    made = before(peer, Ended)[0]
    samples = [of_kind(told, Label)[0], of_kind(told, Ended)[0]]
    samples += [
        next(one for one in of_kind(told, PassedOn) if isinstance(one.shared, kind) and one.holder == "peer-1")
        for kind in (Splits, LeafLabels, Data)
    ]
    reader = logged("classes")[1]["reader-0"]
    assert survives_garbage(peer, [peer.initial(), state, made], samples) > 50
    assert survives_garbage(reader, [reader.initial()], samples) > 50
