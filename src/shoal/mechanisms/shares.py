"""Noise in shares: each of several databases adds a little, and the sum carries what one trusted curator would have added.

A share is Polya noise with r = 1 / n_honest. Shares are independent and their exponents add up: s of them have r = s / n_honest, and
exactly n_honest of them are one geometric variable, to the last bit. Which share is whose does not matter.
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
from shoal.mechanisms.laplace import geometric_sampler
from shoal.mechanisms.polya import polya_sampler
from shoal.mechanisms.sensitivity import Query
from shoal.privacy.events import Event, Scope

Ints = npt.NDArray[np.int64]


def check_honest(n_honest: int) -> int:
    """A number of shares that noise can be made for."""
    if n_honest < 1:
        raise MechanismError(
            "MECH-001",
            f"n_honest = {n_honest}: noise in shares needs at least one share that the adversary does not know.",
            fix="Let fewer databases collude or drop out.",
        )
    return n_honest


class SharedLaplace:
    """Discrete Laplace noise for a vector of sums, in shares: pure epsilon against all who know all shares but n_honest.

    Parameters
    ----------
    epsilon
        Cost of releasing the whole vector of sums.
    query
        How the vector is made; its L1 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are sure to be in the sum and unknown to the adversary. 1 is full noise from everyone.

    Notes
    -----
    Ref: SDQ §III and Algorithm 2; errata S-02, S-08. Instead of two selected databases, everyone adds a share: the difference of two Polya
    variables with r = 1 / m. The difference of two geometric variables of one rate is discrete Laplace of that rate.

    Privacy
    -------
    epsilon-DP for the scope's unit and relation. Take any m of the shares that the adversary does not know: together they are discrete
    Laplace with rate epsilon / sensitivity, exactly. Everything else in the sum (the adversary's own shares, and honest shares beyond m) is
    independent of them and of the data: adding it is post-processing. With fewer than m there is no claim.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import Histogram
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    >>> noise = SharedLaplace(1.0, Histogram(), scope, n_honest=7)
    >>> noise.share(4, SeededEntropy(1)).shape, round(noise.variance(), 2), round(noise.variance(n_shares=10), 2)
    ((4,), 1.84, 2.63)
    """

    name = "laplace-shares"

    def __init__(self, epsilon: float, query: Query, scope: Scope, n_honest: int) -> None:
        self.epsilon = epsilon
        self.scope = scope
        self.n_honest = check_honest(n_honest)
        self.sensitivity = query.l1(scope.relation)
        self.rate = check_epsilon(epsilon) / self.sensitivity
        self._geometric = geometric_sampler(self.rate)

    def event(self) -> Event:
        parameters = {"sensitivity": float(self.sensitivity), "scale": float(1 / self.rate), "n_honest": self.n_honest}
        return Event(self.name, parameters, self.scope, self.epsilon)

    def share(self, n: int, entropy: Entropy) -> Ints:
        """One database's shares for a vector of n sums."""
        return self.summed(n, 1, entropy)

    def summed(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """The sum of n_shares independent shares, for each of n sums; for simulations."""
        sides = polya_sampler(self.rate, Fraction(n_shares, self.n_honest)).draw_many(2 * n, entropy)
        return sides[:n] - sides[n:]

    def side(self, n: int, entropy: Entropy) -> Ints:
        """The positive or the negative half of the whole noise, at least 0: what each of two selected databases adds or takes away."""
        return self._geometric.draw_many(n, entropy)

    def variance(self, n_shares: int | None = None) -> float:
        """Variance of the noise on one sum of n_shares shares; n_honest of them unless told."""
        whole = 0.5 / math.sinh(float(self.rate) / 2) ** 2
        return whole if n_shares is None else whole * n_shares / self.n_honest


class SharedMax:
    """One-sided noise for the scores of candidates, in shares; only the candidate with the largest noisy sum is released: pure epsilon.

    Parameters
    ----------
    epsilon
        Cost of one choice.
    score
        How the scores are made; it sets their sensitivity.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are sure to be in the sum and unknown to the adversary. 1 is full noise from everyone.

    Notes
    -----
    A share is a Polya variable with r = 1 / m for each candidate, of its own; m of them are geometric, the noise of `NoisyMax`.
    Ref: SDQ §III; errata S-08.

    Privacy
    -------
    epsilon-DP for the scope's unit and relation, by the argument of `NoisyMax`, which holds for any fixed numbers that are added to the
    scores: condition on the adversary's own shares and on honest shares beyond m. With fewer than m there is no claim. Nobody may see
    the noisy scores themselves, nor a sum of some of the shares with theirs.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    >>> noise = SharedMax(1.0, CountScore(), scope, n_honest=7)
    >>> scores = np.array([3, 90, 4])
    >>> int(np.argmax(scores + noise.summed(3, n_shares=10, entropy=SeededEntropy(1))))
    1
    """

    name = "noisy-max-shares"

    def __init__(self, epsilon: float, score: CountScore, scope: Scope, n_honest: int) -> None:
        self.epsilon = epsilon
        self.score = score
        self.scope = scope
        self.n_honest = check_honest(n_honest)
        self.rate = score.rate(check_epsilon(epsilon), scope.relation)
        geometric_sampler(self.rate)  # refuses a rate that cannot be drawn, now and not at the first share

    def event(self) -> Event:
        parameters = self.score.parameters(self.scope.relation) | {"scale": float(1 / self.rate), "n_honest": self.n_honest}
        return Event(self.name, parameters, self.scope, self.epsilon)

    def share(self, n: int, entropy: Entropy) -> Ints:
        """One database's shares for the scores of n candidates, at least 0."""
        return self.summed(n, 1, entropy)

    def summed(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """The sum of n_shares independent shares, for each of n candidates; for simulations."""
        return polya_sampler(self.rate, Fraction(n_shares, self.n_honest)).draw_many(n, entropy)
