"""What the inner loop of a simulated run reads and changes: plain arrays and figures, which numba can hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.protocols.ddml.links import Link
from shoal.protocols.ddml.merging import Weights

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

LINKS: tuple[Link, ...] = ("identity", "logit", "log", "multinomial")
IDENTITY, LOGIT, LOG, MULTINOMIAL = range(len(LINKS))
BARE, ADDITIVE, CLOSEST = range(3)
"""How a step is hidden: not at all, by integer noise, or behind a direction."""


class Table(NamedTuple):
    """Rows as `Inputs` holds them; without positions every row has all its inputs in order."""

    is_dense: bool
    starts: Ints
    positions: npt.NDArray[np.int32]
    values: Floats
    targets: Floats


class Rule(NamedTuple):
    """The figures of a run, or of an epoch of it.

    Parameters
    ----------
    link, kind
        One of the codes above.
    grid
        The size of a unit of the grid.
    scale
        gamma in units of the grid.
    bound, norm
        What a step is clipped to, in units of the grid, and in which norm: 1 or 2, or 0 for the size of each weight. Where it is hidden
        behind a direction, the L2 norm to which a gradient is clipped.
    reach
        The length of a step towards a direction, in units of the grid.
    part
        beta.
    n_instances
        Instances among the models; the rest are on their way.
    batch
        So many steps are averaged before they enter; 0 where each enters by itself.
    fold_every
        Merged updates between two folds of the average over time; 0 for none.
    """

    link: int
    kind: int
    grid: float
    scale: float
    bound: float
    norm: int
    reach: float
    part: float
    n_instances: int
    batch: int
    fold_every: int


class Arrivals(NamedTuple):
    """Updates in the order in which they come back.

    Parameters
    ----------
    devices
        Who sends each.
    bases
        The model that each is based on.
    places
        The instance that each enters; -1 where it is not accepted.
    redrawn
        The instance that is drawn next, in the place of the base that came back; -1 for none.
    """

    devices: Ints
    bases: Ints
    places: Ints
    redrawn: Ints


class Draws(NamedTuple):
    """What hides the steps of some updates.

    Parameters
    ----------
    noise, normals, offsets, signs
        Update t has p numbers of one or the other from ``offsets[t]`` on, all times its sign.
    alignments, coins
        How close a reported direction is to the private one, and a number in [0, 1) that turns it about.
    """

    noise: npt.NDArray[np.int32]
    normals: Singles
    offsets: Ints
    signs: Floats
    alignments: Floats
    coins: Floats


class Block(NamedTuple):
    """Some updates with all that is random about them; t reads the rows from ``row_starts[t]`` to ``row_starts[t + 1]`` of ``rows``."""

    rows: Ints
    row_starts: Ints
    arrivals: Arrivals
    draws: Draws


class State(NamedTuple):
    """What a run changes.

    Parameters
    ----------
    models
        The instances, and after them those that are on their way.
    average
        Over time.
    waiting
        The sum of the steps that are yet to be averaged.
    scratch
        Zeros between updates.
    scores
        Room for the scores of a row.
    counts
        Updates merged, folds of the average, steps waiting.
    """

    models: Weights
    average: Floats
    waiting: Floats
    scratch: Floats
    scores: Floats
    counts: Ints


def pieces(block: Block, n_before: int, every: int) -> Iterator[Block]:
    """The block in pieces that end after every so many updates, counted with those before it; the block itself where that is 0.

    Notes
    -----
    What is random about the updates is drawn already, so that they come to the same in pieces as they do at once.
    """
    n = len(block.arrivals.devices)
    start = 0
    while start < n:
        end = min(n, start + every - (n_before + start) % every) if every else n
        part, draws = slice(start, end), block.draws
        yield Block(
            block.rows,
            block.row_starts[start : end + 1],
            Arrivals(*(field[part] for field in block.arrivals)),
            Draws(draws.noise, draws.normals, draws.offsets[part], draws.signs[part], draws.alignments[part], draws.coins[part]),
        )
        start = end
