"""How far honest updates lie from the instances, by simulation: the law of noise, legal gradients, and a common descent.

Instances descend from each other, so that what an update is held against swings with their genealogy. Given the genealogy the weights are
independent and alike, and a few hundred of them stand for any number. Everything is in units of sigma, the deviation of an update's noise.
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
from shoal.mechanisms.directions import normals
from shoal.protocols.ddml.merging import Weights, part_of, steady_variance
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import AdditiveStep, BareStep, ClosestStep, Step, make_step

Values = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Real = TypeVar("Real", np.float32, np.float64)

COLUMNS = 256
"""Weights that are simulated of each kind; there may be far more."""

_LEAST_UPDATES, _MOST_UPDATES, _MOST_LANES, _NUMBERS = 800, 40_000, 128, 1 << 23
"""Updates that a population sees at least and at most, populations at most, and numbers drawn in all, roughly."""

_FIRST_UPDATES = 100
"""Updates that are looked at before the instances have spread as far as gradients make them."""


@dataclass(frozen=True)
class Kind:
    """Weights that behave alike: the columns that stand for them, and how many there are."""

    columns: slice
    n_weights: int

    @property
    def n_columns(self) -> int:
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True)
class Moves(ABC):
    """What honest updates add to the instance that was drawn, with the largest legal gradient, always in the same direction.

    Parameters
    ----------
    step
        How a gradient is hidden.
    p
        Weights of the model.
    """

    step: Step
    p: int

    @property
    def q(self) -> int:
        """Weights that are simulated of each kind."""
        return min(self.p, COLUMNS)

    @property
    @abstractmethod
    def mixes(self) -> tuple[tuple[Kind, ...], ...]:
        """Models that may arise, side by side: the kinds of weights that each is made of."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds, in the order of their columns."""
        return tuple(kind for mix in self.mixes for kind in mix)

    @abstractmethod
    def draw(self, n: int, entropy: Entropy) -> Values:
        """``(n, columns)`` moves."""


class AllPushed(Moves):
    """Each weight has its own clip: no weight may be pushed, or every one."""

    @property
    def mixes(self) -> tuple[tuple[Kind, ...], ...]:
        return (Kind(slice(0, self.q), self.p),), (Kind(slice(self.q, 2 * self.q), self.p),)

    def draw(self, n: int, entropy: Entropy) -> Values:
        moves = _noise(self.step, n * 2 * self.q, entropy).reshape(n, -1)
        moves[:, self.q :] += _push(self.step)
        return moves


class OnePushed(Moves):
    """The whole update has one clip, and is furthest out where one weight has all of it."""

    @property
    def mixes(self) -> tuple[tuple[Kind, ...], ...]:
        return ((Kind(slice(0, 1), 1), Kind(slice(1, self.q), self.p - 1)),)

    def draw(self, n: int, entropy: Entropy) -> Values:
        if isinstance(self.step, ClosestStep):
            return self._directions(self.step, n, entropy)
        moves = _noise(self.step, n * self.q, entropy).reshape(n, -1)
        moves[:, 0] += _push(self.step)
        return moves

    def _directions(self, step: ClosestStep, n: int, entropy: Entropy) -> Values:
        """Reports have one length; what does not lie along the gradient is uniform around it."""
        along = step.mechanism.alignments(n, entropy)
        rest = normals(n * (self.q - 1), entropy).reshape(n, -1)
        length = np.linalg.norm(rest, axis=1) if self.q == self.p else np.full(n, math.sqrt(self.p - 1))
        rest *= (np.sqrt(self.p * (1 - along**2)) / length)[:, np.newaxis]
        return np.concatenate([(math.sqrt(self.p) * along)[:, np.newaxis], rest], axis=1, dtype=np.float32)


def _noise(step: Step, n: int, entropy: Entropy) -> Values:
    if not isinstance(step, AdditiveStep):
        return np.zeros(n, np.float32)
    return (step.noise.randomise_many(np.zeros(n, np.int64), entropy) / sigma_of(step)).astype(np.float32)


def _push(step: Step) -> float:
    """The longest step before noise."""
    return step.bound / sigma_of(step) if isinstance(step, AdditiveStep) else 1.0


def sigma_of(step: Step) -> float:
    """Deviation of an update's noise, in units of the grid; where there is none, the largest step of a weight."""
    return step.scale * step.clip if isinstance(step, BareStep) else step.deviation


def moves_of(params: Params) -> Moves:
    """The moves of a study."""
    step, p = make_step(params), params.n_weights
    each = isinstance(step, BareStep) or (isinstance(step, AdditiveStep) and step.norm == 0)
    return AllPushed(step, p) if each else OnePushed(step, p)


