"""The aggregator, and what has been shared so far.

Drivers run it (`shoal.protocols.base`). It forwards the shared trees and data, names the holders of
the labelling trees, and ends the study. Holders do not trust it. It has two phases:

trees
    Wait for a whole tree of every holder; forward each to everyone when it is whole.
data
    After ``LabellingHolders``: wait for the data of every holder with a whole tree; forward each
    dataset when it arrives.

At the end of a phase it continues with what has arrived. A holder without a whole tree by then is
left out with all that it sent; too few trees end the study. A holder without data is left out with
its data only: its tree was shared, and labels. An impossible tree or dataset is rejected and counts
as not sent. Counts of levels are for their holder, which makes its data from them: every release is
sent here, but these are not forwarded.

Shared pieces are stored as they are forwarded, and checked before use. A tree arrives in pieces,
one for each level of splits and one for the labels of its leaves, in any order. It is checked when
it is whole: the last piece of an impossible tree is rejected, so that no such tree is ever whole.
Data is one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Element, Message
from shoal.protocols.base import EVERYONE, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.pfds.aggregator import PFDSAggregatorState, PublishingAggregator
from shoal.protocols.pfds.dataset import Dataset
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
    decode_floats,
    encode_floats,
)
from shoal.protocols.pfds.paper.synthesis import decode_dataset
from shoal.protocols.pfds.paper.tree import (
    Int32s,
    PrivateTree,
    SplitLevel,
    check_tree,
    compute_depth,
)
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.secagg.collector import RoundFailure

Pieces = tuple[ForwardedPiece, ...]


@dataclass(frozen=True, eq=False)
class PFDSPaperResult:
    """Result of a study of variant paper.

    Parameters
    ----------
    trees
        The predictor of each holder with a whole tree in time, by name; all of them label.
    datasets
        The private labelled data of each holder, by name.
    left_out
        Holders with missing pieces, and what is missing.
    """

    trees: Mapping[str, PrivateTree]
    datasets: Mapping[str, Dataset]
    left_out: tuple[LeftOutHolder, ...]


def encode_level(study: bytes, level: SplitLevel, number: int) -> LevelSplits:
    """Return a level as a message."""
    return LevelSplits(
        study=study,
        level=number,
        attributes=Array.from_values(level.attributes),
        values=encode_floats(level.splits),
    )


def decode_level(splits: LevelSplits) -> SplitLevel:
    """Return the level of a message; its shape is not checked yet."""
    return SplitLevel(
        _decode_numbers(splits.attributes, "int16"),
        decode_floats(splits.values, splits.values.count),
    )


def decode_counts(params: PFDSParams, leaves: LeafCounts) -> Int32s:
    """Return the noisy counts of leaves, ``(n_leaves, n_outcomes)``.

    Raise `RemoteProtocolError` if their number is not a multiple of the outcomes.
    """
    counts: Int32s = _decode_numbers(leaves.counts, "int32")
    if counts.size == 0 or counts.size % params.n_outcomes:
        raise RemoteProtocolError(
            "PFDS-101",
            f"The tree has {counts.size:,} counts, not {params.n_outcomes} for each leaf.",
        )
    return counts.reshape(-1, params.n_outcomes)


def label_leaves(params: PFDSParams, leaves: LeafCounts) -> LeafLabels:
    """Return the labels that are forwarded: the outcome with the highest count of each leaf."""
    return LeafLabels(
        study=leaves.study,
        labels=Array.from_values(
            PrivateTree.from_counts(params, (), decode_counts(params, leaves)).labels
        ),
    )


def add_piece(params: PFDSParams, pieces: Pieces, piece: ForwardedPiece) -> Pieces:
    """Return all pieces with one more; a repeated piece changes nothing.

    Raises
    ------
    RemoteProtocolError
        The piece differs from an earlier one in the same place, its level is not in the study's
        trees, or it completes an impossible tree or dataset.
    """
    held = [
        other
        for other in pieces
        if other.holder == piece.holder and _sort_key(other) == _sort_key(piece)
    ]
    if held:
        if held != [piece]:
            raise RemoteProtocolError(
                "PFDS-003", "A holder shared a second, different tree or dataset."
            )
        return pieces
    match piece.shared:
        case LevelSplits(level=level) if not 1 <= level < compute_depth(params):
            raise RemoteProtocolError(
                "PFDS-101",
                f"A tree of {compute_depth(params)} levels has no splits of level {level}.",
            )
        case SyntheticData():
            decode_dataset(params, piece.shared)
        case _ if len(list_tree_pieces(pieces, piece.holder)) == compute_depth(params) - 1:
            tree = assemble_tree(params, (*pieces, piece), piece.holder)
            check_tree(params, tree.levels, tree.labels)
    return (*pieces, piece)


def list_tree_pieces(pieces: Pieces, holder: str) -> list[ForwardedPiece]:
    """Return the pieces of a holder's tree: its levels from the root on, then its leaves.

    A whole tree has the same number of pieces and levels.
    """
    return sorted(
        (
            piece
            for piece in pieces
            if piece.holder == holder and not isinstance(piece.shared, SyntheticData)
        ),
        key=_sort_key,
    )


def list_tree_holders(
    params: PFDSParams, pieces: Pieces, holders: Iterable[str]
) -> tuple[str, ...]:
    """Return those of the holders that have a whole tree."""
    return tuple(
        holder
        for holder in holders
        if len(list_tree_pieces(pieces, holder)) == compute_depth(params)
    )


def list_data_holders(pieces: Pieces, holders: Iterable[str]) -> tuple[str, ...]:
    """Return those of the holders that have shared data."""
    sharing = {piece.holder for piece in pieces if isinstance(piece.shared, SyntheticData)}
    return tuple(holder for holder in holders if holder in sharing)


def assemble_tree(params: PFDSParams, pieces: Pieces, holder: str) -> PrivateTree:
    """Return the predictor of a holder with a whole tree."""
    shared = [piece.shared for piece in list_tree_pieces(pieces, holder)]
    levels = tuple(decode_level(splits) for splits in shared if isinstance(splits, LevelSplits))
    (leaves,) = (leaves for leaves in shared if isinstance(leaves, LeafLabels))
    return PrivateTree(
        params,
        levels,
        _decode_numbers(leaves.labels, "uint8" if params.n_outcomes <= 1 << 8 else "uint16"),
    )


def collect_result(
    params: PFDSParams, pieces: Pieces, label: LabellingHolders, ended: PFDSStudyEnd
) -> PFDSPaperResult:
    """Return the trees and data of all named holders, which must have arrived."""
    data = {
        piece.holder: piece.shared for piece in pieces if isinstance(piece.shared, SyntheticData)
    }
    trees = {holder: assemble_tree(params, pieces, holder) for holder in label.holders}
    return PFDSPaperResult(
        trees,
        {holder: decode_dataset(params, data[holder]) for holder in ended.holders},
        ended.left_out,
    )


def _sort_key(piece: ForwardedPiece) -> tuple[int, int]:
    """Return the position of a piece among all pieces of its holder."""
    match piece.shared:
        case LevelSplits(level=level):
            return 0, level
        case LeafLabels():
            return 1, 0
    return 2, 0


def _decode_numbers(array: Array, element: Element) -> npt.NDArray[Any]:
    """Return the numbers of an array of any length, in this machine's byte order."""
    return array.expect(element, array.count).astype(np.dtype(element))


