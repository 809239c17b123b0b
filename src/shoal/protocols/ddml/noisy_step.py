"""Clip a gradient, quantise it, add noise; the price of an update.

`DDMLPeer` draws its updates with `make_step` and prices them with `price_update`. Step and price
must follow from the same parameters. All steps are integers in units of the grid: weights are sent
as multiples of 2^-fraction_bits, and noise on known floats would leak in their low bits (errata
D-04).
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
from shoal.mechanisms.exact import float_up
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.k_closest import KClosest
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.privacy.accountant import epsilon_to_rho
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import float_from_grains, grains_up
from shoal.protocols.ddml.merging import MAX_WEIGHT, find_blend_factor
from shoal.protocols.ddml.params import (
    ADVERSARY,
    DDMLParams,
    NoiseMechanism,
    l1_clip,
    noise_lengths,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def _normalise(gradient: Floats, norm: int) -> tuple[Floats, float]:
    """Return a vector of norm 1, and the norm of the gradient.

    The vector is the first axis for a gradient of zero. No intermediate square overflows.
    """
    peak = float(np.abs(gradient).max())
    if peak == 0:
        return np.eye(1, gradient.size)[0], 0.0
    shape = gradient / peak
    length = float(np.linalg.norm(shape, norm))
    return shape / length, peak * length


def _clip_step(gradient: Floats, scale: float, max_length: float, norm: int) -> Floats:
    """Return the step for a gradient, with a norm of at most ``max_length``.

    With norm 0, each weight is clipped separately.
    """
    if norm == 0:
        with np.errstate(over="ignore"):
            return np.clip(-scale * gradient, -max_length, max_length)
    unit, size = _normalise(gradient, norm)
    return -min(scale * size, max_length) * unit


@dataclass(frozen=True)
class UpdateStep(ABC):
    """A mechanism that perturbs a gradient.

    Parameters
    ----------
    scale
        gamma in units of the grid: the length of the step for a gradient of length 1.
    """

    scale: float

    @property
    @abstractmethod
    def event(self) -> Event | None:
        """The release for the accountant; None without noise, and therefore without a price."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Root mean square over the weights of a step without a gradient, which is noise alone.

        In units of the grid.
        """

    @abstractmethod
    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        """Draw the step ``(p,)`` that is added to the drawn instance.

        ``gradient`` is the average gradient ``(p,)`` of a device's rows.
        """


@dataclass(frozen=True)
class NoiselessStep(UpdateStep):
    """A step without noise, for simulations of its cost in accuracy.

    Parameters
    ----------
    clip, norm
        The clip of a gradient and its norm: 2, or 0 for the size of each weight.
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
        return np.rint(_clip_step(gradient, self.scale, self.scale * self.clip, self.norm)).astype(
            np.int64
        )


@dataclass(frozen=True)
class AdditiveStep(UpdateStep):
    """A step with integer noise on each weight.

    Parameters
    ----------
    bound
        The largest norm of a step, in units of the grid, that the noise is made for.
    norm
        1 or 2 for the norm of the whole step, or 0 for the size of each weight.
    noise
        Discrete Laplace or discrete Gaussian noise.

    Notes
    -----
    Ref: DDML Algorithm 1, equation (4); errata D-01, D-04.

    Privacy
    -------
    Any two clipped steps are at most 2 bound apart in the norm: replace, for the whole update, or
    for each weight alone with norm 0.
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
    def max_norm(self) -> float:
        """The norm to which a step is clipped before it is rounded towards zero.

        A vector of integers is inside the bound if its norm, to its power, is below bound^norm + 1.
        The factor below 1 keeps it there after rounding of floats.
        """
        return (
            float(self.bound)
            if self.norm == 0
            else (self.bound**self.norm + 1) ** (1 / self.norm) * (1 - 1e-9)
        )

    def clip_gradient(self, gradient: Floats) -> Ints:
        """Return the step before noise: integers inside the bound."""
        return np.trunc(_clip_step(gradient, self.scale, self.max_norm, self.norm)).astype(np.int64)

    def draw(self, gradient: Floats, entropy: Entropy) -> Ints:
        return self.noise.randomise_many(self.clip_gradient(gradient), entropy)


@dataclass(frozen=True)
class ClosestStep(UpdateStep):
    """A step along one of M public random directions, more likely one close to the gradient's.

    Parameters
    ----------
    clip
        L2 norm to which the gradient is clipped.
    mechanism
        Chooses the direction.

    Notes
    -----
    A gradient shorter than the clip is reversed with probability (1 - |g| / clip) / 2, which makes
    the step unbiased. This is drawn before the mechanism, which is private for any direction.

    Privacy
    -------
    That of the mechanism, for the whole update: length and rounding are public, and only the
    direction depends on the rows.
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
        unit, size = _normalise(gradient, 2)
        share = min(1.0, size / self.clip)
        # The threshold need not be exact: the mechanism is private for either direction.
        is_reversed = entropy.word() < int((1 - share) * 2**63)
        return np.rint(
            self.reach * self.mechanism.randomise(unit if is_reversed else -unit, entropy)
        ).astype(np.int64)


