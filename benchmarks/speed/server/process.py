"""``shoal serve`` with additional paths of the benchmark: two echoes, and a count.

``POST /echo`` sends the whole body back with the headers of a draw and in one write, like draws and
updates. ``POST /echo-asgi`` is answered like any uvicorn application: by two messages, which are
two writes. ``POST /merged/STUDY`` returns the number of merged updates of a DDML study. Workers are
started by the same supervisor and have the same paths.
"""

from __future__ import annotations

import sys

from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.coordinator import worker
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.supervisor import Supervisor
from shoal.transport.api import RAW
from shoal.transport.connections import send_whole
from shoal.transport.requests import DEFAULT_HEADERS

_MERGED = "/merged/"
_HEADERS = [
    (name.encode(), value.encode())
    for name, value in {"content-type": RAW, **DEFAULT_HEADERS}.items()
]
_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    + b"".join(b"%b: %b\r\n" % header for header in _HEADERS)
    + b"content-length: %d\r\n"
)


class Fronted:
    """Application with these paths in front of another."""

    def __init__(self, models: InstanceStore, inner: ASGIApp) -> None:
        self._models, self._inner = models, inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/echo":
            await _answer(await _body(receive), send)
        elif scope["path"] == "/echo-asgi":
            await _answer_by_messages(await _body(receive), send)
        elif scope["path"].startswith(_MERGED):
            await _answer(
                b"%d" % self._models.count_merged(scope["path"].removeprefix(_MERGED)), send
            )
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
    if not send_whole(send, _HEAD % len(body), body):
        await _answer_by_messages(body, send)


async def _answer_by_messages(body: bytes, send: Send) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [*_HEADERS, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


def install() -> None:
    """Add the paths to the application of every worker that this process runs or starts."""
    opened: list[InstanceStore] = []

    def open_and_keep(url: str | None, store_url: str) -> InstanceStore:
        opened.append(open_instance_store(url, store_url))
        return opened[-1]

    def make_fronted_app(service: CoordinatorService) -> ASGIApp:
        return Fronted(opened[-1], make_app(service))

    replacements = {"open_instance_store": open_and_keep, "make_app": make_fronted_app}
    for name, replacement in replacements.items():
        assert hasattr(worker, name)
        setattr(worker, name, replacement)
    Supervisor.command = (sys.executable, "-m", "benchmarks.speed.server.process", "worker")


def main() -> None:
    install()
    if sys.argv[1:] == ["worker"]:
        sys.exit(worker.main())
    from shoal.cli.main import run

    sys.exit(run(["serve", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
