"""A model of any kind as ONNX: what each row is told, beside what `Model.predict` and `Model.probabilities` tell it.

Decisions are made as in Python, and sums are added in the same order: of equal scores the first class wins (of two classes in a vote the
second, as in the paper). Exponentials may differ in their last bit, so that a linear model's chances that are equal but for rounding may be
decided either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, checker

from shoal.domain import Numeric
from shoal.models.model import Model
from shoal.models.onnx_graph import Graph
from shoal.models.onnx_linear import linear_means
from shoal.models.onnx_tables import additive_log_odds, pooled_scores, tree_ends, vote_sums
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import Model as PooledModel
from shoal.protocols.sdq.model import Tree

LABEL, CHANCES = "label", "probabilities"


class _Classified(NamedTuple):
    """Where in the graph the position of the class is, ``(rows,)``, and the chance of each, ``(rows, L)``."""

    position: str
    chances: str


def make(model: Model, properties: Mapping[str, str]) -> ModelProto:
    """The model as ONNX, with properties.

    The outputs are ``label``, and for classes ``probabilities``; an underscore is added where a feature has that name.
    """
    graph = Graph(model.schema.names)
    if not model.classes:
        graph.output(LABEL, _number(graph, model), TensorProto.DOUBLE, ())
    else:
        position, chances = _classify(graph, model)
        classes = graph.constant(np.array(model.classes, object))
        graph.output(LABEL, graph.op("Gather", classes, position), TensorProto.STRING, ())
        graph.output(CHANCES, chances, TensorProto.DOUBLE, (len(model.classes),))
    return graph.proto(model.kind, properties)


def check(proto: ModelProto) -> None:
    """Fail where a graph is not well formed, which would be a fault of ours."""
    checker.check_model(proto, full_check=True)


def _classify(graph: Graph, model: Model) -> _Classified:
    learned = model.learned
    match learned:
        case Tree():
            node = tree_ends(graph, learned)
            decisions, chances = graph.constant(learned.decisions), graph.constant(learned.chances)
            return _Classified(graph.op("Gather", decisions, node), graph.op("Gather", chances, node))
        case VoteModel():
            votes, chances = vote_sums(graph, learned)
            # Of two classes the second wins a tie.
            last = int(len(model.classes) == 2)
            return _Classified(graph.op("ArgMax", votes, axis=1, keepdims=0, select_last_index=last), chances)
        case GLM():
            chances = linear_means(graph, learned)
            if learned.link == "logit":
                chances = graph.op("Concat", graph.op("Sub", graph.constant(1.0), chances), chances, axis=1)
            return _Classified(_first_best(graph, chances), chances)
        case PooledModel():
            return _pooled(graph, pooled_scores(graph, learned), len(learned.intercepts))
    log_odds = additive_log_odds(graph, learned)
    return _Classified(_first_best(graph, log_odds), graph.op("Softmax", log_odds, axis=1))


def _pooled(graph: Graph, scores: str, n_scores: int) -> _Classified:
    """As `shoal.protocols.pfds.model.chances` and `choices`."""
    if n_scores > 1:
        return _Classified(_first_best(graph, scores), graph.op("Softmax", _log_sigmoid(graph, scores), axis=1))
    both = graph.op("Concat", graph.op("Neg", scores), scores, axis=1)
    # A score of zero, be it a negative one, is for the first of two.
    is_second = graph.op("Greater", graph.op("Squeeze", scores, graph.constant(np.array([1]))), graph.constant(0.0))
    position = graph.op("Cast", is_second, to=TensorProto.INT64)
    return _Classified(position, graph.op("Softmax", _log_sigmoid(graph, both), axis=1))


def _log_sigmoid(graph: Graph, scores: str) -> str:
    """-log(1 + exp(-score)), for scores of any size."""
    small = graph.op("Exp", graph.op("Neg", graph.op("Abs", scores)))
    curve = graph.op("Log", graph.op("Add", graph.constant(1.0), small))
    return graph.op("Sub", graph.op("Min", scores, graph.constant(0.0)), curve)


def _first_best(graph: Graph, scores: str) -> str:
    return graph.op("ArgMax", scores, axis=1, keepdims=0)


def _number(graph: Graph, model: Model) -> str:
    """The number of each row, ``(rows,)``, inside the label's range."""
    label, learned = model.label, model.learned
    assert isinstance(label, Numeric)
    if isinstance(learned, GLM):
        shares = linear_means(graph, learned)
    else:
        assert isinstance(learned, PooledModel)
        shares = pooled_scores(graph, learned)
    low, high = float(label.low), float(label.high)
    inside = graph.op("Clip", graph.op("Squeeze", shares, graph.constant(np.array([1]))), graph.constant(0.0), graph.constant(1.0))
    number = graph.op("Add", graph.constant(low), graph.op("Mul", graph.constant(high - low), inside))
    return graph.op("Min", number, graph.constant(high))
