"""The exponential mechanism.

It chooses one of several candidates, with exact probabilities that rise with their scores. PFDS
calls it to choose splits.

Candidate i with the integer score u_i is chosen with probability proportional to exp(epsilon u_i /
(2 D)), or exp(epsilon u_i / D) for scores that all move in the same direction; D is the scores'
sensitivity. One uniform real decides, by inversion: there is no rejection, and the number of
operations is the same for all scores, except for one choice in about 2^43 / t^2 that needs more
digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon, check_integers
from shoal.mechanisms.exact import bound_exp, float_up
from shoal.privacy.events import Event, Relation, Scope

_MARGIN = 2.0**-44
_FAR = 700.0


@dataclass(frozen=True, slots=True)
class CountScore:
    """A score that is a count of rows, or a sum over branches of the largest class count.

    The second is the Max operator.

    Adding a row raises one cell of one branch by 1, so a count rises by 0 or 1, and so does the
    largest class count of that branch; the other branches stay. Hence under *add-remove* a unit of
    at most ``max_rows`` rows moves every candidate's score by 0 to ``max_rows``, all up or all
    down: the scores are monotone. To *replace* a unit is to remove it and to add another: one step
    down and one up, each of 0 to ``max_rows``, so a score changes by at most ``max_rows``; but one
    candidate's may rise while another's falls.

    Parameters
    ----------
    max_rows
        Largest number of rows of one unit; 1 if the unit is the row.

    Notes
    -----
    Ref: PFDS §3.1, Algorithm 3, lines 21-22 (the Max operator has sensitivity 1).
    """

    max_rows: int = 1

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise MechanismError("MECH-001", f"max_rows = {self.max_rows}: it must be at least 1.")

    @property
    def sensitivity(self) -> Fraction:
        """Largest difference of one score between neighbours, under either relation."""
        return Fraction(self.max_rows)

    def is_monotone(self, relation: Relation) -> bool:
        """Return whether neighbours' scores differ in one direction only."""
        return relation is Relation.ADD_REMOVE

    def rate(self, epsilon: Fraction, relation: Relation) -> Fraction:
        """Return the weight of one point of score: epsilon / D or epsilon / (2 D)."""
        return epsilon / self.sensitivity / (1 if self.is_monotone(relation) else 2)

    def describe_parameters(self, relation: Relation) -> dict[str, int | float | str]:
        """Return the parameters of an event that describe the scores."""
        return {
            "sensitivity": self.max_rows,
            "scores": "monotone" if self.is_monotone(relation) else "general",
        }


