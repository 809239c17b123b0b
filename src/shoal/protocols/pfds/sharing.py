"""What holders of variant paper have shared so far: kept piece by piece as it is passed on, and checked before anyone uses it.

A tree comes in pieces, one for each level of splits and one for the labels of its leaves, in any order. It is checked when it is whole:
the last piece is refused with a tree that cannot be, so that no such tree is ever whole. Data is one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Element
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import Data, Ended, Label, LeafLabels, Leaves, Left, PassedOn, Splits, floats_in, floats_of
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sharing_data import dataset_of
from shoal.protocols.pfds.tree import Int32s, Level, PrivateTree, check, depth_of

Pieces = tuple[PassedOn, ...]


@dataclass(frozen=True, eq=False)
class PublishedTrees:
    """What a study of variant paper has come to.

    Parameters
    ----------
    trees
        The predictor of each holder whose tree was whole in time, by name; all of them label.
    datasets
        The private labelled data of each holder, by name.
    left_out
        Holders of whom something is missing, and what.
    """

    trees: Mapping[str, PrivateTree]
    datasets: Mapping[str, Dataset]
    left_out: tuple[Left, ...]


def splits_of(study: bytes, level: Level, number: int) -> Splits:
    """A level as it travels."""
    return Splits(study=study, level=number, attributes=Array.of(level.attributes), values=floats_in(level.splits))


def level_of(splits: Splits) -> Level:
    """The level that some splits are; its form is not checked yet."""
    return Level(_numbers(splits.attributes, "int16"), floats_of(splits.values, splits.values.count))


def counts_of(params: Params, leaves: Leaves) -> Int32s:
    """The noisy counts of leaves, ``(n_leaves, n_outcomes)``; the sender's error where they are not so many for each leaf."""
    counts: Int32s = _numbers(leaves.counts, "int32")
    if counts.size == 0 or counts.size % params.n_outcomes:
        raise RemoteProtocolError("PFDS-101", f"{counts.size:,} counts are not {params.n_outcomes} for each leaf of a tree.")
    return counts.reshape(-1, params.n_outcomes)


def labels_of_leaves(params: Params, leaves: Leaves) -> LeafLabels:
    """What is passed on of leaves: which outcome has the highest noisy count."""
    return LeafLabels(study=leaves.study, labels=Array.of(PrivateTree.of(params, (), counts_of(params, leaves)).labels))


def with_piece(params: Params, pieces: Pieces, piece: PassedOn) -> Pieces:
    """All pieces with one more; the same again changes nothing.

    Raises
    ------
    RemoteProtocolError
        A second piece in place of another one, a level that no tree of the study has, a tree that cannot be, or data that cannot be.
    """
    held = [other for other in pieces if other.holder == piece.holder and _place(other) == _place(piece)]
    if held:
        if held != [piece]:
            raise RemoteProtocolError("PFDS-003", "A second tree or dataset is shared under a name that has one.")
        return pieces
    match piece.shared:
        case Splits(level=level) if not 1 <= level < depth_of(params):
            raise RemoteProtocolError("PFDS-101", f"Splits of level {level} are shared; a tree has {depth_of(params)} levels.")
        case Data():
            dataset_of(params, piece.shared)
        case _ if len(tree_pieces(pieces, piece.holder)) == depth_of(params) - 1:
            tree = tree_of(params, (*pieces, piece), piece.holder)
            check(params, tree.levels, tree.labels)
    return (*pieces, piece)


def tree_pieces(pieces: Pieces, holder: str) -> list[PassedOn]:
    """What is there of a holder's tree: its levels from the root's on, then its leaves. A whole tree has as many pieces as levels."""
    return sorted((piece for piece in pieces if piece.holder == holder and not isinstance(piece.shared, Data)), key=_place)


def with_tree(params: Params, pieces: Pieces, holders: Iterable[str]) -> tuple[str, ...]:
    """Those among some holders whose tree is whole."""
    return tuple(holder for holder in holders if len(tree_pieces(pieces, holder)) == depth_of(params))


def with_data(pieces: Pieces, holders: Iterable[str]) -> tuple[str, ...]:
    """Those among some holders whose data is there."""
    sharing = {piece.holder for piece in pieces if isinstance(piece.shared, Data)}
    return tuple(holder for holder in holders if holder in sharing)


def tree_of(params: Params, pieces: Pieces, holder: str) -> PrivateTree:
    """The predictor of a holder whose tree is whole."""
    shared = [piece.shared for piece in tree_pieces(pieces, holder)]
    levels = tuple(level_of(splits) for splits in shared if isinstance(splits, Splits))
    (leaves,) = (leaves for leaves in shared if isinstance(leaves, LeafLabels))
    return PrivateTree(params, levels, _numbers(leaves.labels, "uint8" if params.n_outcomes <= 1 << 8 else "uint16"))


def published(params: Params, pieces: Pieces, label: Label, ended: Ended) -> PublishedTrees:
    """The trees and data of all holders that are named, which must be there."""
    data = {piece.holder: piece.shared for piece in pieces if isinstance(piece.shared, Data)}
    trees = {holder: tree_of(params, pieces, holder) for holder in label.holders}
    return PublishedTrees(trees, {holder: dataset_of(params, data[holder]) for holder in ended.holders}, ended.left_out)


def _place(piece: PassedOn) -> tuple[int, int]:
    """Where a piece belongs among all of its holder."""
    match piece.shared:
        case Splits(level=level):
            return 0, level
        case LeafLabels():
            return 1, 0
    return 2, 0


def _numbers(array: Array, element: Element) -> npt.NDArray[Any]:
    """The numbers of an array of any length, in this machine's order of bytes."""
    return array.expect(element, array.count).astype(np.dtype(element))
