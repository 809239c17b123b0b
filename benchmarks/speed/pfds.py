"""PFDS: the projection of a tree's counts against piqp; studies of 100 holders.

The studies have 440 rows per holder and run on one core. The projection is that of trees like the
paper's: four levels, most nodes leaves, the counts of 440 rows with integer noise of scale 16.
Milliseconds are the best of repeated runs. piqp solves the same tree in turns with ours, and
medians are compared; its matrices are prepared in advance, and both its steps count, because every
tree has another shape. ``solve_alone`` leaves out the first of them.

A study has the schema of a census: 6 numbers and 8 categories. *paper* is everything that is shared
(trees, their projections, rows drawn from them, and labels by all trees), and a logistic regression
of every agent on all shared rows and its own. *plus* is the pooled model, a release with the true
number of rows, and the personal models of all holders; the slower of its two kinds of trust counts.
Seconds are of the processor, ``wall`` are those of the clock; memory is that of a separate run.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure, rate
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.estimators.released_data import ReleasedDataModel, make_learner
from shoal.mechanisms.laplace import LaplaceSampler
from shoal.protocols.pfds.dataset import Dataset, draw_dataset
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.paper.population import PFDSPaperSimulationResult, simulate_paper
from shoal.protocols.pfds.paper.synthesis import project_counts
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate

BENCH = "pfds-speed"
N_HOLDERS, N_ROWS, SCALE = 100, 440, 16
TARGETS = {"paper": 90.0, "plus": 20.0}
SCHEMA = Schema(
    [
        Numeric(name, low, high, missing=False)
        for name, (low, high) in {
            "age": (17, 90),
            "weight": (12_000, 1_500_000),
            "years": (1, 16),
            "gain": (0, 100_000),
            "loss": (0, 4_500),
            "hours": (1, 99),
        }.items()
    ]
    + [
        Categorical(f"c{n}", [str(i) for i in range(n)], missing=False)
        for n in (42, 16, 15, 9, 7, 6, 5, 2)
    ],
    label=Categorical("income", ["low", "high"], missing=False),
)
LEAVES = {"100k": (100_000, 100.0), "1m": (1_000_000, 2_000.0)}
"""Leaves, and the permitted milliseconds."""
AGAINST = {"5k": (5_000, 31), "100k": (100_000, 7)}
"""Leaves, and the number of timings of both programs."""
TIMES_PIQP = 5
AGREEMENT = 0.1
"""Tolerance in rows of a node: piqp stops at gradients of 1e-8, with errors of hundredths."""


@dataclass(frozen=True)
class Tree:
    """The counts of a tree's levels, and the parents of nodes."""

    parents: list[Ints]
    counts: list[Ints]

    @property
    def weights(self) -> list[float]:
        """Weights of the paper."""
        return [1 / len(count) for count in self.counts]

    def projected(self) -> list[Floats]:
        return project_counts(self.parents, self.counts, self.weights)


class Piqp:
    """The same problem for piqp: all nodes are unknown.

    A row of its matrix is a node minus its children.
    """

    def __init__(self, tree: Tree) -> None:
        from scipy import sparse

        sizes = list(map(len, tree.counts))
        starts = np.cumsum([0, *sizes])
        n, n_above = int(starts[-1]), int(starts[-2])
        above = np.concatenate(
            [level + start for level, start in zip(tree.parents[1:], starts, strict=False)]
        )
        children = sparse.csc_matrix((np.ones(n - 1), (above, np.arange(1, n))), (n_above, n))
        # A factor that changes nothing but its time, which is less.
        weights = 2 * sizes[-1] * np.repeat(tree.weights, sizes)
        counts = np.concatenate(tree.counts).astype(np.float64)
        self.squares, self.linear = sparse.diags(weights).tocsc(), -weights * counts
        self.sums, self.zeros = (
            sparse.csc_matrix(sparse.eye(n_above, n) - children),
            np.zeros(n_above),
        )
        self.low, self.high = np.zeros(n), np.full(n, np.inf)

    def set_up(self) -> None:
        self.solver = import_module("piqp").SparseSolver()
        self.solver.setup(
            self.squares, self.linear, self.sums, self.zeros, x_l=self.low, x_u=self.high
        )

    def solve(self) -> None:
        self.solver.solve()


