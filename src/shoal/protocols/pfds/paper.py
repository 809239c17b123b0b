"""Variant paper: what a sharer is asked, what each question costs, and its rows as trees see them.

=========  ==================================================================================================  ===================
question   what is released                                                                                    costs
=========  ==================================================================================================  ===================
split/h    attributes and split values of all nodes of level h, h from 1 to h_max - 1                          epsilon / (2 h_max)
leaves     rows of each class in every leaf                                                                    epsilon / (2 h_max)
count/i    rows in every node of level i, i from 1 to p - 1; without the projection nobody needs them          epsilon / (2 (p - 1))
=========  ==================================================================================================  ===================

A row is at one node of a level, so the nodes of a level share a price; the questions add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import where
from shoal.domain import Numeric
from shoal.errors import SpecError
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import Histogram
from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.tree import depth_of


@dataclass(frozen=True, eq=False)
class Points:
    """Rows as trees see them.

    Parameters
    ----------
    values
        ``(n, k)`` numbers as they are, and the cells of categories.
    outcomes
        ``(n,)`` the class, or the bucket of a number.
    """

    values: Floats
    outcomes: Ints

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, params: Params, columns: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any]) -> Points:
        """Rows as ``schema.encode`` and ``schema.encode_label`` give them."""
        return cls(values_of(params, columns), outcomes_of(params, labels))

    def take(self, which: npt.NDArray[Any]) -> Points:
        """Some of the rows."""
        return Points(self.values[which], self.outcomes[which])


def values_of(params: Params, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """What splits look at, ``(n, k)``; a category that nobody declared is taken for the last cell."""
    values = []
    for feature in params.schema.features:
        column = columns[feature.name]
        if not isinstance(feature, Numeric):
            values.append(np.minimum(feature.cut(column), feature.n_bins - 1).astype(np.float64))
            continue
        gone = np.isnan(column)
        if gone.any():
            raise SpecError(
                "DATA-005",
                f"{feature.name}: {where(gone)} missing.",
                why="Variant paper splits a number at a value, and what is missing has no side.",
                fix="Fill in or remove the rows, or use variant plus.",
            )
        values.append(np.asarray(column, np.float64))
    return np.stack(values, axis=1)


def outcomes_of(params: Params, labels: npt.NDArray[Any]) -> Ints:
    """The class of each label; of a number, which of b buckets of equal width it falls in.

    Notes
    -----
    Ref: PFDS §3.1: a continuous label is cut into b = 10 buckets.
    """
    if not isinstance(params.label, Numeric):
        return np.asarray(labels, np.int64)
    low, high = float(params.label.low), float(params.label.high)
    bucket = np.floor((labels - low) / (high - low) * params.n_buckets).astype(np.int64)
    return np.clip(bucket, 0, params.n_buckets - 1)


def n_counted(params: Params) -> int:
    """Levels whose nodes are counted for the projection: p - 1, or none without it."""
    return min(params.n_levels, depth_of(params)) - 1 if params.projection else 0


def questions(params: Params) -> tuple[str, ...]:
    """All that a sharer is asked, in order.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Numeric(name, 0, 1) for name in "abcd"], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=100, variant="paper", max_depth=3, n_levels=3)
    >>> {question: event.epsilon for question, event in prices(params).items()}
    {'split/1': 0.166666666666, 'split/2': 0.166666666666, 'leaves': 0.166666666666, 'count/1': 0.25, 'count/2': 0.25}
    """
    splits = [f"split/{h}" for h in range(1, depth_of(params))]
    return (*splits, "leaves", *(f"count/{i}" for i in range(1, n_counted(params) + 1)))


def prices(params: Params) -> dict[str, Event]:
    """What each question costs one unit.

    Notes
    -----
    Ref: PFDS Theorems 3.1 to 3.3.

    Privacy
    -------
    The scope of the parameters; epsilon / 2 for the tree and epsilon / 2 for the counts, each part rounded down to a grain.
    """
    split, leaf, count = splitting(params), counting_leaves(params), counting_nodes(params)
    assert split is not None and leaf is not None, "without noise there is no price"
    events = {"split": split.event(), "leaves": leaf.event(), **({} if count is None else {"count": count.event()})}
    return {question: events[question.partition("/")[0]].reading(*params.columns) for question in questions(params)}


def splitting(params: Params) -> ExponentialMechanism | None:
    """What chooses the split values of a level; None where there is no noise, and the best one is taken.

    Notes
    -----
    Ref: PFDS Algorithm 3, line 22. When a row comes or goes the scores all move the same way, so that epsilon / h_max / 2 allows for twice
    the paper's exponent.
    """
    if params.is_bare:
        return None
    return ExponentialMechanism(_part(params, 2 * depth_of(params)), CountScore(params.max_rows), params.scope)


def counting_leaves(params: Params) -> DiscreteLaplace | None:
    """What hides the class counts of leaves; None where nothing does."""
    return None if params.is_bare else _laplace(params, 2 * depth_of(params))


def counting_nodes(params: Params) -> DiscreteLaplace | None:
    """What hides the counts of a level; None where nothing does, or no level is counted."""
    return None if params.is_bare or not n_counted(params) else _laplace(params, 2 * n_counted(params))


def _laplace(params: Params, n_parts: int) -> DiscreteLaplace:
    return DiscreteLaplace(_part(params, n_parts), Histogram(1, params.max_rows), params.scope)


def _part(params: Params, n_parts: int) -> float:
    return share(params.epsilon, Fraction(1, n_parts))
