"""The encoding of a schema inside a graph: raw columns in, cells out, as `Feature.encode` and `Feature.cut` have them.

A missing number is NaN, and a missing category the empty text. Where the schema says that nothing is missing, Python refuses such a row;
a graph cannot, and takes it for an unknown category, or the last bin of a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from shoal.domain import Feature, Numeric, Schema
from shoal.models.onnx_graph import Graph

_FLAT = np.array([-1])


def flat_columns(graph: Graph, schema: Schema) -> dict[str, str]:
    """The inputs of the graph, one for each feature, ``(rows,)``."""
    return {feature.name: graph.op("Reshape", _input(graph, feature), graph.constant(_FLAT)) for feature in schema.features}


def _input(graph: Graph, feature: Feature) -> str:
    gone = "missing" if feature.missing else "unknown"
    if isinstance(feature, Numeric):
        return graph.numbers(feature.name, f"a number from {feature.low} to {feature.high}; NaN where it is {gone}")
    return graph.texts(feature.name, f"one of {len(feature.values)} texts; empty where it is {gone}")


def cells(graph: Graph, feature: Feature, column: str, *, apart: bool) -> str:
    """The cell of each row, ``(rows,)`` int64.

    Parameters
    ----------
    column
        The feature's input, ``(rows,)``.
    apart
        Whether what is neither declared nor missing has a cell of its own, behind all others; it is taken for the last one if not.
    """
    assert feature.n_bins is not None
    n_known = feature.n_bins - feature.missing
    rest = n_known if feature.missing or apart else n_known - 1
    if isinstance(feature, Numeric):
        return graph.op("Where", graph.op("IsNaN", column), graph.constant(np.int64(rest)), _cuts_below(graph, feature, column))
    homes = feature.cut(np.arange(len(feature.values))).tolist()
    return graph.op(
        "LabelEncoder",
        column,
        domain="ai.onnx.ml",
        keys_strings=list(feature.values),
        values_int64s=homes,
        default_int64=rest,
    )


def _cuts_below(graph: Graph, feature: Numeric, column: str) -> str:
    """How many cut points lie below each number; numbers outside the range need not be clipped for it."""
    if not feature.bins:
        return graph.constant(np.int64(0))
    upright = graph.op("Unsqueeze", column, graph.constant(np.array([1])))
    is_above = graph.op("Greater", upright, graph.constant(np.array(feature.bins, np.float64)))
    return graph.op("ReduceSum", graph.op("Cast", is_above, to=TensorProto.INT64), graph.constant(np.array([1])), keepdims=0)


def joint(graph: Graph, positions: Sequence[str], sizes: Sequence[int]) -> str:
    """The position of each row in a table of several cells, the last one's side by side: that of ``np.ravel_multi_index``."""
    place = positions[0]
    for position, size in zip(positions[1:], sizes[1:], strict=True):
        place = graph.op("Add", graph.op("Mul", place, graph.constant(np.int64(size))), position)
    return place


def each_row(graph: Graph, values: npt.NDArray[np.float64], columns: Mapping[str, str]) -> str:
    """The same values for each row, ``(rows, len(values))``: what a sum begins with, so that it has rows even where nothing is added."""
    rows = graph.op("Shape", next(iter(columns.values())))
    shape = graph.op("Concat", rows, graph.constant(np.array([len(values)])), axis=0)
    return graph.op("Expand", graph.constant(values[np.newaxis]), shape)
