"""How long writers wait while the rows of a million members are rewritten.

A store of SQLite has a million members. One thread tidies it as a worker does, for a while; another
one writes a small row again and again. A writer waits for one transaction of the rewrite, and for
the disk.
"""

from __future__ import annotations

import hashlib
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.measure import Measure
from shoal.coordinator.store.base import StudyRecord
from shoal.coordinator.store.sqlite import SqliteStore

N_MEMBERS, SECONDS = 1_000_000, 60.0
TARGET_MILLISECONDS = 100.0
_PAUSE_SECONDS = 0.01
_SCOPE, _ISSUED = b"s" * 32, bytes(112)
STUDY = StudyRecord("6" * 64, b"m", 0, 1, scope=_SCOPE)


def measures(bench: str, n: int = N_MEMBERS, seconds: float = SECONDS) -> Iterator[Measure]:
    """Yield the waits of a writer during the rewrite, and the length of its transactions."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        path = Path(folder) / "coordinator.db"
        with SqliteStore(path) as store:
            store.publish(STUDY)
            _fill(path, n)
            waits, slices = _rewrite(store, seconds)
    yield Measure(bench, "rewrite_transaction_median", _median(slices), "ms", "lower")
    yield Measure(
        bench, "rewrite_transaction_longest", max(slices), "ms", "lower", TARGET_MILLISECONDS
    )
    yield Measure(bench, "rewrite_writer_median", _median(waits), "ms", "lower")
    yield Measure(bench, "rewrite_writer_p99", _p99(waits), "ms", "lower", TARGET_MILLISECONDS)


def _fill(path: Path, n: int) -> None:
    """Add members who have registered in random order; one by one it would take an hour."""
    with closing(sqlite3.connect(path)) as db, db:
        for i in range(n):
            key, commitment = (
                hashlib.sha256(b"%s %d" % (what, i)).digest() for what in (b"k", b"c")
            )
            hashed = hashlib.sha256(key).digest()
            db.execute(
                "INSERT INTO registration VALUES (?, ?, ?, ?)", (_SCOPE, key, commitment, _ISSUED)
            )
            db.execute("INSERT INTO commitment VALUES (?, ?)", (_SCOPE, commitment))
            db.execute("INSERT INTO enrolment VALUES (1, ?, ?, 0)", (hashed, hashed.hex()[:32]))
        db.execute("INSERT INTO membership VALUES (?, ?)", (_SCOPE, n))
        db.execute("UPDATE standing SET n_unsorted = ?", (n,))


def _rewrite(store: SqliteStore, seconds: float) -> tuple[list[float], list[float]]:
    """Return milliseconds of a writer's waits, and of the transactions of the rewrite."""
    waits: list[float] = []
    slices: list[float] = []
    is_over = threading.Event()
    until = time.monotonic() + seconds

    def write() -> None:
        while not is_over.wait(_PAUSE_SECONDS):
            begun = time.perf_counter()
            store.count_rejections(STUDY.digest, "MSG-001")
            waits.append(1000 * (time.perf_counter() - begun))

    def pause(took: float) -> bool:
        slices.append(1000 * took)
        return time.monotonic() > until or is_over.wait(took)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        store.tidy(0, pause)
    finally:
        is_over.set()
        writer.join()
    return waits, slices


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]
