"""Batches in parts: none too large, none too small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.messages.codec import MAX_BYTES
from shoal.transport.batches import even_parts, least_in_part, most_in_batch
from shoal.transport.forms import Batch, from_cbor, to_cbor
from shoal.transport.sealing import sealed_size


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_parts_are_even_and_as_few_as_it_goes(n: int, most: int) -> None:
    parts = even_parts(n, most)
    assert sum(parts) == n and len(parts) == -(-n // most)
    assert not parts or (max(parts) <= most and max(parts) - min(parts) <= 1)


@given(st.integers(600, 1 << 21), st.integers(1, 10**5), st.integers(0, 10**5))
def test_no_part_of_a_batch_is_smaller_than_it_may_be(size: int, minimum: int, more: int) -> None:
    parts = even_parts(minimum + more, most_in_batch(size))
    assert min(parts) >= least_in_part(size, minimum)


def test_the_largest_part_fits_into_a_request() -> None:
    for size in (640, 1 << 16, 1 << 20):
        packets = (bytes(sealed_size(size)),) * most_in_batch(size)
        encoded = to_cbor(Batch(packets=packets))
        assert len(encoded) <= MAX_BYTES
        assert len(from_cbor(encoded, Batch).packets) == len(packets)
