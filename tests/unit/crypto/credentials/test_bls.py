"""Points and scalars: canonical forms, hashing by RFC 9380, missing libraries."""

from __future__ import annotations

import sys

import pytest
from py_arkworks_bls12381 import G1Point, G2Point

from shoal.crypto.credentials import bls
from shoal.crypto.credentials.bls import ORDER, MalformedError
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError, format_install_command
from tests.support.tokens import FIELD, THIRD, outside, third

POINT, KEY = bytes(G1Point().to_compressed_bytes()), bytes(G2Point().to_compressed_bytes())
TAG = b"QUUX-V01-CS02-with-expander-SHA256-128"


@pytest.mark.parametrize(
    ("message", "n", "expected"),
    [
        (b"abc", 32, "d8ccab23b5985ccea865c6c97b6e5b8350e794e603b4b97902f53a8a0d605615"),
        (
            b"",
            128,
            "af84c27ccfd45d41914fdff5df25293e221afc53d8ad2ac06d5e3e29485dadbee0d121587713a3e0dd4d5e69e93eb7cd4f5df4"
            "cd103e188cf60cb02edc3edf18eda8576c412b18ffb658e3dd6ec849469b979d444cf7b26911a08e63cf31f9dcc541708d3491"
            "184472c2c29bb749d4286b004ceb5ee6b9a7fa5b646c993f0ced",
        ),
    ],
)
def test_expand_message_matches_rfc_9380(message: bytes, n: int, expected: str) -> None:
    assert bls.expand_message(message, TAG, n).hex() == expected


def test_hashed_scalars_match_expansion() -> None:
    one, two = bls.hash_to_scalars(b"message", b"tag", 2)
    assert one != two
    assert all(0 < scalar < ORDER for scalar in (one, two))
    stream = bls.expand_message(b"message", b"tag", 96)
    assert [one, two] == [
        int.from_bytes(half, "big") % ORDER for half in (stream[:48], stream[48:])
    ]
    assert (
        bls.hash_to_scalar(b"message", b"tag")
        == int.from_bytes(bls.expand_message(b"message", b"tag", 48), "big") % ORDER
    )


def test_drawn_scalars_are_in_range(entropy: SeededEntropy) -> None:
    drawn = {bls.draw_scalar(entropy) for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 < scalar < ORDER for scalar in drawn)


def test_scalars_have_one_encoding() -> None:
    numbers = [1, 2, ORDER - 1]
    assert bls.decode_scalars(b"".join(map(bls.encode_scalar, numbers)), 3) == numbers
    assert bls.encode_scalar(-1) == bls.encode_scalar(ORDER - 1)
    for data in (
        bytes(32),
        ORDER.to_bytes(32, "big"),
        (ORDER + 1).to_bytes(32, "big"),
        b"\xff" * 32,
        bytes(31) + b"\x01\x01",
        b"",
        b"\x01" * 31,
    ):
        with pytest.raises(MalformedError):
            bls.decode_scalars(data, 1)


def test_points_have_one_encoding() -> None:
    assert bls.decode_point(POINT).compress() == POINT
    assert bls.decode_key_point(KEY).compress() == KEY
    assert bls.get_key_generator() == bls.decode_key_point(KEY)


ALIAS = bytearray((4 + FIELD).to_bytes(48, "big"))
ALIAS[0] |= 0x80
BAD_POINTS = {
    "nothing": b"",
    "too short": POINT[:-1],
    "too long": POINT + b"\x00",
    "the identity": b"\xc0" + bytes(47),
    "the identity with its sign": b"\xe0" + bytes(47),
    "the identity with junk": b"\xc0" + bytes(46) + b"\x01",
    "the identity's flag on a point": bytes([POINT[0] | 0x40]) + POINT[1:],
    "without the flag of compression": bytes([POINT[0] & 0x7F]) + POINT[1:],
    "uncompressed": bytes(G1Point().to_xy_bytes_be()),
    "x beyond the field": bytes(ALIAS),
    "not on the curve": b"\x80" + bytes(46) + b"\x01",
    "of order 3": THIRD,
    "outside the subgroup": outside(),
    "inside but for a third": bytes((G1Point() + third()).to_compressed_bytes()),
}


@pytest.mark.parametrize("data", BAD_POINTS.values(), ids=BAD_POINTS)
def test_decode_point_rejects_invalid_points(data: bytes) -> None:
    with pytest.raises(MalformedError):
        bls.decode_point(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KEY[:-1],
        KEY + b"\x00",
        POINT,
        b"\xc0" + bytes(95),
        b"\xc0" + bytes(94) + b"\x01",
        bytes(96),
        b"\xff" * 96,
    ],
)
def test_decode_key_point_rejects_invalid_keys(data: bytes) -> None:
    with pytest.raises(MalformedError):
        bls.decode_key_point(data)


def test_is_pairing_equal_checks_equation(entropy: SeededEntropy) -> None:
    a, b = bls.draw_scalar(entropy), bls.draw_scalar(entropy)
    point = bls.hash_to_point(b"message", b"tag")
    key = bls.get_key_generator().scalar_mul(a)
    assert bls.is_pairing_equal(point, key, bls.multi_scalar_mul((point, a)))
    assert bls.is_pairing_equal(
        bls.multi_scalar_mul((point, b)), key, bls.multi_scalar_mul((point, a * b))
    )
    assert not bls.is_pairing_equal(point, key, bls.multi_scalar_mul((point, b)))


def test_libraries_hash_to_same_points() -> None:
    for message in (b"", b"abc", b"q" * 300):
        assert bls.hash_to_point(message, TAG).compress() == bytes(
            G1Point.hash_to_curve(message, TAG).to_compressed_bytes()
        )


@pytest.mark.parametrize("name", ["pyblst", "py_arkworks_bls12381"])
def test_missing_library_names_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError) as caught:
        (bls.load_blst if name == "pyblst" else bls.load_arkworks)()
    assert caught.value.code == "USAGE-002"
    assert name in caught.value.what
    assert caught.value.fix == format_install_command("anonymous")
