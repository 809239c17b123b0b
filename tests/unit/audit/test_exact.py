"""Every report of every question of small studies, with its exact chance: no two rows differ by more than the price."""

from __future__ import annotations

from itertools import combinations

import pytest

from shoal.audit.peers import Stage, open_phases, supports
from shoal.mechanisms.exact import log_up
from shoal.mechanisms.response import RandomResponse
from shoal.privacy.accountant import sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.population import make_script
from shoal.protocols.anonml.questions import Above, Agree, Block, Cell, LabelIs, Side
from shoal.study.anonml import params_of
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from statistical.report_laws import KINDS, law
from unit.audit.small_studies import STUDIES

MOST_CELLS = 9
"""A set of more cells has too many forms to list; the same mechanisms over fewer cells stand for it."""


def script_of(name):
    study = STUDIES[name]
    return make_script(params_of(study), Manifest(study).digest)


def encoded_law(mechanism, cell):
    """Encoded report -> its exact chance, for a person in a cell."""
    is_cell = isinstance(mechanism, RandomResponse)
    width = (mechanism.cardinality + 7) // 8
    chances = law(mechanism, cell)
    encoded = {mechanism.encode(output if is_cell else output.to_bytes(width, "little")): chance for output, chance in chances.items()}
    assert len(encoded) == len(chances)
    return encoded


def questions_of(name):
    script = script_of(name)
    return [(script.name_of(ask.phase, i), question) for ask, asked in open_phases(bytes(32), script) for i, question in enumerate(asked)]


@pytest.mark.parametrize("name", STUDIES)
def test_no_pair_of_cells_is_told_apart_by_more_than_the_price(name):
    prices = script_of(name).prices
    seen = set()
    for asked, question in questions_of(name):
        mechanism = question.mechanism
        key = (asked, mechanism.name, mechanism.cardinality)
        if key in seen or (mechanism.cardinality > MOST_CELLS and not isinstance(mechanism, RandomResponse)):
            continue
        seen.add(key)
        assert mechanism.cardinality == question.n_cells
        laws = [encoded_law(mechanism, cell) for cell in range(question.n_cells)]
        assert {sum(one.values()) for one in laws} == {1}
        chances = [[one[report] for one in laws] for report in laws[0]]
        worst = max(max(of_report) / min(of_report) for of_report in chances)
        assert log_up(worst) <= prices[asked].epsilon
    assert seen


def test_every_kind_of_question_and_mechanism_was_looked_at():
    questions = [question for name in STUDIES for _, question in questions_of(name)]
    listed = [question for question in questions if question.n_cells <= MOST_CELLS or isinstance(question.mechanism, RandomResponse)]
    assert {type(question) for question in listed} == {Above, Agree, Block, Cell, LabelIs, Side}
    assert {question.mechanism.name for question in listed} == {"random-response", "subset-selection", "pq"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_difference_of_two_supports_is_all_that_a_report_tells_about_two_cells(kind):
    """The ratio of its chances is the worst one, its inverse, or 1: so sums of differences lose nothing of several answers."""
    mechanism = kind(0.8, 6)
    laws = [encoded_law(mechanism, cell) for cell in range(6)]
    for encoded in laws[0]:
        report = mechanism.decode(encoded)
        for one, other in combinations(range(6), 2):
            difference = supports(report, one) - supports(report, other)
            assert laws[one][encoded] / laws[other][encoded] == mechanism.worst_ratio**difference


@pytest.mark.parametrize("name", STUDIES)
def test_the_ledger_after_a_run_holds_the_figure_of_the_label(name, entropy):
    study = STUDIES[name]
    loss, script = make_plan(study).loss, script_of(name)
    assert make_plan(study).statement().epsilon == loss.epsilon == sequential(list(script.prices.values())).epsilon
    for row in range(3):
        assert Stage(Manifest(study).digest, script).draw(row, 3, entropy).charged == grains_up(loss.epsilon)
