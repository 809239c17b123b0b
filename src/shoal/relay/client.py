"""HTTP client of the coordinator, for a relay.

The tracker, the batch releaser and the request handlers of a relay share one `CoordinatorClient`.
All requests have the same few headers; nothing about the sender of a request is passed on.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

import httpx2

from shoal.errors import RemoteProtocolError, TransportError
from shoal.messages import codec
from shoal.study.registry import PROTOCOLS
from shoal.transport import bhttp, ohttp
from shoal.transport.api import (
    CBOR,
    GATEWAY,
    KEYS,
    MAX_WAIT_SECONDS,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    STUDIES,
    BatchReceipt,
    MessagePage,
    PacketBatch,
    SignedManifest,
    Status,
    from_cbor,
    study_route,
    to_cbor,
)
from shoal.transport.client import HttpParty, RefusedError, choose_tls_verification, validate_url

MAX_OPENED_BYTES = bhttp.MAX_MESSAGE_BYTES + bhttp.PADDING_MULTIPLE + ohttp.RESPONSE_OVERHEAD

_TIMEOUTS = {"connect": 10.0, "write": 60.0, "read": 60.0, "pool": 10.0}
_FIX = "Check that the coordinator is running and that --to is its address."
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_LIST_BYTES = 1 << 20
_MAX_KEY_BYTES = 1 << 14
_MAX_RECEIPT_BYTES = 1 << 16
_MAX_CONNECTIONS, _MAX_OWN_CONNECTIONS = 4_096, 16
"""Connections for participants, one for each long poll, and for the relay's own requests."""


class CoordinatorClient:
    """The coordinator of a relay. Use it in an ``async with`` statement.

    Every method raises `TransportError` if the request failed and may be repeated, and
    `RefusedError` if it must not be repeated.

    Parameters
    ----------
    ca
        A file of certificates to trust instead of the system's.
    transport
        None for HTTP, with separate connections for requests of participants and for the relay's
        own requests: batches leave even if all participants wait.
    """

    def __init__(
        self, url: str, ca: Path | None = None, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self.url = validate_url(url, is_for_relay=True)
        # A sealed request may be a long poll.
        self._coordinator = HttpParty(
            "coordinator", self.url, _FIX, _TIMEOUTS, range(200, 201)
        ).allow_wait(MAX_WAIT_SECONDS)
        context = choose_tls_verification(self.url, ca)
        self._own_transport, self._participant_transport = (
            transport or _make_transport(context, most)
            for most in (_MAX_OWN_CONNECTIONS, _MAX_CONNECTIONS)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._own_transport.aclose()
        await self._participant_transport.aclose()

    async def fetch_studies(self) -> dict[str, Status]:
        """Return the status of each study that may have sealed requests, by digest."""
        data = await self._request("GET", STUDIES, _MAX_LIST_BYTES)
        try:
            entries = json.loads(data)
            found: dict[str, Status] = {
                one["digest"]: one["status"]
                for one in entries
                if _may_have_gateway(one["protocol"])
            }
            if not isinstance(entries, list) or not all(map(_DIGEST.fullmatch, found)):
                raise ValueError
            if not all(status in get_args(Status) for status in found.values()):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._bad_response("no list of studies") from None
        return found

    async def fetch_manifest(self, study: str) -> SignedManifest:
        """Return a manifest with its signature; neither is checked here."""
        data = await self._request("GET", study_route(study, "manifest"), codec.MAX_BYTES)
        return self._coordinator.parse_body(from_cbor, data, SignedManifest)

    async def fetch_broadcasts(self, study: str, after: int) -> MessagePage:
        """Return messages to everyone after a number."""
        target = f"{study_route(study, 'board')}?after={after}"
        data = await self._request("GET", target, codec.MAX_BYTES)
        return self._coordinator.parse_body(from_cbor, data, MessagePage)

    async def fetch_keys(self) -> bytes:
        """Return the gateway's key, as ``application/ohttp-keys``."""
        data = await self._request("GET", KEYS, _MAX_KEY_BYTES)
        try:
            ohttp.parse_key_configuration(data)
        except RemoteProtocolError:
            raise self._bad_response("no key of a gateway") from None
        return data

    async def forward_request(self, sealed: bytes) -> bytes:
        """Return the sealed response to a sealed request of a participant."""
        request = self._coordinator.make_request("POST", GATEWAY, sealed, OHTTP_REQUEST)
        return await self._send(
            self._participant_transport, request, MAX_OPENED_BYTES, OHTTP_RESPONSE
        )

    async def send_batch(self, study: str, packets: Sequence[bytes]) -> BatchReceipt:
        """Send sealed packets; when this returns, the coordinator has stored them."""
        body = to_cbor(PacketBatch(packets=tuple(packets)))
        data = await self._request(
            "POST", study_route(study, "batches"), _MAX_RECEIPT_BYTES, body, CBOR
        )
        receipt = self._coordinator.parse_body(from_cbor, data, BatchReceipt)
        if any(i >= len(packets) for i in receipt.invalid):
            raise self._bad_response("a receipt for packets that were not sent to it")
        return receipt

    async def _request(
        self,
        method: str,
        target: str,
        max_bytes: int,
        body: bytes = b"",
        content_type: str | None = None,
    ) -> bytes:
        request = self._coordinator.make_request(method, target, body, content_type)
        return await self._send(self._own_transport, request, max_bytes)

    async def _send(
        self,
        transport: httpx2.AsyncBaseTransport,
        request: httpx2.Request,
        max_bytes: int,
        response_type: str | None = None,
    ) -> bytes:
        try:
            return await self._coordinator.send(transport, request, max_bytes, response_type)
        except RefusedError:
            raise
        except (RemoteProtocolError, TransportError) as error:
            # A certificate that is not trusted (NET-003) may be replaced while the relay runs.
            # HOST-004 is the relay's own code for participants.
            code = "NET-002" if error.code == "HOST-004" else error.code
            raise TransportError(code, error.what, why=error.why, fix=error.fix) from None

    def _bad_response(self, what: str) -> TransportError:
        return self._coordinator.bad_response_error(what)


def _may_have_gateway(name: object) -> bool:
    """Return whether participants of a protocol, by its name in a response, may use a relay."""
    protocol = PROTOCOLS.get(name) if isinstance(name, str) else None
    return protocol is not None and (protocol.has_packets or protocol.has_updates)


def _make_transport(
    context: ssl.SSLContext | bool, max_connections: int
) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(
        max_connections=max_connections, max_keepalive_connections=_MAX_OWN_CONNECTIONS
    )
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
