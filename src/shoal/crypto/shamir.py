"""Shamir secret sharing of 32-byte secrets.

Any ``threshold`` shares determine the secret; fewer are independent of it. Secure sums share their
mask keys and seeds this way (`shoal.crypto.secagg`).

A secret is split into 18 limbs of 15 bits. Each limb is shared separately in the field of 65,521
elements. A share of all limbs has 36 bytes. Entries are below 2^16, so a sum of up to 2^21
products is exact in float64, and all shares of many secrets are one matrix product. A recombined
limb of 16 bits belongs to no secret; this detects most wrong shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRIME = 65_521
SECRET_BYTES = 32
SHARE_BYTES = 36

_LIMBS, _LIMB_BITS = 18, 15
_PLACES = 1 << np.arange(_LIMB_BITS)
_BLOCK = 1 << 19
"""Entries of a matrix that are in memory at the same time: 4 MiB."""


def split_secrets(
    secrets: Sequence[bytes], threshold: int, n: int, entropy: Entropy
) -> list[tuple[bytes, ...]]:
    """Return, for each of ``n`` holders, its shares of all secrets in their order.

    Holder i, counted from 0, has the values of the polynomials at i + 1.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> rows = split_secrets([b"thirty-two bytes that are secret"], 3, 5, SeededEntropy(1))
    >>> recombine_secrets((0, 2, 4), [[rows[i][0] for i in (0, 2, 4)]])
    [b'thirty-two bytes that are secret']
    """
    if not 1 <= threshold <= n < PRIME:
        raise LocalProtocolError(
            "SUM-001",
            f"A secret cannot be shared among {n} holders with a threshold of {threshold}.",
            fix=f"Choose a threshold from 1 to the number of holders, which is below {PRIME:,}.",
        )
    limbs = _split_limbs(secrets)
    drawn = entropy.below_many(PRIME, (threshold - 1) * limbs.size).reshape(
        threshold - 1, limbs.size
    )
    coefficients = np.concatenate([limbs.reshape(1, -1), drawn]).astype(np.float64)
    step = max(1, _BLOCK // threshold)
    blocks = [
        _compute_powers(first, min(step, n - first), threshold) @ coefficients
        for first in range(0, n, step)
    ]
    rows = (np.concatenate(blocks).astype(np.int64) % PRIME).astype("<u2")
    return [
        tuple(row[i : i + SHARE_BYTES] for i in range(0, len(row), SHARE_BYTES))
        for row in (row.tobytes() for row in rows)
    ]


def recombine_secrets(
    holders: Sequence[int], rows: Sequence[Sequence[bytes]]
) -> list[bytes | None]:
    """Return the secrets shared among holders; None if the shares do not fit together.

    Parameters
    ----------
    holders
        Exactly ``threshold`` of them, each counted from 0.
    rows
        For each secret its shares in the order of the holders, each of `SHARE_BYTES`.
    """
    limbs = _decode_limbs(rows)
    is_canonical = (limbs < PRIME).all(axis=(0, 2))
    weights = _compute_lagrange_weights(tuple(holders))
    secrets = (weights @ limbs.reshape(len(holders), -1)).astype(np.int64) % PRIME
    bits = (secrets.reshape(len(rows), _LIMBS, 1) >> np.arange(_LIMB_BITS + 1)) & 1
    fits = is_canonical & (bits[:, :, _LIMB_BITS] == 0).all(axis=1)
    stream = bits[:, :, :_LIMB_BITS].reshape(len(rows), -1).astype(np.uint8)
    fits &= ~stream[:, 8 * SECRET_BYTES :].any(axis=1)
    packed = np.packbits(stream[:, : 8 * SECRET_BYTES], axis=1, bitorder="little")
    return [row.tobytes() if fit else None for row, fit in zip(packed, fits, strict=True)]


def are_shares(data: bytes, n: int) -> bool:
    """Return whether bytes are ``n`` canonical shares: 18 numbers below the prime each."""
    return len(data) == n * SHARE_BYTES and bool((np.frombuffer(data, "<u2") < PRIME).all())


def _split_limbs(secrets: Sequence[bytes]) -> Ints:
    """Return the ``(n, 18)`` limbs, lowest bits first."""
    octets = np.frombuffer(b"".join(secrets), np.uint8).reshape(len(secrets), SECRET_BYTES)
    bits = np.zeros((len(secrets), _LIMBS * _LIMB_BITS), np.int64)
    bits[:, : 8 * SECRET_BYTES] = np.unpackbits(octets, axis=1, bitorder="little")
    return bits.reshape(len(secrets), _LIMBS, _LIMB_BITS) @ _PLACES


def _decode_limbs(rows: Sequence[Sequence[bytes]]) -> Floats:
    """Return the ``(holders, secrets, 18)`` limbs of shares."""
    flat = np.frombuffer(b"".join(b"".join(row) for row in rows), "<u2")
    return flat.reshape(len(rows), -1, _LIMBS).transpose(1, 0, 2).astype(np.float64)


@lru_cache(maxsize=4)
def _compute_powers(first: int, n: int, threshold: int) -> Floats:
    """Return the ``(n, threshold)`` powers of the holders' points from ``first`` on."""
    powers = np.ones((n, 1), np.int64)
    points = np.arange(first + 1, first + n + 1, dtype=np.int64).reshape(n, 1)
    while powers.shape[1] < threshold:
        powers = np.concatenate(
            [powers, powers * (powers[:, -1:] * points % PRIME) % PRIME], axis=1
        )
    return powers[:, :threshold].astype(np.float64)


@lru_cache(maxsize=16)
def _compute_lagrange_weights(holders: tuple[int, ...]) -> Floats:
    """Return the weight of each share in the polynomial's value at 0 (Lagrange)."""
    points = np.array(holders, np.int64) + 1
    if len(set(holders)) < len(holders):
        raise ValueError("a holder is named twice")
    step = max(1, _BLOCK // len(points))
    below = np.concatenate(
        [_multiply_rows(points[i : i + step, None] - points) for i in range(0, len(points), step)]
    )
    gaps = -points % PRIME
    above = int(_multiply_rows(gaps[None])[0])
    return np.array(
        [
            above * pow(int(low * gap), -1, PRIME) % PRIME
            for low, gap in zip(below, gaps, strict=True)
        ],
        np.float64,
    )


def _multiply_rows(rows: Ints) -> Ints:
    """Return the product of each row in the field, without its zeros."""
    rows = np.where(rows == 0, 1, rows % PRIME)
    while rows.shape[1] > 1:
        if rows.shape[1] % 2:
            rows = np.concatenate([rows, np.ones_like(rows[:, :1])], axis=1)
        rows = rows[:, ::2] * rows[:, 1::2] % PRIME
    return rows[:, 0]
