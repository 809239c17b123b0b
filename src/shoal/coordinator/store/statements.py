"""SQL statements of the store's transactions, including enrolment.

`SqlStore` calls these functions inside a transaction that has locked the study's row in
``standing``. A participant who enrols gets a name; no row may link the name to the participant's
ticket. A participant who registers sends a commitment and gets a credential for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from shoal.coordinator.store.base import (
    NewEnrolment,
    NewRegistration,
    StudyOutcome,
    Submission,
    SubmissionName,
    SubmissionOutcome,
)
from shoal.errors import RemoteProtocolError
from shoal.study.delivery import compute_study_scope

T = TypeVar("T")

_MOST_ROWS = 500
"""Most rows in one statement."""

LATE_CODE = "HOST-002"
"""Code for inputs that were accepted, but not applied before the study ended."""

EMPTIED_TABLES = ("state", "held", "alarm", "submission", "ticket", "invitation", "expected")
"""Tables that are emptied when a study ends. Nonces stay until they expire, so that a request that
was intercepted before the end cannot be replayed later.
"""

_EXPIRY_STEP = 60_000
"""Nonces expire at full minutes, so that a row does not show when a request arrived."""


class SqlSession(Protocol):
    """The statements of one transaction; a question mark is a placeholder for a value."""

    def fetch_rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, or those that a change returns."""

    def execute(self, statement: str, *values: object) -> int:
        """Run a statement; return how many rows were changed."""

    def execute_many(self, statement: str, values: Sequence[tuple[object, ...]]) -> int:
        """Run a statement for each row of values; return how many rows were changed in all."""


def insert_rows(
    session: SqlSession, table: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]
) -> None:
    """Insert rows, in order."""
    if rows:
        session.execute_many(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_format_placeholders(columns)}",
            rows,
        )


def insert_new_rows(
    session: SqlSession,
    table: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[object, ...]],
    returned: str,
) -> list[tuple[Any, ...]]:
    """Insert the rows that are new; return one column of each of them."""
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(rows), _MOST_ROWS):
        some = rows[start : start + _MOST_ROWS]
        values = ", ".join([_format_placeholders(columns)] * len(some))
        statement = (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values} ON CONFLICT DO "
            f"NOTHING RETURNING {returned}"
        )
        found += session.fetch_rows(statement, *(value for row in some for value in row))
    return found


def accept_submissions(
    session: SqlSession, study: int, submissions: Sequence[Submission], expires: int
) -> list[SubmissionOutcome]:
    """Store new submissions; return the outcome of each."""
    fresh = use_nonces(
        session, study, [given.nonce for given in submissions if given.nonce is not None], expires
    )
    outcomes: list[SubmissionOutcome] = []
    named: dict[int, SubmissionName] = {}
    for i, given in enumerate(submissions):
        if given.nonce is not None and given.nonce not in fresh:
            outcomes.append("replayed")
            continue
        outcomes.append("accepted")
        # A nonce also counts once within these submissions.
        fresh.discard(given.nonce or b"")
        if given.name is not None:
            named[i] = SubmissionName(given.name, given.digest or b"", given.ticket)
    for i, outcome in zip(
        named, use_admitted_names(session, study, list(named.values())), strict=True
    ):
        outcomes[i] = outcome
    inputs = [
        (study, given.sender, given.payload, given.name)
        for given, outcome in zip(submissions, outcomes, strict=True)
        if outcome == "accepted"
    ]
    if inputs:
        insert_rows(session, "held", ("study", "sender", "payload", "name"), inputs)
        session.execute(
            "UPDATE standing SET n_accepted = n_accepted + ? WHERE study = ?", len(inputs), study
        )
    return outcomes


def use_nonces(
    session: SqlSession, study: int, nonces: Sequence[bytes], expires: int
) -> set[bytes]:
    """Store nonces; return those that are new."""
    expires += -expires % _EXPIRY_STEP
    rows = [(study, nonce, expires) for nonce in sorted(set(nonces))]
    return {
        nonce
        for (nonce,) in insert_new_rows(
            session, "nonce", ("study", "nonce", "expires"), rows, "nonce"
        )
    }


def use_admitted_names(
    session: SqlSession, study: int, names: Sequence[SubmissionName]
) -> list[SubmissionOutcome]:
    """Store names that need no ticket or have an issued one; return the outcome of each."""
    issued = _find_issued_tickets(
        session, study, {one.ticket for one in names if one.ticket is not None}
    )
    is_in = [one.ticket is None or one.ticket in issued for one in names]
    used = iter(
        _use_names(
            session,
            study,
            [(one.name, one.digest) for one, admits in zip(names, is_in, strict=True) if admits],
        )
    )
    return [next(used) if admits else "unissued" for admits in is_in]


