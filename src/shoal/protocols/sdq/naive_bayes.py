"""Naive Bayes from noisy tables.

The learner ``naive-bayes`` asks for the table of every attribute with the label, in one secure sum.
The tree learners of variant plus use the same estimates for small tables (`level_tree`), and
correct them by a joint table in the cells in which its counts exceed the noise (`back_off`).

The constants were chosen by accuracy on development rows (three quarters of Nursery, Adult, Bank
Marketing, Phishing Websites and a MOOC's drop-outs, and four random decision lists), one set for
all of them, at budgets from 0.005 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.privacy.events import Event
from shoal.privacy.rounding import compute_share
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.sdq.counting import count_table
from shoal.protocols.sdq.noise import compute_deviation, price_sum
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import (
    Answers,
    RoundPart,
    SDQRound,
    SDQScript,
    SDQScriptState,
    impossible_state_error,
)

Floats = npt.NDArray[np.float64]

_PRIOR_STRENGTH = 4.0
"""Weight of a cell's prior in rows, in standard deviations of the cell's noise."""
_SMOOTHING = 1.0
"""Rows that are added to each count of a small table, in standard deviations of its noise."""
_CLASS_SMOOTHING = 0.1
"""The same for the shares of the classes: they have the least noise, and a class may be rare."""


def clamp_deviation(deviation: float) -> float:
    """Return the noise of a count in rows, at least 1: even an exact count is only a sample."""
    return max(deviation, 1.0)


def estimate_class_shares(noisy_counts: Floats, deviation: float) -> Floats:
    """Return the shares of the classes from their noisy counts, ``(L,)``; none is zero."""
    smooth = np.maximum(noisy_counts, 0) + _CLASS_SMOOTHING * clamp_deviation(deviation)
    shares: Floats = smooth / smooth.sum()
    return shares


def estimate_likelihoods(noisy_counts: Floats, deviation: float) -> Floats:
    """Return P(cell | class) of an attribute's noisy counts, both ``(cells, L)``; none is zero."""
    smooth = np.maximum(noisy_counts, 0) + _SMOOTHING * clamp_deviation(deviation)
    likelihoods: Floats = smooth / smooth.sum(axis=0)
    return likelihoods


def compute_naive_bayes(shares: Floats, likelihoods: Sequence[Floats]) -> Floats:
    """Return the class probabilities in each joint cell of some attributes, ``(cells, L)``.

    The last attribute varies fastest.
    """
    logs = np.log(shares)[np.newaxis, :]
    for table in likelihoods:
        logs = (logs[:, np.newaxis, :] + np.log(table)).reshape(-1, len(shares))
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    chances: Floats = odds / odds.sum(axis=1, keepdims=True)
    return chances


def marginalise(joint: Floats, arities: Sequence[int], axis: int) -> Floats:
    """Return the table of one attribute, ``(cells, L)``, from a joint table, ``(all cells, L)``."""
    table: Floats = joint.reshape(math.prod(arities[:axis]), arities[axis], -1, joint.shape[1]).sum(
        axis=(0, 2)
    )
    return table


def estimate_marginal_likelihoods(
    joint: Floats, arities: Sequence[int], deviation: float
) -> list[Floats]:
    """Return P(cell | class) of every attribute of a joint table, from its counts."""
    n_cells = len(joint)
    return [
        estimate_likelihoods(marginalise(joint, arities, axis), deviation * math.sqrt(n_cells / k))
        for axis, k in enumerate(arities)
    ]


def back_off(noisy_counts: Floats, prior: Floats, deviation: float) -> Floats:
    """Return the class probabilities in each cell, ``(cells, L)``.

    They follow the cell's noisy counts to the extent that these outweigh its prior.

    Examples
    --------
    >>> back_off(
    ...     np.array([[90.0, 10.0], [0.0, 0.0]]), np.array([[0.2, 0.8], [0.2, 0.8]]), deviation=25.0
    ... )
    array([[0.55, 0.45],
           [0.2 , 0.8 ]])
    """
    weighted_counts = (
        np.maximum(noisy_counts, 0) + _PRIOR_STRENGTH * clamp_deviation(deviation) * prior
    )
    chances: Floats = weighted_counts / weighted_counts.sum(axis=1, keepdims=True)
    return chances


TABLES = "tables"
"""The question for the tables of all attributes."""


def make_tables_round(params: SDQParams, epsilon: float) -> SDQRound:
    """Return the round for the table of every attribute with the label.

    A row counts once in each table.
    """

    def count(table: CellTable) -> Ints:
        return np.concatenate(
            [
                count_table(table, [j], params.arities, params.n_classes)
                for j in range(len(params.arities))
            ]
        )

    return SDQRound(
        TABLES,
        (RoundPart(count, sum(params.arities) * params.n_classes, epsilon, len(params.arities)),),
    )


def price_tables(params: SDQParams, epsilon: float) -> Event:
    """Return the price of `make_tables_round` for one unit."""
    return price_sum(params, epsilon, len(params.arities)).with_reads(*params.columns)


def read_tables(params: SDQParams, noisy_sums: Ints, epsilon: float) -> tuple[Floats, list[Floats]]:
    """Return the shares of the classes, and P(cell | class) of every attribute.

    ``noisy_sums`` is the answer to `make_tables_round`.

    Notes
    -----
    Every table contains the class counts, as sums over its cells. Their noise grows with the number
    of cells, so tables have the weights 1 / cells.
    """
    tables = np.split(
        noisy_sums.reshape(-1, params.n_classes).astype(np.float64), np.cumsum(params.arities)[:-1]
    )
    deviation = compute_deviation(params, epsilon, len(params.arities))
    weights = 1 / np.array(params.arities)
    classes = np.average([table.sum(axis=0) for table in tables], axis=0, weights=weights)
    shares = estimate_class_shares(classes, deviation / math.sqrt(weights.sum()))
    return shares, [estimate_likelihoods(table, deviation) for table in tables]


class SDQNaiveBayesScript(SDQScript):
    """Learner ``naive-bayes``.

    Privacy
    -------
    The scope of the parameters; B for the one round.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical(name, ["a", "b"]) for name in "xyz"],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> script = SDQNaiveBayesScript(
    ...     SDQParams(schema, epsilon=0.1, size=1000, learner="naive-bayes")
    ... )
    >>> (
    ...     script.make_round(SDQScriptState()).size,
    ...     {question: event.epsilon for question, event in script.prices.items()},
    ... )
    (18, {'tables': 0.1})
    """

    @property
    def _epsilon(self) -> float:
        return (
            math.inf
            if self.params.is_noiseless
            else compute_share(self.params.epsilon, Fraction(1))
        )

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        return {TABLES: price_tables(self.params, self._epsilon)}

    @property
    def costliest_questions(self) -> tuple[tuple[str, int], ...]:
        return ((TABLES, 1),)

    def make_round(self, state: SDQScriptState) -> SDQRound | None:
        if state not in (SDQScriptState(), SDQScriptState(step=1)):
            raise impossible_state_error("there is one round, and nothing to decide")
        return None if state.step else make_tables_round(self.params, self._epsilon)

    def advance(self, state: SDQScriptState, answers: Answers) -> SDQScriptState:
        return state.replace(step=state.step + 1)

    def build_model(self, state: SDQScriptState, answers: Answers) -> AdditiveModel:
        shares, likelihoods = read_tables(self.params, answers[0], self._epsilon)
        scores = tuple(np.log(table / (table @ shares)[:, np.newaxis]).T for table in likelihoods)
        return AdditiveModel(self.params.schema, shares, scores)
