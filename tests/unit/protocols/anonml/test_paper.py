"""The script of variant paper: partitions, medians, prices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Schema
from shoal.entropy import SeededEntropy
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import AnonMLPaperParams
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.quantiles import N_MEDIAN_BATCHES
from shoal.protocols.anonml.questions import AboveQuestion, CellQuestion
from tests.support.anonml import FEATURES, STUDY, TWO, people, publications

PAPER = AnonMLPaperScript(
    AnonMLPaperParams(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2), STUDY
)
BINNED = AnonMLPaperScript(
    AnonMLPaperParams(
        Schema(FEATURES[1:], label=TWO.label), 9.0, 300, n_partitions=3, n_subsets=1, subset_size=2
    ),
    STUDY,
)
BARE = AnonMLPaperScript(
    AnonMLPaperParams(TWO, math.inf, 300, n_partitions=2, n_subsets=2, subset_size=2), STUDY
)


def test_paper_script_asks_medians_then_tables() -> None:
    shown = publications(PAPER)
    assert PAPER.n_phases == N_MEDIAN_BATCHES + 1
    assert [type(question) for question in PAPER.questions(0, shown[0])] == [AboveQuestion]
    tables = PAPER.questions(N_MEDIAN_BATCHES, shown[-1])
    assert [
        tuple(feature.name for feature in table.features)
        for table in tables
        if isinstance(table, CellQuestion)
    ] == [tuple(TWO.names[j] for j in subset) for part in PAPER.subsets for subset in part]


def test_paper_script_without_unbinned_numbers_asks_tables_only() -> None:
    assert BINNED.n_phases == 1
    assert BINNED.publish(()) == AnonMLPublication()
    assert BINNED.prices.keys() == {"table/0"}
    assert BINNED.publication_sizes(0) == (0, 0, 0)


def test_paper_script_assigns_one_batch_and_one_partition() -> None:
    words = draw_words(900, SeededEntropy(1))
    batches = np.stack([PAPER.assign_groups(phase, words) for phase in range(N_MEDIAN_BATCHES)])
    assert ((batches == 0).sum(axis=0) == 1).all()
    assert set(PAPER.assign_groups(N_MEDIAN_BATCHES, words).tolist()) == {0, 1}
    assert PAPER.list_question_numbers(0, -1) == ()
    assert PAPER.list_question_numbers(0, 0) == (0,)
    assert [PAPER.list_question_numbers(N_MEDIAN_BATCHES, part) for part in (0, 1)] == [
        (0, 1),
        (2, 3),
    ]


def test_question_names_of_person_are_different() -> None:
    for part in (0, 1):
        names = [
            PAPER.question_name(0, 0),
            *(
                PAPER.question_name(N_MEDIAN_BATCHES, question)
                for question in PAPER.list_question_numbers(N_MEDIAN_BATCHES, part)
            ),
        ]
        assert sorted(names) == sorted(PAPER.prices)


def test_prices_sum_to_budget_and_cover_every_question() -> None:
    assert sum(grains_up(event.epsilon) for event in PAPER.prices.values()) <= grains_up(9.0)
    assert PAPER.prices["median/age"].reads == ("age",)
    assert PAPER.prices["table/0"].reads == tuple(sorted(PAPER.params.columns))
    for phase, shown in enumerate(publications(PAPER)):
        for number, question in enumerate(PAPER.questions(phase, shown)):
            assert question.mechanism is not None
            assert (
                question.mechanism.event().epsilon
                <= PAPER.prices[PAPER.question_name(phase, number)].epsilon
            )


def test_subsets_follow_from_study_digest() -> None:
    again = AnonMLPaperScript(PAPER.params, STUDY)
    assert again.subsets == PAPER.subsets
    wide = AnonMLPaperParams(TWO, 9.0, 300, n_partitions=40, n_subsets=2, subset_size=2)
    assert AnonMLPaperScript(wide, STUDY).subsets != AnonMLPaperScript(wide, bytes(32)).subsets


@pytest.mark.parametrize("script", [PAPER, BINNED, BARE])
def test_learn_returns_vote_model(script: AnonMLPaperScript) -> None:
    columns, labels = people(script.params.schema, 8000)
    learned = simulate(script, columns, labels, SeededEntropy(1))
    assert isinstance(learned.model, VoteModel)
    assert (learned.model.decide(columns) == labels).mean() > 0.7
    assert learned.answers[-1] == 8000 * script.params.n_subsets
    assert sum(learned.answers[:-1]) == (8000 if script.n_steps else 0)


@pytest.mark.parametrize("script", [PAPER, BINNED, BARE])
def test_learn_without_answers_gives_equal_probabilities(script: AnonMLPaperScript) -> None:
    columns, labels = people(script.params.schema, 4)
    learned = simulate(
        script, {name: column[:0] for name, column in columns.items()}, labels[:0], SeededEntropy(1)
    )
    assert learned.model.probabilities(columns).tolist() == [[0.5, 0.5]] * 4


def test_noiseless_script_finds_median() -> None:
    columns, labels = people(TWO, 30_000)
    columns["age"] = np.where(np.isnan(columns["age"]), 0.0, columns["age"])
    model = simulate(BARE, columns, labels, SeededEntropy(1)).model
    (cut,) = model.schema["age"].bins  # type: ignore[union-attr, misc]
    assert abs(cut - np.median(columns["age"])) < 0.25
