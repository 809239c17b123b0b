"""The noisy step of one update: a gradient is clipped, brought to the grid and hidden. What it costs follows from the same figures.

All steps are integers in units of the grid: weights travel as multiples of 2^-fraction_bits, and noise on known floats would leak in
their low bits (errata D-04).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.closest import KClosest
from shoal.mechanisms.exact import float_up
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import float_from_grains, grains_up
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.ddml.merging import LIMIT, part_of
from shoal.protocols.ddml.params import ADVERSARY, Params
from shoal.protocols.ddml.rates import Hiding, l1_clip, noise_lengths

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def _unit_and_size(gradient: Floats, norm: int) -> tuple[Floats, float]:
    """A vector of norm 1 and the norm of the gradient; the first axis for a gradient of zero. No square on the way leaves the floats."""
    peak = float(np.abs(gradient).max())
    if peak == 0:
        return np.eye(1, gradient.size)[0], 0.0
    shape = gradient / peak
    length = float(np.linalg.norm(shape, norm))
    return shape / length, peak * length


def _shortened(gradient: Floats, scale: float, most: float, norm: int) -> Floats:
    """The step that a gradient asks for, of norm ``most`` at most; with norm 0, each weight for itself."""
    if norm == 0:
        with np.errstate(over="ignore"):
            return np.clip(-scale * gradient, -most, most)
    unit, size = _unit_and_size(gradient, norm)
    return -min(scale * size, most) * unit


@dataclass(frozen=True)
class Step(ABC):
    """A way to hide a gradient.

    Parameters
    ----------
    scale
        gamma in units of the grid: a gradient of 1 is a step of so many.
    """

    scale: float

    @property
    @abstractmethod
    def event(self) -> Event | None:
        """The release as the accountant sees it; None where there is no noise, and therefore no price."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Root mean square, over the weights, of a step without a gradient: of what is noise alone. In units of the grid."""

    @abstractmethod
    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        """What is added to the drawn instance, ``(p,)``, for the average gradient ``(p,)`` of a device's rows."""


@dataclass(frozen=True)
class BareStep(Step):
    """No noise: for simulations of what is lost by it.

    Parameters
    ----------
    clip, norm
        What a gradient is clipped to, and in which norm: 2, or 0 for the size of each weight.
    """

    clip: float
    norm: int

    @property
    def event(self) -> None:
        return None

    @property
    def deviation(self) -> float:
        return 0.0

    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        return np.rint(_shortened(gradient, self.scale, self.scale * self.clip, self.norm)).astype(np.int64)


@dataclass(frozen=True)
class AdditiveStep(Step):
    """Integer noise on each weight.

    Parameters
    ----------
    bound
        The largest norm of a step, in units of the grid, that the noise is made for.
    norm
        Which norm: 1 or 2 of the whole step, or 0 for the size of each weight.
    noise
        Discrete Laplace or discrete Gaussian noise.

    Notes
    -----
    Ref: DDML Algorithm 1, equation (4); errata D-01, D-04.

    Privacy
    -------
    Any two clipped steps are at most 2 bound apart in the norm: replace, for the whole update, or for each weight alone with norm 0.
    """

    bound: int
    norm: int
    noise: DiscreteLaplace | DiscreteGaussian

    @property
    def event(self) -> Event:
        return self.noise.event()

    @property
    def deviation(self) -> float:
        return math.sqrt(self.noise.variance())

    @property
    def most(self) -> float:
        """What the norm of a step is clipped to before it is rounded towards zero.

        A vector of integers whose norm, to its power, is below bound^norm + 1 is inside the bound. A hair is taken off, so that no rounding
        of floats can lift it there.
        """
        return float(self.bound) if self.norm == 0 else (self.bound**self.norm + 1) ** (1 / self.norm) * (1 - 1e-9)

    def clipped(self, gradient: Floats) -> Ints:
        """The step before noise: inside the bound, in integers."""
        return np.trunc(_shortened(gradient, self.scale, self.most, self.norm)).astype(np.int64)

    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        return self.noise.randomise_many(self.clipped(gradient), entropy)


@dataclass(frozen=True)
class ClosestStep(Step):
    """One of M public random directions, more likely one of those close to the gradient's.

    Parameters
    ----------
    clip
        L2 norm to which the gradient is clipped.
    mechanism
        The choice among the directions.

    Notes
    -----
    A gradient shorter than the clip is turned about with chance (1 - |g| / clip) / 2, which makes the step right on average. The turn is
    drawn before the mechanism, which is private for any direction it is given.

    Privacy
    -------
    That of the mechanism, for the whole update: length and rounding are public, and the direction is all that depends on the rows.
    """

    clip: float
    mechanism: KClosest

    @property
    def event(self) -> Event:
        return self.mechanism.event()

    @property
    def reach(self) -> float:
        """Length of every step, in units of the grid."""
        return self.scale * self.clip / self.mechanism.alignment

    @property
    def deviation(self) -> float:
        return self.reach / math.sqrt(self.mechanism.dimension)

    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        unit, size = _unit_and_size(gradient, 2)
        share = min(1.0, size / self.clip)
        # An exact threshold is not needed: whichever way the coin falls, what follows is private.
        is_turned = entropy.word() < int((1 - share) * 2**63)
        return np.rint(self.reach * self.mechanism.randomise(unit if is_turned else -unit, entropy)).astype(np.int64)


