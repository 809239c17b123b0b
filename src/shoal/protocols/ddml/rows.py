"""A device's own rows: checked once, and read a few at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Text
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError
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
        """The rows that ``schema.encode`` and ``schema.encode_label`` gave; refused where they did not, before anything is drawn."""
        schema = params.schema
        assert schema.label is not None
        for part in (*schema.features, *schema.texts):
            if columns[part.name].shape != labels.shape or not _fits(part, columns[part.name]):
                raise _strange(part.name)
        is_gone = labels < 0 if isinstance(schema.label, Categorical) else np.isnan(labels)
        if labels.ndim != 1 or is_gone.any() or not _fits(schema.label, labels):
            raise _strange(schema.label.name)
        return cls(params.design.inputs(columns), targets(schema.label, labels))

    def batch(self, size: int, entropy: Entropy) -> Rows:
        """At most so many of the rows; where there are more, each with the same chance, drawn afresh."""
        n = len(self)
        if n <= size:
            return self
        # Floyd's way: every subset is equally likely, and no row is drawn twice.
        chosen: set[int] = set()
        for last in range(n - size, n):
            row = entropy.below(last + 1)
            chosen.add(last if row in chosen else row)
        rows = np.array(sorted(chosen), np.int64)
        return Rows(self.inputs.take(rows), self.targets[rows])

    def gradient(self, params: Params, weights: Weights) -> Floats:
        """``(p,)``: the average gradient at these weights, before it is clipped. It is finite, whatever the weights."""
        floats = weights.astype(np.float64).reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
        return gradient(params.link, floats, self.inputs, self.targets).ravel()


def _fits(part: Feature | Text, column: npt.NDArray[Any]) -> bool:
    """Whether all cells of a column are as the schema encodes them."""
    if isinstance(part, Text):
        return all(((grams >= 0) & (grams < part.buckets)).all() and np.unique(grams).size == grams.size for grams in column)
    if isinstance(part, Categorical):
        return bool(np.all((column >= -int(part.missing)) & (column < len(part.values))))
    gone = np.isnan(column)
    return bool(np.all(np.where(gone, part.missing, (column >= part.low) & (column <= part.high))))


def _strange(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        "PROTO-001",
        f"A peer's {name} is not as the schema encodes it, or not of the same length as its other columns.",
        fix="Encode the rows with the study's schema, without clipping.",
    )
