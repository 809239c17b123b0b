"""A model that comes back is accepted or refused from the k instances alone: nobody knows which of them it was made from.

A weight's deviation is z = (w - centre) / sqrt(s^2 + sigma^2), where s^2 is the variance of the instances, half this weight's and half that
of all weights, and sigma^2 that of an honest update's noise. An update is refused if one z is too large, or all of them together are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.honest import Deviations, Kind, Moves, centre_and_spread, deviations, moves_of, scales, sigma_of
from shoal.protocols.ddml.merging import LIMIT, Weights
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.passes import in_one_piece, passes_for
from shoal.protocols.ddml.step import make_step

Values = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

CHANCE = 0.0025
"""How often each of the two tests may refuse an honest update."""

_TAIL = 100
"""Samples in the tail from which a rarer quantile is foretold."""

OUT_OF_RANGE = "a weight lies outside the range of weights"
ONE_TOO_FAR = "a weight lies further from the instances than honest noise and gradients reach"
ALL_TOO_FAR = "the weights together lie further from the instances than honest noise and gradients reach"


@dataclass(frozen=True)
class Thresholds:
    """The largest deviation of a weight, and the root mean square over all weights, that are still accepted."""

    largest: float
    rms: float


@lru_cache(maxsize=64)
def calibrate(params: Params, in_flight: int = 0, spam_threshold: float | None = None) -> Thresholds:
    """Thresholds that refuse about one honest update of 200: the same for everyone, because they are simulated from public figures.

    Parameters
    ----------
    params
        The study.
    in_flight
        Updates that are under way, on average, when one arrives.
    spam_threshold
        t, where the study sets the largest deviation itself.

    Notes
    -----
    Ref: DDML §III-D4, which leaves t open. Gradients are the largest that are legal, always in the same direction.
    """
    moves = moves_of(params)
    entropy = SeededEntropy(f"ddml spam {params.n_instances} {params.merge} {params.n_weights} {in_flight}")
    both = deviations(params, moves, in_flight, entropy)
    thresholds = Thresholds(max(_largest(seen, moves) for seen in both), max(_rms(seen, moves) for seen in both))
    return thresholds if spam_threshold is None else replace(thresholds, largest=spam_threshold)


def _largest(seen: Deviations, moves: Moves) -> float:
    """Given the genealogy the weights are independent: n of them go too far at most n / q times as often as q do."""
    return max(
        _quantile(seen.largest[:, i], CHANCE / len(mix) * kind.n_columns / kind.n_weights)
        for i, (mix, kind) in enumerate((mix, kind) for mix in moves.mixes for kind in mix)
    )


def _rms(seen: Deviations, moves: Moves) -> float:
    """The worst of the models that may arise."""
    squares = iter([_for_all_weights(seen, i, kind) for i, kind in enumerate(moves.kinds)])
    models = [np.average([next(squares) for _ in mix], axis=0, weights=[kind.n_weights for kind in mix]) for mix in moves.mixes]
    return math.sqrt(max(_quantile(means, CHANCE) for means in models))


def _for_all_weights(seen: Deviations, i: int, kind: Kind) -> Floats:
    """Mean squares of all weights of a kind, from those of its columns: what more weights would average out is taken off."""
    squares = seen.squares[:, i]
    if kind.n_columns == kind.n_weights:
        return squares
    mean, swing = float(squares.mean()), float(squares.var())
    within = float((seen.fourths[:, i] - squares**2).mean())
    # What the genealogy does, with a standard error of it, and what is left of the weights' own swing.
    kept = max(0.0, swing - within / kind.n_columns) + swing * math.sqrt(2 / squares.size) + within / kind.n_weights
    drawn_in: Floats = mean + math.sqrt(kept / swing) * (squares - mean) if swing else squares
    return drawn_in


def _quantile(values: Floats, chance: float) -> float:
    """What is exceeded with a chance; beyond the reach of the sample by an exponential tail, the heaviest that occurs here."""
    known = max(chance, _TAIL / values.size)
    edge = float(np.quantile(values, 1 - known))
    beyond = values[values > edge]
    return edge + (float(beyond.mean()) - edge) * math.log(known / chance) if beyond.size else edge


class Filter:
    """Accepts or refuses the models that come back to a coordinator.

    Examples
    --------
    >>> from shoal.domain import Categorical, Numeric, Schema
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=4.0, size=10_000, variant="paper")
    >>> spam = Filter(params, calibrate(params, in_flight=5))
    >>> instances = np.zeros((20, 2), np.int32)
    >>> spam.judge_all(np.zeros(2, np.int32), instances)
    >>> spam.judge_all(np.full(2, 1 << 30, np.int32), instances)
    'the weights together lie further from the instances than honest noise and gradients reach'
    """

    def __init__(self, params: Params, thresholds: Thresholds) -> None:
        self.params = params
        self.thresholds = thresholds
        self._sigma = sigma_of(make_step(params))
        # Steps and merges are rounded to the grid, which moves a deviation by up to a unit of it.
        self._rms, self._largest = thresholds.rms + 1 / self._sigma, thresholds.largest + 1 / self._sigma

    def judge(self, weights: Weights, centre: Floats, spread: Floats, epoch: int = 0) -> str | None:
        """Why an update ``(p,)`` is refused, or None.

        Parameters
        ----------
        weights
            The model that came back.
        centre, spread
            Mean and standard deviation (divisor k - 1) of each weight over the instances; of up to k updates ago.
        epoch
            Of the update: its noise falls with the learning rate, where that falls.
        """
        return self.gauge(centre, spread).judge(weights, epoch)

    def gauge(self, centre: Floats, spread: Floats) -> Gauge:
        """What judges many updates against the same mean and standard deviation."""
        return Gauge(self.params, (self._sigma, self._rms, self._largest), centre, spread)

    def judge_all(self, weights: Weights, instances: Weights, epoch: int = 0) -> str | None:
        """The same from the instances ``(k, p)`` themselves."""
        return self.judge(weights, *centre_and_spread(instances.astype(np.float64)), epoch)


class Gauge:
    """Judges updates against one mean and standard deviation of the instances; made by `Filter.gauge`.

    Notes
    -----
    In single precision, which is three times as fast: a weight is off by 6e-8 of itself, a hair of any honest deviation.
    """

    def __init__(self, params: Params, limits: tuple[float, float, float], centre: Floats, spread: Floats) -> None:
        self._gamma = params.gamma
        self._sigma, self._rms, self._largest = limits[0] / params.gamma(), limits[1] ** 2 * centre.size, limits[2]
        self._centre, self._spread = centre.astype(np.float32), spread
        self._parts: dict[float, Values] = {}
        self._passes = passes_for(centre.size)

    def judge(self, weights: Weights, epoch: int = 0) -> str | None:
        """Why an update ``(p,)`` is refused, or None; see `Filter.judge`."""
        gamma = self._gamma(epoch)
        parts = self._parts.get(gamma)
        if parts is None:
            parts = self._parts[gamma] = self._parts_of(gamma)
        square, is_beyond, lowest = self._deviations(weights, parts)
        if lowest < -LIMIT:
            return OUT_OF_RANGE
        if square > self._rms:
            return ALL_TOO_FAR
        return ONE_TOO_FAR if is_beyond else None

    def _deviations(self, weights: Weights, parts: Values) -> tuple[float, bool, int]:
        """The sum of squares of all deviations, whether one is too large, and the lowest weight."""
        if self._passes is not None:
            square, n_beyond, low = self._passes.deviations(in_one_piece(weights), self._centre, parts, self._largest**2)
            return square, n_beyond > 0, low
        z = weights.astype(np.float32)
        z -= self._centre
        z *= parts
        # Of few weights, argmin is found three times as fast as min; a product of vectors as long as these is for one thread.
        is_beyond = max(z[z.argmax()], -z[z.argmin()]) > self._largest
        return float(np.einsum("i,i->", z, z)), bool(is_beyond), int(weights[weights.argmin()])

    def _parts_of(self, gamma: float) -> Values:
        """What deviations are multiplied by, for the noise at this learning rate."""
        pooled = float(np.einsum("i,i->", self._spread, self._spread)) / self._spread.size
        if self._passes is not None:
            parts = np.empty(self._spread.size, np.float32)
            self._passes.units(self._spread, float(scales(np.zeros(1), pooled, self._sigma * gamma)[0]), parts)
            return parts
        return (1 / np.sqrt(scales(self._spread**2, pooled, self._sigma * gamma))).astype(np.float32)
