"""Collusion: exposure of two selected databases, and shares against more colluders.

Frequencies are compared with theory. The attack is `shoal.attacks.sdq`; ten databases, each with
its own draws. A deviation of five standard errors, in any of the figures about selections, has a
probability of about 1 in 100,000. Bounds on epsilon hold with confidence `CONFIDENCE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure
from shoal.attacks.sdq import RemainingNoise, collude
from shoal.audit.bound import bound_epsilon
from shoal.audit.observations import rank_samples
from shoal.data.schema import Categorical, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.analysis import SDQExposure
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import RoundPart, SDQRound

N, MINIMUM, EXPECTED = 10, 9, 3
"""Databases, the fewest that answer, and the colluders that shares are scaled for.

Two databases are selected among all.
"""
COLLUDERS = (2, 3, 4)
LEVELS = 5
"""Selections of a tree of depth 4."""
TREES = 4_000
SAMPLES = 400_000
EPSILON = 1.0
CONFIDENCE = 0.999999
MAX_ERRORS = 5.0

_SCHEMA = Schema(
    [Categorical("ward", ["a", "b"], missing=False)], label=Categorical("falls", ["no", "yes"])
)


def measures(only: str = "", trees: int = TREES, samples: int = SAMPLES) -> Iterator[Measure]:
    """Yield for each number of colluders the exposed selections and trees.

    They are compared with theory. With shares, the remaining epsilon is measured.
    """
    for c in COLLUDERS:
        if (name := f"collusion_selected_{c}_of_{N}").startswith(only):
            yield from _selections(name, c, trees)
    for c in range(MINIMUM):
        if (name := f"collusion_shares_{c}_of_{N}").startswith(only):
            yield from _bounds(name, c, samples)


def markdown(only: str = "") -> Iterator[str]:
    """Yield the same as two tables, with a row for each number of colluders."""
    found = {one.measure: one.value for one in measures(only)}
    whats = ("both", "one", "tree_both", "tree_any")
    yield (
        "| colluders of 10, two selected | opened | theory | one-sided | theory | tree: some "
        "opened | theory | tree: any | theory |"
    )
    yield "|---:" * 9 + "|"
    for c in COLLUDERS:
        name = f"collusion_selected_{c}_of_{N}"
        if f"{name}_both" in found:
            yield (
                f"| {c} | "
                + " | ".join(
                    f"{found[f'{name}_{what}{end}']:.4f}"
                    for what in whats
                    for end in ("", "_theory")
                )
                + " |"
            )
    yield ""
    yield (f"| colluders, shares scaled for {EXPECTED} | remaining epsilon | measured, at least |")
    yield "|---:" * 3 + "|"
    for c in range(MINIMUM):
        name = f"collusion_shares_{c}_of_{N}"
        if name + "_bound" in found:
            yield f"| {c} | {found[name + '_epsilon']:.3f} | {found[name + '_bound']:.3f} |"


def simulate_exposure(
    c: int, trees: int, entropy: SeededEntropy
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for each selection of each tree, ``(trees, LEVELS)``, what the attack learns.

    The first array says whether it knows the true count, the second whether it knows a bound on one
    side. The claims of the attack are checked.
    """
    params = SDQParams(
        _SCHEMA,
        EPSILON,
        100,
        n_databases=N,
        minimum=N,
        max_colluders=c,
        variant="paper",
        noise="two-selected",
    )
    asked = SDQRound("sizes/0", (RoundPart(_rows, 1, EPSILON),))
    both, one = np.zeros((trees, LEVELS), bool), np.zeros((trees, LEVELS), bool)
    for at in np.ndindex(trees, LEVELS):
        left = collude(params, asked, [_table(1)] * N, range(c), entropy)
        number = int(left.numbers[0])
        assert (not left.is_lower_bound or number <= N - c) and (
            not left.is_upper_bound or number >= N - c
        )
        both[at], one[at] = left.is_exact, left.is_lower_bound != left.is_upper_bound
    return both, one


def _selections(name: str, c: int, trees: int) -> Iterator[Measure]:
    both, one = simulate_exposure(c, trees, SeededEntropy(name))
    theory = SDQExposure(N, c, LEVELS)
    yield from _against(f"{name}_both", both.ravel(), float(theory.both), "of selections")
    yield from _against(f"{name}_one", one.ravel(), float(theory.one), "of selections")
    yield from _against(
        f"{name}_tree_both", np.asarray(both.any(axis=1)), float(theory.ever_both), "of trees"
    )
    yield from _against(
        f"{name}_tree_any", np.asarray((both | one).any(axis=1)), float(theory.ever), "of trees"
    )


def _against(name: str, seen: npt.NDArray[np.bool_], theory: float, unit: str) -> Iterator[Measure]:
    error = math.sqrt(theory * (1 - theory) / seen.size)
    yield Measure("sdq", name, float(seen.mean()), unit, "lower")
    yield Measure("sdq", f"{name}_theory", theory, unit, "lower")
    yield Measure(
        "sdq",
        f"{name}_distance",
        abs(float(seen.mean()) - theory) / error,
        "standard errors",
        "lower",
        MAX_ERRORS,
    )


def _bounds(name: str, c: int, samples: int) -> Iterator[Measure]:
    """Yield the remaining epsilon and a measured lower bound.

    The largest permitted number of databases is missing; the bound uses the best guess of the
    attack.
    """
    params = SDQParams(
        _SCHEMA, EPSILON, 100, n_databases=N, minimum=MINIMUM, max_colluders=EXPECTED
    )
    entropy, law, n_left = (
        SeededEntropy(name),
        RemainingNoise(EPSILON, (MINIMUM - c) / params.n_honest),
        MINIMUM - c,
    )
    asked = SDQRound(
        "table", (RoundPart(lambda table: np.full(samples, len(table)), samples, EPSILON),)
    )
    evidence = []
    for n_rows in (0, 1):
        tables = [_table(n_rows), *[_table(1)] * (MINIMUM - 1)]
        left = collude(params, asked, tables, range(n_left, MINIMUM), entropy).numbers
        evidence.append(law.compute_evidence(left, n_left - 1, n_left))
    bound = bound_epsilon(*rank_samples(*evidence), 1 - CONFIDENCE).epsilon
    yield Measure(
        "sdq",
        f"{name}_epsilon",
        law.epsilon,
        "epsilon",
        "lower",
        EPSILON + 1e-9 if c <= EXPECTED else None,
    )
    yield Measure(
        "sdq", f"{name}_bound", bound, "epsilon", "lower", EPSILON if c <= EXPECTED else None
    )


def _table(n_rows: int) -> CellTable:
    return CellTable(np.zeros((n_rows, 1), np.int64), np.zeros(n_rows, np.int64))


def _rows(table: CellTable) -> Ints:
    return np.array([len(table)])
