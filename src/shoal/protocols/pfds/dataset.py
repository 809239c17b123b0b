"""Synthetic rows drawn from the pooled model.

Releases and both variants use `Dataset`: features and labels as a schema encodes them. Its rows are
drawn from released numbers only, so they cost nothing; a change must keep this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Floats, Ints


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of a release.

    Parameters
    ----------
    columns
        The features by name: numbers, or positions of values. NaN and -1 mark missing values.
    labels
        ``(n,)`` positions of the classes, or numbers.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def decode(self, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        """Return the rows as texts and numbers, the label last, for files and frames.

        A missing text is None and a missing number NaN.
        """
        assert schema.label is not None
        columns = {
            feature.name: _decode_column(feature, self.columns[feature.name])
            for feature in schema.features
        }
        return {**columns, schema.label.name: _decode_column(schema.label, self.labels)}


def _decode_column(feature: Feature, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # The last entry, which has position -1, is the missing value.
    return (
        np.array([*feature.values, None], object)[codes]
        if isinstance(feature, Categorical)
        else np.asarray(codes, np.float64)
    )


def draw_dataset(model: PooledModel, n: int, entropy: Entropy) -> Dataset:
    """Return N rows: features drawn independently by their shares, labels by the model.

    Notes
    -----
    A class is drawn with its predicted probability; a number is the model's prediction.

    Privacy
    -------
    Only the model is read, so any number of rows is free.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.pfds.params import PFDSParams
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> model = PooledModel(
    ...     PFDSParams(schema, 1.0, 14),
    ...     np.array([[30.0], [-30.0]]),
    ...     np.zeros(1),
    ...     np.zeros((2, 1)),
    ...     np.array([0.5, 0.5]),
    ... )
    >>> {
    ...     name: column.tolist()
    ...     for name, column in draw_dataset(model, 3, SeededEntropy(1)).decode(schema).items()
    ... }
    {'wind': ['weak', 'strong', 'weak'], 'play': ['yes', 'no', 'yes']}
    """
    params = model.params
    columns = {}
    for feature, start, end in zip(
        params.coded_schema.features, params.starts[:-1], params.starts[1:], strict=True
    ):
        cells = _draw_cells(model.shares[start:end], n, entropy)
        columns[feature.name] = place_values(feature, cells, draw_uniform(n, entropy))
    if params.is_number:
        return Dataset(columns, model.predict(columns))
    reached = np.cumsum(model.probabilities(columns), axis=1)[:, :-1]
    return Dataset(columns, (draw_uniform(n, entropy)[:, np.newaxis] >= reached).sum(axis=1))


def draw_uniform(n: int, entropy: Entropy) -> Floats:
    """Return multiples of 2^-53 in [0, 1), all equally likely."""
    return (entropy.words(n, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def place_values(feature: Feature, cells: Ints, places: Floats) -> npt.NDArray[Any]:
    """Return values of a feature inside their cells, as a schema encodes them.

    ``places`` in [0, 1) are the relative positions in the cells.

    Notes
    -----
    If the ends of a number are integers and all its cuts lie halfway between integers, its values
    are integers.
    """
    return (
        _place_categories(feature, cells, places)
        if isinstance(feature, Categorical)
        else _place_numbers(feature, cells, places)
    )


def _draw_cells(shares: Floats, n: int, entropy: Entropy) -> Ints:
    reached = np.cumsum(shares)
    # The last entry is exactly 1, which no uniform number reaches: a cell with share 0 is never
    # drawn.
    return np.searchsorted(reached / reached[-1], draw_uniform(n, entropy), side="right")


def _place_categories(feature: Categorical, cells: Ints, places: Floats) -> Ints:
    """Return any member of a group with equal probability, and -1 for missing values.

    The cell of missing values is the last one.
    """
    home = feature.cut(np.arange(len(feature.values)))
    members = np.append(np.argsort(home, kind="stable"), -1)
    sizes = np.bincount(home, minlength=feature.n_bins)
    firsts = np.cumsum(sizes) - sizes
    picked: Ints = members[firsts[cells] + (places * sizes[cells]).astype(np.int64)]
    return picked


def _place_numbers(feature: Numeric, cells: Ints, places: Floats) -> Floats:
    cuts = np.asarray(feature.bins, np.float64)
    edges = np.concatenate([[feature.low], cuts, [feature.high]])
    is_known = cells <= cuts.size
    cell = np.where(is_known, cells, 0)
    low, high = edges[cell], edges[cell + 1]
    if cuts.size and np.all(cuts % 1 == 0.5) and feature.low % 1 == feature.high % 1 == 0:
        values = np.ceil(low) + np.floor(places * (np.floor(high) - np.ceil(low) + 1))
    else:
        # A cut belongs to the cell below it, and the lowest value to the first cell.
        values = np.clip(
            high - places * (high - low), np.where(cell == 0, low, np.nextafter(low, high)), high
        )
    return np.where(is_known, values, np.nan)
