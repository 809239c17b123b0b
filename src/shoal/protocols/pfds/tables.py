"""Trust `local`: each holder's noisy tables, and the pooled model.

Each holder answers a few tables with its own noise (`draw_tables`), and everyone pools the
published tables (`pool_tables`). `LocalPeer`, `LocalAggregator`, `population` and the secure-sum
script call these functions.

The assignment of tables to holders is public: the digest of the study determines an order of the
attributes and of the holders, and each holder in turn gets the next q attributes.

Pooled tables give consistent shares, a weight for each cell, and a bound on how far noise moved it.
The constants were chosen by accuracy on the development halves of Adult, Bank Marketing, Bike
Sharing and Retinopathy; they are the same for all data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Event
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows

UNKNOWN = 1e6
"""Variance of the fractions of an unanswered table: so large that the table has no weight."""
_RAREST = 0.02
"""Smallest share of a class: a smaller one is mostly noise."""
_SAMPLING = 0.2
"""Variance of the label's share among the rows of a table, without noise: about p (1 - p)."""
_SMOOTHING = 2.0
"""Amount added to a cell's share in its log-odds, in standard deviations of its noise."""
_MIN_SMOOTHING = 1e-4
"""Smallest amount added, used without noise."""


@dataclass(frozen=True, eq=False)
class PooledTables:
    """The tables of all attributes and the label, summed over holders, with noise.

    Parameters
    ----------
    sums
        ``(D, n_sides)`` in rows.
    totals
        ``(k,)`` rows in each table; at least 1.
    variances
        ``(k,)`` variance of the noise on a cell of each table, divided by its total; `UNKNOWN`
        if no holder has answered it.
    """

    sums: Floats
    totals: Floats
    variances: Floats

    @classmethod
    def from_sums(cls, params: PFDSParams, sums: Floats, noise: Floats) -> PooledTables:
        """Return tables with the totals of their noisy cells.

        ``noise`` is the variance on a cell of each table, in rows, ``(k,)``.
        """
        totals = np.maximum(sum_by_feature(params, sums.sum(axis=1)), 1.0)
        return cls(sums, totals, noise / totals**2)


@dataclass(frozen=True, eq=False)
class ConsistentShares:
    """Consistent tables: no share is negative, and every table has the same class shares.

    Parameters
    ----------
    p
        ``(M,)`` share of the class that each model is for; of a number, its mean in [0, 1].
    f
        ``(D,)`` share of the rows in each cell.
    t
        ``(D, M)`` share of the rows in each cell and of the class.
    """

    p: Floats
    f: Floats
    t: Floats


def sum_by_feature(params: PFDSParams, values: Floats) -> Floats:
    """Return sums over the cells of each feature, ``(k, ...)``."""
    sums: Floats = np.add.reduceat(values, params.starts[:-1], axis=0)
    return sums


def repeat_for_cells(params: PFDSParams, values: Floats) -> Floats:
    """Return the values of each feature, repeated for each of its cells, ``(D, ...)``."""
    return np.repeat(values, params.arities, axis=0)


def compute_tempering(params: PFDSParams) -> float:
    """Return b0, the factor of log-odds that are summed over attributes.

    Without it, correlated attributes would be counted several times.
    """
    return min(0.6, 1.5 / math.sqrt(len(params.arities)))


def project_to_simplex(values: Floats, total: float) -> Floats:
    """Return the closest point without negative coordinates that sums to ``total`` > 0.

    Examples
    --------
    >>> project_to_simplex(np.array([0.5, 0.25, -0.5]), 1.0)
    array([0.625, 0.375, 0.   ])
    """
    # A common shift of all values does not change the point. Measured from the largest value, no
    # precision is lost.
    values = values - values.max()
    falling = np.sort(values)[::-1]
    excess = np.cumsum(falling) - total
    n = np.arange(1, len(values) + 1)
    last = np.flatnonzero(falling * n > excess)[-1]
    point: Floats = np.maximum(values - excess[last] / n[last], 0.0)
    return point


