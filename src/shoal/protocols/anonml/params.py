"""Parameters of both variants; the feature subsets of each partition.

All parties of an AnonML study agree on these public parameters, and everything else follows from
them. Each party computes the features of each partition of peers from the study's seed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.errors import SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.privacy.rounding import compute_share

FeatureSubsets = tuple[tuple[tuple[int, ...], ...], ...]
"""For each partition its subsets, as positions of features."""

_TAG = b"shoal anonml feature subsets 1"
_WORD_BYTES = 8


def draw_feature_subsets(
    seed: bytes, n_features: int, n_partitions: int, n_subsets: int, subset_size: int
) -> FeatureSubsets:
    """Return the feature subsets of every partition, uniform and disjoint in a partition.

    Parameters
    ----------
    seed
        A value that the study fixes, so that peers and aggregator find the same subsets.
    n_features, n_partitions, n_subsets, subset_size
        k_f, k_p, k_h and k_s; a partition is asked about k_h k_s features.

    Notes
    -----
    Ref: AnonML §VI-A. A partition's features are sorted by 64-bit words, the output of SHAKE-256 on
    the partition and the seed. Subsets are consecutive parts of that order.

    Examples
    --------
    >>> draw_feature_subsets(b"a study", n_features=6, n_partitions=2, n_subsets=2, subset_size=3)
    (((4, 2, 1), (0, 3, 5)), ((0, 5, 1), (4, 2, 3)))
    """
    check_subsets(n_features, n_partitions, n_subsets, subset_size)
    return tuple(
        _split_subsets(_rank_features(seed, partition, n_features), n_subsets, subset_size)
        for partition in range(n_partitions)
    )


def _rank_features(seed: bytes, partition: int, n_features: int) -> list[int]:
    """Return the features in the order of a partition, which is uniformly random."""
    # Everything before the seed has a fixed length, so that no two partitions hash the same bytes.
    stream = hashlib.shake_256(_TAG + partition.to_bytes(_WORD_BYTES, "big") + seed).digest(
        _WORD_BYTES * n_features
    )
    order: list[int] = np.argsort(np.frombuffer(stream, ">u8"), kind="stable").tolist()
    return order


def _split_subsets(
    ranked: list[int], n_subsets: int, subset_size: int
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ranked[i * subset_size : (i + 1) * subset_size]) for i in range(n_subsets))


def check_subsets(n_features: int, n_partitions: int, n_subsets: int, subset_size: int) -> None:
    """Raise `SpecError` for subsets that would overlap, and for numbers below 1."""
    for name, value in (
        ("n_partitions", n_partitions),
        ("n_subsets", n_subsets),
        ("subset_size", subset_size),
    ):
        if value < 1:
            raise SpecError(
                "SPEC-021",
                f"{name} = {value} is not a positive number.",
                fix=f"Set {name} = 1 or more.",
            )
    if n_subsets * subset_size > n_features:
        raise SpecError(
            "SPEC-021",
            f"n_subsets ({n_subsets}) x subset_size ({subset_size}) = {n_subsets * subset_size}, "
            f"but there are {n_features} features.",
            why="Subsets must not overlap within a partition. AnonML §VI-A: k_h k_s <= k_f.",
            fix="Lower n_subsets or subset_size.",
        )


Trust = Literal["local", "shuffled"]
ClassifierKind = Literal["logistic", "tree"]
ScoreKind = Literal["f1", "auc", "accuracy"]


@dataclass(frozen=True)
class _AnonMLBaseParams:
    """Parameters of both variants: schema, total budget of a person, expected people."""

    schema: Schema
    epsilon: float
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.schema.label, Categorical):
            raise SpecError(
                "SPEC-021",
                "AnonML learns a classifier, but the label is not a category.",
                fix='Declare the label with its values: Categorical("income", ["<=50K", ">50K"])',
            )
        if self.size < 1:
            raise SpecError(
                "SPEC-021",
                f"size = {self.size} is not a positive number of people.",
                fix="Set size to the expected number of people.",
            )

    @property
    def is_noiseless(self) -> bool:
        """True if epsilon is infinite: no perturbation, which only a simulation may use."""
        return self.epsilon == math.inf

    @property
    def n_features(self) -> int:
        """k_f."""
        return len(self.schema.features)

    @cached_property
    def n_labels(self) -> int:
        """Number of classes of the label."""
        assert isinstance(self.schema.label, Categorical)
        return len(self.schema.label.values)

    @cached_property
    def unbinned(self) -> tuple[Numeric, ...]:
        """Numbers without public cut points; these are estimated from answers."""
        return tuple(
            feature
            for feature in self.schema.features
            if isinstance(feature, Numeric) and feature.bins is None
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a person may be asked about."""
        assert self.schema.label is not None
        return (*self.schema.names, self.schema.label.name)


@dataclass(frozen=True)
class AnonMLPlusParams(_AnonMLBaseParams):
    """Variant ``plus``: one answer from each person, with the whole budget.

    A rule chooses everything else.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"]))
    >>> AnonMLPlusParams(schema, epsilon=1.0, size=1000).n_labels
    2
    """

    trust: Trust = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon(self.epsilon)


@dataclass(frozen=True)
class AnonMLPaperParams(_AnonMLBaseParams):
    """Variant ``paper``: partitions of people, subsets of features, a noisy table per subset.

    Parameters
    ----------
    n_partitions, n_subsets, subset_size
        k_p, k_h and k_s.
    accounting
        The meaning of ``epsilon``: the sum of all releases, or the total of equation 6.
    classifier, score
        The classifier learned on each table, and the score that is its weight in the vote.

    Notes
    -----
    Ref: AnonML §VI-A, §VII-E; errata A-06.
    """

    n_partitions: int = 5
    n_subsets: int = 2
    subset_size: int = 3
    accounting: Literal["plain", "paper"] = "plain"
    classifier: ClassifierKind = "logistic"
    score: ScoreKind = "f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_noiseless:
            check_epsilon(self.epsilon)
        check_subsets(self.n_features, self.n_partitions, self.n_subsets, self.subset_size)

    @property
    def n_releases(self) -> int:
        """Number of answers of one person.

        A table for each subset, and a bit for each number without public bins.
        """
        return self.n_subsets + len(self.unbinned)

    @cached_property
    def epsilon_release(self) -> float:
        """epsilon_h and epsilon_e: the cost of one answer, so that the accounting gives epsilon.

        Notes
        -----
        Ref: AnonML §VIII-C (the two are equal there) and equation 6: the larger of the cost of the
        label, in k_h tables, and of one feature, in one table and one median.
        """
        if self.is_noiseless:
            return math.inf
        divisor = (
            max(self.n_subsets, 1 + bool(self.unbinned))
            if self.accounting == "paper"
            else self.n_releases
        )
        return compute_share(self.epsilon, Fraction(1, divisor))


AnonMLParams = AnonMLPlusParams | AnonMLPaperParams


def count_cells(feature: Feature) -> int:
    """Return the number of cells of a feature with known bins, missing values included."""
    assert feature.n_bins is not None
    return feature.n_bins
