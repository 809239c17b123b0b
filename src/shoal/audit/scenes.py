"""Hostile aggregators of DDML, and the two devices that each would tell apart.

They hand out the instances at which two devices are pushed in opposite directions, as far as the clip lets them, or farther where a peer
does not clip, and make the next instance of what the last update has told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.peers import ends
from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.ddml.merging import Weights, to_grid
from shoal.protocols.ddml.params import Params

FIRM = 30.0
"""A score that is as good as certain."""
_SCORES = {"identity": (0.0, 0.5, 1.0), "log": (-FIRM, math.log(0.5), 0.0)}
"""Of the lowest label, the middle and the highest, where they are numbers."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A hostile aggregator and the two devices that it would tell apart, each with one row; under replace they are neighbours.

    Parameters
    ----------
    rows
        The two rows, in words.
    columns, labels
        The two rows, encoded.
    instances
        What is handed out, in turn: one if all weights of the last update together spoke for the first row, another if for the second.
    """

    rows: tuple[str, str]
    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    instances: tuple[tuple[Weights, Weights], ...]

    def device(self, which: int) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
        """Columns and labels of one of the two."""
        return {name: column[which : which + 1] for name, column in self.columns.items()}, self.labels[which : which + 1]


def corners(schema: Schema, low: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Two encoded rows: both have the highest value everywhere, but the second the lowest in the columns that are named."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in schema.features:
        least, most = ends(feature)
        columns[feature.name] = np.array(
            [most, least if feature.name in low else most], float if isinstance(feature, Numeric) else np.int64
        )
    for text in schema.texts:
        columns[text.name] = np.empty(2, object)
        columns[text.name][:] = [np.array([0]), np.array([], np.int64) if text.name in low else np.array([0])]
    return columns


def make_scenes(params: Params) -> tuple[Scene, Scene]:
    """Two aggregators: one whose model is undecided, and one whose model is certain, and wrong, about both devices.

    Notes
    -----
    Where the model predicts the middle of the label, the same inputs with the lowest and with the highest label have opposite gradients.
    Where it hangs on one input alone, two rows that differ in that input, both predicted wrongly, have gradients as large as
    gradients can be, and almost opposite ones. From a second update on every other instance is certain of a label: there one row has the
    gradient of an error, and the other none, so that noise that is used twice does not hide it, nor a step as long as the gradient. The
    aggregator that was certain goes on with the highest label; the one that was undecided adapts, and copies into the weight of the
    constant what all weights of the last update say.
    """
    schema, width = params.schema, params.design.width
    assert schema.label is not None
    labels = np.array(ends(schema.label), np.int64 if isinstance(schema.label, Categorical) else np.float64)
    alone = min(schema.columns, key=lambda name: sum(name in cross for cross in params.crosses))
    same, apart = corners(schema, ()), corners(schema, (alone,))
    first, second = params.design.inputs(apart).dense()
    turned = int(np.flatnonzero(first != second)[0])
    # The first row's score is then as far above zero as the second's is below.
    slope = 2 * FIRM / (first[turned] - second[turned])
    lowest, middle, highest = _SCORES.get(params.link, (-FIRM, 0.0, FIRM))

    def instance(constant: float, on_turned: float) -> Weights:
        weights = np.zeros((params.n_outputs, width))
        weights[-1, [0, turned]] = constant, on_turned
        if params.n_outputs > 1:
            weights[0] = -weights[-1]
        return to_grid(weights.ravel() * 2.0**params.fraction_bits)

    def twice(weights: Weights) -> tuple[Weights, Weights]:
        return weights, weights

    undecided = Scene(
        ("highest values and first label", "highest values and last label"),
        same,
        labels,
        (twice(instance(middle, 0.0)), (instance(lowest, 0.0), instance(highest, 0.0)))[: params.n_updates],
    )
    certain = Scene(
        ("highest values and first label", f"highest values but for {alone}, and last label"),
        apart,
        labels,
        (twice(instance(FIRM - slope * first[turned], slope)), twice(instance(highest, 0.0)))[: params.n_updates],
    )
    return undecided, certain
