"""A population is asked like single people: the same words, cells and mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import AnonMLPaperParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import answer_question, collect_tallies, simulate
from shoal.protocols.anonml.questions import AssignedRows, CellQuestion
from shoal.protocols.anonml.variants import make_script
from tests.support.anonml import STUDIES, STUDY, TWO, build_named_script, people, plain


def test_make_script_chooses_variant() -> None:
    assert isinstance(build_named_script("tables"), AnonMLPlusScript)
    assert isinstance(build_named_script("paper"), AnonMLPaperScript)


@pytest.mark.parametrize("name", STUDIES)
def test_collect_tallies_repeats_with_seed(name: str) -> None:
    script = build_named_script(name)
    rows = AssignedRows(*people(script.params.schema, 500), draw_words(500, SeededEntropy(1)))
    first, again, other = (
        plain(collect_tallies(script, rows, SeededEntropy(seed))) for seed in (2, 2, 3)
    )
    assert first == again != other


@pytest.mark.parametrize("name", STUDIES)
def test_collect_tallies_counts_people_by_assignment(name: str) -> None:
    script = build_named_script(name)
    words = draw_words(700, SeededEntropy(1))
    tallies = collect_tallies(
        script, AssignedRows(*people(script.params.schema, 700), words), SeededEntropy(2)
    )
    assert len(tallies) == script.n_phases
    for phase, counted in enumerate(tallies):
        groups = script.assign_groups(phase, words).tolist()
        expected = [
            sum(question in script.list_question_numbers(phase, group) for group in groups)
            for question in range(len(counted))
        ]
        assert [tally.n for tally in counted] == expected


@pytest.mark.parametrize("name", STUDIES)
def test_simulate_accepts_empty_population(name: str) -> None:
    script = build_named_script(name)
    columns, labels = people(script.params.schema, 0)
    learned = simulate(script, columns, labels, SeededEntropy(1))
    assert learned.answers == (0,) * script.n_phases
    assert learned.late == 0


def test_noiseless_population_counts_true_cells() -> None:
    script = make_script(
        AnonMLPaperParams(TWO, math.inf, 300, n_partitions=1, n_subsets=1, subset_size=1), STUDY
    )
    columns, labels = people(TWO, 600)
    rows = AssignedRows(columns, labels, draw_words(600, SeededEntropy(1)))
    tallies = collect_tallies(script, rows, SeededEntropy(2))
    (question,) = script.questions(script.n_phases - 1, script.publish(tallies[:-1]))
    assert (
        tallies[-1][0].counts.tolist()
        == np.bincount(question.find_cells(rows), minlength=question.n_cells).tolist()
    )


def test_answer_question_counts_asked_people() -> None:
    rows = AssignedRows(*people(TWO, 50), draw_words(50, SeededEntropy(1)))
    question = CellQuestion("table", None, (TWO.features[2],), 2)
    tally = answer_question(question, rows.take(np.array([4, 9])), SeededEntropy(1))
    assert tally.n == tally.counts.sum() == 2