@dataclass(frozen=True, eq=False)
class Deviations:
    """How far simulated honest updates lie from the instances.

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


def deviations(params: Params, moves: Moves, in_flight: int, entropy: Entropy) -> tuple[Deviations, Deviations]:
    """Simulate honest updates, in many populations side by side: the first ones, and those that come when all has settled.

    Notes
    -----
    Centre and spread of the instances are those of up to k updates ago, as a coordinator may keep them. Of the updates under way, any may
    be the next to arrive. The first updates are held against instances that only noise has spread; where gradients are longer than the
    noise, they lie further out than any later ones.
    """
    # Instances forget their genealogy in about k^2 / 2 updates; one that is under way counts as an instance.
    k = params.n_instances
    n = max(_LEAST_UPDATES, min(_MOST_UPDATES, 2 * (k + in_flight) ** 2), 4 * in_flight)
    lanes = max(1, min(_MOST_LANES, _NUMBERS // n // moves.kinds[-1].columns.stop))
    rounds = _rounds(params, moves, in_flight, lanes, entropy)
    n_first, n_settling = -(-_FIRST_UPDATES // k), n // 2 // k
    first = _figures(islice(rounds, n_first), moves)
    return first, _figures(islice(rounds, max(0, n_settling - n_first), max(1, n_settling - n_first + n // k)), moves)


def _figures(rounds: Iterable[tuple[Values, Values, Values]], moves: Moves) -> Deviations:
    figures = zip(*(_measure(*each, moves) for each in rounds), strict=True)
    return Deviations(*(np.concatenate(one).astype(np.float64) for one in figures))


def _rounds(params: Params, moves: Moves, in_flight: int, lanes: int, entropy: Entropy) -> Iterator[tuple[Values, Values, Values]]:
    """Of k updates each ``(k, lanes, columns)``, with centre and spread ``(lanes, columns)`` of the instances before them; without end."""
    k, part, each = params.n_instances, np.float32(part_of(params.merge)), np.arange(lanes)
    instances = moves.draw(k * lanes, entropy).reshape(k, lanes, -1) * np.float32(math.sqrt(steady_variance(k, float(part))))
    pending = instances[0] + moves.draw((in_flight + 1) * lanes, entropy).reshape(in_flight + 1, lanes, -1)
    free = np.zeros(lanes, np.int64)
    while True:
        centre, spread = centre_and_spread(instances)
        updates = moves.draw(k * lanes, entropy).reshape(k, lanes, -1)
        drawn, slots = entropy.below_many(k, 2 * k * lanes).reshape(2, k, lanes)
        places = entropy.below_many(in_flight + 1, k * lanes).reshape(k, lanes)
        for i in range(k):
            pending[free, each] = instances[drawn[i], each] + updates[i]
            free = places[i]
            updates[i] = pending[free, each]
            instances[slots[i], each] += part * (updates[i] - instances[slots[i], each])
        yield updates, centre, spread


def _measure(updates: Values, centre: Values, spread: Values, moves: Moves) -> tuple[Values, Values, Values]:
    """``(n, kinds)``: the largest deviation, and the means of the second and fourth powers."""
    squares, variances, found = (updates - centre) ** 2, spread**2, []
    for mix in moves.mixes:
        pooled = sum(variances[:, kind.columns].mean(axis=1, keepdims=True) * kind.n_weights for kind in mix) / moves.p
        for kind in mix:
            part = squares[..., kind.columns] / scales(variances[:, kind.columns], pooled, 1.0)
            found.append([np.sqrt(part.max(axis=-1)).ravel(), part.mean(axis=-1).ravel(), (part**2).mean(axis=-1).ravel()])
    largest, seconds, fourths = (np.stack(one, axis=1) for one in zip(*found, strict=True))
    return largest, seconds, fourths


@overload
def centre_and_spread(instances: npt.NDArray[Real]) -> tuple[npt.NDArray[Real], npt.NDArray[Real]]: ...
@overload
def centre_and_spread(instances: Weights) -> tuple[Floats, Floats]: ...
def centre_and_spread(instances: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Mean and standard deviation (divisor k - 1) over the first axis; a single instance has no spread."""
    centre = instances.mean(axis=0)
    return centre, instances.std(axis=0, ddof=1) if len(instances) > 1 else np.zeros_like(centre)


def scales(variances: npt.NDArray[Real], pooled: npt.NDArray[Real] | float, sigma: float) -> npt.NDArray[Real]:
    """The squares of what deviations are measured in, written over the instances' ``variances``.

    Notes
    -----
    k instances tell the variance of one weight badly: where it comes out small by chance, an honest update looks far away. The variance of
    all weights together misses that some move more than others. Half of each gave the lowest thresholds of the four rules tried.
    """
    variances *= 0.5
    variances += 0.5 * pooled + sigma * sigma
    return variances
