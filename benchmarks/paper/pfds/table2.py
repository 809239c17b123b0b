"""Table 2 of the PFDS paper, and the results of its method here.

Variant ``paper`` on five tables at three budgets. Each agent trains the usual learner on all shared
rows and its own. epsilon is the whole budget of one row (add or remove one, against all who read
the release). At an infinite epsilon there is no noise, which shows the limit of the design.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.pfds.baselines import (
    Kind,
    design,
    dp_pred,
    erm,
    error,
    own_and_pooled,
    targets,
)
from benchmarks.paper.pfds.data import SEEDS as DATA_SEED
from benchmarks.paper.pfds.data import Floats, Split, is_there, splits, task
from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.paper.script import encode_values
from shoal.protocols.pfds.paper.synthesis import draw_labels
from shoal.protocols.pfds.params import PFDSParams

SEEDS = 10
"""Splits of each table."""
AGENTS = 5
"""Agents of each split that train a predictor; all agents share."""
EPSILONS = (1.0, 0.5, 0.1, math.inf)
METHODS = ("np_agt", "dp_pred", "pfds_s", "pfds")
"""Own rows; competitors' private predictors; rows labelled by one tree, or by all trees."""
COLUMNS = ("trivial", "np_pred", *METHODS, "gain")
"""Measured columns.

``gain`` is the share of agents with a smaller error by PFDS than by their own rows alone.
"""

_Cell = tuple[str, Kind]
_Figures = tuple[float, float, float]
PRINTED: Mapping[_Cell, tuple[float, _Figures, _Figures, _Figures]] = {
    ("adult", "logistic"): (
        0.276,
        (0.232, 0.266, 0.212),
        (0.245, 0.301, 0.226),
        (0.293, 0.336, 0.246),
    ),
    ("adult", "svm"): (0.283, (0.253, 0.267, 0.209), (0.262, 0.269, 0.224), (0.269, 0.268, 0.239)),
    ("bank", "logistic"): (
        0.365,
        (0.339, 0.321, 0.277),
        (0.352, 0.392, 0.294),
        (0.418, 0.499, 0.301),
    ),
    ("bank", "svm"): (0.351, (0.347, 0.358, 0.289), (0.366, 0.404, 0.308), (0.379, 0.409, 0.310)),
    ("retinopathy", "logistic"): (
        0.396,
        (0.334, 0.380, 0.279),
        (0.349, 0.411, 0.294),
        (0.389, 0.434, 0.345),
    ),
    ("retinopathy", "svm"): (
        0.423,
        (0.441, 0.397, 0.311),
        (0.449, 0.431, 0.322),
        (0.456, 0.434, 0.346),
    ),
    ("bike", "linear"): (
        0.377,
        (0.270, 0.206, 0.127),
        (0.281, 0.225, 0.154),
        (0.296, 0.220, 0.157),
    ),
    ("news_number", "linear"): (
        0.194,
        (0.176, 0.121, 0.079),
        (0.178, 0.172, 0.095),
        (0.185, 0.175, 0.096),
    ),
}
"""The paper's figures: NP-Agt, and DP-Pred, PFDS(s) and PFDS at each epsilon."""


@dataclass(frozen=True)
class Row:
    """One line of the table, and the results of every split."""

    task: str
    kind: Kind
    epsilon: float
    found: Sequence[Mapping[str, float]] = ()

    @property
    def name(self) -> str:
        """Name in measures."""
        return f"paper_{self.task}_{self.kind}_eps{self.epsilon:g}"

    @property
    def printed(self) -> dict[str, float]:
        """The paper's figures; none for infinite epsilon."""
        own, *others = PRINTED[self.task, self.kind]
        by_epsilon = dict(zip(EPSILONS, others, strict=False))
        return (
            dict(zip(METHODS, (own, *by_epsilon[self.epsilon]), strict=True))
            if self.epsilon in by_epsilon
            else {}
        )

    def mean(self, column: str) -> float:
        """Return the mean over all splits."""
        return float(np.mean([one[column] for one in self.found]))

    def deviation(self, column: str) -> float:
        """Return the standard error of the mean."""
        return float(
            np.std([one[column] for one in self.found], ddof=1) / math.sqrt(len(self.found))
        )


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield every column of rows with names that begin with ``only``.

    PFDS has its standard error, and the paper's figure if there is one.
    """
    for row in rows(seeds, only):
        unit = "MSE" if task(row.task).is_number else "error"
        for column in COLUMNS[:-1]:
            value, printed = row.mean(column), row.printed.get(column)
            beside = (
                (None, None) if printed is None else (f"the paper's {printed:g}", value / printed)
            )
            yield Measure("pfds", f"{row.name}_{column}", value, unit, "lower", None, *beside)
        if seeds > 1:
            yield Measure("pfds", f"{row.name}_pfds_se", row.deviation("pfds"), unit, "lower")
        yield Measure("pfds", f"{row.name}_gain", row.mean("gain"), "share", "higher")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the paper's figures on the left, ours on the right."""
    titles = ("NP-Agt", "DP-Pred", "PFDS(s)", "PFDS")
    yield (
        "| | epsilon | paper: "
        + " | ".join(titles)
        + " | ours: trivial | NP-Pred | "
        + " | ".join(titles)
        + " | gain |"
    )
    yield "|---|---:" + "|---:" * (len(METHODS) + len(COLUMNS)) + "|"
    for row in rows(seeds, only):
        printed = [_figure(row.printed[method]) if row.printed else "" for method in METHODS]
        ours = [_figure(row.mean(column)) for column in COLUMNS[:-1]]
        if seeds > 1:
            ours[-1] += f" ({_figure(row.deviation('pfds'))})"
        epsilon = f"{row.epsilon:g}" if row.printed else "none"
        yield (
            f"| {row.task.partition('_')[0]}, {row.kind} | {epsilon} | "
            f"{' | '.join(printed + ours)} | {100 * row.mean('gain'):.0f} % |"
        )


