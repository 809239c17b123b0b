"""Through a relay by oblivious HTTP: the coordinator sees the relay's address, and the relay sealed bytes.

Every request of the participant is sealed to the coordinator's gateway and goes to the relay, which hands it on at once and brings the
answer back, sealed too. Packets go to the relay's spool, sealed once and kept as they are, until the relay hands them on among others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

from shoal.errors import LocalProtocolError, RemoteProtocolError, TransportError
from shoal.names import counted, shown
from shoal.participant.asking import Party, RefusedError, checked_url
from shoal.participant.ways import Direct, Via
from shoal.study.anonymity import has_tokens
from shoal.study.manifest import Manifest, short
from shoal.transport import ohttp
from shoal.transport.bhttp import MAX_MESSAGE_BYTES, Answer, Request, padded_size
from shoal.transport.forms import Relaying, from_json
from shoal.transport.packets import packet_size
from shoal.transport.routes import KEYS, PACKETS, RELAYING, REQUESTS, SEALED
from shoal.transport.sealing import seal_packet

if TYPE_CHECKING:
    from shoal.participant.client import Client

_MAX_LIST_BYTES = 1 << 20
_OUTER = ("host", "content-length", "transfer-encoding", "connection")
"""Headers of the connection, which a sealed request does not have."""


class Ohttp(Via):
    """Through a relay.

    Parameters
    ----------
    relay
        The relay's address: https, or http to this machine.
    url
        The coordinator's.
    ca
        A file of certificates to trust in place of the system's.
    gateway_key
        The gateway's key, where a manifest has told it; None where the relay is to be asked, and the manifest tells later.
    local_address
        The address of this machine from which to connect; None for any.
    """

    name = "ohttp"

    def __init__(
        self, relay: str, url: str, ca: Path | None = None, gateway_key: bytes | None = None, local_address: str | None = None
    ) -> None:
        self.relay = Party("relay", checked_url(relay, "relay"))
        self._direct = Direct(self.relay.url, ca, local_address)
        self._prefix = urlsplit(url).path.rstrip("/")
        self._key = gateway_key
        self._checked: set[bytes] = set()
        self._n_others: int | None = None

    @property
    def words(self) -> str:
        seen = "it sees your address and sealed bytes, and the coordinator what is in them; the two together see all"
        # A study that was made for one person is one more on this list.
        others = "" if self._n_others is None else f". Besides this study it lists {counted(self._n_others, 'other')}"
        return f"through the relay at {shown(self.relay.url)}: {seen}{others}"

    def transport(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        return OhttpTransport(self, self._direct.transport(is_apart=is_apart), self._prefix)

    async def gateway_key(self) -> bytes:
        """The gateway's key: the manifest's, or, before there is one, what the relay says."""
        if self._key is None:
            data = await self._ask("GET", KEYS)
            try:
                found = ohttp.key_of(data)
            except RemoteProtocolError as error:
                raise self.relay.no_answer(f"something that is no gateway's key: {error.what}") from None
            self._key = self._key or found
        return self._key

    def allow(self, manifest: Manifest) -> None:
        """Refuse a study that takes nothing through a relay, or is of another gateway than what is sent is sealed to: ``NET-005``."""
        if manifest.gateway_key is None:
            what = f"The study {shown(manifest.study.title)} names no gateway's key, and so takes nothing through a relay."
            raise RemoteProtocolError("NET-005", what, fix="Ask its analyst, or go another way: --via direct, or --via tor")
        if self._key not in (None, manifest.gateway_key):
            raise RemoteProtocolError(
                "NET-005",
                f"The relay at {shown(self.relay.url)} has another gateway's key than the study {shown(manifest.study.title)}.",
                why="It belongs to another coordinator, or somebody would read what you send.",
                fix="Ask the study's analyst for the relay's address.",
            )

    async def check(self, manifest: Manifest) -> None:
        """See that the relay leads to the gateway that the manifest names, and takes this study's packets: ``NET-005``."""
        if manifest.digest in self._checked:
            return
        await self.gateway_key()
        self.allow(manifest)
        if has_tokens(manifest) and manifest.study.protocol == "anonml":
            await self._check_listed(manifest)
        self._checked.add(manifest.digest)

    async def _check_listed(self, manifest: Manifest) -> None:
        data = await self._ask("GET", RELAYING, _MAX_LIST_BYTES)
        serves = self.relay.form(lambda given, kind: from_json(given, kind, _MAX_LIST_BYTES), data, Relaying)
        size, due = serves.studies.get(manifest.digest.hex()), packet_size(manifest)
        if size is None:
            raise self._unserved(f"{shown(manifest.study.title)}, digest {manifest.short}")
        if size != due:
            which = f"packets of {size} bytes in the study {shown(manifest.study.title)}, which has {due}"
            what = f"The relay at {shown(self.relay.url)} takes {which}."
            raise RemoteProtocolError("NET-005", what, why="Packets of several sizes could be told apart.")
        self._n_others = len(serves.studies) - 1

    def _unserved(self, study: str) -> TransportError:
        return TransportError(
            "NET-005",
            f"The relay at {shown(self.relay.url)} does not serve the study {study}.",
            why="It serves another coordinator or another form of the study; or does not know it yet, or any more.",
            fix="Ask the study's analyst for the relay's address; or try again in a minute.",
        )

    def seal(self, study: str, packet: bytes) -> bytes:
        """A packet as only the gateway can read it; other bytes each time, so that they are to be kept."""
        if self._key is None:
            raise LocalProtocolError("PROTO-001", "A packet was to be sealed before the gateway's key was known.")
        return seal_packet(self._key, study, packet)

    async def post_packet(self, study: str, sealed: bytes, _client: Client) -> None:
        """Hand a sealed packet to the relay, on a connection of its own; one that does not know the study now may know it in a minute."""
        try:
            await self._ask("POST", f"{PACKETS}/{study}", body=sealed, kind=SEALED)
        except RefusedError as error:
            if (error.code, error.status) != ("RELAY-001", 404):
                raise
            raise self._unserved(f"with digest {short(bytes.fromhex(study))}") from None

    async def _ask(self, method: str, target: str, max_bytes: int = 1 << 14, body: bytes = b"", kind: str | None = None) -> bytes:
        async with self._direct.transport(is_apart=True) as transport:
            return await self.relay.ask(transport, method, target, max_bytes, body, kind)


