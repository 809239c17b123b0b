"""Parts of batches: none too large, none too small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.messages.codec import MAX_BYTES
from shoal.transport.api import PacketBatch, from_cbor, to_cbor
from shoal.transport.packets import (
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
