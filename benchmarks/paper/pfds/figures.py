"""Figures 3 and 4 of the PFDS paper, with variant ``paper``.

They show the fidelity of private datasets by depth of the tree, and the gain by sharing holders.
The rows of Figure 3 are those of single agents on Adult, at epsilon 1. PFDS- leaves out the
projection, and DiffGen is a competitor that needs a taxonomy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from benchmarks.paper.pfds import diffgen as pfds_diffgen
from benchmarks.paper.pfds import table2 as pfds_table
from benchmarks.paper.pfds.baselines import Kind, dp_pred, own_and_pooled
from benchmarks.paper.pfds.data import SEEDS, Ints, Rows, Split, splits
from shoal.data.schema import Categorical, Feature, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.pfds.dataset import Dataset, draw_uniform
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.script import TreeRows, count_projected_levels
from shoal.protocols.pfds.paper.synthesis import (
    compute_leaf_sizes,
    draw_counts,
    draw_labels,
    draw_rows,
    make_columns,
    take_majority,
)
from shoal.protocols.pfds.paper.tree import PrivateTree
from shoal.protocols.pfds.params import PFDSParams
from shoal.releases.comparison import compute_partition_distances

TRIALS = 10
"""Number of splits."""
AGENTS = 10
"""Agents of each split with datasets in Figure 3; all agents share trees."""
DEPTHS = (2, 3, 4, 5, 6, 7, 8)
"""h_max; for DiffGen, the number of refinements."""
SHARERS = (1, 10, 25, 50, 75, 100)
EPSILON = 1.0
CELLS, PARTITIONS = 32, 50
"""Cells of a partition of the universe in Figure 3b, and the number of partitions.

