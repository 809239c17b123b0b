"""General distinguishers: single numbers, pairs of numbers, and a classifier of all bytes.

The audit of each protocol calls `observe_reports`. The other observations of an audit are about the
parts of an output that an honest peer puts its rows into. These search everything that leaves: the
parity of a weight, the other cells of a report, noise that two numbers share.

Any number of candidates is searched in the first part of the samples; the rest tests only the best
one. So a search is one test, however many candidates it has, and a change must keep the rest of
the samples out of the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import Keys, choose_set
from shoal.audit.observations import Observation, rank_samples
from shoal.privacy.accountant import Loss

Floats = npt.NDArray[np.float64]
Octets = npt.NDArray[np.uint8]
Column = TypeVar("Column", bound=np.generic)

MAX_NUMBERS, MAX_BYTES = 512, 4096
"""Most numbers and bytes of one output that are searched; of longer outputs evenly spaced ones."""
SEARCH_SAMPLES = 2000
"""Most outputs of each neighbour to search in, if outputs are not drawn one by one anyway."""
_MAX_BITS = 1024
"""Most bits whose pairs are searched."""
_N_BEST = 8
"""Candidates of each kind of which the bound is estimated."""
_N_FEATURES = 64
"""Most bits, and most pairs of bits, that the classifier is trained on."""
_RIDGE = 10.0
_NEWTON_STEPS = 8
_SAMPLES_PER_VALUE = 16
"""Fewest samples for each value, on average, to compare values one by one and not in bins."""
_CONTEXT_SHIFT = 32
"""Numbers with a context are below 2^32."""
_SEARCH_ALPHA = 1e-4
"""The error probability for which bounds are estimated in a search."""


def choose_evenly(length: int, most: int) -> slice:
    """Return up to ``most`` evenly spaced positions.

    The distance is odd, so that the bytes of 32-bit and 64-bit numbers have all places in turn.
    """
    return slice(None, None, 1 if length <= most else -(-length // most) | 1)


def stack_rows(
    first: Sequence[npt.NDArray[Any]], second: Sequence[npt.NDArray[Any]], dtype: type[Column]
) -> tuple[npt.NDArray[Column], npt.NDArray[Column]]:
    """Return the rows of two neighbours as matrices of one width; short rows end with zeros."""
    width = max(1, *(row.size for row in (*first, *second)))
    matrices = []
    for rows in (first, second):
        matrix = np.zeros((len(rows), width), dtype)
        for i, row in enumerate(rows):
            matrix[i, : row.size] = row
        matrices.append(matrix)
    return matrices[0], matrices[1]


@dataclass(frozen=True, eq=False)
class Reports:
    """The outputs of equally many peers with each of two neighbours.

    Parameters
    ----------
    numbers
        ``(n, k)`` each: the numbers in the reports, such as the bits of cells, weights or counts.
    contexts
        ``(n, k)`` each: an integer for what a number is about, such as a question. A number is
        also compared within each context.
    octets
        ``(n, b)`` each: the bytes of all messages, or of the numbers if only a sum is opened.
    """

    numbers: tuple[Keys, Keys]
    contexts: tuple[Keys, Keys]
    octets: tuple[Octets, Octets]

    @classmethod
    def from_numbers(cls, first: Keys, second: Keys) -> Reports:
        """Return reports of numbers alone, each with eight bytes."""
        first, second = (
            one[:, choose_evenly(one.shape[1], MAX_NUMBERS)] for one in (first, second)
        )
        zeros = np.zeros_like(first), np.zeros_like(second)
        octets = [np.ascontiguousarray(one, "<i8").view(np.uint8) for one in (first, second)]
        return cls((first, second), zeros, (octets[0], octets[1]))

    @classmethod
    def from_rows(
        cls, numbers: Sequence[Sequence[Keys]], payloads: Sequence[Sequence[bytes]]
    ) -> Reports:
        """Return reports without contexts; both arguments have one item for each neighbour."""
        thin = [[row[choose_evenly(row.size, MAX_NUMBERS)] for row in rows] for rows in numbers]
        alone = cls.from_numbers(*stack_rows(thin[0], thin[1], np.int64))
        return cls(alone.numbers, alone.contexts, stack_bytes(*payloads))


def stack_bytes(first: Sequence[bytes], second: Sequence[bytes]) -> tuple[Octets, Octets]:
    """Return the bytes of two neighbours as matrices of one width."""
    rows = [[thin_bytes(payload) for payload in payloads] for payloads in (first, second)]
    return stack_rows(rows[0], rows[1], np.uint8)


def thin_bytes(payload: bytes) -> Octets:
    """Return up to `MAX_BYTES` evenly spaced bytes."""
    return np.frombuffer(payload, np.uint8)[choose_evenly(len(payload), MAX_BYTES)]


@dataclass(frozen=True)
class Candidate:
    """A statistic of an output that a search compares.

    Parameters
    ----------
    seen_in
        Its description.
    read
        Return its values for one neighbour, 0 or 1.
    """

    seen_in: str
    read: Callable[[int], Keys]


def observe_reports(rows: tuple[str, str], reports: Reports, claim: Loss) -> list[Observation]:
    """Return three observations: the best single number, the best pair, and a classifier."""
    return [
        choose_candidate(list_single_candidates(reports), rows, claim, "one number of the reports"),
        choose_candidate(list_pair_candidates(reports), rows, claim, "two numbers of the reports"),
        classify_bytes(reports, rows, claim),
    ]


def choose_candidate(
    candidates: list[Candidate], rows: tuple[str, str], claim: Loss, otherwise: str
) -> Observation:
    """Return the observation of the candidate with the largest estimate in the first halves.

    Without candidates the observation is a constant, described by ``otherwise``.
    """
    constant = np.zeros(2, np.int64)
    best, estimate = Observation(otherwise, rows, constant, constant, claim), -np.inf
    for candidate in candidates:
        keys = _make_keys(candidate.read(0), candidate.read(1))
        halves = [one[: one.size // 2] for one in keys]
        found = max(
            choose_set(ones, zeros, _SEARCH_ALPHA, claim.delta)[0]
            for ones, zeros in (halves, halves[::-1])
        )
        if found > estimate:
            best, estimate = Observation(candidate.seen_in, rows, *keys, claim), found
    return best


def _make_keys(first: Keys, second: Keys) -> tuple[Keys, Keys]:
    """Return the values if the first halves have few different ones, and else their bins.

    A search among many rare values would choose those that are frequent by chance.
    """
    halves = np.concatenate([first[: first.size // 2], second[: second.size // 2]])
    if np.unique(halves).size * _SAMPLES_PER_VALUE <= halves.size:
        return first, second
    return rank_samples(first.astype(np.float64), second.astype(np.float64))


def _select_best(scores: Floats) -> list[int]:
    """Return the positions of the largest scores above 0, the largest first."""
    order = np.argsort(-scores, kind="stable")[:_N_BEST]
    return [int(i) for i in order if scores[i] > 0]


def _compute_shift(means: Floats, variances: Floats) -> Floats:
    """Return how far the means and variances of two neighbours are apart, in deviations.

    Both arguments have one row for each neighbour. A shift of numbers that do not vary is very
    large; numbers that are constant for both have 0.
    """
    total = variances.sum(axis=0)
    shift: Floats = np.abs(means[1] - means[0]) / np.sqrt(total + 1e-9)
    spread: Floats = np.abs(variances[1] - variances[0]) / (total + 1e-9)
    return np.maximum(shift, spread)


def list_single_candidates(reports: Reports) -> list[Candidate]:
    """Return the numbers, and parities of numbers, that differ the most in the first halves.

    Each is a candidate alone and, if there are contexts, together with its context.
    """
    candidates = []
    for kind, numbers in (
        ("", reports.numbers),
        ("the parity of ", tuple(one & 1 for one in reports.numbers)),
    ):
        halves = [one[: len(one) // 2].astype(np.float64) for one in numbers]
        means = np.stack([half.mean(axis=0) for half in halves])
        variances = np.stack([half.var(axis=0) for half in halves])
        for j in _select_best(_compute_shift(means, variances)):
            name = f"{kind}searched number {j + 1}"
            candidates.append(Candidate(name, lambda which, j=j, x=numbers: x[which][:, j]))  # type: ignore[misc]
            if any(one[: len(one) // 2, j].any() for one in reports.contexts):
                candidates.append(_add_context(name, reports, numbers, j))
    return candidates


def _add_context(name: str, reports: Reports, numbers: Sequence[Keys], j: int) -> Candidate:
    return Candidate(
        f"{name}, by question",
        lambda which: (reports.contexts[which][:, j] << _CONTEXT_SHIFT) + numbers[which][:, j],
    )


def list_pair_candidates(reports: Reports) -> list[Candidate]:
    """Return the differences, sums and parities of two numbers that differ the most.

    Noise that two numbers share disappears from their difference, or from their sum.
    """
    halves = [one[: len(one) // 2].astype(np.float64) for one in reports.numbers]
    rows, columns = np.triu_indices(halves[0].shape[1], 1)
    if not rows.size:
        return []
    means = np.stack([half.mean(axis=0) for half in halves])
    centred = [half - half.mean(axis=0) for half in halves]
    covariances = np.stack([one.T @ one / len(one) for one in centred])
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    signs = [1 - 2.0 * (one[: len(one) // 2] & 1) for one in reports.numbers]
    products = np.stack([one.T @ one / len(one) for one in signs])[:, rows, columns]
    candidates = []
    for kind, sign in (("difference", -1), ("sum", 1)):
        scores = _compute_shift(
            means[:, rows] + sign * means[:, columns],
            np.maximum(
                variances[:, rows]
                + variances[:, columns]
                + 2 * sign * covariances[:, rows, columns],
                0.0,
            ),
        )
        candidates += [
            _make_pair(reports, kind, int(rows[at]), int(columns[at]))
            for at in _select_best(scores)
        ]
    parities = _compute_shift(products, 1 - products**2)
    return candidates + [
        _make_pair(reports, "parity", int(rows[at]), int(columns[at]))
        for at in _select_best(parities)
    ]


def _make_pair(reports: Reports, kind: str, i: int, j: int) -> Candidate:
    def read(which: int) -> Keys:
        one, other = reports.numbers[which][:, i], reports.numbers[which][:, j]
        if kind == "parity":
            return (one ^ other) & 1
        return one - other if kind == "difference" else one + other

    return Candidate(f"the {kind} of searched numbers {i + 1} and {j + 1}", read)


def classify_bytes(reports: Reports, rows: tuple[str, str], claim: Loss) -> Observation:
    """Return the scores of a classifier of all bytes.

    A logistic regression on bits and on parities of two bits is trained on the first third of the
    samples. The observation has the others: half of them choose a set of scores, half count it.
    """
    n = len(reports.octets[0])
    third = n // 3
    bits = choose_bits([one[:third] for one in reports.octets])
    train = np.concatenate([read_bits(one[:third], bits) for one in reports.octets])
    labels = np.repeat([0.0, 1.0], third)
    features = choose_features(train, labels)
    weights = fit_logistic(make_features(train, features), labels)
    scores = [
        make_features(read_bits(one[third:], bits), features) @ weights for one in reports.octets
    ]
    return Observation("a classifier of all bytes", rows, *rank_samples(*scores), claim)


def choose_bits(octets: Sequence[Octets]) -> npt.NDArray[np.int64]:
    """Return the positions of up to `_MAX_BITS` evenly spaced bits that vary."""
    both = np.concatenate(octets)
    varies = np.bitwise_or.reduce(both, axis=0) ^ np.bitwise_and.reduce(both, axis=0)
    positions = np.flatnonzero(np.unpackbits(varies, bitorder="little"))
    return positions[choose_evenly(positions.size, _MAX_BITS)]


def read_bits(octets: Octets, positions: npt.NDArray[np.int64]) -> Floats:
    """Return the bits at some positions as -1 and 1."""
    bits = octets[:, positions >> 3] >> (positions & 7).astype(np.uint8) & 1
    return np.asarray(2.0 * bits - 1, np.float64)


def choose_features(bits: Floats, labels: Floats) -> tuple[Keys, Keys]:
    """Return pairs of positions whose products differ the most between the two labels.

    The first pairs are of a position and -1, for single bits.
    """
    sign = 2 * labels - 1
    rows, columns = np.triu_indices(bits.shape[1], 1)
    single = _select_features(bits.T @ sign, bits.sum(axis=0), len(bits))
    pairs = _select_features(
        ((bits * sign[:, np.newaxis]).T @ bits)[rows, columns],
        (bits.T @ bits)[rows, columns],
        len(bits),
    )
    none = np.full(single.size, -1)
    return np.concatenate([single, rows[pairs]]), np.concatenate([none, columns[pairs]])


def _select_features(shifts: Floats, sums: Floats, n: int) -> Keys:
    """Return the features that differ more than the best of equally many random ones would.

    Return at least the best one, if there are any. Random features would only add noise to the
    score. A feature is -1 or 1; ``sums`` are over n samples, and ``shifts`` with the sign of their
    label.
    """
    scores = np.abs(shifts) / np.sqrt(np.maximum(n - sums**2 / max(n, 1), 1.0))
    order = np.argsort(-scores, kind="stable")[:_N_FEATURES]
    is_large = scores[order] > math.sqrt(2 * math.log(max(scores.size, 1)))
    return order[: max(1, int(is_large.sum()))]


def make_features(bits: Floats, features: tuple[Keys, Keys]) -> Floats:
    """Return a constant, bits and products of bits, ``(n, 1 + number of features)``."""
    one = np.ones((len(bits), 1))
    padded = np.concatenate([bits, one], axis=1)
    return np.concatenate([one, padded[:, features[0]] * padded[:, features[1]]], axis=1)


def fit_logistic(inputs: Floats, labels: Floats) -> Floats:
    """Return the weights of a logistic regression with a quadratic penalty, by Newton's method."""
    weights = np.zeros(inputs.shape[1])
    for _ in range(_NEWTON_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        curvature = (inputs * (chances * (1 - chances))[:, np.newaxis]).T @ inputs
        slope = inputs.T @ (labels - chances) - _RIDGE * weights
        weights += np.linalg.solve(curvature + _RIDGE * np.eye(weights.size), slope)
    return weights
