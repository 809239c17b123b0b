"""How much is left of the guarantee of secure sums when more collude than they were made for.

Each share of noise is made for n_honest of them: minimum - max_colluders. Those who collude know their own shares, and fewer are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.shared_gaussian import SharedGaussian, rho_of_shares
from shoal.mechanisms.shares import SharedLaplace
from shoal.privacy.zcdp import rho_to_epsilon
from shoal.protocols.pfds.params import GRID
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.pfds.residuals import clip_of
from shoal.protocols.pfds.spending import RESIDUALS
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.protocols.sdq.script import Script
from shoal.sim.details import Details, rounded

MOST_POINTS = 16
"""About so many numbers of colluders are told, at most."""
_TAIL = 12.0
"""How many times 1 / rate a law is followed outwards: what lies beyond changes a sum of products by a part of about exp(-24)."""


def left_epsilon(rate: float, shares: float, distance: int) -> float:
    """The least epsilon for one sum that a unit moves by so much, under what is left of shared Laplace noise.

    Parameters
    ----------
    rate
        Of the noise that was promised, for each unit of the sum.
    shares
        r: shares that nobody has told, over the number that noise was made for; at most 1.
    distance
        d, in units of the sum.

    Notes
    -----
    The noise is X - Y, two Polya variables. For r <= 1 their chances p(n) are mixtures of geometric ones, and so log-convex; so is every
    p(y + n) in n >= 0, and so is their sum P(n) = sum p(y) p(y + n). Therefore P(x) / P(x + d) is largest at x = 0, and its logarithm
    f(d) is concave in d, with f(0) = 0. For r = 1 it is rate d.

    Examples
    --------
    >>> [round(left_epsilon(1.0, shares, 1), 3) for shares in (1.0, 0.5)]
    [1.0, 1.675]
    """
    k = np.arange(math.ceil(_TAIL / rate) + distance)
    steps = np.log((k + shares) / (k + 1)) - rate
    side: npt.NDArray[np.float64] = np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    return math.log(side @ side) - math.log(side[:-distance] @ side[distance:])


def sdq_exposure(script: Script) -> list[Details]:
    """What is left of epsilon against the miner and so many databases, whatever they do; nothing where no sum is secure.

    Notes
    -----
    One of two selected databases that colludes leaves no epsilon at all (errata S-02). A joint choice needs an honest majority of its
    committee: with more colluders than it was made for, the scores of each database may be known, and their noise is one-sided.
    A unit moves as many counts of a question by 1 as its L1 sensitivity says.

    Privacy
    -------
    Unit and relation are those of the study.
    """
    params = script.params
    if params.trust == "local" or params.is_bare:
        return []

    def left(n_shares: int) -> float | None:
        if any(question.startswith("choice/") for question, _ in script.dearest):
            return None
        total = 0.0
        for question, times in script.dearest:
            told = script.prices[question].parameters
            total += times * float(told["sensitivity"]) * left_epsilon(1 / float(told["scale"]), n_shares / params.n_honest, 1)
        return total

    if params.noise == "two-selected":
        return _exposure(params, params.n_databases, 0, lambda _: None)
    return _exposure(params, params.n_databases, params.max_colluders, left)


def pfds_exposure(params: PFDSParams) -> list[Details]:
    """The same of holders whose sums are secure.

    Notes
    -----
    A row moves one cell of each table by a whole row, or two by half of it where the label is a number, which by concavity is the worst
    that it can do; and each residual by its clip.
    """
    if params.trust == "local" or params.is_bare:
        return []
    script = SumScript(params)

    def left(n_shares: int) -> float:
        total = rho = 0.0
        for question in script.questions:
            mechanism = script.mechanism(question)
            if isinstance(mechanism, SharedGaussian):
                rho += rho_of_shares(mechanism.sigma_squared, n_shares, mechanism.l2_squared, mechanism.dimension)
                continue
            assert isinstance(mechanism, SharedLaplace)
            move = clip_of(params) if question.startswith(RESIDUALS) else GRID // 2 if params.is_number else GRID
            n_moved = float(mechanism.sensitivity) / move
            total += n_moved * left_epsilon(float(mechanism.rate), n_shares / params.n_honest, move)
        return rho_to_epsilon(rho, params.delta) if rho else total

    return _exposure(params, params.n_holders, params.max_colluders, left)


def _exposure(params: SDQParams | PFDSParams, n: int, claimed: int, left: Callable[[int], float | None]) -> list[Details]:
    """Epsilon by number of colluders: the study's as far as it is claimed, and then what as many shares of noise leave."""
    told, remaining = [], cache(left)
    for c in _numbers(n, claimed):
        epsilon = params.epsilon if c <= claimed else remaining(_n_left(params, n, c))
        told.append({"colluders": c, "epsilon": None if epsilon is None else rounded(epsilon), "claimed": c <= claimed})
    return told


def _n_left(params: SDQParams | PFDSParams, n: int, c: int) -> int:
    """Shares of noise that c colluders cannot take away.

    Notes
    -----
    They choose who is among the fewest that answer. From 2 minimum - n of them on, two lists of survivors need not have an honest signer in
    common, and with one of each kind they open what a single member has sent: its own share is all that is left.
    """
    return params.minimum - c if c < 2 * params.minimum - n else 1


def _numbers(n: int, claimed: int) -> list[int]:
    """Numbers of colluders, from none to all but one: all of them, or some with what is claimed and one more."""
    spread = np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int).tolist()
    return sorted({*spread, claimed, min(claimed + 1, n - 1)})
