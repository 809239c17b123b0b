"""Feature subsets: the same for all who know the seed, without overlap, and spread evenly."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import pytest

from shoal.errors import SpecError
from shoal.protocols.anonml.partitions import feature_subsets


def test_they_are_what_the_hashes_say():
    """The rule written out: whoever implements a peer elsewhere must find the same subsets."""
    seed, partition = b"\x00study", 2
    stream = hashlib.shake_256(b"shoal anonml feature subsets 1" + partition.to_bytes(8, "big") + seed).digest(8 * 11)
    ranked = sorted(range(11), key=lambda feature: stream[8 * feature : 8 * feature + 8])
    assert feature_subsets(seed, 11, 3, 2, 3)[2] == (tuple(ranked[:3]), tuple(ranked[3:6]))


@pytest.mark.parametrize(("k_f", "k_p", "k_h", "k_s"), [(11, 5, 2, 3), (11, 20, 2, 1), (6, 4, 2, 3), (1, 1, 1, 1), (3, 2, 1, 3)])
def test_each_partition_has_its_subsets_and_they_do_not_overlap(k_f, k_p, k_h, k_s):
    subsets = feature_subsets(b"seed", k_f, k_p, k_h, k_s)
    assert len(subsets) == k_p
    for partition in subsets:
        assert [len(subset) for subset in partition] == [k_s] * k_h
        asked = list(itertools.chain(*partition))
        assert len(set(asked)) == k_h * k_s
        assert set(asked) <= set(range(k_f))


def test_more_partitions_leave_the_first_ones_alone():
    assert feature_subsets(b"seed", 11, 20, 2, 3)[:5] == feature_subsets(b"seed", 11, 5, 2, 3)


def test_seeds_and_partitions_differ():
    one, other = feature_subsets(b"one", 11, 5, 2, 3), feature_subsets(b"other", 11, 5, 2, 3)
    assert len({*one, *other}) == 10


def test_every_feature_comes_up_equally_often_in_every_place():
    """Of 6,000 partitions with 12 features each is expected 500 times in a place, with a standard deviation of 21."""
    subsets = feature_subsets(b"seed", 12, 6_000, 2, 2)
    for place in range(4):
        seen = Counter(partition[place // 2][place % 2] for partition in subsets)
        assert all(abs(seen[feature] - 500) < 6 * 21 for feature in range(12))


def test_every_pair_comes_up_equally_often():
    """Of 6,000 partitions, 66 pairs: 91 each, with a standard deviation of 9.5."""
    seen = Counter(frozenset(partition[0]) for partition in feature_subsets(b"seed", 12, 6_000, 1, 2))
    assert len(seen) == 66
    assert all(abs(count - 6_000 / 66) < 6 * 9.5 for count in seen.values())


def test_more_features_than_there_are_cannot_be_asked_for():
    with pytest.raises(
        SpecError, match=r"(?s)SPEC-021.*n_subsets \(4\) x subset_size \(3\) = 12, but there are 11 features.*k_h k_s <= k_f"
    ):
        feature_subsets(b"seed", 11, 5, 4, 3)
    assert len(feature_subsets(b"seed", 12, 5, 4, 3)) == 5


@pytest.mark.parametrize("name", ["n_partitions", "n_subsets", "subset_size"])
def test_nothing_at_all_cannot_be_asked_for(name):
    with pytest.raises(SpecError, match=f"SPEC-021.*{name} = 0"):
        feature_subsets(b"seed", 11, **{"n_partitions": 1, "n_subsets": 1, "subset_size": 1, name: 0})
