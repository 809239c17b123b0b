"""The chances of exposure, held against a list of all that may be selected."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from shoal.domain import Categorical, Schema
from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq.analysis import Exposure, exposure, most_counts
from shoal.protocols.sdq.bayes import BayesScript
from shoal.protocols.sdq.growth import MAX_COUNTS
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.plus import PlusScript
from shoal.protocols.sdq.ranked import RankedScript
from shoal.protocols.sdq.script import Course


def hits(n: int, c: int) -> list[int]:
    """Colluders (databases 0 to c - 1) in every pair of two different databases, the positive one first."""
    return [sum(database < c for database in pair) for pair in permutations(range(n), 2)]


@pytest.mark.parametrize(("n", "c"), [(n, c) for n in range(2, 8) for c in range(n + 1)])
def test_one_selection_by_enumeration(n: int, c: int) -> None:
    found, listed = Exposure(n, c), hits(n, c)
    assert [found.none, found.one, found.both] == [Fraction(listed.count(k), len(listed)) for k in range(3)]
    assert found.none + found.one + found.both == 1
    assert (found.ever_both, found.ever) == (found.both, found.one + found.both)


@pytest.mark.parametrize(("n", "c", "selections"), [(3, 1, 4), (4, 2, 3), (5, 3, 2), (4, 0, 2), (3, 3, 2)])
def test_several_selections_by_enumeration(n: int, c: int, selections: int) -> None:
    courses = list(product(hits(n, c), repeat=selections))
    found = Exposure(n, c, selections)
    assert found.ever_both == Fraction(sum(2 in course for course in courses), len(courses))
    assert found.ever == Fraction(sum(any(course) for course in courses), len(courses))


def test_the_papers_example_is_the_first_case_only() -> None:
    """SDQ §VI-B: 100 of 1,000 databases see about 1 % of the counts; the one-sided case is eighteen times as likely."""
    found = Exposure(1000, 100)
    assert float(found.both) == pytest.approx(0.0099, abs=1e-4) and float(found.one) == pytest.approx(0.18, abs=1e-3)


def params(*arities: int, **more: Any) -> Params:
    """A study of attributes with so many cells."""
    features = [Categorical(f"x{i}", [str(v) for v in range(n)], missing=False) for i, n in enumerate(arities)]
    return Params(Schema(features, label=Categorical("ill", ["no", "yes"])), 1.0, **{"size": 1000, "max_colluders": 3, **more})


def test_a_study_selects_for_every_level_and_every_free_count() -> None:
    two = params(2, 2, 2, 2, 2, variant="paper", noise="two-selected", depth=4)
    assert exposure(two) == Exposure(10, 3, 5)
    assert exposure(two, n_queries=7) == Exposure(10, 3, 12)
    # No path is longer than there are attributes.
    assert exposure(params(2, 2, variant="paper", noise="two-selected", depth=4)) == Exposure(10, 3, 3)


def most_of(script: PaperScript, course: Course) -> int:
    """The most counts of any course that goes on from this one, by trying all."""
    asked = script.round(course)
    if asked is None:
        return 0
    n, n_attributes = asked.size, len(script.params.arities)
    if not course.leaves:
        n_open = n
        follow = (course.replace(step=course.step + 1, leaves=leaves) for leaves in product((False, True), repeat=n_open))
    else:
        options = [(-1,) if leaf else range(n_attributes) for leaf in course.leaves]
        follow = (course.replace(step=course.step + 1, choices=(*course.choices, *some), leaves=()) for some in product(*options))
    found = []
    for after in follow:
        with suppress(RemoteProtocolError):
            found.append(most_of(script, after))
    return n + max(found)


@pytest.mark.parametrize(("arities", "depth"), [((3, 2), 4), ((2, 3), 1), ((2, 2, 3), 1), ((4,), 3), ((2, 2), 2)])
def test_the_most_counts_of_the_papers_tree_by_enumeration(arities: tuple[int, ...], depth: int) -> None:
    script = PaperScript(params(*arities, variant="paper", depth=depth))
    assert most_counts(script) == most_of(script, Course())


def test_a_round_has_a_million_counts_at_most() -> None:
    script = PaperScript(params(*[100] * 10, variant="paper", depth=10))
    assert 4 * MAX_COUNTS < most_counts(script) < 16 * MAX_COUNTS


def rounds_of(script: PlusScript | RankedScript, course: Course) -> list[int]:
    """The sizes of all sums of each course that goes on from this one, by trying all."""
    asked = script.round(course)
    if asked is None:
        return [0]
    if asked.is_choice:
        answers = [(np.array([position]),) for position in range(asked.size)]
        return [rest for answer in answers for rest in rounds_of(script, script.advance(course, answer))]
    return [asked.size + rest for after in follow(script, course) for rest in rounds_of(script, after)]


def follow(script: PlusScript | RankedScript, course: Course) -> list[Course]:
    """What may come after a sum: from the tables of all attributes any may be chosen."""
    if isinstance(script, PlusScript) or course.step:
        return [course.replace(step=course.step + 1)]
    found = []
    for n in range(len(script.params.arities) + 1):
        for choices in permutations(range(len(script.params.arities)), n):
            with suppress(RemoteProtocolError):
                script.round(after := course.replace(step=1, choices=choices))
                found.append(after)
    return found


@pytest.mark.parametrize("size", [30, 300, 3_000, 100_000])
@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("arities", [(2, 2, 3), (4,), (2, 3, 5, 7)])
def test_no_course_of_plus_has_more_counts(arities: tuple[int, ...], depth: int, size: int) -> None:
    for script in (PlusScript(params(*arities, depth=depth, size=size)), RankedScript(params(*arities, depth=depth, size=size))):
        found = max(rounds_of(script, Course()))
        assert found <= most_counts(script)
        # Where there are rows enough for every cell, it is no more than what may be asked.
        assert size < 100_000 or depth < 8 or found == most_counts(script)


def test_naive_bayes_counts_each_attribute_once() -> None:
    assert most_counts(BayesScript(params(2, 3, 5, learner="naive-bayes"))) == 20
