"""Sealed packets: one length for all, and rejection of other requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.transport.api import CBOR, RAW, study_route
from shoal.transport.bhttp import BinaryRequest
from shoal.transport.ohttp import Gateway, seal_request
from shoal.transport.packets import compute_sealed_size, open_packet, seal_packet

GATEWAY = Gateway.from_seed(bytes(range(32)))
STUDY = "7f" * 32


@given(st.binary(max_size=2000), st.binary(min_size=32, max_size=32))
def test_sealed_packet_opens_and_has_fixed_size(packet: bytes, digest: bytes) -> None:
    sealed = seal_packet(GATEWAY.key, digest.hex(), packet)
    assert open_packet(GATEWAY, digest.hex(), sealed) == packet
    assert len(sealed) == compute_sealed_size(len(packet))


def test_sealed_packet_is_a_valid_ohttp_request() -> None:
    request, _ = GATEWAY.open(seal_packet(GATEWAY.key, STUDY, b"packet"))
    assert BinaryRequest.from_bytes(request) == BinaryRequest(
        "POST", study_route(STUDY, "submissions"), (("content-type", RAW),), b"packet"
    )


OTHERS = {
    "another study": BinaryRequest(
        "POST", study_route("00" * 32, "submissions"), (("content-type", RAW),), b"packet"
    ),
    "another route": BinaryRequest(
        "POST", study_route(STUDY, "enrolments"), (("content-type", RAW),), b"packet"
    ),
    "another method": BinaryRequest(
        "GET", study_route(STUDY, "submissions"), (("content-type", RAW),), b"packet"
    ),
    "another content": BinaryRequest(
        "POST", study_route(STUDY, "submissions"), (("content-type", CBOR),), b"packet"
    ),
    "another header": BinaryRequest(
        "POST", study_route(STUDY, "submissions"), (("content-type", RAW), ("x", "me")), b"packet"
    ),
    "an address": BinaryRequest(
        "POST",
        study_route(STUDY, "submissions"),
        (("content-type", RAW),),
        b"packet",
        authority="a.example",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_open_packet_rejects_other_request(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        open_packet(GATEWAY, STUDY, seal_request(GATEWAY.key, OTHERS[name].to_bytes()))


def test_open_packet_rejects_bytes_that_do_not_open() -> None:
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        open_packet(GATEWAY, STUDY, seal_packet(Gateway.from_seed(bytes(32)).key, STUDY, b"packet"))
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        open_packet(GATEWAY, STUDY, seal_request(GATEWAY.key, b"packet"))