class OhttpTransport(httpx2.AsyncBaseTransport):
    """Carries requests sealed.

    Parameters
    ----------
    via
        Knows the relay and the gateway's key.
    inner
        Carries what is sealed to the relay.
    prefix
        What the coordinator's address has in front of its routes.
    """

    def __init__(self, via: Ohttp, inner: httpx2.AsyncBaseTransport, prefix: str = "") -> None:
        self._via, self._inner, self._prefix = via, inner, prefix

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = request.url.raw_path.decode("ascii").removeprefix(self._prefix)
        headers = tuple((name.lower(), value) for name, value in request.headers.items() if name.lower() not in _OUTER)
        # To whom it goes is left out: which of a coordinator's names somebody uses would tell people apart.
        plain = Request(request.method, target, headers, await request.aread()).to_bytes()
        sealed, opener = ohttp.encapsulate(await self._via.gateway_key(), plain.ljust(padded_size(len(plain)), b"\x00"))
        relay = self._via.relay
        data = await relay.ask(self._inner, "POST", REQUESTS, MAX_MESSAGE_BYTES + ohttp.ANSWER_OVERHEAD, sealed, SEALED)
        try:
            answer = Answer.from_bytes(opener.open(data))
        except RemoteProtocolError as error:
            raise relay.no_answer(f"something that is no gateway's answer: {error.what}") from None
        return httpx2.Response(answer.status, headers=list(answer.headers), stream=httpx2.ByteStream(answer.body))

    async def aclose(self) -> None:
        await self._inner.aclose()
