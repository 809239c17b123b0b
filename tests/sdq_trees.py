"""What SDQ's trees are compared with: plain ID3 in one place, with exact arithmetic; and a plain loop through a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Answers, Course, Round, Script

PLAY = """Sunny Hot High Weak No;Sunny Hot High Strong No;Overcast Hot High Weak Yes;Rain Mild High Weak Yes;Rain Cool Normal Weak Yes;
Rain Cool Normal Strong No;Overcast Cool Normal Strong Yes;Sunny Mild High Weak No;Sunny Cool Normal Weak Yes;Rain Mild Normal Weak Yes;
Sunny Mild Normal Strong Yes;Overcast Mild High Strong Yes;Overcast Hot Normal Weak Yes;Rain Mild High Strong No"""
"""The table of the paper's Figure 1."""
WEATHER = Schema(
    [
        Categorical("outlook", ["Overcast", "Rain", "Sunny"], missing=False),
        Categorical("temperature", ["Cool", "Mild", "Hot"], missing=False),
        Categorical("humidity", ["High", "Normal"], missing=False),
        Categorical("wind", ["Strong", "Weak"], missing=False),
    ],
    label=Categorical("play", ["No", "Yes"]),
)


def weather(params: Params) -> Table:
    """The rows of Figure 1."""
    days = np.array([day.split() for day in PLAY.split(";")], object)
    columns = {name: days[:, i] for i, name in enumerate([*WEATHER.names, "play"])}
    return Table.of(params, WEATHER.encode(columns), WEATHER.encode_label(columns))


def schema_of(arities: Sequence[int], n_classes: int) -> Schema:
    """Attributes with so many cells each."""
    features = [
        Categorical(f"a{j}", [str(i) for i in range(n)], missing=False) if n > 1 else Numeric(f"a{j}", 0, 1, bins=[], missing=False)
        for j, n in enumerate(arities)
    ]
    return Schema(features, label=Categorical("kind", [f"c{i}" for i in range(n_classes)]))


def random_table(arities: Sequence[int], n_classes: int, n: int, seed: int, n_databases: int = 1) -> Table:
    """Rows in which the label leans on the attributes."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(0, arity, n) for arity in arities], axis=1)
    labels = np.where(rng.random(n) < 0.7, cells[:, : 1 + len(arities) // 2].sum(axis=1) % n_classes, rng.integers(0, n_classes, n))
    return Table(cells, labels.astype(np.int64), rng.integers(0, n_databases, n))


def parted(table: Table) -> Iterator[Table]:
    """The table of each database."""
    assert table.whose is not None
    for one in np.unique(table.whose):
        yield Table(table.cells[table.whose == one], table.labels[table.whose == one])


def summed(asked: Round, databases: Sequence[Table]) -> Ints:
    """The sums of a round, without noise."""
    return np.sum([np.concatenate([part.count(table) for part in asked.parts]) for table in databases], axis=0)


def run(script: Script, answer: Callable[[Round], Ints]) -> tuple[Course, Answers]:
    """Every round of a script, answered so."""
    course, answers = Course(), ()
    while (asked := script.round(course)) is not None:
        answers = (*answers, answer(asked))
        course = script.advance(course, answers)
    return course, answers


class CentralID3:
    """ID3 by recursion on all rows in one place: by information gain, of equal attributes and of equal classes the first."""

    def __init__(self, table: Table, arities: Sequence[int], n_classes: int, depth: int) -> None:
        self.arities, self.n_classes = arities, n_classes
        rows = list(zip(table.cells.tolist(), table.labels.tolist(), strict=True))
        self.root = self._learn(rows, list(range(len(arities))), depth, 0)

    def _learn(self, rows: list[tuple[list[int], int]], left: list[int], depth: int, inherited: int) -> tuple[int, list] | int:  # type: ignore[type-arg]
        if not rows:
            return inherited
        counts = [sum(label == c for _, label in rows) for c in range(self.n_classes)]
        label = counts.index(max(counts))
        if max(counts) == len(rows) or not left or not depth:
            return label
        best = max(left, key=lambda j: (self._gain(rows, j), -j))
        rest = [j for j in left if j != best]
        return best, [
            self._learn([row for row in rows if row[0][best] == cell], rest, depth - 1, label) for cell in range(self.arities[best])
        ]

    def _gain(self, rows: list[tuple[list[int], int]], j: int) -> Fraction:
        """The exponential of what is left of the gain without the entropy before the split: a fraction, so that ties are ties."""
        gain = Fraction(1)
        for cell in range(self.arities[j]):
            labels = [label for cells, label in rows if cells[j] == cell]
            counts = [labels.count(c) for c in range(self.n_classes)]
            gain *= Fraction(prod(n**n for n in counts), len(labels) ** len(labels))
        return gain

    def predict(self, cells: Sequence[int]) -> int:
        node = self.root
        while not isinstance(node, int):
            node = node[1][cells[node[0]]]
        return node
