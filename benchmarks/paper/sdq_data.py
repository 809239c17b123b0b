"""Rows for SDQ's benchmarks: the example studies on their tables, and made-up decision lists."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper import rdg
from benchmarks.paper.anonml_data import DATA, ROOT
from shoal.domain import Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Ints, cells_of
from shoal.study.load import load
from shoal.study.sdq import params_of
from shoal.tables import read

STUDIES = {"nursery": "nursery-sdq", "adult": "adult-sdq"}
"""The example study of each table, of which the features are taken, with their public cut points."""
HELD_OUT_SEED = 77
"""Which quarter of a table nothing was chosen on: the constants of `plus` were chosen on the others."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all databases together.

    Parameters
    ----------
    schema
        What they hold.
    columns, labels
        As the schema encodes them.
    """

    schema: Schema
    columns: Mapping[str, npt.NDArray[Any]]
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def cells(self) -> Ints:
        """The cell of each feature."""
        return cells_of(self.schema, self.columns)

    def take(self, chosen: Ints | slice) -> Rows:
        """Some of the rows."""
        return Rows(self.schema, {name: column[chosen] for name, column in self.columns.items()}, self.labels[chosen])


def is_there(table: str) -> bool:
    """Whether a table is on this machine; if not, a sentence says what is left out."""
    path = DATA / f"{table}.csv.gz"
    if not path.exists():
        print(f"{path.name} is not in {DATA}: it is left out. Fetch it with `make data`.", file=sys.stderr)
    return path.exists()


@cache
def example(table: str) -> Rows:
    """All rows of a table, as its example study sees them."""
    schema, given = params_of(load(ROOT / "examples" / f"{STUDIES[table]}.toml")).schema, read(DATA / f"{table}.csv.gz")
    return Rows(schema, schema.encode(given), schema.encode_label(given))


@cache
def made_up(number: int, n: int) -> Rows:
    """The first n rows of a made-up decision list; more rows of the same number go on where fewer end."""
    cells, labels = rdg.made(n, SeededEntropy("rdg").spawn(number))
    return Rows(rdg.SCHEMA, dict(zip(rdg.SCHEMA.names, cells.T, strict=True)), labels)


def held_apart(rows: Rows) -> tuple[Rows, Rows]:
    """The three quarters on which constants were chosen, and the quarter on which nothing was."""
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(rows))
    n = int(0.75 * len(rows))
    return rows.take(order[:n]), rows.take(order[n:])
