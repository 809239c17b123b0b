"""ASGI application of a relay.

``POST /v1/requests``
    A sealed request. Response 200: the gateway's sealed response, immediately.
``POST /v1/packets/{digest}``
    A sealed packet of a study. Response 202, when it is on disk.
``GET /v1/relaying``
    JSON: the coordinator's address, the studies that the relay serves, and the digest of the first
    opening of each phase that it was shown.
``GET /v1/ohttp-keys``
    The gateway's key, the same for everyone.
``GET /healthz``
    Answers if the process runs.

Nothing about a sender is passed on or written: not the address, the time, the order or a header.
Packets of the open window are counted by address, in memory, so that no single sender can fill the
spool.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.clock import Clock
from shoal.errors import RemoteProtocolError, TransportError
from shoal.relay.client import CoordinatorClient
from shoal.relay.spool import SealedPacket, Spool, SpoolOutcome
from shoal.relay.studies import StudyTracker, TrackedStudy
from shoal.transport import ohttp
from shoal.transport.api import (
    JSON,
    KEYS,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    PACKETS,
    RELAYING,
    REQUESTS,
    RelayedStudies,
    to_json,
)
from shoal.transport.batching import CallBatcher
from shoal.transport.client import RefusedError
from shoal.transport.requests import (
    ErrorMiddleware,
    RequestError,
    check_content_type,
    make_router,
    read_body,
    read_body_up_to,
    read_digest,
    read_query,
    run_until_disconnect,
)

MAX_BATCH_SIZE = 1_000
KEY_CACHE_TIME = timedelta(minutes=10)
"""How long the gateway's key is cached."""


class RelayHandlers:
    """The request handlers of a relay.

    Parameters
    ----------
    executor
        Writes packets to the spool.
    sees_senders
        Whether connections come from the addresses of the senders; not behind a proxy.
    """

    def __init__(
        self,
        tracker: StudyTracker,
        client: CoordinatorClient,
        spool: Spool,
        clock: Clock,
        executor: Executor,
        *,
        sees_senders: bool = True,
    ) -> None:
        self._tracker, self._client, self._clock, self._sees_senders = (
            tracker,
            client,
            clock,
            sees_senders,
        )
        self._put: CallBatcher[SealedPacket, SpoolOutcome] = CallBatcher(
            spool.put, executor, MAX_BATCH_SIZE
        )
        self._keys, self._keys_until = b"", datetime.min.replace(tzinfo=clock.now().tzinfo)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Answer requests that wait for the coordinator; the clients repeat them."""
        self._stopping.set()

    async def forward_request(self, request: Request) -> Response:
        """Forward a sealed request, and return its sealed response."""
        read_query(request)
        check_content_type(request, OHTTP_REQUEST)
        try:
            return Response(
                await self._forward_until_stop(
                    request, await read_body(request, self._tracker.max_sealed_bytes)
                ),
                media_type=OHTTP_RESPONSE,
            )
        except RefusedError as error:
            raise RemoteProtocolError(error.code, error.what) from None

    async def _forward_until_stop(self, request: Request, sealed: bytes) -> bytes:
        """Return the coordinator's response; raise ``HOST-004`` if the relay stops first."""
        response, stopping = (
            asyncio.ensure_future(
                run_until_disconnect(request, self._client.forward_request(sealed))
            ),
            asyncio.ensure_future(self._stopping.wait()),
        )
        try:
            await asyncio.wait((response, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not response.done():
                raise TransportError("HOST-004", "The relay is stopping.")
            return response.result()
        finally:
            response.cancel()
            stopping.cancel()

    async def accept_packet(self, request: Request) -> Response:
        """Store a sealed packet."""
        read_query(request)
        digest = read_digest(request)
        study = self._get_studies().get(digest)
        if study is None:
            raise RequestError(
                404,
                "RELAY-001",
                "This relay does not serve that study.",
                fix="GET /v1/relaying lists the studies that it serves.",
            )
        check_content_type(request, OHTTP_REQUEST)
        body = await read_body_up_to(request, study.sealed_size)
        if len(body) != study.sealed_size:
            what = (
                f"The sealed packet does not have the {study.sealed_size} bytes of this study's "
                "packets."
            )
            # A body that is too long is not read to its end, so the connection cannot be reused.
            raise RequestError(400, "RELAY-001", what, headers={"connection": "close"})
        if await self._spool_packet(study, body, request) == "full":
            raise TransportError(
                "HOST-004", "The relay has no room for more packets of this study."
            )
        return Response(status_code=202)

    async def _spool_packet(
        self, study: TrackedStudy, body: bytes, request: Request
    ) -> SpoolOutcome:
        phase = study.find_phase(self._clock.now())
        sealed = SealedPacket(study.digest, phase, body, study.max_packets)
        if not self._sees_senders or request.client is None:
            return await self._put(sealed)
        address = request.client.host
        if not study.sender_quota.admit(phase, address, study.n_expected):
            return "full"
        kept: SpoolOutcome = "full"
        try:
            kept = await self._put(sealed)
        finally:
            if kept != "kept":
                study.sender_quota.refund(phase, address)
        return kept

    def _get_studies(self) -> dict[str, TrackedStudy]:
        """Return the tracked studies; raise ``HOST-004`` before the first poll."""
        if not self._tracker.has_polled:
            raise TransportError("HOST-004", "The relay has not received the list of studies yet.")
        return self._tracker.studies

    async def list_studies(self, request: Request) -> Response:
        """Return the studies that the relay serves."""
        read_query(request)
        studies = sorted(self._get_studies().items())
        relayed = RelayedStudies(
            to=self._client.url,
            studies={digest: study.size for digest, study in studies},
            asks={
                digest: {str(phase): ask.hex() for phase, ask in sorted(study.asks.items())}
                for digest, study in studies
            },
        )
        return Response(to_json(relayed), media_type=JSON)

    async def serve_keys(self, request: Request) -> Response:
        """Return the gateway's key, the same for everyone."""
        read_query(request)
        if self._clock.now() >= self._keys_until:
            self._keys = await self._client.fetch_keys()
            self._keys_until = self._clock.now() + KEY_CACHE_TIME
        return Response(self._keys, media_type=ohttp.KEYS_CONTENT_TYPE)

    async def report_health(self, request: Request) -> Response:
        """Answer if the process runs."""
        read_query(request)
        return Response(b'{"status": "ok"}', media_type=JSON)


def make_app(handlers: RelayHandlers) -> ASGIApp:
    """Return the application of a relay."""
    router = make_router(
        {
            REQUESTS: {"POST": handlers.forward_request},
            f"{PACKETS}/{{digest}}": {"POST": handlers.accept_packet},
            RELAYING: {"GET": handlers.list_studies},
            KEYS: {"GET": handlers.serve_keys},
            "/healthz": {"GET": handlers.report_health},
        }
    )
    return ErrorMiddleware(_UnavailableMiddleware(router), "relay")


class _UnavailableMiddleware:
    """Answer 503 if the coordinator does not answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except TransportError as error:
            raise TransportError("HOST-004", error.what) from None
