"""A device's own rows: checked once, and made into a model's inputs a few at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Text
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError
from shoal.ngrams import MAX_GRAMS
from shoal.protocols.ddml.design import Columns, Floats, Inputs
from shoal.protocols.ddml.links import gradient, targets
from shoal.protocols.ddml.merging import Weights
from shoal.protocols.ddml.params import Params


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs and targets of some rows.

    Parameters
    ----------
    inputs
        As the study's design makes them.
    targets
        ``(n,)``: the position of a class, or a number scaled to [0, 1].
    """

    inputs: Inputs
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def of(cls, params: Params, columns: Columns, labels: npt.NDArray[Any]) -> Rows:
        """All rows that ``schema.encode`` and ``schema.encode_label`` gave."""
        return Held(params, columns, labels).take(slice(None))

    def gradient(self, params: Params, weights: Weights) -> Floats:
        """``(p,)``: the average gradient at these weights, before it is clipped. It is finite, whatever the weights."""
        floats = weights.astype(np.float64).reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
        return gradient(params.link, floats, self.inputs, self.targets).ravel()


class Held:
    """All rows of a device, as the schema encodes them. However many they are, the inputs of no more than a batch are kept.

    Parameters
    ----------
    params
        The public figures of the study.
    columns, labels
        As ``schema.encode`` and ``schema.encode_label`` give them. Others are refused here, before anything is drawn: whatever is taken
        from these rows later can be learned from.
    """

    def __init__(self, params: Params, columns: Columns, labels: npt.NDArray[Any]) -> None:
        label = params.schema.label
        assert label is not None
        for part in (*params.schema.features, *params.schema.texts):
            if part.name not in columns or columns[part.name].shape != labels.shape or not _fits(part, columns[part.name]):
                raise _strange(part.name)
        if labels.ndim != 1 or not _fits(label, labels) or _is_missing(label, labels).any():
            raise _strange(label.name)
        self._params = params
        self._columns = {name: columns[name] for name in params.schema.columns}
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: npt.NDArray[np.int64] | slice) -> Rows:
        """Inputs and targets of some rows, in the order given."""
        label = self._params.schema.label
        assert label is not None
        inputs = self._params.design.inputs({name: column[rows] for name, column in self._columns.items()})
        return Rows(inputs, targets(label, self._labels[rows]))

    def batch(self, entropy: Entropy) -> Rows:
        """As many rows as an update reads, or all where there are fewer. Of more, each has the same chance, and they are drawn afresh."""
        n, size = len(self), self._params.batch_size
        if n <= size:
            return self._all
        # Floyd's way: every subset is equally likely, and no row is drawn twice.
        chosen: set[int] = set()
        for last in range(n - size, n):
            row = entropy.below(last + 1)
            chosen.add(last if row in chosen else row)
        return self.take(np.array(sorted(chosen), np.int64))

    @cached_property
    def _all(self) -> Rows:
        return self.take(slice(None))


def _fits(part: Feature | Text, column: npt.NDArray[Any]) -> bool:
    """Whether all cells of a column are as the schema encodes them."""
    if isinstance(part, Text):
        return column.ndim == 1 and all(_are_grams(part, grams) for grams in column)
    if isinstance(part, Categorical):
        return column.dtype.kind == "i" and bool(np.all((column >= -int(part.missing)) & (column < len(part.values))))
    if column.dtype.kind not in "iuf":
        return False
    gone = np.isnan(column)
    return bool(np.all(np.where(gone, part.missing, (column >= part.low) & (column <= part.high))))


def _are_grams(part: Text, grams: Any) -> bool:
    if not isinstance(grams, np.ndarray) or grams.dtype.kind != "i" or grams.ndim != 1 or grams.size > MAX_GRAMS:
        return False
    return not grams.size or bool(grams[0] >= 0 and grams[-1] < part.buckets and (grams[1:] > grams[:-1]).all())


def _is_missing(label: Feature, labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    missing: npt.NDArray[np.bool_] = labels < 0 if isinstance(label, Categorical) else np.isnan(labels)
    return missing


def _strange(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        "PROTO-001",
        f"A peer's {name} is not as the schema encodes it, or not of the same length as its other columns.",
        fix="Encode the rows with the study's schema, without clipping.",
    )
