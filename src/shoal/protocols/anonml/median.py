"""The private median of a number: a binary search in which each peer answers once, by one randomised bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.mechanisms.response import RandomResponse

N_BATCHES = 15
"""Batches of peers, asked one after the other; the last step is 2^-16 of the range."""


@dataclass(frozen=True)
class MedianSearch:
    """The search after some batches of peers: the estimate, which the next batch is asked about, and the last step.

    Parameters
    ----------
    estimate
        e: the next batch is asked ISGREATER(e), whether a peer's value is above it.
    step
        Half of it is the next move.

    Notes
    -----
    Ref: AnonML §VII-B, Algorithm 1; errata A-02 (where it begins) and A-03 (what is compared).

    Privacy
    -------
    Unit person, replace, against everyone: a peer is in one batch and answers once, at the cost of its mechanism. The search itself
    reads noisy counts only.

    Examples
    --------
    >>> search = MedianSearch.begin(0, 100)
    >>> search.told(greater=20, n=1000, mechanism=None)
    MedianSearch(estimate=25.0, step=25.0)
    """

    estimate: float
    step: float

    @classmethod
    def begin(cls, low: float, high: float) -> MedianSearch:
        """The middle of the public range."""
        return cls(low + (high - low) / 2, (high - low) / 2)

    def told(self, greater: int, n: int, mechanism: RandomResponse | None) -> MedianSearch:
        """The search after one more batch.

        Parameters
        ----------
        greater
            Noisy count of the peers whose value is greater than the estimate.
        n
            Peers of the batch who answered. Where none did, only the step is halved.
        mechanism
            What perturbed their bits; None if nothing did.
        """
        step = self.step / 2
        if not n:
            return MedianSearch(self.estimate, step)
        share = _share(greater, n, mechanism)
        error = margin_of_error(share, n, mechanism)
        if share - error > 0.5:
            return MedianSearch(self.estimate + step, step)
        if share + error < 0.5:
            return MedianSearch(self.estimate - step, step)
        return MedianSearch(self.estimate, step)


def margin_of_error(share: float, n: int, mechanism: RandomResponse | None) -> float:
    """Root mean square error of a share that is estimated from n randomised bits.

    Notes
    -----
    Ref: AnonML §VII-B, MARGINOFERROR; Eq. (4). Equation 4 is about all cells and fixed peers. Here one of the two cells is asked about,
    and a batch is a sample of the peers whose median is sought: its own error comes on top, and is all that is left without perturbation.
    """
    added = mechanism.variance(share) if mechanism else 0.0
    return math.sqrt((added + share * (1 - share)) / n)


def _share(greater: int, n: int, mechanism: RandomResponse | None) -> float:
    """Share of the peers above the estimate, debiased and cut to what a share can be."""
    n_hat = mechanism.debias([n - greater, greater], n)[1] if mechanism else greater
    return min(max(float(n_hat) / n, 0.0), 1.0)
