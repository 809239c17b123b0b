"""Parts of the store's transactions, each inside one that has locked the study's standing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from shoal.coordinator.store.base import Accepted, Ending, Incoming, Named
from shoal.study.anonymity import scope_of_study

_ROWS = 500
"""Most rows in one statement."""

LATE = "HOST-002"
"""What was accepted, and not folded in before the study ended, is counted under this code."""

EMPTIED = ("state", "held", "alarm", "submission", "ticket", "invitation", "expected")
"""Tables that keep nothing of a study that has ended. Nonces stay until they expire: what was caught before the end must not come later."""

_COARSE = 60_000
"""Nonces expire at full minutes: a row should not tell when a request came."""


class Session(Protocol):
    """The statements of one transaction. A question mark stands for a value."""

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds, or a change returns."""

    def change(self, statement: str, *values: object) -> int:
        """How many rows were changed."""

    def change_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        """The same for each of several rows of values; how many were changed in all."""


def put(session: Session, table: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows, in order."""
    if rows:
        session.change_many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_marks(columns)}", rows)


def put_new(
    session: Session, table: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]], returned: str
) -> list[tuple[Any, ...]]:
    """Insert those rows that are not there already, and a column of each of them."""
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        values = ", ".join([_marks(columns)] * len(some))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values} ON CONFLICT DO NOTHING RETURNING {returned}"
        found += session.rows(statement, *(value for row in some for value in row))
    return found


def accept(session: Session, study: int, incoming: Sequence[Incoming], expires: int) -> list[Accepted]:
    """Hold what is new of it; what became of each."""
    fresh = use_nonces(session, study, [given.nonce for given in incoming if given.nonce is not None], expires)
    outcomes: list[Accepted] = []
    named: dict[int, Named] = {}
    for i, given in enumerate(incoming):
        if given.nonce is not None and given.nonce not in fresh:
            outcomes.append("replayed")
            continue
        outcomes.append("accepted")
        # A nonce counts once within these, too.
        fresh.discard(given.nonce or b"")
        if given.name is not None:
            named[i] = Named(given.name, given.digest or b"", given.ticket)
    for i, outcome in zip(named, use_admitted(session, study, list(named.values())), strict=True):
        outcomes[i] = outcome
    held = [
        (study, given.sender, given.payload, given.name) for given, outcome in zip(incoming, outcomes, strict=True) if outcome == "accepted"
    ]
    if held:
        put(session, "held", ("study", "sender", "payload", "name"), held)
        session.change("UPDATE standing SET n_accepted = n_accepted + ? WHERE study = ?", len(held), study)
    return outcomes


def use_nonces(session: Session, study: int, nonces: Sequence[bytes], expires: int) -> set[bytes]:
    """Remember nonces; those that are new."""
    expires += -expires % _COARSE
    rows = [(study, nonce, expires) for nonce in sorted(set(nonces))]
    return {nonce for (nonce,) in put_new(session, "nonce", ("study", "nonce", "expires"), rows, "nonce")}


def use_admitted(session: Session, study: int, named: Sequence[Named]) -> list[Accepted]:
    """Note the names of what needs no ticket, or comes with one that was issued; what became of each."""
    issued = _issued(session, study, {one.ticket for one in named if one.ticket is not None})
    is_in = [one.ticket is None or one.ticket in issued for one in named]
    used = iter(_use_names(session, study, [(one.name, one.digest) for one, admits in zip(named, is_in, strict=True) if admits]))
    return [next(used) if admits else "unissued" for admits in is_in]


def _issued(session: Session, study: int, tickets: set[bytes]) -> set[bytes]:
    """Those of some tickets' digests that were issued."""
    found: set[bytes] = set()
    asked = sorted(tickets)
    for start in range(0, len(asked), _ROWS):
        some = asked[start : start + _ROWS]
        query = f"SELECT digest FROM ticket WHERE study = ? AND digest IN ({', '.join('?' * len(some))})"
        found.update(digest for (digest,) in session.rows(query, study, *some))
    return found


def _use_names(session: Session, study: int, named: Sequence[tuple[bytes, bytes]]) -> list[Accepted]:
    """Note names with the digests of what came under them; for each whether it is new, came with the same bytes, or with others."""
    first = dict(reversed(named))
    rows = [(study, name, first[name]) for name in sorted(first)]
    new = {name for (name,) in put_new(session, "submission", ("study", "name", "digest"), rows, "name")}
    known = {
        name: session.rows("SELECT digest FROM submission WHERE study = ? AND name = ?", study, name)[0][0]
        for name in first
        if name not in new
    }
    outcomes: list[Accepted] = []
    for name, digest in named:
        if name in new:
            new.discard(name)
            outcomes.append("accepted")
        else:
            outcomes.append("repeated" if digest == known.get(name, first[name]) else "conflict")
    return outcomes


def count_refused(session: Session, study: int, counts: Iterable[tuple[str, int]]) -> None:
    put = "INSERT INTO refusal (study, code, n) VALUES (?, ?, ?) ON CONFLICT (study, code) DO UPDATE SET n = refusal.n + excluded.n"
    for code, n in sorted(counts):
        session.change(put, study, code, n)


def finish(session: Session, study: int, ending: Ending) -> None:
    """End a study: how it ended, its letters, its totals and who is enrolled stay, nonces until they expire, and all else goes.

    Where packets came with tokens their names stay too, so that their senders can see that they came, without the digests of what was in
    them. Invitations stay in an epoch, all of whose studies they are for.
    """
    ((n_late,),) = session.rows("SELECT count(*) FROM held WHERE study = ?", study)
    if n_late:
        count_refused(session, study, {LATE: n_late}.items())
    ((digest, scope),) = session.rows("SELECT digest, scope FROM study WHERE number = ?", study)
    kept = (
        set()
        if scope is None
        else {"submission"}
        if bytes(scope) == scope_of_study(bytes.fromhex(digest))
        else {"submission", "invitation"}
    )
    for table in EMPTIED:
        if table not in kept:
            session.change(f"DELETE FROM {table} WHERE study = ?", study)
    session.change("UPDATE submission SET digest = ?, is_told = TRUE WHERE study = ?", b"", study)
    session.change("UPDATE standing SET status = ?, holder = NULL WHERE study = ?", ending.status, study)
    session.change("INSERT INTO ending (study, result, reason) VALUES (?, ?, ?)", study, ending.result, ending.reason)


def scope_of(session: Session, study: int) -> bytes | None:
    """Which credentials count in a study, if it has any."""
    ((scope,),) = session.rows("SELECT scope FROM study WHERE number = ?", study)
    return None if scope is None else bytes(scope)


def tell(session: Session, study: int, n_told: int, number: int) -> None:
    """Have the list of submissions be what is in now, unless this or a later one was told."""
    if n_told < number:
        session.change("UPDATE submission SET is_told = TRUE WHERE study = ? AND NOT is_told", study)
        session.change("UPDATE standing SET n_told = ? WHERE study = ?", number, study)


def mix(session: Session, study: int) -> None:
    """Write tickets, enrolments and registrations anew, each in the order of its digests, so that no place in a file tells which came
    together, or when.

    Notes
    -----
    A table without row numbers is in order to whoever asks it, yet inside a page rows lie as they came; PostgreSQL also keeps with each
    row the number of its transaction, which is the same for an enrolment and its ticket.
    """
    for table, columns in (("ticket", ("study", "digest")), ("enrolment", ("study", "key_digest", "name", "has_left"))):
        rows = session.rows(f"DELETE FROM {table} WHERE study = ? RETURNING {', '.join(columns)}", study)
        put(session, table, columns, sorted(rows))
    scope, columns = scope_of(session, study), ("scope", "member", "commitment", "issued")
    if scope is not None:
        rows = session.rows(f"DELETE FROM registration WHERE scope = ? RETURNING {', '.join(columns)}", scope)
        put(session, "registration", columns, sorted(rows))
    session.change("UPDATE standing SET is_mixed = TRUE WHERE study = ?", study)


def _marks(columns: tuple[str, ...]) -> str:
    return f"({', '.join('?' * len(columns))})"