def rows(seeds: int, only: str = "") -> Iterator[Row]:
    """Yield the table, row after row."""
    for name in dict.fromkeys(name for name, _ in PRINTED):
        wanted = [
            Row(name, kind, epsilon)
            for table, kind in PRINTED
            if table == name
            for epsilon in EPSILONS
        ]
        wanted = [row for row in wanted if row.name.startswith(only)]
        if wanted and is_there(task(name)):
            cells = {(row.kind, row.epsilon) for row in wanted}
            found = [
                errors(split, cells, number) for number, split in enumerate(splits(name, seeds))
            ]
            yield from (
                replace(row, found=[one[row.kind, row.epsilon] for one in found]) for row in wanted
            )


def errors(
    split: Split, cells: Collection[tuple[Kind, float]], number: int
) -> dict[tuple[Kind, float], dict[str, float]]:
    """Return all columns of some rows of the table, from one split.

    The release at an epsilon serves all learners.
    """
    entropy, rng = (
        SeededEntropy(DATA_SEED).spawn("table", number),
        np.random.default_rng([DATA_SEED, number]),
    )
    with_rows = np.unique(split.owners)
    agents = rng.permutation(with_rows)[:AGENTS].tolist()
    bare = {kind: own_and_pooled(kind, split) for kind in sorted({kind for kind, _ in cells})}
    found = {}
    for epsilon in sorted({epsilon for _, epsilon in cells}):
        released = Released.of(split, epsilon, entropy.spawn(str(epsilon)))
        for kind, known in bare.items():
            if (kind, epsilon) not in cells:
                continue
            own = dict(zip(with_rows.tolist(), known.own, strict=True))
            alone, home = (
                released.home_errors(kind, agents, method) for method in ("pfds_s", "pfds")
            )
            found[kind, epsilon] = {
                "trivial": known.trivial,
                "np_pred": known.pooled,
                "np_agt": float(np.mean(known.own)),
                "dp_pred": dp_pred(kind, split, epsilon, rng),
                "pfds_s": float(np.mean(alone)),
                "pfds": float(np.mean(home)),
                "gain": float(
                    np.mean([mine < own[agent] for mine, agent in zip(home, agents, strict=True)])
                ),
            }
    return found


@dataclass(frozen=True, eq=False)
class Released:
    """All shared rows of a split, coded for learners.

    Parameters
    ----------
    split
        The split with their training rows.
    x
        ``(n, d)`` the rows.
    y
        Their labels, for each method of sharing.
    """

    split: Split
    x: Floats
    y: Mapping[str, Floats]

    @classmethod
    def of(
        cls, split: Split, epsilon: float, entropy: Entropy, sharers: Sequence[int] | None = None
    ) -> Released:
        """Return the shared rows of some holders, by default of all.

        PFDS(s) has the same rows with the labels of their holder's own tree.
        """
        training, schema = split.training, split.training.schema
        params = PFDSParams(
            schema,
            epsilon,
            len(training),
            n_holders=split.n_holders,
            minimum=split.n_holders,
            variant="paper",
        )
        shared = simulate_paper(
            params, training.columns, training.labels, split.owners, entropy, sharers
        )
        own = [
            draw_labels(
                params,
                tree.predict(encode_values(params, dataset.columns)).astype(np.int64),
                entropy,
            )
            for tree, dataset in zip(shared.trees, shared.datasets, strict=True)
        ]
        x = np.concatenate([design(schema, dataset.columns) for dataset in shared.datasets])
        labels = {"pfds": [dataset.labels for dataset in shared.datasets], "pfds_s": own}
        return cls(
            split,
            x,
            {method: targets(schema, np.concatenate(each)) for method, each in labels.items()},
        )

    def home_errors(self, kind: Kind, agents: Iterable[int], method: str) -> list[float]:
        """Return the errors of agents who train on all shared rows and their own rows."""
        schema, test = self.split.training.schema, self.split.test
        unseen, truth = design(schema, test.columns), targets(schema, test.labels)
        found = []
        for agent in agents:
            own = self.split.select_holder(agent)
            x = np.concatenate([self.x, design(schema, own.columns)])
            y = np.concatenate([self.y[method], targets(schema, own.labels)])
            found.append(error(truth, erm(kind, x, y).predict(unseen)))
        return found


def _figure(value: float) -> str:
    """Return three decimals, without the 0 before them."""
    return f"{value:.3f}".removeprefix("0")
