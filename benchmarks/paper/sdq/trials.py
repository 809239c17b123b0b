"""Repeated cross-validation of SDQ's learners.

Each run draws the folds, the databases of the rows and the noise again. Compared learners get the
same folds and databases, but different noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.paper.sdq.data import Rows
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import CellTable, SDQParams, assign_rows
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script

N_FOLDS = 10
N_DATABASES = 10
DEPTH = 4
"""Depth of the paper's trees."""
SEEDS = 5


@dataclass(frozen=True)
class Learner:
    """A learner with its settings.

    Parameters
    ----------
    key, title
        Name in measures, and in tables.
    changes
        Differences from variant ``plus``, in which no database colludes or drops out.
    """

    key: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_private(self) -> bool:
        """Whether its sums contain noise."""
        return "epsilon" not in self.changes


_PAPER = {"variant": "paper", "depth": DEPTH}
PAPER = Learner("paper", "`paper`", _PAPER)
PAPER_C3 = Learner("paper_c3", "`paper`, 3 of 10 may collude", {**_PAPER, "max_colluders": 3})
SULQ = Learner("sulq", "SuLQ (trust local)", {**_PAPER, "trust": "local"})
PLUS = Learner("plus_c0", "`plus`, no collusion")
PLUS_C3 = Learner("plus_c3", "`plus`, 3 of 10 may collude", {"max_colluders": 3})
SUMS = Learner("sums_c0", "`plus` by sums alone, no collusion", {"choice": "sums"})
SUMS_C5 = Learner(
    "sums_c5", "`plus` by sums alone, 5 of 10 may collude", {"max_colluders": 5, "choice": "sums"}
)
BAYES = Learner("bayes_c0", "naive Bayes, no collusion", {"learner": "naive-bayes"})
ID3 = Learner("id3", f"ID3 without noise, depth {DEPTH}", {**_PAPER, "epsilon": math.inf})
DEEP_ID3 = Learner(
    "id3_deep",
    "ID3 without noise, any depth",
    {"variant": "paper", "depth": 99, "epsilon": math.inf},
)


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of several runs, in per cent."""

    runs: Sequence[float]

    @property
    def value(self) -> float:
        """Mean of the runs."""
        return statistics.fmean(self.runs)

    @property
    def deviation(self) -> float:
        """Standard deviation over runs; 0 for one run."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0

    def to_text(self) -> str:
        return (
            f"{self.value:.1f} ({self.deviation:.1f})"
            if len(self.runs) > 1
            else f"{self.value:.1f}"
        )


def cross_validate(
    learner: Learner,
    rows: Rows,
    epsilon: float,
    seeds: int,
    n_databases: int = N_DATABASES,
    declared: float = 1.0,
) -> Accuracy:
    """Return the accuracy of ten-fold cross-validation, once for each seed.

    Each row is predicted by a model of the other folds.

    Parameters
    ----------
    declared
        The size that the study declares, as a multiple of the true size.
    """
    runs = []
    for seed in range(seeds):
        folds = assign_rows(len(rows), N_FOLDS, _entropy(seed, "folds"))
        n_right = 0
        for fold in range(N_FOLDS):
            asked, unseen = (
                rows.take(np.flatnonzero(folds != fold)),
                rows.take(np.flatnonzero(folds == fold)),
            )
            n_right += _count_right(
                learner,
                asked,
                unseen,
                epsilon,
                n_databases,
                round(declared * len(asked)),
                (seed, fold),
            )
        runs.append(100 * n_right / len(rows))
    return Accuracy(runs)


def score(learner: Learner, asked: Rows, unseen: Rows, epsilon: float, seeds: int) -> Accuracy:
    """Return the accuracy on unseen rows after learning from others, once for each seed."""
    found = [
        _count_right(learner, asked, unseen, epsilon, N_DATABASES, len(asked), (seed,))
        for seed in range(seeds)
    ]
    return Accuracy([100 * n_right / len(unseen) for n_right in found])


def _count_right(
    learner: Learner,
    asked: Rows,
    unseen: Rows,
    epsilon: float,
    n_databases: int,
    size: int,
    path: Sequence[int],
) -> int:
    """Return the number of unseen rows that a model of the others predicts right."""
    changes = {
        "epsilon": epsilon,
        "size": size,
        "n_databases": n_databases,
        "minimum": n_databases,
        **learner.changes,
    }
    owners = assign_rows(len(asked), n_databases, _entropy(*path, n_databases, "databases"))
    noise = _entropy(*path, n_databases, "noise", learner.key, f"{epsilon:g}")
    table = CellTable(asked.cells, asked.labels, owners)
    model = simulate(make_sdq_script(SDQParams(asked.schema, **changes)), table, noise).model
    return int((model.decide(unseen.columns) == unseen.labels).sum())


def majority(rows: Rows) -> float:
    """Return the share of rows of the most common class, in per cent."""
    return 100 * float(np.bincount(rows.labels).max()) / len(rows)


def _entropy(*path: int | str) -> SeededEntropy:
    return SeededEntropy("sdq trials").spawn(*path)
