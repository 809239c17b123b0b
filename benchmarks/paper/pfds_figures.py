"""Figures 3 and 4 of the PFDS paper: how true its private datasets are by depth of the tree, and what sharers add, on variant ``paper``.

The rows of Figure 3 are those of single agents on Adult, at epsilon 1. PFDS- leaves out the projection, and DiffGen is a rival that needs a
taxonomy.
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

from benchmarks.paper import pfds_diffgen, pfds_table
from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from benchmarks.paper.pfds_data import SEEDS, Ints, Rows, Split, splits
from benchmarks.paper.pfds_rivals import Kind, dp_pred, own_and_pooled
from shoal.domain import Categorical, Feature, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.pfds.dataset import Dataset, uniform
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.paper import Points, n_counted
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.synthesis import columns_of, draw_counts, draw_rows, sizes
from shoal.protocols.pfds.tree import PrivateTree
from shoal.protocols.pfds.voting import labels_of, majority
from shoal.releases.partitions import partition_distance

TRIALS = 10
"""Splits."""
AGENTS = 10
"""Agents of each split whose datasets are looked at in Figure 3; all of them share trees."""
DEPTHS = (2, 3, 4, 5, 6, 7, 8)
"""h_max; for DiffGen, how often a value is told apart."""
SHARERS = (1, 10, 25, 50, 75, 100)
EPSILON = 1.0
CELLS, PARTITIONS = 32, 50
"""Of the universe, in Figure 3b: cells of a partition, which the paper does not tell, and how often one is drawn."""
_METHODS = (("pfds", "PFDS", "blue"), ("pfds_minus", "PFDS-", "orange"), ("diffgen", "DiffGen", "vermilion"))
_ASPECTS: Mapping[str, tuple[str, str, str]] = {
    "pfds-3a": ("size", "Figure 3a: Adult, error of a dataset's size", "rows too many or too few"),
    "pfds-3b": ("distance", "Figure 3b: Adult, distance from the real rows", "Wasserstein distance over random partitions"),
    "pfds-3c": ("seconds", "Figure 3c: Adult, time of an agent", "seconds of one core"),
}
_SHARED = (("pfds", "PFDS", "blue"), ("pfds_s", "PFDS(s)", "orange"), ("dp_pred", "DP-Pred", "vermilion"))
_BARE = (("np_agt", "NP-Agt: own rows", "dashed", "grey"), ("np_pred", "NP-Pred: all rows", "dashed", "black"))
_TASKS: tuple[tuple[str, Kind, str], ...] = (
    ("adult", "logistic", "Figure 4: Adult, logistic regression"),
    ("adult", "svm", "Figure 4: Adult, support vector machine"),
    ("news_number", "linear", "Figure 4: News, linear regression"),
)


@dataclass(frozen=True, eq=False)
class Made:
    """An agent's private dataset: its size before it is cut to what a study expects, its rows, and processor time that it took."""

    size: float
    dataset: Dataset
    seconds: float


def figure(name: str, trials: int) -> Figure:
    """The figure of that name."""
    if name == "pfds-4":
        return Figure(name, [_by_sharers(*one, trials) for one in _TASKS], columns=1)
    return Figure(name, [_by_depth(name, trials)], columns=1)


def _by_depth(name: str, trials: int) -> Panel:
    aspect, title, y_label = _ASPECTS[name]

    def mean(method: str, depth: int) -> float:
        return float(np.mean([agent[method, aspect] for number in range(trials) for agent in fidelity(number, depth)]))

    lines = [Line(label, DEPTHS, [mean(key, depth) for depth in DEPTHS], colour=PALETTE[colour]) for key, label, colour in _METHODS]
    if aspect == "distance":
        lines.append(Line("real rows, two halves", [0], [mean("halves", DEPTHS[0])], "dashed", PALETTE["black"]))
        lines.append(Line("uniform rows", [0], [mean("guess", DEPTHS[0])], "dotted", PALETTE["grey"]))
    return Panel(title, "h_max", y_label, lines, has_log_y=aspect != "distance")


@cache
def fidelity(number: int, depth: int) -> list[dict[tuple[str, str], float]]:
    """Of some agents of a split what each method makes of their rows, by method and aspect; only figures are kept, rows are many."""
    (split,) = splits("adult", 1, seed=number)
    entropy = SeededEntropy(SEEDS).spawn("depth", number, depth)
    agents = np.random.default_rng([SEEDS, number]).permutation(np.unique(split.whose))[:AGENTS].tolist()
    found = []
    for agent, made in synthesised(split, agents, depth, entropy):
        own = split.rows_of(agent)
        figures: dict[tuple[str, str], float] = {}
        for method, one in made.items():
            figures[method, "size"] = abs(one.size - len(own))
            figures[method, "distance"] = _apart(own, one.dataset, entropy)
            figures[method, "seconds"] = one.seconds
        if depth == DEPTHS[0]:
            is_first = np.arange(len(own)) % 2 == 0
            others = own.take(~is_first)
            figures["halves", "distance"] = _apart(own.take(is_first), Dataset(others.columns, others.labels), entropy)
            figures["guess", "distance"] = _apart(own, guess(own.schema, len(own), entropy), entropy)
        found.append(figures)
    return found


def _apart(own: Rows, other: Dataset, entropy: Entropy) -> float:
    return float(partition_distance(own.schema, Dataset(own.columns, own.labels), other, CELLS, PARTITIONS, entropy).mean())


