"""Choice of the mechanism with least error, and figure 3 of the paper."""

from __future__ import annotations

import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.calibrate import MECHANISM_NAMES, choose_mechanism, make_mechanism
from shoal.privacy.events import Relation, Scope, Unit

PAPER = ("random-response", "rappor", "pq")
GRID = [(epsilon, m) for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0) for m in (2, 3, 4, 16, 64, 500)]


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_chosen_mechanism_has_least_error(epsilon, m):
    chosen = choose_mechanism(epsilon, m, 1000)
    assert all(
        chosen.expected_error(1000)
        <= make_mechanism(name, epsilon, m).expected_error(1000) * (1 + 1e-9)
        for name in MECHANISM_NAMES
    )


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_choice_does_not_depend_on_n(epsilon, m):
    assert choose_mechanism(epsilon, m, 10).name == choose_mechanism(epsilon, m, 10**6).name


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_subset_selection_is_never_worse_than_others(epsilon, m):
    assert choose_mechanism(epsilon, m, 1).expected_error(1) >= make_mechanism(
        "subset-selection", epsilon, m
    ).expected_error(1) * (1 - 1e-12)


def test_choices_match_figure_3_of_paper():
    assert choose_mechanism(1.0, 16, 10_000, among=PAPER).name == "pq"
    assert choose_mechanism(1.0, 64, 10_000, among=PAPER).name == "pq"
    assert choose_mechanism(4.0, 16, 10_000, among=PAPER).name == "random-response"
    assert choose_mechanism(1.0, 2, 10_000, among=PAPER).name == "random-response"


@pytest.mark.parametrize(("epsilon", "m"), GRID)
def test_pq_is_never_worse_than_rappor(epsilon, m):
    assert make_mechanism("pq", epsilon, m).expected_error(1) <= make_mechanism(
        "rappor", epsilon, m
    ).expected_error(1) * (1 + 1e-12)


def test_smallest_report_is_chosen_among_equals():
    """Subset selection with sets of one cell is randomised response."""
    assert choose_mechanism(1.0, 2, 100).name == "random-response"
    assert choose_mechanism(8.0, 500, 100).name == "random-response"


def test_scope_is_passed_to_mechanism():
    scope = Scope(Unit.RECORD, Relation.REPLACE, "the aggregator")
    assert choose_mechanism(1.0, 4, 100, scope=scope).event().scope == scope


def test_unknown_name_is_rejected_with_list():
    with pytest.raises(
        MechanismError, match=r"(?s)MECH-001.*'coin'.*random-response, subset-selection, pq, rappor"
    ):
        make_mechanism("coin", 1.0, 4)
