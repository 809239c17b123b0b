"""Standard errors of histograms agree with the errors of many seeded runs.

One cell of each run counts, a different one each time, so that samples are independent. With
correct errors an estimate is within 1.96 of them with probability 0.95, or 0.9375 if one Laplace
variable is all of the noise, and within one with probability 0.68 to 0.76. Half of the error would
make the first 0.67, twice the error the second 0.95: 400 runs reject both almost surely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import collect_tallies
from shoal.protocols.anonml.questions import AssignedRows
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.population import simulate as share
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation import anonml, pfds, sdq
from shoal.simulation.diagnostics import Details
from tests.statistical.harness import catches, statistical

RUNS, ALPHA = 400, 1e-9
N = 600
SCHEMA = Schema(
    [
        Numeric("age", 0, 90, bins=[30, 60], missing=False),
        Categorical("sex", ["f", "m"], missing=False),
    ],
    label=Categorical("ill", ["no", "yes"], missing=False),
)
BINARY = replace(
    SCHEMA, features=(Numeric("age", 0, 90, bins=[30], missing=False), SCHEMA.features[1])
)
RNG = np.random.default_rng(5)
COLUMNS = {"age": RNG.uniform(0, 90, N), "sex": RNG.integers(0, 2, N)}
LABELS: npt.NDArray[np.int64] = (RNG.random(N) < 0.2 + 0.4 * COLUMNS["sex"]).astype(np.int64)
WHOSE = np.arange(N) % 10
Case = Callable[[SeededEntropy], list[Details]]


def of_people(params: AnonMLParams, n: int = N) -> Case:
    def draw(entropy: SeededEntropy) -> list[Details]:
        script = make_script(params, entropy.spawn("digest").bytes(32))
        assert isinstance(script, AnonMLPlusScript | AnonMLPaperScript)
        # People are drawn afresh: an error may not depend on who they are.
        some = np.argsort(entropy.words(N, np.uint64))[:n]
        rows = AssignedRows(
            {name: column[some] for name, column in COLUMNS.items()},
            LABELS[some],
            draw_words(n, entropy),
        )
        tallies = collect_tallies(script, rows, entropy)
        return anonml.make_histograms(script, tallies, rows, script.learn(tallies, entropy))

    return draw


def of_databases(params: SDQParams, n_answering: int = 10) -> Case:
    table = CellTable.from_columns(params, COLUMNS, LABELS, WHOSE)

    def draw(entropy: SeededEntropy) -> list[Details]:
        script = make_sdq_script(params)
        return sdq.make_histograms(
            script, simulate(script, table, entropy, n_answering), table, n_answering
        )

    return draw


def of_holders(params: PFDSParams, sharers: int = 10) -> Case:
    labels = LABELS if not params.is_number else COLUMNS["age"] / 9
    rows = PFDSRows.from_columns(params, COLUMNS, labels, WHOSE)
    who = tuple(range(sharers))

    def draw(entropy: SeededEntropy) -> list[Details]:
        digest = entropy.spawn("digest").bytes(32)
        learned = share(params, rows, digest, entropy, sharers=who)
        return pfds.make_histograms(
            params, digest, learned.answers, who, rows.take(np.isin(WHOSE, who))
        )

    return draw


BAYES = SDQParams(SCHEMA, 1.0, N, max_colluders=3, minimum=8, learner="naive-bayes")
TREE = replace(BAYES, learner="tree", epsilon=2.0)
PAPER = AnonMLPaperParams(SCHEMA, 4.0, N, n_partitions=2, n_subsets=1, subset_size=2)
LOCAL = PFDSParams(SCHEMA, 4.0, N)
SUMS = replace(LOCAL, trust="secure-sum", max_colluders=3, minimum=8)
NUMBER = replace(SUMS, schema=replace(SCHEMA, label=Numeric("pain", 0, 10, missing=False)))
CASES: dict[str, Case] = {
    "tables of random response": of_people(AnonMLPlusParams(SCHEMA, 3.0, N)),
    "tables of sets": of_people(AnonMLPlusParams(SCHEMA, 0.5, 10**6)),
    "one table, nearly everyone": of_people(
        AnonMLPlusParams(replace(SCHEMA, features=SCHEMA.features[:1]), 6.0, N)
    ),
    "bits": of_people(AnonMLPlusParams(BINARY, 0.5, N)),
    "partitions": of_people(PAPER),
    "partitions at a small budget": of_people(replace(PAPER, epsilon=1.0), 500),
    "partitions without noise": of_people(
        replace(PAPER, epsilon=np.inf, n_partitions=5, n_subsets=1, subset_size=1)
    ),
    "naive Bayes": of_databases(BAYES),
    "naive Bayes, two away": of_databases(BAYES, 8),
    "naive Bayes of a ranked tree": of_databases(replace(TREE, choice="sums")),
    "the root of a tree": of_databases(TREE),
    "the root of the paper's tree": of_databases(
        replace(TREE, variant="paper", epsilon=4.0, depth=2)
    ),
    "two selected": of_databases(
        replace(TREE, variant="paper", noise="two-selected", epsilon=4.0, depth=2, minimum=10)
    ),
    "holders' own tables": of_holders(LOCAL),
    "holders' own tables, of some": of_holders(replace(LOCAL, epsilon=1.0), 7),
    "sums": of_holders(SUMS, 9),
    "Gaussian sums": of_holders(replace(SUMS, delta=1e-6)),
    "sums of a number": of_holders(NUMBER),
}


def deviations(case: Case, entropy: SeededEntropy) -> npt.NDArray[np.float64]:
    """Return the distance of a cell of each run from the truth, in standard errors."""
    found: list[float] = []
    for i in count():
        # What everyone has answered without noise is no estimate.
        tables = [
            one
            for one in case(entropy.spawn(i))
            if one["error"] is not None and np.any(one["error"])
        ]
        if tables:
            estimated, true, error = (
                np.concatenate([np.ravel(one[part]) for one in tables])
                for part in ("estimated", "true", "error")
            )
            cell = len(found) % len(error)
            found.append((estimated[cell] - true[cell]) / error[cell])
        if len(found) == RUNS:
            break
    return np.array(found)


def is_long_enough(z: npt.NDArray[np.float64]) -> bool:
    return (
        stats.binomtest(int((np.abs(z) <= 1.96).sum()), RUNS, 0.9375, alternative="less").pvalue
        >= ALPHA
    )


def is_short_enough(z: npt.NDArray[np.float64]) -> bool:
    return (
        stats.binomtest(int((np.abs(z) <= 1).sum()), RUNS, 0.757, alternative="greater").pvalue
        >= ALPHA
    )


@pytest.mark.untraced
@statistical(alpha=2 * ALPHA)
@pytest.mark.parametrize("name", CASES)
def test_expected_errors_match_simulated_ones(name: str, entropy: SeededEntropy) -> None:
    z = deviations(CASES[name], entropy)
    assert is_long_enough(z) and is_short_enough(z)
    assert catches(lambda: is_long_enough(2 * z), tries=1), "half of the error"
    assert catches(lambda: is_short_enough(z / 2), tries=1), "twice the error"
