"""How a participant's requests and packets get to the coordinator, and who sees its address: what all ways have, and the direct one.

The others are `shoal.participant.sealed` (through a relay) and `shoal.participant.tor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from shoal.errors import UsageError
from shoal.names import shown
from shoal.participant.asking import tls_for
from shoal.study.manifest import Manifest

if TYPE_CHECKING:
    from shoal.participant.client import Client


class Via(ABC):
    """A way to the coordinator.

    Attributes
    ----------
    name
        ``direct``, ``ohttp`` or ``tor``.
    """

    name: str

    @property
    @abstractmethod
    def words(self) -> str:
        """How packets travel, and who sees the sender's address, in a line."""

    @abstractmethod
    def transport(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        """What carries requests; each on a connection of its own where they are to be apart."""

    def allow(self, manifest: Manifest) -> None:
        """Refuse a study whose answers do not go this way, as far as that is known without asking anyone.

        Raises
        ------
        UsageError
            ``USAGE-001``: the study's answers go through a relay alone.
        RemoteProtocolError
            ``NET-005``: the relay is not this study's; see `shoal.participant.sealed`.
        """
        if manifest.study.trust == "shuffled":
            raise UsageError(
                "USAGE-001",
                f"The study {shown(manifest.study.title)} takes answers through a relay alone, and not by --via {self.name}.",
                why="Its promise holds for answers that come shuffled among many.",
                fix=f"--via ohttp:{manifest.relay or 'https://relay'}",
            )

    async def check(self, manifest: Manifest) -> None:
        """See that this way is one that a study allows, before anything of it is sent: what `allow` sees, and what a relay says.

        Raises
        ------
        UsageError, RemoteProtocolError
            As `allow` has them.
        TransportError
            ``NET-005``: the relay does not serve the study now.
        """
        self.allow(manifest)

    def seal(self, _study: str, packet: bytes) -> bytes:
        """The bytes of a packet to keep, to send and to send again."""
        return packet

    async def post_packet(self, study: str, sealed: bytes, client: Client) -> None:
        """Send a packet, as `seal` gave it.

        Parameters
        ----------
        study
            The digest in hexadecimal.
        sealed
            What `seal` gave.
        client
            The coordinator, over connections that are apart.

        Raises
        ------
        TransportError
            Nobody has acknowledged it, and the same bytes are to be sent again.
        RefusedError
            It will not be taken: ``RELAY-001``.
        """
        await client.submit_packet(study, sealed)


class Direct(Via):
    """Straight to the coordinator, which sees the address.

    Parameters
    ----------
    url
        The coordinator's address.
    ca
        A file of certificates to trust in place of the system's.
    local_address
        The address of this machine from which to connect; None for any.
    """

    name = "direct"

    def __init__(self, url: str, ca: Path | None = None, local_address: str | None = None) -> None:
        self.url, self._verify, self._local_address = url, tls_for(url, ca), local_address

    @property
    def words(self) -> str:
        return f"directly to {shown(self.url)}, which sees your address and could tell by it what is yours"

    def transport(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        limits = httpx2.Limits(max_keepalive_connections=0 if is_apart else 2)
        return httpx2.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=limits, local_address=self._local_address)