def _find_issued_tickets(session: SqlSession, study: int, tickets: set[bytes]) -> set[bytes]:
    """Return the digests among ``tickets`` that were issued."""
    found: set[bytes] = set()
    digests = sorted(tickets)
    for start in range(0, len(digests), _MOST_ROWS):
        some = digests[start : start + _MOST_ROWS]
        query = (
            "SELECT digest FROM ticket WHERE study = ? AND digest IN "
            f"({', '.join('?' * len(some))})"
        )
        found.update(digest for (digest,) in session.fetch_rows(query, study, *some))
    return found


def _use_names(
    session: SqlSession, study: int, names: Sequence[tuple[bytes, bytes]]
) -> list[SubmissionOutcome]:
    """Store names with the digests of their submissions; return the outcome of each.

    A name is accepted if it is new, repeated with the same digest, a conflict with another one.
    """
    first = dict(reversed(names))
    rows = [(study, name, first[name]) for name in sorted(first)]
    new = {
        name
        for (name,) in insert_new_rows(
            session, "submission", ("study", "name", "digest"), rows, "name"
        )
    }
    known = {
        name: session.fetch_rows(
            "SELECT digest FROM submission WHERE study = ? AND name = ?", study, name
        )[0][0]
        for name in first
        if name not in new
    }
    outcomes: list[SubmissionOutcome] = []
    for name, digest in names:
        if name in new:
            new.discard(name)
            outcomes.append("accepted")
        else:
            outcomes.append("repeated" if digest == known.get(name, first[name]) else "conflict")
    return outcomes


def count_rejections(session: SqlSession, study: int, counts: Iterable[tuple[str, int]]) -> None:
    put = (
        "INSERT INTO refusal (study, code, n) VALUES (?, ?, ?) ON CONFLICT (study, code) DO "
        "UPDATE SET n = refusal.n + excluded.n"
    )
    for code, n in sorted(counts):
        session.execute(put, study, code, n)


def end_study(session: SqlSession, study: int, outcome: StudyOutcome) -> None:
    """End a study and delete all data of it that is not needed any more.

    Outcome, messages, totals and enrolments stay, and nonces until they expire. If packets have
    tokens, their names stay too, without digests of the content, so that senders can check that
    their packets arrived. Invitations of an epoch stay, because they are valid in all its studies.
    """
    ((n_late,),) = session.fetch_rows("SELECT count(*) FROM held WHERE study = ?", study)
    if n_late:
        count_rejections(session, study, {LATE_CODE: n_late}.items())
    ((digest, scope),) = session.fetch_rows(
        "SELECT digest, scope FROM study WHERE number = ?", study
    )
    kept = (
        set()
        if scope is None
        else {"submission"}
        if bytes(scope) == compute_study_scope(bytes.fromhex(digest))
        else {"submission", "invitation"}
    )
    for table in EMPTIED_TABLES:
        if table not in kept:
            session.execute(f"DELETE FROM {table} WHERE study = ?", study)
    session.execute("UPDATE submission SET digest = ?, is_told = TRUE WHERE study = ?", b"", study)
    session.execute(
        "UPDATE standing SET status = ?, holder = NULL WHERE study = ?", outcome.status, study
    )
    session.execute(
        "INSERT INTO ending (study, result, reason) VALUES (?, ?, ?)",
        study,
        outcome.result,
        outcome.reason,
    )


def find_scope(session: SqlSession, study: int) -> bytes | None:
    """Return the scope of the credentials that are valid in a study; None without tokens."""
    ((scope,),) = session.fetch_rows("SELECT scope FROM study WHERE number = ?", study)
    return None if scope is None else bytes(scope)


def freeze_list(session: SqlSession, study: int, n_told: int, number: int) -> None:
    """Freeze list ``number`` with the present submissions, unless it or a later one is frozen."""
    if n_told < number:
        session.execute(
            "UPDATE submission SET is_told = TRUE WHERE study = ? AND NOT is_told", study
        )
        session.execute("UPDATE standing SET n_told = ? WHERE study = ?", number, study)


def attempt(session: SqlSession, work: Callable[[], T]) -> T | RemoteProtocolError:
    """Return the result of some changes, or undo them and return the error that rejects them.

    Changes that were made before stay: the nonce of a rejected request is used up.
    """
    session.execute("SAVEPOINT attempt")
    try:
        result = work()
    except RemoteProtocolError as error:
        session.execute("ROLLBACK TO SAVEPOINT attempt")
        return error
    session.execute("RELEASE SAVEPOINT attempt")
    return result


