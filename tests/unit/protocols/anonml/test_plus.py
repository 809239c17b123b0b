"""The script of variant plus: shares, prices, what is asked, and what is learned from what little came in."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from anonml_cases import FEATURES, STUDIES, STUDY, TWO, people, publications, script_of, ticket
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words, words_of
from shoal.protocols.anonml.messages import Publication
from shoal.protocols.anonml.params import Plus
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.questions import Above, Agree, Block, Cell, LabelIs, Side
from shoal.protocols.anonml.script import Tallies

PLUS = [name for name, params in STUDIES.items() if isinstance(params, Plus)]


def plus(name: str) -> PlusScript:
    script = script_of(name)
    assert isinstance(script, PlusScript)
    return script


def silence(script: PlusScript) -> Tallies:
    """Nobody answers anything."""
    tallies: Tallies = ()
    for phase in range(script.n_phases):
        tallies = (*tallies, tuple(question.empty() for question in script.questions(phase, script.publish(tallies))))
    return tallies


@pytest.mark.parametrize("name", PLUS)
def test_shares_add_up_to_everyone_and_every_question_has_one(name: str) -> None:
    script = plus(name)
    assert sum(slot.share for slot in script.slots) == Fraction(1)
    assert all(slot.share > 0 for slot in script.slots)
    for phase, publication in enumerate(publications(script)):
        asked = [slot.question for slot in script.slots if slot.phase == phase]
        assert asked == list(range(len(script.questions(phase, publication))))


@pytest.mark.parametrize("name", PLUS)
def test_everyone_has_one_question_in_one_phase(name: str) -> None:
    script = plus(name)
    words = draw_words(2000, SeededEntropy(1))
    groups = np.stack([script.group_of(phase, words) for phase in range(script.n_phases)])
    assert ((groups >= 0).sum(axis=0) == 1).all()
    assert script.group_of(0, words_of(STUDY, ticket(1))).shape == (1,)
    assert script.asked(0, -1) == ()
    assert script.asked(0, 1) == (1,)


@pytest.mark.parametrize("name", PLUS)
def test_one_answer_costs_no_more_than_the_budget_and_no_less_than_any_question(name: str) -> None:
    script = plus(name)
    (price,) = script.prices.values()
    assert price.epsilon <= script.params.epsilon
    assert price.reads == tuple(sorted(script.params.columns))
    for phase, publication in enumerate(publications(script)):
        for number, question in enumerate(script.questions(phase, publication)):
            assert question.mechanism is not None
            assert question.mechanism.event().epsilon <= price.epsilon
            assert script.name_of(phase, number) in script.prices


@pytest.mark.parametrize("name", [name for name in PLUS if name != "shuffled"])
def test_any_number_of_cuts_that_a_peer_takes_is_covered_by_the_price(name: str) -> None:
    script = plus(name)
    main = script.n_phases - 1 - bool(script.rule.blocks)
    for n in range(1, script.max_cuts(script.params.unbinned[0]) + 1):
        publication = Publication(cuts=(tuple(i / n * 9 for i in range(n)),))
        script.check(main, publication)
        for question in script.questions(main, publication):
            assert question.mechanism is not None
            assert question.n_cells == question.mechanism.cardinality
            assert question.mechanism.event().epsilon <= script.prices["answer"].epsilon


def kinds(name: str) -> list[set[type]]:
    script = plus(name)
    return [{type(question) for question in script.questions(phase, shown)} for phase, shown in enumerate(publications(script))]


def test_what_is_asked_in_each_phase() -> None:
    assert kinds("bits") == [{Above}] * 12 + [{Side, Agree, Cell}]
    assert kinds("tables") == kinds("grids") == kinds("classes") == [{Above}] * 12 + [{Cell}]
    assert kinds("blocks") == [{Above}] * 12 + [{Cell}, {Block}]
    assert kinds("shuffled") == [{Cell}]


def test_where_nearly_all_is_asked_by_bits_some_are_asked_for_the_label() -> None:
    script = PlusScript(Plus(Schema(FEATURES[:3], label=TWO.label), 1.0, 300))
    assert {type(question) for question in script.questions(12, Publication(cuts=((4.0,),)))} == {Side, Agree, LabelIs}
    assert sum(slot.share for slot in script.slots) == 1


def test_at_a_small_budget_a_number_is_asked_about_by_its_middle_cut_alone() -> None:
    declared = Schema([Numeric("age", 0, 10, bins=[2, 5, 7]), Numeric("flat", 0, 1, bins=[])], label=TWO.label)
    script = PlusScript(Plus(declared, 1.0, 300))
    asked = script.questions(0, script.publish(()))
    assert [getattr(question, "feature", None) for question in asked if isinstance(question, Side)] == [
        Numeric("age", 0, 10, bins=[5])
    ] * 2  # fmt: skip
    learned = simulate(script, *people(declared, 300), SeededEntropy(1))
    assert learned.model.schema["age"].n_bins == 3
    assert PlusScript(Plus(declared, 2.0, 300)).schema == declared


@pytest.mark.parametrize("name", PLUS)
def test_from_silence_nothing_is_learned_and_nothing_breaks(name: str) -> None:
    script = plus(name)
    model = script.learn(silence(script), SeededEntropy(1))
    columns, _ = people(script.params.schema, 9)
    assert np.allclose(model.probabilities(columns), 1 / script.params.n_labels)


@pytest.mark.parametrize("name", PLUS)
def test_where_nobody_places_the_quantiles_the_cuts_are_public_ones(name: str) -> None:
    script = plus(name)
    shown = script.publish(silence(script)[: script.n_phases - 1 - bool(script.rule.blocks)])
    for phase in range(script.n_steps):
        script.check(phase, script.publish(silence(script)[:phase]))
    script.check(script.n_phases - 1 - bool(script.rule.blocks), shown)


@pytest.mark.parametrize("name", PLUS)
def test_what_is_said_loudly_is_learned(name: str) -> None:
    script = plus(name)
    columns, labels = people(script.params.schema, 20_000)
    learned = simulate(script, columns, labels, SeededEntropy(2))
    decided = learned.model.decide(columns)
    assert sum(learned.answers) == 20_000
    assert (decided == labels).mean() > 1.5 / script.params.n_labels


def test_a_missing_number_scores_as_its_low_side_does_where_bits_were_asked() -> None:
    script = plus("bits")
    model = simulate(script, *people(TWO, 5000), SeededEntropy(1)).model
    score: Any = model.scores[0]  # type: ignore[attr-defined]
    assert score.shape == (2, 3)
    assert score[:, 2].tolist() == score[:, 0].tolist()


def test_one_class_alone_can_be_learned_from() -> None:
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
    "categories": [Categorical(f"a{i}", ["u", "v", "w"][: 2 + i % 2], missing=bool(i % 3)) for i in range(6)],
    "declared": [Numeric(f"a{i}", -5, 5, bins=list(range(-i, i)), missing=bool(i % 2)) for i in range(4)],
}


@pytest.mark.untraced
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 8.0, 30.0])
@pytest.mark.parametrize("edge", EDGES)
def test_small_worlds(edge: str, epsilon: float) -> None:
    for n_labels, size in ((2, 1), (2, 10**6), (20, 1000)):
        schema = Schema(EDGES[edge], label=Categorical("y", [f"c{i}" for i in range(n_labels)], missing=False))
        script = PlusScript(Plus(schema, epsilon, size))
        for n in (0, 1, 40):
            columns, labels = people(schema, n)
            model = simulate(script, columns, labels, SeededEntropy(n)).model
            chances = model.probabilities(columns)
            assert chances.shape == (n, n_labels)
            assert np.allclose(chances.sum(axis=1), 1)
