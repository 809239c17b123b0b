"""Build an ONNX model.

`shoal.models.export` calls `make_onnx_model`. The graph must predict the same as `Model.predict`
and `Model.probabilities`: it makes the same decisions and adds sums in the same order. The first
class wins among equal scores; in a vote of two classes the second wins, as in the paper.
Exponentials may differ in their last bit, so that a linear model may decide either way if
probabilities are equal but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, checker

from shoal.data.schema import Numeric
from shoal.models.model import Model
from shoal.models.onnx.graph import OnnxGraph
from shoal.models.onnx.terms import (
    add_additive_log_odds,
    add_linear_means,
    add_pooled_scores,
    add_tree_leaves,
    add_vote_sums,
)
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.sdq.model import DecisionTree

LABEL, PROBABILITIES = "label", "probabilities"


class _ClassOutputs(NamedTuple):
    """Names in the graph of the class positions and the probabilities.

    Positions have the shape ``(rows,)``, probabilities ``(rows, L)``.
    """

    position: str
    probabilities: str


def make_onnx_model(model: Model, properties: Mapping[str, str]) -> ModelProto:
    """Return a model as ONNX, with properties.

    The outputs are ``label``, and ``probabilities`` if there are classes. An underscore is appended
    if a feature has the same name.
    """
    graph = OnnxGraph(model.schema.names)
    if not model.classes:
        graph.add_output(LABEL, _add_number(graph, model), TensorProto.DOUBLE, ())
    else:
        position, probabilities = _add_classes(graph, model)
        classes = graph.add_constant(np.array(model.classes, object))
        graph.add_output(LABEL, graph.add_op("Gather", classes, position), TensorProto.STRING, ())
        graph.add_output(PROBABILITIES, probabilities, TensorProto.DOUBLE, (len(model.classes),))
    return graph.build_model(model.kind, properties)


def check_onnx_model(proto: ModelProto) -> None:
    """Raise an error of onnx if a graph is not well-formed, which is a bug here."""
    checker.check_model(proto, full_check=True)


def _add_classes(graph: OnnxGraph, model: Model) -> _ClassOutputs:
    learned = model.protocol_model
    match learned:
        case DecisionTree():
            node = add_tree_leaves(graph, learned)
            decisions, probabilities = (
                graph.add_constant(learned.decisions),
                graph.add_constant(learned.chances),
            )
            return _ClassOutputs(
                graph.add_op("Gather", decisions, node), graph.add_op("Gather", probabilities, node)
            )
        case VoteModel():
            votes, probabilities = add_vote_sums(graph, learned)
            # With two classes the second wins a tie.
            last = int(len(model.classes) == 2)
            return _ClassOutputs(
                graph.add_op("ArgMax", votes, axis=1, keepdims=0, select_last_index=last),
                probabilities,
            )
        case GLM():
            probabilities = add_linear_means(graph, learned)
            if learned.link == "logit":
                probabilities = graph.add_op(
                    "Concat",
                    graph.add_op("Sub", graph.add_constant(1.0), probabilities),
                    probabilities,
                    axis=1,
                )
            return _ClassOutputs(_add_argmax(graph, probabilities), probabilities)
        case PooledModel():
            return _add_pooled_classes(
                graph, add_pooled_scores(graph, learned), len(learned.intercepts)
            )
    log_odds = add_additive_log_odds(graph, learned)
    return _ClassOutputs(_add_argmax(graph, log_odds), graph.add_op("Softmax", log_odds, axis=1))


def _add_pooled_classes(graph: OnnxGraph, scores: str, n_scores: int) -> _ClassOutputs:
    """Add the operators of `compute_probabilities` and `choices` in the PFDS model."""
    if n_scores > 1:
        return _ClassOutputs(
            _add_argmax(graph, scores),
            graph.add_op("Softmax", _add_log_sigmoid(graph, scores), axis=1),
        )
    both = graph.add_op("Concat", graph.add_op("Neg", scores), scores, axis=1)
    # A score of zero, also of negative zero, selects the first class.
    is_second = graph.add_op(
        "Greater",
        graph.add_op("Squeeze", scores, graph.add_constant(np.array([1]))),
        graph.add_constant(0.0),
    )
    position = graph.add_op("Cast", is_second, to=TensorProto.INT64)
    return _ClassOutputs(position, graph.add_op("Softmax", _add_log_sigmoid(graph, both), axis=1))


def _add_log_sigmoid(graph: OnnxGraph, scores: str) -> str:
    """Add -log(1 + exp(-score)) for scores of any size."""
    small = graph.add_op("Exp", graph.add_op("Neg", graph.add_op("Abs", scores)))
    curve = graph.add_op("Log", graph.add_op("Add", graph.add_constant(1.0), small))
    return graph.add_op("Sub", graph.add_op("Min", scores, graph.add_constant(0.0)), curve)


def _add_argmax(graph: OnnxGraph, scores: str) -> str:
    return graph.add_op("ArgMax", scores, axis=1, keepdims=0)


def _add_number(graph: OnnxGraph, model: Model) -> str:
    """Add the number of each row, ``(rows,)``, inside the label's range."""
    label, learned = model.label, model.protocol_model
    assert isinstance(label, Numeric)
    if isinstance(learned, GLM):
        shares = add_linear_means(graph, learned)
    else:
        assert isinstance(learned, PooledModel)
        shares = add_pooled_scores(graph, learned)
    low, high = float(label.low), float(label.high)
    inside = graph.add_op(
        "Clip",
        graph.add_op("Squeeze", shares, graph.add_constant(np.array([1]))),
        graph.add_constant(0.0),
        graph.add_constant(1.0),
    )
    number = graph.add_op(
        "Add", graph.add_constant(low), graph.add_op("Mul", graph.add_constant(high - low), inside)
    )
    return graph.add_op("Min", number, graph.add_constant(high))
