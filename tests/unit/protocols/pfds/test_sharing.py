"""Pieces of trees and data: in any order, each once, and no tree that cannot be is ever whole."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from pfds_sharing import same_tree
from pfds_trees import SCHEMA, level_of, params_of, random_points
from shoal.domain import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import decode, dumps, encode, loads
from shoal.protocols.pfds import sharing
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.messages import MESSAGES, Data, LeafLabels, Leaves, LevelCounts, PassedOn, Splits, floats_in
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sharing import counts_of, labels_of_leaves, splits_of, tree_of, tree_pieces, with_data, with_piece, with_tree
from shoal.protocols.pfds.tree import MAX_COUNTS, Level, PrivateTree, most_leaves

STUDY = bytes(32)
PARAMS = params_of(max_depth=3)


def grown(params: Params = PARAMS, seed: int = 1) -> PrivateTree:
    return grow(params, random_points(params, 30, seed), SeededEntropy(seed))


def passed(shared: Splits | LeafLabels | Data, holder: str = "peer-0") -> PassedOn:
    return PassedOn(study=STUDY, holder=holder, shared=shared)


def leaves_of(tree: PrivateTree) -> Leaves:
    assert tree.counts is not None
    return Leaves(study=STUDY, counts=Array.of(tree.counts.ravel()))


def pieces_of(tree: PrivateTree, holder: str = "peer-0") -> list[PassedOn]:
    splits = [passed(splits_of(STUDY, level, i), holder) for i, level in enumerate(tree.levels, 1)]
    return [*splits, passed(labels_of_leaves(tree.params, leaves_of(tree)), holder)]


def gathered(params: Params, pieces: list[PassedOn]) -> sharing.Pieces:
    found: sharing.Pieces = ()
    for piece in pieces:
        found = with_piece(params, found, piece)
    return found


def refusal(params: Params, pieces: list[PassedOn]) -> str:
    before = gathered(params, pieces[:-1])
    with pytest.raises(RemoteProtocolError) as caught:
        with_piece(params, before, pieces[-1])
    return caught.value.code


def test_a_tree_is_the_same_in_whatever_order_its_pieces_come() -> None:
    tree = grown()
    for order in permutations(pieces_of(tree)):
        found = gathered(PARAMS, list(order[:-1]))
        assert with_tree(PARAMS, found, ["peer-0"]) == ()
        found = with_piece(PARAMS, found, order[-1])
        assert with_tree(PARAMS, found, ["peer-1", "peer-0"]) == ("peer-0",)
        assert tree_pieces(found, "peer-0") == pieces_of(tree)
        again = tree_of(PARAMS, found, "peer-0")
        assert same_tree(tree, again) and again.counts is None


def test_trees_of_several_holders_do_not_mix() -> None:
    one, other = grown(seed=1), grown(seed=2)
    mixed = [piece for pair in zip(pieces_of(one), pieces_of(other, "peer-1"), strict=True) for piece in pair]
    found = gathered(PARAMS, mixed)
    assert same_tree(tree_of(PARAMS, found, "peer-0"), one) and same_tree(tree_of(PARAMS, found, "peer-1"), other)
    assert with_data(found, ["peer-0", "peer-1"]) == ()


def test_the_same_piece_again_changes_nothing_and_another_in_its_place_is_refused() -> None:
    pieces = pieces_of(grown())
    found = gathered(PARAMS, pieces)
    for piece in pieces:
        assert with_piece(PARAMS, found, piece) is found
    for other in pieces_of(grown(seed=9)):
        assert refusal(PARAMS, [*pieces, other]) == "PFDS-003"


@pytest.mark.parametrize("level", [0, 3, 4, 60_000])
def test_a_level_that_no_tree_of_the_study_has_is_refused(level: int) -> None:
    assert refusal(PARAMS, [passed(splits_of(STUDY, level_of((0, 50)), level))]) == "PFDS-101"


def test_a_tree_that_cannot_be_is_refused_with_its_last_piece_whichever_that_is() -> None:
    first, second, leaves = pieces_of(grown())
    narrow = passed(splits_of(STUDY, level_of((0, 500)), 1))
    for pieces in permutations([narrow, second, leaves]):
        assert refusal(PARAMS, list(pieces)) == "PFDS-101"
    assert isinstance(first.shared, Splits)
    short = passed(first.shared.replace(level=2))
    fewer = passed(LeafLabels(study=STUDY, labels=Array.of(np.zeros(2, np.uint8))))
    wrong = passed(LeafLabels(study=STUDY, labels=Array.of(np.full(len(grown().labels), 2, np.uint8))))
    assert refusal(PARAMS, [first, short, leaves]) == refusal(PARAMS, [first, second, fewer]) == "PFDS-101"
    assert refusal(PARAMS, [first, wrong, second]) == "PFDS-101"


def test_arrays_of_another_kind_are_refused() -> None:
    first, second, leaves = pieces_of(grown())
    assert isinstance(first.shared, Splits)
    wide = passed(first.shared.replace(attributes=Array.of(np.zeros(1, np.int64))))
    whole = passed(first.shared.replace(values=Array.of(np.zeros(1, np.int16))))
    endless = passed(first.shared.replace(values=floats_in(np.array([np.inf]))))
    signed = passed(LeafLabels(study=STUDY, labels=Array.of(np.zeros(len(grown().labels), np.int8))))
    for bad in (wide, whole, endless):
        assert refusal(PARAMS, [bad, second, leaves]) == "MSG-005"
    assert refusal(PARAMS, [first, second, signed]) == "MSG-005"


def test_many_classes_have_labels_of_two_bytes() -> None:
    params = params_of(Schema(SCHEMA.features, label=Categorical("kind", [str(i) for i in range(300)])), max_depth=1)
    leaves = Leaves(study=STUDY, counts=Array.of(np.eye(300, dtype=np.int32)[299]))
    found = gathered(params, [passed(labels_of_leaves(params, leaves))])
    assert tree_of(params, found, "peer-0").labels.tolist() == [299]
    assert refusal(params, [passed(LeafLabels(study=STUDY, labels=Array.of(np.zeros(1, np.uint8))))]) == "MSG-005"


def test_counts_that_are_not_so_many_for_each_leaf_are_refused() -> None:
    for counts in (np.zeros(3, np.int32), np.zeros(0, np.int32), np.zeros(4, np.int64)):
        with pytest.raises(RemoteProtocolError) as caught:
            counts_of(PARAMS, Leaves(study=STUDY, counts=Array.of(counts)))
        assert caught.value.code == ("MSG-005" if counts.itemsize == 8 else "PFDS-101")
    tree = grown()
    assert np.array_equal(counts_of(PARAMS, leaves_of(tree)), tree.counts)  # type: ignore[arg-type]


def test_what_is_passed_on_belongs_to_the_study_it_is_passed_on_in() -> None:
    piece = pieces_of(grown())[0]
    assert decode(encode(piece), MESSAGES, STUDY) == piece
    with pytest.raises(LocalProtocolError):
        PassedOn(study=STUDY, holder="peer-0", shared=piece.shared.replace(study=bytes([1] * 32)))
    envelope = loads(encode(piece))
    envelope["body"]["shared"]["study"] = bytes([1] * 32)  # type: ignore[index,call-overload]
    with pytest.raises(RemoteProtocolError, match="another study") as caught:
        decode(dumps(envelope), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"


def test_the_largest_tree_fits_into_its_messages() -> None:
    """Two classes and splits in two make the most leaves, and of these half as many nodes above them."""
    name, n_leaves = "x" * 200, most_leaves(PARAMS)
    assert n_leaves * PARAMS.n_outcomes == MAX_COUNTS
    level = Level(np.zeros(n_leaves // 2, np.int16), np.zeros(n_leaves // 2))
    encode(Leaves(study=STUDY, counts=Array.of(np.zeros(MAX_COUNTS, np.int32))))
    encode(LevelCounts(study=STUDY, level=9, counts=Array.of(np.zeros(n_leaves // 2, np.int64))))
    encode(passed(splits_of(STUDY, level, 9), name))
    encode(passed(LeafLabels(study=STUDY, labels=Array.of(np.zeros(n_leaves, np.uint8))), name))
