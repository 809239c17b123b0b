"""What an audit looks at: one feature of all that a peer sends, for two neighbouring devices or people, and the claim about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import EpsilonBound, Keys, bound_epsilon, bound_rho
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event

_BINS = 64


@dataclass(frozen=True, eq=False)
class Look:
    """Equally many independent outputs of two neighbours, each named by an integer.

    Parameters
    ----------
    seen_in
        What of an output the integer tells.
    rows
        The two neighbours, in words.
    first, second
        The integers.
    claim
        What should hold for them.
    is_part
        Whether the claim is about a part of all that is sent, and is told only where it is broken.
    by_rho
        Whether the claim is a zero-concentrated one, stated as an epsilon at its delta; higher integers must speak for the second.
    """

    seen_in: str
    rows: tuple[str, str]
    first: Keys
    second: Keys
    claim: Loss
    is_part: bool = False
    by_rho: bool = False

    def bound(self, alpha: float) -> EpsilonBound:
        """The lower bound on epsilon that the outputs show, too high with a chance of at most alpha."""
        bound = bound_rho if self.by_rho else bound_epsilon
        return bound(self.first, self.second, alpha, self.claim.delta)


@dataclass(frozen=True)
class Seen:
    """All that an audit has seen of a study.

    Parameters
    ----------
    looks
        What can tell neighbours apart; the chance of error is shared among them.
    charged
        What the ledger of a peer has counted at most, in grains.
    packets
        Most packets of one peer.
    n_phases
        Phases of the study; None where it has none.
    tried
        In words, what a number of peers was run with.
    """

    looks: tuple[Look, ...]
    charged: int
    packets: int
    n_phases: int | None
    tried: str


def ranked(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> tuple[Keys, Keys]:
    """Numbers of two neighbours by their place between cuts, which lie where the first halves of both are cut into equal parts.

    The set of outputs is chosen on those halves too, so that the other halves remain free to refute the claim.
    """
    halves = np.concatenate([first[: first.size // 2], second[: second.size // 2]])
    cuts = np.unique(np.quantile(halves, np.linspace(0, 1, _BINS + 1), method="inverted_cdf"))
    return np.searchsorted(cuts, first, side="right"), np.searchsorted(cuts, second, side="right")


def evidence(event: Event, seen: npt.NDArray[np.int64], sums: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """``(n,)``: how much likelier the second neighbour makes ``(n, k)`` noisy numbers than the first, by the logarithm of the ratio.

    Parameters
    ----------
    event
        The price of the numbers, which says what noise they should have: Laplace, or Gaussian.
    seen
        The noisy numbers.
    sums
        ``(2, k)`` what they are without noise, with the first neighbour and with the second.
    """
    first, second = np.abs(seen - sums[0]).astype(np.float64), np.abs(seen - sums[1]).astype(np.float64)
    if "sigma" in event.parameters:
        return np.asarray((first**2 - second**2).sum(axis=1) / (2 * float(event.parameters["sigma"]) ** 2))
    return np.asarray((first - second).sum(axis=1) / float(event.parameters["scale"]))
