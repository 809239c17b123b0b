"""Repeated cross-validation of SDQ's learners: in each run the folds, the databases of the rows and the noise are drawn anew.

Learners that are compared get the same folds and the same databases, and each its own noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.paper.sdq_data import Rows
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.rows import deal
from shoal.protocols.sdq.scripts import script_of

N_FOLDS = 10
N_DATABASES = 10
DEPTH = 4
"""Of the paper's trees."""
SEEDS = 5


@dataclass(frozen=True)
class Learner:
    """How something is learned.

    Parameters
    ----------
    key, title
        Its name in measures, and for people.
    changes
        What differs from variant ``plus``, in which no database colludes or drops out.
    """

    key: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_private(self) -> bool:
        """Whether its sums carry noise."""
        return "epsilon" not in self.changes


_PAPER = {"variant": "paper", "depth": DEPTH}
PAPER = Learner("paper", "`paper`", _PAPER)
PAPER_C3 = Learner("paper_c3", "`paper`, 3 of 10 may collude", {**_PAPER, "max_colluders": 3})
SULQ = Learner("sulq", "SuLQ (trust local)", {**_PAPER, "trust": "local"})
PLUS = Learner("plus_c0", "`plus`, nobody colludes")
PLUS_C3 = Learner("plus_c3", "`plus`, 3 of 10 may collude", {"max_colluders": 3})
SUMS = Learner("sums_c0", "`plus` by sums alone, nobody colludes", {"choice": "sums"})
SUMS_C5 = Learner("sums_c5", "`plus` by sums alone, 5 of 10 may collude", {"max_colluders": 5, "choice": "sums"})
BAYES = Learner("bayes_c0", "naive Bayes, nobody colludes", {"learner": "naive-bayes"})
ID3 = Learner("id3", f"ID3 without noise, depth {DEPTH}", {**_PAPER, "epsilon": math.inf})
DEEP_ID3 = Learner("id3_deep", "ID3 without noise, any depth", {"variant": "paper", "depth": 99, "epsilon": math.inf})


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of several runs, in per cent."""

    runs: Sequence[float]

    @property
    def value(self) -> float:
        """Their mean."""
        return statistics.fmean(self.runs)

    @property
    def deviation(self) -> float:
        """Standard deviation over runs; 0 for one run."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0

    def to_text(self) -> str:
        return f"{self.value:.1f} ({self.deviation:.1f})" if len(self.runs) > 1 else f"{self.value:.1f}"


def cross_validated(
    learner: Learner, rows: Rows, epsilon: float, seeds: int, n_databases: int = N_DATABASES, declared: float = 1.0
) -> Accuracy:
    """Ten-fold cross-validation, once for each seed: all rows are predicted, each by what the other folds have taught.

    Parameters
    ----------
    declared
        The size that the study declares, in parts of the true one.
    """
    runs = []
    for seed in range(seeds):
        fold_of = deal(len(rows), N_FOLDS, _entropy(seed, "folds"))
        n_right = 0
        for fold in range(N_FOLDS):
            asked, unseen = rows.take(np.flatnonzero(fold_of != fold)), rows.take(np.flatnonzero(fold_of == fold))
            n_right += _right(learner, asked, unseen, epsilon, n_databases, round(declared * len(asked)), (seed, fold))
        runs.append(100 * n_right / len(rows))
    return Accuracy(runs)


def tried(learner: Learner, asked: Rows, unseen: Rows, epsilon: float, seeds: int) -> Accuracy:
    """Learning from some rows and predicting others, once for each seed."""
    found = [_right(learner, asked, unseen, epsilon, N_DATABASES, len(asked), (seed,)) for seed in range(seeds)]
    return Accuracy([100 * n_right / len(unseen) for n_right in found])


def _right(learner: Learner, asked: Rows, unseen: Rows, epsilon: float, n_databases: int, size: int, path: Sequence[int]) -> int:
    """How many of the unseen rows are predicted right by what was learned from the others."""
    changes = {"epsilon": epsilon, "size": size, "n_databases": n_databases, "minimum": n_databases, **learner.changes}
    whose = deal(len(asked), n_databases, _entropy(*path, n_databases, "databases"))
    noise = _entropy(*path, n_databases, "noise", learner.key, f"{epsilon:g}")
    table = Table(asked.cells, asked.labels, whose)
    model = simulate(script_of(Params(asked.schema, **changes)), table, noise).model
    return int((model.decide(unseen.columns) == unseen.labels).sum())


def majority(rows: Rows) -> float:
    """Rows of the most common class, in per cent."""
    return 100 * float(np.bincount(rows.labels).max()) / len(rows)


def _entropy(*path: int | str) -> SeededEntropy:
    return SeededEntropy("sdq trials").spawn(*path)
