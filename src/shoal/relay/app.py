"""A relay as an ASGI application.

=========================  ==========================================================  ===================================================
POST /v1/requests          a sealed request                                            200, the gateway's sealed answer, at once
POST /v1/packets/{digest}  a sealed packet of a study                                  202, once it is on the disk
GET /v1/relaying           JSON: where it relays to, and the studies that it serves    200
GET /v1/ohttp-keys         the gateway's key                                           200, the same for everyone
GET /healthz               whether the process answers                                 200
=========================  ==========================================================  ===================================================

Nothing of who asks is passed on or written: not the address, not the time, not the order, not a header. In memory it is counted how many
packets of the open window have come from an address, so that nobody alone can fill the spool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.clock import Clock
from shoal.errors import RemoteProtocolError, TransportError
from shoal.relay.following import Followed, Following
from shoal.relay.remote import RefusedError, Remote
from shoal.relay.spool import Kept, Sealed, Spool
from shoal.transport import bhttp, ohttp
from shoal.transport.batching import Batched
from shoal.transport.forms import Relaying, to_json
from shoal.transport.problems import Guard, RequestError, not_here
from shoal.transport.reading import body_of, body_up_to, check_type, digest_of, query_of
from shoal.transport.routes import JSON, KEYS, OPENED, PACKETS, RELAYING, REQUESTS, SEALED

MAX_SEALED_BYTES = bhttp.MAX_MESSAGE_BYTES + ohttp.REQUEST_OVERHEAD
MOST_AT_ONCE = 1_000
KEPT_FOR = timedelta(minutes=10)
"""How long the gateway's key is told as it was fetched."""

Answering = Callable[[Request], Awaitable[Response]]


class Desk:
    """What each route of a relay does.

    Parameters
    ----------
    following, remote, spool, clock
        The studies, the coordinator, the packets, and the time.
    executor
        Where packets are written.
    sees_senders
        Whether requests come from their senders' addresses: they do not where something else stands in front.
    """

    def __init__(
        self, following: Following, remote: Remote, spool: Spool, clock: Clock, executor: Executor, *, sees_senders: bool = True
    ) -> None:
        self._following, self._remote, self._clock, self._sees_senders = following, remote, clock, sees_senders
        self._put: Batched[Sealed, Kept] = Batched(spool.put, executor, MOST_AT_ONCE)
        self._keys, self._keys_until = b"", datetime.min.replace(tzinfo=clock.now().tzinfo)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Answer those now who wait for the coordinator's answer: they come again."""
        self._stopping.set()

    async def request(self, request: Request) -> Response:
        """Pass a sealed request on, and its answer back."""
        query_of(request)
        check_type(request, SEALED)
        try:
            return Response(await self._forwarded(await body_of(request, MAX_SEALED_BYTES)), media_type=OPENED)
        except RefusedError as error:
            raise RemoteProtocolError(error.code, error.what) from None

    async def _forwarded(self, sealed: bytes) -> bytes:
        """The coordinator's answer, unless the relay stops before it comes."""
        answer, stopping = asyncio.ensure_future(self._remote.forward(sealed)), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((answer, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise TransportError("HOST-004", "The relay stops.")
            return answer.result()
        finally:
            answer.cancel()
            stopping.cancel()

    async def packet(self, request: Request) -> Response:
        """Keep a sealed packet."""
        query_of(request)
        digest = digest_of(request)
        study = self._served().get(digest)
        if study is None:
            raise RequestError(404, "RELAY-001", "This relay does not serve that study.", fix="See /v1/relaying for those that it serves.")
        check_type(request, SEALED)
        body = await body_up_to(request, study.sealed_size)
        if len(body) != study.sealed_size:
            what = f"A sealed packet of this study has {study.sealed_size} bytes, and this one has not."
            # The rest of one that is too long is not read, and so the connection cannot be used again.
            raise RequestError(400, "RELAY-001", what, headers={"connection": "close"})
        if await self._keep(study, body, request) == "full":
            raise TransportError("HOST-004", "There is no room for more packets of this study.")
        return Response(status_code=202)

    async def _keep(self, study: Followed, body: bytes, request: Request) -> Kept:
        phase = study.phase_at(self._clock.now())
        sealed = Sealed(study.digest, phase, body, study.most_packets)
        if not self._sees_senders or request.client is None:
            return await self._put(sealed)
        address = request.client.host
        if not study.senders.admit(phase, address, study.n_expected):
            return "full"
        kept: Kept = "full"
        try:
            kept = await self._put(sealed)
        finally:
            if kept != "kept":
                study.senders.take_back(phase, address)
        return kept

    def _served(self) -> dict[str, Followed]:
        """What is served; ``HOST-004`` before that is known."""
        if not self._following.has_looked:
            raise TransportError("HOST-004", "The coordinator has not told yet which studies there are.")
        return self._following.served

    async def relaying(self, request: Request) -> Response:
        """What is served."""
        query_of(request)
        studies = {digest: study.size for digest, study in sorted(self._served().items())}
        return Response(to_json(Relaying(to=self._remote.url, studies=studies)), media_type=JSON)

    async def keys(self, request: Request) -> Response:
        """The gateway's key. Everyone is told the same one."""
        query_of(request)
        if self._clock.now() >= self._keys_until:
            self._keys = await self._remote.keys()
            self._keys_until = self._clock.now() + KEPT_FOR
        return Response(self._keys, media_type=ohttp.KEYS)

    async def healthz(self, request: Request) -> Response:
        """Whether the process answers."""
        query_of(request)
        return Response(b'{"status": "ok"}', media_type=JSON)


def make_app(desk: Desk) -> ASGIApp:
    """The application of a relay."""
    ways = {
        REQUESTS: ("POST", desk.request),
        f"{PACKETS}/{{digest}}": ("POST", desk.packet),
        RELAYING: ("GET", desk.relaying),
        KEYS: ("GET", desk.keys),
        "/healthz": ("GET", desk.healthz),
    }
    routes = [Route(path, _Path(method, answer)) for path, (method, answer) in ways.items()]
    return Guard(_Unreachable(Router(routes, redirect_slashes=False, default=_nowhere)), "relay")


class _Path:
    """The one method of a path."""

    def __init__(self, method: str, answer: Answering) -> None:
        self._method, self._answer = method, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != self._method:
            fix = f"It takes {self._method}."
            raise RequestError(405, "HOST-006", "This route does not take that method.", fix=fix, headers={"allow": self._method})
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)


class _Unreachable:
    """Where the coordinator does not answer, the relay cannot do what it is asked now: 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except TransportError as error:
            raise TransportError("HOST-004", error.what) from None


async def _nowhere(*_: object) -> None:
    raise not_here("There is nothing under this path.")
