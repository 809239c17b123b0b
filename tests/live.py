"""A real coordinator over HTTP in a thread of the test, for what speaks to one from its own event loop."""

from __future__ import annotations

import asyncio
import csv
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from participants import table_of
from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.models import open_models
from shoal.coordinator.office import Office
from shoal.coordinator.publishing import first_start, publish
from shoal.coordinator.store.base import Store, Totals
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SystemEntropy
from shoal.study.manifest import Manifest
from shoal.table_files import Table


@dataclass(frozen=True)
class Live:
    """A coordinator that answers, and its store."""

    url: str
    store: Store

    def totals(self, manifest: Manifest) -> Totals:
        return self.store.totals(manifest.digest.hex())

    def publish(self, manifest: Manifest, patience: int = 5_000, invitations: Sequence[str] = ()) -> str:
        publish(self.store, manifest, int(SystemClock().now().timestamp() * 1000), patience=patience, invitations=invitations)
        return manifest.digest.hex()


@contextmanager
def live(folder: Path, *manifests: Manifest) -> Iterator[Live]:
    """A coordinator with some studies, on a port of its own."""
    url = f"sqlite:{folder / 'coordinator.db'}"
    listener = socket.create_server(("127.0.0.1", 0))
    with open_store(url) as store, open_models(None, url) as models:
        first_start(store, SystemEntropy())
        found = Live(f"http://127.0.0.1:{listener.getsockname()[1]}", store)
        for manifest in manifests:
            found.publish(manifest)
        office = Office(store, models, SystemClock(), SystemEntropy(), "the only worker")
        server = uvicorn.Server(uvicorn.Config(make_app(office), lifespan="off", access_log=False, log_level="error", log_config=None))

        loop: asyncio.AbstractEventLoop | None = None

        async def serve() -> None:
            nonlocal loop
            loop = asyncio.get_running_loop()
            await office.start()
            try:
                await server.serve([listener])
            finally:
                await office.stop()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            yield found
        finally:
            server.should_exit = True
            if loop is not None:
                loop.call_soon_threadsafe(office.hang_up)
            thread.join()


def write_csv(path: Path, n: int, seed: int | str = 0) -> Path:
    """Rows that fit the studies of `participants`."""
    write_table(path, table_of(n, seed))
    return path


def write_table(path: Path, table: Table) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
