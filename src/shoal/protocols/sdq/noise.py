"""The noise of a study's sums: who adds which part of it, what it costs and how large it is."""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import Entropy
from shoal.mechanisms.exponential import CountScore
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shares import SharedLaplace, SharedMax
from shoal.privacy.events import Event
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Part, Round

ADDS, SUBTRACTS = 1, 2
"""What a selected database does."""


def mechanism_of(params: Params, part: Part, is_choice: bool = False) -> SharedLaplace | SharedMax | None:
    """What hides a part of a round; None where nothing does, which only a simulation may ask for."""
    if part.epsilon == math.inf:
        return None
    return _max(params, part.epsilon) if is_choice else _laplace(params, part.epsilon, part.n_tables)


def price_of(params: Params, epsilon_release: float, n_tables: int = 1) -> Event:
    """What a sum costs one unit."""
    return _laplace(params, epsilon_release, n_tables).event()


def price_of_choice(params: Params, epsilon_release: float) -> Event:
    """What a choice costs one unit."""
    return _max(params, epsilon_release).event()


def deviation_of(params: Params, epsilon_release: float, n_tables: int = 1) -> float:
    """Standard deviation of the noise on one number of a sum that every database answers; 0 without noise."""
    if epsilon_release == math.inf:
        return 0.0
    return math.sqrt(_laplace(params, epsilon_release, n_tables).variance(_n_shares(params, params.n_databases)))


def noisy(params: Params, part: Part, table: Table, is_choice: bool, role: int | None, entropy: Entropy) -> Ints:
    """What one database answers to a part of a round: its counts, with its part of the noise.

    Parameters
    ----------
    role
        Two selected: what this database does, if it was selected; 0 for nothing.

    Notes
    -----
    Ref: SDQ Algorithm 2, lines 4 and 5; errata S-04, S-08.

    Privacy
    -------
    By itself an answer is not private: only the sum is, and nothing but a masked or shared answer may leave. With trust local an answer
    carries all of the noise.
    """
    counts, mechanism = part.count(table), mechanism_of(params, part, is_choice)
    assert mechanism is not None, "a peer has no answer without a price"
    if params.noise == "two-selected" and isinstance(mechanism, SharedLaplace):
        assert role is not None, "nobody answers before two were selected"
        # Everyone draws, so that the time of an answer does not tell who was selected.
        return counts + {ADDS: 1, SUBTRACTS: -1}.get(role, 0) * mechanism.side(part.size, entropy)
    return counts + mechanism.share(part.size, entropy)


def summed_noise(params: Params, asked: Round, n_answering: int, entropy: Entropy) -> Ints:
    """The noise on the sums of a round that so many databases answer, for simulations: drawn at once, by the same law."""
    drawn = [np.zeros(0, np.int64)]
    for part in asked.parts:
        mechanism = mechanism_of(params, part, asked.is_choice)
        nothing = np.zeros(part.size, np.int64)
        drawn.append(nothing if mechanism is None else mechanism.summed(part.size, _n_shares(params, n_answering), entropy))
    return np.concatenate(drawn)


def _n_shares(params: Params, n_answering: int) -> int:
    """Shares of noise in a sum: one of every database; of two that were selected, both halves of the whole."""
    return 1 if params.noise == "two-selected" else n_answering


def _laplace(params: Params, epsilon_release: float, n_tables: int) -> SharedLaplace:
    n_honest = 1 if params.noise == "two-selected" else params.n_honest
    return SharedLaplace(epsilon_release, Histogram(n_tables, params.max_rows), params.scope, n_honest)


def _max(params: Params, epsilon_release: float) -> SharedMax:
    return SharedMax(epsilon_release, CountScore(params.max_rows), params.scope, params.n_honest)
