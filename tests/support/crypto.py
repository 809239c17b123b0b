"""Single-value forms of `shoal.crypto`, for tests and published vectors.

The source has only the forms that take many values at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.crypto.credentials.bbs import BBSScheme, Proof, compute_challenge
from shoal.crypto.credentials.bls import (
    ORDER,
    POINT_BYTES,
    MalformedError,
    decode_point,
    decode_scalars,
    encode_scalar,
    is_pairing_equal,
    multi_scalar_mul,
)
from shoal.crypto.secagg.key_agreement import Words, add_masks, agree_keys
from shoal.crypto.shamir import are_shares, recombine_secrets, split_secrets
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError


def agree_key(private: bytes, public: bytes, info: bytes) -> bytes:
    """Return the key that the owners of two key pairs agree on."""
    (key,) = agree_keys(private, [(public, info)])
    return key


def expand_mask(key: bytes, n: int) -> Words:
    """Return the first ``n`` numbers of a key's mask stream."""
    stream = np.zeros(n, np.uint64)
    add_masks(stream, [(key, True)])
    return stream


def split_secret(secret: bytes, threshold: int, n: int, entropy: Entropy) -> list[bytes]:
    """Return ``n`` shares of one secret."""
    return [share for (share,) in split_secrets([secret], threshold, n, entropy)]


def recombine_secret(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return one secret from the shares of holders; check the shares beyond the threshold.

    An extra share is right if it gives the same secret in the place of the first one.
    """
    holders = sorted(shares)
    if len(holders) < threshold:
        raise RemoteProtocolError(
            "SUM-003", f"There are {len(holders)} shares of a secret; {threshold} are needed."
        )
    if not all(are_shares(share, 1) for share in shares.values()):
        raise _share_error()
    used, extra = holders[:threshold], holders[threshold:]
    choices = [used, *([*used[1:], holder] for holder in extra)]
    secrets = [
        recombine_secrets(choice, [[shares[holder] for holder in choice]])[0] for choice in choices
    ]
    if secrets[0] is None or len(set(secrets)) > 1:
        raise _share_error()
    return secrets[0]


def sign(scheme: BBSScheme, secret: int, messages: Sequence[bytes]) -> bytes:
    """Return a BBS signature on messages that the signer sees."""
    scalars = scheme.messages_to_scalars(messages)
    e = scheme.hash_scalar(b"".join(map(encode_scalar, (secret, *scalars, scheme.domain))))
    inverse = pow((secret + e) % ORDER, -1, ORDER)
    point = multi_scalar_mul((scheme.compute_signed_point(scalars), inverse))
    return bytes(point.compress()) + encode_scalar(e)


def encode_draft(proof: Proof) -> bytes:
    """Return a proof in the form of the draft, which contains the challenge."""
    return b"".join(proof.points[:3]) + b"".join(
        map(encode_scalar, (*proof.responses, proof.challenge))
    )


def is_valid_proof(
    scheme: BBSScheme,
    proof: bytes,
    disclosed: Sequence[tuple[int, int]],
    header: bytes,
    context: bytes | None = None,
    pseudonym: bytes = b"",
) -> bool:
    """Return whether a proof in the form of the draft is valid.

    Parameters
    ----------
    disclosed
        Index and scalar of each disclosed message, rising. Secrets are never disclosed.
    """
    shown = {index for index, _ in disclosed if 0 <= index < scheme.n_messages}
    if len(shown) != len(disclosed):
        return False
    hidden = [index for index in range(scheme.n_scalars) if index not in shown]
    head = 3 * POINT_BYTES
    try:
        Abar, Bbar, D = (
            decode_point(proof[i : i + POINT_BYTES]) for i in range(0, head, POINT_BYTES)
        )
        e_hat, r1_hat, r3_hat, *hats, c = decode_scalars(proof[head:], 4 + len(hidden))
        N = None if context is None else decode_point(pseudonym)
    except MalformedError:
        return False
    T1 = multi_scalar_mul((Bbar, c), (Abar, e_hat), (D, r1_hat))
    Bv = scheme.domain_point
    for index, scalar in disclosed:
        Bv += multi_scalar_mul((scheme.bases[index], scalar))
    T2 = multi_scalar_mul(
        (Bv, c),
        (D, r3_hat),
        *((scheme.bases[index], hat) for index, hat in zip(hidden, hats, strict=True)),
    )
    pseudonym_points: tuple[bytes, ...] = ()
    if context is not None:
        base = scheme.hash_context(context)
        pseudonym_points = (
            pseudonym,
            bytes(base.compress()),
            bytes(multi_scalar_mul((base, hats[-1]), (N, -c)).compress()),
        )
    points = (
        *(proof[i : i + POINT_BYTES] for i in range(0, head, POINT_BYTES)),
        bytes(T1.compress()),
        bytes(T2.compress()),
    )
    challenge = compute_challenge(scheme, disclosed, points, pseudonym_points, header)
    return challenge == c and is_pairing_equal(Abar, scheme.key_point, Bbar)


def _share_error() -> RemoteProtocolError:
    return RemoteProtocolError("CRYPTO-001", "The shares of a secret are inconsistent.")
