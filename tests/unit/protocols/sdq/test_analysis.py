"""Chances of exposure and largest numbers of counts, compared with full enumerations."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Schema
from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq.analysis import SDQExposure, compute_exposure, compute_max_counts
from shoal.protocols.sdq.naive_bayes import SDQNaiveBayesScript
from shoal.protocols.sdq.paper import MAX_COUNTS, SDQPaperScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.plus import SDQPlusScript, SDQRankedScript
from shoal.protocols.sdq.script import SDQScriptState


def count_colluders_in_pairs(n: int, c: int) -> list[int]:
    """Return the number of colluders (databases 0 to c - 1) in each ordered pair of databases."""
    return [sum(database < c for database in pair) for pair in permutations(range(n), 2)]


@pytest.mark.parametrize(("n", "c"), [(n, c) for n in range(2, 8) for c in range(n + 1)])
def test_exposure_of_one_selection_equals_enumeration(n: int, c: int) -> None:
    found, listed = SDQExposure(n, c), count_colluders_in_pairs(n, c)
    assert [found.none, found.one, found.both] == [
        Fraction(listed.count(k), len(listed)) for k in range(3)
    ]
    assert found.none + found.one + found.both == 1
    assert (found.ever_both, found.ever) == (found.both, found.one + found.both)


@pytest.mark.parametrize(
    ("n", "c", "selections"), [(3, 1, 4), (4, 2, 3), (5, 3, 2), (4, 0, 2), (3, 3, 2)]
)
def test_exposure_of_several_selections_equals_enumeration(n: int, c: int, selections: int) -> None:
    courses = list(product(count_colluders_in_pairs(n, c), repeat=selections))
    found = SDQExposure(n, c, selections)
    assert found.ever_both == Fraction(sum(2 in course for course in courses), len(courses))
    assert found.ever == Fraction(sum(any(course) for course in courses), len(courses))


def test_example_of_paper_covers_both_selected_only() -> None:
    """SDQ §VI-B: 100 of 1,000 databases see about 1 % of the counts.

    The one-sided case is eighteen times as likely.
    """
    found = SDQExposure(1000, 100)
    assert float(found.both) == pytest.approx(0.0099, abs=1e-4) and float(
        found.one
    ) == pytest.approx(0.18, abs=1e-3)


def make_params(*arities: int, **more: Any) -> SDQParams:
    """Return a study of attributes with the given numbers of cells."""
    features = [
        Categorical(f"x{i}", [str(v) for v in range(n)], missing=False)
        for i, n in enumerate(arities)
    ]
    return SDQParams(
        Schema(features, label=Categorical("ill", ["no", "yes"])),
        1.0,
        **{"size": 1000, "max_colluders": 3, **more},
    )


def test_compute_exposure_counts_levels_and_free_counts() -> None:
    two = make_params(2, 2, 2, 2, 2, variant="paper", noise="two-selected", depth=4)
    assert compute_exposure(two) == SDQExposure(10, 3, 5)
    assert compute_exposure(two, n_queries=7) == SDQExposure(10, 3, 12)
    # No path is longer than there are attributes.
    assert compute_exposure(
        make_params(2, 2, variant="paper", noise="two-selected", depth=4)
    ) == SDQExposure(10, 3, 3)


def find_max_counts(script: SDQPaperScript, course: SDQScriptState) -> int:
    """Return the most counts of any continuation of this state, by trying all."""
    asked = script.make_round(course)
    if asked is None:
        return 0
    n, n_attributes = asked.size, len(script.params.arities)
    if not course.leaves:
        n_open = n
        follow = (
            course.replace(step=course.step + 1, leaves=leaves)
            for leaves in product((False, True), repeat=n_open)
        )
    else:
        options = [(-1,) if leaf else range(n_attributes) for leaf in course.leaves]
        follow = (
            course.replace(step=course.step + 1, choices=(*course.choices, *some), leaves=())
            for some in product(*options)
        )
    found = []
    for after in follow:
        with suppress(RemoteProtocolError):
            found.append(find_max_counts(script, after))
    return n + max(found)


@pytest.mark.parametrize(
    ("arities", "depth"), [((3, 2), 4), ((2, 3), 1), ((2, 2, 3), 1), ((4,), 3), ((2, 2), 2)]
)
def test_max_counts_of_paper_equals_enumeration(arities: tuple[int, ...], depth: int) -> None:
    script = SDQPaperScript(make_params(*arities, variant="paper", depth=depth))
    assert compute_max_counts(script) == find_max_counts(script, SDQScriptState())


def test_max_counts_of_paper_is_limited_by_max_counts_per_round() -> None:
    script = SDQPaperScript(make_params(*[100] * 10, variant="paper", depth=10))
    assert 4 * MAX_COUNTS < compute_max_counts(script) < 16 * MAX_COUNTS


def list_total_sizes(script: SDQPlusScript | SDQRankedScript, course: SDQScriptState) -> list[int]:
    """Return the total size of all sums for each continuation of this state."""
    asked = script.make_round(course)
    if asked is None:
        return [0]
    if asked.is_choice:
        answers = [(np.array([position]),) for position in range(asked.size)]
        return [
            rest
            for answer in answers
            for rest in list_total_sizes(script, script.advance(course, answer))
        ]
    return [
        asked.size + rest
        for after in list_next_states(script, course)
        for rest in list_total_sizes(script, after)
    ]


def list_next_states(
    script: SDQPlusScript | SDQRankedScript, course: SDQScriptState
) -> list[SDQScriptState]:
    """Return the states that may follow a sum; tables of all attributes allow any choice."""
    if isinstance(script, SDQPlusScript) or course.step:
        return [course.replace(step=course.step + 1)]
    found = []
    for n in range(len(script.params.arities) + 1):
        for choices in permutations(range(len(script.params.arities)), n):
            with suppress(RemoteProtocolError):
                script.make_round(after := course.replace(step=1, choices=choices))
                found.append(after)
    return found


@pytest.mark.parametrize("size", [30, 300, 3_000, 100_000])
@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("arities", [(2, 2, 3), (4,), (2, 3, 5, 7)])
def test_no_sequence_of_rounds_of_plus_exceeds_max_counts(
    arities: tuple[int, ...], depth: int, size: int
) -> None:
    for script in (
        SDQPlusScript(make_params(*arities, depth=depth, size=size)),
        SDQRankedScript(make_params(*arities, depth=depth, size=size)),
    ):
        found = max(list_total_sizes(script, SDQScriptState()))
        assert found <= compute_max_counts(script)
        # With enough rows for every cell the bound is reached.
        assert size < 100_000 or depth < 8 or found == compute_max_counts(script)


def test_max_counts_of_naive_bayes_is_one_table_per_attribute() -> None:
    assert (
        compute_max_counts(SDQNaiveBayesScript(make_params(2, 3, 5, learner="naive-bayes"))) == 20
    )
