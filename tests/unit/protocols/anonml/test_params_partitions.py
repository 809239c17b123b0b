"""Feature subsets: determined by the seed, disjoint, and uniform."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import pytest

from shoal.errors import SpecError
from shoal.protocols.anonml.params import draw_feature_subsets


def test_feature_subsets_follow_hashes():
    """The rule written out: another implementation of a peer must find the same subsets."""
    seed, partition = b"\x00study", 2
    stream = hashlib.shake_256(
        b"shoal anonml feature subsets 1" + partition.to_bytes(8, "big") + seed
    ).digest(8 * 11)
    ranked = sorted(range(11), key=lambda feature: stream[8 * feature : 8 * feature + 8])
    assert draw_feature_subsets(seed, 11, 3, 2, 3)[2] == (tuple(ranked[:3]), tuple(ranked[3:6]))


@pytest.mark.parametrize(
    ("k_f", "k_p", "k_h", "k_s"),
    [(11, 5, 2, 3), (11, 20, 2, 1), (6, 4, 2, 3), (1, 1, 1, 1), (3, 2, 1, 3)],
)
def test_feature_subsets_of_partition_are_disjoint(k_f, k_p, k_h, k_s):
    subsets = draw_feature_subsets(b"seed", k_f, k_p, k_h, k_s)
    assert len(subsets) == k_p
    for partition in subsets:
        assert [len(subset) for subset in partition] == [k_s] * k_h
        asked = list(itertools.chain(*partition))
        assert len(set(asked)) == k_h * k_s
        assert set(asked) <= set(range(k_f))


def test_feature_subsets_do_not_depend_on_number_of_partitions():
    assert draw_feature_subsets(b"seed", 11, 20, 2, 3)[:5] == draw_feature_subsets(
        b"seed", 11, 5, 2, 3
    )


def test_feature_subsets_differ_between_seeds_and_partitions():
    one, other = (
        draw_feature_subsets(b"one", 11, 5, 2, 3),
        draw_feature_subsets(b"other", 11, 5, 2, 3),
    )
    assert len({*one, *other}) == 10


def test_feature_subsets_are_uniform_in_every_position():
    """Each of 12 features is expected 500 times per position, with a deviation of 21.

    There are 6,000 partitions.
    """
    subsets = draw_feature_subsets(b"seed", 12, 6_000, 2, 2)
    for place in range(4):
        seen = Counter(partition[place // 2][place % 2] for partition in subsets)
        assert all(abs(seen[feature] - 500) < 6 * 21 for feature in range(12))


def test_feature_subsets_contain_pairs_uniformly():
    """Of 6,000 partitions, 66 pairs: 91 each, with a standard deviation of 9.5."""
    seen = Counter(
        frozenset(partition[0]) for partition in draw_feature_subsets(b"seed", 12, 6_000, 1, 2)
    )
    assert len(seen) == 66
    assert all(abs(count - 6_000 / 66) < 6 * 9.5 for count in seen.values())


def test_feature_subsets_reject_too_many_features():
    with pytest.raises(
        SpecError,
        match=r"(?s)SPEC-021.*n_subsets \(4\) x subset_size \(3\) = 12, "
        r"but there are 11 features.*k_h k_s <= k_f",
    ):
        draw_feature_subsets(b"seed", 11, 5, 4, 3)
    assert len(draw_feature_subsets(b"seed", 12, 5, 4, 3)) == 5


@pytest.mark.parametrize("name", ["n_partitions", "n_subsets", "subset_size"])
def test_feature_subsets_reject_numbers_below_one(name):
    with pytest.raises(SpecError, match=f"SPEC-021.*{name} = 0"):
        draw_feature_subsets(
            b"seed", 11, **{"n_partitions": 1, "n_subsets": 1, "subset_size": 1, name: 0}
        )
