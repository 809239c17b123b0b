"""Trust `secure-sum`: the rounds, their budget, and what is learned from them.

Peers, aggregators and `population` follow `SecureSumScript`. The questions, in order, and what each
holder counts in its own rows:

tables
    Rows of each class in each cell of each feature.
calibration
    Rows of each class in bins of the score that the tables give.
residuals/i
    Residuals of the current model for the rows in each cell. There are more rounds if the noise is
    small enough to make them worth their price.
search
    Rows of each class in bins of two scores: the score of the tables, and the change of it by the
    residual rounds.

The script state is public: every reader of the sums computes it, and every holder counts with it.
It needs no trust: one row adds at most the priced amount to a sum, for any weights. With more than
two classes the tables get the whole budget.

The number of rounds and the price of each sum follow from the declared parameters, before anything
is asked. A change must keep this: neither may depend on data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from shoal.errors import RemoteProtocolError, SpecError
from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.distributed_laplace import DistributedLaplace
from shoal.mechanisms.sensitivity import CellCounts, Query, SignedCells
from shoal.messages.base import Array
from shoal.privacy.accountant import epsilon_to_rho
from shoal.privacy.events import Event
from shoal.privacy.rounding import DELTA_GRAINS, compute_share, delta_grains_down
from shoal.protocols.pfds.messages import PFDSScriptState
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.refinement import (
    MAX_REACH,
    MAX_WEIGHT,
    MIN_REACH,
    N_BINS,
    N_SEARCH_BINS,
    ONE,
    CalibratedScore,
    Descent,
    TableScore,
    WeightChange,
    assign_bins,
    compute_clip,
    compute_feature_weights,
    compute_reach,
    compute_scores,
    count_histogram,
    sum_residuals,
    to_units,
)
from shoal.protocols.pfds.tables import (
    PooledTables,
    count_tables,
    fit_tempered_model,
    sum_by_feature,
)

TABLES, CALIBRATION, RESIDUALS, SEARCH = "tables", "calibration", "residuals/", "search"
"""Names of questions; the name of a residual round ends in its number."""

_STEPS = {6: 0.4, 3: 0.5, 1: 0.7, 0: 0.0}
_FINE = (Fraction(20, 100), Fraction(5, 100), Fraction(65, 100), Fraction(10, 100))
_COARSE = (Fraction(40, 100), Fraction(5, 100), Fraction(45, 100), Fraction(10, 100))
_A_HAIR = 2.0**-40
"""Larger than the amount that rounding can add to the shares of rho."""


@dataclass(frozen=True)
class SumBudget:
    """Division of the budget among the questions.

    Parameters
    ----------
    n_rounds
        T: number of residual rounds.
    step
        Step size of the weights in each round.
    parts
        Shares of the budget for the tables, the calibration, each residual round and the search.
    """

    n_rounds: int
    step: float
    parts: tuple[Fraction, ...]

    @property
    def questions(self) -> tuple[str, ...]:
        """All questions in order; each may cost the part at the same position."""
        return (TABLES, CALIBRATION, *(f"{RESIDUALS}{i}" for i in range(self.n_rounds)), SEARCH)[
            : len(self.parts)
        ]


def make_budget(noise: float, has_delta: bool) -> SumBudget:
    """Return the budget that suits the noise of the tables.

    ``noise`` is computed as if the tables had the whole budget.

    Parameters
    ----------
    noise
        Standard deviation on one cell, as a share of all rows.
    has_delta
        Whether the noise is Gaussian: rounds then cost less together, and more are worth it.

    Examples
    --------
    >>> (
    ...     make_budget(0.001, has_delta=False).n_rounds,
    ...     make_budget(0.001, has_delta=True).n_rounds,
    ...     make_budget(0.01, has_delta=True).parts,
    ... )
    (1, 3, (Fraction(8, 9), Fraction(1, 9)))
    """
    bounds = ((0.0005, 6), (0.002, 3), (0.005, 1)) if has_delta else ((0.004, 1),)
    n_rounds = next((n for bound, n in bounds if noise <= bound), 0)
    tables, calibration, all_rounds, search = _FINE if n_rounds >= 3 else _COARSE
    if not n_rounds:
        whole = tables + calibration
        return SumBudget(0, _STEPS[0], (tables / whole, calibration / whole))
    return SumBudget(
        n_rounds,
        _STEPS[n_rounds],
        (tables, calibration, *[all_rounds / n_rounds] * n_rounds, search),
    )


def choose_budget(params: PFDSParams) -> SumBudget:
    """Return the budget of a study. With more than two classes only the tables are asked."""
    return (
        compute_affordable_budget(params)
        if params.n_models == 1
        else SumBudget(0, _STEPS[0], (Fraction(1),))
    )


def compute_affordable_budget(params: PFDSParams) -> SumBudget:
    """Return the budget that the noise of a study permits, for any kind of label."""
    if params.is_noiseless:
        return make_budget(0.0, has_delta=True)
    whole = make_mechanism(params, TABLES, Fraction(1), 1).variance(params.n_holders)
    return make_budget(math.sqrt(whole) / GRID / params.size, has_delta=params.delta > 0)


def compute_sum_size(params: PFDSParams, question: str) -> int:
    """Return the number of values in a sum."""
    sizes = {
        TABLES: params.n_cells * params.n_sides,
        CALIBRATION: 2 * N_BINS,
        SEARCH: 2 * N_SEARCH_BINS**2,
    }
    return sizes.get(question, params.n_cells)


def make_query(params: PFDSParams, question: str) -> Query:
    """Return the sensitivity of a sum.

    A row is in one cell of each feature, or in one bin. It adds 256 units to its sides, or its
    residual.
    """
    k = len(params.arities)
    if question.startswith(RESIDUALS):
        return SignedCells(k, compute_clip(params), params.max_rows)
    return CellCounts(k if question == TABLES else 1, GRID * params.max_rows)


def make_mechanism(
    params: PFDSParams, question: str, part: Fraction, n_questions: int
) -> DistributedLaplace | DistributedGaussian:
    """Return the noise of a sum that may cost ``part`` of the budget.

    Privacy
    -------
    Pure: ``part`` of epsilon. With a delta: ``part`` of the rho that is (epsilon, delta)-DP, stated
    at an equal part of delta. All ``n_questions`` parts together are (epsilon, delta)-DP by
    zero-concentrated composition.
    """
    query = make_query(params, question)
    if not params.delta:
        return DistributedLaplace(
            compute_share(params.epsilon, part), query, params.scope, params.n_honest
        )
    rho = epsilon_to_rho(params.epsilon, params.delta) * float(part) * (1 - _A_HAIR)
    delta = delta_grains_down(params.delta) // n_questions / DELTA_GRAINS
    return DistributedGaussian(
        rho, delta, query, params.scope, params.n_honest, compute_sum_size(params, question)
    )


Answers = tuple[Ints, ...]
"""The noisy sums of every question so far, ``(size,)`` each."""

_MAX_ROWS = float(1 << 32)
"""Largest accepted sum, in rows: a larger number would drown all others."""


def _make_state(
    step: int,
    weights: Floats,
    intercept: float = 0.0,
    direction: Floats | None = None,
    variances: tuple[float, float] = (0.0, 0.0),
) -> PFDSScriptState:
    return PFDSScriptState(
        step=step,
        weights=Array.from_values(to_units(weights)),
        intercept=int(to_units(np.array(intercept))),
        direction=Array.from_values(
            to_units(np.zeros_like(weights) if direction is None else direction)
        ),
        reaches=(compute_reach(variances[0]), compute_reach(variances[1])),
    )


def _to_rows(answer: Ints) -> Floats:
    """Return sums in units of rows."""
    return np.clip(answer / GRID, -_MAX_ROWS, _MAX_ROWS)


def _impossible_state_error(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "PFDS-002",
        "The aggregator sent an impossible script state.",
        why=f"According to the study's parameters, {why}.",
    )


class SecureSumScript:
    """Questions, prices and learning of a study with secure sums.

    Parameters
    ----------
    params
        Of variant plus.

    Notes
    -----
    The division of the budget follows from the declared size and the noise, never from the data.
    The constants were chosen by accuracy on the development halves of Adult, Bank Marketing, Bike
    Sharing and Retinopathy. The noise is that of all holders' shares.

    Privacy
    -------
    The scope of the parameters. Pure: each question costs its part of epsilon. With a delta: its
    part of the rho that is (epsilon, delta)-DP, so that all questions together are (epsilon,
    delta)-DP by zero-concentrated composition; each alone is stated at an equal part of delta. The
    price of a question is the same for every script state.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> schema = Schema(
    ...     [Categorical(name, ["a", "b"]) for name in "xyz"],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> script = SecureSumScript(PFDSParams(schema, epsilon=1.0, size=10_000, trust="secure-sum"))
    >>> script.questions, script.prices["calibration"].epsilon, script.compute_size("tables")
    (('tables', 'calibration', 'residuals/0', 'search'), 0.05, 18)
    """

    def __init__(self, params: PFDSParams) -> None:
        if not 0 <= params.max_colluders < params.minimum <= params.n_holders:
            raise SpecError(
                "PFDS-005",
                f"n_holders={params.n_holders}, minimum={params.minimum} and "
                f"max_colluders={params.max_colluders} do not fit together.",
                why="Each share of noise is scaled for minimum - max_colluders honest holders.",
                fix="Choose 0 <= max_colluders < minimum <= n_holders.",
            )
        self.params = params
        self.budget = choose_budget(params)
        self.questions = self.budget.questions

    @cached_property
    def _mechanisms(self) -> Mapping[str, DistributedLaplace | DistributedGaussian]:
        if self.params.is_noiseless:
            return {}
        n = len(self.questions)
        return {
            question: make_mechanism(self.params, question, part, n)
            for question, part in zip(self.questions, self.budget.parts, strict=True)
        }

    @cached_property
    def prices(self) -> Mapping[str, Event]:
        """The price of every question for one unit; their total is within the budget."""
        return {
            question: mechanism.event().with_reads(*self.params.columns)
            for question, mechanism in self._mechanisms.items()
        }

    def find_mechanism(self, question: str) -> DistributedLaplace | DistributedGaussian | None:
        """Return the noise of a sum; None without noise, which only simulations may use."""
        return self._mechanisms.get(question)

    def compute_size(self, question: str) -> int:
        """Return the number of values in a holder's answer."""
        return compute_sum_size(self.params, question)

    def compute_deviation(self, question: str) -> float:
        """Return the standard deviation of the noise on one value of a sum, in rows.

        All holders answer. Without noise it is 0.
        """
        mechanism = self.find_mechanism(question)
        return (
            0.0
            if mechanism is None
            else math.sqrt(mechanism.variance(self.params.n_holders)) / GRID
        )

    @property
    def initial_state(self) -> PFDSScriptState:
        """The script state before the first answer."""
        return _make_state(0, np.zeros(self.params.n_cells))

    def check_state(self, state: PFDSScriptState) -> tuple[Ints, Ints]:
        """Return weights and direction of a state, or raise `RemoteProtocolError`.

        Notes
        -----
        The bounds keep scores inside 64 bits. The guarantee does not depend on them: a score that
        wrapped around would still be in one bin.
        """
        weights, direction = (
            array.expect("int64", self.params.n_cells).astype(np.int64)
            for array in (state.weights, state.direction)
        )
        if not 0 <= state.step <= len(self.questions):
            raise _impossible_state_error(f"there is no step {state.step}")
        extremes = (
            state.intercept,
            *(int(number) for each in (weights, direction) for number in (each.min(), each.max())),
        )
        if not -MAX_WEIGHT * ONE <= min(extremes) <= max(extremes) <= MAX_WEIGHT * ONE:
            raise _impossible_state_error("a weight is larger than any learned weight can be")
        if not MIN_REACH <= min(state.reaches) <= max(state.reaches) <= MAX_REACH:
            raise _impossible_state_error("its bins are too narrow or too wide")
        return weights, direction

    def find_question(self, state: PFDSScriptState) -> str | None:
        """Return the next question; None at the end.

        Raise `RemoteProtocolError` for an impossible state.
        """
        self.check_state(state)
        return self.questions[state.step] if state.step < len(self.questions) else None

    def count(self, state: PFDSScriptState, rows: PFDSRows) -> Ints:
        """Return the contribution of rows to the next sum, ``(size,)``, in 1/256 of a row."""
        weights, direction = self.check_state(state)
        question = self.questions[state.step]
        if question == TABLES:
            return count_tables(self.params, rows, range(len(self.params.arities)))
        if question.startswith(RESIDUALS):
            return sum_residuals(self.params, rows, weights, state.intercept)
        scores = compute_scores(weights, rows.cells)
        if question == CALIBRATION:
            return count_histogram(
                assign_bins(scores, state.reaches[0], N_BINS), rows.sides, N_BINS
            )
        first = assign_bins(scores, state.reaches[0], N_SEARCH_BINS)
        second = assign_bins(compute_scores(direction, rows.cells), state.reaches[1], N_SEARCH_BINS)
        return count_histogram(first * N_SEARCH_BINS + second, rows.sides, N_SEARCH_BINS**2)

    def advance(self, state: PFDSScriptState, answers: Answers) -> PFDSScriptState:
        """Return the state after its question was answered, from all answers so far."""
        step = state.step + 1
        if step == len(self.questions):
            return state.replace(step=step)
        if step == 1:
            start = self._score_tables(answers)
            return _make_state(step, start.weights, variances=(start.score_variance, 0.0))
        if step < 2 + self.budget.n_rounds:
            _, descent = self._descend(answers)
            return _make_state(step, descent.weights, descent.intercept)
        change = self._compute_change(answers)
        return _make_state(
            step,
            change.before.weights,
            0.0,
            change.direction,
            (change.before.score_variance, change.score_variance),
        )

    def build_model(self, answers: Answers) -> PooledModel:
        """Return the model learned from all answers."""
        if self.params.n_models > 1:
            return fit_tempered_model(self.params, self._read_tables(answers))
        if self.budget.n_rounds:
            change = self._compute_change(answers)
            start = change.before.start
            weights, intercept = change.search(
                _to_rows(answers[-1]).reshape(-1, 2), self.compute_deviation(SEARCH)
            )
        else:
            calibrated = self._calibrate(answers)
            start, weights, intercept = calibrated.start, calibrated.weights, calibrated.intercept
        return PooledModel(
            self.params,
            weights[:, None],
            np.array([intercept]),
            start.variances[:, None],
            start.shares,
        )

    def _read_tables(self, answers: Answers) -> PooledTables:
        """Return the tables. Each counts the same rows, so every total is their mean."""
        sums = _to_rows(answers[0]).reshape(self.params.n_cells, self.params.n_sides)
        n = max(
            1.0,
            float(
                compute_feature_weights(self.params) @ sum_by_feature(self.params, sums.sum(axis=1))
            ),
        )
        k = len(self.params.arities)
        return PooledTables(
            sums, np.full(k, n), np.full(k, (self.compute_deviation(TABLES) / n) ** 2)
        )

    def _score_tables(self, answers: Answers) -> TableScore:
        return TableScore.from_tables(self.params, self._read_tables(answers))

    def _calibrate(self, answers: Answers) -> CalibratedScore:
        return self._score_tables(answers).calibrate(
            _to_rows(answers[1]).reshape(-1, 2), self.compute_deviation(CALIBRATION)
        )

    def _descend(self, answers: Answers) -> tuple[CalibratedScore, Descent]:
        """Return the calibrated score, and its weights after the answered residual rounds."""
        calibrated, n = self._calibrate(answers), float(self._read_tables(answers).totals[0])
        descent = Descent.start(calibrated.weights, calibrated.intercept)
        deviation = self.compute_deviation(f"{RESIDUALS}0") / n
        for answer in answers[2 : 2 + self.budget.n_rounds]:
            descent = descent.move(
                self.params,
                self.budget.step,
                _to_rows(answer) / n,
                deviation,
                calibrated.start.shares,
            )
        return calibrated, descent

    def _compute_change(self, answers: Answers) -> WeightChange:
        calibrated, descent = self._descend(answers)
        return WeightChange.from_weights(calibrated, descent.weights, descent.intercept)