def measures(only: str = "") -> Iterator[Measure]:
    """Yield all parts, or those with a text in their names: projection, piqp, plus, paper."""
    parts: dict[str, Callable[[], Iterator[Measure]]] = {
        "projection": _projection,
        "piqp": _piqp,
        "plus": _plus,
        "paper": _paper,
    }
    for name, part in parts.items():
        if only in name:
            yield from part()


def make_tree(n_leaves: int, entropy: Entropy) -> Tree:
    """Return a tree of four levels with rows in any of the leaves.

    It has a root, two steps of 2 to 15 children each, and leaves anywhere below them.
    """
    fans = [entropy.below_many(14, 1).astype(np.int64) + 2]
    fans.append(entropy.below_many(14, int(fans[0].sum())).astype(np.int64) + 2)
    parents = [np.zeros(1, np.int64), *(np.repeat(np.arange(len(fan)), fan) for fan in fans)]
    n_above = len(parents[-1])
    others = entropy.below_many(n_above, n_leaves - n_above).astype(np.int64)
    parents.append(np.sort(np.concatenate([np.arange(n_above), others])))
    sampler = LaplaceSampler(Fraction(1, SCALE))
    true = [np.bincount(entropy.below_many(n_leaves, N_ROWS).astype(np.int64), minlength=n_leaves)]
    for level in parents[:0:-1]:
        true.append(np.bincount(level, true[-1]).astype(np.int64))
    return Tree(parents, [count + sampler.draw_many(len(count), entropy) for count in true[::-1]])


def _projection() -> Iterator[Measure]:
    for name, (n, target) in LEAVES.items():
        ms = 1e3 / rate(make_tree(n, SeededEntropy(n)).projected, 1)
        yield Measure(BENCH, f"projection_{name}_ms", ms, "ms", "lower", target)


def _piqp() -> Iterator[Measure]:
    if not find_spec("piqp"):
        print("piqp is not installed: it is not compared.", file=sys.stderr)
        return
    for name, (n, n_turns) in AGAINST.items():
        tree = make_tree(n, SeededEntropy(n))
        solver = Piqp(tree)
        # The first turn is to warm up.
        turns = [
            (_ms(tree.projected), _ms(solver.set_up), _ms(solver.solve)) for _ in range(n_turns + 1)
        ][1:]
        if np.abs(solver.solver.result.x - np.concatenate(tree.projected())).max() > AGREEMENT:
            raise RuntimeError("piqp and the projection do not agree; that is no measurement.")
        ours, set_up, solving = (statistics.median(times) for times in zip(*turns, strict=True))
        yield Measure(BENCH, f"piqp_{name}_ms", set_up + solving, "ms", "lower")
        ratio = (set_up + solving) / ours
        yield Measure(
            BENCH, f"projection_vs_piqp_{name}", ratio, "x", "higher", TIMES_PIQP, "piqp", ratio
        )
        yield Measure(
            BENCH,
            f"projection_vs_piqp_{name}_solve_alone",
            solving / ours,
            "x",
            "higher",
            None,
            "piqp",
            solving / ours,
        )


def _ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def make_rows(entropy: Entropy) -> tuple[dict[str, npt.NDArray[Any]], Ints, Ints]:
    """Return encoded columns, labels, and the owner of each row.

    Every feature is weakly associated with the label.
    """
    n = N_HOLDERS * N_ROWS
    labels = (entropy.below_many(4, n) == 0).astype(np.int64)
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in SCHEMA.features:
        if isinstance(feature, Numeric):
            places = (entropy.below_many(1_000, n) + 250 * labels) / 1_250
            columns[feature.name] = np.round(feature.low + (feature.high - feature.low) * places**2)
        else:
            n_values = len(feature.values)
            columns[feature.name] = np.minimum(
                entropy.below_many(n_values, n).astype(np.int64) + labels, n_values - 1
            )
    return columns, labels, np.arange(n) % N_HOLDERS


