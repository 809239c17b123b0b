"""Rewrite the rows of participants in the order of their digests, in short transactions.

`SqlStore.tidy` calls it. Queries return a table without row numbers in order, but inside a page of
SQLite the rows are in order of arrival. PostgreSQL stores rows in order of arrival, with the number
of their transaction, which is the same for an enrolment and its ticket. After a rewrite no position
in a file shows which rows were written together, or when.

A rewrite of a million rows takes minutes, and other writers wait while a transaction of it runs.
So each transaction rewrites one slice of about `SLICE_ROWS` rows, which takes some milliseconds.
Each slice begins `OVERLAP_ROWS` rows, which is more than one page, before the end of the last one.
A change must keep this: each page is thereby rewritten once as a whole. If there are no more than
`SLICE_ROWS` rows, one transaction rewrites all of them, and the file depends only on the set of
rows. Otherwise the borders between pages also depend on the earlier borders.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.coordinator.store.statements import SqlSession, insert_rows

SLICE_ROWS = 500
"""Rows that one transaction deletes and inserts again."""

OVERLAP_ROWS = 128
"""Rows that two slices share. A page of SQLite has at most 110 of the shortest rows."""


@dataclass(frozen=True, slots=True)
class RowSet:
    """The rows of one study or scope in a table; the second column is the key that sorts them."""

    table: str
    columns: tuple[str, ...]
    owner: int | bytes


@dataclass(frozen=True, slots=True)
class RewritePosition:
    """The place of the next slice: the number of a `RowSet`, and the key that it follows."""

    number: int = 0
    after: bytes = b""


def list_row_sets(study: int, scope: bytes | None) -> tuple[RowSet, ...]:
    """Return all rows of participants of a study, and of its scope if it has one."""
    of_study = (
        RowSet("ticket", ("study", "digest"), study),
        RowSet("enrolment", ("study", "key_digest", "name", "has_left"), study),
    )
    if scope is None:
        return of_study
    return (
        *of_study,
        RowSet("registration", ("scope", "member", "commitment", "issued"), scope),
        RowSet("commitment", ("scope", "digest"), scope),
    )


def rewrite_slice(
    session: SqlSession, row_sets: tuple[RowSet, ...], position: RewritePosition
) -> RewritePosition | None:
    """Rewrite one slice in sorted order; return where the next one begins, or None at the end."""
    n_left = SLICE_ROWS
    while position.number < len(row_sets):
        if n_left <= 2 * OVERLAP_ROWS:
            return position
        rows = _rewrite_rows(session, row_sets[position.number], position.after, n_left)
        if len(rows) == n_left:
            return RewritePosition(position.number, rows[-1 - OVERLAP_ROWS])
        n_left -= len(rows)
        position = RewritePosition(position.number + 1)
    return None


def _rewrite_rows(session: SqlSession, row_set: RowSet, after: bytes, most: int) -> list[bytes]:
    """Delete up to ``most`` rows after a key, insert them again in order, return their keys.

    In PostgreSQL another study of the scope may have added rows since the keys were read; these are
    deleted and inserted again as well.
    """
    owner, key, *_ = row_set.columns
    keys = session.fetch_rows(
        f"SELECT {key} FROM {row_set.table} WHERE {owner} = ? AND {key} > ? ORDER BY {key} LIMIT ?",
        row_set.owner,
        after,
        most,
    )
    if keys:
        rows = session.fetch_rows(
            f"DELETE FROM {row_set.table} WHERE {owner} = ? AND {key} > ? AND {key} <= ? "
            f"RETURNING {', '.join(row_set.columns)}",
            row_set.owner,
            after,
            keys[-1][0],
        )
        insert_rows(session, row_set.table, row_set.columns, sorted(rows))
    return [bytes(found) for (found,) in keys]
