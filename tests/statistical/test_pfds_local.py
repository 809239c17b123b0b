"""What a holder publishes carries the noise that its price is for, on every cell of every table."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from shoal.domain import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.local import answer, attributes_of, count, n_tables, price
from shoal.protocols.pfds.params import GRID, Ints, Params, Rows
from statistical.harness import catches, fits, statistical

ALPHA = 1e-9
FEATURES = [Categorical(f"a{j}", [str(i) for i in range(4)], missing=False) for j in range(6)]
PARAMS = Params(Schema(FEATURES, Categorical("y", ["0", "1"])), 2.0, 1500, n_holders=15, max_rows=2, unit="person")
ROWS = Rows.of(PARAMS, {f"a{j}": np.arange(200) * (j + 1) // 7 % 4 for j in range(6)}, np.arange(200) % 2)
ATTRIBUTES = attributes_of(PARAMS, b"digest", 3)
# P(X > x) = r^(x + 1) / (1 + r): cut where the noise is one, two, ... halves of its scale.
RATE = Fraction(2) / (n_tables(PARAMS) * GRID * 2)
EDGES = np.arange(-8, 9) * int(1 / RATE / 2)


def law() -> np.ndarray:
    """Chances of the noise between the edges, ``(18,)``."""
    r = np.exp(-float(RATE))
    above = np.where(EDGES >= 0, r ** np.abs(EDGES + 1.0) / (1 + r), 1 - r ** np.abs(EDGES * 1.0) / (1 + r))
    return -np.diff(np.concatenate([[1], above, [0]]))


def looks_right(noisy: Callable[[], Ints], n: int = 400) -> bool:
    """Whether the noise of many answers has the law, of all cells together and of the first and the last."""
    noise = np.stack([noisy() for _ in range(n)]) - count(PARAMS, ROWS, ATTRIBUTES)
    parts = (noise, noise[:, :1], noise[:, -1:])
    return all(fits(np.bincount(np.searchsorted(EDGES, part.ravel()), minlength=18), law(), ALPHA / 4) for part in parts)


@statistical(alpha=ALPHA)
def test_answers_carry_the_noise_of_their_price(entropy: SeededEntropy) -> None:
    assert n_tables(PARAMS) == 3 and price(PARAMS).parameters["scale"] == float(1 / RATE)
    assert looks_right(lambda: answer(PARAMS, ROWS, ATTRIBUTES, entropy))
    # Noise for one row of a person instead of two, for one table instead of three, and none on the last cell.
    one_row = Params(PARAMS.schema, 2.0, 1500, n_holders=15)
    assert catches(lambda: looks_right(lambda: answer(one_row, ROWS, ATTRIBUTES, entropy)))
    assert catches(lambda: looks_right(lambda: one_table(entropy)))
    true, is_last = count(PARAMS, ROWS, ATTRIBUTES), np.arange(24) == 23
    assert catches(lambda: looks_right(lambda: np.where(is_last, true, answer(PARAMS, ROWS, ATTRIBUTES, entropy))))


def one_table(entropy: SeededEntropy) -> Ints:
    """Tables that are each answered as if they were the only one."""
    few = Params(PARAMS.schema, 2.0, 15, n_holders=15, max_rows=2, unit="person")
    assert n_tables(few) == 1
    return np.concatenate([answer(few, ROWS, [a], entropy) for a in ATTRIBUTES])
