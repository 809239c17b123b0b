"""The automatic rule of ``plus``: bins, kinds of questions and shares of people, from public figures alone.

It looks at epsilon, the declared size n, the number of features J, the number of classes and the trust level. It never sees data, and no
constant in it knows a dataset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from shoal.protocols.anonml.evidence import N_LEVELS
from shoal.protocols.anonml.params import Plus

_MEDIAN, _QUARTILES = (0.5,), (0.25, 0.5, 0.75)
_LARGEST_BLOCK = 4
_FEW_PER_PAIR = 250
_MOST_COMBINATIONS = 1 << 32


@dataclass(frozen=True)
class Rule:
    """What is asked of whom.

    Parameters
    ----------
    targets
        Quantiles that are placed privately, for each number without public bins.
    placing
        Share of the people who place them.
    has_lowest
        Whether the lowest value is a bin of its own.
    grid
        Equal and growing widths of a public grid that is added to the quantiles.
    is_one_bit
        Whether features with two sides are asked about by single bits.
    blocks
        Share of the people who answer about several features at once, at the end.
    block_size
        About how many.
    """

    targets: tuple[float, ...]
    placing: Fraction = Fraction(0)
    has_lowest: bool = True
    grid: tuple[int, int] | None = None
    is_one_bit: bool = False
    blocks: Fraction = Fraction(0)
    block_size: int = 0


def choose(params: Plus) -> Rule:
    """The rule for a study."""
    epsilon, n, j = params.epsilon, params.size, params.n_features
    if params.trust == "shuffled":
        # The crowd that hides a message is its phase, so there is one phase only.
        return Rule((), grid=(4, 4))
    few = Fraction(4, 100) if params.unbinned else Fraction(0)
    strength = n * math.tanh(epsilon / 2) ** 2
    if epsilon < 1.5 and strength / j < 900 and params.n_labels == 2:
        return Rule(_MEDIAN, Fraction(6, 100) if params.unbinned else few, has_lowest=False, is_one_bit=True)
    if epsilon < 3:
        return Rule(_MEDIAN if j >= 20 else _QUARTILES, few)
    size = block_size(epsilon, j)
    share = Fraction(3, 10)
    # Answers about each pair of features, if every answer tells of six pairs.
    per_pair = float(share) * n * 12 / (j * (j - 1)) if j > 1 else 0.0
    if epsilon >= 6 and params.n_labels == 2 and per_pair >= _FEW_PER_PAIR and math.comb(j, size) <= _MOST_COMBINATIONS:
        return Rule(_QUARTILES, few, grid=(12, 0), blocks=share, block_size=size)
    return Rule(_QUARTILES, few, grid=(4, 4))


def block_size(epsilon: float, n_features: int) -> int:
    """How many features one answer can tell about: as many as random response over their levels and the label can bear."""
    bearable = math.floor((epsilon - math.log(2)) / math.log(N_LEVELS))
    return max(2, min(_LARGEST_BLOCK, n_features, bearable))