def make_consistent(params: PFDSParams, tables: PooledTables) -> ConsistentShares:
    """Return class shares from all tables together, and the closest table shares that agree.

    Notes
    -----
    A table estimates the classes better if it has fewer noisy cells and more rows.
    """
    fractions = tables.sums / repeat_for_cells(params, tables.totals)[:, np.newaxis]
    weights = 1 / (np.array(params.arities) * tables.variances + _SAMPLING / tables.totals)
    classes = weights @ sum_by_feature(params, fractions)
    rarest = min(_RAREST, 0.5 / params.n_sides)
    p = np.clip(classes / max(classes.sum(), weights.sum() * 1e-9), rarest, 1 - rarest)
    p /= p.sum()
    sides = np.empty_like(fractions)
    for start, end in zip(params.starts[:-1], params.starts[1:], strict=True):
        for side in range(params.n_sides):
            sides[start:end, side] = project_to_simplex(fractions[start:end, side], p[side])
    f = sides.sum(axis=1)
    return (
        ConsistentShares(p[1:], f, sides[:, 1:])
        if params.n_models == 1
        else ConsistentShares(p, f, sides)
    )


def compute_log_odds(params: PFDSParams, tables: PooledTables, shares: ConsistentShares) -> Floats:
    """Return the evidence of each cell for each model's class, ``(D, M)``.

    For classes it is the smoothed log-odds; for a number, the distance of its mean in the cell from
    p.

    Notes
    -----
    A cell's share is smoothed by two standard deviations of its noise, so that cells without rows
    have no weight.
    """
    s = _SMOOTHING * _compute_deviations(params, tables) + _MIN_SMOOTHING
    p, f, t = shares.p, shares.f[:, np.newaxis], shares.t
    if params.is_number:
        return centre_weights(params, (t - p * f) / (f + s), shares.f)
    weights: Floats = np.log((t / p + s) / (np.maximum(f - t, 0) / (1 - p) + s))
    return weights


def compute_means(params: PFDSParams, weights: Floats, f: Floats) -> Floats:
    """Return the mean of the weights ``(D, M)`` of each feature over the rows, ``(k, M)``."""
    return (
        sum_by_feature(params, f[:, np.newaxis] * weights)
        / sum_by_feature(params, f)[:, np.newaxis]
    )


def centre_weights(params: PFDSParams, weights: Floats, f: Floats) -> Floats:
    """Return the weights ``(D, M)`` minus the mean of each feature."""
    return weights - repeat_for_cells(params, compute_means(params, weights, f))


def compute_cell_variances(
    params: PFDSParams, tables: PooledTables, shares: ConsistentShares
) -> Floats:
    """Return the variance of each cell's weight due to noise, ``(D, M)``: at most 2."""
    deviations = _compute_deviations(params, tables)
    s = deviations + _MIN_SMOOTHING
    f, t = shares.f[:, np.newaxis], shares.t
    if params.is_number:
        return (deviations / (f + s)) ** 2
    moved: Floats = (deviations / (t + s)) ** 2 + (deviations / (np.maximum(f - t, 0) + s)) ** 2
    return moved


def compute_intercepts(params: PFDSParams, shares: ConsistentShares) -> Floats:
    """Return the scores of a row without known features, ``(M,)``."""
    return shares.p if params.is_number else np.log(shares.p / (1 - shares.p))


def fit_tempered_model(params: PFDSParams, tables: PooledTables) -> PooledModel:
    """Return the model of the tables: tempered naive Bayes, or its analogue for a number."""
    shares = make_consistent(params, tables)
    weights = compute_tempering(params) * compute_log_odds(params, tables, shares)
    return PooledModel(
        params,
        weights,
        compute_intercepts(params, shares),
        compute_cell_variances(params, tables, shares),
        shares.f,
    )


