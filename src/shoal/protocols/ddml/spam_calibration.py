"""Simulate honest updates to calibrate the spam filter.

`spam_filter.calibrate_thresholds` calls `simulate_deviations` for the distances of honest updates
from the instances. The simulation uses the true distribution of noise, the largest allowed
gradients, and the common descent of instances.

Instances descend from each other, so that the reference of an update varies with the updates that
each instance descends from. Given these, the weights are independent and identically distributed,
and a few hundred of them represent any number. Everything is in units of sigma, the deviation of an
update's noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.k_closest import draw_normals
from shoal.protocols.ddml.merging import Weights, find_blend_factor, steady_variance
from shoal.protocols.ddml.noisy_step import (
    AdditiveStep,
    ClosestStep,
    NoiselessStep,
    UpdateStep,
    make_step,
)
from shoal.protocols.ddml.params import DDMLParams

Values = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Real = TypeVar("Real", np.float32, np.float64)

COLUMNS = 256
"""Number of simulated weights of each kind; a model may have far more."""

_MIN_UPDATES, _MAX_UPDATES, _MAX_LANES, _NUMBERS = 800, 40_000, 128, 1 << 23
"""Limits of the simulation.

Minimum and maximum of the updates of a population, maximum of populations, and the approximate
total of drawn numbers.
"""

_FIRST_UPDATES = 100
"""Updates that are measured before gradients have moved the instances apart."""


@dataclass(frozen=True)
class WeightGroup:
    """Weights with the same distribution: the columns that represent them, and their number."""

    columns: slice
    n_weights: int

    @property
    def n_columns(self) -> int:
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True)
class HonestUpdates(ABC):
    """The steps of honest updates with the largest allowed gradient, always in one direction.

    Parameters
    ----------
    step
        Perturbs a gradient.
    p
        Number of weights of the model.
    """

    step: UpdateStep
    p: int

    @property
    def q(self) -> int:
        """Number of simulated weights of each kind."""
        return min(self.p, COLUMNS)

    @property
    @abstractmethod
    def mixtures(self) -> tuple[tuple[WeightGroup, ...], ...]:
        """Possible models, side by side: the kinds of weights in each."""

    @property
    def groups(self) -> tuple[WeightGroup, ...]:
        """All kinds, in the order of their columns."""
        return tuple(kind for mix in self.mixtures for kind in mix)

    @abstractmethod
    def draw(self, n: int, entropy: Entropy) -> Values:
        """Draw steps, ``(n, columns)``."""


class WeightClippedUpdates(HonestUpdates):
    """Updates with a separate clip for each weight: gradients push no weight, or every one."""

    @property
    def mixtures(self) -> tuple[tuple[WeightGroup, ...], ...]:
        return (WeightGroup(slice(0, self.q), self.p),), (
            WeightGroup(slice(self.q, 2 * self.q), self.p),
        )

    def draw(self, n: int, entropy: Entropy) -> Values:
        moves = _draw_noise(self.step, n * 2 * self.q, entropy).reshape(n, -1)
        moves[:, self.q :] += _largest_step(self.step)
        return moves


class VectorClippedUpdates(HonestUpdates):
    """Updates with one clip, which are most extreme if one weight has all of the gradient."""

    @property
    def mixtures(self) -> tuple[tuple[WeightGroup, ...], ...]:
        return ((WeightGroup(slice(0, 1), 1), WeightGroup(slice(1, self.q), self.p - 1)),)

    def draw(self, n: int, entropy: Entropy) -> Values:
        if isinstance(self.step, ClosestStep):
            return self._draw_directions(self.step, n, entropy)
        moves = _draw_noise(self.step, n * self.q, entropy).reshape(n, -1)
        moves[:, 0] += _largest_step(self.step)
        return moves

    def _draw_directions(self, step: ClosestStep, n: int, entropy: Entropy) -> Values:
        """Draw reports of one length, uniform around the direction of the gradient."""
        along = step.mechanism.draw_alignments(n, entropy)
        rest = draw_normals(n * (self.q - 1), entropy).reshape(n, -1)
        length = (
            np.linalg.norm(rest, axis=1) if self.q == self.p else np.full(n, math.sqrt(self.p - 1))
        )
        rest *= (np.sqrt(self.p * (1 - along**2)) / length)[:, np.newaxis]
        return np.concatenate(
            [(math.sqrt(self.p) * along)[:, np.newaxis], rest], axis=1, dtype=np.float32
        )


def _draw_noise(step: UpdateStep, n: int, entropy: Entropy) -> Values:
    if not isinstance(step, AdditiveStep):
        return np.zeros(n, np.float32)
    return (
        step.noise.randomise_many(np.zeros(n, np.int64), entropy) / noise_deviation(step)
    ).astype(np.float32)


def _largest_step(step: UpdateStep) -> float:
    """Return the longest step before noise."""
    return step.bound / noise_deviation(step) if isinstance(step, AdditiveStep) else 1.0


def noise_deviation(step: UpdateStep) -> float:
    """Return the deviation of an update's noise, in units of the grid.

    Without noise it is the largest step of a weight.
    """
    return step.scale * step.clip if isinstance(step, NoiselessStep) else step.deviation


def make_honest_updates(params: DDMLParams) -> HonestUpdates:
    """Return the honest updates of a study."""
    step, p = make_step(params), params.n_weights
    each = isinstance(step, NoiselessStep) or (isinstance(step, AdditiveStep) and step.norm == 0)
    return WeightClippedUpdates(step, p) if each else VectorClippedUpdates(step, p)


@dataclass(frozen=True, eq=False)
class HonestDeviations:
    """The distances of simulated honest updates from the instances.

    Parameters
    ----------
    largest
        ``(n, kinds)``: the largest deviation among the columns of a kind.
    squares, fourths
        ``(n, kinds)``: mean over its columns of the second and the fourth power.
    """

    largest: Floats
    squares: Floats
    fourths: Floats


def simulate_deviations(
    params: DDMLParams, honest_updates: HonestUpdates, in_flight: int, entropy: Entropy
) -> tuple[HonestDeviations, HonestDeviations]:
    """Simulate honest updates, in many populations side by side.

    Return the deviations of the first updates, and of those in the steady state.

    Notes
    -----
    Centre and deviation of the instances are those of up to k updates ago, as a coordinator may
    keep them. Of the updates in flight, any may be the next to arrive. The first updates are
    compared with instances that only noise has moved apart; if gradients are longer than the noise,
    the first updates are further out than any later ones.
    """
    # All instances descend from one of about k^2 / 2 updates ago; an update in flight counts as
    # an instance.
    k = params.n_instances
    n = max(_MIN_UPDATES, min(_MAX_UPDATES, 2 * (k + in_flight) ** 2), 4 * in_flight)
    lanes = max(1, min(_MAX_LANES, _NUMBERS // n // honest_updates.groups[-1].columns.stop))
    rounds = _simulate_rounds(params, honest_updates, in_flight, lanes, entropy)
    n_first, n_settling = -(-_FIRST_UPDATES // k), n // 2 // k
    first = _measure_rounds(islice(rounds, n_first), honest_updates)
    return first, _measure_rounds(
        islice(rounds, max(0, n_settling - n_first), max(1, n_settling - n_first + n // k)),
        honest_updates,
    )


def _measure_rounds(
    rounds: Iterable[tuple[Values, Values, Values]], honest_updates: HonestUpdates
) -> HonestDeviations:
    figures = zip(*(_measure_round(*each, honest_updates) for each in rounds), strict=True)
    return HonestDeviations(*(np.concatenate(figure).astype(np.float64) for figure in figures))


def _simulate_rounds(
    params: DDMLParams, honest_updates: HonestUpdates, in_flight: int, lanes: int, entropy: Entropy
) -> Iterator[tuple[Values, Values, Values]]:
    """Yield k updates ``(k, lanes, columns)``, and centre and deviation before them, without end.

    Centre and deviation have shape ``(lanes, columns)``.
    """
    k, blend_factor, each = (
        params.n_instances,
        np.float32(find_blend_factor(params.merge)),
        np.arange(lanes),
    )
    instances = honest_updates.draw(k * lanes, entropy).reshape(k, lanes, -1) * np.float32(
        math.sqrt(steady_variance(k, float(blend_factor)))
    )
    pending = instances[0] + honest_updates.draw((in_flight + 1) * lanes, entropy).reshape(
        in_flight + 1, lanes, -1
    )
    free = np.zeros(lanes, np.int64)
    while True:
        centre, deviation = compute_centre_and_deviation(instances)
        updates = honest_updates.draw(k * lanes, entropy).reshape(k, lanes, -1)
        drawn, slots = entropy.below_many(k, 2 * k * lanes).reshape(2, k, lanes)
        places = entropy.below_many(in_flight + 1, k * lanes).reshape(k, lanes)
        for i in range(k):
            pending[free, each] = instances[drawn[i], each] + updates[i]
            free = places[i]
            updates[i] = pending[free, each]
            instances[slots[i], each] += blend_factor * (updates[i] - instances[slots[i], each])
        yield updates, centre, deviation


def _measure_round(
    updates: Values, centre: Values, deviation: Values, honest_updates: HonestUpdates
) -> tuple[Values, Values, Values]:
    """Return largest deviation, and means of second and fourth powers, each ``(n, kinds)``."""
    squares, variances, figures = (updates - centre) ** 2, deviation**2, []
    for mix in honest_updates.mixtures:
        pooled = (
            sum(
                variances[:, kind.columns].mean(axis=1, keepdims=True) * kind.n_weights
                for kind in mix
            )
            / honest_updates.p
        )
        for kind in mix:
            part = squares[..., kind.columns] / pool_variances(
                variances[:, kind.columns], pooled, 1.0
            )
            figures.append(
                [
                    np.sqrt(part.max(axis=-1)).ravel(),
                    part.mean(axis=-1).ravel(),
                    (part**2).mean(axis=-1).ravel(),
                ]
            )
    largest, seconds, fourths = (np.stack(figure, axis=1) for figure in zip(*figures, strict=True))
    return largest, seconds, fourths


@overload
def compute_centre_and_deviation(
    instances: npt.NDArray[Real],
) -> tuple[npt.NDArray[Real], npt.NDArray[Real]]: ...
@overload
def compute_centre_and_deviation(instances: Weights) -> tuple[Floats, Floats]: ...
def compute_centre_and_deviation(
    instances: npt.NDArray[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return mean and standard deviation (divisor k - 1) over the first axis.

    The deviation of a single instance is zero.
    """
    centre = instances.mean(axis=0)
    return centre, instances.std(axis=0, ddof=1) if len(instances) > 1 else np.zeros_like(centre)


def pool_variances(
    variances: npt.NDArray[Real], pooled: npt.NDArray[Real] | float, sigma: float
) -> npt.NDArray[Real]:
    """Return the squared units of the deviations, in the memory of ``variances``.

    Notes
    -----
    k instances estimate the variance of one weight badly: if the estimate is small by chance, an
    honest update looks far away. The variance of all weights together ignores that some move more
    than others. Half of each gave the lowest thresholds of the four rules tried.
    """
    variances *= 0.5
    variances += 0.5 * pooled + sigma * sigma
    return variances
