"""Synthetic rows like those of Weka's generator RDG1, which the SDQ paper used.

A row has ten booleans, and a class by a decision list. Rows are drawn one after another, each
boolean by a fair coin. The first rule of the list that a row meets gives its class. If it meets
none, a rule is made from the row itself and appended: a random number of its booleans, from one to
nine, must have the same values. Classes alternate from rule to rule. Finally one boolean in ten is
drawn again, which leaves half of those unchanged; classes stay. All sizes are those of RDG1; the
reassignment is the paper's. The random draws differ from Weka's, so a seed gives other rows than in
Weka.
"""

from __future__ import annotations

import numpy as np

from shoal.data.schema import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Ints

N_ATTRIBUTES, N_CLASSES = 10, 2
ONE_IN = 10
"""One value in this many is drawn again."""

SCHEMA = Schema(
    [Categorical(f"a{i}", ["false", "true"], missing=False) for i in range(N_ATTRIBUTES)],
    label=Categorical("class", [f"c{i}" for i in range(N_CLASSES)]),
)


def make_rows(n: int, entropy: SeededEntropy) -> tuple[Ints, Ints]:
    """Return the values of n rows, ``(n, 10)``, and their classes, ``(n,)``."""
    values = _draw_booleans(n, entropy.spawn("rows"))
    is_reassigned = entropy.spawn("which").below_many(ONE_IN, values.size) == 0
    return np.where(
        is_reassigned.reshape(values.shape), _draw_booleans(n, entropy.spawn("anew")), values
    ), assign_classes(values, entropy.spawn("rules"))


def assign_classes(rows: Ints, entropy: SeededEntropy) -> Ints:
    """Return the class of each row, by a list that gets a rule from each row that meets none."""
    found = np.full(len(rows), -1)
    n_rules = 0
    while (left := np.flatnonzero(found < 0)).size:
        tested = np.argsort(entropy.words(N_ATTRIBUTES, np.uint64))[
            : 1 + entropy.below(N_ATTRIBUTES - 1)
        ]
        meets = (rows[left][:, tested] == rows[left[0], tested]).all(axis=1)
        found[left[meets]] = n_rules % N_CLASSES
        n_rules += 1
    return found


def _draw_booleans(n: int, entropy: SeededEntropy) -> Ints:
    return entropy.below_many(2, n * N_ATTRIBUTES).reshape(n, N_ATTRIBUTES)
