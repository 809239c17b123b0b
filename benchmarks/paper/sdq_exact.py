"""Without noise, the tree that ten real databases and the real secure sum come to is that of ID3 on all rows in one place.

The databases exchange keys, mask, share and unmask as in any study; only the noise is left out, which no peer of a study ever does. The
other tree is learned by a recursion over the rows, which shares nothing with the learner of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.sdq_data import Rows, example, is_there
from benchmarks.paper.sdq_trials import DEPTH, N_DATABASES, N_FOLDS
from shoal.entropy import Entropy, SeededEntropy
from shoal.privacy.events import Event
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.sdq.aggregator import Mined
from shoal.protocols.sdq.model import Tree
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.rows import deal
from shoal.protocols.sdq.script import Round
from shoal.sim.sdq_machines import machines

Node = int | tuple[int, tuple["Node", ...]]
"""A class, or an attribute with a node for each of its cells."""
_DIGITS = 6
"""After which two gains are the same: those of equal counts differ by rounding."""


class Bare(SDQPeer):
    """Adds no noise; its ledger is charged as if it did."""

    def prices(self) -> Mapping[str, Event]:
        return PaperScript(replace(self.params, epsilon=1.0)).prices

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:  # noqa: ARG002
        return np.concatenate([part.count(table) for part in asked.parts])


def measures(seeds: int = 1, only: str = "") -> Iterator[Measure]:
    """Predictions in which both trees differ, on all rows of Nursery; each time they learn from another nine tenths of them."""
    if not ("exact".startswith(only) or only.startswith("exact")) or not is_there("nursery"):
        return
    rows, n_differing = example("nursery"), 0
    for seed in range(seeds):
        entropy = SeededEntropy("sdq exact").spawn(seed)
        asked = rows.take(np.flatnonzero(deal(len(rows), N_FOLDS, entropy)))
        tree, central = summed_tree(asked, entropy), central_tree(asked)
        n_differing += int((tree.decide(rows.columns) != decided(central, rows.cells)).sum())
    yield Measure("sdq", "exact_predictions", seeds * len(rows), "predictions", "higher")
    yield Measure("sdq", "exact_differing", n_differing, "predictions", "lower", 0)


def markdown(seeds: int = 1, only: str = "") -> Iterator[str]:
    """The same as a table."""
    yield "| predictions of both trees | that differ |"
    yield "|---:|---:|"
    yield f"| {' | '.join(f'{one.value:,.0f}' for one in measures(seeds, only))} |"


def summed_tree(rows: Rows, entropy: SeededEntropy) -> Tree:
    """What is learned by real peers and the secure sum, which carries no noise here."""
    n = N_DATABASES
    params = Params(rows.schema, math.inf, len(rows), n_databases=n, minimum=n, variant="paper", depth=DEPTH)
    whose = deal(len(rows), n, entropy.spawn("databases"))
    tables = [Table(rows.cells[whose == i], rows.labels[whose == i]) for i in range(n)]
    mined = run_local(*machines(PaperScript(params), tables, peer=Bare), entropy.spawn("machines")).results[AGGREGATOR]
    assert isinstance(mined, Mined) and isinstance(mined.model, Tree)
    return mined.model


def central_tree(rows: Rows) -> Node:
    """ID3 on all rows in one place: of equal attributes and of equal classes the first."""
    arities = [feature.n_bins or 0 for feature in rows.schema.features]
    return _learned(rows.cells, rows.labels, arities, range(len(arities)), DEPTH, 0)


def _learned(cells: Ints, labels: Ints, arities: Sequence[int], left: Sequence[int], depth: int, inherited: int) -> Node:
    if not len(labels):
        return inherited
    label = int(np.bincount(labels).argmax())
    if (labels == label).all() or not left or not depth:
        return label
    best = min(left, key=lambda j: round(sum(_entropy_of(labels[cells[:, j] == cell]) for cell in range(arities[j])), _DIGITS))
    parts = [cells[:, best] == cell for cell in range(arities[best])]
    rest = [j for j in left if j != best]
    return best, tuple(_learned(cells[part], labels[part], arities, rest, depth - 1, label) for part in parts)


def _entropy_of(labels: Ints) -> float:
    """Of the classes, in nats, times the rows."""
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    return -float((counts * np.log(counts / len(labels))).sum())


def decided(node: Node, cells: Ints) -> Ints:
    """The class of each row."""
    if isinstance(node, int):
        return np.full(len(cells), node)
    attribute, children = node
    found = np.empty(len(cells), np.int64)
    for cell, child in enumerate(children):
        inside = cells[:, attribute] == cell
        found[inside] = decided(child, cells[inside])
    return found
