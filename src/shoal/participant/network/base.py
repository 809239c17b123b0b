"""The interface of a network path, and the direct path.

A network path decides how a participant's requests and packets reach the coordinator, and who sees
the participant's IP address. The other paths are `shoal.participant.network.ohttp` (through a
relay) and `shoal.participant.network.tor`. `shoal.participant.client` sends requests over a path;
`shoal.participant.anonymous_delivery` sends packets.

A path must check that the study allows it before anything of the study is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from shoal.errors import UsageError
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.text import escape_text
from shoal.transport.client import choose_tls_verification

if TYPE_CHECKING:
    from shoal.participant.client import Client


class NetworkPath(ABC):
    """A network path to the coordinator.

    Attributes
    ----------
    name
        ``direct``, ``ohttp`` or ``tor``.
    """

    name: str

    @property
    @abstractmethod
    def description(self) -> str:
        """One line about how packets travel and who sees the sender's IP address."""

    @abstractmethod
    def make_transport(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        """Return a transport for requests.

        An isolated transport opens a new connection for each request.
        """

    def check_allowed(self, manifest: Manifest) -> None:
        """Raise if the study does not accept answers over this path. Send no request.

        Raises
        ------
        UsageError
            ``USAGE-001``: the study accepts answers through a relay only.
        RemoteProtocolError
            ``NET-005``: the relay is not that of the study; see
            `shoal.participant.network.ohttp`.
        """
        if manifest.study.trust == "shuffled":
            raise UsageError(
                "USAGE-001",
                f"The study {escape_text(manifest.study.title)} accepts answers through a relay "
                f"only, not with --via {self.name}.",
                why="Its guarantee requires that answers arrive shuffled with many others.",
                fix=f"Use the relay: --via ohttp:{manifest.relay or 'https://relay'}",
            )

    async def check(self, study: StudyHandle) -> None:
        """Raise if the study does not accept answers over this path; ask the relay if there is one.

        Raises
        ------
        UsageError, RemoteProtocolError
            See `check_allowed`.
        TransportError
            ``NET-005``: the relay does not serve the study now.
        """
        self.check_allowed(study.manifest)

    async def confirm_ask(self, _study: StudyHandle, _phase: int, _digest: bytes) -> bool:
        """Return whether everyone was shown the same opening of a phase, as far as can be known.

        Without a relay there is nothing to compare with, and the answer is True. False if the
        relay has not read it yet.

        Raises
        ------
        RemoteProtocolError
            ``ANONML-003``: the relay was shown another one.
        TransportError
            The relay does not answer; try again.
        """
        return True

    def seal(self, _study: str, packet: bytes) -> bytes:
        """Return the bytes of a packet to store and send; retries send the same bytes."""
        return packet

    async def post_packet(self, study: str, sealed: bytes, client: Client) -> None:
        """Send a packet.

        Parameters
        ----------
        study
            The digest in hexadecimal.
        sealed
            The bytes that `seal` returned.
        client
            The coordinator, over isolated connections.

        Raises
        ------
        TransportError
            The packet was not acknowledged. Send the same bytes again.
        RefusedError
            The packet was refused for good: ``RELAY-001``.
        """
        await client.submit_packet(study, sealed)


class DirectPath(NetworkPath):
    """A direct connection to the coordinator, which sees the participant's IP address.

    Parameters
    ----------
    url
        The coordinator's address.
    ca
        A file of certificates to trust instead of the system's.
    local_address
        The address of this machine to connect from; None for any.
    """

    name = "direct"

    def __init__(self, url: str, ca: Path | None = None, local_address: str | None = None) -> None:
        self.url, self._verify, self._local_address = (
            url,
            choose_tls_verification(url, ca),
            local_address,
        )

    @property
    def description(self) -> str:
        return (
            f"directly to {escape_text(self.url)}; the coordinator sees your IP address and could "
            "link your answer to it"
        )

    def make_transport(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        limits = httpx2.Limits(max_keepalive_connections=0 if is_isolated else 2)
        return httpx2.AsyncHTTPTransport(
            verify=self._verify, trust_env=False, limits=limits, local_address=self._local_address
        )
