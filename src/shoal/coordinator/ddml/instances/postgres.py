"""Model instances in the coordinator's PostgreSQL database, for several machines.

A merge, of one update or of several, is one transaction with isolation READ COMMITTED. It locks the
study's row, which counts merges, first; so does a transaction that deletes names. Counts are
therefore exact, there is no deadlock, and merges of one study run one after another. Each ends when
it is on the disk; updates that arrive together are merged together, with one wait for the disk.
Draws read the last committed state and never wait.

Durability: an acknowledged merge survives the death of any process, of PostgreSQL, and a power cut,
if the server's ``fsync`` is on (the default). If a connection is lost before the response, the
caller gets an error; a retry of the update finds its name if it was merged.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    missing_instances_error,
    select_merged,
)
from shoal.coordinator.ddml.instances.sql import SqlInstanceStore, check_found
from shoal.coordinator.store.postgres import PostgresPool
from shoal.protocols.ddml.merging import Weights

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class PostgresInstanceStore(SqlInstanceStore):
    """Instances in a PostgreSQL database.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``, as libpq reads it. Missing tables
        are created.

    Notes
    -----
    Threads may share it.

    PostgreSQL writes every version of an instance to a new place and to its write-ahead log, and
    overwrites nothing with zeros. `scrub` releases the places of earlier versions (``VACUUM``),
    which later versions then overwrite; until then their bytes are on the disk, and at the end of a
    study some stay. The log has them until its files are reused (``max_wal_size``, 1 GB by
    default), and archives, replicas and backups for ever. If earlier versions, and with them the
    updates, must not stay, store the instances in Redis without an append-only file:
    ``--models redis://..``.

    Copies of a model in this process: a draw makes two (from the socket, into bytes), a
    replacement two (into the message, into the socket), and a blend reads, makes one after its
    arithmetic, and writes: five.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pool = PostgresPool(url)

    def close(self) -> None:
        self._pool.close()

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        put = (
            "INSERT INTO ddml (study, k, p) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING "
            "RETURNING number"
        )
        with self._pool.transaction(_BEGIN) as db, db.cursor() as rows:
            if number := rows.execute(put, (study, *shape)).fetchone():
                values = [
                    (*number, slot, row.astype(WEIGHT).tobytes())
                    for slot, row in enumerate(instances)
                ]
                rows.executemany("INSERT INTO ddml_instance VALUES (%s, %s, %s)", values)
        check_shape(study, self.find_shape(study) or (0, 0), shape)

    def merge_many(
        self, study: str, updates: Sequence[PendingUpdate], blend_factor: float
    ) -> list[MergeOutcome]:
        """Merge updates in order, in one transaction; write each changed instance once."""
        number = self.find_number(study)
        with self._pool.transaction(_BEGIN) as db, db.cursor(binary=True) as rows:
            locked = rows.execute(
                "SELECT n_merged, kept_from FROM ddml WHERE number = %s FOR UPDATE", (number,)
            ).fetchone()
            n_merged, kept_from = check_found(study, locked)
            names = [(update.epoch, update.id) for update in updates if update.epoch >= kept_from]
            put = (
                "INSERT INTO ddml_update SELECT %s, * FROM unnest(%s::bigint[], %s::bytea[]) ON "
                "CONFLICT DO NOTHING RETURNING epoch, id"
            )
            new = rows.execute(
                put, (number, [name[0] for name in names], [name[1] for name in names])
            ).fetchall()
            outcomes = decide_outcomes(updates, set(new), n_merged, kept_from)
            due = select_merged(updates, outcomes)
            slots = list({update.slot for update in due if blend_factor != 1})
            query = "SELECT slot, weights FROM ddml_instance WHERE number = %s AND slot = ANY(%s)"
            instances = dict(rows.execute(query, (number, slots)).fetchall() if slots else ())
            if len(instances) < len(slots):
                raise missing_instances_error(study)
            changes = [
                (weights, number, slot)
                for slot, weights in apply_updates(due, instances, blend_factor).items()
            ]
            rows.executemany(
                "UPDATE ddml_instance SET weights = %s WHERE number = %s AND slot = %s", changes
            )
            if due:
                rows.execute(
                    "UPDATE ddml SET n_merged = n_merged + %s WHERE number = %s", (len(due), number)
                )
        return outcomes

    def save_average(self, study: str, average: Average) -> bool:
        weights = average.weights.astype(MEAN, copy=False).tobytes()
        put = (
            "UPDATE ddml_average SET n_folds = n_folds + 1, weights = %s WHERE number = %s AND "
            "n_folds = %s - 1"
        )
        if average.n_folds == 1:
            put = (
                "INSERT INTO ddml_average (weights, number, n_folds) VALUES (%s, %s, %s) ON "
                "CONFLICT DO NOTHING"
            )
        return self._execute(put, weights, self.find_number(study), average.n_folds) == 1

    def count_rejection(self, study: str, reason: str) -> None:
        put = (
            "INSERT INTO ddml_refusal VALUES (%s, %s, 1) ON CONFLICT (number, reason) DO UPDATE "
            "SET n = ddml_refusal.n + 1"
        )
        self._execute(put, self.find_number(study), reason)

    def forget(self, study: str, epoch: int) -> None:
        number = self.find_number(study)
        with self._pool.transaction(_BEGIN) as db:
            db.execute(
                "UPDATE ddml SET kept_from = greatest(kept_from, %s) WHERE number = %s",
                (epoch, number),
            )
            db.execute("DELETE FROM ddml_update WHERE number = %s AND epoch < %s", (number, epoch))

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        """Release the places of earlier versions, so that later ones overwrite them.

        The result is ``begun``; the notes of the class say what stays.
        """
        from psycopg.errors import LockNotAvailable, QueryCanceled

        set_timeout = "SELECT set_config('lock_timeout', %s, false)"
        with self._pool.autocommit() as db:
            before = db.execute("SHOW lock_timeout").fetchone()
            # Another process may run a VACUUM too. A timeout of 0 would wait for ever.
            db.execute(set_timeout, (f"{max(1, 1000 * seconds):.0f}ms",))
            try:
                # Truncating a table would delay draws for a moment.
                db.execute("VACUUM (TRUNCATE false) ddml_instance, ddml_update, ddml_average")
            except (LockNotAvailable, QueryCanceled):
                return "blocked"
            finally:
                db.execute(set_timeout, before)
        return "begun"

    def fetch_one(self, query: str, *values: object) -> Any:
        with self._pool.autocommit() as db:
            return db.execute(query.replace("?", "%s"), values, binary=True).fetchone()

    def fetch_all(self, query: str, *values: object) -> list[Any]:
        with self._pool.autocommit() as db:
            return db.execute(query.replace("?", "%s"), values, binary=True).fetchall()

    def _execute(self, query: str, *values: object) -> int:
        """Run a statement; return how many rows were changed."""
        with self._pool.autocommit() as db:
            return db.execute(query, values).rowcount
