"""A hostile coordinator that steers when participants read and learn, and a SOCKS5 proxy.

`HostileCoordinator` wraps the real ASGI application of a coordinator and changes only when and what
it answers, which every coordinator can do:

- It answers registrations one at a time, so that the next new reader is known by its key.
- It holds back responses.
- It shows each reader a second opening of the phase, signed, with a window of a few seconds.
- It holds back the acknowledgement of packets.
- It tells every second reader that the study has ended.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from shoal.attacks.timing import ServedKey
from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import add_schedule, load_or_create_secrets, publish
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.messages.codec import decode, encode
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import Issuing, MessagePage, QueuedMessage, from_cbor, to_cbor
from shoal.transport.signing import sign_broadcast

Response = tuple[dict[str, Any], bytes]

TURN_SECONDS = 0.25
"""Time between two answered registrations of a study."""
HELD_SECONDS = 0.3
SHORT_WINDOW = timedelta(seconds=2)


@dataclass
class StudyLog:
    """What the coordinator has seen of one study.

    Attributes
    ----------
    served
        Keys, in the order in which they were first let read.
    packets
        Bodies of packets with the times of their arrival.
    """

    released: list[str] = field(default_factory=list)
    served: list[ServedKey] = field(default_factory=list)
    packets: dict[bytes, float] = field(default_factory=dict)
    last_turn: float = 0.0


class HostileCoordinator:
    """An ASGI application that answers one key at a time."""

    def __init__(self, service: CoordinatorService, identity: Identity) -> None:
        self._inner, self._service, self._identity = make_app(service), service, identity
        self.logs: dict[str, StudyLog] = defaultdict(StudyLog)
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._n_reads = count()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts = scope.get("path", "").split("/")
        if scope["type"] != "http" or len(parts) != 5:
            await self._inner(scope, receive, send)
            return
        study, what = parts[3], parts[4]
        body = await _read_body(receive)
        if what == "submissions":
            self.logs[study].packets.setdefault(body, time.time())
        head, data = await _call(self._inner, scope, body)
        if what == "enrolments":
            await self._take_turn(study, scope)
        elif what == "board":
            data = await self._change_board(study, scope, data)
        elif what == "submissions":
            await asyncio.sleep(HELD_SECONDS)
        length = (b"content-length", str(len(data)).encode())
        kept = [(name, value) for name, value in head["headers"] if name != b"content-length"]
        await send({**head, "headers": [*kept, length]})
        await send({"type": "http.response.body", "body": data})

    async def _take_turn(self, study: str, scope: Any) -> None:
        """Wait until no other key of the study was answered a moment ago."""
        log = self.logs[study]
        headers = dict(scope["headers"])
        key = headers[b"authorization"].split()[1].decode()
        async with self._turns[study]:
            await asyncio.sleep(max(0.0, log.last_turn + TURN_SECONDS - time.time()))
            log.last_turn = time.time()
            log.released.append(key)

    async def _change_board(self, study: str, scope: Any, data: bytes) -> bytes:
        log, page = self.logs[study], from_cbor(data, MessagePage)
        after = int(parse_qs(scope["query_string"])[b"after"][0])
        n = next(self._n_reads)
        if n % 3 == 0:
            await asyncio.sleep(HELD_SECONDS)
        if after == 0 and page.letters:
            # The new reader is taken for the key that was answered last and has not read yet.
            known = {one.key for one in log.served}
            for key in reversed(log.released):
                if key not in known:
                    log.served.append(ServedKey(key, time.time()))
                    break
        elif after == 1:
            page = page.replace(letters=(self._make_short_opening(study),))
        if after and n % 2:
            page = page.replace(status="closed")
        return to_cbor(page)

    def _make_short_opening(self, study: str) -> QueuedMessage:
        """Return a second signed opening of the first phase, which closes soon."""
        (first,) = self._service._store.list_messages(study, None, 0, 1)
        ask = decode(first.payload, MESSAGES, bytes.fromhex(study))
        assert isinstance(ask, AnonMLAsk)
        now = SystemClock().now()
        payload = encode(ask.replace(opened=now, closes=now + SHORT_WINDOW))
        signature = sign_broadcast(self._identity, bytes.fromhex(study), 2, payload)
        return QueuedMessage(number=2, payload=payload, signature=signature)


async def _read_body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def _call(app: Any, scope: Any, body: bytes) -> Response:
    """Return the whole response of an application."""
    head: dict[str, Any] = {}
    chunks: list[bytes] = []
    is_read = False

    async def receive() -> Any:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    return head, b"".join(chunks)


@dataclass(frozen=True)
class Attack:
    """A running hostile coordinator."""

    url: str
    manifests: list[Manifest]
    hostile: HostileCoordinator


@contextmanager
def attacking(store_url: str, drafts: list[Manifest], window: float) -> Iterator[Attack]:
    """Run a hostile coordinator with some studies in a thread, on a free port."""
    clock, entropy = SystemClock(), SystemEntropy()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    with open_store(store_url) as store, open_instance_store(None, store_url) as models:
        secrets, _ = load_or_create_secrets(store, entropy)
        issuing = CoordinatorKeys(secrets.signing_seed).public_keys
        identity = Identity.from_seed(secrets.signing_seed)
        now, manifests = round(1000 * clock.now().timestamp()), []
        for draft in drafts:
            keyed = _add_keys(draft, issuing)
            handle = add_schedule(StudyHandle(keyed), now, round(1000 * window))
            publish(store, handle, now, issuing=issuing)
            manifests.append(handle.manifest)
        service = CoordinatorService(store, models, clock, entropy, "the only worker")
        hostile = HostileCoordinator(service, identity)
        config = uvicorn.Config(
            hostile, lifespan="off", access_log=False, log_level="error", log_config=None
        )
        server = uvicorn.Server(config)

        async def serve() -> None:
            await service.start()
            try:
                await server.serve([listener])
            finally:
                await service.stop()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            port = listener.getsockname()[1]
            yield Attack(f"http://127.0.0.1:{port}", manifests, hostile)
        finally:
            server.should_exit = True
            thread.join()


def _add_keys(draft: Manifest, issuing: Issuing) -> Manifest:
    return replace(
        draft,
        issuer_key=bytes.fromhex(issuing.issuer_key),
        gateway_key=bytes.fromhex(issuing.gateway_key),
    )


@contextmanager
def socks_proxy() -> Iterator[int]:
    """Run a SOCKS5 proxy with user names and passwords on loopback; yield its port."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ports: list[int] = []
    stop = asyncio.Event()

    async def main() -> None:
        server = await asyncio.start_server(_serve_socks, "127.0.0.1", 0, backlog=1024)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        async with server:
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _serve_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        _, n_methods = await reader.readexactly(2)
        await reader.readexactly(n_methods)
        writer.write(b"\x05\x02")
        _, n = await reader.readexactly(2)
        await reader.readexactly(n)
        (n,) = await reader.readexactly(1)
        await reader.readexactly(n)
        writer.write(b"\x01\x00")
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = socket.inet_ntoa(await reader.readexactly(4))
        else:
            (n,) = await reader.readexactly(1)
            host = (await reader.readexactly(n)).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        there, back = await asyncio.open_connection(host, port)
        writer.write(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
    writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
