"""Variant plus with secure sums: which sums are asked in which order, what each costs, and what is learned from them.

=============  ====================================================================================================================
question       what every holder counts, of its own rows
=============  ====================================================================================================================
tables         rows of each class in each cell of each feature
calibration    rows of each class in bins of the score that the tables give
residuals/i    what the model so far misses of the rows in each cell; as many rounds as the noise makes worth their price
search         rows of each class in bins of two scores: that of the tables, and of what the residuals have changed in it
=============  ====================================================================================================================

A course is public: whoever reads the sums makes it, and every holder counts with it. It needs no trust, because one row adds as much to a
sum as its price says, whatever the weights are. With more than two classes the tables have the whole budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from shoal.errors import RemoteProtocolError, SpecError
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.mechanisms.shares import SharedLaplace
from shoal.messages.base import Array, Record
from shoal.privacy.events import Event
from shoal.protocols.pfds.calibrating import Calibrated, Change, Start
from shoal.protocols.pfds.local import count
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.pooling import Tables, by_feature, tempered
from shoal.protocols.pfds.residuals import Descent, count_residuals, per_table
from shoal.protocols.pfds.scoring import (
    LEAST_REACH,
    LONGEST_REACH,
    MOST,
    N_BINS,
    N_SEARCH_BINS,
    ONE,
    bins,
    histogram,
    in_units,
    reach_for,
    scores,
)
from shoal.protocols.pfds.spending import CALIBRATION, RESIDUALS, SEARCH, TABLES, noise_of, plan_of, size_of

Answers = tuple[Ints, ...]
"""What has been learned: the noisy sums of every question so far, ``(size,)`` each."""

_MOST_ROWS = float(1 << 32)
"""Largest sum, in rows, that is believed: beyond it one number would drown all others."""


def _course(
    step: int, weights: Floats, intercept: float = 0.0, direction: Floats | None = None, spreads: tuple[float, float] = (0.0, 0.0)
) -> Course:
    return Course(
        step=step,
        weights=Array.of(in_units(weights)),
        intercept=int(in_units(np.array(intercept))),
        direction=Array.of(in_units(np.zeros_like(weights) if direction is None else direction)),
        reaches=(reach_for(spreads[0]), reach_for(spreads[1])),
    )


def _rows(answer: Ints) -> Floats:
    """Sums in rows."""
    return np.clip(answer / GRID, -_MOST_ROWS, _MOST_ROWS)


def _impossible(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-002", "A course was named that one cannot count with.", why=f"By the study's figures, {why}.")


class Course(Record):
    """What everyone counts with; all of it is public.

    Parameters
    ----------
    step
        Questions that have been answered.
    weights, intercept
        ``(D,)`` 64-bit integers, and one more, in units of 2^-20: the additive model so far.
    direction
        ``(D,)`` what the residuals have changed in the weights; 0 before the search.
    reaches
        How far the bins of the two scores go on either side of 0.
    """

    step: int
    weights: Array
    intercept: int
    direction: Array
    reaches: tuple[int, int]


class SumScript:
    """The course of a study with secure sums.

    Parameters
    ----------
    params
        The public figures of the study, of variant plus.

    Notes
    -----
    Where to spend the budget follows from the declared size and the noise, never from the data. The constants were chosen by accuracy on
    the development halves of Adult, Bank Marketing, Bike Sharing and Retinopathy. Noise is judged by that of all holders' shares.

    Privacy
    -------
    The scope of the parameters. Pure: each question costs its part of epsilon. With a delta: its part of the rho that is
    (epsilon, delta)-DP, so that all of them together are, by zero-concentrated composition; alone each is stated at an equal part of delta.
    What a question costs is the same on every course.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> schema = Schema([Categorical(name, ["a", "b"]) for name in "xyz"], label=Categorical("ill", ["no", "yes"]))
    >>> script = SumScript(Params(schema, epsilon=1.0, size=10_000, trust="secure-sum"))
    >>> script.questions, script.prices["calibration"].epsilon, script.size("tables")
    (('tables', 'calibration', 'residuals/0', 'search'), 0.05, 18)
    """

    def __init__(self, params: Params) -> None:
        if not 0 <= params.max_colluders < params.minimum <= params.n_holders:
            raise SpecError(
                "PFDS-005",
                f"Of {params.n_holders} holders at least {params.minimum} are to answer, of whom {params.max_colluders} may collude.",
                why="Each share of noise is made for the honest ones among the fewest that answer.",
                fix="0 <= max_colluders < minimum <= n_holders",
            )
        self.params = params
        self.plan = plan_of(params)
        self.questions = self.plan.questions

    @cached_property
    def _mechanisms(self) -> Mapping[str, SharedLaplace | SharedGaussian]:
        if self.params.is_bare:
            return {}
        n = len(self.questions)
        return {one: noise_of(self.params, one, part, n) for one, part in zip(self.questions, self.plan.parts, strict=True)}

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        """Every question that may be asked and what it costs one unit; all of them together cost no more than the budget."""
        return {question: mechanism.event().reading(*self.params.columns) for question, mechanism in self._mechanisms.items()}

    def mechanism(self, question: str) -> SharedLaplace | SharedGaussian | None:
        """What hides a sum; None where nothing does, which only a simulation may ask for."""
        return self._mechanisms.get(question)

    def size(self, question: str) -> int:
        """Numbers that a holder answers with."""
        return size_of(self.params, question)

    def deviation(self, question: str) -> float:
        """Standard deviation of the noise on one number of a sum that every holder answers, in rows; 0 without noise."""
        mechanism = self.mechanism(question)
        return 0.0 if mechanism is None else math.sqrt(mechanism.variance(self.params.n_holders)) / GRID

    @property
    def start(self) -> Course:
        """The course before anything was answered."""
        return _course(0, np.zeros(self.params.n_cells))

    def check(self, course: Course) -> tuple[Ints, Ints]:
        """Weights and direction of a course that one can count with; otherwise the sender's error.

        Notes
        -----
        The bounds keep scores inside 64 bits. They are no part of the guarantee: a score that wrapped around would still be in one bin.
        """
        weights, direction = (array.expect("int64", self.params.n_cells).astype(np.int64) for array in (course.weights, course.direction))
        if not 0 <= course.step <= len(self.questions):
            raise _impossible("it is at a step that the study does not have")
        extremes = (course.intercept, *(int(number) for each in (weights, direction) for number in (each.min(), each.max())))
        if not -MOST * ONE <= min(extremes) <= max(extremes) <= MOST * ONE:
            raise _impossible("a weight is larger than any that is learned")
        if not LEAST_REACH <= min(course.reaches) <= max(course.reaches) <= LONGEST_REACH:
            raise _impossible("its bins are too narrow or too wide")
        return weights, direction

    def question(self, course: Course) -> str | None:
        """What is asked next; None at the end. `RemoteProtocolError` for a course that one cannot count with."""
        self.check(course)
        return self.questions[course.step] if course.step < len(self.questions) else None

    def count(self, course: Course, rows: Rows) -> Ints:
        """What these rows add to the next sum, ``(size,)``, in units of 1/256 of a row."""
        weights, direction = self.check(course)
        question = self.questions[course.step]
        if question == TABLES:
            return count(self.params, rows, range(len(self.params.arities)))
        if question.startswith(RESIDUALS):
            return count_residuals(self.params, rows, weights, course.intercept)
        one = scores(weights, rows.cells)
        if question == CALIBRATION:
            return histogram(bins(one, course.reaches[0], N_BINS), rows.sides, N_BINS)
        first = bins(one, course.reaches[0], N_SEARCH_BINS)
        second = bins(scores(direction, rows.cells), course.reaches[1], N_SEARCH_BINS)
        return histogram(first * N_SEARCH_BINS + second, rows.sides, N_SEARCH_BINS**2)

    def advance(self, course: Course, answers: Answers) -> Course:
        """The course after its question was answered, by all answers so far."""
        step = course.step + 1
        if step == len(self.questions):
            return course.replace(step=step)
        if step == 1:
            start = self._start(answers)
            return _course(step, start.weights, spreads=(start.spread, 0.0))
        if step < 2 + self.plan.n_rounds:
            _, descent = self._descent(answers)
            return _course(step, descent.weights, descent.intercept)
        change = self._change(answers)
        return _course(step, change.before.weights, 0.0, change.direction, (change.before.spread, change.spread))

    def model(self, answers: Answers) -> Model:
        """What was learned, by all answers."""
        if self.params.n_models > 1:
            return tempered(self.params, self._tables(answers))
        if self.plan.n_rounds:
            change = self._change(answers)
            start = change.before.start
            weights, intercept = change.searched(_rows(answers[-1]).reshape(-1, 2), self.deviation(SEARCH))
        else:
            calibrated = self._calibrated(answers)
            start, weights, intercept = calibrated.start, calibrated.weights, calibrated.intercept
        return Model(self.params, weights[:, None], np.array([intercept]), start.variances[:, None], start.shares)

    def _tables(self, answers: Answers) -> Tables:
        """The tables; each counts the same rows, so all totals are their mean."""
        sums = _rows(answers[0]).reshape(self.params.n_cells, self.params.n_sides)
        n = max(1.0, float(per_table(self.params) @ by_feature(self.params, sums.sum(axis=1))))
        k = len(self.params.arities)
        return Tables(sums, np.full(k, n), np.full(k, (self.deviation(TABLES) / n) ** 2))

    def _start(self, answers: Answers) -> Start:
        return Start.of(self.params, self._tables(answers))

    def _calibrated(self, answers: Answers) -> Calibrated:
        return self._start(answers).calibrated(_rows(answers[1]).reshape(-1, 2), self.deviation(CALIBRATION))

    def _descent(self, answers: Answers) -> tuple[Calibrated, Descent]:
        """What was calibrated, and where its weights are after the rounds that were answered."""
        calibrated, n = self._calibrated(answers), float(self._tables(answers).totals[0])
        descent = Descent.start(calibrated.weights, calibrated.intercept)
        deviation = self.deviation(f"{RESIDUALS}0") / n
        for answer in answers[2 : 2 + self.plan.n_rounds]:
            descent = descent.moved(self.params, self.plan.step, _rows(answer) / n, deviation, calibrated.start.shares)
        return calibrated, descent

    def _change(self, answers: Answers) -> Change:
        calibrated, descent = self._descent(answers)
        return Change.to(calibrated, descent.weights, descent.intercept)
