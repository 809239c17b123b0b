"""Values are counted as the decoder meets them, and none is read."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.messages.measuring import check_values

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=30),
)


def values(data: object) -> int:
    if isinstance(data, dict):
        return 1 + sum(values(key) + values(value) for key, value in data.items())
    return 1 + sum(map(values, data)) if isinstance(data, list) else 1


@pytest.mark.untraced
@given(plain)
def test_as_many_as_there_are(data: object) -> None:
    encoded, n = cbor2.dumps(data, canonical=True), values(data)
    check_values(encoded, n)
    with pytest.raises(RemoteProtocolError, match="MSG-001"):
        check_values(encoded, n - 1)


@given(st.binary(max_size=500))
def test_whatever_the_bytes_it_ends(data: bytes) -> None:
    check_values(data, len(data))


@pytest.mark.parametrize("filling", [b"\x00", b"\xa0", b"\x80", b"\x40", b"\xc1", b"\x81", b"\x9a\x00\x00\x00\x00"])
def test_what_is_small_to_send_and_large_to_read(filling: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-001"):
        check_values(filling * 1000, 999)


def test_nothing_after_what_cannot_be_read_is_counted() -> None:
    check_values(b"\x9f" + b"\x00" * 1000, 1)
    check_values(b"\x5b\x7f" + b"\xff" * 1000, 1)
