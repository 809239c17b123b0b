"""The law of private trees, by enumeration: their attributes, where they split, and the noise in leaves and levels.

A root that splits on a category of thousands of cells, each with the same few rows, has thousands of independent children.
Sample sizes: twice the rate or half of it moves the chance of the best split by more than ten standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from pfds_trees import level_of
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.growing import draw_attributes, draw_leaves, draw_splits
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.synthesis import draw_counts
from shoal.protocols.pfds.tree import Level
from statistical.harness import catches, fits, statistical
from statistical.laws import laplace, looks_like

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
ROOT = level_of((0, 0))
HERE = np.repeat([[0.25, 0, 0], [0.5, 1, 0]], ROWS, axis=0)
POINTS = Points(np.column_stack([np.repeat(np.arange(N), 2 * ROWS), np.tile(HERE, (N, 1))]), np.tile(np.repeat([0, 1], ROWS), N))
"""Split above 0.25 and up to 0.5, all 16 rows of a place are on the side of their class; split anywhere else, 8 are."""

PAIRS = np.array([[0, 0, 0, 0], [0, 1 / 9, 1 / 9, 1 / 9], [0, 1 / 6, 0, 1 / 6], [0, 1 / 6, 1 / 6, 0]])
"""Chances of a place's attribute and its child's: below a number any of three, below a category any but it."""


def params_of(epsilon: float = 1.0) -> Params:
    return Params(SCHEMA, epsilon, 100, variant="paper", max_depth=4, n_candidates=T, n_levels=3)


def law_of_splits(rate: float) -> Floats:
    """Chances of a number split up to 0.25, up to 0.5 and beyond, and of either category."""
    best = 0.0
    for j, chance in enumerate(stats.binom.pmf(np.arange(T + 1), T, 0.25)):
        best += chance * j * math.exp(ROWS * rate) / (j * math.exp(ROWS * rate) + T - j)
    return np.array([(1 - best) / 3, best, 2 * (1 - best) / 3, 1, 1]) / 3


def tally_of(level: Level) -> Ints:
    region = np.searchsorted([0.25, 0.5], level.splits, side="left")
    return np.bincount(np.where(level.attributes == 1, region, level.attributes + 1), minlength=5)


def pairs_of(level: Level, below: npt.NDArray[np.int16]) -> Ints:
    """How often each pair of attributes of a place and of its child occurs, of those that can; last, how often any other does."""
    tally = np.bincount(4 * level.attributes.astype(np.int64) + below, minlength=16).reshape(4, 4)
    return np.append(tally[PAIRS > 0], tally[PAIRS == 0].sum())


@statistical(alpha=ALPHA)
def test_splits_fall_as_enumeration_says(entropy: SeededEntropy) -> None:
    def drawn(epsilon: float = 1.0, points: Points = POINTS) -> Level:
        return draw_splits(params_of(epsilon), points, [ROOT], entropy)

    def looks_right(draw: Callable[[], Level], rate: float = 1 / 8) -> bool:
        # epsilon / (2 h_max) with h_max = 4; the scores are monotone.
        return fits(sum(tally_of(draw()) for _ in range(REPEATS)), law_of_splits(rate), ALPHA / 3)

    assert looks_right(drawn)
    assert looks_right(lambda: drawn(points=Points(POINTS.values[:0], POINTS.outcomes[:0])), rate=0.0)
    level = drawn()
    pairs = pairs_of(level, draw_attributes(params_of(), [ROOT, level], entropy)[1::2])
    assert pairs[-1] == 0
    assert fits(pairs[:-1], PAIRS[PAIRS > 0], ALPHA / 3)
    # Twice and half the price, the better the less likely, no look at the classes, and a draw that is used again at other places.
    assert catches(lambda: looks_right(lambda: drawn(2.0)))
    assert catches(lambda: looks_right(lambda: drawn(0.5)))
    assert catches(lambda: looks_right(drawn, rate=-1 / 8))
    assert catches(lambda: looks_right(lambda: drawn(points=Points(POINTS.values, np.zeros_like(POINTS.outcomes)))))
    assert catches(lambda: looks_right(lambda: Level(np.resize(drawn().attributes[:99], N), np.resize(drawn().splits[:99], N))))
    # Attributes that do not look at the path above: those of another draw.
    assert catches(lambda: fits(pairs_of(level, drawn().attributes)[:-1], PAIRS[PAIRS > 0], ALPHA / 3))


@statistical(alpha=ALPHA)
def test_counts_carry_their_noise(entropy: SeededEntropy) -> None:
    def noise(epsilon: float) -> tuple[Ints, Ints]:
        """On the classes of leaves, and on a level."""
        params = Params(SCHEMA, epsilon, 100, variant="paper", max_depth=2, n_levels=3)
        leaves = draw_leaves(params, POINTS, [ROOT], entropy).astype(np.int64) - ROWS
        deep = Params(SCHEMA, epsilon, 100, variant="paper", max_depth=4, n_levels=3)
        return leaves, draw_counts(deep, POINTS, [ROOT], 2, entropy) - 2 * ROWS

    def looks_right(drawn: Ints, rate: float) -> bool:
        return looks_like(drawn.ravel(), -200, laplace(rate, 200), ALPHA / 4)

    def is_apart(leaves: Ints) -> bool:
        """Whether the two classes of a leaf have noise of their own: the difference of two draws."""
        law = laplace(1 / 4, 200)
        return looks_like(leaves[:, 0] - leaves[:, 1], -400, np.convolve(law, law), ALPHA / 4)

    leaves, counts = noise(1.0)
    # epsilon / (2 h_max) with h_max = 2, and epsilon / (2 (p - 1)) with p = 3.
    assert looks_right(leaves, 1 / 4)
    assert looks_right(counts, 1 / 4)
    assert is_apart(leaves)
    # Half the noise, and one draw for both classes of a leaf.
    assert catches(lambda: looks_right(noise(2.0)[0], 1 / 4))
    assert catches(lambda: looks_right(noise(2.0)[1], 1 / 4))
    assert catches(lambda: is_apart(noise(1.0)[0][:, [0, 0]]))
