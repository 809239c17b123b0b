"""The peers of variant paper: a holder that shares its tree and then its data, and a reader that shares nothing.

=====================  =================================================================================================================
given                  done
=====================  =================================================================================================================
``Started``            (sharer) put the first question to the ledger; each that is answered is followed by the next
granted                draw the level, the leaves or the counts from the rows and the levels before
``PassedOn``           check it and keep it
``Label``              keep it; (sharer) when all trees that it names are there, make and send the data, once
``Ended``              when all that it names is there, finish with it; or give up for the reason that it says
=====================  =================================================================================================================

What is passed on, ``Label`` and ``Ended`` may come in any order. Whether others' trees and data are what those holders shared, only a
holder's signature can say; an aggregator that changes them spoils the result, and learns nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import AGGREGATOR, Effects, Finish, Peer, PeerState, Send, unpriced
from shoal.protocols.pfds.growing import draw_leaves, draw_splits
from shoal.protocols.pfds.joining import checked_prices
from shoal.protocols.pfds.messages import MESSAGES, Data, Ended, Label, LeafLabels, Leaves, LevelCounts, Names, PassedOn, Splits
from shoal.protocols.pfds.paper import Points, prices, questions
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.reader import ending
from shoal.protocols.pfds.sharing import (
    PublishedTrees,
    counts_of,
    labels_of_leaves,
    level_of,
    published,
    splits_of,
    tree_of,
    with_data,
    with_piece,
    with_tree,
)
from shoal.protocols.pfds.sharing_data import data_of, synthesise
from shoal.protocols.pfds.synthesis import draw_counts
from shoal.protocols.pfds.tree import PrivateTree


class HearingTrees(PeerState):
    """What was published so far.

    Parameters
    ----------
    pieces
        What was passed on, checked.
    label, ended
        Whose trees label, and whose data there is.
    is_over
        Whether the peer has finished or given up.
    """

    pieces: tuple[PassedOn, ...] = ()
    label: Label | None = None
    ended: Ended | None = None
    is_over: bool = False


class SharingTrees(HearingTrees):
    """What a sharer has released, too.

    Parameters
    ----------
    own
        The answers to its questions, in order.
    data
        Its labelled data, when it is made.
    """

    own: tuple[Splits | Leaves | LevelCounts, ...] = ()
    data: Data | None = None


H = TypeVar("H", bound=HearingTrees)


class TreesHearer(Peer[H]):
    """A peer that ends with all that holders have shared.

    Parameters
    ----------
    params
        The public figures of the study.
    study
        Digest of the manifest.
    """

    messages = MESSAGES

    def __init__(self, params: Params, study: bytes) -> None:
        self.params = params
        self.study = study

    def received(self, state: H, message: Message, now: datetime, entropy: Entropy) -> tuple[H, Effects]:
        if not isinstance(message, PassedOn | Label | Ended):
            raise RemoteProtocolError("PROTO-003", f"An aggregator does not send a {message.type_name}.")
        if state.is_over:
            return state, ()
        if isinstance(message, Ended) and message.reason is not None:
            return state.replace(is_over=True), ending(message)
        match message:
            case PassedOn():
                state = self._passed_on(state, message)
            case Label():
                state = self._label(state, message)
            case _:
                state = self._ended(state, message)
        state, effects = self.heard(state, entropy)
        result = self._result(state)
        return (state, effects) if result is None else (state.replace(is_over=True), (*effects, Finish(result)))

    def heard(self, state: H, entropy: Entropy) -> tuple[H, Effects]:
        """Go on once more is known."""
        return state, ()

    def _passed_on(self, state: H, message: PassedOn) -> H:
        holders = {piece.holder for piece in state.pieces} | {message.holder}
        if len(holders) > self.params.n_holders:
            raise _not_due(f"Something is passed on of one holder more than the {self.params.n_holders} of the study")
        return state.replace(pieces=with_piece(self.params, state.pieces, message))

    def _label(self, state: H, label: Label) -> H:
        if state.label not in (None, label):
            raise _not_due("Data is to be labelled by other trees than before")
        if len(label.holders) < self.params.minimum:
            raise _not_due(f"Data is to be labelled by {len(label.holders)} trees, where {self.params.minimum} are needed")
        self._check_names(label.holders)
        return state.replace(label=label)

    def _ended(self, state: H, ended: Ended) -> H:
        if state.ended not in (None, ended):
            raise _not_due("The study has ended, and now ends otherwise")
        self._check_names(ended.holders)
        return state.replace(ended=ended)

    def _check_names(self, holders: Names) -> None:
        if len(set(holders)) != len(holders) or len(holders) > self.params.n_holders:
            raise _not_due("Holders are named who cannot all be different ones of the study")

    def _result(self, state: H) -> PublishedTrees | None:
        """All that was shared, when all is there that was said to be."""
        label, ended, pieces = state.label, state.ended, state.pieces
        if label is None or ended is None:
            return None
        is_there = with_tree(self.params, pieces, label.holders) == label.holders and with_data(pieces, ended.holders) == ended.holders
        return published(self.params, pieces, label, ended) if is_there else None


class SharingReader(TreesHearer[HearingTrees]):
    """Shares nothing, and takes what others share. It asks its ledger for nothing."""

    def initial(self) -> HearingTrees:
        return HearingTrees()

    def price(self, question: str) -> Event:
        raise unpriced(question)

    def answer(self, state: HearingTrees, question: str, entropy: Entropy) -> Message:
        raise unpriced(question)


class SharingPeer(TreesHearer[SharingTrees]):
    """A holder that shares its tree and its data.

    Parameters
    ----------
    params, study
        The public figures of the study, and the digest of its manifest.
    name
        How everyone calls this holder.
    points
        The holder's rows, at most as many of one unit as the study allows.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01, P-03.

    Privacy
    -------
    The scope of the study's parameters. Each level, the leaves and each level's counts are a question of their own, priced by the study
    and answered once; all of them together cost the study's epsilon. The data follows from the answers, and is free.
    """

    def __init__(self, params: Params, study: bytes, name: str, points: Points) -> None:
        super().__init__(params, study)
        self.name = name
        self.questions = questions(params)
        self._points = Private(points)
        self._prices = self.prices()

    def prices(self) -> Mapping[str, Event]:
        """What every question costs."""
        return checked_prices(self.params, {} if self.params.is_bare else prices(self.params))

    def initial(self) -> SharingTrees:
        return SharingTrees()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced(question)
        return self._prices[question]

    def started(self, state: SharingTrees, now: datetime, entropy: Entropy) -> tuple[SharingTrees, Effects]:
        return self.ask(state, self.questions[0])

    def answer(self, state: SharingTrees, question: str, entropy: Entropy) -> Message:
        params, points = self.params, self._points.reveal()
        levels = [level_of(splits) for splits in state.own if isinstance(splits, Splits)]
        kind, _, number = question.partition("/")
        if kind == "split":
            return splits_of(self.study, draw_splits(params, points, levels, entropy), len(levels) + 1)
        if kind == "leaves":
            return Leaves(study=self.study, counts=Array.of(draw_leaves(params, points, levels, entropy).ravel()))
        counts = draw_counts(params, points, levels, int(number), entropy)
        return LevelCounts(study=self.study, level=int(number), counts=Array.of(counts))

    def released(self, state: SharingTrees, question: str, message: Message) -> tuple[SharingTrees, Effects]:
        state = state.replace(own=(*state.own, message))
        following = self.questions[len(state.own) :]
        return self.ask(state, following[0]) if following else (state, ())

    def heard(self, state: SharingTrees, entropy: Entropy) -> tuple[SharingTrees, Effects]:
        label = state.label
        if label is None or self.name not in label.holders or state.data is not None:
            return state, ()
        if with_tree(self.params, state.pieces, label.holders) != label.holders:
            return state, ()
        trees = (tree_of(self.params, state.pieces, holder) for holder in label.holders)
        counts = [message.counts.expect("int64", message.counts.count) for message in state.own if isinstance(message, LevelCounts)]
        dataset = synthesise(self.params, self._tree(state), counts, trees, entropy)
        data = data_of(self.params, self.study, dataset)
        return state.replace(data=data), (Send(AGGREGATOR, data),)

    def _tree(self, state: SharingTrees) -> PrivateTree:
        """The holder's tree with its counts."""
        (leaves,) = (message for message in state.own if isinstance(message, Leaves))
        levels = [level_of(splits) for splits in state.own if isinstance(splits, Splits)]
        return PrivateTree.of(self.params, levels, counts_of(self.params, leaves))

    def _passed_on(self, state: SharingTrees, message: PassedOn) -> SharingTrees:
        if message.holder == self.name and not self._is_own(state, message.shared):
            raise _not_due("Something is passed on under this holder's name that it did not share")
        return super()._passed_on(state, message)

    def _is_own(self, state: SharingTrees, shared: Splits | LeafLabels | Data) -> bool:
        match shared:
            case Splits():
                return shared in state.own
            case LeafLabels():
                return any(shared == labels_of_leaves(self.params, one) for one in state.own if isinstance(one, Leaves))
        # A peer that has lost its state does not know what it sent.
        return state.data in (None, shared)


def _not_due(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-003", f"{what}.")
