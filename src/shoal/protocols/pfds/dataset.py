"""Rows that are released: features and labels as a schema encodes them, and how they are drawn from a pooled model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.entropy import Entropy
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Floats, Ints


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of a release.

    Parameters
    ----------
    columns
        The features by name: numbers with NaN, or positions of values with -1, where one is missing.
    labels
        ``(n,)`` positions of the classes, or numbers.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def decoded(self, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        """The rows as texts and numbers, the label last, for files and frames; a missing text is None and a missing number NaN."""
        assert schema.label is not None
        columns = {feature.name: _decoded(feature, self.columns[feature.name]) for feature in schema.features}
        return {**columns, schema.label.name: _decoded(schema.label, self.labels)}


def _decoded(feature: Feature, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # The last of the texts, which is the one at -1, stands for what is missing.
    return np.array([*feature.values, None], object)[codes] if isinstance(feature, Categorical) else np.asarray(codes, np.float64)


def draw(model: Model, n: int, entropy: Entropy) -> Dataset:
    """N rows by a pooled model: features by their shares, each for itself, and labels by the model.

    Notes
    -----
    A class is drawn with the chance that the model gives it; a number is what the model predicts.

    Privacy
    -------
    Nothing but the model is read, so rows are free, however many.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.pfds.params import Params
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> model = Model(Params(schema, 1.0, 14), np.array([[30.0], [-30.0]]), np.zeros(1), np.zeros((2, 1)), np.array([0.5, 0.5]))
    >>> {name: column.tolist() for name, column in draw(model, 3, SeededEntropy(1)).decoded(schema).items()}
    {'wind': ['weak', 'strong', 'weak'], 'play': ['yes', 'no', 'yes']}
    """
    params = model.params
    columns = {}
    for feature, start, end in zip(params.coded.features, params.starts[:-1], params.starts[1:], strict=True):
        cells = _cells(model.shares[start:end], n, entropy)
        columns[feature.name] = values_in(feature, cells, uniform(n, entropy))
    if params.is_number:
        return Dataset(columns, model.predict(columns))
    reached = np.cumsum(model.probabilities(columns), axis=1)[:, :-1]
    return Dataset(columns, (uniform(n, entropy)[:, np.newaxis] >= reached).sum(axis=1))


def uniform(n: int, entropy: Entropy) -> Floats:
    """Multiples of 2^-53 from 0 to below 1, each as likely as the others."""
    return (entropy.words(n, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def values_in(feature: Feature, cells: Ints, places: Floats) -> npt.NDArray[Any]:
    """Values of a feature inside their cells, as a schema encodes them; ``places`` in [0, 1) say where.

    Notes
    -----
    A number between whole ends whose cuts all lie halfway between whole numbers is taken for a whole one.
    """
    return _positions(feature, cells, places) if isinstance(feature, Categorical) else _numbers(feature, cells, places)


def _cells(shares: Floats, n: int, entropy: Entropy) -> Ints:
    reached = np.cumsum(shares)
    # Divided by itself the last one is 1, which no uniform number reaches: a cell without a share is never drawn.
    return np.searchsorted(reached / reached[-1], uniform(n, entropy), side="right")


def _positions(feature: Categorical, cells: Ints, places: Floats) -> Ints:
    """Any member of a group alike; -1 for the cell of missing values, which comes last."""
    home = feature.cut(np.arange(len(feature.values)))
    members = np.append(np.argsort(home, kind="stable"), -1)
    sizes = np.bincount(home, minlength=feature.n_bins)
    firsts = np.cumsum(sizes) - sizes
    picked: Ints = members[firsts[cells] + (places * sizes[cells]).astype(np.int64)]
    return picked


def _numbers(feature: Numeric, cells: Ints, places: Floats) -> Floats:
    cuts = np.asarray(feature.bins, np.float64)
    edges = np.concatenate([[feature.low], cuts, [feature.high]])
    is_known = cells <= cuts.size
    cell = np.where(is_known, cells, 0)
    low, high = edges[cell], edges[cell + 1]
    if cuts.size and np.all(cuts % 1 == 0.5) and feature.low % 1 == feature.high % 1 == 0:
        values = np.ceil(low) + np.floor(places * (np.floor(high) - np.ceil(low) + 1))
    else:
        # A cut belongs to the cell below it, and the lowest value of all to the first.
        values = np.clip(high - places * (high - low), np.where(cell == 0, low, np.nextafter(low, high)), high)
    return np.where(is_known, values, np.nan)
