"""A box opens for its key and its purpose only, and not at all when a bit of it has changed."""

from __future__ import annotations

import pytest

from shoal.crypto.boxes import OVERHEAD, open_box, open_boxes, seal
from shoal.crypto.masks import public_of
from shoal.errors import RemoteProtocolError
from sum_cases import flips

PRIVATE, OTHER = bytes(range(32)), bytes(range(1, 33))
PUBLIC = public_of(PRIVATE)
PLAIN = b"two shares of two secrets"


def refused(private: bytes, box: bytes, info: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        open_box(private, box, info)
    assert caught.value.code == "CRYPTO-001"


def test_a_box_opens_for_its_key_and_its_purpose_only() -> None:
    box = seal(PUBLIC, PLAIN, b"purpose")
    assert len(box) == len(PLAIN) + OVERHEAD
    assert PLAIN not in box
    assert open_box(PRIVATE, box, b"purpose") == PLAIN
    refused(OTHER, box, b"purpose")
    refused(PRIVATE, box, b"another")


def test_no_two_boxes_are_alike() -> None:
    assert len({seal(PUBLIC, PLAIN, b"") for _ in range(10)}) == 10


def test_a_box_with_one_bit_changed_does_not_open() -> None:
    for changed in flips(seal(PUBLIC, PLAIN, b"purpose")):
        # X25519 ignores the highest bit of a key, but HPKE hashes the key as it is written.
        refused(PRIVATE, changed, b"purpose")


@pytest.mark.parametrize("box", [b"", bytes(31), bytes(OVERHEAD - 1), bytes(OVERHEAD), bytes(200)])
def test_what_is_no_box_does_not_open(box: bytes) -> None:
    refused(PRIVATE, box, b"")


def test_a_box_that_was_cut_or_lengthened_does_not_open() -> None:
    box = seal(PUBLIC, PLAIN, b"")
    refused(PRIVATE, box[:-1], b"")
    refused(PRIVATE, box + b"\0", b"")


def test_many_boxes_for_one_key() -> None:
    boxes = [(seal(PUBLIC, bytes([i]), bytes([i])), bytes([i])) for i in range(5)]
    assert list(open_boxes(PRIVATE, boxes)) == [bytes([i]) for i in range(5)]


@pytest.mark.parametrize("public", [bytes(32), bytes(31), b"\x01" + bytes(31)])
def test_nothing_is_sealed_to_what_is_no_key(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        seal(public, PLAIN, b"")
    assert caught.value.code == "CRYPTO-001"
    assert PLAIN.decode() not in str(caught.value)
