"""What can be said about a study before anything is summed: how much leaves, and how likely colluders know the noise of two selected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from shoal.protocols.sdq.growth import MAX_COUNTS
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.plus import PlusScript
from shoal.protocols.sdq.ranked import RankedScript
from shoal.protocols.sdq.script import Script


@dataclass(frozen=True)
class Exposure:
    """The chances that colluding databases are among the two that add the noise, in exact fractions.

    Parameters
    ----------
    n
        N: databases, two different ones of which are selected each time.
    c
        C: those that collude with the miner.
    selections
        How often two are selected, each time anew.

    Notes
    -----
    Where both collude the miner takes the whole noise away and has the true counts. Where one does, what is left is one-sided: a count
    cannot be on the far side of it, and no epsilon at all holds.

    Ref: SDQ §VI-B, which counts `both` alone, and for one count; errata S-01 to S-04.

    Examples
    --------
    >>> seen = Exposure(n=10, c=3, selections=5)
    >>> str(seen.both), str(seen.one), round(float(seen.ever_both), 3), round(float(seen.ever), 3)
    ('1/15', '7/15', 0.292, 0.978)
    """

    n: int
    c: int
    selections: int = 1

    @property
    def both(self) -> Fraction:
        """Of one selection: both collude, and the true counts are known."""
        return self._chance(self.c * (self.c - 1))

    @property
    def one(self) -> Fraction:
        """Of one selection: exactly one colludes, and no epsilon holds."""
        return self._chance(2 * self.c * (self.n - self.c))

    @property
    def none(self) -> Fraction:
        """Of one selection: neither colludes, and epsilon holds."""
        return self._chance((self.n - self.c) * (self.n - self.c - 1))

    @property
    def ever_both(self) -> Fraction:
        """Both collude in one selection at least."""
        return 1 - (1 - self.both) ** self.selections

    @property
    def ever(self) -> Fraction:
        """One or both collude in one selection at least: the guarantee is gone somewhere."""
        return 1 - self.none**self.selections

    def _chance(self, ordered_pairs: int) -> Fraction:
        return Fraction(ordered_pairs, self.n * (self.n - 1))


def n_levels(params: Params) -> int:
    """Levels of a tree of the paper's variant, the root's and the last leaves' included: no path is longer than there are attributes."""
    return min(params.depth, len(params.arities)) + 1


def exposure(params: Params, n_queries: int = 0) -> Exposure:
    """What colluders may learn of a study with two selected databases: they are selected for each level of the tree and each free count.

    Notes
    -----
    Ref: errata S-11.
    """
    return Exposure(params.n_databases, params.max_colluders, n_levels(params) + n_queries)


def most_counts(script: Script) -> int:
    """Most counts that a database sends in the sums of a course, whatever is answered; free counts and scores not among them."""
    params = script.params
    if isinstance(script, PaperScript):
        return _most_counts_of_levels(params)
    if isinstance(script, PlusScript):
        return _most_joint_counts(params, script.n_cells, script.n_levels)
    tables = sum(params.arities) * params.n_classes
    if isinstance(script, RankedScript) and script.has_table:
        return tables + _most_joint_counts(params, script.n_cells, params.depth)
    return tables


def _most_joint_counts(params: Params, n_cells: int, n_attributes: int) -> int:
    """Of a table with at most so many cells, of at most so many attributes."""
    return min(n_cells, math.prod(sorted(params.arities)[-n_attributes:])) * params.n_classes


def _most_counts_of_levels(params: Params) -> int:
    """At worst every node splits, each on the largest attribute left: any other leaves fewer nodes, with less to count in all."""
    arities, n_classes, nodes, total = sorted(params.arities, reverse=True), params.n_classes, 1, 0
    for level in range(n_levels(params)):
        left = arities[level:] if level < params.depth else []
        total += nodes + min(MAX_COUNTS, nodes * max(n_classes, (1 + n_classes) * sum(left)))
        nodes = min(nodes * arities[level], MAX_COUNTS // n_classes) if left else nodes
    return total
