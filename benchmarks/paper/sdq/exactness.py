"""Without noise, SDQ's secure sums give the same tree as ID3 on all rows in one place.

Ten real databases exchange keys, mask, share and unmask as in any study; only the noise is left
out, which no peer of a study ever does. The other tree is learned by a recursion over the rows,
which shares no code with the learner of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.sdq.data import Rows, example, is_there
from benchmarks.paper.sdq.trials import DEPTH, N_DATABASES, N_FOLDS
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.sdq.aggregator import SDQResult
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams, assign_rows
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import SDQRound
from shoal.simulation.machines import make_sdq_machines

Node = int | tuple[int, tuple["Node", ...]]
"""A class, or an attribute with a node for each of its cells."""
_DIGITS = 6
"""Digits after which two gains are equal: gains of equal counts differ by rounding."""


class NoiselessPeer(SDQPeer):
    """Peer that adds no noise; its ledger is charged as if it did."""

    def compute_prices(self) -> Mapping[str, Event]:
        return SDQPaperScript(replace(self.params, epsilon=1.0)).prices

    def draw_noisy_answer(
        self,
        asked: SDQRound,
        table: CellTable,
        role: int | None,  # noqa: ARG002
        entropy: Entropy,  # noqa: ARG002
    ) -> Ints:
        return np.concatenate([part.count(table) for part in asked.parts])


def measures(seeds: int = 1, only: str = "") -> Iterator[Measure]:
    """Yield the number of predictions in which both trees differ, on all rows of Nursery.

    Each run learns from another nine tenths of the rows.
    """
    if not ("exact".startswith(only) or only.startswith("exact")) or not is_there("nursery"):
        return
    rows, n_differing = example("nursery"), 0
    for seed in range(seeds):
        entropy = SeededEntropy("sdq exact").spawn(seed)
        asked = rows.take(np.flatnonzero(assign_rows(len(rows), N_FOLDS, entropy)))
        tree, central = learn_summed_tree(asked, entropy), learn_central_tree(asked)
        n_differing += int((tree.decide(rows.columns) != predict(central, rows.cells)).sum())
    yield Measure("sdq", "exact_predictions", seeds * len(rows), "predictions", "higher")
    yield Measure("sdq", "exact_differing", n_differing, "predictions", "lower", 0)


def markdown(seeds: int = 1, only: str = "") -> Iterator[str]:
    """Yield the same as a table."""
    yield "| predictions of both trees | that differ |"
    yield "|---:|---:|"
    yield f"| {' | '.join(f'{one.value:,.0f}' for one in measures(seeds, only))} |"


def learn_summed_tree(rows: Rows, entropy: SeededEntropy) -> DecisionTree:
    """Return the tree that real peers learn by secure sums without noise."""
    n = N_DATABASES
    params = SDQParams(
        rows.schema, math.inf, len(rows), n_databases=n, minimum=n, variant="paper", depth=DEPTH
    )
    owners = assign_rows(len(rows), n, entropy.spawn("databases"))
    tables = [CellTable(rows.cells[owners == i], rows.labels[owners == i]) for i in range(n)]
    mined = run_local(
        *make_sdq_machines(SDQPaperScript(params), tables, peer=NoiselessPeer),
        entropy.spawn("machines"),
    ).results[AGGREGATOR]
    assert isinstance(mined, SDQResult) and isinstance(mined.model, DecisionTree)
    return mined.model


def learn_central_tree(rows: Rows) -> Node:
    """Return the tree of ID3 on all rows in one place; of equal choices the first."""
    arities = [feature.n_bins or 0 for feature in rows.schema.features]
    return _learn_node(rows.cells, rows.labels, arities, range(len(arities)), DEPTH, 0)


def _learn_node(
    cells: Ints,
    labels: Ints,
    arities: Sequence[int],
    left: Sequence[int],
    depth: int,
    inherited: int,
) -> Node:
    if not len(labels):
        return inherited
    label = int(np.bincount(labels).argmax())
    if (labels == label).all() or not left or not depth:
        return label
    best = min(
        left,
        key=lambda j: round(
            sum(_compute_entropy(labels[cells[:, j] == cell]) for cell in range(arities[j])),
            _DIGITS,
        ),
    )
    parts = [cells[:, best] == cell for cell in range(arities[best])]
    rest = [j for j in left if j != best]
    return best, tuple(
        _learn_node(cells[part], labels[part], arities, rest, depth - 1, label) for part in parts
    )


def _compute_entropy(labels: Ints) -> float:
    """Return the entropy of the classes, in nats, times the number of rows."""
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    return -float((counts * np.log(counts / len(labels))).sum())


def predict(node: Node, cells: Ints) -> Ints:
    """Return the class of each row."""
    if isinstance(node, int):
        return np.full(len(cells), node)
    attribute, children = node
    found = np.empty(len(cells), np.int64)
    for cell, child in enumerate(children):
        inside = cells[:, attribute] == cell
        found[inside] = predict(child, cells[inside])
    return found
