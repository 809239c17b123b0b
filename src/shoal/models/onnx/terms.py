"""Encoding, lookup tables, trees and linear terms as ONNX operators.

`shoal.models.onnx` calls the functions without a leading underscore. A graph takes unencoded
columns and computes the cells of `Feature.encode` and `Feature.cut`. All models are lookups by
cells.

A missing number is NaN, and a missing category the empty text. If the schema allows no missing
value, Python rejects such a row. A graph cannot reject it: it uses the unknown category, or the
last bin of a number.

A generalised linear model has one table for each feature and one for each cross, with the terms of
the cells, and a factor for numbers. The tables already include that the first value of a category
has no weight, and that centred inputs are never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from shoal.data.schema import Feature, Numeric, Schema
from shoal.models.onnx.graph import OnnxGraph
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.links import MAX_SCORE
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.sdq.model import DecisionTree

_FLAT = np.array([-1])


def add_feature_inputs(graph: OnnxGraph, schema: Schema) -> dict[str, str]:
    """Add an input for each feature, ``(rows,)``."""
    return {
        feature.name: graph.add_op("Reshape", _add_input(graph, feature), graph.add_constant(_FLAT))
        for feature in schema.features
    }


def _add_input(graph: OnnxGraph, feature: Feature) -> str:
    absent = "missing" if feature.missing else "unknown"
    if isinstance(feature, Numeric):
        return graph.add_number_input(
            feature.name, f"a number from {feature.low} to {feature.high}; NaN where it is {absent}"
        )
    return graph.add_text_input(
        feature.name, f"one of {len(feature.values)} texts; empty where it is {absent}"
    )


def add_cells(graph: OnnxGraph, feature: Feature, column: str, *, has_unknown_cell: bool) -> str:
    """Add the cell of each row, ``(rows,)`` int64.

    Parameters
    ----------
    column
        The feature's input, ``(rows,)``.
    has_unknown_cell
        True if a value that is neither declared nor missing has its own cell after all others; else
        it counts as the last cell.
    """
    assert feature.n_bins is not None
    n_known = feature.n_bins - feature.missing
    rest = n_known if feature.missing or has_unknown_cell else n_known - 1
    if isinstance(feature, Numeric):
        return graph.add_op(
            "Where",
            graph.add_op("IsNaN", column),
            graph.add_constant(np.int64(rest)),
            _add_cuts_below(graph, feature, column),
        )
    bins = feature.cut(np.arange(len(feature.values))).tolist()
    return graph.add_op(
        "LabelEncoder",
        column,
        domain="ai.onnx.ml",
        keys_strings=list(feature.values),
        values_int64s=bins,
        default_int64=rest,
    )


def _add_cuts_below(graph: OnnxGraph, feature: Numeric, column: str) -> str:
    """Add the number of cut points below each number.

    Numbers outside the range need not be clipped first.
    """
    if not feature.bins:
        return graph.add_constant(np.int64(0))
    vertical = graph.add_op("Unsqueeze", column, graph.add_constant(np.array([1])))
    is_above = graph.add_op(
        "Greater", vertical, graph.add_constant(np.array(feature.bins, np.float64))
    )
    return graph.add_op(
        "ReduceSum",
        graph.add_op("Cast", is_above, to=TensorProto.INT64),
        graph.add_constant(np.array([1])),
        keepdims=0,
    )


def add_joint_position(graph: OnnxGraph, positions: Sequence[str], sizes: Sequence[int]) -> str:
    """Add the position of each row in a table of cells, as `np.ravel_multi_index`."""
    joint = positions[0]
    for position, size in zip(positions[1:], sizes[1:], strict=True):
        joint = graph.add_op(
            "Add", graph.add_op("Mul", joint, graph.add_constant(np.int64(size))), position
        )
    return joint


def add_repeated_row(
    graph: OnnxGraph, values: npt.NDArray[np.float64], columns: Mapping[str, str]
) -> str:
    """Add the same values for each row, ``(rows, len(values))``.

    Each sum begins with them, so that it has rows even without other terms.
    """
    rows = graph.add_op("Shape", next(iter(columns.values())))
    shape = graph.add_op("Concat", rows, graph.add_constant(np.array([len(values)])), axis=0)
    return graph.add_op("Expand", graph.add_constant(values[np.newaxis]), shape)


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _FeatureInput:
    """A feature in the graph: position in its table, size of the table, and factor."""

    feature: Feature
    position: str
    size: int
    factor: str | None


def add_linear_means(graph: OnnxGraph, model: GLM) -> str:
    """Add the predicted means, ``(rows, C)``, as `GLM.predict_means`."""
    scores = _add_scores(graph, model)
    if model.link == "identity":
        return scores
    if model.link == "multinomial":
        return graph.add_op("Softmax", scores, axis=1)
    clipped = graph.add_op(
        "Clip", scores, graph.add_constant(-MAX_SCORE), graph.add_constant(MAX_SCORE)
    )
    if model.link == "log":
        return graph.add_op("Exp", clipped)
    one = graph.add_constant(1.0)
    return graph.add_op(
        "Div", one, graph.add_op("Add", one, graph.add_op("Exp", graph.add_op("Neg", clipped)))
    )


def _add_scores(graph: OnnxGraph, model: GLM) -> str:
    columns = add_feature_inputs(graph, model.schema)
    parts = {
        feature.name: _add_feature(graph, feature, columns[feature.name], model.centred)
        for feature in model.schema.features
    }
    terms = [add_repeated_row(graph, model.weights[:, 0], columns)]
    # The property builds a new design at each access.
    at, design = 1, model.design
    for names in design.terms:
        width = design.count_term_inputs(names)
        weights = model.weights[:, at : at + width]
        at += width
        # A feature with a single bin has no input.
        if width:
            terms.append(_add_term(graph, [parts[name] for name in names], weights, model.centred))
    return graph.add_sum(terms)


def _add_feature(graph: OnnxGraph, feature: Feature, column: str, centred: bool) -> _FeatureInput:
    if feature.n_bins is not None:
        return _FeatureInput(
            feature,
            add_cells(graph, feature, column, has_unknown_cell=True),
            feature.n_bins + 1,
            None,
        )
    assert isinstance(feature, Numeric)
    is_missing = graph.add_op("IsNaN", column)
    low, high = graph.add_constant(float(feature.low)), graph.add_constant(float(feature.high))
    width = graph.add_constant(float(feature.high - feature.low))
    scaled = graph.add_op(
        "Div", graph.add_op("Sub", graph.add_op("Clip", column, low, high), low), width
    )
    scaled = graph.add_op("Sub", scaled, graph.add_constant(0.5)) if centred else scaled
    factor = graph.add_op("Where", is_missing, graph.add_constant(1.0), scaled)
    return _FeatureInput(
        feature,
        graph.add_op("Cast", is_missing, to=TensorProto.INT64),
        2,
        graph.add_op("Unsqueeze", factor, graph.add_constant(np.array([1]))),
    )


def _add_term(graph: OnnxGraph, parts: list[_FeatureInput], weights: Floats, centred: bool) -> str:
    """Add the term of a feature, or of a cross of two, in each score, ``(rows, C)``."""
    n_scores = len(weights)
    table = weights.reshape(n_scores, *(_count_inputs(part) for part in parts))
    for axis, part in enumerate(parts, 1):
        table = np.moveaxis(_pad_weights(np.moveaxis(table, axis, -1), part, centred), -1, axis)
    position = add_joint_position(
        graph, [part.position for part in parts], [part.size for part in parts]
    )
    added = graph.add_op(
        "Gather", graph.add_constant(table.reshape(n_scores, -1).T.copy()), position
    )
    factors = [part.factor for part in parts if part.factor is not None]
    if not factors:
        return added
    return graph.add_op(
        "Mul", added, factors[0] if len(factors) == 1 else graph.add_op("Mul", *factors)
    )


def _count_inputs(part: _FeatureInput) -> int:
    return part.size - 2 if part.feature.n_bins is not None else 1 + part.feature.missing


def _pad_weights(weights: Floats, part: _FeatureInput, centred: bool) -> Floats:
    """Return the term of each position, ``(..., size)``, from weights ``(..., width)``."""
    zero = np.zeros((*weights.shape[:-1], 1))
    if part.feature.n_bins is None:
        return weights if part.feature.missing else np.concatenate([weights, zero], axis=-1)
    # The reference category is first and the unknown one last; neither has a weight.
    padded: Floats = np.concatenate([zero, weights, zero], axis=-1)
    return padded - weights.sum(axis=-1, keepdims=True) / part.feature.n_bins if centred else padded


def add_additive_log_odds(graph: OnnxGraph, model: AdditiveModel) -> str:
    """Add unnormalised log-probabilities, ``(rows, L)``, as `AdditiveModel.log_odds`."""
    columns = add_feature_inputs(graph, model.schema)
    terms = [add_repeated_row(graph, np.log(model.label_shares), columns)]
    for feature, score in zip(model.schema.features, model.scores, strict=True):
        # An undeclared category adds nothing.
        table = np.concatenate([score.T, np.zeros((1, len(score)))])
        terms.append(
            graph.add_op(
                "Gather",
                graph.add_constant(table),
                add_cells(graph, feature, columns[feature.name], has_unknown_cell=True),
            )
        )
    return graph.add_sum(terms)


def add_pooled_scores(graph: OnnxGraph, model: PooledModel) -> str:
    """Add the scores of a pooled model, ``(rows, M)``, as `PooledModel.scores`."""
    columns = add_feature_inputs(graph, model.schema)
    terms = [add_repeated_row(graph, model.intercepts, columns)]
    tables = np.split(model.weights, model.params.starts[1:-1])
    for feature, table in zip(model.schema.features, tables, strict=True):
        terms.append(
            graph.add_op(
                "Gather",
                graph.add_constant(table),
                add_cells(graph, feature, columns[feature.name], has_unknown_cell=False),
            )
        )
    return graph.add_sum(terms)


def add_vote_sums(graph: OnnxGraph, model: VoteModel) -> tuple[str, str]:
    """Add the weighted votes and the mean probabilities, ``(rows, L)`` each, as `Vote`.

    Notes
    -----
    Ref: AnonML §VI-B, Eq. (2).
    """
    columns = add_feature_inputs(graph, model.schema)
    features = model.schema.features
    positions = [
        add_cells(graph, feature, columns[feature.name], has_unknown_cell=False)
        for feature in features
    ]
    classifiers, n_labels = model.vote.classifiers, model.vote.n_labels
    total = sum(classifier.weight for classifier in classifiers)
    no_vote = np.zeros(n_labels)
    votes, chances = (
        [add_repeated_row(graph, no_vote, columns)],
        [add_repeated_row(graph, no_vote if total else no_vote + 1 / n_labels, columns)],
    )
    for classifier in classifiers:
        position = add_joint_position(
            graph, [positions[j] for j in classifier.features], classifier.n_bins
        )
        hard = classifier.weight * np.eye(n_labels)[classifier.probabilities.argmax(axis=1)]
        votes.append(graph.add_op("Gather", graph.add_constant(hard), position))
        if total:
            chances.append(
                graph.add_op(
                    "Gather",
                    graph.add_constant(classifier.weight / total * classifier.probabilities),
                    position,
                )
            )
    return graph.add_sum(votes), graph.add_sum(chances)


def add_tree_leaves(graph: OnnxGraph, tree: DecisionTree) -> str:
    """Add the leaf of each row, ``(rows,)`` int64.

    The graph makes one step down for each level; a row that is at a leaf stays there.
    """
    columns = add_feature_inputs(graph, tree.schema)
    axis = graph.add_constant(np.array([1]))
    cells = [
        graph.add_op(
            "Unsqueeze",
            add_cells(graph, feature, columns[feature.name], has_unknown_cell=False),
            axis,
        )
        for feature in tree.schema.features
    ]
    table = graph.add_op("Concat", *cells, axis=1)
    is_leaf = graph.add_constant(tree.splits < 0)
    splits, firsts = graph.add_constant(np.maximum(tree.splits, 0)), graph.add_constant(tree.firsts)
    node = graph.add_op(
        "Expand",
        graph.add_constant(np.array([0])),
        graph.add_op("Shape", next(iter(columns.values()))),
    )
    for _ in range(_count_levels(tree)):
        split = graph.add_op("Unsqueeze", graph.add_op("Gather", splits, node), axis)
        cell = graph.add_op("Squeeze", graph.add_op("GatherElements", table, split, axis=1), axis)
        child = graph.add_op("Add", graph.add_op("Gather", firsts, node), cell)
        node = graph.add_op("Where", graph.add_op("Gather", is_leaf, node), node, child)
    return node


def _count_levels(tree: DecisionTree) -> int:
    """Return the number of levels below the root."""
    depth = np.zeros(len(tree), np.int64)
    for node in range(len(tree)):
        # Children have larger positions than their parent.
        depth[list(tree.children(node))] = depth[node] + 1
    return int(depth.max())
