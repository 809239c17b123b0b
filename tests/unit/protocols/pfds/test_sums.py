"""The course of a study with secure sums: what is asked, what is counted, what is learned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_sums import LABELS, NUMBER, THREE, TWO, followed, params_of, parted, rows_of
from shoal.domain import Feature
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array
from shoal.protocols.pfds.fitting import ridge_model
from shoal.protocols.pfds.local import count
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.params import GRID, Ints
from shoal.protocols.pfds.pooling import Tables, tempered
from shoal.protocols.pfds.scoring import LEAST_REACH, LONGEST_REACH, MOST, ONE
from shoal.protocols.pfds.sums import Answers, Course, SumScript


def bare(label: Feature = TWO) -> SumScript:
    return SumScript(params_of(label, epsilon=math.inf))


@pytest.mark.parametrize("figures", [{"minimum": 9}, {"max_colluders": 8}, {"max_colluders": -1}], ids=str)
def test_noise_is_made_for_holders_that_there_are(figures: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="PFDS-005"):
        SumScript(params_of(**figures))


def learned(script: SumScript, seed: int = 1) -> tuple[Answers, list[Course]]:
    courses, answers = zip(*followed(script, rows_of(script.params, seed=seed)), strict=True)
    return answers[:-1], list(courses)


@pytest.mark.parametrize("label", LABELS)
def test_questions_come_in_order_and_end(label: str) -> None:
    script = bare(LABELS[label])
    answers, courses = learned(script)
    assert tuple(script.question(course) for course in courses) == (*script.questions, None)
    assert [len(answer) for answer in answers] == [script.size(question) for question in script.questions]
    assert [course.step for course in courses] == list(range(len(courses)))
    assert len(script.questions) == (1 if label == "three" else 9)


@pytest.mark.parametrize("label", LABELS)
def test_holders_count_together_what_all_rows_count(label: str) -> None:
    script = bare(LABELS[label])
    rows = rows_of(script.params)
    for course, counted in followed(script, rows):
        if script.question(course):
            by_holders = [script.count(course, part) for part in parted(script.params, rows)]
            assert np.sum(by_holders, axis=0).tolist() == counted.tolist()
            assert counted.dtype == np.int64


def test_each_question_counts_all_rows() -> None:
    script = bare()
    answers, _ = learned(script)
    tables, calibration, *_, search = answers
    assert tables.sum() == 5 * 4000 * GRID
    assert calibration.sum() == search.sum() == 4000 * GRID
    assert tables.tolist() == count(script.params, rows_of(script.params), range(5)).tolist()


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_without_noise_the_model_is_nearly_the_best_one(label: Feature) -> None:
    script = bare(label)
    answers, courses = learned(script)
    model = script.model(answers)
    rows = rows_of(script.params, seed=9)
    best = ridge_model(script.params, rows_of(script.params)).scores(rows.cells)[:, 0]
    off = model.scores(rows.cells)[:, 0] - best
    assert off.std() < 0.1 * best.std() and abs(off.mean()) < 0.1 * best.std()
    # The residuals change much of what the tables and the calibration alone say.
    first = courses[2].weights.expect("int64", script.params.n_cells)[rows.cells].sum(axis=1) / ONE
    assert (first - best).std() > 2 * off.std()
    assert np.add.reduceat(model.shares, script.params.starts[:-1]) == pytest.approx(np.ones(5))
    assert from_plain(model.to_plain()).weights.tolist() == model.weights.tolist()


def test_with_more_classes_the_tables_are_all() -> None:
    script = bare(THREE)
    answers, _ = learned(script)
    sums = answers[0].reshape(-1, 3) / GRID
    expected = tempered(script.params, Tables.of(script.params, sums, np.zeros(5)))
    assert script.model(answers).weights == pytest.approx(expected.weights)
    rows = rows_of(script.params, seed=9)
    decided = np.argmax(script.model(answers).scores(rows.cells), axis=1)
    assert (decided == np.argmax(rows.sides, axis=1)).mean() > 0.75


@pytest.mark.parametrize(("epsilon", "n_questions"), [(0.2, 2), (1.0, 4)])
def test_where_rounds_do_not_pay_the_calibrated_score_is_the_model(epsilon: float, n_questions: int) -> None:
    script = SumScript(params_of(epsilon=epsilon))
    answers, courses = learned(script)
    assert len(script.questions) == n_questions
    model = script.model(answers)
    rows = rows_of(script.params, seed=9)
    right = (model.scores(rows.cells)[:, 0] > 0) == (rows.sides[:, 1] > 0)
    assert right.mean() > 0.78
    assert (model.variances > 0).all()
    assert courses[-1].replace(step=n_questions - 1) == courses[-2]


def test_totals_are_those_of_the_noisy_tables() -> None:
    """Twice the rows are the same model, whatever size was declared, but for less noise."""
    script = bare()
    answers, courses = learned(script)
    doubled = tuple(2 * answer for answer in answers)
    assert script.model(doubled).weights == pytest.approx(script.model(answers).weights, rel=0.02, abs=0.02)
    assert script.advance(courses[0], doubled[:1]) == courses[1]


def changed(course: Course, **changes: object) -> Course:
    return course.replace(**{name: Array.of(value) if isinstance(value, np.ndarray) else value for name, value in changes.items()})


def full(value: int, n: int = 16) -> Ints:
    return np.full(n, value, np.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 10},
        {"weights": full(0, 15)},
        {"direction": full(0, 17)},
        {"weights": full(0).astype(np.int32)},
        {"weights": full(MOST * ONE + 1)},
        {"direction": full(-MOST * ONE - 1)},
        {"weights": np.array([*[0] * 15, -(1 << 63)])},
        {"intercept": MOST * ONE + 1},
        {"intercept": -(10**30)},
        {"reaches": (LEAST_REACH - 1, LEAST_REACH)},
        {"reaches": (LEAST_REACH, -5)},
        {"reaches": (LONGEST_REACH, LONGEST_REACH + 1)},
    ],
)
def test_a_course_that_one_cannot_count_with_is_refused(changes: dict[str, object]) -> None:
    script = bare()
    assert script.params.n_cells == 16
    course = changed(script.start, **changes)
    with pytest.raises(RemoteProtocolError) as caught:
        script.question(course)
    assert caught.value.code in ("PFDS-002", "MSG-005")
    with pytest.raises(RemoteProtocolError):
        script.count(course, rows_of(script.params, 5))


def test_a_course_at_its_bounds_is_counted_with() -> None:
    script = bare()
    course = changed(
        script.start, weights=full(MOST * ONE), direction=full(-MOST * ONE), intercept=MOST * ONE, reaches=(LEAST_REACH, LONGEST_REACH)
    )
    for step in range(len(script.questions)):
        assert script.count(course.replace(step=step), rows_of(script.params, 5)).any()
    assert script.question(course.replace(step=9)) is None


def test_a_deviation_is_that_of_all_holders_shares() -> None:
    script = SumScript(params_of(max_colluders=4))
    mechanism = script.mechanism("calibration")
    assert mechanism is not None
    assert script.deviation("calibration") == pytest.approx(math.sqrt(2 * mechanism.variance()) / GRID)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_one_bin_beyond_all_measure_drowns_nothing_else(label: Feature) -> None:
    script = bare(label)
    answers, _ = learned(script)
    for place, number in ((1, 31), (8, 199), (8, 21)):
        lone = np.zeros_like(answers[place])
        lone[number] = (1 << 63) - 1
        heard = (*answers[:place], lone, *answers[place + 1 :])
        assert np.isfinite(script.model(heard).weights).all()
        # A single bin cannot tell the scale of a score from its intercept: much of what was thought of both stays.
        assert np.abs(script.model(heard).intercepts).max() < 30
