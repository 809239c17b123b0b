"""Oblivious HTTP (RFC 9458): requests through a relay that cannot read them.

The coordinator sees the relay's IP address; the relay sees the participant's IP address and
encrypted bytes. `shoal.participant.network.parse_via` makes an `OhttpPath`.

Each request is encrypted for the coordinator's gateway and sent to the relay, which forwards it
without delay and returns the encrypted response. Packets go to the relay's spool: each is encrypted
once and stored, and the relay forwards it together with others.

Nothing of a study is sent before the gateway key is known to be the one in its manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

from shoal.errors import LocalProtocolError, RemoteProtocolError, TransportError
from shoal.participant.network.base import DirectPath, NetworkPath
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest, shorten_digest
from shoal.text import escape_text
from shoal.transport import ohttp
from shoal.transport.api import (
    KEYS,
    OHTTP_REQUEST,
    PACKETS,
    RELAYING,
    REQUESTS,
    RelayedStudies,
    from_json,
)
from shoal.transport.bhttp import (
    MAX_MESSAGE_BYTES,
    BinaryRequest,
    BinaryResponse,
    compute_padded_size,
)
from shoal.transport.client import HttpParty, RefusedError, validate_url
from shoal.transport.packets import seal_packet

if TYPE_CHECKING:
    from shoal.participant.client import Client

_MAX_LIST_BYTES = 1 << 20
_CONNECTION_HEADERS = ("host", "content-length", "transfer-encoding", "connection")
"""Headers of the connection, which an encrypted request does not contain."""


class OhttpPath(NetworkPath):
    """The path through a relay.

    Parameters
    ----------
    relay
        The relay's address: https, or http to this machine.
    url
        The coordinator's address.
    ca
        A file of certificates to trust instead of the system's.
    gateway_key
        The gateway key of a known manifest; None to ask the relay for the key. The manifest that
        is then fetched confirms it.
    local_address
        The address of this machine to connect from; None for any.
    """

    name = "ohttp"

    def __init__(
        self,
        relay: str,
        url: str,
        ca: Path | None = None,
        gateway_key: bytes | None = None,
        local_address: str | None = None,
    ) -> None:
        self.relay = HttpParty("relay", validate_url(relay, "relay"))
        self._direct = DirectPath(self.relay.url, ca, local_address)
        self._prefix = urlsplit(url).path.rstrip("/")
        self._key = gateway_key
        self._checked: set[bytes] = set()
        self._n_others: int | None = None

    @property
    def description(self) -> str:
        visibility = (
            "the relay sees your IP address and encrypted data, the coordinator sees what is in "
            "it; if the two work together, they know both"
        )
        # A study that was made for one person is one more on this list.
        n = self._n_others
        others = (
            ""
            if n is None
            else f". The relay serves {n:,} other {'study' if n == 1 else 'studies'}"
        )
        return f"through the relay at {escape_text(self.relay.url)}: {visibility}{others}"

    def make_transport(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        return OhttpTransport(
            self, self._direct.make_transport(is_isolated=is_isolated), self._prefix
        )

    async def fetch_gateway_key(self) -> bytes:
        """Return the gateway key of the manifest or, before there is one, the relay's."""
        if self._key is None:
            data = await self._request("GET", KEYS)
            try:
                found = ohttp.parse_key_configuration(data)
            except RemoteProtocolError as error:
                raise self.relay.bad_response_error(
                    f"data that is not a gateway key: {error.what}"
                ) from None
            self._key = self._key or found
        return self._key

    def check_allowed(self, manifest: Manifest) -> None:
        """Raise ``NET-005`` if the study has no gateway, or another gateway key than this path."""
        if manifest.gateway_key is None:
            raise RemoteProtocolError(
                "NET-005",
                f"The study {escape_text(manifest.study.title)} has no gateway key, so it accepts "
                "nothing through a relay.",
                fix="Ask the study's analyst, or use another network path: --via direct, or "
                "--via tor",
            )
        if self._key not in (None, manifest.gateway_key):
            raise RemoteProtocolError(
                "NET-005",
                f"The relay at {escape_text(self.relay.url)} has a different gateway key than the "
                f"study {escape_text(manifest.study.title)}.",
                why="The relay belongs to another coordinator, or someone tries to read what you "
                "send.",
                fix="Ask the study's analyst for the relay's address.",
            )

    async def check(self, study: StudyHandle) -> None:
        """Raise ``NET-005`` unless the relay has the study's gateway key and takes its packets."""
        if study.digest in self._checked:
            return
        await self.fetch_gateway_key()
        self.check_allowed(study.manifest)
        if study.has_tokens and study.protocol.has_packets:
            await self._check_listed(study)
        self._checked.add(study.digest)

    async def confirm_ask(self, study: StudyHandle, phase: int, digest: bytes) -> bool:
        """Return whether the relay was shown the same opening of a phase; False if none yet."""
        shown = (await self._fetch_relayed()).asks.get(study.digest.hex(), {}).get(str(phase))
        if shown is not None and shown != digest.hex():
            raise RemoteProtocolError(
                "ANONML-003",
                f"The relay at {escape_text(self.relay.url)} was shown another question of phase "
                f"{phase} than you.",
                why="The coordinator could recognise the packet of a person who alone gets a "
                "question. Nothing is sent for this question.",
            )
        return shown is not None

    async def _fetch_relayed(self) -> RelayedStudies:
        data = await self._request("GET", RELAYING, _MAX_LIST_BYTES)
        return self.relay.parse_body(
            lambda given, kind: from_json(given, kind, _MAX_LIST_BYTES), data, RelayedStudies
        )

    async def _check_listed(self, study: StudyHandle) -> None:
        manifest, relayed = study.manifest, await self._fetch_relayed()
        size, due = relayed.studies.get(study.digest.hex()), study.packet_size
        if size is None:
            raise self._not_served_error(
                f"{escape_text(manifest.study.title)}, digest {manifest.short_digest}"
            )
        if size != due:
            raise RemoteProtocolError(
                "NET-005",
                f"The relay at {escape_text(self.relay.url)} takes packets of {size} bytes for "
                f"the study {escape_text(manifest.study.title)}; its packets have {due}.",
                why="Packets of another size could be recognised.",
            )
        self._n_others = len(relayed.studies) - 1

    def _not_served_error(self, study: str) -> TransportError:
        return TransportError(
            "NET-005",
            f"The relay at {escape_text(self.relay.url)} does not serve the study {study}.",
            why="The relay belongs to another coordinator, has another version of the study, or "
            "does not list it now.",
            fix="Try again in a minute, or ask the study's analyst for the relay's address.",
        )

    def seal(self, study: str, packet: bytes) -> bytes:
        """Encrypt a packet for the gateway. Each call returns other bytes, so store them."""
        if self._key is None:
            raise LocalProtocolError(
                "PROTO-001", "A packet was encrypted before the gateway key was known."
            )
        return seal_packet(self._key, study, packet)

    async def post_packet(self, study: str, sealed: bytes, _client: Client) -> None:
        """Send an encrypted packet to the relay on a new connection.

        A relay that does not list the study now may list it in a minute: `TransportError`.
        """
        try:
            await self._request(
                "POST", f"{PACKETS}/{study}", body=sealed, content_type=OHTTP_REQUEST
            )
        except RefusedError as error:
            if (error.code, error.status) != ("RELAY-001", 404):
                raise
            raise self._not_served_error(
                f"with digest {shorten_digest(bytes.fromhex(study))}"
            ) from None

    async def _request(
        self,
        method: str,
        target: str,
        max_bytes: int = 1 << 14,
        body: bytes = b"",
        content_type: str | None = None,
    ) -> bytes:
        async with self._direct.make_transport(is_isolated=True) as transport:
            return await self.relay.request(
                transport, method, target, max_bytes, body, content_type
            )


