"""Parts of batches: none too large, none too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.messages.codec import MAX_BYTES
from shoal.transport.api import PacketBatch, from_cbor, to_cbor
from shoal.transport.packets import (
    PacketBatchParser,
    compute_max_part,
    compute_min_part,
    compute_sealed_size,
    split_evenly,
)


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_split_evenly_returns_fewest_even_parts(n: int, most: int) -> None:
    parts = split_evenly(n, most)
    assert sum(parts) == n and len(parts) == -(-n // most)
    assert not parts or (max(parts) <= most and max(parts) - min(parts) <= 1)


@given(st.integers(600, 1 << 21), st.integers(1, 10**5), st.integers(0, 10**5))
def test_parts_of_batch_have_at_least_the_minimum(size: int, minimum: int, more: int) -> None:
    parts = split_evenly(minimum + more, compute_max_part(size))
    assert min(parts) >= compute_min_part(size, minimum)


def test_largest_part_fits_into_request() -> None:
    for size in (640, 1 << 16, 1 << 20):
        packets = (bytes(compute_sealed_size(size)),) * compute_max_part(size)
        encoded = to_cbor(PacketBatch(packets=packets))
        assert len(encoded) <= MAX_BYTES
        assert len(from_cbor(encoded, PacketBatch).packets) == len(packets)


@given(
    st.lists(st.binary(max_size=300), max_size=40),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_parser_returns_packets_of_batch_in_any_pieces(
    packets: list[bytes], sizes: list[int]
) -> None:
    data = to_cbor(PacketBatch(packets=tuple(packets)))
    parser, found, position, i = PacketBatchParser(256, 40), [], 0, 0
    while position < len(data):
        assert not parser.is_complete
        size = sizes[i % len(sizes)]
        found += parser.feed(data[position : position + size])
        position, i = position + size, i + 1
    assert parser.is_complete
    assert found == [packet if len(packet) <= 256 else b"" for packet in packets]
    assert len(parser._rest) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xa0",
        b"\xa1\x67packetz\x80",
        b"\xa1\x67packets\x40",
        b"\xa1\x67packets\x9f\xff",
        b"\xa1\x67packets\x18\x01\x40",
        b"\xa1\x67packets\x98\x01\x40",
        b"\xa1\x67packets\x81\x60",
        b"\xa1\x67packets\x81\x58\x01x",
        b"\xa1\x67packets\x81\x59\x00\x20" + bytes(32),
        b"\xa1\x67packets\x81\x40\x40",
        b"\xa1\x67packets\x80\x00",
        b"\xa1\x67packets\x85\x40",
    ],
)
def test_parser_rejects_other_bytes_than_batch(data: bytes) -> None:
    parser = PacketBatchParser(256, 4)
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        for i in range(len(data)):
            parser.feed(data[i : i + 1])
        assert parser.is_complete


def test_parser_does_not_keep_long_packets() -> None:
    parser = PacketBatchParser(10, 4)
    parser.feed(b"\xa1\x67packets\x82\x5a\x00\x10\x00\x00")
    found = []
    for _ in range(1 << 10):
        found += parser.feed(bytes(1 << 10))
        assert len(parser._rest) == 0
    assert found == [] and parser.feed(b"\x43end") == [b"end"] and parser.is_complete
