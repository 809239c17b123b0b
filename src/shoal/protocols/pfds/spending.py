"""Where the budget of secure sums goes: how many rounds are worth their price, and what each sum costs.

All of it follows from the declared figures, before anything is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from shoal.mechanisms.sensitivity import Histogram, Query, SignedCells
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.mechanisms.shares import SharedLaplace
from shoal.privacy.rounding import DELTA_GRAINS, delta_grains_down, share
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.pfds.params import GRID, Params
from shoal.protocols.pfds.residuals import clip_of
from shoal.protocols.pfds.scoring import N_BINS, N_SEARCH_BINS

TABLES, CALIBRATION, RESIDUALS, SEARCH = "tables", "calibration", "residuals/", "search"
"""Questions; that of a round ends in its number."""

_STEPS = {6: 0.4, 3: 0.5, 1: 0.7, 0: 0.0}
_FINE = (Fraction(20, 100), Fraction(5, 100), Fraction(65, 100), Fraction(10, 100))
_COARSE = (Fraction(40, 100), Fraction(5, 100), Fraction(45, 100), Fraction(10, 100))
_A_HAIR = 2.0**-40
"""More than what rounding can add to the shares of rho."""


@dataclass(frozen=True)
class Plan:
    """How the budget is spent.

    Parameters
    ----------
    n_rounds
        T: rounds of residuals.
    step
        How far the weights move in each.
    parts
        What the tables, the calibration, each round of residuals and the search may cost, of the whole budget.
    """

    n_rounds: int
    step: float
    parts: tuple[Fraction, ...]

    @property
    def questions(self) -> tuple[str, ...]:
        """All that is asked, in order; each may cost the part in its place."""
        return (TABLES, CALIBRATION, *(f"{RESIDUALS}{i}" for i in range(self.n_rounds)), SEARCH)[: len(self.parts)]


def plan(noise: float, has_delta: bool) -> Plan:
    """What is asked where this would be the noise of the tables alone, if they had the whole budget.

    Parameters
    ----------
    noise
        Standard deviation on one cell, as a share of all rows.
    has_delta
        Whether the noise is Gaussian: rounds then cost less together, and more of them pay.

    Examples
    --------
    >>> plan(0.001, has_delta=False).n_rounds, plan(0.001, has_delta=True).n_rounds, plan(0.01, has_delta=True).parts
    (1, 3, (Fraction(8, 9), Fraction(1, 9)))
    """
    bounds = ((0.0005, 6), (0.002, 3), (0.005, 1)) if has_delta else ((0.004, 1),)
    n_rounds = next((n for bound, n in bounds if noise <= bound), 0)
    tables, calibration, all_rounds, search = _FINE if n_rounds >= 3 else _COARSE
    if not n_rounds:
        whole = tables + calibration
        return Plan(0, _STEPS[0], (tables / whole, calibration / whole))
    return Plan(n_rounds, _STEPS[n_rounds], (tables, calibration, *[all_rounds / n_rounds] * n_rounds, search))


def plan_of(params: Params) -> Plan:
    """What is asked in a study. With more than two classes it is the tables alone."""
    return affordable(params) if params.n_models == 1 else Plan(0, _STEPS[0], (Fraction(1),))


def affordable(params: Params) -> Plan:
    """What the noise of a study allows, whatever its label is."""
    if params.is_bare:
        return plan(0.0, has_delta=True)
    whole = noise_of(params, TABLES, Fraction(1), 1).variance(params.n_holders)
    return plan(math.sqrt(whole) / GRID / params.size, has_delta=params.delta > 0)


def size_of(params: Params, question: str) -> int:
    """Numbers in a sum."""
    sizes = {TABLES: params.n_cells * params.n_sides, CALIBRATION: 2 * N_BINS, SEARCH: 2 * N_SEARCH_BINS**2}
    return sizes.get(question, params.n_cells)


def query_of(params: Params, question: str) -> Query:
    """How a sum is made: a row falls in one cell of each feature, or in one bin, and adds 256 units to its sides, or its residual."""
    k = len(params.arities)
    if question.startswith(RESIDUALS):
        return SignedCells(k, clip_of(params), params.max_rows)
    return Histogram(k if question == TABLES else 1, GRID * params.max_rows)


def noise_of(params: Params, question: str, part: Fraction, n_questions: int) -> SharedLaplace | SharedGaussian:
    """The noise of a sum that may cost a part of the budget, one of so many questions.

    Privacy
    -------
    Pure: the part of epsilon. With a delta: the part of the rho that is (epsilon, delta)-DP, stated at an equal part of delta, so that the
    parts together are (epsilon, delta)-DP by zero-concentrated composition.
    """
    query = query_of(params, question)
    if not params.delta:
        return SharedLaplace(share(params.epsilon, part), query, params.scope, params.n_honest)
    rho = epsilon_to_rho(params.epsilon, params.delta) * float(part) * (1 - _A_HAIR)
    delta = delta_grains_down(params.delta) // n_questions / DELTA_GRAINS
    return SharedGaussian(rho, delta, query, params.scope, params.n_honest, size_of(params, question))
