"""Discrete Laplace noise and noisy max, drawn in shares by several parties.

Each database adds a share; the sum has the noise that one trusted curator would have added. SDQ's
databases call it. A share is Polya noise with r = 1 / n_honest. Shares are independent and their
exponents add up: s of them have r = s / n_honest, and exactly n_honest of them are one geometric
variable, to the last bit. It does not matter which party adds which share.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.laplace import get_geometric_sampler
from shoal.mechanisms.polya import get_polya_sampler
from shoal.mechanisms.sensitivity import Query
from shoal.privacy.events import Event, Scope

Ints = npt.NDArray[np.int64]


def check_n_honest(n_honest: int) -> int:
    """Return a number of honest shares of at least 1; raise ``MECH-001`` otherwise."""
    if n_honest < 1:
        raise MechanismError(
            "MECH-001",
            f"n_honest = {n_honest}: noise in shares needs at least one share that the adversary "
            "does not know.",
            fix="Allow fewer databases to collude or drop out.",
        )
    return n_honest


class DistributedLaplace:
    """Discrete Laplace noise for a vector of sums, in shares: pure epsilon.

    The guarantee is against every adversary that knows all shares but n_honest.

    Parameters
    ----------
    epsilon
        Cost of releasing the whole vector of sums.
    query
        How the vector is made; its L1 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are certainly in the sum and unknown to the adversary. With 1, each party
        adds the full noise.

    Notes
    -----
    Ref: SDQ §III and Algorithm 2; errata S-02, S-08. Instead of two selected databases, every
    database adds a share: the difference of two Polya variables with r = 1 / m. The difference of
    two geometric variables of one rate is discrete Laplace of that rate.

    Privacy
    -------
    epsilon-DP for the scope's unit and relation. Take any m of the shares that the adversary does
    not know: together they are discrete Laplace with rate epsilon / sensitivity, exactly. All other
    terms of the sum (the adversary's shares, and honest shares beyond m) are independent of them
    and of the data: adding them is post-processing. With fewer than m there is no claim.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import CellCounts
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    >>> noise = DistributedLaplace(1.0, CellCounts(), scope, n_honest=7)
    >>> (
    ...     noise.draw_share(4, SeededEntropy(1)).shape,
    ...     round(noise.variance(), 2),
    ...     round(noise.variance(n_shares=10), 2),
    ... )
    ((4,), 1.84, 2.63)
    """

    name = "laplace-shares"

    def __init__(self, epsilon: float, query: Query, scope: Scope, n_honest: int) -> None:
        self.epsilon = epsilon
        self.scope = scope
        self.n_honest = check_n_honest(n_honest)
        self.sensitivity = query.l1(scope.relation)
        self.rate = check_epsilon(epsilon) / self.sensitivity
        self._geometric = get_geometric_sampler(self.rate)

    def event(self) -> Event:
        parameters = {
            "sensitivity": float(self.sensitivity),
            "scale": float(1 / self.rate),
            "n_honest": self.n_honest,
        }
        return Event(self.name, parameters, self.scope, self.epsilon)

    def draw_share(self, n: int, entropy: Entropy) -> Ints:
        """Draw one database's shares for a vector of n sums."""
        return self.draw_sum(n, 1, entropy)

    def draw_sum(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """Draw the sum of n_shares shares, for each of n sums; for simulations."""
        sides = get_polya_sampler(self.rate, Fraction(n_shares, self.n_honest)).draw_many(
            2 * n, entropy
        )
        return sides[:n] - sides[n:]

    def draw_side(self, n: int, entropy: Entropy) -> Ints:
        """Draw the positive or the negative half of the whole noise, at least 0.

        Each of two selected databases adds or subtracts one half.
        """
        return self._geometric.draw_many(n, entropy)

    def variance(self, n_shares: int | None = None) -> float:
        """Return the variance of the noise on one sum of n_shares shares, by default n_honest."""
        whole = 0.5 / math.sinh(float(self.rate) / 2) ** 2
        return whole if n_shares is None else whole * n_shares / self.n_honest


class DistributedNoisyMax:
    """One-sided noise for the scores of candidates, in shares: pure epsilon.

    Only the candidate with the largest noisy sum is released.

    Parameters
    ----------
    epsilon
        Cost of one choice.
    score
        How the scores are made; it sets their sensitivity.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are certainly in the sum and unknown to the adversary. With 1, each party
        adds the full noise.

    Notes
    -----
    A share is an independent Polya variable with r = 1 / m for each candidate; m of them are
    geometric, the noise of `NoisyMax`. Ref: SDQ §III; errata S-08.

    Privacy
    -------
    epsilon-DP for the scope's unit and relation, by the argument of `NoisyMax`, which is valid for
    any fixed numbers that are added to the scores: condition on the adversary's shares and on
    honest shares beyond m. With fewer than m there is no claim. No party may see the noisy scores
    themselves, nor their sum with only some of the shares.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    >>> noise = DistributedNoisyMax(1.0, CountScore(), scope, n_honest=7)
    >>> scores = np.array([3, 90, 4])
    >>> int(np.argmax(scores + noise.draw_sum(3, n_shares=10, entropy=SeededEntropy(1))))
    1
    """

    name = "noisy-max-shares"

    def __init__(self, epsilon: float, score: CountScore, scope: Scope, n_honest: int) -> None:
        self.epsilon = epsilon
        self.score = score
        self.scope = scope
        self.n_honest = check_n_honest(n_honest)
        self.rate = score.rate(check_epsilon(epsilon), scope.relation)
        # Raises for an unusable rate here, instead of at the first share.
        get_geometric_sampler(self.rate)

    def event(self) -> Event:
        parameters = self.score.describe_parameters(self.scope.relation) | {
            "scale": float(1 / self.rate),
            "n_honest": self.n_honest,
        }
        return Event(self.name, parameters, self.scope, self.epsilon)

    def draw_share(self, n: int, entropy: Entropy) -> Ints:
        """Draw one database's shares for the scores of n candidates, at least 0."""
        return self.draw_sum(n, 1, entropy)

    def draw_sum(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """Draw the sum of n_shares shares, for each of n candidates; for simulations."""
        return get_polya_sampler(self.rate, Fraction(n_shares, self.n_honest)).draw_many(n, entropy)