def synthesised(split: Split, agents: Collection[int], depth: int, entropy: Entropy) -> Iterator[tuple[int, dict[str, Made]]]:
    """What each method makes of the agents' rows. PFDS and PFDS- start from the same tree, and the trees of all holders label both."""
    params = Params(
        split.training.schema, EPSILON, len(split.training), n_holders=split.n_holders, minimum=1, variant="paper", max_depth=depth
    )
    points = Points.of(params, split.training.columns, split.training.labels)
    trees, grown = [], {}
    for holder in range(split.n_holders):
        own = points.take(split.whose == holder)
        start = time.process_time()
        tree = grow(params, own, entropy)
        seconds = time.process_time() - start
        trees.append(tree.predictor)
        if holder in agents:
            grown[holder] = own, tree, seconds
    for agent, (own, tree, seconds) in grown.items():
        yield (
            agent,
            {
                "pfds": _timed(partial(_drawn, params, own, tree, trees, entropy), seconds),
                "pfds_minus": _timed(partial(_drawn, replace(params, projection=False), own, tree, trees, entropy), seconds),
                "diffgen": _timed(partial(_by_diffgen, split.rows_of(agent), depth, entropy)),
            },
        )


def _drawn(params: Params, points: Points, tree: PrivateTree, trees: Sequence[PrivateTree], entropy: Entropy) -> tuple[float, Dataset]:
    """A sharer's private rows, labelled by all trees, and how many its tree speaks of."""
    counts = [draw_counts(params, points, tree.levels, i, entropy) for i in range(1, n_counted(params) + 1)]
    of_leaves = sizes(params, tree, counts)
    values = draw_rows(params, tree, of_leaves, entropy).values
    return float(of_leaves.sum()), Dataset(columns_of(params, values, entropy), labels_of(params, majority(params, trees, values), entropy))


def _by_diffgen(own: Rows, depth: int, entropy: Entropy) -> tuple[float, Dataset]:
    made = pfds_diffgen.release(own.schema, own.columns, own.labels, EPSILON, depth, entropy)
    return float(len(made)), Dataset(made.columns, made.labels)


def _timed(make: Callable[[], tuple[float, Dataset]], before: float = 0.0) -> Made:
    start = time.process_time()
    size, dataset = make()
    return Made(size, dataset, before + time.process_time() - start)


def guess(schema: Schema, n: int, entropy: Entropy) -> Dataset:
    """Rows of which nothing is known: any value is as likely as any other."""

    def drawn(feature: Feature) -> npt.NDArray[Any]:
        if isinstance(feature, Categorical):
            return entropy.below_many(len(feature.values), n).astype(np.int64)
        return float(feature.low) + uniform(n, entropy) * (float(feature.high) - float(feature.low))

    assert schema.label is not None
    return Dataset({feature.name: drawn(feature) for feature in schema.features}, drawn(schema.label))


def _by_sharers(name: str, kind: Kind, title: str, trials: int) -> Panel:
    """Errors of agents, whether they share or not."""
    found = [sharing(name, number)[kind] for number in range(trials)]
    lines = []
    for key, label, colour in _SHARED:
        y, spread = zip(*(_interval([one[key, n] for one in found]) for n in SHARERS), strict=True)
        lines.append(Line(label, SHARERS, y, colour=PALETTE[colour], spread=spread))
    for key, label, style, colour in (*_BARE, ("trivial", "guessing", "dotted", "grey")):
        lines.append(Line(label, [0], [float(np.mean([one[key, 0] for one in found]))], style, PALETTE[colour]))  # type: ignore[arg-type]
    unit = "mean squared error, label in [-1, 1]" if kind == "linear" else "share of wrong classes"
    return Panel(title, "sharers", unit, lines, has_log_y=kind == "linear")


@cache
def sharing(name: str, number: int) -> dict[Kind, dict[tuple[str, int], float]]:
    """Errors of one split by method and number of sharers, for each learner of a task; of what does not depend on them, at 0."""
    (split,) = splits(name, 1, seed=number)
    rng, entropy = np.random.default_rng([SEEDS, number]), SeededEntropy(SEEDS).spawn("sharers", number)
    order, with_rows = rng.permutation(split.n_holders), np.unique(split.whose)
    agents = rng.permutation(with_rows)[: pfds_table.AGENTS].tolist()
    found: dict[Kind, dict[tuple[str, int], float]] = {}
    for kind in (kind for task, kind, _ in _TASKS if task == name):
        bare = own_and_pooled(kind, split)
        found[kind] = {("trivial", 0): bare.trivial, ("np_pred", 0): bare.pooled, ("np_agt", 0): float(np.mean(bare.own))}
    for n in SHARERS:
        sharers = _with_rows(split, order)[:n]
        released = pfds_table.Released.of(split, EPSILON, entropy.spawn(n), sharers)
        for kind, errors in found.items():
            errors["dp_pred", n] = dp_pred(kind, split, EPSILON, rng, sharers)
            for method in released.y:
                errors[method, n] = float(np.mean(released.home_errors(kind, agents, method)))
    return found


def _with_rows(split: Split, order: Ints) -> list[int]:
    """Holders without rows come last: one of them alone has no predictor to share."""
    has_rows = np.isin(order, split.whose)
    return [*order[has_rows].tolist(), *order[~has_rows].tolist()]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and how far the 95 % interval of Student's t reaches; nowhere from a single value."""
    from scipy.stats import t

    n = len(values)
    return float(np.mean(values)), float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else 0.0