@lru_cache(maxsize=256)
def make_step(params: Params, epoch: int = 0) -> Step:
    """The step of an epoch: of the mechanisms that unit, variant and delta allow, the one with the least variance.

    Raises
    ------
    MechanismError
        ``MECH-001``: the grid is too coarse for the step, or step or noise would not fit into a weight.
    """
    _check_grid(params)
    return _MAKERS[params.rates.hiding](params, params.gamma(epoch) * 2**params.fraction_bits)


def _check_grid(params: Params) -> None:
    """Refuse a grid that the first step leaves, or in which the last one is lost where an instance moves a part of the way to it."""
    clip, hiding = params.rates.clip, params.rates.hiding
    noise = noise_lengths(params, clip)[hiding] / math.sqrt(params.n_weights)
    first, last = (params.gamma(epoch) * 2**params.fraction_bits for epoch in (0, params.last_epoch))
    largest, smallest = first * max(clip, noise), last * part_of(params.merge) * (noise or clip)
    if not largest <= LIMIT:
        raise MechanismError(
            "MECH-001",
            f"Step or noise is {largest:.2g} units of the grid; a weight has room for {LIMIT:,}.",
            why="Weights travel as 32-bit integers, and what is larger would be cut off.",
            fix="Give a smaller learning_rate or clip, fewer fraction_bits, or a larger epsilon.",
        )
    if smallest < 1:
        raise MechanismError(
            "MECH-001",
            f"An update would move an instance by {smallest:.2g} units of the grid: less than one.",
            why="What is rounded away is never learned.",
            fix="Give more fraction_bits, a larger learning_rate or clip, or fewer updates in all.",
        )


def _bare(params: Params, scale: float) -> Step:
    return BareStep(scale, params.rates.clip, 0 if params.unit == "weight" else 2)


def _each_weight(params: Params, scale: float) -> Step:
    bound = _in_grid(scale * params.rates.clip)
    return AdditiveStep(scale, bound, 0, DiscreteLaplace(params.epsilon_release, ClippedVector(bound, 1, 1), params.scope))


def _laplace(params: Params, scale: float) -> Step:
    bound = _in_grid(scale * l1_clip(params, params.rates.clip))
    query = ClippedVector(bound, 1, params.n_weights)
    return AdditiveStep(scale, bound, 1, DiscreteLaplace(params.epsilon_release, query, params.scope))


def _gaussian(params: Params, scale: float) -> Step:
    bound = _in_grid(scale * params.rates.clip)
    query = ClippedVector(bound, 2, params.n_weights)
    return AdditiveStep(scale, bound, 2, DiscreteGaussian(params.epsilon_release, params.delta_release, query, params.scope))


def _closest(params: Params, scale: float) -> Step:
    _in_grid(scale * params.rates.clip)
    return ClosestStep(scale, params.rates.clip, KClosest(params.epsilon_release, params.n_weights, params.scope))


_MAKERS: dict[Hiding, Callable[[Params, float], Step]] = {
    "none": _bare,
    "each-weight": _each_weight,
    "laplace": _laplace,
    "closest": _closest,
    "gaussian": _gaussian,
}


def _in_grid(size: float) -> int:
    """The size of a clipped step in whole units of the grid."""
    if size < 1:
        raise MechanismError(
            "MECH-001",
            f"The clipped step is {size:.2g} units of the grid: less than one.",
            why="Gradients are rounded to the grid, and this one would leave nothing of them.",
            fix="Give more fraction_bits, a larger learning_rate or clip, or a larger epsilon.",
        )
    return math.floor(size)


def charged(event: Event, p: int) -> Event:
    """What an update of p weights costs its sender as a whole: p times as much where each weight alone is priced by the event.

    Notes
    -----
    Ref: errata D-01.
    """
    if event.scope.unit is not Unit.WEIGHT:
        return event
    scope = replace(event.scope, unit=Unit.UPDATE, adversary=ADVERSARY)
    epsilon = float_from_grains(p * grains_up(event.epsilon))
    return replace(event, parameters={**event.parameters, "weights": p}, scope=scope, epsilon=epsilon)


@lru_cache(maxsize=256)
def price(params: Params) -> Event | None:
    """What a ledger is charged for one update, the same in every epoch; None without noise."""
    event = make_step(params).event
    if event is None:
        return None
    if event.rho is not None:
        # What the noise is made for: in each epoch sigma is rounded up from it, here more and there less.
        event = replace(event, rho=float_up(Fraction(epsilon_to_rho(params.epsilon_release, params.delta_release))))
    return charged(event, params.n_weights).reading(*params.columns)
