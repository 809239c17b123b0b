"""A simulated population counts what all databases would, adds what they would, and follows the script."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sdq_trees import CentralID3, parted, random_table, run, schema_of, summed
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.population import answer, simulate
from shoal.protocols.sdq.script import Part, Round, Script
from shoal.protocols.sdq.scripts import script_of

ARITIES = (2, 3, 4)
STUDIES: dict[str, dict[str, Any]] = {
    "plus": {},
    "ranked": {"choice": "sums"},
    "bayes": {"learner": "naive-bayes"},
    "paper": {"variant": "paper", "depth": 2},
    "local": {"variant": "paper", "depth": 2, "trust": "local"},
    "two": {"variant": "paper", "depth": 2, "noise": "two-selected"},
}


def a_script(name: str, epsilon: float = 1.0) -> Script:
    return script_of(Params(schema_of(ARITIES, 2), epsilon, 600, **STUDIES[name]))


@pytest.mark.parametrize("name", STUDIES)
def test_without_noise_sums_are_those_of_the_databases(name: str) -> None:
    table, script = random_table(ARITIES, 2, 600, seed=1, n_databases=10), a_script(name, math.inf)
    databases = list(parted(table))

    def by_databases(asked: Round) -> np.ndarray:
        sums = summed(asked, databases)
        return np.array([int(np.argmax(sums))]) if asked.is_choice else sums

    trained = simulate(script, table, SeededEntropy(1))
    course, answers = run(script, by_databases)
    assert trained.course == course
    assert [one.tolist() for one in trained.answers] == [one.tolist() for one in answers]
    assert script.round(trained.course) is None


def test_without_noise_the_paper_is_central_id3() -> None:
    table, script = random_table(ARITIES, 2, 600, seed=2, n_databases=10), a_script("paper", math.inf)
    oracle = CentralID3(table, ARITIES, 2, 2)
    decided = simulate(script, table, SeededEntropy(1)).model.decide({f"a{j}": table.cells[:, j] for j in range(3)})
    assert decided.tolist() == [oracle.predict(row) for row in table.cells.tolist()]


@pytest.mark.parametrize("name", STUDIES)
def test_the_same_seed_gives_the_same_answers(name: str) -> None:
    table, script = random_table(ARITIES, 2, 600, seed=3, n_databases=10), a_script(name)
    first, again, other = ([one.tolist() for one in simulate(script, table, SeededEntropy(seed)).answers] for seed in (1, 1, 2))
    assert first == again != other


def test_of_equal_scores_the_first_is_chosen_and_nothing_else_is_seen() -> None:
    asked = Round("choice/0", (Part(lambda table: np.array([3, 9, 9, 1]), 4, math.inf),), is_choice=True)
    table = random_table(ARITIES, 2, 5, seed=4)
    assert answer(a_script("plus").params, asked, table, 10, SeededEntropy(1)).tolist() == [1]


def test_fewer_databases_add_less_noise() -> None:
    params = Params(schema_of(ARITIES, 2), 1.0, 600, minimum=5)
    asked = Round("query/0", (Part(lambda table: np.zeros(4000, np.int64), 4000, 0.1),))
    table = random_table(ARITIES, 2, 5, seed=5)
    variances = [float(answer(params, asked, table, n, SeededEntropy(n)).var()) for n in (5, 10)]
    assert variances[1] / variances[0] == pytest.approx(2, rel=0.25)


def test_a_simulation_takes_the_noise_of_those_who_answer() -> None:
    table, script = random_table(ARITIES, 2, 600, seed=6, n_databases=10), a_script("bayes")
    everyone, told, fewer = (simulate(script, table, SeededEntropy(1), n).answers[0].tolist() for n in (None, 10, 3))
    assert everyone == told != fewer
