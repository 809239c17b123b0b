"""Model instances in one SQLite file, for several processes of one machine.

A merge is one transaction. The file is in write-ahead mode, so that a draw reads the last whole state while a merge is under way.

What is durable when: a merge that was answered survives the death of any process (kill -9 included). A power cut may undo the last ones,
name, count and weights together; nothing is ever half in.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from shoal.coordinator.models.base import (
    MEAN,
    WEIGHT,
    Average,
    Body,
    Drawn,
    Merged,
    ModelStore,
    Scrubbed,
    after,
    check_shape,
    stacked,
    unknown,
)
from shoal.errors import StoreError
from shoal.protocols.ddml.merging import Weights

_BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.005
_LOG_PAGES = 1000
_SETTINGS = (
    "trusted_schema = OFF",
    "synchronous = NORMAL",
    "secure_delete = ON",
    f"wal_autocheckpoint = {_LOG_PAGES}",
    # The log is cut when it begins anew: no frame of an earlier round stays behind its end.
    "journal_size_limit = 0",
)


class SqliteModels(ModelStore):
    """Instances in a file, which is made where there is none.

    Parameters
    ----------
    path
        The file. Its owner alone can read it.

    Notes
    -----
    Each process, and each thread, opens a store of its own.

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
    >>> with tempfile.TemporaryDirectory() as folder, SqliteModels(f"{folder}/models.db") as store:
    ...     store.create("s", np.zeros((2, 3), np.int32))
    ...     store.merge("s", 1, b"an id", 0, np.array([10, 20, 30], "<i4").tobytes(), 1.0)
    ...     np.frombuffer(store.draw("s", 1).weights, "<i4").tolist()
    Merged(outcome='merged', n_merged=1)
    [10, 20, 30]
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._numbers: dict[str, int] = {}
        with self._in_sentences():
            if not self.path.exists():
                _create(self.path)
            self._db = _connect(self.path)
            try:
                self._check_form()
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file; the last to do so leaves no log behind."""
        self._db.close()

    def shape(self, study: str) -> tuple[int, int] | None:
        found = self._one("SELECT k, p FROM study WHERE study = ?", study)
        return None if found is None else (found[0], found[1])

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        with self._change():
            made = self._db.execute("INSERT OR IGNORE INTO study (study, k, p) VALUES (?, ?, ?)", (study, *shape))
            if made.rowcount:
                rows = [(made.lastrowid, slot, row.astype(WEIGHT).tobytes()) for slot, row in enumerate(instances)]
                self._db.executemany("INSERT INTO instance VALUES (?, ?, ?)", rows)
        check_shape(study, self.shape(study) or (0, 0), shape)

    def draw(self, study: str, slot: int) -> Drawn:
        query = "SELECT n_merged, weights FROM study JOIN instance USING (number) WHERE number = ? AND slot = ?"
        return Drawn(*self._known(study, self._one(query, self._number(study), slot)))

    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        number = self._number(study)
        with self._change():
            n_merged, kept_from = self._known(study, self._one("SELECT n_merged, kept_from FROM study WHERE number = ?", number))
            if epoch < kept_from:
                return Merged("stale", n_merged)
            if not self._db.execute("INSERT OR IGNORE INTO merged_update VALUES (?, ?, ?)", (number, epoch, id)).rowcount:
                return Merged("repeated", n_merged)
            if part != 1:
                query = "SELECT weights FROM instance WHERE number = ? AND slot = ?"
                update = after(self._known(study, self._one(query, number, slot))[0], update, part)
            self._db.execute("UPDATE instance SET weights = ? WHERE number = ? AND slot = ?", (update, number, slot))
            self._db.execute("UPDATE study SET n_merged = ? WHERE number = ?", (n_merged + 1, number))
        return Merged("merged", n_merged + 1)

    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        query = "SELECT 1 FROM merged_update WHERE number = ? AND epoch = ? AND id = ?"
        return self._one(query, self._number(study), epoch, id) is not None

    def all_instances(self, study: str) -> Weights:
        query = "SELECT weights FROM instance WHERE number = ? ORDER BY slot"
        with self._in_sentences():
            rows = self._db.execute(query, (self._number(study),)).fetchall()
        return stacked([weights for (weights,) in rows])

    def n_merged(self, study: str) -> int:
        return int(self._known(study, self._one("SELECT n_merged FROM study WHERE number = ?", self._number(study)))[0])

    def average(self, study: str) -> Average | None:
        found = self._one("SELECT n_folds, weights FROM average WHERE number = ?", self._number(study))
        return None if found is None else Average(found[0], np.frombuffer(found[1], MEAN))

    def keep_average(self, study: str, average: Average) -> bool:
        number = self._number(study)
        with self._change():
            found = self._one("SELECT n_folds FROM average WHERE number = ?", number)
            if average.n_folds != 1 + (found[0] if found else 0):
                return False
            row = (number, average.n_folds, average.weights.astype(MEAN, copy=False).tobytes())
            put = "INSERT INTO average VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE"
            self._db.execute(f"{put} SET n_folds = excluded.n_folds, weights = excluded.weights", row)
        return True

    def refuse(self, study: str, reason: str) -> None:
        number = self._number(study)
        with self._change():
            put = "INSERT INTO refusal VALUES (?, ?, 1) ON CONFLICT (number, reason) DO UPDATE SET n = n + 1"
            self._db.execute(put, (number, reason))

    def refusals(self, study: str) -> Mapping[str, int]:
        with self._in_sentences():
            return dict(self._db.execute("SELECT reason, n FROM refusal WHERE number = ?", (self._number(study),)).fetchall())

    def forget(self, study: str, epoch: int) -> None:
        number = self._number(study)
        with self._change():
            self._db.execute("UPDATE study SET kept_from = max(kept_from, ?) WHERE number = ?", (epoch, number))
            self._db.execute("DELETE FROM merged_update WHERE number = ? AND epoch < ?", (number, epoch))

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        """Empty the write-ahead log. While it waits for those who read, others who write wait too."""
        end = time.monotonic() + seconds
        with self._in_sentences():
            try:
                while True:
                    left = max(0.0, end - time.monotonic())
                    self._db.execute(f"PRAGMA busy_timeout = {1000 * left:.0f}")
                    is_busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    if not is_busy:
                        return "done"
                    if not left:
                        return "blocked"
                    # SQLite waits for readers and writers by itself, but not for another process that empties the log.
                    time.sleep(min(left, _PAUSE_SECONDS))
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {1000 * _BUSY_SECONDS:.0f}")

    def _number(self, study: str) -> int:
        """The short name of a study in the file; it never changes."""
        if study not in self._numbers:
            self._numbers[study] = self._known(study, self._one("SELECT number FROM study WHERE study = ?", study))[0]
        return self._numbers[study]

    def _one(self, query: str, *values: object) -> Any:
        with self._in_sentences(), closing(self._db.execute(query, values)) as rows:
            return rows.fetchone()

    def _known(self, study: str, row: Any) -> Any:
        if row is None:
            raise unknown(study)
        return row

    @contextmanager
    def _change(self) -> Iterator[None]:
        """A transaction that begins with the right to write; what has changed nothing may leave it early."""
        with self._in_sentences():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _check_form(self) -> None:
        application, version = _form(self._db)
        with closing(sqlite3.connect(":memory:")) as empty:
            for script in _migrations():
                empty.executescript(script)
            ours, newest = _form(empty)
        if application != ours:
            raise _not_a_store(self.path)
        if version != newest:
            raise StoreError(
                "STORE-003",
                f"The store {self.path} is of version {version}; this shoal reads version {newest}.",
                fix="Use the newer shoal that wrote it: pip install --upgrade shoal",
            )

    @contextmanager
    def _in_sentences(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise _not_a_store(self.path) from None
            # SQLite's own words may quote the file.
            name = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
            raise StoreError(
                "STORE-001",
                f"The store {self.path} cannot be used: {name}.",
                why="The disk is full or failing, the file may not be written, or another process keeps it locked.",
                fix="See to the file and its disk. Updates that were not acknowledged will come again.",
            ) from None


def _not_a_store(path: Path) -> StoreError:
    return StoreError("STORE-003", f"{path} is not a store of model instances.", fix="Give a path where there is no file yet.")


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        for setting in _SETTINGS:
            db.execute(f"PRAGMA {setting}")
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """Make an empty store; it appears under its name when it is whole, or, if another process is faster, not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        with closing(_connect(Path(name))) as db:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            for script in _migrations():
                db.executescript(f"BEGIN; {script} COMMIT;")
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _migrations() -> list[str]:
    folder = files("shoal.coordinator.models").joinpath("migrations")
    return [script.read_text("utf-8") for script in sorted(folder.iterdir(), key=lambda script: script.name)]


def _form(db: sqlite3.Connection) -> tuple[int, int]:
    """What tells the file from other databases, and its version."""
    (application,), (version,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    return application, version
