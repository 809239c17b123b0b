"""A population is asked as single people are: the same words, cells and mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anonml_cases import STUDIES, STUDY, TWO, people, plain, script_of
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import Paper
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import answer, collect, make_script, simulate
from shoal.protocols.anonml.questions import Cell, Rows


def test_each_variant_has_its_script() -> None:
    assert isinstance(script_of("tables"), PlusScript)
    assert isinstance(script_of("paper"), PaperScript)


@pytest.mark.parametrize("name", STUDIES)
def test_the_same_seed_gives_the_same_counts(name: str) -> None:
    script = script_of(name)
    rows = Rows(*people(script.params.schema, 500), draw_words(500, SeededEntropy(1)))
    first, again, other = (plain(collect(script, rows, SeededEntropy(seed))) for seed in (2, 2, 3))
    assert first == again != other


@pytest.mark.parametrize("name", STUDIES)
def test_everyone_is_counted_where_the_words_say(name: str) -> None:
    script = script_of(name)
    words = draw_words(700, SeededEntropy(1))
    tallies = collect(script, Rows(*people(script.params.schema, 700), words), SeededEntropy(2))
    assert len(tallies) == script.n_phases
    for phase, counted in enumerate(tallies):
        groups = script.group_of(phase, words).tolist()
        expected = [sum(question in script.asked(phase, group) for group in groups) for question in range(len(counted))]
        assert [tally.n for tally in counted] == expected


@pytest.mark.parametrize("name", STUDIES)
def test_nobody_at_all_is_a_population(name: str) -> None:
    script = script_of(name)
    columns, labels = people(script.params.schema, 0)
    learned = simulate(script, columns, labels, SeededEntropy(1))
    assert learned.answers == (0,) * script.n_phases
    assert learned.late == 0


def test_without_perturbation_the_true_cells_are_counted() -> None:
    script = make_script(Paper(TWO, math.inf, 300, n_partitions=1, n_subsets=1, subset_size=1), STUDY)
    columns, labels = people(TWO, 600)
    rows = Rows(columns, labels, draw_words(600, SeededEntropy(1)))
    tallies = collect(script, rows, SeededEntropy(2))
    (question,) = script.questions(script.n_phases - 1, script.publish(tallies[:-1]))
    assert tallies[-1][0].counts.tolist() == np.bincount(question.cells(rows), minlength=question.n_cells).tolist()


def test_an_answer_is_counted_for_those_who_are_asked() -> None:
    rows = Rows(*people(TWO, 50), draw_words(50, SeededEntropy(1)))
    question = Cell("table", None, (TWO.features[2],), 2)
    tally = answer(question, rows.take(np.array([4, 9])), SeededEntropy(1))
    assert tally.n == tally.counts.sum() == 2
