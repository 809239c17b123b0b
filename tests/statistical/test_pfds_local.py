"""The noise in the tables of a PFDS holder, on every cell, against its price."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from shoal.data.schema import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.params import GRID, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.tables import (
    assign_attributes,
    choose_n_tables,
    count_tables,
    draw_tables,
    price_tables,
)
from tests.statistical.harness import catches, fits, statistical

ALPHA = 1e-9
FEATURES = [Categorical(f"a{j}", [str(i) for i in range(4)], missing=False) for j in range(6)]
PARAMS = PFDSParams(
    Schema(FEATURES, Categorical("y", ["0", "1"])),
    2.0,
    1500,
    n_holders=15,
    max_rows=2,
    unit="person",
)
ROWS = PFDSRows.from_columns(
    PARAMS, {f"a{j}": np.arange(200) * (j + 1) // 7 % 4 for j in range(6)}, np.arange(200) % 2
)
ATTRIBUTES = assign_attributes(PARAMS, b"digest", 3)
# P(X > x) = r^(x + 1) / (1 + r): the cuts are at multiples of half the scale of the noise.
RATE = Fraction(2) / (choose_n_tables(PARAMS) * GRID * 2)
EDGES = np.arange(-8, 9) * int(1 / RATE / 2)


def compute_chances() -> np.ndarray:
    """Return the chances of the noise between the edges, ``(18,)``."""
    r = np.exp(-float(RATE))
    above = np.where(
        EDGES >= 0, r ** np.abs(EDGES + 1.0) / (1 + r), 1 - r ** np.abs(EDGES * 1.0) / (1 + r)
    )
    return -np.diff(np.concatenate([[1], above, [0]]))


def fits_noise(noisy: Callable[[], Ints], n: int = 400) -> bool:
    """Return whether the noise of many answers has the distribution.

    It tests all cells together, the first cell, and the last one.
    """
    noise = np.stack([noisy() for _ in range(n)]) - count_tables(PARAMS, ROWS, ATTRIBUTES)
    parts = (noise, noise[:, :1], noise[:, -1:])
    return all(
        fits(
            np.bincount(np.searchsorted(EDGES, part.ravel()), minlength=18),
            compute_chances(),
            ALPHA / 4,
        )
        for part in parts
    )


@statistical(alpha=ALPHA)
def test_pfds_tables_have_noise_of_their_price(entropy: SeededEntropy) -> None:
    assert choose_n_tables(PARAMS) == 3 and price_tables(PARAMS).parameters["scale"] == float(
        1 / RATE
    )
    assert fits_noise(lambda: draw_tables(PARAMS, ROWS, ATTRIBUTES, entropy))
    # Noise for one row of a person instead of two, for one table instead of three, and none on the
    # last cell.
    one_row = PFDSParams(PARAMS.schema, 2.0, 1500, n_holders=15)
    assert catches(lambda: fits_noise(lambda: draw_tables(one_row, ROWS, ATTRIBUTES, entropy)))
    assert catches(lambda: fits_noise(lambda: draw_as_single_tables(entropy)))
    true, is_last = count_tables(PARAMS, ROWS, ATTRIBUTES), np.arange(24) == 23
    assert catches(
        lambda: fits_noise(
            lambda: np.where(is_last, true, draw_tables(PARAMS, ROWS, ATTRIBUTES, entropy))
        )
    )


def draw_as_single_tables(entropy: SeededEntropy) -> Ints:
    """Return tables that are each drawn as if they were the only one."""
    few = PFDSParams(PARAMS.schema, 2.0, 15, n_holders=15, max_rows=2, unit="person")
    assert choose_n_tables(few) == 1
    return np.concatenate([draw_tables(few, ROWS, [a], entropy) for a in ATTRIBUTES])
