"""Over Tor, by the SOCKS port of a Tor that runs here: the coordinator does not see the address, nor who is on the way to whom one speaks.

Names are looked up at the far end. Every connection that is to be apart has a name and password of its own at the port: Tor gives
connections that differ in these circuits of their own (``IsolateSOCKSAuth``, which is on unless somebody turns it off).
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

import httpcore2
import httpx2

from shoal.entropy import Entropy
from shoal.errors import TransportError, UsageError
from shoal.names import shown
from shoal.participant.asking import certificate_fault, checked_url, reason, tls_for
from shoal.participant.ways import Via

PORT = 9050
_SECONDS = 60.0
"""For a handshake over a circuit that is just being built."""
_AUTH_BYTES = 16


class Tor(Via):
    """Over Tor.

    Parameters
    ----------
    url
        The coordinator's address; an onion service's is as good as any.
    entropy
        Where the names of connections come from.
    ca
        A file of certificates to trust in place of the system's.
    host, port
        Tor's SOCKS port, on this machine or in a private network.

    Raises
    ------
    UsageError
        ``USAGE-002``: the extra that speaks SOCKS is not installed. ``USAGE-001``: the port is somewhere where others could listen.
    """

    name = "tor"

    def __init__(self, url: str, entropy: Entropy, ca: Path | None = None, host: str = "127.0.0.1", port: int = PORT) -> None:
        if importlib.util.find_spec("socksio") is None:
            raise UsageError("USAGE-002", "Tor is spoken by an extra that is not installed.", fix="pip install 'shoal[anonymous]'")
        if not _is_near(host):
            raise UsageError(
                "USAGE-001",
                f"--via tor:{shown(host)}:{port} is not on this machine, nor in a private network.",
                why="To whom you speak goes to this port in the open.",
                fix="Run Tor on this machine: --via tor",
            )
        checked_url(url, is_tor=True)
        self._url, self._entropy, self._verify = url, entropy, tls_for(url, ca)
        self.port = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def words(self) -> str:
        return f"over Tor, by {self.port}: the coordinator does not see your address, and every packet takes a circuit of its own"

    def transport(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        return TorTransport(self, is_apart=is_apart)

    def circuit(self, *, is_apart: bool) -> httpx2.AsyncBaseTransport:
        """What carries requests on circuits that nothing else uses."""
        auth = self._entropy.bytes(_AUTH_BYTES).hex(), self._entropy.bytes(_AUTH_BYTES).hex()
        return _Circuit(self.port, auth, self._verify, n_kept=0 if is_apart else 2)

    def unreachable(self, error: Exception) -> TransportError:
        """What an error on the way means."""
        if isinstance(error, httpx2.ProxyError):
            what = f"Tor at {self.port} does not reach the coordinator at {shown(self._url)}."
            fix = "See whether the address is right and the coordinator is up; nothing is lost, and the same command goes on."
        else:
            what = f"Tor at {self.port} cannot be reached, or breaks off."
            fix = "Start Tor, or give its SOCKS port: --via tor:127.0.0.1:9150; nothing is lost, and the same command goes on."
        return TransportError("NET-004", what, why=reason(error), fix=fix)


class TorTransport(httpx2.AsyncBaseTransport):
    """Carries requests over Tor: all on circuits of this transport, or each on a circuit of its own."""

    def __init__(self, via: Tor, *, is_apart: bool) -> None:
        self._via = via
        self._shared = None if is_apart else via.circuit(is_apart=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        from socksio.exceptions import SOCKSError

        request.extensions = {**request.extensions, "timeout": {**request.extensions.get("timeout", {}), "connect": _SECONDS}}
        # One that is apart keeps no connection once its answer is closed.
        carrier = self._shared or self._via.circuit(is_apart=True)
        try:
            return await carrier.handle_async_request(request)
        except (httpx2.TransportError, SOCKSError, AssertionError) as error:  # an assertion of theirs is about what the port answers
            if certificate_fault(error) is not None:
                raise
            raise self._via.unreachable(error) from None

    async def aclose(self) -> None:
        if self._shared is not None:
            await self._shared.aclose()


class _Circuit(httpx2.AsyncHTTPTransport):
    """HTTP over a SOCKS port under one name and password, which leaves no connection open that the port has not made good.

    The library's own leaves one open each time that the port says no.
    """

    def __init__(self, port: str, auth: tuple[str, str], verify: ssl.SSLContext | bool, n_kept: int) -> None:
        self._made = _Made()
        context = verify if isinstance(verify, ssl.SSLContext) else None
        self._pool = httpcore2.AsyncSOCKSProxy(
            f"socks5h://{port}", auth, context, max_keepalive_connections=n_kept, network_backend=self._made
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_good = False
        try:
            response = await super().handle_async_request(request)
            is_good = True
            return response
        finally:
            await self._made.settle(is_good=is_good)


class _Made(httpcore2.AnyIOBackend):
    """Makes connections, and keeps each until the request that it was made for has an answer."""

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

    async def settle(self, *, is_good: bool) -> None:
        """Have done with the connection that was made for the request of this task, if there is one: close it unless it is good."""
        stream = self._streams.pop(asyncio.current_task(), None)
        if stream is not None and not is_good:
            await stream.aclose()


def _is_near(host: str) -> bool:
    """Whether a port is on this machine or in a private network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_private
    except ValueError:
        return False
