"""How far two sets of rows are apart, seen through random partitions of all rows that there could be."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Schema
from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import Dataset, uniform
from shoal.protocols.pfds.params import Floats, Ints

_Domain = tuple[float, float] | Ints
"""What is left of a column in one cell: a range of a number, or positions of values."""


def partition_distance(schema: Schema, real: Dataset, synthetic: Dataset, n_cells: int, n_repeats: int, entropy: Entropy) -> Floats:
    """The Wasserstein distance between the histograms of two sets of rows, for each of some random partitions, ``(n_repeats,)``.

    Parameters
    ----------
    n_cells
        Cells of a partition, two or more; fewer where there are not as many different rows.

    Notes
    -----
    Ref: PFDS §4, Figure 3(b), which says no more than that. Here the universe, label included, is cut in two over and over: a random cell
    at a random column, a number at a uniform value of what is left of its range, a category into two random parts. The cells stay in the
    order in which they were cut, so that those with more cuts in common are closer, at equal distances from 0 to 1. Histograms are shares.

    Examples
    --------
    >>> from shoal.domain import Numeric
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Numeric("age", 0, 99)], label=Categorical("ill", ["no", "yes"]))
    >>> young = Dataset({"age": np.full(10, 1.0)}, np.zeros(10, int))
    >>> old = Dataset({"age": np.full(10, 98.0)}, np.ones(10, int))
    >>> [bool(partition_distance(schema, young, other, 8, 50, SeededEntropy(1)).mean() > 0.1) for other in (young, old)]
    [False, True]
    """
    assert schema.label is not None
    columns = [*schema.features, schema.label]
    values = np.concatenate([_values(schema, dataset) for dataset in (real, synthetic)])
    is_real = np.arange(len(values)) < len(real)
    distances = []
    for _ in range(n_repeats):
        cells = _partition(columns, values, n_cells, entropy)
        n_real = np.array([is_real[rows].sum() for rows in cells])
        n_synthetic = np.array([len(rows) for rows in cells]) - n_real
        ahead = np.cumsum(n_real / max(1, len(real)) - n_synthetic / max(1, len(synthetic)))
        distances.append(np.abs(ahead[:-1]).sum() / (len(cells) - 1))
    return np.array(distances)


def _values(schema: Schema, dataset: Dataset) -> Floats:
    return np.stack([*(np.asarray(dataset.columns[name], float) for name in schema.names), np.asarray(dataset.labels, float)], axis=1)


def _partition(columns: list[Feature], values: Floats, n_cells: int, entropy: Entropy) -> list[Ints]:
    """The rows in each cell of a random partition."""
    cells: list[tuple[Ints, list[_Domain]]] = [(np.arange(len(values)), [_domain(column) for column in columns])]
    while len(cells) < n_cells:
        open_cells = [i for i, (_, domains) in enumerate(cells) if any(map(_is_open, domains))]
        if not open_cells:
            break
        i = open_cells[entropy.below(len(open_cells))]
        rows, domains = cells[i]
        open_columns = [j for j, domain in enumerate(domains) if _is_open(domain)]
        j = open_columns[entropy.below(len(open_columns))]
        is_first, parts = _cut(values[rows, j], domains[j], entropy)
        halves = ((rows[is_first], parts[0]), (rows[~is_first], parts[1]))
        cells[i : i + 1] = [(some, [*domains[:j], part, *domains[j + 1 :]]) for some, part in halves]
    return [rows for rows, _ in cells]


def _domain(column: Feature) -> _Domain:
    if isinstance(column, Categorical):
        return np.arange(-1 if column.missing else 0, len(column.values))
    return float(column.low), float(column.high)


def _is_open(domain: _Domain) -> bool:
    """Whether it can be cut in two."""
    return math.nextafter(domain[0], math.inf) < domain[1] if isinstance(domain, tuple) else domain.size > 1


def _cut(values: Floats, domain: _Domain, entropy: Entropy) -> tuple[npt.NDArray[np.bool_], tuple[_Domain, _Domain]]:
    """Which values are in the first of two random parts, and the parts; a missing number counts as larger than any other."""
    if isinstance(domain, tuple):
        low, high = domain
        cut = low + float(uniform(1, entropy)[0]) * (high - low)
        return values <= cut, ((low, cut), (cut, high))
    mixed = domain[np.argsort(entropy.words(domain.size, np.uint64))]
    n = 1 + entropy.below(domain.size - 1)
    return np.isin(values, mixed[:n]), (mixed[:n], mixed[n:])
