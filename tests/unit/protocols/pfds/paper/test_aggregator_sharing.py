"""Pieces of trees: any order, each once, and no impossible tree is accepted."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from shoal.data.schema import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import decode, dumps, encode, loads
from shoal.protocols.pfds.messages import (
    MESSAGES,
    ForwardedPiece,
    LeafCounts,
    LeafLabels,
    LevelCounts,
    LevelSplits,
    SyntheticData,
    encode_floats,
)
from shoal.protocols.pfds.paper import aggregator
from shoal.protocols.pfds.paper.aggregator import (
    add_piece,
    assemble_tree,
    decode_counts,
    encode_level,
    label_leaves,
    list_data_holders,
    list_tree_holders,
    list_tree_pieces,
)
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.tree import MAX_COUNTS, PrivateTree, SplitLevel, compute_max_leaves
from shoal.protocols.pfds.params import PFDSParams
from tests.support.pfds_paper import SCHEMA, make_level, make_params, random_points, same_tree

STUDY = bytes(32)
PARAMS = make_params(max_depth=3)


def make_tree(params: PFDSParams = PARAMS, seed: int = 1) -> PrivateTree:
    return grow_tree(params, random_points(params, 30, seed), SeededEntropy(seed))


def make_piece(
    shared: LevelSplits | LeafLabels | SyntheticData, holder: str = "peer-0"
) -> ForwardedPiece:
    return ForwardedPiece(study=STUDY, holder=holder, shared=shared)


def encode_leaves(tree: PrivateTree) -> LeafCounts:
    assert tree.counts is not None
    return LeafCounts(study=STUDY, counts=Array.from_values(tree.counts.ravel()))


def list_pieces(tree: PrivateTree, holder: str = "peer-0") -> list[ForwardedPiece]:
    splits = [
        make_piece(encode_level(STUDY, level, i), holder) for i, level in enumerate(tree.levels, 1)
    ]
    return [*splits, make_piece(label_leaves(tree.params, encode_leaves(tree)), holder)]


def add_pieces(params: PFDSParams, pieces: list[ForwardedPiece]) -> aggregator.Pieces:
    found: aggregator.Pieces = ()
    for piece in pieces:
        found = add_piece(params, found, piece)
    return found


def catch_code(params: PFDSParams, pieces: list[ForwardedPiece]) -> str:
    before = add_pieces(params, pieces[:-1])
    with pytest.raises(RemoteProtocolError) as caught:
        add_piece(params, before, pieces[-1])
    return caught.value.code


def test_tree_does_not_depend_on_the_order_of_its_pieces() -> None:
    tree = make_tree()
    for order in permutations(list_pieces(tree)):
        found = add_pieces(PARAMS, list(order[:-1]))
        assert list_tree_holders(PARAMS, found, ["peer-0"]) == ()
        found = add_piece(PARAMS, found, order[-1])
        assert list_tree_holders(PARAMS, found, ["peer-1", "peer-0"]) == ("peer-0",)
        assert list_tree_pieces(found, "peer-0") == list_pieces(tree)
        again = assemble_tree(PARAMS, found, "peer-0")
        assert same_tree(tree, again) and again.counts is None


def test_trees_of_several_holders_do_not_mix() -> None:
    one, other = make_tree(seed=1), make_tree(seed=2)
    mixed = [
        piece
        for pair in zip(list_pieces(one), list_pieces(other, "peer-1"), strict=True)
        for piece in pair
    ]
    found = add_pieces(PARAMS, mixed)
    assert same_tree(assemble_tree(PARAMS, found, "peer-0"), one) and same_tree(
        assemble_tree(PARAMS, found, "peer-1"), other
    )
    assert list_data_holders(found, ["peer-0", "peer-1"]) == ()


def test_repeated_piece_is_ignored_and_changed_piece_rejected() -> None:
    pieces = list_pieces(make_tree())
    found = add_pieces(PARAMS, pieces)
    for piece in pieces:
        assert add_piece(PARAMS, found, piece) is found
    for other in list_pieces(make_tree(seed=9)):
        assert catch_code(PARAMS, [*pieces, other]) == "PFDS-003"


@pytest.mark.parametrize("level", [0, 3, 4, 60_000])
def test_piece_of_an_impossible_level_is_rejected(level: int) -> None:
    assert (
        catch_code(PARAMS, [make_piece(encode_level(STUDY, make_level((0, 50)), level))])
        == "PFDS-101"
    )


def test_last_piece_of_an_impossible_tree_is_rejected() -> None:
    first, second, leaves = list_pieces(make_tree())
    narrow = make_piece(encode_level(STUDY, make_level((0, 500)), 1))
    for pieces in permutations([narrow, second, leaves]):
        assert catch_code(PARAMS, list(pieces)) == "PFDS-101"
    assert isinstance(first.shared, LevelSplits)
    short = make_piece(first.shared.replace(level=2))
    fewer = make_piece(LeafLabels(study=STUDY, labels=Array.from_values(np.zeros(2, np.uint8))))
    wrong = make_piece(
        LeafLabels(
            study=STUDY, labels=Array.from_values(np.full(len(make_tree().labels), 2, np.uint8))
        )
    )
    assert (
        catch_code(PARAMS, [first, short, leaves])
        == catch_code(PARAMS, [first, second, fewer])
        == "PFDS-101"
    )
    assert catch_code(PARAMS, [first, wrong, second]) == "PFDS-101"


def test_pieces_with_arrays_of_other_types_are_rejected() -> None:
    first, second, leaves = list_pieces(make_tree())
    assert isinstance(first.shared, LevelSplits)
    wide = make_piece(first.shared.replace(attributes=Array.from_values(np.zeros(1, np.int64))))
    whole = make_piece(first.shared.replace(values=Array.from_values(np.zeros(1, np.int16))))
    endless = make_piece(first.shared.replace(values=encode_floats(np.array([np.inf]))))
    signed = make_piece(
        LeafLabels(
            study=STUDY, labels=Array.from_values(np.zeros(len(make_tree().labels), np.int8))
        )
    )
    for bad in (wide, whole, endless):
        assert catch_code(PARAMS, [bad, second, leaves]) == "MSG-005"
    assert catch_code(PARAMS, [first, second, signed]) == "MSG-005"


def test_many_classes_have_labels_of_two_bytes() -> None:
    params = make_params(
        Schema(SCHEMA.features, label=Categorical("kind", [str(i) for i in range(300)])),
        max_depth=1,
    )
    leaves = LeafCounts(study=STUDY, counts=Array.from_values(np.eye(300, dtype=np.int32)[299]))
    found = add_pieces(params, [make_piece(label_leaves(params, leaves))])
    assert assemble_tree(params, found, "peer-0").labels.tolist() == [299]
    assert (
        catch_code(
            params,
            [make_piece(LeafLabels(study=STUDY, labels=Array.from_values(np.zeros(1, np.uint8))))],
        )
        == "MSG-005"
    )


def test_wrong_number_of_counts_is_rejected() -> None:
    for counts in (np.zeros(3, np.int32), np.zeros(0, np.int32), np.zeros(4, np.int64)):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_counts(PARAMS, LeafCounts(study=STUDY, counts=Array.from_values(counts)))
        assert caught.value.code == ("MSG-005" if counts.itemsize == 8 else "PFDS-101")
    tree = make_tree()
    assert np.array_equal(decode_counts(PARAMS, encode_leaves(tree)), tree.counts)  # type: ignore[arg-type]


def test_forwarded_piece_must_belong_to_the_same_study() -> None:
    piece = list_pieces(make_tree())[0]
    assert decode(encode(piece), MESSAGES, STUDY) == piece
    with pytest.raises(LocalProtocolError):
        ForwardedPiece(
            study=STUDY, holder="peer-0", shared=piece.shared.replace(study=bytes([1] * 32))
        )
    envelope = loads(encode(piece))
    envelope["body"]["shared"]["study"] = bytes([1] * 32)  # type: ignore[index,call-overload]
    with pytest.raises(RemoteProtocolError, match="another study") as caught:
        decode(dumps(envelope), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"


def test_largest_tree_fits_its_messages() -> None:
    """Two classes and binary splits give the most leaves, and half as many nodes above them."""
    name, n_leaves = "x" * 200, compute_max_leaves(PARAMS)
    assert n_leaves * PARAMS.n_outcomes == MAX_COUNTS
    level = SplitLevel(np.zeros(n_leaves // 2, np.int16), np.zeros(n_leaves // 2))
    encode(LeafCounts(study=STUDY, counts=Array.from_values(np.zeros(MAX_COUNTS, np.int32))))
    encode(
        LevelCounts(
            study=STUDY, level=9, counts=Array.from_values(np.zeros(n_leaves // 2, np.int64))
        )
    )
    encode(make_piece(encode_level(STUDY, level, 9), name))
    encode(
        make_piece(
            LeafLabels(study=STUDY, labels=Array.from_values(np.zeros(n_leaves, np.uint8))), name
        )
    )
