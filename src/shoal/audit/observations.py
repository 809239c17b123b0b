"""Observations of an audit: outputs for two neighbouring inputs, and the claim about them.

The audit of each protocol (`shoal.audit.anonml`, `ddml`, `sdq`, `pfds`) makes observations and
defines an `AuditedProtocol`; `shoal.audit.study` has the table of them and bounds epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import EpsilonBound, Keys, bound_epsilon, bound_rho
from shoal.audit.replay import ReplayResult
from shoal.entropy import Entropy
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.study.spec import Study

_BINS = 64


@dataclass(frozen=True, eq=False)
class Observation:
    """Equally many independent outputs of two neighbours, each named by an integer.

    Parameters
    ----------
    seen_in
        The part of an output that the integer describes.
    rows
        Descriptions of the two neighbours.
    first, second
        The integers.
    claim
        The guarantee that they must satisfy.
    is_part
        Whether the claim is about a part of all messages. It is reported only if it is broken.
    is_zcdp
        Whether the claim is zero-concentrated, stated as an epsilon at its delta. Higher integers
        must be likelier for the second neighbour.
    """

    seen_in: str
    rows: tuple[str, str]
    first: Keys
    second: Keys
    claim: Loss
    is_part: bool = False
    is_zcdp: bool = False

    def compute_bound(self, alpha: float) -> EpsilonBound:
        """Return a lower bound on epsilon that is wrong with probability at most alpha."""
        bound = bound_rho if self.is_zcdp else bound_epsilon
        return bound(self.first, self.second, alpha, self.claim.delta)


@dataclass(frozen=True)
class Observations:
    """All observations of an audit of a study.

    Parameters
    ----------
    observations
        The probability of error is divided among them.
    charge
        Largest charge in the ledger of a peer, in grains.
    packets
        Most packets of one peer.
    n_phases
        Phases of the study; None for a protocol without phases.
    description
        The inputs of the peers, as text.
    replay
        The result of replays, which compare all that leaves outside the reports.
    """

    observations: tuple[Observation, ...]
    charge: int
    packets: int
    n_phases: int | None
    description: str
    replay: ReplayResult


def rank_samples(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> tuple[Keys, Keys]:
    """Return the bin of each number of two neighbours.

    Bins are quantiles of the first halves of both samples. The set of outputs is chosen on these
    halves also, so the other halves are independent evidence against the claim.
    """
    halves = np.concatenate([first[: first.size // 2], second[: second.size // 2]])
    cuts = np.unique(np.quantile(halves, np.linspace(0, 1, _BINS + 1), method="inverted_cdf"))
    return np.searchsorted(cuts, first, side="right"), np.searchsorted(cuts, second, side="right")


def compute_evidence(
    event: Event, noisy_numbers: npt.NDArray[np.int64], sums: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the log-likelihood ratio of the second neighbour to the first, ``(n,)``.

    Parameters
    ----------
    event
        The price of the numbers, which has the parameters of their noise: Laplace or Gaussian.
    noisy_numbers
        ``(n, k)``.
    sums
        ``(2, k)`` the numbers without noise, for the first neighbour and for the second.
    """
    first, second = (
        np.abs(noisy_numbers - sums[0]).astype(np.float64),
        np.abs(noisy_numbers - sums[1]).astype(np.float64),
    )
    if "sigma" in event.parameters:
        return np.asarray(
            (first**2 - second**2).sum(axis=1) / (2 * float(event.parameters["sigma"]) ** 2)
        )
    return np.asarray((first - second).sum(axis=1) / float(event.parameters["scale"]))


@dataclass(frozen=True)
class AuditedProtocol:
    """Everything that the audit of a study needs to know about one protocol.

    Parameters
    ----------
    name
        As in the study file.
    observe
        Run peers or whole studies, and return what an adversary sees. Arguments: the study, the
        loss that its label states, the plain sum of all releases, the number of samples, the random
        source, and a replacement for the class of the peer or None.
    choose_samples
        Return the default number of samples.
    has_joint_runs
        Return whether a sample is a whole study, with all its peers.
    """

    name: str
    observe: Callable[[Study, Loss, Loss, int, Entropy, Callable[..., Any] | None], Observations]
    choose_samples: Callable[[Study], int]
    has_joint_runs: Callable[[Study], bool]