class OhttpTransport(httpx2.AsyncBaseTransport):
    """A transport that encrypts each request for the gateway.

    Parameters
    ----------
    inner
        The transport to the relay.
    prefix
        Path of the coordinator's address, which is removed from each target.
    """

    def __init__(
        self, network_path: OhttpPath, inner: httpx2.AsyncBaseTransport, prefix: str = ""
    ) -> None:
        self._network_path, self._inner, self._prefix = network_path, inner, prefix

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = request.url.raw_path.decode("ascii").removeprefix(self._prefix)
        headers = tuple(
            (name.lower(), value)
            for name, value in request.headers.items()
            if name.lower() not in _CONNECTION_HEADERS
        )
        # The host is left out: it would distinguish participants who use different names of one
        # coordinator.
        plain = BinaryRequest(request.method, target, headers, await request.aread()).to_bytes()
        sealed, opener = ohttp.encapsulate(
            await self._network_path.fetch_gateway_key(),
            plain.ljust(compute_padded_size(len(plain)), b"\x00"),
        )
        relay = self._network_path.relay
        data = await relay.request(
            self._inner,
            "POST",
            REQUESTS,
            MAX_MESSAGE_BYTES + ohttp.RESPONSE_OVERHEAD,
            sealed,
            OHTTP_REQUEST,
        )
        try:
            answer = BinaryResponse.from_bytes(opener.open(data))
        except RemoteProtocolError as error:
            raise relay.bad_response_error(
                f"data that is not a gateway's response: {error.what}"
            ) from None
        return httpx2.Response(
            answer.status, headers=list(answer.headers), stream=httpx2.ByteStream(answer.body)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()
