"""Counting of CBOR values before decoding."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.messages.codec import check_value_count

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=30)
    ),
)


def values(data: object) -> int:
    if isinstance(data, dict):
        return 1 + sum(values(key) + values(value) for key, value in data.items())
    return 1 + sum(map(values, data)) if isinstance(data, list) else 1


@pytest.mark.untraced
@given(plain)
def test_check_value_count_counts_all_values(data: object) -> None:
    encoded, n = cbor2.dumps(data, canonical=True), values(data)
    check_value_count(encoded, n)
    with pytest.raises(RemoteProtocolError, match="MSG-001"):
        check_value_count(encoded, n - 1)


@given(st.binary(max_size=500))
def test_check_value_count_ends_for_any_bytes(data: bytes) -> None:
    check_value_count(data, len(data))


@pytest.mark.parametrize(
    "filling", [b"\x00", b"\xa0", b"\x80", b"\x40", b"\xc1", b"\x81", b"\x9a\x00\x00\x00\x00"]
)
def test_check_value_count_rejects_many_small_values(filling: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-001"):
        check_value_count(filling * 1000, 999)


def test_check_value_count_stops_at_malformed_bytes() -> None:
    check_value_count(b"\x9f" + b"\x00" * 1000, 1)
    check_value_count(b"\x5b\x7f" + b"\xff" * 1000, 1)