def _plus() -> Iterator[Measure]:
    totals = []
    columns, labels, owners = make_rows(SeededEntropy(0))
    for trust in ("local", "secure-sum"):
        name = f"plus_{trust.replace('-', '_')}_{N_HOLDERS}_agents"
        params = _params(variant="plus", trust=trust)
        rows = PFDSRows.from_columns(params, columns, labels, owners)
        learn = partial(simulate, params, rows, bytes(32), SeededEntropy(1))
        model = learn().model
        parts: dict[str, Callable[[], object]] = {
            "learn": learn,
            "release": partial(draw_dataset, model, len(rows), SeededEntropy(2)),
            "home": partial(_homes, model, rows, owners),
        }
        times = {part: _seconds(work) for part, work in parts.items()}
        for part, (cpu, _) in times.items():
            yield Measure(BENCH, f"{name}_{part}_s", cpu, "s", "lower")
        cpu, wall = map(sum, zip(*times.values(), strict=True))
        totals.append(cpu)
        yield Measure(BENCH, f"{name}_s", cpu, "s", "lower")
        yield Measure(BENCH, f"{name}_wall_s", wall, "s", "lower")
        yield Measure(BENCH, f"{name}_peak_mb", max(map(_peak_mb, parts.values())), "MB", "lower")
    yield Measure(BENCH, f"plus_{N_HOLDERS}_agents_s", max(totals), "s", "lower", TARGETS["plus"])


def _homes(model: PooledModel, rows: PFDSRows, owners: Ints) -> None:
    for holder in range(N_HOLDERS):
        fit_personal_model(model, rows.take(owners == holder), SeededEntropy(3))


def _paper() -> Iterator[Measure]:
    name, found = f"paper_{N_HOLDERS}_agents", []
    params, made = _params(variant="paper"), make_rows(SeededEntropy(0))
    share = partial(simulate_paper, params, *made)
    sharing = _seconds(lambda: found.append(share(SeededEntropy(1))))
    shared = found.pop()
    learning = _seconds(lambda: _learners(params, shared, *made))
    for part, (seconds, _) in {"share": sharing, "learn": learning}.items():
        yield Measure(BENCH, f"{name}_{part}_s", seconds, "s", "lower")
    cpu, wall = map(sum, zip(sharing, learning, strict=True))
    yield Measure(BENCH, f"{name}_s", cpu, "s", "lower", TARGETS["paper"])
    yield Measure(BENCH, f"{name}_wall_s", wall, "s", "lower")
    yield Measure(
        BENCH, f"{name}_leaves", sum(len(tree.labels) for tree in shared.trees), "leaves", "lower"
    )
    yield Measure(
        BENCH, f"{name}_peak_mb", _peak_mb(lambda: share(SeededEntropy(1))), "MB", "lower"
    )


def _learners(
    params: PFDSParams,
    shared: PFDSPaperSimulationResult,
    columns: dict[str, npt.NDArray[Any]],
    labels: Ints,
    owners: Ints,
) -> None:
    for holder in range(N_HOLDERS):
        mine = owners == holder
        own = Dataset({name: column[mine] for name, column in columns.items()}, labels[mine])
        ReleasedDataModel.train(
            params, make_learner("logistic", is_number=False), [*shared.datasets, own]
        )


def _params(**settings: Any) -> PFDSParams:
    return PFDSParams(
        SCHEMA,
        epsilon=1.0,
        size=N_HOLDERS * N_ROWS,
        n_holders=N_HOLDERS,
        minimum=N_HOLDERS,
        **settings,
    )


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds of the processor, and of the clock."""
    start = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - start[0], time.perf_counter() - start[1]


def _peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
