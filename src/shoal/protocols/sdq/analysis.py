"""Sizes of sums, and exposure to colluding databases.

Plans and reports call these functions before a study runs: they compute from public parameters how
many counts leave a database, and how likely colluders know the noise of the two selected databases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from shoal.protocols.sdq.paper import MAX_COUNTS, SDQPaperScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.plus import SDQPlusScript, SDQRankedScript
from shoal.protocols.sdq.script import SDQScript


@dataclass(frozen=True)
class SDQExposure:
    """Probabilities that colluders are among the two databases that add the noise; exact fractions.

    Parameters
    ----------
    n
        N: databases, of which two different ones are selected each time.
    c
        C: databases that collude with the miner.
    selections
        Number of independent selections.

    Notes
    -----
    If both collude, the miner subtracts the whole noise and has the true counts. If one does, the
    remaining noise is one-sided: it excludes all counts on its other side, and no epsilon holds.

    Ref: SDQ §VI-B, which counts `both` alone, and for one count; errata S-01 to S-04.

    Examples
    --------
    >>> seen = SDQExposure(n=10, c=3, selections=5)
    >>> str(seen.both), str(seen.one), round(float(seen.ever_both), 3), round(float(seen.ever), 3)
    ('1/15', '7/15', 0.292, 0.978)
    """

    n: int
    c: int
    selections: int = 1

    @property
    def both(self) -> Fraction:
        """One selection: both collude, and the true counts are known."""
        return self._compute_probability(self.c * (self.c - 1))

    @property
    def one(self) -> Fraction:
        """One selection: exactly one colludes, and no epsilon holds."""
        return self._compute_probability(2 * self.c * (self.n - self.c))

    @property
    def none(self) -> Fraction:
        """One selection: neither colludes, and epsilon holds."""
        return self._compute_probability((self.n - self.c) * (self.n - self.c - 1))

    @property
    def ever_both(self) -> Fraction:
        """Both collude in at least one selection."""
        return 1 - (1 - self.both) ** self.selections

    @property
    def ever(self) -> Fraction:
        """One or both collude in at least one selection: the guarantee fails at least once."""
        return 1 - self.none**self.selections

    def _compute_probability(self, ordered_pairs: int) -> Fraction:
        return Fraction(ordered_pairs, self.n * (self.n - 1))


def count_levels(params: SDQParams) -> int:
    """Return the levels of a tree of variant paper, from the root to the last leaves.

    A path has at most as many levels as there are attributes.
    """
    return min(params.depth, len(params.arities)) + 1


def compute_exposure(params: SDQParams, n_queries: int = 0) -> SDQExposure:
    """Return the exposure of a study with two selected databases.

    Two databases are selected for each level of the tree and for each free count.

    Notes
    -----
    Ref: errata S-11.
    """
    return SDQExposure(params.n_databases, params.max_colluders, count_levels(params) + n_queries)


def compute_max_counts(script: SDQScript) -> int:
    """Return the most counts that a database sends in the sums of a script, for any answers.

    Free counts and scores are not included.
    """
    params = script.params
    if isinstance(script, SDQPaperScript):
        return _compute_max_level_counts(params)
    if isinstance(script, SDQPlusScript):
        return _compute_max_joint_counts(params, script.n_cells, script.n_levels)
    tables = sum(params.arities) * params.n_classes
    if isinstance(script, SDQRankedScript) and script.has_table:
        return tables + _compute_max_joint_counts(params, script.n_cells, params.depth)
    return tables


def _compute_max_joint_counts(params: SDQParams, n_cells: int, n_attributes: int) -> int:
    """Return the most counts of a table with at most these numbers of cells and attributes."""
    return min(n_cells, math.prod(sorted(params.arities)[-n_attributes:])) * params.n_classes


def _compute_max_level_counts(params: SDQParams) -> int:
    """Return the most counts of a tree of variant paper.

    In the worst case every node splits on the largest remaining attribute: any other split leaves
    fewer nodes and fewer counts in total.
    """
    arities, n_classes, nodes, total = sorted(params.arities, reverse=True), params.n_classes, 1, 0
    for level in range(count_levels(params)):
        left = arities[level:] if level < params.depth else []
        total += nodes + min(MAX_COUNTS, nodes * max(n_classes, (1 + n_classes) * sum(left)))
        nodes = min(nodes * arities[level], MAX_COUNTS // n_classes) if left else nodes
    return total
