"""Tor: requests through the SOCKS port of a Tor client on this machine.

The coordinator does not see the participant's IP address, and an observer on the way does not see
which coordinator it contacts. `shoal.participant.network.parse_via` makes a `TorPath`.

Host names are resolved at the other end of the circuit. Each isolated connection has its own user
name and password at the SOCKS port: Tor uses separate circuits for connections that differ in
these (``IsolateSOCKSAuth``, which is on by default).
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

import httpcore2
import httpx2

from shoal.entropy import Entropy
from shoal.errors import TransportError, UsageError, require_extra
from shoal.participant.network.base import NetworkPath
from shoal.text import escape_text
from shoal.transport.client import (
    choose_tls_verification,
    describe_network_error,
    find_certificate_error,
    validate_url,
)

DEFAULT_PORT = 9050
_CONNECT_SECONDS = 60.0
"""Time for a handshake over a circuit that is still being built."""
_AUTH_BYTES = 16


class TorPath(NetworkPath):
    """The path over Tor.

    Parameters
    ----------
    url
        The coordinator's address; it may be that of an onion service.
    entropy
        Draws the user names and passwords of connections.
    ca
        A file of certificates to trust instead of the system's.
    host, port
        Tor's SOCKS port, on this machine or in a private network.

    Raises
    ------
    UsageError
        ``USAGE-002``: the extra with SOCKS is not installed. ``USAGE-001``: the port is on a public
        network, where others could listen.
    """

    name = "tor"

    def __init__(
        self,
        url: str,
        entropy: Entropy,
        ca: Path | None = None,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
    ) -> None:
        require_extra("anonymous", "socksio", purpose="Tor")
        if not _is_private_host(host):
            raise UsageError(
                "USAGE-001",
                f"--via tor:{escape_text(host)}:{port} is neither on this machine nor in a private "
                "network.",
                why="The coordinator's address is sent to this port without encryption.",
                fix="Run Tor on this machine: --via tor",
            )
        validate_url(url, is_tor=True)
        self._url, self._entropy, self._verify = url, entropy, choose_tls_verification(url, ca)
        self.port = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def description(self) -> str:
        return (
            f"over Tor, through {self.port}: the coordinator does not see your IP address, and "
            "each packet uses a separate circuit"
        )

    def make_transport(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        return TorTransport(self, is_isolated=is_isolated)

    def make_circuit(self, *, is_isolated: bool) -> httpx2.AsyncBaseTransport:
        """Return a transport with circuits that nothing else uses."""
        auth = self._entropy.bytes(_AUTH_BYTES).hex(), self._entropy.bytes(_AUTH_BYTES).hex()
        return _TorCircuit(self.port, auth, self._verify, n_kept=0 if is_isolated else 2)

    def unreachable_error(self, error: Exception) -> TransportError:
        """Return the error for a failed connection to Tor or through it."""
        if isinstance(error, httpx2.ProxyError):
            what = f"Tor at {self.port} cannot reach the coordinator at {escape_text(self._url)}."
            fix = (
                "Check the address, and whether the coordinator is running. Nothing is lost: run "
                "the same command again to resume."
            )
        else:
            what = f"Tor at {self.port} cannot be reached, or closed the connection."
            fix = (
                "Start Tor, or give its SOCKS port: --via tor:127.0.0.1:9150. Nothing is lost: "
                "run the same command again to resume."
            )
        return TransportError("NET-004", what, why=describe_network_error(error), fix=fix)


class TorTransport(httpx2.AsyncBaseTransport):
    """A transport over Tor with one circuit for all requests or, if isolated, one for each."""

    def __init__(self, network_path: TorPath, *, is_isolated: bool) -> None:
        self._network_path = network_path
        self._shared = None if is_isolated else network_path.make_circuit(is_isolated=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        from socksio.exceptions import SOCKSError

        request.extensions = {
            **request.extensions,
            "timeout": {**request.extensions.get("timeout", {}), "connect": _CONNECT_SECONDS},
        }
        # An isolated circuit keeps no connection after its response is closed.
        circuit = self._shared or self._network_path.make_circuit(is_isolated=True)
        try:
            return await circuit.handle_async_request(request)
        except (
            httpx2.TransportError,
            SOCKSError,
            AssertionError,
        ) as error:  # socksio asserts what the port answers
            if find_certificate_error(error) is not None:
                raise
            raise self._network_path.unreachable_error(error) from None

    async def aclose(self) -> None:
        if self._shared is not None:
            await self._shared.aclose()


class _TorCircuit(httpx2.AsyncHTTPTransport):
    """HTTP over a SOCKS port under one user name and password.

    It closes a connection that the port refuses. The library's own class leaves it open.
    """

    def __init__(
        self, port: str, auth: tuple[str, str], verify: ssl.SSLContext | bool, n_kept: int
    ) -> None:
        self._tracking_backend = _TrackingBackend()
        context = verify if isinstance(verify, ssl.SSLContext) else None
        self._pool = httpcore2.AsyncSOCKSProxy(
            f"socks5h://{port}",
            auth,
            context,
            max_keepalive_connections=n_kept,
            network_backend=self._tracking_backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_good = False
        try:
            response = await super().handle_async_request(request)
            is_good = True
            return response
        finally:
            await self._tracking_backend.release_stream(is_good=is_good)


class _TrackingBackend(httpcore2.AnyIOBackend):
    """A backend that tracks each new connection until its request has a response."""

    def __init__(self) -> None:
        self._streams: dict[asyncio.Task[object] | None, httpcore2.AsyncNetworkStream] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        self._streams[asyncio.current_task()] = stream
        return stream

    async def release_stream(self, *, is_good: bool) -> None:
        """Stop tracking the connection of this task's request; close it unless it is good."""
        stream = self._streams.pop(asyncio.current_task(), None)
        if stream is not None and not is_good:
            await stream.aclose()


def _is_private_host(host: str) -> bool:
    """Return whether a host is this machine or in a private network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_private
    except ValueError:
        return False
