"""The scores of a generalised linear model inside a graph: for each term a table of what its cells add, and what it is multiplied with.

The first value of a category has no weight, centred inputs are never zero, and a number is an input by itself: all of it is worked into
the tables beforehand, so that the graph has one lookup for each feature and one for each cross.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from shoal.domain import Feature, Numeric
from shoal.models.onnx_cells import cells, each_row, flat_columns, joint
from shoal.models.onnx_graph import Graph
from shoal.protocols.ddml.links import MOST
from shoal.protocols.ddml.model import GLM

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Part:
    """A feature in the graph: which row of its tables a row of the data has, of how many, and what they are multiplied with."""

    feature: Feature
    place: str
    size: int
    factor: str | None


def linear_means(graph: Graph, model: GLM) -> str:
    """The predicted means, ``(rows, C)``, as `GLM.means`."""
    scores = _scores(graph, model)
    if model.link == "identity":
        return scores
    if model.link == "multinomial":
        return graph.op("Softmax", scores, axis=1)
    clipped = graph.op("Clip", scores, graph.constant(-MOST), graph.constant(MOST))
    if model.link == "log":
        return graph.op("Exp", clipped)
    one = graph.constant(1.0)
    return graph.op("Div", one, graph.op("Add", one, graph.op("Exp", graph.op("Neg", clipped))))


def _scores(graph: Graph, model: GLM) -> str:
    columns = flat_columns(graph, model.schema)
    parts = {feature.name: _part(graph, feature, columns[feature.name], model.centred) for feature in model.schema.features}
    terms = [each_row(graph, model.weights[:, 0], columns)]
    # A design is made anew each time that it is asked for.
    at, design = 1, model.design
    for names in design.terms:
        width = design.width_of(names)
        weights = model.weights[:, at : at + width]
        at += width
        # A feature with a single bin has no input.
        if width:
            terms.append(_term(graph, [parts[name] for name in names], weights, model.centred))
    return graph.add_up(terms)


def _part(graph: Graph, feature: Feature, column: str, centred: bool) -> _Part:
    if feature.n_bins is not None:
        return _Part(feature, cells(graph, feature, column, apart=True), feature.n_bins + 1, None)
    assert isinstance(feature, Numeric)
    gone = graph.op("IsNaN", column)
    low, high = graph.constant(float(feature.low)), graph.constant(float(feature.high))
    width = graph.constant(float(feature.high - feature.low))
    scaled = graph.op("Div", graph.op("Sub", graph.op("Clip", column, low, high), low), width)
    scaled = graph.op("Sub", scaled, graph.constant(0.5)) if centred else scaled
    factor = graph.op("Where", gone, graph.constant(1.0), scaled)
    return _Part(feature, graph.op("Cast", gone, to=TensorProto.INT64), 2, graph.op("Unsqueeze", factor, graph.constant(np.array([1]))))


def _term(graph: Graph, parts: list[_Part], weights: Floats, centred: bool) -> str:
    """What a feature, or the cross of two, adds to each score, ``(rows, C)``."""
    n_scores = len(weights)
    table = weights.reshape(n_scores, *(_width(part) for part in parts))
    for axis, part in enumerate(parts, 1):
        table = np.moveaxis(_spread(np.moveaxis(table, axis, -1), part, centred), -1, axis)
    place = joint(graph, [part.place for part in parts], [part.size for part in parts])
    added = graph.op("Gather", graph.constant(table.reshape(n_scores, -1).T.copy()), place)
    factors = [part.factor for part in parts if part.factor is not None]
    if not factors:
        return added
    return graph.op("Mul", added, factors[0] if len(factors) == 1 else graph.op("Mul", *factors))


def _width(part: _Part) -> int:
    return part.size - 2 if part.feature.n_bins is not None else 1 + part.feature.missing


def _spread(weights: Floats, part: _Part, centred: bool) -> Floats:
    """What each place of a part adds, ``(..., size)``, by the weights of its inputs, ``(..., width)``."""
    none = np.zeros((*weights.shape[:-1], 1))
    if part.feature.n_bins is None:
        return weights if part.feature.missing else np.concatenate([weights, none], axis=-1)
    # The reference comes first and what is unknown last; neither has a weight.
    spread: Floats = np.concatenate([none, weights, none], axis=-1)
    return spread - weights.sum(axis=-1, keepdims=True) / part.feature.n_bins if centred else spread
