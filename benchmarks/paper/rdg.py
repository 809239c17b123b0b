"""Made-up rows in the manner of Weka's generator RDG1, from which the SDQ paper made its own: booleans, and a class by a decision list.

Rows are drawn one after another, each of their ten booleans by a fair coin. The first rule of the list that a row meets gives its class.
Where it meets none, a rule is made from the row itself and put at the end: a random number of its booleans, from one to nine, must be as
they are there. Classes take turns from rule to rule. At last one boolean in ten is drawn anew, which leaves half of those as they were;
classes stay. All sizes are RDG1's own; the reassigning is the paper's. The draws are our own, so that a seed gives other rows than in Weka.
"""

from __future__ import annotations

import numpy as np

from shoal.domain import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Ints

N_ATTRIBUTES, N_CLASSES = 10, 2
ONE_IN = 10
"""So few values are drawn anew."""

SCHEMA = Schema(
    [Categorical(f"a{i}", ["false", "true"], missing=False) for i in range(N_ATTRIBUTES)],
    label=Categorical("class", [f"c{i}" for i in range(N_CLASSES)]),
)


def made(n: int, entropy: SeededEntropy) -> tuple[Ints, Ints]:
    """The values of n rows, ``(n, 10)``, and their classes, ``(n,)``."""
    drawn = _booleans(n, entropy.spawn("rows"))
    is_anew = entropy.spawn("which").below_many(ONE_IN, drawn.size).reshape(drawn.shape) == 0
    return np.where(is_anew, _booleans(n, entropy.spawn("anew")), drawn), classes(drawn, entropy.spawn("rules"))


def classes(rows: Ints, entropy: SeededEntropy) -> Ints:
    """The class of each row, by a list that gets a rule from each row that meets none."""
    found = np.full(len(rows), -1)
    n_rules = 0
    while (left := np.flatnonzero(found < 0)).size:
        tested = np.argsort(entropy.words(N_ATTRIBUTES, np.uint64))[: 1 + entropy.below(N_ATTRIBUTES - 1)]
        meets = (rows[left][:, tested] == rows[left[0], tested]).all(axis=1)
        found[left[meets]] = n_rules % N_CLASSES
        n_rules += 1
    return found


def _booleans(n: int, entropy: SeededEntropy) -> Ints:
    return entropy.below_many(2, n * N_ATTRIBUTES).reshape(n, N_ATTRIBUTES)
