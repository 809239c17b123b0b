"""Model instances in PostgreSQL, in the coordinator's own database, for several processes on several machines.

A merge, of one update or of several, is one transaction, in the isolation READ COMMITTED. It locks the
study's row first, where merges are counted, and so does whoever forgets names: counts are exact, nobody waits in a circle, and merges of
one study follow each other. Each ends when it is on the disk; updates that arrive together are merged together, with one wait for it.
Draws read the last whole state and wait for nothing.

What is durable when: a merge that was answered survives the death of any process, of PostgreSQL, and a power cut, if the server's
``fsync`` is on, as installed. Where a connection is lost before the answer, the caller is told; the update comes again, and its name is
known by then if it was merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from shoal.coordinator.store.postgres_link import Link
from shoal.protocols.ddml.merging import Weights

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class PostgresModels(ModelStore):
    """Instances in a PostgreSQL database.

    Parameters
    ----------
    url
        ``postgresql://[user[:password]@]host[:port]/database``, as libpq reads it. Tables are made where there are none.

    Notes
    -----
    Threads may share it.

    What is on the disk besides the instances of the moment: PostgreSQL writes every version of an instance to a new place and to its
    write-ahead log, and zeroes nothing. `scrub` has it give up the places of earlier versions (``VACUUM``), which later ones then
    overwrite; until that happens their bytes are there, and at the end of a study some stay. The log keeps them until its files have
    been written over in turn (``max_wal_size``, 1 GB at first), and archives, replicas and backups for good. Where earlier versions
    matter, and with them the updates, keep the instances in Redis without append-only file: ``--models redis://..``.

    Copies of a model in this process: a draw makes two (out of the socket, into bytes), a replacement two (into the message, into the
    socket), and a blend reads, makes one after its arithmetic, and writes: five.
    """

    def __init__(self, url: str) -> None:
        self._link = Link(url)
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        self._link.close()

    def shape(self, study: str) -> tuple[int, int] | None:
        found = self._one("SELECT k, p FROM ddml WHERE study = %s", study)
        return None if found is None else (found[0], found[1])

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        put = "INSERT INTO ddml (study, k, p) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING number"
        with self._link.transaction(_BEGIN) as db, db.cursor() as rows:
            if number := rows.execute(put, (study, *shape)).fetchone():
                values = [(*number, slot, row.astype(WEIGHT).tobytes()) for slot, row in enumerate(instances)]
                rows.executemany("INSERT INTO ddml_instance VALUES (%s, %s, %s)", values)
        check_shape(study, self.shape(study) or (0, 0), shape)

    def draw(self, study: str, slot: int) -> Drawn:
        query = "SELECT n_merged, weights FROM ddml JOIN ddml_instance USING (number) WHERE number = %s AND slot = %s"
        return Drawn(*_known(study, self._one(query, self._number(study), slot)))

    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        return self.merge_many(study, [Arriving(slot, id, epoch, update)], part)[0]

    def merge_many(self, study: str, updates: Sequence[Arriving], part: float) -> list[Merged]:
        """Merge one after the other, all in one transaction; each instance that changes is written once."""
        number = self._number(study)
        with self._link.transaction(_BEGIN) as db, db.cursor(binary=True) as rows:
            locked = rows.execute("SELECT n_merged, kept_from FROM ddml WHERE number = %s FOR UPDATE", (number,)).fetchone()
            n_merged, kept_from = _known(study, locked)
            names = [(one.epoch, one.id) for one in updates if one.epoch >= kept_from]
            put = "INSERT INTO ddml_update SELECT %s, * FROM unnest(%s::bigint[], %s::bytea[]) ON CONFLICT DO NOTHING RETURNING epoch, id"
            new = rows.execute(put, (number, [name[0] for name in names], [name[1] for name in names])).fetchall()
            outcomes = settled(updates, set(new), n_merged, kept_from)
            due = going_in(updates, outcomes)
            slots = list({one.slot for one in due if part != 1})
            query = "SELECT slot, weights FROM ddml_instance WHERE number = %s AND slot = ANY(%s)"
            instances = dict(rows.execute(query, (number, slots)).fetchall() if slots else ())
            if len(instances) < len(slots):
                raise unknown(study)
            changes = [(weights, number, slot) for slot, weights in changed(due, instances, part).items()]
            rows.executemany("UPDATE ddml_instance SET weights = %s WHERE number = %s AND slot = %s", changes)
            if due:
                rows.execute("UPDATE ddml SET n_merged = n_merged + %s WHERE number = %s", (len(due), number))
        return outcomes

    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        query = "SELECT 1 FROM ddml_update WHERE number = %s AND epoch = %s AND id = %s"
        return self._one(query, self._number(study), epoch, id) is not None

    def all_instances(self, study: str) -> Weights:
        return stacked([weights for (weights,) in self._all("SELECT weights FROM ddml_instance WHERE number = %s ORDER BY slot", study)])

    def n_merged(self, study: str) -> int:
        return int(_known(study, self._one("SELECT n_merged FROM ddml WHERE number = %s", self._number(study)))[0])

    def average(self, study: str) -> Average | None:
        found = self._one("SELECT n_folds, weights FROM ddml_average WHERE number = %s", self._number(study))
        return None if found is None else Average(found[0], np.frombuffer(found[1], MEAN))

    def keep_average(self, study: str, average: Average) -> bool:
        weights = average.weights.astype(MEAN, copy=False).tobytes()
        put = "UPDATE ddml_average SET n_folds = n_folds + 1, weights = %s WHERE number = %s AND n_folds = %s - 1"
        if average.n_folds == 1:
            put = "INSERT INTO ddml_average (weights, number, n_folds) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        return self._change(put, weights, self._number(study), average.n_folds) == 1

    def refuse(self, study: str, reason: str) -> None:
        put = "INSERT INTO ddml_refusal VALUES (%s, %s, 1) ON CONFLICT (number, reason) DO UPDATE SET n = ddml_refusal.n + 1"
        self._change(put, self._number(study), reason)

    def refusals(self, study: str) -> Mapping[str, int]:
        return dict(self._all("SELECT reason, n FROM ddml_refusal WHERE number = %s", study))

    def forget(self, study: str, epoch: int) -> None:
        number = self._number(study)
        with self._link.transaction(_BEGIN) as db:
            db.execute("UPDATE ddml SET kept_from = greatest(kept_from, %s) WHERE number = %s", (epoch, number))
            db.execute("DELETE FROM ddml_update WHERE number = %s AND epoch < %s", (number, epoch))

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        """Have the places of earlier versions given up, to be overwritten by later ones: ``begun``; see above for what stays."""
        from psycopg.errors import LockNotAvailable, QueryCanceled

        patience = "SELECT set_config('lock_timeout', %s, false)"
        with self._link.alone() as db:
            before = db.execute("SHOW lock_timeout").fetchone()
            # Another process may be doing the same. 0 would have it wait for ever.
            db.execute(patience, (f"{max(1, 1000 * seconds):.0f}ms",))
            try:
                # Cutting the end of a table off would stop draws for a moment.
                db.execute("VACUUM (TRUNCATE false) ddml_instance, ddml_update, ddml_average")
            except (LockNotAvailable, QueryCanceled):
                return "blocked"
            finally:
                db.execute(patience, before)
        return "begun"

    def _number(self, study: str) -> int:
        """The short name of a study in the database; it never changes."""
        if study not in self._numbers:
            self._numbers[study] = _known(study, self._one("SELECT number FROM ddml WHERE study = %s", study))[0]
        return self._numbers[study]

    def _one(self, query: str, *values: object) -> Any:
        with self._link.alone() as db:
            return db.execute(query, values, binary=True).fetchone()

    def _all(self, query: str, study: str) -> list[Any]:
        number = self._number(study)
        with self._link.alone() as db:
            return db.execute(query, (number,), binary=True).fetchall()

    def _change(self, query: str, *values: object) -> int:
        """How many rows were changed."""
        with self._link.alone() as db:
            return db.execute(query, values).rowcount


def _known(study: str, row: Any) -> Any:
    if row is None:
        raise unknown(study)
    return row
