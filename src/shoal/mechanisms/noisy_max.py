"""Report noisy max.

It reports the candidate that has the largest score with one-sided geometric noise. It usually
chooses slightly better than the exponential mechanism at the same epsilon. Its noise can be drawn
in shares, so that several parties can choose together and no party sees a score
(`DistributedNoisyMax`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.exponential import CountScore, check_scores
from shoal.mechanisms.laplace import get_geometric_sampler
from shoal.privacy.events import Event, Scope


class NoisyMax:
    """The index of the largest score with geometric noise: pure epsilon.

    On a tie it is the first. The noisy score itself is not reported.

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
    Fix the noise of all candidates but i. Then i wins if its noise G reaches an integer threshold
    T, which has the probability exp(-rate max(T, 0)). Between neighbours T moves by at most D if
    scores move in one direction only, and by at most 2 D otherwise; the rate is epsilon / D or
    epsilon / (2 D), so the probability changes by a factor of at most exp(epsilon). The rule for
    ties is fixed and part of T.

    Ref: Dwork and Roth 2014, §3.3; Ding et al. 2021 (The Permute-and-Flip Mechanism is Identical to
    Report-Noisy-Max with Exponential Noise).

    Privacy
    -------
    epsilon-DP for the scope's unit and relation. The noisy scores themselves must not be released.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> split = NoisyMax(
    ...     1.0, CountScore(), Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
    ... )
    >>> split.choose([3, 90, 4], SeededEntropy(1))
    1
    """

    name = "noisy-max"

    def __init__(self, epsilon: float, score: CountScore, scope: Scope) -> None:
        self.epsilon = epsilon
        self.score = score
        self.scope = scope
        self.rate = score.rate(check_epsilon(epsilon), scope.relation)
        self._sampler = get_geometric_sampler(self.rate)

    def event(self) -> Event:
        parameters = self.score.describe_parameters(self.scope.relation) | {
            "scale": float(1 / self.rate)
        }
        return Event(self.name, parameters, self.scope, self.epsilon)

    def choose(self, scores: Sequence[int] | npt.NDArray[np.int64], entropy: Entropy) -> int:
        """Choose one of the candidates by their scores."""
        noisy_scores = [
            score + self._sampler.draw(entropy)
            for score in check_scores(np.asarray(scores)).tolist()
        ]
        return noisy_scores.index(max(noisy_scores))

    def choose_many(self, scores: npt.NDArray[np.int64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """Make a choice for each row of scores.

        ``scores`` has the shape (n, t): t candidates' scores in each of n independent choices.
        """
        scores = check_scores(scores)
        noise = self._sampler.draw_many(scores.size, entropy).reshape(scores.shape)
        return np.asarray(np.argmax(scores + noise, axis=1), np.int64)

    def chances(self, scores: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the probability of each candidate, as floats.

        Candidate i wins at z = max u + k with probability (1 - r) r^(z - u_i) times the product
        over j of 1 - a_j r^k. Here a_j = r^(max u - u_j), times r for the j that lose ties against
        i. Multiplied out, the sum over k is geometric term by term. The terms alternate and cancel,
        at most one digit in three candidates, hence the decimals. t candidates take t^3 steps.
        """
        behind = check_scores(np.asarray(scores))
        behind = behind.max() - behind
        t = behind.size
        with localcontext(Context(prec=60 + t)):
            r = (-Decimal(self.rate.numerator) / self.rate.denominator).exp()
            lead = [r ** int(d) for d in behind]
            results = []
            for i in range(t):
                product = [Decimal(1)]
                for j in range(t):
                    if j != i:
                        a = lead[j] * r if j > i else lead[j]
                        product = [
                            x - a * y
                            for x, y in zip(
                                [*product, Decimal(0)], [Decimal(0), *product], strict=True
                            )
                        ]
                results.append(
                    float(
                        lead[i]
                        * sum(c * (1 - r) / (1 - r ** (m + 1)) for m, c in enumerate(product))
                    )
                )
        return np.array(results)

    def expected_regret(self, scores: Sequence[int] | npt.NDArray[np.int64]) -> float:
        """Return the mean difference between the best and the chosen score."""
        array = check_scores(np.asarray(scores))
        return float(self.chances(array) @ (array.max() - array))