The paper does not state them.
"""
_METHODS = (
    ("pfds", "PFDS", "blue"),
    ("pfds_minus", "PFDS-", "orange"),
    ("diffgen", "DiffGen", "vermilion"),
)
_ASPECTS: Mapping[str, tuple[str, str, str]] = {
    "pfds-3a": ("size", "Figure 3a: Adult, error of a dataset's size", "rows too many or too few"),
    "pfds-3b": (
        "distance",
        "Figure 3b: Adult, distance from the real rows",
        "Wasserstein distance over random partitions",
    ),
    "pfds-3c": ("seconds", "Figure 3c: Adult, time of an agent", "seconds of one core"),
}
_SHARED = (
    ("pfds", "PFDS", "blue"),
    ("pfds_s", "PFDS(s)", "orange"),
    ("dp_pred", "DP-Pred", "vermilion"),
)
_BARE = (
    ("np_agt", "NP-Agt: own rows", "dashed", "grey"),
    ("np_pred", "NP-Pred: all rows", "dashed", "black"),
)
_TASKS: tuple[tuple[str, Kind, str], ...] = (
    ("adult", "logistic", "Figure 4: Adult, logistic regression"),
    ("adult", "svm", "Figure 4: Adult, support vector machine"),
    ("news_number", "linear", "Figure 4: News, linear regression"),
)


@dataclass(frozen=True, eq=False)
class Made:
    """An agent's private dataset: its size before the cut, its rows, and processor time.

    The cut limits the size to the rows that a study expects.
    """

    size: float
    dataset: Dataset
    seconds: float


def figure(name: str, trials: int) -> Figure:
    """Return the figure with that name."""
    if name == "pfds-4":
        return Figure(name, [_by_sharers(*one, trials) for one in _TASKS], columns=1)
    return Figure(name, [_by_depth(name, trials)], columns=1)


def _by_depth(name: str, trials: int) -> Panel:
    aspect, title, y_label = _ASPECTS[name]

    def mean(method: str, depth: int) -> float:
        return float(
            np.mean(
                [
                    agent[method, aspect]
                    for number in range(trials)
                    for agent in fidelity(number, depth)
                ]
            )
        )

    lines = [
        Line(label, DEPTHS, [mean(key, depth) for depth in DEPTHS], colour=PALETTE[colour])
        for key, label, colour in _METHODS
    ]
    if aspect == "distance":
        lines.append(
            Line(
                "real rows, two halves",
                [0],
                [mean("halves", DEPTHS[0])],
                "dashed",
                PALETTE["black"],
            )
        )
        lines.append(
            Line("uniform rows", [0], [mean("guess", DEPTHS[0])], "dotted", PALETTE["grey"])
        )
    return Panel(title, "h_max", y_label, lines, has_log_y=aspect != "distance")


@cache
def fidelity(number: int, depth: int) -> list[dict[tuple[str, str], float]]:
    """Return the figures of some agents' datasets, by method and aspect.

    Only figures are kept, because there are many rows.
    """
    (split,) = splits("adult", 1, seed=number)
    entropy = SeededEntropy(SEEDS).spawn("depth", number, depth)
    agents = (
        np.random.default_rng([SEEDS, number])
        .permutation(np.unique(split.owners))[:AGENTS]
        .tolist()
    )
    found = []
    for agent, made in synthesise_all(split, agents, depth, entropy):
        own = split.select_holder(agent)
        figures: dict[tuple[str, str], float] = {}
        for method, one in made.items():
            figures[method, "size"] = abs(one.size - len(own))
            figures[method, "distance"] = _apart(own, one.dataset, entropy)
            figures[method, "seconds"] = one.seconds
        if depth == DEPTHS[0]:
            is_first = np.arange(len(own)) % 2 == 0
            others = own.take(~is_first)
            figures["halves", "distance"] = _apart(
                own.take(is_first), Dataset(others.columns, others.labels), entropy
            )
            figures["guess", "distance"] = _apart(
                own, guess(own.schema, len(own), entropy), entropy
            )
        found.append(figures)
    return found


def _apart(own: Rows, other: Dataset, entropy: Entropy) -> float:
    return float(
        compute_partition_distances(
            own.schema, Dataset(own.columns, own.labels), other, CELLS, PARTITIONS, entropy
        ).mean()
    )


def synthesise_all(
    split: Split, agents: Collection[int], depth: int, entropy: Entropy
) -> Iterator[tuple[int, dict[str, Made]]]:
    """Return each method's dataset for each of the agents.

    PFDS and PFDS- start from the same tree, and the trees of all holders label both.
    """
    params = PFDSParams(
        split.training.schema,
        EPSILON,
        len(split.training),
        n_holders=split.n_holders,
        minimum=1,
        variant="paper",
        max_depth=depth,
    )
    points = TreeRows.from_columns(params, split.training.columns, split.training.labels)
    trees, grown = [], {}
    for holder in range(split.n_holders):
        own = points.take(split.owners == holder)
        start = time.process_time()
        tree = grow_tree(params, own, entropy)
        seconds = time.process_time() - start
        trees.append(tree.predictor)
        if holder in agents:
            grown[holder] = own, tree, seconds
    for agent, (own, tree, seconds) in grown.items():
        yield (
            agent,
            {
                "pfds": _time(partial(_draw_dataset, params, own, tree, trees, entropy), seconds),
                "pfds_minus": _time(
                    partial(
                        _draw_dataset, replace(params, projection=False), own, tree, trees, entropy
                    ),
                    seconds,
                ),
                "diffgen": _time(partial(_by_diffgen, split.select_holder(agent), depth, entropy)),
            },
        )


def _draw_dataset(
    params: PFDSParams,
    points: TreeRows,
    tree: PrivateTree,
    trees: Sequence[PrivateTree],
    entropy: Entropy,
) -> tuple[float, Dataset]:
    """Return a holder's private rows, labelled by all trees, and their number by its tree."""
    counts = [
        draw_counts(params, points, tree.levels, i, entropy)
        for i in range(1, count_projected_levels(params) + 1)
    ]
    of_leaves = compute_leaf_sizes(params, tree, counts)
    values = draw_rows(params, tree, of_leaves, entropy).values
    return float(of_leaves.sum()), Dataset(
        make_columns(params, values, entropy),
        draw_labels(params, take_majority(params, trees, values), entropy),
    )


