"""What an audit looks at: one feature of all that a peer sends, for two neighbouring devices or people, and the claim about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import Keys
from shoal.privacy.accountant import Loss

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
    """

    seen_in: str
    rows: tuple[str, str]
    first: Keys
    second: Keys
    claim: Loss


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