def _format_placeholders(columns: tuple[str, ...]) -> str:
    return f"({', '.join('?' * len(columns))})"


_EXPECT = (
    "INSERT INTO expected (study, phase, n) VALUES (?, ?, ?) ON CONFLICT (study, phase) DO "
    "UPDATE SET n = expected.n + excluded.n"
)

_IN_SCOPE = "study IN (SELECT number FROM study WHERE scope = ?)"

_REJOIN = """
    INSERT INTO enrolment (study, key_digest, name) VALUES (?, ?, ?)
    ON CONFLICT (study, key_digest) DO UPDATE SET has_left = FALSE
"""


def hash_key(key: bytes) -> bytes:
    """Return SHA-256 of a participant's public key."""
    return hashlib.sha256(key).digest()


def enrol(session: SqlSession, study: int, is_open: bool, enrolment: NewEnrolment) -> str:
    """Enrol a key and return its name.

    Notes
    -----
    A participant who has left and returns gets the old name and needs no second invitation. The row
    stays for this: otherwise each return would take another seat, or issue another ticket.
    """
    key_digest, ticket, name = hash_key(enrolment.key), enrolment.ticket, enrolment.name
    known = session.fetch_rows(
        "SELECT name, has_left FROM enrolment WHERE study = ? AND key_digest = ?", study, key_digest
    )
    if not is_open and (not known or known[0][1]):
        raise _study_over_error()
    if known:
        if (
            ticket is not None
            and is_open
            and not session.fetch_rows(
                "SELECT 1 FROM ticket WHERE study = ? AND digest = ?", study, ticket
            )
        ):
            raise _other_ticket_error()
        session.execute(
            "UPDATE enrolment SET has_left = FALSE WHERE study = ? AND key_digest = ?",
            study,
            key_digest,
        )
        return str(known[0][0])
    ((by_invitation, seats),) = session.fetch_rows(
        "SELECT by_invitation, seats FROM study WHERE number = ?", study
    )
    if by_invitation:
        _use_invitation(session, "study = ?", study, enrolment.invitation)
    if name is None:
        name = (
            key_digest.hex()[:32]
            if seats is None
            else _find_seat(session, study, json.loads(seats))
        )
    if ticket is not None:
        if not insert_new_rows(session, "ticket", ("study", "digest"), [(study, ticket)], "digest"):
            raise _other_ticket_error()
        _count_unsorted(session, study)
    insert_rows(session, "enrolment", ("study", "key_digest", "name"), [(study, key_digest, name)])
    for phase, n in enumerate(enrolment.answers):
        if n:
            session.execute(_EXPECT, study, phase, n)
    if enrolment.answers:
        # More answers are expected now, so the study must wake: by an alarm with a time that
        # nothing else sets or deletes.
        ((n_enrolled,),) = session.fetch_rows(
            "SELECT count(*) FROM enrolment WHERE study = ?", study
        )
        insert_rows(session, "alarm", ("study", "at"), [(study, n_enrolled)])
    return name


def register(
    session: SqlSession, study: int, is_open: bool, registration: NewRegistration
) -> tuple[str, bytes]:
    """Register a key in the study's scope; return its name and credential.

    Notes
    -----
    Another study of the scope may register the same key at the same time: the second transaction
    finds the row of the first one.
    """
    key, commitment, key_digest = (
        registration.key,
        registration.commitment,
        hash_key(registration.key),
    )
    scope, name = _require_scope(session, study), key_digest.hex()[:32]
    known = find_issued(session, scope, key, commitment)
    if known is None:
        if not is_open:
            raise _study_over_error()
        row = (scope, key, commitment, registration.issued)
        if insert_new_rows(
            session, "registration", ("scope", "member", "commitment", "issued"), [row], "member"
        ):
            if not insert_new_rows(
                session, "commitment", ("scope", "digest"), [(scope, commitment)], "digest"
            ):
                raise _other_key_error()
            if _is_by_invitation(session, study):
                _use_invitation(session, _IN_SCOPE, scope, registration.invitation)
            if not _add_member(session, scope, registration.capacity):
                raise _full_error(registration.capacity)
            _count_unsorted(session, study)
        known = find_issued(session, scope, key, commitment)
        assert known is not None, "the row was inserted above"
    if is_open:
        session.execute(_REJOIN, study, key_digest, name)
    return name, known


