"""``shoal serve`` as it is, with paths of the benchmark's own in front of its application: two echoes, and a count.

``POST /echo`` reads the whole body and sends it back: with the headers of a draw and, as draws and updates are answered, in one write.
``POST /echo-asgi`` is answered as by any application of uvicorn's: by two messages, which are two writes. ``POST /merged/STUDY`` says how
many updates of a study of DDML its instances have seen. Workers are started by the same supervisor and have the same paths.
"""

from __future__ import annotations

import sys

from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.coordinator import worker
from shoal.coordinator.app import make_app
from shoal.coordinator.models import open_models
from shoal.coordinator.models.base import ModelStore
from shoal.coordinator.office import Office
from shoal.coordinator.supervisor import Supervisor
from shoal.transport.connections import sent_whole
from shoal.transport.problems import HEADERS
from shoal.transport.routes import RAW

_MERGED = "/merged/"
_HEADERS = [(name.encode(), value.encode()) for name, value in {"content-type": RAW, **HEADERS}.items()]
_HEAD = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in _HEADERS) + b"content-length: %d\r\n"


class Fronted:
    """An application with these paths in front of it."""

    def __init__(self, models: ModelStore, inner: ASGIApp) -> None:
        self._models, self._inner = models, inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/echo":
            await _answer(await _body(receive), send)
        elif scope["path"] == "/echo-asgi":
            await _answer_by_messages(await _body(receive), send)
        elif scope["path"].startswith(_MERGED):
            await _answer(b"%d" % self._models.n_merged(scope["path"].removeprefix(_MERGED)), send)
        else:
            await self._inner(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    chunks = [body]
    while message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
    return b"".join(chunks)


async def _answer(body: bytes, send: Send) -> None:
    if not sent_whole(send, _HEAD % len(body), body):
        await _answer_by_messages(body, send)


async def _answer_by_messages(body: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def install() -> None:
    """Put the paths in front of the application of every worker that this process runs or starts."""
    opened: list[ModelStore] = []

    def opening(url: str | None, store_url: str) -> ModelStore:
        opened.append(open_models(url, store_url))
        return opened[-1]

    def making(office: Office) -> ASGIApp:
        return Fronted(opened[-1], make_app(office))

    for name, replacement in {"open_models": opening, "make_app": making}.items():
        setattr(worker, name, replacement)
    Supervisor.command = (sys.executable, "-m", "benchmarks.speed.server_process", "worker")


def main() -> None:
    install()
    if sys.argv[1:] == ["worker"]:
        sys.exit(worker.main())
    from shoal.cli.main import run

    sys.exit(run(["serve", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
