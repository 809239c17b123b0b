"""Rows for SDQ's benchmarks: the example studies' tables, and synthetic decision lists."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.anonml.data import DATA, ROOT
from benchmarks.paper.sdq import random_rules as rdg
from shoal.data.schema import Schema
from shoal.data.tables import read_table_file
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Ints, encode_cells
from shoal.study.loader import load_study
from shoal.study.sdq import build_params

STUDIES = {"nursery": "nursery-sdq", "adult": "adult-sdq"}
"""The example study of each table; its features have public cut points."""
HELD_OUT_SEED = 77
"""Seed of the quarter of a table that no choice was based on.

The constants of `plus` were chosen on the other rows.
"""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all databases together.

    Parameters
    ----------
    columns, labels
        Columns and labels, as the schema encodes them.
    """

    schema: Schema
    columns: Mapping[str, npt.NDArray[Any]]
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def cells(self) -> Ints:
        """The cell of each feature."""
        return encode_cells(self.schema, self.columns)

    def take(self, chosen: Ints | slice) -> Rows:
        """Return the selected rows."""
        return Rows(
            self.schema,
            {name: column[chosen] for name, column in self.columns.items()},
            self.labels[chosen],
        )


def is_there(table: str) -> bool:
    """Return whether a table is on this machine; if not, print a warning."""
    path = DATA / f"{table}.csv.gz"
    if not path.exists():
        print(
            f"{path.name} is not in {DATA} and is left out. Fetch it with `make data`.",
            file=sys.stderr,
        )
    return path.exists()


@cache
def example(table: str) -> Rows:
    """Return all rows of a table, as its example study encodes them."""
    schema, given = (
        build_params(load_study(ROOT / "examples" / f"{STUDIES[table]}.toml")).schema,
        read_table_file(DATA / f"{table}.csv.gz"),
    )
    return Rows(schema, schema.encode(given), schema.encode_label(given))


@cache
def make_synthetic(number: int, n: int) -> Rows:
    """Return the first n rows of a synthetic decision list.

    The rows of a smaller n are the first of a larger n.
    """
    cells, labels = rdg.make_rows(n, SeededEntropy("rdg").spawn(number))
    return Rows(rdg.SCHEMA, dict(zip(rdg.SCHEMA.names, cells.T, strict=True)), labels)


def split_held_out(rows: Rows) -> tuple[Rows, Rows]:
    """Return the three quarters that constants were chosen on, and the other quarter."""
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(rows))
    n = int(0.75 * len(rows))
    return rows.take(order[:n]), rows.take(order[n:])
