"""Which features each peer partition is asked about, as everybody computes it from the study's seed."""

from __future__ import annotations

import hashlib

import numpy as np

from shoal.errors import SpecError

FeatureSubsets = tuple[tuple[tuple[int, ...], ...], ...]
"""Positions of features: of each partition, its subsets."""

_TAG = b"shoal anonml feature subsets 1"
_WORD_BYTES = 8


def feature_subsets(seed: bytes, n_features: int, n_partitions: int, n_subsets: int, subset_size: int) -> FeatureSubsets:
    """The subsets of features of every partition, drawn uniformly and without overlap inside a partition.

    Parameters
    ----------
    seed
        What the study fixes for all; peers and aggregator find the same subsets by it.
    n_features, n_partitions, n_subsets, subset_size
        k_f, k_p, k_h and k_s; k_h k_s features of a partition are asked about.

    Notes
    -----
    Ref: AnonML §VI-A. A partition's features are ordered by 64-bit words, which SHAKE-256 gives for the partition and the
    seed, and dealt from the top.

    Examples
    --------
    >>> feature_subsets(b"a study", n_features=6, n_partitions=2, n_subsets=2, subset_size=3)
    (((4, 2, 1), (0, 3, 5)), ((0, 5, 1), (4, 2, 3)))
    """
    check_subsets(n_features, n_partitions, n_subsets, subset_size)
    return tuple(_subsets(_ranked(seed, partition, n_features), n_subsets, subset_size) for partition in range(n_partitions))


def _ranked(seed: bytes, partition: int, n_features: int) -> list[int]:
    """The features in the order of a partition, a uniformly random one."""
    # Everything before the seed has a fixed length, so that no two partitions are hashed alike.
    stream = hashlib.shake_256(_TAG + partition.to_bytes(_WORD_BYTES, "big") + seed).digest(_WORD_BYTES * n_features)
    order: list[int] = np.argsort(np.frombuffer(stream, ">u8"), kind="stable").tolist()
    return order


def _subsets(ranked: list[int], n_subsets: int, subset_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ranked[i * subset_size : (i + 1) * subset_size]) for i in range(n_subsets))


def check_subsets(n_features: int, n_partitions: int, n_subsets: int, subset_size: int) -> None:
    """Refuse subsets that would overlap, or ask nothing."""
    for name, value in (("n_partitions", n_partitions), ("n_subsets", n_subsets), ("subset_size", subset_size)):
        if value < 1:
            raise SpecError("SPEC-021", f"{name} = {value} asks nobody about anything.", fix=f"{name} = 1, or more.")
    if n_subsets * subset_size > n_features:
        raise SpecError(
            "SPEC-021",
            f"n_subsets ({n_subsets}) x subset_size ({subset_size}) = {n_subsets * subset_size}, but there are {n_features} features.",
            why="Subsets must not overlap within a partition. AnonML §VI-A: k_h k_s <= k_f.",
            fix="Ask for fewer or smaller subsets.",
        )
