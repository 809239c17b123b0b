"""How synthetic rows get their labels: by a majority of all shared trees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Numeric
from shoal.entropy import Entropy
from shoal.protocols.pfds.growing import between
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.ties import winners
from shoal.protocols.pfds.tree import PrivateTree


def votes(params: Params, trees: Iterable[PrivateTree], values: Floats) -> Ints:
    """How many trees are for each outcome, ``(n, n_outcomes)``."""
    tally = np.zeros((len(values), params.n_outcomes), np.int64)
    rows = np.arange(len(values))
    for tree in trees:
        tally[rows, tree.predict(values)] += 1
    return tally


def majority(params: Params, trees: Iterable[PrivateTree], values: Floats) -> Ints:
    """The outcome that most trees are for; of equal ones any, by a public rule.

    Notes
    -----
    Ref: PFDS §3.2.2, Algorithm 4, lines 5 and 6.

    Privacy
    -------
    Nothing but released trees and synthetic rows is read, so labels are free.
    """
    return winners(votes(params, trees, values))


def labels_of(params: Params, outcomes: Ints, entropy: Entropy) -> npt.NDArray[Any]:
    """Labels as ``schema.encode_label`` would give them: the class, or a number that is uniform in its bucket."""
    if not isinstance(params.label, Numeric):
        return outcomes
    low, high = float(params.label.low), float(params.label.high)
    # A range may be almost as wide as numbers go: a part of it is one of them, and a multiple is not.
    edges = low + (high - low) * (np.arange(params.n_buckets + 1) / params.n_buckets)
    return between(edges[outcomes], edges[outcomes + 1], entropy)