def _by_diffgen(own: Rows, depth: int, entropy: Entropy) -> tuple[float, Dataset]:
    made = pfds_diffgen.release(own.schema, own.columns, own.labels, EPSILON, depth, entropy)
    return float(len(made)), Dataset(made.columns, made.labels)


def _time(make: Callable[[], tuple[float, Dataset]], before: float = 0.0) -> Made:
    start = time.process_time()
    size, dataset = make()
    return Made(size, dataset, before + time.process_time() - start)


def guess(schema: Schema, n: int, entropy: Entropy) -> Dataset:
    """Return random rows: all values are equally likely."""

    def drawn(feature: Feature) -> npt.NDArray[Any]:
        if isinstance(feature, Categorical):
            return entropy.below_many(len(feature.values), n).astype(np.int64)
        return float(feature.low) + draw_uniform(n, entropy) * (
            float(feature.high) - float(feature.low)
        )

    assert schema.label is not None
    return Dataset(
        {feature.name: drawn(feature) for feature in schema.features}, drawn(schema.label)
    )


def _by_sharers(name: str, kind: Kind, title: str, trials: int) -> Panel:
    """Return the errors of agents, whether they share or not."""
    found = [sharing(name, number)[kind] for number in range(trials)]
    lines = []
    for key, label, colour in _SHARED:
        y, spread = zip(*(_interval([one[key, n] for one in found]) for n in SHARERS), strict=True)
        lines.append(Line(label, SHARERS, y, colour=PALETTE[colour], spread=spread))
    for key, label, style, colour in (*_BARE, ("trivial", "guessing", "dotted", "grey")):
        mean = float(np.mean([one[key, 0] for one in found]))
        lines.append(Line(label, [0], [mean], style, PALETTE[colour]))  # type: ignore[arg-type]
    unit = "mean squared error, label in [-1, 1]" if kind == "linear" else "share of wrong classes"
    return Panel(title, "sharers", unit, lines, has_log_y=kind == "linear")


@cache
def sharing(name: str, number: int) -> dict[Kind, dict[tuple[str, int], float]]:
    """Return errors of one split by method and number of sharing holders.

    There is an entry for each learner of a task. Errors that do not depend on the number are at 0.
    """
    (split,) = splits(name, 1, seed=number)
    rng, entropy = (
        np.random.default_rng([SEEDS, number]),
        SeededEntropy(SEEDS).spawn("sharers", number),
    )
    order, with_rows = rng.permutation(split.n_holders), np.unique(split.owners)
    agents = rng.permutation(with_rows)[: pfds_table.AGENTS].tolist()
    found: dict[Kind, dict[tuple[str, int], float]] = {}
    for kind in (kind for task, kind, _ in _TASKS if task == name):
        bare = own_and_pooled(kind, split)
        found[kind] = {
            ("trivial", 0): bare.trivial,
            ("np_pred", 0): bare.pooled,
            ("np_agt", 0): float(np.mean(bare.own)),
        }
    for n in SHARERS:
        sharers = _with_rows(split, order)[:n]
        released = pfds_table.Released.of(split, EPSILON, entropy.spawn(n), sharers)
        for kind, errors in found.items():
            errors["dp_pred", n] = dp_pred(kind, split, EPSILON, rng, sharers)
            for method in released.y:
                errors[method, n] = float(np.mean(released.home_errors(kind, agents, method)))
    return found


def _with_rows(split: Split, order: Ints) -> list[int]:
    """Return the holders with rows first: a holder without rows has no predictor to share."""
    has_rows = np.isin(order, split.owners)
    return [*order[has_rows].tolist(), *order[~has_rows].tolist()]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of the 95 % interval of Student's t; 0 for a single value."""
    from scipy.stats import t

    n = len(values)
    return float(np.mean(values)), float(
        t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)
    ) if n > 1 else 0.0
