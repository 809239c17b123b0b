"""Plain arrays shared by the two inner loops.

`simulate` fills them; ``numpy_loop`` and ``numba_loop`` read them and change `LoopState`. They
contain only types that numba supports.
"""

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
NOISELESS, ADDITIVE, CLOSEST = range(3)
"""Kinds of steps: without noise, with integer noise, or along a drawn direction."""


class LoopRows(NamedTuple):
    """Rows as `SparseInputs` has them; a dense table has all inputs in order."""

    is_dense: bool
    starts: Ints
    positions: npt.NDArray[np.int32]
    values: Floats
    targets: Floats


class LoopSettings(NamedTuple):
    """The settings of a run, or of an epoch of it.

    Parameters
    ----------
    link, kind
        One of the codes above.
    grid
        The size of a unit of the grid.
    scale
        gamma in units of the grid.
    bound, norm
        The clip of a step, in units of the grid, and its norm: 1 or 2, or 0 for the size of each
        weight. For steps along a direction, the L2 norm to which a gradient is clipped.
    reach
        The length of a step along a direction, in units of the grid.
    part
        beta.
    n_instances
        Number of instances among the models; the rest are in flight.
    batch
        Number of steps that are averaged before they are merged; 0 if each is merged separately.
    average_every
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
    average_every: int


class ArrivalBatch(NamedTuple):
    """Updates in the order in which they return.

    Parameters
    ----------
    devices
        The sender of each.
    bases
        The model that each is based on.
    slots
        The instance that each is merged into; -1 if it is not accepted.
    redrawn
        The instance that is drawn next, in place of the returned base; -1 for none.
    """

    devices: Ints
    bases: Ints
    slots: Ints
    redrawn: Ints


class NoiseDraws(NamedTuple):
    """The noise of some updates.

    Parameters
    ----------
    noise, normals, offsets, signs
        Update t uses p values of ``noise`` or ``normals`` from ``offsets[t]`` on, all times its
        sign.
    alignments, coins
        The alignment of the reported direction with the private one, and a number in [0, 1) that
        decides whether it is reversed.
    """

    noise: npt.NDArray[np.int32]
    normals: Singles
    offsets: Ints
    signs: Floats
    alignments: Floats
    coins: Floats


class UpdateBlock(NamedTuple):
    """Some updates with all their randomness.

    Update t reads the rows from ``row_starts[t]`` to ``row_starts[t + 1]`` of ``rows``.
    """

    rows: Ints
    row_starts: Ints
    arrivals: ArrivalBatch
    draws: NoiseDraws


class LoopState(NamedTuple):
    """The state that a run changes.

    Parameters
    ----------
    models
        The instances, followed by those in flight.
    average
        The average over time.
    pending_sum
        The sum of the steps that wait to be averaged.
    scratch
        Zeros between updates.
    scores
        Memory for the scores of a row.
    counts
        Numbers of merged updates, folds of the average, and waiting steps.
    """

    models: Weights
    average: Floats
    pending_sum: Floats
    scratch: Floats
    scores: Floats
    counts: Ints


def split_block(block: UpdateBlock, n_before: int, every: int) -> Iterator[UpdateBlock]:
    """Yield the block in pieces that end at multiples of ``every``; whole if that is 0.

    The updates before the block, ``n_before``, count too.

    Notes
    -----
    The randomness of the updates is already drawn, so the pieces give the same result as the block.
    """
    n = len(block.arrivals.devices)
    start = 0
    while start < n:
        end = min(n, start + every - (n_before + start) % every) if every else n
        part, draws = slice(start, end), block.draws
        yield UpdateBlock(
            block.rows,
            block.row_starts[start : end + 1],
            ArrivalBatch(*(field[part] for field in block.arrivals)),
            NoiseDraws(
                draws.noise,
                draws.normals,
                draws.offsets[part],
                draws.signs[part],
                draws.alignments[part],
                draws.coins[part],
            ),
        )
        start = end