@lru_cache(maxsize=256)
def make_step(params: DDMLParams, epoch: int = 0) -> UpdateStep:
    """Return the step of an epoch, with the mechanism of least variance.

    Unit, variant and delta restrict the mechanisms.

    Raises
    ------
    MechanismError
        ``MECH-001``: the grid is too coarse for the step, or step or noise would not fit into a
        weight.
    """
    _check_grid(params)
    return _MAKERS[params.rates.mechanism](params, params.gamma(epoch) * 2**params.fraction_bits)


def _check_grid(params: DDMLParams) -> None:
    """Raise `MechanismError` if the grid is too small or too coarse.

    It is too small if it cannot represent the first step, and too coarse if the last step, after
    blending, is rounded to nothing.
    """
    clip, mechanism = params.rates.clip, params.rates.mechanism
    noise = noise_lengths(params, clip)[mechanism] / math.sqrt(params.n_weights)
    first, last = (
        params.gamma(epoch) * 2**params.fraction_bits for epoch in (0, params.last_epoch)
    )
    largest, smallest = (
        first * max(clip, noise),
        last * find_blend_factor(params.merge) * (noise or clip),
    )
    if not largest <= MAX_WEIGHT:
        raise MechanismError(
            "MECH-001",
            f"Step or noise is {largest:.2g} units of the grid; a weight has room for "
            f"{MAX_WEIGHT:,}.",
            why="Weights are sent as 32-bit integers; larger values would be clipped.",
            fix="Set a smaller learning_rate or clip, fewer fraction_bits, or a larger epsilon.",
        )
    if smallest < 1:
        raise MechanismError(
            "MECH-001",
            f"An update would move an instance by {smallest:.2g} units of the grid: less than one.",
            why="Steps that are rounded to zero are never learned.",
            fix="Set more fraction_bits, a larger learning_rate or clip, or fewer updates.",
        )


def _make_noiseless_step(params: DDMLParams, scale: float) -> UpdateStep:
    return NoiselessStep(scale, params.rates.clip, 0 if params.unit == "weight" else 2)


def _make_each_weight_step(params: DDMLParams, scale: float) -> UpdateStep:
    bound = _count_grid_units(scale * params.rates.clip)
    return AdditiveStep(
        scale,
        bound,
        0,
        DiscreteLaplace(params.epsilon_release, ClippedVector(bound, 1, 1), params.scope),
    )


def _make_laplace_step(params: DDMLParams, scale: float) -> UpdateStep:
    bound = _count_grid_units(scale * l1_clip(params, params.rates.clip))
    query = ClippedVector(bound, 1, params.n_weights)
    return AdditiveStep(
        scale, bound, 1, DiscreteLaplace(params.epsilon_release, query, params.scope)
    )


def _make_gaussian_step(params: DDMLParams, scale: float) -> UpdateStep:
    bound = _count_grid_units(scale * params.rates.clip)
    query = ClippedVector(bound, 2, params.n_weights)
    return AdditiveStep(
        scale,
        bound,
        2,
        DiscreteGaussian(params.epsilon_release, params.delta_release, query, params.scope),
    )


def _make_closest_step(params: DDMLParams, scale: float) -> UpdateStep:
    _count_grid_units(scale * params.rates.clip)
    return ClosestStep(
        scale, params.rates.clip, KClosest(params.epsilon_release, params.n_weights, params.scope)
    )


_MAKERS: dict[NoiseMechanism, Callable[[DDMLParams, float], UpdateStep]] = {
    "none": _make_noiseless_step,
    "each-weight": _make_each_weight_step,
    "laplace": _make_laplace_step,
    "closest": _make_closest_step,
    "gaussian": _make_gaussian_step,
}


def _count_grid_units(size: float) -> int:
    """Return the size of a clipped step in whole units of the grid."""
    if size < 1:
        raise MechanismError(
            "MECH-001",
            f"The clipped step is {size:.2g} units of the grid: less than one.",
            why="Gradients are rounded to the grid, and all of them would become zero.",
            fix="Set more fraction_bits, a larger learning_rate or clip, or a larger epsilon.",
        )
    return math.floor(size)


def charge_update(event: Event, p: int) -> Event:
    """Return the cost of a whole update of p weights for its sender.

    It is p times the event's epsilon if the event prices each weight alone.

    Notes
    -----
    Ref: errata D-01.
    """
    if event.scope.unit is not Unit.WEIGHT:
        return event
    scope = replace(event.scope, unit=Unit.UPDATE, adversary=ADVERSARY)
    epsilon = float_from_grains(p * grains_up(event.epsilon))
    return replace(
        event, parameters={**event.parameters, "weights": p}, scope=scope, epsilon=epsilon
    )


@lru_cache(maxsize=256)
def price_update(params: DDMLParams) -> Event | None:
    """Return the charge for one update, the same in every epoch; None without noise."""
    event = make_step(params).event
    if event is None:
        return None
    if event.rho is not None:
        # The noise is made for this rho: sigma is rounded up from it, by an amount that differs
        # between epochs.
        event = replace(
            event,
            rho=float_up(Fraction(epsilon_to_rho(params.epsilon_release, params.delta_release))),
        )
    return charge_update(event, params.n_weights).with_reads(*params.columns)
