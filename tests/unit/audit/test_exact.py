"""Exact probabilities of all reports of small studies: no ratio is above the price."""

from __future__ import annotations

from itertools import combinations

import pytest

from shoal.audit.anonml import AnonMLAuditHarness, open_phases, supports
from shoal.mechanisms.exact import log_up
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.questions import (
    AboveQuestion,
    AgreementQuestion,
    BlockQuestion,
    CellQuestion,
    LabelQuestion,
    SideQuestion,
)
from shoal.protocols.anonml.variants import make_script
from shoal.study.anonml import build_params
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from tests.statistical.frequency_oracle_distributions import KINDS, enumerate_outputs
from tests.unit.audit.small_studies import STUDIES

MAX_CELLS = 9
"""A set of more cells has too many forms to list; the same mechanisms over fewer cells stand for
it.
"""


def build_named_script(name):
    study = STUDIES[name]
    return make_script(build_params(study), Manifest(study).digest)


def encoded_law(mechanism, cell):
    """Return encoded report -> its exact probability, for a person in a cell."""
    is_cell = isinstance(mechanism, RandomizedResponse)
    width = (mechanism.cardinality + 7) // 8
    chances = enumerate_outputs(mechanism, cell)
    encoded = {
        mechanism.encode(output if is_cell else output.to_bytes(width, "little")): chance
        for output, chance in chances.items()
    }
    assert len(encoded) == len(chances)
    return encoded


def list_questions(name):
    script = build_named_script(name)
    return [
        (script.question_name(ask.phase, i), question)
        for ask, asked in open_phases(bytes(32), script)
        for i, question in enumerate(asked)
    ]


@pytest.mark.parametrize("name", STUDIES)
def test_privacy_loss_of_each_pair_of_cells_is_at_most_the_price(name):
    prices = build_named_script(name).prices
    seen = set()
    for asked, question in list_questions(name):
        mechanism = question.mechanism
        key = (asked, mechanism.name, mechanism.cardinality)
        if key in seen or (
            mechanism.cardinality > MAX_CELLS and not isinstance(mechanism, RandomizedResponse)
        ):
            continue
        seen.add(key)
        assert mechanism.cardinality == question.n_cells
        laws = [encoded_law(mechanism, cell) for cell in range(question.n_cells)]
        assert {sum(one.values()) for one in laws} == {1}
        chances = [[one[report] for one in laws] for report in laws[0]]
        worst = max(max(of_report) / min(of_report) for of_report in chances)
        assert log_up(worst) <= prices[asked].epsilon
    assert seen


def test_all_kinds_of_questions_and_mechanisms_are_enumerated():
    questions = [question for name in STUDIES for _, question in list_questions(name)]
    listed = [
        question
        for question in questions
        if question.n_cells <= MAX_CELLS or isinstance(question.mechanism, RandomizedResponse)
    ]
    assert {type(question) for question in listed} == {
        AboveQuestion,
        AgreementQuestion,
        BlockQuestion,
        CellQuestion,
        LabelQuestion,
        SideQuestion,
    }
    assert {question.mechanism.name for question in listed} == {
        "random-response",
        "subset-selection",
        "pq",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_difference_of_two_supports_is_sufficient_for_two_cells(kind):
    """The ratio of probabilities is the worst one, its inverse, or 1.

    So sums of differences lose no information of several answers.
    """
    mechanism = kind(0.8, 6)
    laws = [encoded_law(mechanism, cell) for cell in range(6)]
    for encoded in laws[0]:
        report = mechanism.decode(encoded)
        for one, other in combinations(range(6), 2):
            difference = supports(report, one) - supports(report, other)
            assert laws[one][encoded] / laws[other][encoded] == mechanism.worst_ratio**difference


@pytest.mark.parametrize("name", STUDIES)
def test_ledger_after_a_run_has_the_epsilon_of_the_label(name, entropy):
    study = STUDIES[name]
    loss, script = make_plan(study).loss, build_named_script(name)
    assert (
        make_plan(study).make_statement().epsilon
        == loss.epsilon
        == compose_sequential(list(script.prices.values())).epsilon
    )
    for row in range(3):
        assert AnonMLAuditHarness(Manifest(study).digest, script).draw(
            row, 3, entropy
        ).charge == grains_up(loss.epsilon)
