"""Noise of a round: who adds which share, its price and size.

Peers draw their noise here, scripts compute their prices, and `shoal.protocols.sdq.population`
draws the summed noise of all databases. Price, drawn noise and simulated noise of a round part must
come from the same mechanism.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import SpecError
from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Event
from shoal.protocols.mpc.shares import SUM_BITS
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import RoundPart, SDQRound

ADDS, SUBTRACTS = 1, 2
"""The two roles of a selected database."""
_OVERFLOW_EXPONENT = 70
"""A score is too large for a joint computation with a probability below exp(-70), or 2^-100.

A study has fewer than 2^23 scores.
"""


def make_mechanism(
    params: SDQParams, part: RoundPart, is_choice: bool = False
) -> DistributedLaplace | DistributedNoisyMax | None:
    """Return the mechanism of a round part; None without noise, which only a simulation may use."""
    if part.epsilon == math.inf:
        return None
    return (
        _make_noisy_max(params, part.epsilon)
        if is_choice
        else _make_laplace(params, part.epsilon, part.n_tables)
    )


def price_sum(params: SDQParams, epsilon_release: float, n_tables: int = 1) -> Event:
    """Return the price of a sum for one unit."""
    return _make_laplace(params, epsilon_release, n_tables).event()


def price_choice(params: SDQParams, epsilon_release: float) -> Event:
    """Return the price of a choice for one unit.

    Raise ``SPEC-021`` if a score with its noise may be too large for a joint computation, which
    would abort with ``JOINT-003`` after earlier answers are spent.

    Notes
    -----
    A score of a database is at most its number of rows, and these are assumed to be at most the
    declared size. m shares of noise, none of them negative, add up to a geometric variable, so a
    share is at least g with a probability of at most exp(-rate g).
    """
    mechanism = _make_noisy_max(params, epsilon_release)
    most = (1 << SUM_BITS) // params.n_databases
    if mechanism.rate * (most - params.size) < _OVERFLOW_EXPONENT:
        raise SpecError(
            "SPEC-021",
            f'choice = "mpc" with epsilon = {params.epsilon:.3g}, size = {params.size:,} and '
            f"{params.n_databases} databases: the noise on a score has a scale of "
            f"{float(1 / mechanism.rate):.3g}, and a database can share scores up to {most:,}.",
            why="A larger score would end the joint computation after answers are spent.",
            fix='choice = "sums", or a larger epsilon',
        )
    return mechanism.event()


def compute_deviation(params: SDQParams, epsilon_release: float, n_tables: int = 1) -> float:
    """Return the standard deviation of the noise on one number of a sum; 0 without noise.

    All databases answer.
    """
    if epsilon_release == math.inf:
        return 0.0
    return math.sqrt(
        _make_laplace(params, epsilon_release, n_tables).variance(
            _count_shares(params, params.n_databases)
        )
    )


def draw_noisy_counts(
    params: SDQParams,
    part: RoundPart,
    table: CellTable,
    is_choice: bool,
    role: int | None,
    entropy: Entropy,
) -> Ints:
    """Return the answer of one database to a round part: its counts plus its part of the noise.

    Parameters
    ----------
    role
        Noise ``two-selected``: the role of this database; 0 if it was not selected.

    Notes
    -----
    Ref: SDQ Algorithm 2, lines 4 and 5; errata S-04, S-08.

    Privacy
    -------
    A single answer is not private: only the sum is, and only a masked or shared answer may leave.
    With trust local an answer carries all of the noise.
    """
    counts, mechanism = part.count(table), make_mechanism(params, part, is_choice)
    assert mechanism is not None, "a peer has no answer without a price"
    if params.noise == "two-selected" and isinstance(mechanism, DistributedLaplace):
        assert role is not None, "two databases are selected before any answers"
        # Every database draws noise, so that response times do not reveal who was selected.
        return counts + {ADDS: 1, SUBTRACTS: -1}.get(role, 0) * mechanism.draw_side(
            part.size, entropy
        )
    return counts + mechanism.draw_share(part.size, entropy)


def draw_summed_noise(
    params: SDQParams, asked: SDQRound, n_answering: int, entropy: Entropy
) -> Ints:
    """Draw the noise on the sums of a round that ``n_answering`` databases answer.

    For simulations: one draw with the distribution of the sum of all shares.
    """
    drawn = [np.zeros(0, np.int64)]
    for part in asked.parts:
        mechanism = make_mechanism(params, part, asked.is_choice)
        nothing = np.zeros(part.size, np.int64)
        drawn.append(
            nothing
            if mechanism is None
            else mechanism.draw_sum(part.size, _count_shares(params, n_answering), entropy)
        )
    return np.concatenate(drawn)


def _count_shares(params: SDQParams, n_answering: int) -> int:
    """Return the number of whole noise shares in a sum: one for each database that answers.

    It is 1 if two databases are selected: one adds and the other subtracts a side of one share.
    """
    return 1 if params.noise == "two-selected" else n_answering


def _make_laplace(params: SDQParams, epsilon_release: float, n_tables: int) -> DistributedLaplace:
    n_honest = 1 if params.noise == "two-selected" else params.n_honest
    return DistributedLaplace(
        epsilon_release, CellCounts(n_tables, params.max_rows), params.scope, n_honest
    )


def _make_noisy_max(params: SDQParams, epsilon_release: float) -> DistributedNoisyMax:
    return DistributedNoisyMax(
        epsilon_release, CountScore(params.max_rows), params.scope, params.n_honest
    )
