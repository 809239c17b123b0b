"""What all parties of an AnonML study agree on: the public figures from which everything else follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.errors import SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.privacy.rounding import share
from shoal.protocols.anonml.partitions import check_subsets

Trust = Literal["local", "shuffled"]
ClassifierKind = Literal["logistic", "tree"]
ScoreKind = Literal["f1", "auc", "accuracy"]


@dataclass(frozen=True)
class _Shared:
    """What both variants have: the schema, the whole budget of a person, and how many people are expected."""

    schema: Schema
    epsilon: float
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.schema.label, Categorical):
            raise SpecError(
                "SPEC-021",
                "AnonML learns to tell classes apart, and the label is not a category.",
                fix='Declare the label with its values: Categorical("income", ["<=50K", ">50K"])',
            )
        if self.size < 1:
            raise SpecError("SPEC-021", f"size = {self.size} people cannot answer anything.", fix="Give the expected number of people.")

    @property
    def is_bare(self) -> bool:
        """Whether answers are not perturbed at all, which only a simulation may do: epsilon is infinite."""
        return self.epsilon == math.inf

    @property
    def n_features(self) -> int:
        """k_f."""
        return len(self.schema.features)

    @cached_property
    def n_labels(self) -> int:
        """Classes of the label."""
        assert isinstance(self.schema.label, Categorical)
        return len(self.schema.label.values)

    @cached_property
    def unbinned(self) -> tuple[Numeric, ...]:
        """Numbers whose cut points are not public; they have to be placed."""
        return tuple(feature for feature in self.schema.features if isinstance(feature, Numeric) and feature.bins is None)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that a person may be asked about."""
        assert self.schema.label is not None
        return (*self.schema.names, self.schema.label.name)


@dataclass(frozen=True)
class Plus(_Shared):
    """Variant ``plus``: one answer from each person, with the whole budget; everything else is chosen by the rule.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"]))
    >>> Plus(schema, epsilon=1.0, size=1000).n_labels
    2
    """

    trust: Trust = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon(self.epsilon)


@dataclass(frozen=True)
class Paper(_Shared):
    """Variant ``paper``: partitions of people, subsets of features, one perturbed table per subset.

    Parameters
    ----------
    n_partitions, n_subsets, subset_size
        k_p, k_h and k_s.
    accounting
        What ``epsilon`` is: the sum of all releases, or the total of equation 6.
    classifier, score
        What is learned on each table, and the score that is its weight in the vote.

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
        if not self.is_bare:
            check_epsilon(self.epsilon)
        check_subsets(self.n_features, self.n_partitions, self.n_subsets, self.subset_size)

    @property
    def n_releases(self) -> int:
        """All answers of one person: a table for each subset, and a bit for each number without public bins."""
        return self.n_subsets + len(self.unbinned)

    @cached_property
    def epsilon_release(self) -> float:
        """epsilon_h, and epsilon_e with it: what one answer may cost, so that the chosen accounting gives epsilon.

        Notes
        -----
        Ref: AnonML §VIII-C (the two are equal there) and equation 6: the dearer of the label, in k_h tables, and of one feature, in one
        table and one median.
        """
        if self.is_bare:
            return math.inf
        divisor = max(self.n_subsets, 1 + bool(self.unbinned)) if self.accounting == "paper" else self.n_releases
        return share(self.epsilon, Fraction(1, divisor))


Params = Plus | Paper


def cells_of(feature: Feature) -> int:
    """Cells of a feature whose bins are public or were published; missing values included."""
    assert feature.n_bins is not None
    return feature.n_bins
