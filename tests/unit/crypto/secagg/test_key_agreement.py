"""Key agreement is symmetric; mask streams are AES in counter mode."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from shoal.crypto.secagg.key_agreement import (
    add_masks,
    agree_keys,
    derive_key,
    derive_public_key,
    is_usable_public_key,
)
from shoal.errors import RemoteProtocolError
from tests.support.crypto import agree_key, expand_mask

# RFC 7748, section 6.1.
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

FIELD = 2**255 - 19
ORDER_EIGHT = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
SMALL_ORDER = [
    0,
    1,
    FIELD - 1,
    FIELD,
    FIELD + 1,
    *ORDER_EIGHT,
    *(u + (1 << 255) for u in (0, 1, *ORDER_EIGHT)),
]


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block, from the definition."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def test_agreement_follows_rfc_7748_and_rfc_5869() -> None:
    assert derive_public_key(BOB) == BOB_PUBLIC
    assert agree_key(BOB, ALICE_PUBLIC, b"purpose") == hkdf(SHARED, b"purpose")
    assert derive_key(SHARED, b"purpose") == hkdf(SHARED, b"purpose")


def test_other_purpose_or_party_gives_other_key() -> None:
    mine, yours, theirs = (bytes([i]) * 32 for i in (1, 2, 3))
    keys = [
        agree_key(mine, derive_public_key(yours), b"a"),
        agree_key(mine, derive_public_key(yours), b"b"),
        agree_key(mine, derive_public_key(theirs), b"a"),
    ]
    assert len(set(keys)) == 3
    others = [
        (derive_public_key(yours), b"a"),
        (derive_public_key(yours), b"b"),
        (derive_public_key(theirs), b"a"),
    ]
    assert list(agree_keys(mine, others)) == keys
    assert agree_key(yours, derive_public_key(mine), b"a") == keys[0]


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_agreement_rejects_keys_of_small_order(u: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        agree_key(BOB, u.to_bytes(32, "little"), b"")
    assert caught.value.code == "CRYPTO-001"


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33)])
def test_agreement_rejects_invalid_keys(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        agree_key(BOB, public, b"")


@pytest.mark.parametrize("n", [0, 1, 3, 8191, 8192, 8193, 20_000])
def test_mask_stream_is_aes_256_ctr_from_zero(n: int) -> None:
    key = bytes(range(32))
    reference = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * n))
    stream = expand_mask(key, n)
    assert stream.dtype == np.uint64
    assert stream.astype("<u8").tobytes() == reference


def test_add_masks_adds_and_subtracts_in_place() -> None:
    keys = [bytes([i]) * 32 for i in range(3)]
    total = np.arange(9000, dtype=np.uint64)
    same = total
    add_masks(total, [(keys[0], True), (keys[1], False), (keys[2], True)])
    assert same is total
    expected = (
        np.arange(9000, dtype=np.uint64)
        + expand_mask(keys[0], 9000)
        - expand_mask(keys[1], 9000)
        + expand_mask(keys[2], 9000)
    )
    assert np.array_equal(total, expected)
    add_masks(total, [(keys[0], False), (keys[1], True), (keys[2], False)])
    assert np.array_equal(total, np.arange(9000))


def test_small_order_keys_are_those_that_agree_on_zero() -> None:
    prime = 2**255 - 19
    order_8 = (
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    )
    small = [
        0,
        1,
        prime - 1,
        prime,
        prime + 1,
        *order_8,
        *(u + 2**255 for u in (0, 1, prime - 1, prime, prime + 1, *order_8)),
    ]
    others = [2, 9, prime - 2, prime + 2, order_8[0] + 1, 2**255 + 9]
    for u in (*small, *others):
        key = u.to_bytes(32, "little")
        try:
            agree_key(bytes(range(32)), key, b"")
            is_refused = False
        except RemoteProtocolError:
            is_refused = True
        assert is_usable_public_key(key) is (u in others) is not is_refused
