"""Trust local: each holder answers a few tables with noise of its own, and anyone pools what is published.

Which tables a holder answers is public: attributes and holders stand in an order that follows from the digest of the study, and q
attributes at a time go round among the holders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import Histogram
from shoal.privacy.events import Event
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.pooling import UNKNOWN, Tables, tempered

TABLES = "tables"
"""The one question of a study with trust local."""
_MOST_ROWS = 16
"""Most rows of one holder that are believed, in rows that all were expected to have together."""
_WIDEST_NOISE = 64
"""Most noise that is believed, in scales: more has a chance of e^-64."""


def n_tables(params: Params) -> int:
    """q, the tables that each holder answers, by the declared figures alone.

    Notes
    -----
    More tables of each holder have more noise, more holders of each table differ less from all: per cell, noise has variance
    2 m q k / (epsilon n)^2, and sampling and skew sigma^2 k / (m q). The minimum is at q = sigma epsilon (n / m) / sqrt 2, with a sigma of
    about 0.02. Each attribute is answered by two holders at least.
    """
    k, m = len(params.arities), params.n_holders
    return k if params.is_bare else min(k, max(round(0.015 * params.epsilon * params.size / m), -(-2 * k // m), 1))


def attributes_of(params: Params, digest: bytes, holder: int) -> tuple[int, ...]:
    """The attributes whose tables a holder, counted from 0, answers; rising."""
    k, q = len(params.arities), n_tables(params)
    attributes = _order(b"attributes", digest, k)
    first = _order(b"holders", digest, params.n_holders).index(holder) * q
    return tuple(sorted(attributes[(first + i) % k] for i in range(q)))


@lru_cache(maxsize=64)
def _order(what: bytes, digest: bytes, n: int) -> tuple[int, ...]:
    """0, 1, ... in an order that everyone who knows the study can find, and that nobody can choose by looking at data."""
    return tuple(sorted(range(n), key=lambda i: hashlib.sha256(b"shoal pfds " + what + digest + i.to_bytes(8)).digest()))


def price(params: Params) -> Event:
    """What the tables of a holder cost one unit: the whole budget, whatever tables they are.

    Privacy
    -------
    The scope of the parameters. A row falls in one cell of each of q tables, in `GRID` units: L1 sensitivity q * 256 * max_rows.
    """
    return _mechanism(params).event().reading(*params.columns)


def _mechanism(params: Params) -> DiscreteLaplace:
    return DiscreteLaplace(params.epsilon, Histogram(n_tables(params), GRID * params.max_rows), params.scope)


def size_of(params: Params, attributes: Iterable[int]) -> int:
    """How many numbers the tables of these attributes have."""
    return sum(params.arities[a] for a in attributes) * params.n_sides


def count(params: Params, rows: Rows, attributes: Iterable[int]) -> Ints:
    """The tables of these attributes and the label, cell by cell and side by side, in units of 1/256 of a row."""
    tables = [np.zeros((0, params.n_sides), np.int64)]
    for a in attributes:
        cells, arity = rows.cells[:, a] - params.starts[a], params.arities[a]
        # Sums of 256ths are exact in floats up to 2^53 of them.
        tables.append(np.stack([np.bincount(cells, side, arity) for side in rows.sides.T], axis=1).astype(np.int64))
    return np.concatenate(tables).ravel()


def answer(params: Params, rows: Rows, attributes: Sequence[int], entropy: Entropy) -> Ints:
    """What a holder publishes: its tables, with all of the noise; without any where epsilon is infinite, which only a simulation may do.

    Notes
    -----
    Ref: errata P-03.

    Privacy
    -------
    The event of `price`, for the tables of `attributes_of`. Nothing else leaves the holder.
    """
    assert len(attributes) == n_tables(params), "more tables would cost more than their price"
    counts = count(params, rows, attributes)
    return counts if params.is_bare else _mechanism(params).randomise_many(counts, entropy)


def check(params: Params, attributes: Sequence[int], answer: Ints) -> None:
    """Refuse an answer that no rows and no noise can lead to.

    Raises
    ------
    RemoteProtocolError
        It does not have the size of these tables, or a number of it is out of all proportion.
    """
    size = size_of(params, attributes)
    if answer.shape != (size,):
        raise _unusable(f"it is of shape {answer.shape}, and the tables of its holder have {size} numbers")
    noise = 0.0 if params.is_bare else _WIDEST_NOISE * _mechanism(params).scale
    most = GRID * _MOST_ROWS * params.size + noise
    if not (-noise <= int(answer.min()) and int(answer.max()) <= most):
        raise _unusable(
            f"a count is larger than {_MOST_ROWS} times all rows that were expected, or further below 0 than noise can bring it"
        )


def pooled(params: Params, digest: bytes, answers: Mapping[int, Ints]) -> Model:
    """The model by the answers of holders, counted from 0; any that are missing are left out.

    Notes
    -----
    Tables are summed as they are: weighting holders by size did not help. An attribute that nobody has answered says nothing.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=2000, n_holders=10)
    >>> rows = Rows.of(params, {"wind": np.arange(2000) % 2}, 1 - np.arange(2000) % 2, whose=np.arange(2000) % 10)
    >>> pooled(params, b"digest", answers_of(params, b"digest", rows, range(10), SeededEntropy(1))).decide({"wind": np.array([0, 1])})
    array([1, 0])
    """
    sums = np.zeros((params.n_cells, params.n_sides))
    n_holders = np.zeros(len(params.arities))
    for holder, noisy_tables in answers.items():
        attributes = attributes_of(params, digest, holder)
        parts = np.split(noisy_tables.reshape(-1, params.n_sides) / GRID, np.cumsum([params.arities[a] for a in attributes])[:-1])
        for a, part in zip(attributes, parts, strict=True):
            sums[params.starts[a] : params.starts[a + 1]] += part
            n_holders[a] += 1
    return tempered(params, Tables.of(params, sums, _noise(params, n_holders)))


def _noise(params: Params, n_holders: Floats) -> Floats:
    """Variance of the noise on a cell, in rows, of tables that so many holders have answered."""
    variance = 0.0 if params.is_bare else _mechanism(params).variance() / GRID**2
    return np.where(n_holders == 0, UNKNOWN, n_holders * variance)


def answers_of(params: Params, digest: bytes, rows: Rows, sharers: Iterable[int], entropy: Entropy) -> dict[int, Ints]:
    """What many holders answer, for simulations: those of ``sharers``, each with noise of its own.

    Parameters
    ----------
    rows
        The rows of all holders, with whose they are.
    """
    assert rows.whose is not None
    order = np.argsort(rows.whose, kind="stable")
    ends = np.searchsorted(rows.whose[order], np.arange(params.n_holders + 1))
    return {
        holder: answer(params, rows.take(order[ends[holder] : ends[holder + 1]]), attributes_of(params, digest, holder), entropy)
        for holder in sharers
    }


def _unusable(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-001", f"The tables of a holder are not used: {why}.")
