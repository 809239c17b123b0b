"""Studies of DDML for tests of its HTTP service, what honest devices send, and a real server in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.clock import ManualClock
from shoal.coordinator.bare import BareDDML
from shoal.coordinator.devices import EPOCH_BYTES, Devices
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.models.base import ModelStore
from shoal.coordinator.store.base import Hosted, Store
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.transport.problems import Guard, not_here
from shoal.transport.routes import study_route

PATIENCE = 60_000

_TEXT = """
title = "A study"
purpose = "To test."
contact = "a@example.org"
protocol = "ddml"
[label]
name = "ill"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 100]
missing = false
[privacy]
epsilon = 8.0
n_updates = 2
[participation]
minimum = 10
size = SIZE
[ddml]
n_instances = 5
admission = "ADMISSION"
"""


def manifest_of(admission: str, size: int = 1000) -> Manifest:
    """A study of up to ``2 * size`` updates."""
    return Manifest(parse(_TEXT.replace("SIZE", str(size)).replace("ADMISSION", admission)))


def published(store: Store, manifest: Manifest, clock: ManualClock) -> Hosted:
    hosted = Hosted(manifest.digest.hex(), manifest.to_bytes(), milliseconds(clock.now()), PATIENCE)
    store.publish(hosted)
    return hosted


def open_sqlite(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "coordinator.db")


def improved(drawn: bytes, entropy: SeededEntropy) -> bytes:
    """What a device sends after a draw: an id of its own, the epoch, and the weights after a small step."""
    weights = np.frombuffer(drawn, "<i4", offset=EPOCH_BYTES)
    step = entropy.below_many(2001, weights.size) - 1000
    return entropy.bytes(16) + drawn[:EPOCH_BYTES] + (weights + step).astype("<i4").tobytes()


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning", lifespan="on"))
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextmanager
def served(store: Store, models: ModelStore, clock: ManualClock) -> Iterator[tuple[httpx2.Client, Devices]]:
    """A worker on a port of its own, and somebody who talks to it."""
    devices = Devices(store, models, clock, SystemEntropy())

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise not_here("There is nothing under this path.")
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await devices.stop()
        await send({"type": "lifespan.shutdown.complete"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(BareDDML(devices, Guard(inner)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert server.is_up.wait(20)
            with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=20) as client:
                yield client, devices
        finally:
            server.should_exit = True
            thread.join()


def draw(client: httpx2.Client, hosted: Hosted) -> bytes:
    answer = client.post(study_route(hosted.digest, "draw"))
    assert answer.status_code == 200
    return answer.content
