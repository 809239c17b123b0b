"""Sealed boxes open only for their key and purpose, and only unchanged."""

from __future__ import annotations

import pytest

from shoal.crypto.hpke import OVERHEAD, open_box, open_boxes, seal
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.errors import RemoteProtocolError
from tests.support.secagg import flips

PRIVATE, OTHER = bytes(range(32)), bytes(range(1, 33))
PUBLIC = derive_public_key(PRIVATE)
PLAIN = b"two shares of two secrets"


def refused(private: bytes, box: bytes, info: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        open_box(private, box, info)
    assert caught.value.code == "CRYPTO-001"


def test_box_opens_only_for_its_key_and_purpose() -> None:
    box = seal(PUBLIC, PLAIN, b"purpose")
    assert len(box) == len(PLAIN) + OVERHEAD
    assert PLAIN not in box
    assert open_box(PRIVATE, box, b"purpose") == PLAIN
    refused(OTHER, box, b"purpose")
    refused(PRIVATE, box, b"another")


def test_two_boxes_of_same_content_differ() -> None:
    assert len({seal(PUBLIC, PLAIN, b"") for _ in range(10)}) == 10


def test_open_box_rejects_changed_bit() -> None:
    for changed in flips(seal(PUBLIC, PLAIN, b"purpose")):
        # X25519 ignores the highest bit of a key, but HPKE hashes the key as it is written.
        refused(PRIVATE, changed, b"purpose")


@pytest.mark.parametrize("box", [b"", bytes(31), bytes(OVERHEAD - 1), bytes(OVERHEAD), bytes(200)])
def test_open_box_rejects_malformed_box(box: bytes) -> None:
    refused(PRIVATE, box, b"")


def test_open_box_rejects_truncated_and_extended_box() -> None:
    box = seal(PUBLIC, PLAIN, b"")
    refused(PRIVATE, box[:-1], b"")
    refused(PRIVATE, box + b"\0", b"")


def test_open_boxes_opens_many_boxes_for_one_key() -> None:
    boxes = [(seal(PUBLIC, bytes([i]), bytes([i])), bytes([i])) for i in range(5)]
    assert list(open_boxes(PRIVATE, boxes)) == [bytes([i]) for i in range(5)]


@pytest.mark.parametrize("public", [bytes(32), bytes(31), b"\x01" + bytes(31)])
def test_seal_rejects_invalid_key(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        seal(public, PLAIN, b"")
    assert caught.value.code == "CRYPTO-001"
    assert PLAIN.decode() not in str(caught.value)
