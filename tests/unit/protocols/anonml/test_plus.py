"""The script of variant plus: shares, prices, questions, and learning from few answers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words, ticket_words
from shoal.protocols.anonml.messages import AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.questions import (
    AboveQuestion,
    AgreementQuestion,
    BlockQuestion,
    CellQuestion,
    LabelQuestion,
    SideQuestion,
)
from shoal.protocols.anonml.script import Tallies
from tests.support.anonml import (
    FEATURES,
    STUDIES,
    STUDY,
    TWO,
    build_named_script,
    people,
    publications,
    ticket,
)

PLUS = [name for name, params in STUDIES.items() if isinstance(params, AnonMLPlusParams)]


def plus(name: str) -> AnonMLPlusScript:
    script = build_named_script(name)
    assert isinstance(script, AnonMLPlusScript)
    return script


def silence(script: AnonMLPlusScript) -> Tallies:
    """Return tallies without answers."""
    tallies: Tallies = ()
    for phase in range(script.n_phases):
        tallies = (
            *tallies,
            tuple(
                question.make_empty_tally()
                for question in script.questions(phase, script.publish(tallies))
            ),
        )
    return tallies


@pytest.mark.parametrize("name", PLUS)
def test_slot_shares_sum_to_one_and_cover_every_question(name: str) -> None:
    script = plus(name)
    assert sum(slot.share for slot in script.slots) == Fraction(1)
    assert all(slot.share > 0 for slot in script.slots)
    for phase, publication in enumerate(publications(script)):
        asked = [slot.question for slot in script.slots if slot.phase == phase]
        assert asked == list(range(len(script.questions(phase, publication))))


@pytest.mark.parametrize("name", PLUS)
def test_each_person_has_one_question_in_one_phase(name: str) -> None:
    script = plus(name)
    words = draw_words(2000, SeededEntropy(1))
    groups = np.stack([script.assign_groups(phase, words) for phase in range(script.n_phases)])
    assert ((groups >= 0).sum(axis=0) == 1).all()
    assert script.assign_groups(0, ticket_words(STUDY, ticket(1))).shape == (1,)
    assert script.list_question_numbers(0, -1) == ()
    assert script.list_question_numbers(0, 1) == (1,)


@pytest.mark.parametrize("name", PLUS)
def test_price_equals_budget_and_covers_every_question(name: str) -> None:
    script = plus(name)
    (price,) = script.prices.values()
    assert price.epsilon <= script.params.epsilon
    assert price.reads == tuple(sorted(script.params.columns))
    for phase, publication in enumerate(publications(script)):
        for number, question in enumerate(script.questions(phase, publication)):
            assert question.mechanism is not None
            assert question.mechanism.event().epsilon <= price.epsilon
            assert script.question_name(phase, number) in script.prices


@pytest.mark.parametrize("name", [name for name in PLUS if name != "shuffled"])
def test_price_covers_every_accepted_number_of_cuts(name: str) -> None:
    script = plus(name)
    main = script.n_phases - 1 - bool(script.rule.blocks)
    for n in range(1, script.max_cuts(script.params.unbinned[0]) + 1):
        publication = AnonMLPublication(cuts=(tuple(i / n * 9 for i in range(n)),))
        script.check_publication(main, publication)
        for question in script.questions(main, publication):
            assert question.mechanism is not None
            assert question.n_cells == question.mechanism.cardinality
            assert question.mechanism.event().epsilon <= script.prices["answer"].epsilon


def kinds(name: str) -> list[set[type]]:
    script = plus(name)
    return [
        {type(question) for question in script.questions(phase, shown)}
        for phase, shown in enumerate(publications(script))
    ]


def test_questions_of_each_phase_follow_rule() -> None:
    assert kinds("bits") == [{AboveQuestion}] * 12 + [
        {SideQuestion, AgreementQuestion, CellQuestion}
    ]
    assert (
        kinds("tables")
        == kinds("grids")
        == kinds("classes")
        == [{AboveQuestion}] * 12 + [{CellQuestion}]
    )
    assert kinds("blocks") == [{AboveQuestion}] * 12 + [{CellQuestion}, {BlockQuestion}]
    assert kinds("shuffled") == [{CellQuestion}]


def test_label_is_asked_if_nearly_all_features_use_bits() -> None:
    script = AnonMLPlusScript(AnonMLPlusParams(Schema(FEATURES[:3], label=TWO.label), 1.0, 300))
    assert {
        type(question) for question in script.questions(12, AnonMLPublication(cuts=((4.0,),)))
    } == {
        SideQuestion,
        AgreementQuestion,
        LabelQuestion,
    }
    assert sum(slot.share for slot in script.slots) == 1


def test_small_budget_reduces_number_to_middle_cut() -> None:
    declared = Schema(
        [Numeric("age", 0, 10, bins=[2, 5, 7]), Numeric("flat", 0, 1, bins=[])], label=TWO.label
    )
    script = AnonMLPlusScript(AnonMLPlusParams(declared, 1.0, 300))
    asked = script.questions(0, script.publish(()))
    assert [
        getattr(question, "feature", None)
        for question in asked
        if isinstance(question, SideQuestion)
    ] == [Numeric("age", 0, 10, bins=[5])] * 2
    learned = simulate(script, *people(declared, 300), SeededEntropy(1))
    assert learned.model.schema["age"].n_bins == 3
    assert AnonMLPlusScript(AnonMLPlusParams(declared, 2.0, 300)).schema == declared


@pytest.mark.parametrize("name", PLUS)
def test_learn_without_answers_gives_neutral_model(name: str) -> None:
    script = plus(name)
    model = script.learn(silence(script), SeededEntropy(1))
    columns, _ = people(script.params.schema, 9)
    assert np.allclose(model.probabilities(columns), 1 / script.params.n_labels)


@pytest.mark.parametrize("name", PLUS)
def test_cuts_without_placing_answers_are_public(name: str) -> None:
    script = plus(name)
    shown = script.publish(silence(script)[: script.n_phases - 1 - bool(script.rule.blocks)])
    for phase in range(script.n_steps):
        script.check_publication(phase, script.publish(silence(script)[:phase]))
    script.check_publication(script.n_phases - 1 - bool(script.rule.blocks), shown)


@pytest.mark.parametrize("name", PLUS)
def test_learn_finds_strong_association(name: str) -> None:
    script = plus(name)
    columns, labels = people(script.params.schema, 20_000)
    learned = simulate(script, columns, labels, SeededEntropy(2))
    decided = learned.model.decide(columns)
    assert sum(learned.answers) == 20_000
    assert (decided == labels).mean() > 1.5 / script.params.n_labels


def test_missing_number_scores_as_low_side_of_bits() -> None:
    script = plus("bits")
    model = simulate(script, *people(TWO, 5000), SeededEntropy(1)).model
    score: Any = model.scores[0]  # type: ignore[attr-defined]
    assert score.shape == (2, 3)
    assert score[:, 2].tolist() == score[:, 0].tolist()


def test_learn_accepts_single_class() -> None:
    for name in PLUS:
        script = plus(name)
        columns, _ = people(script.params.schema, 3000)
        model = simulate(script, columns, np.ones(3000, np.int64), SeededEntropy(1)).model
        assert np.isfinite(model.probabilities(columns)).all()
        assert (model.decide(columns) == 1).mean() > 0.9


EDGES = {
    "one number": [Numeric("a", 0, 1)],
    "one bin": [Numeric("a", 0, 1, bins=[], missing=False)],
    "one bin and missing": [Numeric("a", 0, 1, bins=[])],
    "a tiny and a huge range": [Numeric("a", 0, 5e-324), Numeric("b", -1e300, 1e300)],
    "categories": [
        Categorical(f"a{i}", ["u", "v", "w"][: 2 + i % 2], missing=bool(i % 3)) for i in range(6)
    ],
    "declared": [
        Numeric(f"a{i}", -5, 5, bins=list(range(-i, i)), missing=bool(i % 2)) for i in range(4)
    ],
}


@pytest.mark.untraced
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 8.0, 30.0])
@pytest.mark.parametrize("edge", EDGES)
def test_plus_script_accepts_smallest_studies(edge: str, epsilon: float) -> None:
    for n_labels, size in ((2, 1), (2, 10**6), (20, 1000)):
        schema = Schema(
            EDGES[edge], label=Categorical("y", [f"c{i}" for i in range(n_labels)], missing=False)
        )
        script = AnonMLPlusScript(AnonMLPlusParams(schema, epsilon, size))
        for n in (0, 1, 40):
            columns, labels = people(schema, n)
            model = simulate(script, columns, labels, SeededEntropy(n)).model
            chances = model.probabilities(columns)
            assert chances.shape == (n, n_labels)
            assert np.allclose(chances.sum(axis=1), 1)
