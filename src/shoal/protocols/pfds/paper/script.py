"""Questions, prices and mechanisms of variant paper; rows as trees use them.

The paper's peer, aggregator and population call these functions. The questions to a sharing holder:

split/h, for h from 1 to h_max - 1
    Releases attributes and split values of all nodes of level h. Costs epsilon / (2 h_max).
leaves
    Releases the rows of each class in every leaf. Costs epsilon / (2 h_max).
count/i, for i from 1 to p - 1
    Releases the rows in every node of level i. Costs epsilon / (2 (p - 1)). Only the projection
    needs it.

A row is at one node of a level, so the nodes of a level share one price; the prices of the
questions add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.cells import describe_rows
from shoal.data.schema import Numeric
from shoal.errors import SpecError
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Event
from shoal.privacy.rounding import compute_share
from shoal.protocols.pfds.paper.tree import compute_depth
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams


@dataclass(frozen=True, eq=False)
class TreeRows:
    """Rows as trees use them.

    Parameters
    ----------
    values
        ``(n, k)`` unchanged numbers, and the cells of categories.
    outcomes
        ``(n,)`` the class, or the bucket of a number.
    """

    values: Floats
    outcomes: Ints

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def from_columns(
        cls, params: PFDSParams, columns: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any]
    ) -> TreeRows:
        """Return the rows of columns and labels that ``schema.encode`` produced.

        The labels are the output of ``schema.encode_label``.
        """
        return cls(encode_values(params, columns), encode_outcomes(params, labels))

    def take(self, which: npt.NDArray[Any]) -> TreeRows:
        """Return the selected rows."""
        return TreeRows(self.values[which], self.outcomes[which])


def encode_values(params: PFDSParams, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Return the values that splits compare, ``(n, k)``.

    An undeclared category gets the last cell of its feature.
    """
    values = []
    for feature in params.schema.features:
        column = columns[feature.name]
        if not isinstance(feature, Numeric):
            values.append(np.minimum(feature.cut(column), feature.n_bins - 1).astype(np.float64))
            continue
        is_missing = np.isnan(column)
        if is_missing.any():
            raise SpecError(
                "DATA-005",
                f"{feature.name}: {describe_rows(is_missing)} missing.",
                why="Variant paper splits numbers at a value; a missing number is on no side.",
                fix="Fill in or remove the rows, or use variant plus.",
            )
        values.append(np.asarray(column, np.float64))
    return np.stack(values, axis=1)


def encode_outcomes(params: PFDSParams, labels: npt.NDArray[Any]) -> Ints:
    """Return the class of each label; for a number, its bucket of b with equal widths.

    Notes
    -----
    Ref: PFDS §3.1: a continuous label is cut into b = 10 buckets.
    """
    if not isinstance(params.label, Numeric):
        return np.asarray(labels, np.int64)
    low, high = float(params.label.low), float(params.label.high)
    bucket = np.floor((labels - low) / (high - low) * params.n_buckets).astype(np.int64)
    return np.clip(bucket, 0, params.n_buckets - 1)


def count_projected_levels(params: PFDSParams) -> int:
    """Return the number of levels counted for the projection: p - 1, or 0 without it."""
    return min(params.n_levels, compute_depth(params)) - 1 if params.projection else 0


def list_questions(params: PFDSParams) -> tuple[str, ...]:
    """Return all questions to a sharing holder, in order.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Numeric(name, 0, 1) for name in "abcd"], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> params = PFDSParams(schema, epsilon=1.0, size=100, variant="paper", max_depth=3, n_levels=3)
    >>> {question: event.epsilon for question, event in compute_prices(params).items()}
    {'split/1': 0.166666666666, 'split/2': 0.166666666666, 'leaves': 0.166666666666,
     'count/1': 0.25, 'count/2': 0.25}
    """
    splits = [f"split/{h}" for h in range(1, compute_depth(params))]
    return (
        *splits,
        "leaves",
        *(f"count/{i}" for i in range(1, count_projected_levels(params) + 1)),
    )


def compute_prices(params: PFDSParams) -> dict[str, Event]:
    """Return the price of each question for one unit.

    Notes
    -----
    Ref: PFDS Theorems 3.1 to 3.3.

    Privacy
    -------
    The scope of the parameters; epsilon / 2 for the tree and epsilon / 2 for the counts, each part
    rounded down to a grain.
    """
    split, leaf, count = (
        make_split_mechanism(params),
        make_leaf_mechanism(params),
        make_node_mechanism(params),
    )
    assert split is not None and leaf is not None, "without noise there is no price"
    events = {
        "split": split.event(),
        "leaves": leaf.event(),
        **({} if count is None else {"count": count.event()}),
    }
    return {
        question: events[question.partition("/")[0]].with_reads(*params.columns)
        for question in list_questions(params)
    }


def make_split_mechanism(params: PFDSParams) -> ExponentialMechanism | None:
    """Return the mechanism that chooses the split values of a level.

    Without noise it is None, and the best value is taken.

    Notes
    -----
    Ref: PFDS Algorithm 3, line 22. If a row is added or removed, all scores move in the same
    direction, so epsilon / h_max / 2 permits twice the paper's exponent.
    """
    if params.is_noiseless:
        return None
    return ExponentialMechanism(
        _share_epsilon(params, 2 * compute_depth(params)), CountScore(params.max_rows), params.scope
    )


def make_leaf_mechanism(params: PFDSParams) -> DiscreteLaplace | None:
    """Return the noise of the class counts of leaves; None without noise."""
    return None if params.is_noiseless else _make_laplace(params, 2 * compute_depth(params))


def make_node_mechanism(params: PFDSParams) -> DiscreteLaplace | None:
    """Return the noise of the counts of a level; None without noise or counted levels."""
    return (
        None
        if params.is_noiseless or not count_projected_levels(params)
        else _make_laplace(params, 2 * count_projected_levels(params))
    )


def _make_laplace(params: PFDSParams, n_parts: int) -> DiscreteLaplace:
    return DiscreteLaplace(
        _share_epsilon(params, n_parts), CellCounts(1, params.max_rows), params.scope
    )


def _share_epsilon(params: PFDSParams, n_parts: int) -> float:
    return compute_share(params.epsilon, Fraction(1, n_parts))
