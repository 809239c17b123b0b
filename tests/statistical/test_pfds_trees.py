"""The distribution of private trees by enumeration: attributes, splits and noise.

A root that splits on a category of thousands of cells, each with the same few rows, has thousands
of independent children. Sample sizes: twice the rate or half of it moves the chance of the best
split by more than ten standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper.growth import draw_attributes, draw_leaves, draw_splits
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.paper.synthesis import draw_counts
from shoal.protocols.pfds.paper.tree import SplitLevel
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams
from tests.statistical.distributions import fits_pmf, laplace
from tests.statistical.harness import catches, fits, statistical
from tests.support.pfds_paper import make_level

ALPHA = 1e-9
N, T, ROWS, REPEATS = 9_900, 3, 8, 5
SCHEMA = Schema(
    [
        Categorical("place", [str(i) for i in range(N)], missing=False),
        Numeric("age", 0, 1, missing=False),
        Categorical("ward", ["a", "b"], missing=False),
        Categorical("sex", ["f", "m"], missing=False),
    ],
    label=Categorical("ill", ["no", "yes"]),
)
ROOT = make_level((0, 0))
HERE = np.repeat([[0.25, 0, 0], [0.5, 1, 0]], ROWS, axis=0)
POINTS = TreeRows(
    np.column_stack([np.repeat(np.arange(N), 2 * ROWS), np.tile(HERE, (N, 1))]),
    np.tile(np.repeat([0, 1], ROWS), N),
)
"""If the split is above 0.25 and up to 0.5, all 16 rows of a place are on the side of their class;
with any other split, 8 are.
"""

PAIRS = np.array(
    [[0, 0, 0, 0], [0, 1 / 9, 1 / 9, 1 / 9], [0, 1 / 6, 0, 1 / 6], [0, 1 / 6, 1 / 6, 0]]
)
"""Chances of a place's attribute and its child's: below a number any of three, below a category any
other.
"""


def make_params(epsilon: float = 1.0) -> PFDSParams:
    return PFDSParams(
        SCHEMA, epsilon, 100, variant="paper", max_depth=4, n_candidates=T, n_levels=3
    )


def compute_split_chances(rate: float) -> Floats:
    """Return chances of a number split up to 0.25, up to 0.5, beyond, and of each category."""
    best = 0.0
    for j, chance in enumerate(stats.binom.pmf(np.arange(T + 1), T, 0.25)):
        best += chance * j * math.exp(ROWS * rate) / (j * math.exp(ROWS * rate) + T - j)
    return np.array([(1 - best) / 3, best, 2 * (1 - best) / 3, 1, 1]) / 3


def count_splits(level: SplitLevel) -> Ints:
    region = np.searchsorted([0.25, 0.5], level.splits, side="left")
    return np.bincount(np.where(level.attributes == 1, region, level.attributes + 1), minlength=5)


def count_pairs(level: SplitLevel, below: npt.NDArray[np.int16]) -> Ints:
    """Return how often each possible pair of attributes of a place and its child occurs.

    The last entry counts all other pairs.
    """
    tally = np.bincount(4 * level.attributes.astype(np.int64) + below, minlength=16).reshape(4, 4)
    return np.append(tally[PAIRS > 0], tally[PAIRS == 0].sum())


@statistical(alpha=ALPHA)
def test_pfds_splits_fit_enumeration(entropy: SeededEntropy) -> None:
    def draw_level(epsilon: float = 1.0, points: TreeRows = POINTS) -> SplitLevel:
        return draw_splits(make_params(epsilon), points, [ROOT], entropy)

    def fits_enumeration(draw: Callable[[], SplitLevel], rate: float = 1 / 8) -> bool:
        # epsilon / (2 h_max) with h_max = 4; the scores are monotone.
        return fits(
            sum(count_splits(draw()) for _ in range(REPEATS)),
            compute_split_chances(rate),
            ALPHA / 3,
        )

    assert fits_enumeration(draw_level)
    assert fits_enumeration(
        lambda: draw_level(points=TreeRows(POINTS.values[:0], POINTS.outcomes[:0])), rate=0.0
    )
    level = draw_level()
    pairs = count_pairs(level, draw_attributes(make_params(), [ROOT, level], entropy)[1::2])
    assert pairs[-1] == 0
    assert fits(pairs[:-1], PAIRS[PAIRS > 0], ALPHA / 3)
    # The mutants: twice and half the price, better splits less likely, classes ignored, and a draw
    # that is reused at other places.
    assert catches(lambda: fits_enumeration(lambda: draw_level(2.0)))
    assert catches(lambda: fits_enumeration(lambda: draw_level(0.5)))
    assert catches(lambda: fits_enumeration(draw_level, rate=-1 / 8))
    assert catches(
        lambda: fits_enumeration(
            lambda: draw_level(points=TreeRows(POINTS.values, np.zeros_like(POINTS.outcomes)))
        )
    )
    assert catches(
        lambda: fits_enumeration(
            lambda: SplitLevel(
                np.resize(draw_level().attributes[:99], N), np.resize(draw_level().splits[:99], N)
            )
        )
    )
    # Attributes of another draw, which do not depend on the path above.
    assert catches(
        lambda: fits(count_pairs(level, draw_level().attributes)[:-1], PAIRS[PAIRS > 0], ALPHA / 3)
    )


@statistical(alpha=ALPHA)
def test_pfds_leaf_and_level_counts_have_noise_of_their_price(entropy: SeededEntropy) -> None:
    def draw_noise(epsilon: float) -> tuple[Ints, Ints]:
        """Return the noise on the classes of leaves, and on a level."""
        params = PFDSParams(SCHEMA, epsilon, 100, variant="paper", max_depth=2, n_levels=3)
        leaves = draw_leaves(params, POINTS, [ROOT], entropy).astype(np.int64) - ROWS
        deep = PFDSParams(SCHEMA, epsilon, 100, variant="paper", max_depth=4, n_levels=3)
        return leaves, draw_counts(deep, POINTS, [ROOT], 2, entropy) - 2 * ROWS

    def fits_laplace(noise: Ints, rate: float) -> bool:
        return fits_pmf(noise.ravel(), -200, laplace(rate, 200), ALPHA / 4)

    def has_independent_classes(leaves: Ints) -> bool:
        """Return whether the two classes of a leaf have independent noise."""
        pmf = laplace(1 / 4, 200)
        return fits_pmf(leaves[:, 0] - leaves[:, 1], -400, np.convolve(pmf, pmf), ALPHA / 4)

    leaves, counts = draw_noise(1.0)
    # epsilon / (2 h_max) with h_max = 2, and epsilon / (2 (p - 1)) with p = 3.
    assert fits_laplace(leaves, 1 / 4)
    assert fits_laplace(counts, 1 / 4)
    assert has_independent_classes(leaves)
    # Half the noise, and one draw for both classes of a leaf.
    assert catches(lambda: fits_laplace(draw_noise(2.0)[0], 1 / 4))
    assert catches(lambda: fits_laplace(draw_noise(2.0)[1], 1 / 4))
    assert catches(lambda: has_independent_classes(draw_noise(1.0)[0][:, [0, 0]]))
