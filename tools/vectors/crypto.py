"""Vectors of secure sums: key shares, key agreement, sealed boxes, masked numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.crypto.secagg.context import (
    RoundContext,
    digest_key_list,
    encode_box_statement,
    encode_survivors_statement,
)
from shoal.crypto.secagg.key_agreement import add_masks, agree_keys, derive_public_key
from shoal.crypto.secagg.key_shares import (
    MemberSecrets,
    derive_public_keys,
    reveal_share,
    share_keys,
)
from shoal.crypto.secagg.masking import mask_vector
from shoal.crypto.shamir import split_secrets
from shoal.entropy import SeededEntropy
from tools.vectors.base import CONTEXT, tag_value

BOUND: list[tuple[RoundContext, str, tuple[int | bytes, ...]]] = [
    (CONTEXT, "purpose", ()),
    (CONTEXT, "", (0, b"", 2**64 - 1)),
    (CONTEXT, "purpose", (b"\x00\x01", 258)),
    (RoundContext(b"", b"", 0, b""), "purpose", (b"ab", b"c")),
]
SHARED_SECRETS: list[tuple[bytes, int, int]] = [
    (bytes(range(32)), 1, 2),
    (bytes([255]) * 32, 2, 3),
    (bytes(range(100, 132)), 4, 7),
]
NO_SHARES: dict[str, tuple[int, dict[int, str]]] = {
    "a limb that is not below the prime": (1, {0: "f1ff" + "00" * 34}),
    "a share of 35 bytes": (1, {0: "00" * 35}),
    "a share of 37 bytes": (1, {0: "00" * 37}),
    "a secret with a limb of 16 bits": (1, {0: "0080" + "00" * 34}),
    "a secret of more than 256 bits": (1, {0: "00" * 34 + "0200"}),
    "shares of two polynomials": (1, {0: "00" * 36, 1: "01" + "00" * 35}),
}
MEMBERS = {
    member: MemberSecrets(*(bytes([10 * member + part]) * 32 for part in (1, 2, 3)))
    for member in (0, 1, 3)
}
SMALL_ORDER = (0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18)
# Sealed once: each sealing gives different bytes.
BOX = (
    "841c179d61ea32942a5d4e13b7c981e8d4df8af9ee330adb3fd3e19a2a6e7c74"
    "b2b1b288eb716be1a23a3eade23be0054f332d1bd4f65ff87a58031360d6cc89"
)


def make_crypto() -> dict[str, Any]:
    """Return the values that secure sums compute from fixed secrets."""
    keys = {
        member: derive_public_keys(secrets, CONTEXT, member) for member, secrets in MEMBERS.items()
    }
    dealing = share_keys(MEMBERS[0], CONTEXT, 0, keys, 2, SeededEntropy("vectors"))
    digest = digest_key_list(CONTEXT, keys)
    values = np.array([0, 1, -5, 2**40], np.int64)
    private, other = bytes(range(32)), bytes(range(1, 33))
    shares = [
        {
            "secret": secret.hex(),
            "threshold": t,
            "shares": [
                one.hex() for (one,) in split_secrets([secret], t, n, SeededEntropy("vectors"))
            ],
        }
        for secret, t, n in SHARED_SECRETS
    ]
    return {
        "context": tag_value(asdict(CONTEXT)),
        "bound": [
            {
                "context": tag_value(asdict(about)),
                "purpose": purpose,
                "parts": tag_value(parts),
                "hex": about.bind(purpose, *parts).hex(),
            }
            for about, purpose, parts in BOUND
        ],
        "shares": shares,
        "no_shares": [
            {"name": name, "threshold": t, "shares": by, "code": "CRYPTO-001"}
            for name, (t, by) in NO_SHARES.items()
        ],
        "agreed": {
            "private": private.hex(),
            "public": derive_public_key(other).hex(),
            "info": b"why".hex(),
            "key": next(agree_keys(private, [(derive_public_key(other), b"why")])).hex(),
        },
        "no_keys": [u.to_bytes(32, "little").hex() for u in SMALL_ORDER],
        "streams": [
            {"key": key.hex(), "numbers": [str(word) for word in _expand_mask(key, 5).tolist()]}
            for key in (bytes(32), private)
        ],
        "box": {
            "private": private.hex(),
            "info": b"purpose".hex(),
            "hex": BOX,
            "plain": b"a pair of shares".hex(),
        },
        "members": {
            str(member): {
                "secrets": [part.hex() for part in secrets],
                "keys": [part.hex() for part in keys[member]],
                "masked": [
                    str(word)
                    for word in mask_vector(values, secrets, CONTEXT, member, keys).tolist()
                ],
            }
            for member, secrets in MEMBERS.items()
        },
        "values": values.tolist(),
        "list_digest": digest.hex(),
        "statements": {
            "box": encode_box_statement(
                CONTEXT, 0, 3, digest, b"box", dealing.commitments[3]
            ).hex(),
            "survivors": encode_survivors_statement(CONTEXT, (3, 0), (0, 1, 3)).hex(),
        },
        "kept": {
            "dealer": 0,
            "holder": 0,
            "plain": dealing.own_shares.hex(),
            "commitment": dealing.commitments[0].hex(),
            "own": reveal_share(dealing.own_shares, "own").hex(),
            "mask": reveal_share(dealing.own_shares, "mask").hex(),
        },
    }


def _expand_mask(key: bytes, n: int) -> npt.NDArray[np.uint64]:
    """Return the first ``n`` numbers of a key's mask stream."""
    stream = np.zeros(n, np.uint64)
    add_masks(stream, [(key, True)])
    return stream
