"""Sharing and read-only peers of variant paper.

Drivers run them (`shoal.protocols.base`). A sharing holder shares its tree and then its data; a
read-only peer shares nothing.

- start: (sharing) put the first question to the ledger; after each answer, put the next.
- granted: draw the level, the leaves or the counts from the rows and the levels before.
- ``ForwardedPiece``: check it and store it.
- ``LabellingHolders``: store it; (sharing) when all trees that it names have arrived, make and send
  the data, once.
- ``PFDSStudyEnd``: when all data that it names has arrived, finish with it; or abort with the
  reason that it gives.

``ForwardedPiece``, ``LabellingHolders`` and ``PFDSStudyEnd`` may arrive in any order. Only a
holder's signature could prove that forwarded trees and data are what that holder shared. An
aggregator that changes them spoils the result, and learns nothing by it.
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
from shoal.protocols.base import (
    AGGREGATOR,
    Effects,
    Finish,
    Peer,
    PeerState,
    Send,
    unpriced_question_error,
)
from shoal.protocols.pfds.messages import (
    MESSAGES,
    ForwardedPiece,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LevelCounts,
    LevelSplits,
    Names,
    PFDSStudyEnd,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import (
    PFDSPaperResult,
    add_piece,
    assemble_tree,
    collect_result,
    decode_counts,
    decode_level,
    encode_level,
    label_leaves,
    list_data_holders,
    list_tree_holders,
)
from shoal.protocols.pfds.paper.growth import draw_leaves, draw_splits
from shoal.protocols.pfds.paper.script import TreeRows, compute_prices, list_questions
from shoal.protocols.pfds.paper.synthesis import draw_counts, encode_dataset, synthesise
from shoal.protocols.pfds.paper.tree import PrivateTree
from shoal.protocols.pfds.params import PFDSParams, check_prices
from shoal.protocols.pfds.peer import make_ending_effects


class PFDSPaperPeerState(PeerState):
    """State of a peer: the pieces published so far.

    Parameters
    ----------
    pieces
        The forwarded pieces, checked.
    label, ended
        The holders of the labelling trees, and the holders of the shared data.
    is_over
        Whether the peer has finished or aborted.
    """

    pieces: tuple[ForwardedPiece, ...] = ()
    label: LabellingHolders | None = None
    ended: PFDSStudyEnd | None = None
    is_over: bool = False


class PFDSPaperSharerState(PFDSPaperPeerState):
    """State of a sharing peer: also its own releases.

    Parameters
    ----------
    own
        The answers to its questions, in order.
    data
        Its labelled data, once made.
    """

    own: tuple[LevelSplits | LeafCounts | LevelCounts, ...] = ()
    data: SyntheticData | None = None


H = TypeVar("H", bound=PFDSPaperPeerState)


class PaperListeningPeer(Peer[H]):
    """Base class of peers that finish with all shared trees and data.

    Parameters
    ----------
    study
        Digest of the manifest.
    """

    messages = MESSAGES

    def __init__(self, params: PFDSParams, study: bytes) -> None:
        self.params = params
        self.study = study

    def on_message(
        self, state: H, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[H, Effects]:
        if not isinstance(message, ForwardedPiece | LabellingHolders | PFDSStudyEnd):
            raise RemoteProtocolError(
                "PROTO-003", f"An aggregator does not send a {message.type_name}."
            )
        if state.is_over:
            return state, ()
        if isinstance(message, PFDSStudyEnd) and message.reason is not None:
            return state.replace(is_over=True), make_ending_effects(message)
        match message:
            case ForwardedPiece():
                state = self._handle_piece(state, message)
            case LabellingHolders():
                state = self._handle_label(state, message)
            case _:
                state = self._handle_end(state, message)
        state, effects = self.advance(state, entropy)
        result = self._find_result(state)
        return (
            (state, effects)
            if result is None
            else (state.replace(is_over=True), (*effects, Finish(result)))
        )

    def advance(self, state: H, entropy: Entropy) -> tuple[H, Effects]:
        """Continue after a new message; by default do nothing."""
        return state, ()

    def _handle_piece(self, state: H, message: ForwardedPiece) -> H:
        holders = {piece.holder for piece in state.pieces} | {message.holder}
        if len(holders) > self.params.n_holders:
            raise _unexpected_error(
                "The aggregator forwarded pieces of more holders than the "
                f"{self.params.n_holders} of the study"
            )
        return state.replace(pieces=add_piece(self.params, state.pieces, message))

    def _handle_label(self, state: H, label: LabellingHolders) -> H:
        if state.label not in (None, label):
            raise _unexpected_error("The aggregator changed the list of labelling trees")
        if len(label.holders) < self.params.minimum:
            raise _unexpected_error(
                f"The aggregator named {len(label.holders)} labelling trees; "
                f"{self.params.minimum} are needed"
            )
        self._check_names(label.holders)
        return state.replace(label=label)

    def _handle_end(self, state: H, ended: PFDSStudyEnd) -> H:
        if state.ended not in (None, ended):
            raise _unexpected_error("The aggregator ended the study twice, differently")
        self._check_names(ended.holders)
        return state.replace(ended=ended)

    def _check_names(self, holders: Names) -> None:
        if len(set(holders)) != len(holders) or len(holders) > self.params.n_holders:
            raise _unexpected_error(
                "The aggregator named a holder twice, or more holders than the study has"
            )

    def _find_result(self, state: H) -> PFDSPaperResult | None:
        """Return all shared trees and data, once everything announced has arrived."""
        label, ended, pieces = state.label, state.ended, state.pieces
        if label is None or ended is None:
            return None
        is_there = (
            list_tree_holders(self.params, pieces, label.holders) == label.holders
            and list_data_holders(pieces, ended.holders) == ended.holders
        )
        return collect_result(self.params, pieces, label, ended) if is_there else None


class PaperReadOnlyPeer(PaperListeningPeer[PFDSPaperPeerState]):
    """Peer that shares nothing and receives what others share. It never asks its ledger."""

    def initial_state(self) -> PFDSPaperPeerState:
        return PFDSPaperPeerState()

    def price(self, question: str) -> Event:
        raise unpriced_question_error(question)

    def answer(self, state: PFDSPaperPeerState, question: str, entropy: Entropy) -> Message:
        raise unpriced_question_error(question)


class PaperPeer(PaperListeningPeer[PFDSPaperSharerState]):
    """Peer of a holder that shares its tree and its data.

    Parameters
    ----------
    study
        Digest of the manifest.
    name
        The holder's name in the study.
    points
        The holder's rows, with at most ``max_rows`` of one unit.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01, P-03.

    Privacy
    -------
    The scope of the study's parameters. Each level, the leaves and each level's counts are a
    separate question, priced by the study and answered once; all of them together cost the study's
    epsilon. The data follows from the answers, and is free.
    """

    def __init__(self, params: PFDSParams, study: bytes, name: str, points: TreeRows) -> None:
        super().__init__(params, study)
        self.name = name
        self.questions = list_questions(params)
        self._points = Private(points)
        self._prices = self.compute_prices()

    def compute_prices(self) -> Mapping[str, Event]:
        """Return the price of every question."""
        return check_prices(
            self.params, {} if self.params.is_noiseless else compute_prices(self.params)
        )

    def initial_state(self) -> PFDSPaperSharerState:
        return PFDSPaperSharerState()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced_question_error(question)
        return self._prices[question]

    def on_start(
        self, state: PFDSPaperSharerState, now: datetime, entropy: Entropy
    ) -> tuple[PFDSPaperSharerState, Effects]:
        return self.ask(state, self.questions[0])

    def answer(self, state: PFDSPaperSharerState, question: str, entropy: Entropy) -> Message:
        params, points = self.params, self._points.reveal()
        levels = [decode_level(splits) for splits in state.own if isinstance(splits, LevelSplits)]
        kind, _, number = question.partition("/")
        if kind == "split":
            return encode_level(
                self.study, draw_splits(params, points, levels, entropy), len(levels) + 1
            )
        if kind == "leaves":
            return LeafCounts(
                study=self.study,
                counts=Array.from_values(draw_leaves(params, points, levels, entropy).ravel()),
            )
        counts = draw_counts(params, points, levels, int(number), entropy)
        return LevelCounts(study=self.study, level=int(number), counts=Array.from_values(counts))

    def on_answer_stored(
        self, state: PFDSPaperSharerState, question: str, message: Message
    ) -> tuple[PFDSPaperSharerState, Effects]:
        state = state.replace(own=(*state.own, message))
        following = self.questions[len(state.own) :]
        return self.ask(state, following[0]) if following else (state, ())

    def advance(
        self, state: PFDSPaperSharerState, entropy: Entropy
    ) -> tuple[PFDSPaperSharerState, Effects]:
        label = state.label
        if label is None or self.name not in label.holders or state.data is not None:
            return state, ()
        if list_tree_holders(self.params, state.pieces, label.holders) != label.holders:
            return state, ()
        trees = (assemble_tree(self.params, state.pieces, holder) for holder in label.holders)
        counts = [
            message.counts.expect("int64", message.counts.count)
            for message in state.own
            if isinstance(message, LevelCounts)
        ]
        dataset = synthesise(self.params, self._build_own_tree(state), counts, trees, entropy)
        data = encode_dataset(self.params, self.study, dataset)
        return state.replace(data=data), (Send(AGGREGATOR, data),)

    def _build_own_tree(self, state: PFDSPaperSharerState) -> PrivateTree:
        """Return the holder's tree with its counts."""
        (leaves,) = (message for message in state.own if isinstance(message, LeafCounts))
        levels = [decode_level(splits) for splits in state.own if isinstance(splits, LevelSplits)]
        return PrivateTree.from_counts(self.params, levels, decode_counts(self.params, leaves))

    def _handle_piece(
        self, state: PFDSPaperSharerState, message: ForwardedPiece
    ) -> PFDSPaperSharerState:
        if message.holder == self.name and not self._is_own(state, message.shared):
            raise _unexpected_error(
                "The aggregator forwarded a piece under this holder's name that it did not share"
            )
        return super()._handle_piece(state, message)

    def _is_own(
        self, state: PFDSPaperSharerState, shared: LevelSplits | LeafLabels | SyntheticData
    ) -> bool:
        match shared:
            case LevelSplits():
                return shared in state.own
            case LeafLabels():
                return any(
                    shared == label_leaves(self.params, one)
                    for one in state.own
                    if isinstance(one, LeafCounts)
                )
        # A peer that lost its state has no record of what it sent.
        return state.data in (None, shared)


def _unexpected_error(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-003", f"{what}.")
