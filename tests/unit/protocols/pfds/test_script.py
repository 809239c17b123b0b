"""The script of secure sums: questions, counts, and the learned model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Feature
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array
from shoal.protocols.pfds.fitting import fit_ridge_model
from shoal.protocols.pfds.messages import PFDSScriptState
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.params import GRID, Ints
from shoal.protocols.pfds.refinement import MAX_REACH, MAX_WEIGHT, MIN_REACH, ONE
from shoal.protocols.pfds.script import Answers, SecureSumScript
from shoal.protocols.pfds.tables import PooledTables, count_tables, fit_tempered_model
from tests.support.pfds import LABELS, NUMBER, THREE, TWO, followed, make_params, make_rows, parted


def make_noiseless_script(label: Feature = TWO) -> SecureSumScript:
    return SecureSumScript(make_params(label, epsilon=math.inf))


@pytest.mark.parametrize(
    "figures", [{"minimum": 9}, {"max_colluders": 8}, {"max_colluders": -1}], ids=str
)
def test_script_rejects_more_colluders_or_minimum_than_holders(figures: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="PFDS-005"):
        SecureSumScript(make_params(**figures))


def learn_answers(script: SecureSumScript, seed: int = 1) -> tuple[Answers, list[PFDSScriptState]]:
    courses, answers = zip(*followed(script, make_rows(script.params, seed=seed)), strict=True)
    return answers[:-1], list(courses)


@pytest.mark.parametrize("label", LABELS)
def test_script_asks_its_questions_in_order_and_ends(label: str) -> None:
    script = make_noiseless_script(LABELS[label])
    answers, courses = learn_answers(script)
    assert tuple(script.find_question(course) for course in courses) == (*script.questions, None)
    assert [len(answer) for answer in answers] == [
        script.compute_size(question) for question in script.questions
    ]
    assert [course.step for course in courses] == list(range(len(courses)))
    assert len(script.questions) == (1 if label == "three" else 9)


@pytest.mark.parametrize("label", LABELS)
def test_counts_of_holders_add_up_to_counts_of_all_rows(label: str) -> None:
    script = make_noiseless_script(LABELS[label])
    rows = make_rows(script.params)
    for course, counted in followed(script, rows):
        if script.find_question(course):
            by_holders = [script.count(course, part) for part in parted(script.params, rows)]
            assert np.sum(by_holders, axis=0).tolist() == counted.tolist()
            assert counted.dtype == np.int64


def test_each_question_counts_all_rows() -> None:
    script = make_noiseless_script()
    answers, _ = learn_answers(script)
    tables, calibration, *_, search = answers
    assert tables.sum() == 5 * 4000 * GRID
    assert calibration.sum() == search.sum() == 4000 * GRID
    assert (
        tables.tolist() == count_tables(script.params, make_rows(script.params), range(5)).tolist()
    )


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_model_without_noise_is_close_to_the_best(label: Feature) -> None:
    script = make_noiseless_script(label)
    answers, courses = learn_answers(script)
    model = script.build_model(answers)
    rows = make_rows(script.params, seed=9)
    best = fit_ridge_model(script.params, make_rows(script.params)).compute_scores(rows.cells)[:, 0]
    off = model.compute_scores(rows.cells)[:, 0] - best
    assert off.std() < 0.1 * best.std() and abs(off.mean()) < 0.1 * best.std()
    # The residuals change the model of tables and calibration considerably.
    first = courses[2].weights.expect("int64", script.params.n_cells)[rows.cells].sum(axis=1) / ONE
    assert (first - best).std() > 2 * off.std()
    assert np.add.reduceat(model.shares, script.params.starts[:-1]) == pytest.approx(np.ones(5))
    assert from_plain(model.to_plain()).weights.tolist() == model.weights.tolist()


def test_several_classes_use_tables_only() -> None:
    script = make_noiseless_script(THREE)
    answers, _ = learn_answers(script)
    sums = answers[0].reshape(-1, 3) / GRID
    expected = fit_tempered_model(
        script.params, PooledTables.from_sums(script.params, sums, np.zeros(5))
    )
    assert script.build_model(answers).weights == pytest.approx(expected.weights)
    rows = make_rows(script.params, seed=9)
    decided = np.argmax(script.build_model(answers).compute_scores(rows.cells), axis=1)
    assert (decided == np.argmax(rows.sides, axis=1)).mean() > 0.75


@pytest.mark.parametrize(("epsilon", "n_questions"), [(0.2, 2), (1.0, 4)])
def test_model_with_few_rounds_uses_the_calibrated_score(epsilon: float, n_questions: int) -> None:
    script = SecureSumScript(make_params(epsilon=epsilon))
    answers, courses = learn_answers(script)
    assert len(script.questions) == n_questions
    model = script.build_model(answers)
    rows = make_rows(script.params, seed=9)
    right = (model.compute_scores(rows.cells)[:, 0] > 0) == (rows.sides[:, 1] > 0)
    assert right.mean() > 0.78
    assert (model.variances > 0).all()
    assert courses[-1].replace(step=n_questions - 1) == courses[-2]


def test_model_uses_totals_of_the_tables_and_not_the_declared_size() -> None:
    """Twice the rows give the same model for any declared size, except for less noise."""
    script = make_noiseless_script()
    answers, courses = learn_answers(script)
    doubled = tuple(2 * answer for answer in answers)
    assert script.build_model(doubled).weights == pytest.approx(
        script.build_model(answers).weights, rel=0.02, abs=0.02
    )
    assert script.advance(courses[0], doubled[:1]) == courses[1]


def change_state(course: PFDSScriptState, **changes: object) -> PFDSScriptState:
    return course.replace(
        **{
            name: Array.from_values(value) if isinstance(value, np.ndarray) else value
            for name, value in changes.items()
        }
    )


def fill_ints(value: int, n: int = 16) -> Ints:
    return np.full(n, value, np.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 10},
        {"weights": fill_ints(0, 15)},
        {"direction": fill_ints(0, 17)},
        {"weights": fill_ints(0).astype(np.int32)},
        {"weights": fill_ints(MAX_WEIGHT * ONE + 1)},
        {"direction": fill_ints(-MAX_WEIGHT * ONE - 1)},
        {"weights": np.array([*[0] * 15, -(1 << 63)])},
        {"intercept": MAX_WEIGHT * ONE + 1},
        {"intercept": -(10**30)},
        {"reaches": (MIN_REACH - 1, MIN_REACH)},
        {"reaches": (MIN_REACH, -5)},
        {"reaches": (MAX_REACH, MAX_REACH + 1)},
    ],
)
def test_impossible_script_state_is_rejected(changes: dict[str, object]) -> None:
    script = make_noiseless_script()
    assert script.params.n_cells == 16
    course = change_state(script.initial_state, **changes)
    with pytest.raises(RemoteProtocolError) as caught:
        script.find_question(course)
    assert caught.value.code in ("PFDS-002", "MSG-005")
    with pytest.raises(RemoteProtocolError):
        script.count(course, make_rows(script.params, 5))


def test_script_state_at_its_bounds_is_accepted() -> None:
    script = make_noiseless_script()
    course = change_state(
        script.initial_state,
        weights=fill_ints(MAX_WEIGHT * ONE),
        direction=fill_ints(-MAX_WEIGHT * ONE),
        intercept=MAX_WEIGHT * ONE,
        reaches=(MIN_REACH, MAX_REACH),
    )
    for step in range(len(script.questions)):
        assert script.count(course.replace(step=step), make_rows(script.params, 5)).any()
    assert script.find_question(course.replace(step=9)) is None


def test_deviation_is_that_of_shares_of_all_holders() -> None:
    script = SecureSumScript(make_params(max_colluders=4))
    mechanism = script.find_mechanism("calibration")
    assert mechanism is not None
    assert script.compute_deviation("calibration") == pytest.approx(
        math.sqrt(2 * mechanism.variance()) / GRID
    )


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_single_huge_bin_gives_a_finite_model(label: Feature) -> None:
    script = make_noiseless_script(label)
    answers, _ = learn_answers(script)
    for place, number in ((1, 31), (8, 199), (8, 21)):
        lone = np.zeros_like(answers[place])
        lone[number] = (1 << 63) - 1
        heard = (*answers[:place], lone, *answers[place + 1 :])
        assert np.isfinite(script.build_model(heard).weights).all()
        # A single bin cannot separate scale and intercept: both stay near the prior.
        assert np.abs(script.build_model(heard).intercepts).max() < 30
