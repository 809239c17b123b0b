"""The choice of the best mechanism: least error, the paper's figure 3, and what is measured about subset selection."""

from __future__ import annotations

import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.calibrate import NAMES, best, mechanism
from shoal.privacy.events import Relation, Scope, Unit

PAPER = ("random-response", "rappor", "pq")
GRID = [(epsilon, m) for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0) for m in (2, 3, 4, 16, 64, 500)]


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_nothing_offered_has_less_error(epsilon, m):
    chosen = best(epsilon, m, 1000)
    assert all(chosen.expected_error(1000) <= mechanism(name, epsilon, m).expected_error(1000) * (1 + 1e-9) for name in NAMES)


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_n_has_no_say(epsilon, m):
    assert best(epsilon, m, 10).name == best(epsilon, m, 10**6).name


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_subset_selection_is_never_worse_than_the_others(epsilon, m):
    assert best(epsilon, m, 1).expected_error(1) >= mechanism("subset-selection", epsilon, m).expected_error(1) * (1 - 1e-12)


def test_figure_3_of_the_paper():
    assert best(1.0, 16, 10_000, among=PAPER).name == "pq"
    assert best(1.0, 64, 10_000, among=PAPER).name == "pq"
    assert best(4.0, 16, 10_000, among=PAPER).name == "random-response"
    assert best(1.0, 2, 10_000, among=PAPER).name == "random-response"


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_pq_is_never_worse_than_rappor(epsilon, m):
    assert mechanism("pq", epsilon, m).expected_error(1) <= mechanism("rappor", epsilon, m).expected_error(1) * (1 + 1e-12)


def test_the_smallest_report_wins_among_equals():
    """Where subset selection chooses sets of one cell, it is random response."""
    assert best(1.0, 2, 100).name == "random-response"
    assert best(8.0, 500, 100).name == "random-response"


def test_the_scope_is_handed_on():
    scope = Scope(Unit.RECORD, Relation.REPLACE, "the aggregator")
    assert best(1.0, 4, 100, scope=scope).event().scope == scope


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(MechanismError, match=r"(?s)MECH-001.*'coin'.*random-response, subset-selection, pq, rappor"):
        mechanism("coin", 1.0, 4)
