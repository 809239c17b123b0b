"""The script of variant paper: partitions, medians, prices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anonml_cases import FEATURES, STUDY, TWO, people, publications
from shoal.domain import Schema
from shoal.entropy import SeededEntropy
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.median import N_BATCHES
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import Paper
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.questions import Above, Cell

PAPER = PaperScript(Paper(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2), STUDY)
BINNED = PaperScript(Paper(Schema(FEATURES[1:], label=TWO.label), 9.0, 300, n_partitions=3, n_subsets=1, subset_size=2), STUDY)
BARE = PaperScript(Paper(TWO, math.inf, 300, n_partitions=2, n_subsets=2, subset_size=2), STUDY)


def test_medians_first_then_a_table_for_each_subset() -> None:
    shown = publications(PAPER)
    assert PAPER.n_phases == N_BATCHES + 1
    assert [type(question) for question in PAPER.questions(0, shown[0])] == [Above]
    tables = PAPER.questions(N_BATCHES, shown[-1])
    assert [tuple(feature.name for feature in table.features) for table in tables if isinstance(table, Cell)] == [
        tuple(TWO.names[j] for j in subset) for part in PAPER.subsets for subset in part
    ]


def test_without_numbers_to_place_there_are_tables_only() -> None:
    assert BINNED.n_phases == 1
    assert BINNED.publish(()) == Publication()
    assert BINNED.prices.keys() == {"table/0"}
    assert BINNED.expected(0) == (0, 0, 0)


def test_everyone_is_in_one_batch_and_in_one_partition() -> None:
    words = draw_words(900, SeededEntropy(1))
    batches = np.stack([PAPER.group_of(phase, words) for phase in range(N_BATCHES)])
    assert ((batches == 0).sum(axis=0) == 1).all()
    assert set(PAPER.group_of(N_BATCHES, words).tolist()) == {0, 1}
    assert PAPER.asked(0, -1) == ()
    assert PAPER.asked(0, 0) == (0,)
    assert [PAPER.asked(N_BATCHES, part) for part in (0, 1)] == [(0, 1), (2, 3)]


def test_all_answers_of_a_person_have_names_of_their_own() -> None:
    for part in (0, 1):
        names = [PAPER.name_of(0, 0), *(PAPER.name_of(N_BATCHES, question) for question in PAPER.asked(N_BATCHES, part))]
        assert sorted(names) == sorted(PAPER.prices)


def test_prices_add_up_to_the_budget_and_cover_every_question() -> None:
    assert sum(grains_up(event.epsilon) for event in PAPER.prices.values()) <= grains_up(9.0)
    assert PAPER.prices["median/age"].reads == ("age",)
    assert PAPER.prices["table/0"].reads == tuple(sorted(PAPER.params.columns))
    for phase, shown in enumerate(publications(PAPER)):
        for number, question in enumerate(PAPER.questions(phase, shown)):
            assert question.mechanism is not None
            assert question.mechanism.event().epsilon <= PAPER.prices[PAPER.name_of(phase, number)].epsilon


def test_the_subsets_follow_from_the_study() -> None:
    again = PaperScript(PAPER.params, STUDY)
    assert again.subsets == PAPER.subsets
    wide = Paper(TWO, 9.0, 300, n_partitions=40, n_subsets=2, subset_size=2)
    assert PaperScript(wide, STUDY).subsets != PaperScript(wide, bytes(32)).subsets


@pytest.mark.parametrize("script", [PAPER, BINNED, BARE])
def test_a_vote_is_learned(script: PaperScript) -> None:
    columns, labels = people(script.params.schema, 8000)
    learned = simulate(script, columns, labels, SeededEntropy(1))
    assert isinstance(learned.model, VoteModel)
    assert (learned.model.decide(columns) == labels).mean() > 0.7
    assert learned.answers[-1] == 8000 * script.params.n_subsets
    assert sum(learned.answers[:-1]) == (8000 if script.n_steps else 0)


@pytest.mark.parametrize("script", [PAPER, BINNED, BARE])
def test_without_answers_every_class_is_as_likely(script: PaperScript) -> None:
    columns, labels = people(script.params.schema, 4)
    learned = simulate(script, {name: column[:0] for name, column in columns.items()}, labels[:0], SeededEntropy(1))
    assert learned.model.probabilities(columns).tolist() == [[0.5, 0.5]] * 4


def test_without_perturbation_the_median_is_found() -> None:
    columns, labels = people(TWO, 30_000)
    columns["age"] = np.where(np.isnan(columns["age"]), 0.0, columns["age"])
    model = simulate(BARE, columns, labels, SeededEntropy(1)).model
    (cut,) = model.schema["age"].bins  # type: ignore[union-attr, misc]
    assert abs(cut - np.median(columns["age"])) < 0.25