def check_scores(scores: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the scores of one or more candidates (the last axis) as integers.

    Raise ``MECH-002`` for anything else.
    """
    array = check_integers(scores)
    if array.ndim < 1 or array.shape[-1] < 1:
        raise MechanismError(
            "MECH-002",
            "There is no candidate to choose from.",
            fix="Give at least one candidate with its score.",
        )
    return array


class ExponentialMechanism:
    """Choice of a candidate with probability proportional to the exponential of its score.

    Parameters
    ----------
    epsilon
        Cost of one choice.
    score
        How the scores are made; it sets their sensitivity.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Notes
    -----
    Ref: McSherry and Talwar 2007; PFDS Theorem 2.5. For rho, Cesar and Rogers 2021 (Bounding,
    Concentrating, and Truncating): between neighbours the log-ratios of all candidates lie within
    epsilon of one another, and a loss of that range is (epsilon^2 / 8)-zCDP.

    Privacy
    -------
    epsilon-DP, and rho = epsilon^2 / 8, for the scope's unit and relation.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> split = ExponentialMechanism(
    ...     1.0, CountScore(), Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
    ... )
    >>> split.choose([3, 90, 4], SeededEntropy(1)), split.chances([3, 4]).round(4).tolist()
    (1, [0.2689, 0.7311])
    """

    name = "exponential"

    def __init__(self, epsilon: float, score: CountScore, scope: Scope) -> None:
        exact = check_epsilon(epsilon)
        self.epsilon = epsilon
        self.score = score
        self.scope = scope
        self.rate = score.rate(exact, scope.relation)
        self._rho = float_up(exact**2 / 8)

    def event(self) -> Event:
        return Event(
            self.name,
            self.score.describe_parameters(self.scope.relation),
            self.scope,
            self.epsilon,
            rho=self._rho,
        )

    def choose(self, scores: Sequence[int] | npt.NDArray[np.int64], entropy: Entropy) -> int:
        """Choose one of the candidates by their scores."""
        return int(self.choose_many(np.asarray(scores)[np.newaxis], entropy)[0])

    def choose_many(self, scores: npt.NDArray[np.int64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """Make a choice for each row of scores.

        Parameters
        ----------
        scores
            Shape (n, t): t candidates' scores in each of n independent choices.

        Notes
        -----
        With weights w_i = exp(-rate (max u - u_i)), u uniform and W = sum w, the choice is the
        number of cumulative sums (but the last) that are at most u W. The error of a weight as a
        float is less than 2^-50, that of a cumulative sum of t less than t W 2^-50; that of u W,
        known by the first 64 bits of u, is not larger. If a sum is within t W 2^-44 of u W, with a
        probability of t^2 / 2^43, the row is resolved by `_choose_exactly`, with bounds as narrow
        as needed: floats are a filter, and the distribution is exact.
        """
        scores = check_scores(scores)
        n, t = scores.shape
        words = entropy.words(n, np.uint64)
        weights = self._compute_weights(scores)
        sums = np.cumsum(weights, axis=1)
        total = sums[:, -1:]
        point = words[:, np.newaxis].astype(np.float64) * 2.0**-64 * total
        margin = t * _MARGIN * total
        chosen = np.count_nonzero(sums[:, :-1] <= point - margin, axis=1)
        unsure = np.flatnonzero(chosen != np.count_nonzero(sums[:, :-1] <= point + margin, axis=1))
        for i in unsure.tolist():
            chosen[i] = self._choose_exactly(scores[i].tolist(), int(words[i]), entropy)
        return np.asarray(chosen, np.int64)

    def chances(self, scores: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the probability of each candidate, as floats."""
        weights = self._compute_weights(check_scores(np.asarray(scores)))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def expected_regret(self, scores: Sequence[int] | npt.NDArray[np.int64]) -> float:
        """Return the mean difference between the best and the chosen score."""
        array = check_scores(np.asarray(scores))
        return float(self.chances(array) @ (array.max() - array))

    def _compute_weights(self, scores: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        behind = scores.max(axis=-1, keepdims=True) - scores
        return np.asarray(np.exp(-np.minimum(behind * float(self.rate), _FAR)))

    def _choose_exactly(self, scores: list[int], word: int, entropy: Entropy) -> int:
        """Return the choice by a uniform real with ``word`` as its first 64 bits.

        More bits are drawn until no cumulative sum is in doubt.
        """
        bits = 64
        while True:
            low, high = self._bound_sums(scores, bits)
            # The point u W is in [start, end); candidate i is right if the point is at or above sum
            # i - 1 and below sum i.
            start, end = (
                Fraction(word, 1 << bits) * low[-1],
                Fraction(word + 1, 1 << bits) * high[-1],
            )
            certain = sum(bound <= start for bound in high[:-1])
            if certain == sum(bound < end for bound in low[:-1]):
                return certain
            word = word << 64 | entropy.word()
            bits += 64

    def _bound_sums(self, scores: list[int], bits: int) -> tuple[list[Fraction], list[Fraction]]:
        """Return bounds below and above each cumulative sum of the weights."""
        best = max(scores)
        low, high = [Fraction(0)], [Fraction(0)]
        for score in scores:
            x = self.rate * (best - score)
            # exp(-x) < 2^-x: beyond the bits in question it need not be computed, which would be
            # impossible for a large x.
            below, above = (
                bound_exp(-x, bits) if x < 2 * bits else (Fraction(0), Fraction(1, 1 << 2 * bits))
            )
            low.append(low[-1] + below)
            high.append(high[-1] + above)
        return low[1:], high[1:]
