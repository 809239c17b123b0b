"""A simulated population: counts and noise of all databases, in the order of the script."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.population import draw_answer, simulate
from shoal.protocols.sdq.script import RoundPart, SDQRound, SDQScript
from shoal.protocols.sdq.variants import make_sdq_script
from tests.support.sdq import CentralID3, make_schema, parted, random_table, run, summed

ARITIES = (2, 3, 4)
STUDIES: dict[str, dict[str, Any]] = {
    "plus": {},
    "ranked": {"choice": "sums"},
    "bayes": {"learner": "naive-bayes"},
    "paper": {"variant": "paper", "depth": 2},
    "local": {"variant": "paper", "depth": 2, "trust": "local"},
    "two": {"variant": "paper", "depth": 2, "noise": "two-selected"},
}


def make_script(name: str, epsilon: float = 1.0) -> SDQScript:
    return make_sdq_script(SDQParams(make_schema(ARITIES, 2), epsilon, 600, **STUDIES[name]))


@pytest.mark.parametrize("name", STUDIES)
def test_simulation_without_noise_equals_sums_of_databases(name: str) -> None:
    table, script = (
        random_table(ARITIES, 2, 600, seed=1, n_databases=10),
        make_script(name, math.inf),
    )
    databases = list(parted(table))

    def by_databases(asked: SDQRound) -> np.ndarray:
        sums = summed(asked, databases)
        return np.array([int(np.argmax(sums))]) if asked.is_choice else sums

    trained = simulate(script, table, SeededEntropy(1))
    course, answers = run(script, by_databases)
    assert trained.course == course
    assert [one.tolist() for one in trained.answers] == [one.tolist() for one in answers]
    assert script.make_round(trained.course) is None


def test_simulation_of_paper_without_noise_equals_central_id3() -> None:
    table, script = (
        random_table(ARITIES, 2, 600, seed=2, n_databases=10),
        make_script("paper", math.inf),
    )
    oracle = CentralID3(table, ARITIES, 2, 2)
    decided = simulate(script, table, SeededEntropy(1)).model.decide(
        {f"a{j}": table.cells[:, j] for j in range(3)}
    )
    assert decided.tolist() == [oracle.predict(row) for row in table.cells.tolist()]


@pytest.mark.parametrize("name", STUDIES)
def test_simulation_is_repeatable_with_a_seed(name: str) -> None:
    table, script = random_table(ARITIES, 2, 600, seed=3, n_databases=10), make_script(name)
    first, again, other = (
        [one.tolist() for one in simulate(script, table, SeededEntropy(seed)).answers]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_draw_answer_chooses_the_first_of_equal_scores() -> None:
    asked = SDQRound(
        "choice/0", (RoundPart(lambda table: np.array([3, 9, 9, 1]), 4, math.inf),), is_choice=True
    )
    table = random_table(ARITIES, 2, 5, seed=4)
    assert draw_answer(make_script("plus").params, asked, table, 10, SeededEntropy(1)).tolist() == [
        1
    ]


def test_noise_variance_is_in_proportion_to_databases() -> None:
    params = SDQParams(make_schema(ARITIES, 2), 1.0, 600, minimum=5)
    asked = SDQRound("query/0", (RoundPart(lambda table: np.zeros(4000, np.int64), 4000, 0.1),))
    table = random_table(ARITIES, 2, 5, seed=5)
    variances = [
        float(draw_answer(params, asked, table, n, SeededEntropy(n)).var()) for n in (5, 10)
    ]
    assert variances[1] / variances[0] == pytest.approx(2, rel=0.25)


def test_simulation_draws_noise_of_answering_databases() -> None:
    table, script = random_table(ARITIES, 2, 600, seed=6, n_databases=10), make_script("bayes")
    everyone, told, fewer = (
        simulate(script, table, SeededEntropy(1), n).answers[0].tolist() for n in (None, 10, 3)
    )
    assert everyone == told != fewer
