"""The models of tables inside a graph: sums of scores, votes, pooled weights, and trees. All of it is lookups by cells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.models.onnx_cells import cells, each_row, flat_columns, joint
from shoal.models.onnx_graph import Graph
from shoal.protocols.anonml.model import AdditiveModel, VoteModel
from shoal.protocols.pfds.model import Model as PooledModel
from shoal.protocols.sdq.model import Tree

Floats = npt.NDArray[np.float64]


def additive_log_odds(graph: Graph, model: AdditiveModel) -> str:
    """Unnormalised log-probabilities, ``(rows, L)``, as `AdditiveModel.log_odds`."""
    columns = flat_columns(graph, model.schema)
    terms = [each_row(graph, np.log(model.label_shares), columns)]
    for feature, score in zip(model.schema.features, model.scores, strict=True):
        # A category that nobody declared says nothing.
        table = np.concatenate([score.T, np.zeros((1, len(score)))])
        terms.append(graph.op("Gather", graph.constant(table), cells(graph, feature, columns[feature.name], apart=True)))
    return graph.add_up(terms)


def pooled_scores(graph: Graph, model: PooledModel) -> str:
    """The scores of a pooled model, ``(rows, M)``, as `Model.scores`."""
    columns = flat_columns(graph, model.schema)
    terms = [each_row(graph, model.intercepts, columns)]
    tables = np.split(model.weights, model.params.starts[1:-1])
    for feature, table in zip(model.schema.features, tables, strict=True):
        terms.append(graph.op("Gather", graph.constant(table), cells(graph, feature, columns[feature.name], apart=False)))
    return graph.add_up(terms)


def vote_sums(graph: Graph, model: VoteModel) -> tuple[str, str]:
    """The weighted votes and the mean probabilities of the classifiers, ``(rows, L)`` each, as `Vote` has them.

    Notes
    -----
    Ref: AnonML §VI-B, Eq. (2).
    """
    columns = flat_columns(graph, model.schema)
    features = model.schema.features
    places = [cells(graph, feature, columns[feature.name], apart=False) for feature in features]
    classifiers, n_labels = model.vote.classifiers, model.vote.n_labels
    total = sum(one.weight for one in classifiers)
    no_vote = np.zeros(n_labels)
    votes, chances = [each_row(graph, no_vote, columns)], [each_row(graph, no_vote if total else no_vote + 1 / n_labels, columns)]
    for one in classifiers:
        place = joint(graph, [places[j] for j in one.features], one.n_bins)
        hard = one.weight * np.eye(n_labels)[one.probabilities.argmax(axis=1)]
        votes.append(graph.op("Gather", graph.constant(hard), place))
        if total:
            chances.append(graph.op("Gather", graph.constant(one.weight / total * one.probabilities), place))
    return graph.add_up(votes), graph.add_up(chances)


def tree_ends(graph: Graph, tree: Tree) -> str:
    """The node that each row ends in, ``(rows,)`` int64: as many steps down as the tree has levels, and at a leaf none."""
    columns = flat_columns(graph, tree.schema)
    upright = graph.constant(np.array([1]))
    every = [graph.op("Unsqueeze", cells(graph, feature, columns[feature.name], apart=False), upright) for feature in tree.schema.features]
    table = graph.op("Concat", *every, axis=1)
    is_leaf = graph.constant(tree.splits < 0)
    splits, firsts = graph.constant(np.maximum(tree.splits, 0)), graph.constant(tree.firsts)
    node = graph.op("Expand", graph.constant(np.array([0])), graph.op("Shape", next(iter(columns.values()))))
    for _ in range(_depth(tree)):
        split = graph.op("Unsqueeze", graph.op("Gather", splits, node), upright)
        cell = graph.op("Squeeze", graph.op("GatherElements", table, split, axis=1), upright)
        child = graph.op("Add", graph.op("Gather", firsts, node), cell)
        node = graph.op("Where", graph.op("Gather", is_leaf, node), node, child)
    return node


def _depth(tree: Tree) -> int:
    """Levels below the root."""
    depth = np.zeros(len(tree), np.int64)
    for node in range(len(tree)):
        # Children come behind their parent.
        depth[list(tree.children(node))] = depth[node] + 1
    return int(depth.max())