NO_TREE = "no whole tree arrived in time"
NO_DATA = "its data did not arrive in time; its tree is used for labels"


class PFDSPaperAggregatorState(PFDSAggregatorState):
    """State of the aggregator: the shared pieces.

    Parameters
    ----------
    deadline
        End of the phase; None before the start.
    pieces
        The received pieces.
    label
        The holders of the labelling trees; None in the first phase.
    """

    deadline: Moment | None = None
    pieces: tuple[ForwardedPiece, ...] = ()
    label: LabellingHolders | None = None


class PaperAggregator(PublishingAggregator[PFDSPaperAggregatorState]):
    """Aggregator of variant paper; everything it receives is already private.

    Notes
    -----
    Ref: PFDS Algorithm 2.
    """

    def initial_state(self) -> PFDSPaperAggregatorState:
        return PFDSPaperAggregatorState()

    def on_start(
        self, state: PFDSPaperAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        return self._start_phase(state, now) if state.deadline is None else (state, ())

    def on_message(
        self,
        state: PFDSPaperAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        if sender not in self.names or not isinstance(
            message, LevelSplits | LeafCounts | LevelCounts | SyntheticData
        ):
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} does not send a {message.type_name} in this study."
            )
        if state.is_over or isinstance(message, LevelCounts):
            return state, ()
        if isinstance(message, SyntheticData):
            return self._handle_data(state, sender, message)
        if state.label is not None:
            return state, ()
        shared = label_leaves(self.params, message) if isinstance(message, LeafCounts) else message
        pieces = add_piece(
            self.params,
            state.pieces,
            ForwardedPiece(study=self.study, holder=sender, shared=shared),
        )
        if pieces is state.pieces or not list_tree_holders(self.params, pieces, [sender]):
            return state.replace(pieces=pieces), ()
        passed = tuple(Send(EVERYONE, piece) for piece in list_tree_pieces(pieces, sender))
        state = state.replace(pieces=pieces)
        if len(self._list_whole_trees(state)) < len(self.names):
            return state, passed
        state, effects = self._start_labelling(state, now)
        return state, (*passed, *effects)

    def handle_tick(
        self, state: PFDSPaperAggregatorState, now: datetime
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        if state.deadline is None or now < state.deadline:
            return state, ()
        if state.label is not None:
            return self._finish(state, state.label)
        n, minimum = len(self._list_whole_trees(state)), self.params.minimum
        if n < minimum:
            what = (
                f"The study failed: {n} holders shared a whole tree in time; {minimum} are needed."
            )
            return self.give_up(
                state,
                RoundFailure(code="PFDS-004", what=what, why="Answers already sent are charged."),
                now,
            )
        return self._start_labelling(state, now)

    def _start_phase(
        self, state: PFDSPaperAggregatorState, now: datetime
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        deadline = now + self.phase_timeout
        return state.replace(deadline=deadline), (WakeAt(deadline),)

    def _list_whole_trees(self, state: PFDSPaperAggregatorState) -> tuple[str, ...]:
        return list_tree_holders(self.params, state.pieces, self.names)

    def _start_labelling(
        self, state: PFDSPaperAggregatorState, now: datetime
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        """Name the holders of the labelling trees: those that are whole now."""
        label = LabellingHolders(study=self.study, holders=self._list_whole_trees(state))
        state, effects = self._start_phase(state.replace(label=label), now)
        return state, (Send(EVERYONE, label), *effects)

    def _handle_data(
        self, state: PFDSPaperAggregatorState, sender: str, data: SyntheticData
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        label = state.label
        if label is None or sender not in label.holders:
            raise RemoteProtocolError("PFDS-003", f"{sender} shared data without a whole tree.")
        piece = ForwardedPiece(study=self.study, holder=sender, shared=data)
        pieces = add_piece(self.params, state.pieces, piece)
        if pieces is state.pieces:
            return state, ()
        state = state.replace(pieces=pieces)
        if list_data_holders(pieces, label.holders) != label.holders:
            return state, (Send(EVERYONE, piece),)
        state, effects = self._finish(state, label)
        return state, (Send(EVERYONE, piece), *effects)

    def _finish(
        self, state: PFDSPaperAggregatorState, label: LabellingHolders
    ) -> tuple[PFDSPaperAggregatorState, Effects]:
        sharing = list_data_holders(state.pieces, label.holders)
        missing = [name for name in self.names if name not in sharing]
        left_out = tuple(
            LeftOutHolder(holder=name, reason=NO_DATA if name in label.holders else NO_TREE)
            for name in missing
        )
        ended = PFDSStudyEnd(study=self.study, holders=sharing, left_out=left_out)
        result = collect_result(self.params, state.pieces, label, ended)
        return state.replace(is_over=True), (Send(EVERYONE, ended), Finish(result))
