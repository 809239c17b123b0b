"""Sealed packets: what a participant hands to a relay, of one length for everyone in a study.

A sealed packet is a request of oblivious HTTP to which no answer is read. Inside is the POST of a packet to the study's submissions, always
with the same headers, so that its length follows from the packet's.
"""

from __future__ import annotations

from shoal.errors import RemoteProtocolError
from shoal.transport import ohttp
from shoal.transport.bhttp import Request
from shoal.transport.routes import RAW, study_route

_HEADERS = (("content-type", RAW),)


def seal_packet(gateway_key: bytes, study: str, packet: bytes) -> bytes:
    """A packet of a study as only the gateway can read it; different bytes each time.

    Parameters
    ----------
    gateway_key
        The gateway's key, as the manifest has it.
    study
        The digest in hexadecimal.
    packet
        The packet.

    Examples
    --------
    >>> gateway = ohttp.Gateway.from_seed(bytes(range(32)))
    >>> sealed = seal_packet(gateway.key, "7f" * 32, bytes(640))
    >>> len(sealed) == sealed_size(640), open_packet(gateway, "7f" * 32, sealed) == bytes(640)
    (True, True)
    """
    return ohttp.seal(gateway_key, _request(study, packet).to_bytes())


def open_packet(gateway: ohttp.Gateway, study: str, sealed: bytes) -> bytes:
    """The packet in a sealed one; ``CRYPTO-001`` or ``MSG-005`` where it is not one of this study."""
    request = Request.from_bytes(gateway.open_only(sealed))
    if request != _request(study, request.body):
        raise RemoteProtocolError("MSG-005", "A sealed packet has another request in it than that of its study.")
    return request.body


def sealed_size(packet_size: int) -> int:
    """The length of a sealed packet whose packet has this size: the same for every study and every key."""
    return ohttp.REQUEST_OVERHEAD + len(_request("0" * 64, bytes(packet_size)).to_bytes())


def _request(study: str, packet: bytes) -> Request:
    # The address is left out: which of a coordinator's names somebody uses would tell people apart.
    return Request("POST", study_route(study, "submissions"), _HEADERS, packet)
