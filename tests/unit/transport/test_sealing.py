"""Sealed packets: one length for all, and no other request in them than that of their study."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.transport.bhttp import Request
from shoal.transport.ohttp import Gateway, seal
from shoal.transport.routes import CBOR, RAW, study_route
from shoal.transport.sealing import open_packet, seal_packet, sealed_size

GATEWAY = Gateway.from_seed(bytes(range(32)))
STUDY = "7f" * 32


@given(st.binary(max_size=2000), st.binary(min_size=32, max_size=32))
def test_a_packet_comes_back_and_its_size_says_nothing_else(packet: bytes, digest: bytes) -> None:
    sealed = seal_packet(GATEWAY.key, digest.hex(), packet)
    assert open_packet(GATEWAY, digest.hex(), sealed) == packet
    assert len(sealed) == sealed_size(len(packet))


def test_any_gateway_could_take_it() -> None:
    request, _ = GATEWAY.open(seal_packet(GATEWAY.key, STUDY, b"packet"))
    assert Request.from_bytes(request) == Request("POST", study_route(STUDY, "submissions"), (("content-type", RAW),), b"packet")


OTHERS = {
    "another study": Request("POST", study_route("00" * 32, "submissions"), (("content-type", RAW),), b"packet"),
    "another route": Request("POST", study_route(STUDY, "enrolments"), (("content-type", RAW),), b"packet"),
    "another method": Request("GET", study_route(STUDY, "submissions"), (("content-type", RAW),), b"packet"),
    "another content": Request("POST", study_route(STUDY, "submissions"), (("content-type", CBOR),), b"packet"),
    "another header": Request("POST", study_route(STUDY, "submissions"), (("content-type", RAW), ("x", "me")), b"packet"),
    "an address": Request("POST", study_route(STUDY, "submissions"), (("content-type", RAW),), b"packet", authority="a.example"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_request_is_no_packet(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        open_packet(GATEWAY, STUDY, seal(GATEWAY.key, OTHERS[name].to_bytes()))


def test_what_does_not_open_is_no_packet() -> None:
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        open_packet(GATEWAY, STUDY, seal_packet(Gateway.from_seed(bytes(32)).key, STUDY, b"packet"))
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        open_packet(GATEWAY, STUDY, seal(GATEWAY.key, b"packet"))
