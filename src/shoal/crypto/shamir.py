"""Shamir's threshold sharing of 32-byte secrets: any ``threshold`` shares give the secret, fewer say nothing about it.

A secret is cut into 18 limbs of 15 bits, and each limb is shared by itself in the field of 65,521 elements. A share of all limbs is 36
bytes. Entries are below 2^16, so that a sum of up to 2^21 products is exact in float64: all shares of many secrets are one product of
matrices. What recombines to a limb of 16 bits is no secret, which shows most wrong shares by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRIME = 65_521
SECRET_BYTES = 32
SHARE_BYTES = 36

_LIMBS, _LIMB_BITS = 18, 15
_PLACES = 1 << np.arange(_LIMB_BITS)
_BLOCK = 1 << 19
"""Entries of a matrix that are held at once: 4 MiB."""


def split(secret: bytes, threshold: int, n: int, entropy: Entropy) -> list[bytes]:
    """``n`` shares of a secret, of which any ``threshold`` give it; share i belongs to the point i + 1.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> shares = split(b"thirty-two bytes that are secret", 3, 5, SeededEntropy(1))
    >>> recombine({0: shares[0], 2: shares[2], 4: shares[4]}, 3)
    b'thirty-two bytes that are secret'
    """
    return [share for (share,) in split_many([secret], threshold, n, entropy)]


def split_many(secrets: Sequence[bytes], threshold: int, n: int, entropy: Entropy) -> list[tuple[bytes, ...]]:
    """For each of ``n`` holders its shares of all the secrets, in their order."""
    if not 1 <= threshold <= n < PRIME:
        raise LocalProtocolError(
            "SUM-001",
            f"A secret cannot be shared among {n} holders so that {threshold} are needed.",
            fix=f"At least one is needed, at most all, and there are fewer than {PRIME:,} of them.",
        )
    limbs = _limbs_of_secrets(secrets)
    drawn = entropy.below_many(PRIME, (threshold - 1) * limbs.size).reshape(threshold - 1, limbs.size)
    coefficients = np.concatenate([limbs.reshape(1, -1), drawn]).astype(np.float64)
    step = max(1, _BLOCK // threshold)
    blocks = [_powers(first, min(step, n - first), threshold) @ coefficients for first in range(0, n, step)]
    rows = (np.concatenate(blocks).astype(np.int64) % PRIME).astype("<u2")
    return [tuple(row[i : i + SHARE_BYTES] for i in range(0, len(row), SHARE_BYTES)) for row in (row.tobytes() for row in rows)]


def recombine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of which holders have shares; those beyond the first ``threshold`` are checked against the rest.

    Parameters
    ----------
    shares
        By holder, counted from 0: holder i has the point i + 1.
    threshold
        With which the secret was split.
    """
    holders = sorted(shares)
    if len(holders) < threshold:
        raise RemoteProtocolError("SUM-003", f"{len(holders)} shares of a secret are there; {threshold} are needed.")
    if not all(are_shares(share, 1) for share in shares.values()):
        raise _not_a_share()
    used, extra = tuple(holders[:threshold]), holders[threshold:]
    known = _limbs_of_shares([[shares[holder] for holder in used]])[:, 0]
    for holder in extra:
        expected = (_weights(used, holder + 1) @ known).astype(np.int64) % PRIME
        if expected.astype("<u2").tobytes() != shares[holder]:
            raise _not_a_share()
    (secret,) = recombine_many(used, [[shares[holder] for holder in used]])
    if secret is None:
        raise _not_a_share()
    return secret