def _compute_deviations(params: PFDSParams, tables: PooledTables) -> Floats:
    """Return the standard deviation of the noise on the fractions, ``(D, 1)``."""
    return repeat_for_cells(params, np.sqrt(tables.variances))[:, np.newaxis]


TABLES = "tables"
"""The only question of a study with trust local."""
_MAX_ROWS = 16
"""Largest accepted number of rows of one holder, as a multiple of all expected rows."""
_WIDEST_NOISE = 64
"""Largest accepted noise, in scales: larger noise has probability e^-64."""


def choose_n_tables(params: PFDSParams) -> int:
    """Return q, the number of tables that each holder answers, from public parameters alone.

    Notes
    -----
    More tables per holder have more noise; more holders per table reduce the difference from all
    holders. Per cell, the variance of the noise is 2 m q k / (epsilon n)^2, and the variance of
    sampling and skew is sigma^2 k / (m q). The minimum is at q = sigma epsilon (n / m) / sqrt 2,
    with a sigma of about 0.02. At least two holders answer each attribute.
    """
    k, m = len(params.arities), params.n_holders
    return (
        k
        if params.is_noiseless
        else min(k, max(round(0.015 * params.epsilon * params.size / m), -(-2 * k // m), 1))
    )


def assign_attributes(params: PFDSParams, digest: bytes, holder: int) -> tuple[int, ...]:
    """Return the attributes of a holder's tables, ascending; holders count from 0."""
    k, q = len(params.arities), choose_n_tables(params)
    attributes = _compute_order(b"attributes", digest, k)
    first = _compute_order(b"holders", digest, params.n_holders).index(holder) * q
    return tuple(sorted(attributes[(first + i) % k] for i in range(q)))


@lru_cache(maxsize=64)
def _compute_order(what: bytes, digest: bytes, n: int) -> tuple[int, ...]:
    """Return 0, 1, ... in an order that depends on the study's digest only.

    Everyone who knows the study can compute it, and no one can choose it after seeing data.
    """
    return tuple(
        sorted(
            range(n),
            key=lambda i: hashlib.sha256(b"shoal pfds " + what + digest + i.to_bytes(8)).digest(),
        )
    )


def price_tables(params: PFDSParams) -> Event:
    """Return the price of a holder's tables for one unit: the whole budget, for any tables.

    Privacy
    -------
    The scope of the parameters. A row is in one cell of each of q tables, in `GRID` units: L1
    sensitivity q * 256 * max_rows.
    """
    return _make_mechanism(params).event().with_reads(*params.columns)


def _make_mechanism(params: PFDSParams) -> DiscreteLaplace:
    return DiscreteLaplace(
        params.epsilon, CellCounts(choose_n_tables(params), GRID * params.max_rows), params.scope
    )


def compute_tables_size(params: PFDSParams, attributes: Iterable[int]) -> int:
    """Return the number of values in the tables of these attributes."""
    return sum(params.arities[a] for a in attributes) * params.n_sides


def count_tables(params: PFDSParams, rows: PFDSRows, attributes: Iterable[int]) -> Ints:
    """Return the tables of these attributes and the label, in units of 1/256 of a row.

    The order is by attribute, then cell, then side.
    """
    tables = [np.zeros((0, params.n_sides), np.int64)]
    for a in attributes:
        cells, arity = rows.cells[:, a] - params.starts[a], params.arities[a]
        # Sums of 256ths are exact in floats up to 2^53 of them.
        tables.append(
            np.stack([np.bincount(cells, side, arity) for side in rows.sides.T], axis=1).astype(
                np.int64
            )
        )
    return np.concatenate(tables).ravel()


def draw_tables(
    params: PFDSParams, rows: PFDSRows, attributes: Sequence[int], entropy: Entropy
) -> Ints:
    """Return the tables that a holder publishes, with all of the noise.

    If epsilon is infinite, which only simulations may use, there is no noise.

    Notes
    -----
    Ref: errata P-03.

    Privacy
    -------
    The event of `price_tables`, for the tables of `assign_attributes`. No other number leaves the
    holder.
    """
    assert len(attributes) == choose_n_tables(params), (
        "more tables would cost more than their price"
    )
    counts = count_tables(params, rows, attributes)
    return (
        counts if params.is_noiseless else _make_mechanism(params).randomise_many(counts, entropy)
    )


def check_tables(params: PFDSParams, attributes: Sequence[int], answer: Ints) -> None:
    """Raise if rows and noise cannot explain an answer.

    Raises
    ------
    RemoteProtocolError
        The answer does not have the size of these tables, or a number is far too large.
    """
    size = compute_tables_size(params, attributes)
    if answer.shape != (size,):
        raise _unusable_tables_error(
            f"their shape is {answer.shape}; the tables of this holder have {size} numbers"
        )
    noise = 0.0 if params.is_noiseless else _WIDEST_NOISE * _make_mechanism(params).scale
    max_count = GRID * _MAX_ROWS * params.size + noise
    if not (-noise <= int(answer.min()) and int(answer.max()) <= max_count):
        raise _unusable_tables_error(
            f"a count is larger than {_MAX_ROWS} times the expected number of rows, or further "
            "below 0 than noise can explain"
        )


def pool_tables(params: PFDSParams, digest: bytes, answers: Mapping[int, Ints]) -> PooledModel:
    """Return the model from the answers of holders, counted from 0; some may be missing.

    Notes
    -----
    Tables are summed without weights: weighting holders by size did not help. An attribute without
    an answer has no weight.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> params = PFDSParams(schema, epsilon=1.0, size=2000, n_holders=10)
    >>> rows = PFDSRows.from_columns(
    ...     params,
    ...     {"wind": np.arange(2000) % 2},
    ...     1 - np.arange(2000) % 2,
    ...     owners=np.arange(2000) % 10,
    ... )
    >>> pool_tables(
    ...     params, b"digest", draw_answers(params, b"digest", rows, range(10), SeededEntropy(1))
    ... ).decide({"wind": np.array([0, 1])})
    array([1, 0])
    """
    sums = np.zeros((params.n_cells, params.n_sides))
    n_holders = np.zeros(len(params.arities))
    for holder, noisy_tables in answers.items():
        attributes = assign_attributes(params, digest, holder)
        parts = np.split(
            noisy_tables.reshape(-1, params.n_sides) / GRID,
            np.cumsum([params.arities[a] for a in attributes])[:-1],
        )
        for a, part in zip(attributes, parts, strict=True):
            sums[params.starts[a] : params.starts[a + 1]] += part
            n_holders[a] += 1
    return fit_tempered_model(
        params, PooledTables.from_sums(params, sums, _compute_noise(params, n_holders))
    )


def _compute_noise(params: PFDSParams, n_holders: Floats) -> Floats:
    """Return the variance of the noise on a cell, in rows, by the number of answers."""
    variance = 0.0 if params.is_noiseless else _make_mechanism(params).variance() / GRID**2
    return np.where(n_holders == 0, UNKNOWN, n_holders * variance)


def draw_answers(
    params: PFDSParams, digest: bytes, rows: PFDSRows, sharers: Iterable[int], entropy: Entropy
) -> dict[int, Ints]:
    """Return the answers of the sharing holders, for simulations, each with its own noise.

    Parameters
    ----------
    rows
        The rows of all holders, with `owners`.
    """
    assert rows.owners is not None
    order = np.argsort(rows.owners, kind="stable")
    ends = np.searchsorted(rows.owners[order], np.arange(params.n_holders + 1))
    return {
        holder: draw_tables(
            params,
            rows.take(order[ends[holder] : ends[holder + 1]]),
            assign_attributes(params, digest, holder),
            entropy,
        )
        for holder in sharers
    }


def _unusable_tables_error(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-001", f"The tables of a holder are unusable: {why}.")
