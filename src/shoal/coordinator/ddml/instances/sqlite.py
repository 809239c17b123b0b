"""Model instances in the coordinator's SQLite file, for several processes of one machine.

A merge, of one update or of several, is one transaction. The file is in write-ahead mode, so a draw
reads the last committed state during a merge.

Durability: an acknowledged merge survives the death of any process (kill -9 included). A power cut
may undo the last merges, each with its name, count and weights; no update is ever merged in part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from shoal.coordinator.ddml.instances.base import (
    MEAN,
    WEIGHT,
    Average,
    MergeOutcome,
    PendingUpdate,
    ScrubOutcome,
    apply_updates,
    check_shape,
    decide_outcomes,
    select_merged,
)
from shoal.coordinator.ddml.instances.sql import SqlInstanceStore, check_found
from shoal.coordinator.store.sqlite import (
    BUSY_SECONDS,
    connect_store,
    open_store_file,
    translate_errors,
)
from shoal.protocols.ddml.merging import Weights

_PAUSE_SECONDS = 0.005


class SqliteInstanceStore(SqlInstanceStore):
    """Instances in a coordinator's file; the file is created if it does not exist.

    Parameters
    ----------
    path
        The file of `shoal.coordinator.store.sqlite`. Only its owner can read it.

    Notes
    -----
    Threads may share it: each thread has one connection until the store is closed.

    In addition to the present instances, the average and the names of recent updates, the disk has
    the write-ahead log ``PATH-wal`` with the versions of the last merges, and so the updates
    themselves. It restarts after 1,000 pages, about 4 MB (20 updates of 50,000 weights, 300 of
    387), and is emptied by `scrub` and when the last process closes the file; otherwise it stays. A
    process that is killed leaves it for the next one. Deleted data inside the file is overwritten
    with zeros (``secure_delete``), and the log is truncated. SQLite cannot erase copies of released
    or overwritten blocks in the file system, a solid-state disk or a backup.

    Copies of a model in this process: a draw makes two (from SQLite's pages, and into bytes), a
    replacement three (into SQLite, its record, its pages), and a blend reads, makes one after its
    arithmetic, and writes: six. Each merge is then written to the log once, and from there to the
    file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> with (
    ...     TemporaryDirectory() as folder,
    ...     SqliteInstanceStore(f"{folder}/coordinator.db") as store,
    ... ):
    ...     store.create("s", np.zeros((2, 3), np.int32))
    ...     store.merge("s", 1, b"an id", 0, np.array([10, 20, 30], "<i4").tobytes(), 1.0)
    ...     np.frombuffer(store.draw("s", 1).weights, "<i4").tolist()
    MergeOutcome(outcome='merged', n_merged=1)
    [10, 20, 30]
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        open_store_file(self.path, "NORMAL").close()
        self._connections: list[Connection] = []
        self._thread_local = threading.local()

    def close(self) -> None:
        """Close the file; the last process that closes it deletes the log."""
        while self._connections:
            self._connections.pop().close()

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        with self._transaction() as db:
            made = db.execute(
                "INSERT OR IGNORE INTO ddml (study, k, p) VALUES (?, ?, ?)", (study, *shape)
            )
            if made.rowcount:
                rows = [
                    (made.lastrowid, slot, row.astype(WEIGHT).tobytes())
                    for slot, row in enumerate(instances)
                ]
                db.executemany("INSERT INTO ddml_instance VALUES (?, ?, ?)", rows)
        check_shape(study, self.find_shape(study) or (0, 0), shape)

    def merge_many(
        self, study: str, updates: Sequence[PendingUpdate], blend_factor: float
    ) -> list[MergeOutcome]:
        """Merge updates in order, in one transaction; write each changed instance once."""
        number = self.find_number(study)
        with self._transaction() as db:
            n_merged, kept_from = check_found(
                study,
                self.fetch_one("SELECT n_merged, kept_from FROM ddml WHERE number = ?", number),
            )
            names = [(update.epoch, update.id) for update in updates if update.epoch >= kept_from]
            put = "INSERT OR IGNORE INTO ddml_update VALUES (?, ?, ?)"
            new = {name for name in names if db.execute(put, (number, *name)).rowcount}
            outcomes = decide_outcomes(updates, new, n_merged, kept_from)
            due = select_merged(updates, outcomes)
            query = "SELECT weights FROM ddml_instance WHERE number = ? AND slot = ?"
            slots = {update.slot for update in due if blend_factor != 1}
            instances = {
                slot: check_found(study, self.fetch_one(query, number, slot))[0] for slot in slots
            }
            rows = [
                (weights, number, slot)
                for slot, weights in apply_updates(due, instances, blend_factor).items()
            ]
            db.executemany(
                "UPDATE ddml_instance SET weights = ? WHERE number = ? AND slot = ?", rows
            )
            if due:
                db.execute(
                    "UPDATE ddml SET n_merged = n_merged + ? WHERE number = ?", (len(due), number)
                )
        return outcomes

    def save_average(self, study: str, average: Average) -> bool:
        number = self.find_number(study)
        with self._transaction() as db:
            stored = self.fetch_one("SELECT n_folds FROM ddml_average WHERE number = ?", number)
            if average.n_folds != 1 + (stored[0] if stored else 0):
                return False
            row = (number, average.n_folds, average.weights.astype(MEAN, copy=False).tobytes())
            put = "INSERT INTO ddml_average VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE"
            db.execute(f"{put} SET n_folds = excluded.n_folds, weights = excluded.weights", row)
        return True

    def count_rejection(self, study: str, reason: str) -> None:
        number = self.find_number(study)
        with self._transaction() as db:
            put = (
                "INSERT INTO ddml_refusal VALUES (?, ?, 1) ON CONFLICT (number, reason) DO "
                "UPDATE SET n = n + 1"
            )
            db.execute(put, (number, reason))

    def forget(self, study: str, epoch: int) -> None:
        number = self.find_number(study)
        with self._transaction() as db:
            db.execute(
                "UPDATE ddml SET kept_from = max(kept_from, ?) WHERE number = ?", (epoch, number)
            )
            db.execute("DELETE FROM ddml_update WHERE number = ? AND epoch < ?", (number, epoch))

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        """Empty the write-ahead log; while it waits for readers, writers wait too."""
        end = time.monotonic() + seconds
        with translate_errors(self.path):
            db = self._connection()
            try:
                while True:
                    left = max(0.0, end - time.monotonic())
                    db.execute(f"PRAGMA busy_timeout = {1000 * left:.0f}")
                    is_busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    if not is_busy:
                        return "done"
                    if not left:
                        return "blocked"
                    # SQLite waits for readers and writers, but not for another process that empties
                    # the log.
                    time.sleep(min(left, _PAUSE_SECONDS))
            finally:
                db.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")

    def _connection(self) -> Connection:
        """Return the connection of this thread."""
        connection: Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = self._thread_local.connection = connect_store(self.path, "NORMAL")
            self._connections.append(connection)
        return connection

    def fetch_one(self, query: str, *values: object) -> Any:
        with (
            translate_errors(self.path),
            closing(self._connection().execute(query, values)) as rows,
        ):
            return rows.fetchone()

    def fetch_all(self, query: str, *values: object) -> list[Any]:
        with translate_errors(self.path):
            return self._connection().execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Yield a connection in a write transaction; a caller without changes may leave early."""
        with translate_errors(self.path):
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