def recombine_many(holders: Sequence[int], rows: Sequence[Sequence[bytes]]) -> list[bytes | None]:
    """The secrets of which the same holders have shares; None for one whose shares do not fit together.

    Parameters
    ----------
    holders
        Exactly as many as the threshold, each counted from 0.
    rows
        For each secret its shares in the order of the holders, each of `SHARE_BYTES`.
    """
    limbs = _limbs_of_shares(rows)
    is_canonical = (limbs < PRIME).all(axis=(0, 2))
    secrets = (_weights(tuple(holders), 0) @ limbs.reshape(len(holders), -1)).astype(np.int64) % PRIME
    bits = (secrets.reshape(len(rows), _LIMBS, 1) >> np.arange(_LIMB_BITS + 1)) & 1
    fits = is_canonical & (bits[:, :, _LIMB_BITS] == 0).all(axis=1)
    stream = bits[:, :, :_LIMB_BITS].reshape(len(rows), -1).astype(np.uint8)
    fits &= ~stream[:, 8 * SECRET_BYTES :].any(axis=1)
    packed = np.packbits(stream[:, : 8 * SECRET_BYTES], axis=1, bitorder="little")
    return [row.tobytes() if fit else None for row, fit in zip(packed, fits, strict=True)]


def are_shares(data: bytes, n: int) -> bool:
    """Whether some bytes are ``n`` shares in their one form: 18 numbers below the prime each."""
    return len(data) == n * SHARE_BYTES and bool((np.frombuffer(data, "<u2") < PRIME).all())


def _limbs_of_secrets(secrets: Sequence[bytes]) -> Ints:
    """``(n, 18)`` limbs, the lowest bits first."""
    octets = np.frombuffer(b"".join(secrets), np.uint8).reshape(len(secrets), SECRET_BYTES)
    bits = np.zeros((len(secrets), _LIMBS * _LIMB_BITS), np.int64)
    bits[:, : 8 * SECRET_BYTES] = np.unpackbits(octets, axis=1, bitorder="little")
    return bits.reshape(len(secrets), _LIMBS, _LIMB_BITS) @ _PLACES


def _limbs_of_shares(rows: Sequence[Sequence[bytes]]) -> Floats:
    """``(holders, secrets, 18)`` limbs."""
    flat = np.frombuffer(b"".join(b"".join(row) for row in rows), "<u2")
    return flat.reshape(len(rows), -1, _LIMBS).transpose(1, 0, 2).astype(np.float64)


@lru_cache(maxsize=4)
def _powers(first: int, n: int, threshold: int) -> Floats:
    """``(n, threshold)`` powers of the points of holders from ``first`` on."""
    powers = np.ones((n, 1), np.int64)
    points = np.arange(first + 1, first + n + 1, dtype=np.int64).reshape(n, 1)
    while powers.shape[1] < threshold:
        powers = np.concatenate([powers, powers * (powers[:, -1:] * points % PRIME) % PRIME], axis=1)
    return powers[:, :threshold].astype(np.float64)


@lru_cache(maxsize=16)
def _weights(holders: tuple[int, ...], at: int) -> Floats:
    """What each share counts for in the value of the polynomial at another point (Lagrange)."""
    points = np.array(holders, np.int64) + 1
    if len(set(holders)) < len(holders) or at in points:
        raise ValueError("a holder is named twice")
    step = max(1, _BLOCK // len(points))
    below = np.concatenate([_products(points[i : i + step, None] - points) for i in range(0, len(points), step)])
    gaps = (at - points) % PRIME
    above = int(_products(gaps[None])[0])
    return np.array([above * pow(int(low * gap), -1, PRIME) % PRIME for low, gap in zip(below, gaps, strict=True)], np.float64)


def _products(rows: Ints) -> Ints:
    """The product of each row in the field, zeros left out."""
    rows = np.where(rows == 0, 1, rows % PRIME)
    while rows.shape[1] > 1:
        if rows.shape[1] % 2:
            rows = np.concatenate([rows, np.ones_like(rows[:, :1])], axis=1)
        rows = rows[:, ::2] * rows[:, 1::2] % PRIME
    return rows[:, 0]


def _not_a_share() -> RemoteProtocolError:
    return RemoteProtocolError("CRYPTO-001", "Shares of a secret do not fit together.", why="At least one of them is not what was dealt.")
