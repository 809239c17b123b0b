"""Model instances in the coordinator's SQLite file, for several processes of one machine.

A merge, of one update or of several, is one transaction. The file is in write-ahead mode, so that a draw reads the last whole state
while a merge is under way.

What is durable when: a merge that was answered survives the death of any process (kill -9 included). A power cut may undo the last ones,
name, count and weights together; nothing is ever half in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np

from shoal.coordinator.models.base import (
    MEAN,
    WEIGHT,
    Arriving,
    Average,
    Body,
    Drawn,
    Merged,
    ModelStore,
    Scrubbed,
    check_shape,
    stacked,
    unknown,
)
from shoal.coordinator.models.batches import changed, going_in, settled
from shoal.coordinator.store.sqlite_file import BUSY_SECONDS, connect, in_sentences, open_file
from shoal.protocols.ddml.merging import Weights

_PAUSE_SECONDS = 0.005


class SqliteModels(ModelStore):
    """Instances in a coordinator's file, which is made where there is none.

    Parameters
    ----------
    path
        The file: that of `shoal.coordinator.store.sqlite`. Its owner alone can read it.

    Notes
    -----
    Threads may share it: each has a connection of its own, which is open until the store is closed.

    What is on the disk besides the instances of the moment, the average and the names of recent updates: the write-ahead log ``PATH-wal``
    has the versions of the last merges, and so the updates themselves. It begins anew after 1,000 pages, that is some 4 MB (about 20
    updates of 50,000 weights, 300 of 387), and is emptied by `scrub` and when the last process closes the file. While nothing is merged
    and nobody does either, it stays. A process that is killed leaves it for the next one. What is deleted inside the file is overwritten
    with zeros (``secure_delete``); the log is cut, and what the file system, a solid-state disk or a backup keeps of blocks that were
    given up or overwritten is beyond SQLite.

    Copies of a model in this process: a draw makes two (out of SQLite's pages, and into bytes), a replacement three (into SQLite, its
    record, its pages), and a blend reads, makes one after its arithmetic, and writes: six. Each merge is then written to the log once,
    and from there to the file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, SqliteModels(f"{folder}/coordinator.db") as store:
    ...     store.create("s", np.zeros((2, 3), np.int32))
    ...     store.merge("s", 1, b"an id", 0, np.array([10, 20, 30], "<i4").tobytes(), 1.0)
    ...     np.frombuffer(store.draw("s", 1).weights, "<i4").tolist()
    Merged(outcome='merged', n_merged=1)
    [10, 20, 30]
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._numbers: dict[str, int] = {}
        open_file(self.path, "NORMAL").close()
        self._connections: list[Connection] = []
        self._own = threading.local()

    def close(self) -> None:
        """Close the file; the last to do so leaves no log behind."""
        while self._connections:
            self._connections.pop().close()

    def shape(self, study: str) -> tuple[int, int] | None:
        found = self._one("SELECT k, p FROM ddml WHERE study = ?", study)
        return None if found is None else (found[0], found[1])

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        with self._change() as db:
            made = db.execute("INSERT OR IGNORE INTO ddml (study, k, p) VALUES (?, ?, ?)", (study, *shape))
            if made.rowcount:
                rows = [(made.lastrowid, slot, row.astype(WEIGHT).tobytes()) for slot, row in enumerate(instances)]
                db.executemany("INSERT INTO ddml_instance VALUES (?, ?, ?)", rows)
        check_shape(study, self.shape(study) or (0, 0), shape)

    def draw(self, study: str, slot: int) -> Drawn:
        query = "SELECT n_merged, weights FROM ddml JOIN ddml_instance USING (number) WHERE number = ? AND slot = ?"
        return Drawn(*self._known(study, self._one(query, self._number(study), slot)))

    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        return self.merge_many(study, [Arriving(slot, id, epoch, update)], part)[0]

    def merge_many(self, study: str, updates: Sequence[Arriving], part: float) -> list[Merged]:
        """Merge one after the other, all in one transaction; each instance that changes is written once."""
        number = self._number(study)
        with self._change() as db:
            n_merged, kept_from = self._known(study, self._one("SELECT n_merged, kept_from FROM ddml WHERE number = ?", number))
            names = [(one.epoch, one.id) for one in updates if one.epoch >= kept_from]
            put = "INSERT OR IGNORE INTO ddml_update VALUES (?, ?, ?)"
            new = {name for name in names if db.execute(put, (number, *name)).rowcount}
            outcomes = settled(updates, new, n_merged, kept_from)
            due = going_in(updates, outcomes)
            query = "SELECT weights FROM ddml_instance WHERE number = ? AND slot = ?"
            slots = {one.slot for one in due if part != 1}
            instances = {slot: self._known(study, self._one(query, number, slot))[0] for slot in slots}
            rows = [(weights, number, slot) for slot, weights in changed(due, instances, part).items()]
            db.executemany("UPDATE ddml_instance SET weights = ? WHERE number = ? AND slot = ?", rows)
            if due:
                db.execute("UPDATE ddml SET n_merged = n_merged + ? WHERE number = ?", (len(due), number))
        return outcomes

    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        query = "SELECT 1 FROM ddml_update WHERE number = ? AND epoch = ? AND id = ?"
        return self._one(query, self._number(study), epoch, id) is not None

    def all_instances(self, study: str) -> Weights:
        return stacked([weights for (weights,) in self._all("SELECT weights FROM ddml_instance WHERE number = ? ORDER BY slot", study)])

    def n_merged(self, study: str) -> int:
        return int(self._known(study, self._one("SELECT n_merged FROM ddml WHERE number = ?", self._number(study)))[0])

    def average(self, study: str) -> Average | None:
        found = self._one("SELECT n_folds, weights FROM ddml_average WHERE number = ?", self._number(study))
        return None if found is None else Average(found[0], np.frombuffer(found[1], MEAN))

    def keep_average(self, study: str, average: Average) -> bool:
        number = self._number(study)
        with self._change() as db:
            found = self._one("SELECT n_folds FROM ddml_average WHERE number = ?", number)
            if average.n_folds != 1 + (found[0] if found else 0):
                return False
            row = (number, average.n_folds, average.weights.astype(MEAN, copy=False).tobytes())
            put = "INSERT INTO ddml_average VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE"
            db.execute(f"{put} SET n_folds = excluded.n_folds, weights = excluded.weights", row)
        return True

    def refuse(self, study: str, reason: str) -> None:
        number = self._number(study)
        with self._change() as db:
            put = "INSERT INTO ddml_refusal VALUES (?, ?, 1) ON CONFLICT (number, reason) DO UPDATE SET n = n + 1"
            db.execute(put, (number, reason))

    def refusals(self, study: str) -> Mapping[str, int]:
        return dict(self._all("SELECT reason, n FROM ddml_refusal WHERE number = ?", study))

    def forget(self, study: str, epoch: int) -> None:
        number = self._number(study)
        with self._change() as db:
            db.execute("UPDATE ddml SET kept_from = max(kept_from, ?) WHERE number = ?", (epoch, number))
            db.execute("DELETE FROM ddml_update WHERE number = ? AND epoch < ?", (number, epoch))

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        """Empty the write-ahead log. While it waits for those who read, others who write wait too."""
        end = time.monotonic() + seconds
        with in_sentences(self.path):
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
                    # SQLite waits for readers and writers by itself, but not for another process that empties the log.
                    time.sleep(min(left, _PAUSE_SECONDS))
            finally:
                db.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")

    def _number(self, study: str) -> int:
        """The short name of a study in the file; it never changes."""
        if study not in self._numbers:
            self._numbers[study] = self._known(study, self._one("SELECT number FROM ddml WHERE study = ?", study))[0]
        return self._numbers[study]

    def _connection(self) -> Connection:
        """This thread's own."""
        found: Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = connect(self.path, "NORMAL")
            self._connections.append(found)
        return found

    def _one(self, query: str, *values: object) -> Any:
        with in_sentences(self.path), closing(self._connection().execute(query, values)) as rows:
            return rows.fetchone()

    def _all(self, query: str, study: str) -> list[Any]:
        number = self._number(study)
        with in_sentences(self.path):
            return self._connection().execute(query, (number,)).fetchall()

    def _known(self, study: str, row: Any) -> Any:
        if row is None:
            raise unknown(study)
        return row

    @contextmanager
    def _change(self) -> Iterator[Connection]:
        """A transaction that begins with the right to write; what has changed nothing may leave it early."""
        with in_sentences(self.path):
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
