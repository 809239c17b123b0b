"""The labelled data of a holder of variant paper: how it is made of what was released, and how it travels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import Data, floats_in, floats_of
from shoal.protocols.pfds.params import Ints, Params
from shoal.protocols.pfds.synthesis import Unlabelled, columns_of, draw_rows, sizes
from shoal.protocols.pfds.tree import PrivateTree
from shoal.protocols.pfds.voting import labels_of, majority

MAX_ROWS = 200_000
"""Most rows of a holder's data; without the projection, noise on many leaves makes more."""
_OF_AN_ARRAY = 64
"""More bytes than what stands around the numbers of an array."""


def synthesise(params: Params, own: PrivateTree, level_counts: Sequence[Ints], trees: Iterable[PrivateTree], entropy: Entropy) -> Dataset:
    """A sharer's private labelled data.

    Parameters
    ----------
    own
        The sharer's tree, with its counts.
    level_counts
        Its noisy counts of levels 1 to p - 1.
    trees
        All trees that label; with labelling ``"own"`` they are not looked at.

    Notes
    -----
    Ref: PFDS Algorithms 4 and 5. Of more rows than a message holds, some are kept, any alike.

    Privacy
    -------
    Nothing but what was released is read, so the data is free.
    """
    rows = thinned(draw_rows(params, own, sizes(params, own, level_counts), entropy), most_rows(params), entropy)
    outcomes = own.labels[rows.leaves].astype(np.int64) if params.labelling == "own" else majority(params, trees, rows.values)
    return Dataset(columns_of(params, rows.values, entropy), labels_of(params, outcomes, entropy))


def thinned(rows: Unlabelled, most: int, entropy: Entropy) -> Unlabelled:
    """The rows; of more than so many, so many, every choice alike and in their order."""
    if len(rows) <= most:
        return rows
    kept = np.sort(np.argsort(entropy.words(len(rows), np.uint64), kind="stable")[:most])
    return Unlabelled(rows.values[kept], rows.leaves[kept])


def most_rows(params: Params) -> int:
    """Most rows of a holder's data: no more than the study expects in all, or than fit into a message."""
    parts = (*params.schema.features, params.label)
    room = Data.max_bytes - _OF_AN_ARRAY * (len(parts) + 4)
    return min(MAX_ROWS, params.size, room // sum(8 if isinstance(part, Numeric) else 2 for part in parts))


def data_of(params: Params, study: bytes, dataset: Dataset) -> Data:
    """The data as it travels."""
    columns = tuple(_packed(feature, dataset.columns[feature.name]) for feature in params.schema.features)
    return Data(study=study, n_rows=len(dataset), columns=columns, labels=_packed(params.label, dataset.labels))


def dataset_of(params: Params, data: Data) -> Dataset:
    """The rows that were shared, if they can be a holder's; otherwise the sender's error."""
    features = params.schema.features
    if data.n_rows > most_rows(params) or len(data.columns) != len(features):
        raise _unfit(
            f"it has {data.n_rows:,} rows of {len(data.columns)} columns; {len(features)} are due, of {most_rows(params):,} at most"
        )
    columns = {one.name: _unpacked(one, column, data.n_rows, one.missing) for one, column in zip(features, data.columns, strict=True)}
    return Dataset(columns, _unpacked(params.label, data.labels, data.n_rows, may_miss=False))


def _packed(feature: Feature, column: npt.NDArray[Any]) -> Array:
    if isinstance(feature, Numeric):
        # The upper end of the last bucket of a number may be rounded beyond its range.
        return floats_in(np.clip(column, feature.low, feature.high))
    return Array.of(column.astype(np.int16))


def _unpacked(feature: Feature, column: Array, n: int, may_miss: bool) -> npt.NDArray[Any]:
    """A column as a schema encodes it. A number is never missing: variant paper makes none that is."""
    if isinstance(feature, Numeric):
        values, low, high = floats_of(column, n), float(feature.low), float(feature.high)
    else:
        values, low, high = column.expect("int16", n).astype(np.int64), -1 if may_miss else 0, len(feature.values) - 1
    if n and not low <= values.min() <= values.max() <= high:
        raise _unfit(f"column {feature.name} has a value that the schema does not have")
    return values


def _unfit(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "PFDS-102",
        f"This cannot be the data of a holder: {what}.",
        why="Its columns and their values follow from the study's schema.",
        fix="It is left out; the others go on.",
    )