def check_registration(
    session: SqlSession, study: int, is_open: bool, registration: NewRegistration
) -> bytes | None:
    """Return the credential of a key that has registered, None for one that may register now.

    It changes nothing. It raises the errors of `register`, before a credential is issued.
    """
    scope = _require_scope(session, study)
    known = find_issued(session, scope, registration.key, registration.commitment)
    if known is not None:
        return known
    if not is_open:
        raise _study_over_error()
    if session.fetch_rows(
        "SELECT 1 FROM commitment WHERE scope = ? AND digest = ?", scope, registration.commitment
    ):
        raise _other_key_error()
    if _is_by_invitation(session, study) and not session.fetch_rows(
        f"SELECT 1 FROM invitation WHERE {_IN_SCOPE} AND digest = ?",
        scope,
        registration.invitation,
    ):
        raise _invitation_error()
    if count_members(session, scope) >= registration.capacity:
        raise _full_error(registration.capacity)
    return None


def find_issued(session: SqlSession, scope: bytes, key: bytes, commitment: bytes) -> bytes | None:
    """Return the credential of a key and commitment; None if the key has not registered.

    Raise ``ENROL-002`` if it has registered with another commitment.
    """
    found = session.fetch_rows(
        "SELECT commitment, issued FROM registration WHERE scope = ? AND member = ?", scope, key
    )
    if not found:
        return None
    if bytes(found[0][0]) != commitment:
        raise RemoteProtocolError(
            "ENROL-002",
            "This participant has registered with another commitment.",
            why="Each participant has one credential, also after leaving: with two, one person "
            "could count twice.",
            fix="Send the first commitment again; it is in the participant's ledger.",
        )
    return bytes(found[0][1])


def count_members(session: SqlSession, scope: bytes) -> int:
    """Return how many keys have registered in a scope."""
    found = session.fetch_rows("SELECT n FROM membership WHERE scope = ?", scope)
    return int(found[0][0]) if found else 0


def _add_member(session: SqlSession, scope: bytes, capacity: int) -> bool:
    """Count one more member; return False if there are as many as there may be."""
    session.execute("INSERT INTO membership (scope, n) VALUES (?, 0) ON CONFLICT DO NOTHING", scope)
    return bool(
        session.execute(
            "UPDATE membership SET n = n + 1 WHERE scope = ? AND n < ?", scope, capacity
        )
    )


def _count_unsorted(session: SqlSession, study: int) -> None:
    session.execute("UPDATE standing SET n_unsorted = n_unsorted + 1 WHERE study = ?", study)


def _is_by_invitation(session: SqlSession, study: int) -> bool:
    ((by_invitation,),) = session.fetch_rows(
        "SELECT by_invitation FROM study WHERE number = ?", study
    )
    return bool(by_invitation)


def _require_scope(session: SqlSession, study: int) -> bytes:
    scope = find_scope(session, study)
    assert scope is not None, "only studies with tokens have registrations"
    return scope


def _use_invitation(
    session: SqlSession, where: str, study_or_scope: int | bytes, invitation: bytes | None
) -> None:
    """Delete an invitation to a study, or to a study of a scope; ``ENROL-001`` without one."""
    if invitation is None or not session.execute(
        f"DELETE FROM invitation WHERE {where} AND digest = ?", study_or_scope, invitation
    ):
        raise _invitation_error()


def _find_seat(session: SqlSession, study: int, seats: list[str]) -> str:
    ((n_taken,),) = session.fetch_rows("SELECT count(*) FROM enrolment WHERE study = ?", study)
    if n_taken >= len(seats):
        raise RemoteProtocolError("ENROL-001", f"All {len(seats)} seats of the study are taken.")
    return seats[int(n_taken)]


def _study_over_error() -> RemoteProtocolError:
    return RemoteProtocolError("ENROL-001", "The study has ended.")


def _invitation_error() -> RemoteProtocolError:
    return RemoteProtocolError(
        "ENROL-001",
        "The study is by invitation, and the code is missing, unknown or used.",
        why="Each code admits one participant.",
        fix="Ask the analyst for a new code.",
    )


def _full_error(capacity: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        "ENROL-001",
        f"The study has {capacity:,} members and accepts no more.",
        why="The number of members is limited to a multiple of the size that the study declares.",
        fix="Ask the analyst to publish a larger study, or one by invitation.",
    )


def _other_key_error() -> RemoteProtocolError:
    return RemoteProtocolError(
        "ENROL-002",
        "Another participant has registered with this commitment.",
        why="Each commitment is of one participant.",
        fix="Draw a new commitment: run shoal join with the ledger of this participant.",
    )


def _other_ticket_error() -> RemoteProtocolError:
    return RemoteProtocolError(
        "ENROL-002",
        "The ticket is not the one that this participant enrolled with, or somebody else has it.",
        fix="Send the first ticket again; it is in the participant's ledger.",
    )
