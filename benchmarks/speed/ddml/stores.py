"""DDML's hot path without HTTP: draw and update pairs a second on each store.

One process, with the id check on. The limit is the memory: a plain copy of one model, timed in the
same run. ``pairs`` is by the clock, ``cpu`` the processor time of a pair, including Redis: on a
busy machine only the second is reliable. ``copied`` is the number of models that a pair copies in
this process, without the arithmetic of a blend: the stores' docstrings count it.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from benchmarks.measure import Measure
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.model_server import ModelServer
from shoal.data.schema import Categorical, Schema, Text
from shoal.entropy import SystemEntropy
from shoal.protocols.ddml.merging import SpamFilterProtocol
from shoal.protocols.ddml.params import DDMLParams, Merge
from shoal.protocols.ddml.spam_filter import SpamFilter, SpamThresholds

BENCH = "ddml-speed"
SIZES = (387, 50_000)
COPIES: dict[tuple[str, Merge], int] = {
    ("memory", "blend"): 1,
    ("memory", "discard"): 0,
    ("sqlite", "blend"): 8,
    ("sqlite", "discard"): 5,
    ("redis", "blend"): 9,
    ("redis", "discard"): 5,
    ("redis-aof", "blend"): 9,
    ("redis-aof", "discard"): 5,
}
"""Models that a pair copies in this process."""
_SECONDS, _REPEATS, _BODIES = 0.5, 3, 7
_INFINITE = float("inf")


def measures() -> Iterator[Measure]:
    """Yield every store, merge and size; the filter's cost on the cheapest store."""
    for p in SIZES:
        limit = 1 / _copy_seconds(4 * p)
        yield Measure(BENCH, f"copies_{p}", limit, "1/s", "higher")
        for store, merge in COPIES:
            if store.startswith("redis") and shutil.which("redis-server") is None:
                continue
            params = make_params(p, merge)
            yield from _figures(f"{p}_{store}_{merge}", limit, *_serve(params, store, None))
            yield Measure(
                BENCH,
                f"copied_{p}_{store}_{merge}",
                COPIES[store, merge] * 4 * p / 1e3,
                "kB",
                "lower",
            )
            if store == "memory":
                spam_filter = SpamFilter(params, SpamThresholds(_INFINITE, _INFINITE))
                yield from _figures(
                    f"{p}_{store}_{merge}_filtered", limit, *_serve(params, store, spam_filter)
                )


def _figures(name: str, limit: float, pairs: float, cpu: float) -> Iterator[Measure]:
    yield Measure(BENCH, f"pairs_{name}", pairs, "1/s", "higher")
    yield Measure(
        BENCH,
        f"cpu_{name}",
        1e6 * cpu,
        "us",
        "lower",
        competitor="plain copy of a model",
        ratio=cpu * limit,
    )


def make_params(p: int, merge: Merge) -> DDMLParams:
    """Return a study of p weights, with epochs so long that none ends."""
    schema = Schema(
        [], label=Categorical("opened", ["no", "yes"]), texts=[Text("query", buckets=p - 1)]
    )
    return DDMLParams(schema, epsilon=4.0, size=1 << 30, merge=merge)


def _serve(
    params: DDMLParams, store: str, spam_filter: SpamFilterProtocol | None
) -> tuple[float, float]:
    """Return pairs a second, and processor seconds of a pair.

    They are the best of a few rounds, and for Redis the mean of all.
    """
    elsewhere = _cpu_elsewhere()
    with _address(store) as address, open_instance_store(None, address) as models:
        entropy = SystemEntropy()
        serving = ModelServer(params, "5" * 64, models, spam_filter, entropy)
        # Send other weights than those drawn: SQLite does not write unchanged pages.
        bodies = [
            (entropy.words(params.n_weights, np.uint32) >> np.uint32(8)).astype("<i4").tobytes()
            for _ in range(_BODIES)
        ]
        rounds = [_round(serving, entropy, bodies) for _ in range(_REPEATS)]
    n_pairs = sum(n for n, _, _ in rounds)
    return max(n / wall for n, wall, _ in rounds), min(cpu / n for n, _, cpu in rounds) + (
        _cpu_elsewhere() - elsewhere
    ) / n_pairs


def _round(
    serving: ModelServer, entropy: SystemEntropy, bodies: list[bytes]
) -> tuple[int, float, float]:
    start, cpu, n = time.perf_counter(), time.process_time(), 0
    while (wall := time.perf_counter() - start) < _SECONDS:
        epoch, _ = serving.draw()
        if serving.update(entropy.bytes(16), epoch, bodies[n % _BODIES]) != "merged":
            raise RuntimeError("an update of the benchmark was not merged")
        n += 1
    return n, wall, time.process_time() - cpu


def _cpu_elsewhere() -> float:
    """Return processor seconds of the ended processes that were started here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _copy_seconds(n_bytes: int) -> float:
    source, best = bytearray(n_bytes), float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            bytes(source)
        best = min(best, (time.perf_counter() - start) / 100)
    return best


@contextmanager
def _address(store: str) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        redis_server(store, Path(folder)) if "redis" in store else nullcontext(),
    ):
        yield {"memory": "memory:", "sqlite": f"sqlite:{folder}/models.db"}.get(
            store, f"unix://{folder}/socket"
        )


@contextmanager
def redis_server(store: str, folder: Path) -> Iterator[int]:
    """Yield the process of a Redis server of the benchmark.

    ``-aof`` keeps an append-only file, written to disk every second.
    """
    kept = ["--appendonly", "yes", "--appendfsync", "everysec"] if store.endswith("aof") else []
    command = [
        "redis-server",
        "--port",
        "0",
        "--dir",
        str(folder),
        "--unixsocket",
        str(folder / "socket"),
        "--save",
        "",
        *kept,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not any("eady to accept connections" in line for line in process.stdout):
                raise RuntimeError("redis-server did not start")
            yield process.pid
        finally:
            process.kill()
