"""The store in SQL, written once for both databases: what differs between them is in `shoal.coordinator.store.sqlite` and ``.postgres``.

A writer of a study locks its row in ``standing`` first. So writers of one study come one after another: the number of a letter is taken
and made visible in one step, and nobody who has seen number 7 finds a new 6 later. What is held is deleted by its numbers, never by "up
to", so that it does not matter in which order those who accepted it were done.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from shoal.coordinator.store.base import LARGEST, Accepted, Ending, Folded, Held, Hosted, Incoming, Loaded, Named, Secrets, Store, Totals
from shoal.coordinator.store.enrolling import enrol, issued_to, register
from shoal.coordinator.store.statements import (
    Session,
    accept,
    count_refused,
    finish,
    mix,
    put,
    put_new,
    scope_of,
    tell,
    use_admitted,
    use_nonces,
)
from shoal.errors import RemoteProtocolError
from shoal.transport.forms import Letter

_STUDY = """
    SELECT digest, manifest, opened, patience, by_invitation, seats, queries, status, result, reason, scope
    FROM study JOIN standing ON standing.study = number LEFT JOIN ending ON ending.study = number
"""


def _hosted(row: tuple[Any, ...]) -> Hosted:
    digest, manifest, opened, patience, by_invitation, seats, queries, status, result, reason, scope = row
    names = None if seats is None else tuple(json.loads(seats))
    return Hosted(digest, manifest, opened, patience, bool(by_invitation), names, queries, status, result, reason, scope)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _n_members(session: Session, scope: bytes) -> int:
    ((n,),) = session.rows("SELECT count(*) FROM registration WHERE scope = ?", scope)
    return int(n)


def _save(session: Session, study: int, n_letters: int, folded: Folded) -> None:
    # Whoever holds the lease and yet steps a study twice at the same moment must not fold anything in twice.
    if session.change_many("DELETE FROM held WHERE study = ? AND number = ?", [(study, n) for n in folded.taken]) != len(folded.taken):
        raise _TakenBeforeError
    keep = "INSERT INTO state (study, state) VALUES (?, ?) ON CONFLICT (study) DO UPDATE SET state = excluded.state"
    session.change(keep, study, folded.state)
    session.change_many("DELETE FROM submission WHERE study = ? AND name = ?", [(study, name) for name in folded.freed])
    session.change_many("DELETE FROM alarm WHERE study = ? AND at = ?", [(study, at) for at in folded.rung])
    put_new(session, "alarm", ("study", "at"), [(study, at) for at in folded.alarms], "at")
    letters = [(study, number, recipient, payload) for number, (recipient, payload) in enumerate(folded.letters, n_letters + 1)]
    put(session, "letter", ("study", "number", "recipient", "payload"), letters)
    session.change("UPDATE standing SET n_letters = ?, has_begun = TRUE WHERE study = ?", n_letters + len(letters), study)
    count_refused(session, study, folded.rejected.items())
    if folded.ending is not None:
        finish(session, study, folded.ending)


class _TakenBeforeError(Exception):
    """What is to be folded in is not held any more."""


class SqlStore(Store):
    """A store in a database that speaks SQL."""

    row_lock: ClassVar[str] = ""
    """What a query ends with so that nobody else changes the row before the transaction ends."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Session]:
        """A transaction that reads, all at one moment."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Session]:
        """A transaction that writes: durable when it is left, undone where it is left by an error."""

    @abstractmethod
    def _clear_disk(self) -> None:
        """Rid the disk of what was deleted, as far as the database can."""

    def ping(self) -> None:
        with self._reading() as session:
            session.rows("SELECT count(*) FROM secret")

    def secrets(self, offered: Secrets) -> Secrets:
        with self._writing() as session:
            values = (offered.analyst_digest, offered.signing_seed)
            session.change("INSERT INTO secret (id, analyst_digest, signing_seed) VALUES (1, ?, ?) ON CONFLICT DO NOTHING", *values)
            return Secrets(*session.rows("SELECT analyst_digest, signing_seed FROM secret")[0])

    def publish(self, hosted: Hosted, invitations: Sequence[bytes] = ()) -> bool:
        columns = ("digest", "manifest", "opened", "patience", "by_invitation", "seats", "queries", "scope")
        seats = None if hosted.seats is None else json.dumps(hosted.seats)
        values = (hosted.digest, hosted.manifest, hosted.opened, hosted.patience, hosted.by_invitation, seats, hosted.queries, hosted.scope)
        with self._writing() as session:
            made = put_new(session, "study", columns, [values], "number")
            for (number,) in made:
                session.change("INSERT INTO standing (study, status) VALUES (?, ?)", number, hosted.status)
                put(session, "invitation", ("study", "digest"), [(number, digest) for digest in sorted(set(invitations))])
        return bool(made)

    def studies(self) -> tuple[Hosted, ...]:
        with self._reading() as session:
            return tuple(_hosted(row) for row in session.rows(f"{_STUDY} ORDER BY number"))

    def study(self, study: str) -> Hosted | None:
        with self._reading() as session:
            found = session.rows(f"{_STUDY} WHERE digest = ?", study)
        return _hosted(found[0]) if found else None

    def enrol(
        self,
        study: str,
        key: bytes,
        name: str | None,
        ticket: bytes | None,
        invitation: bytes | None,
        nonce: bytes | None = None,
        expires: int = 0,
        answers: Sequence[int] = (),
    ) -> str:
        with self._writing() as session:
            number = self._number(session, study)
            (status,) = self._lock(session, number, "status")
            if nonce is not None and not use_nonces(session, number, [nonce], expires):
                raise RemoteProtocolError("AUTH-005", "This request came before.", fix="Sign it again.")
            return enrol(session, number, status == "open", _digest(key), name, ticket, invitation, answers)

    def registered(self, study: str, key: bytes, commitment: bytes) -> bytes | None:
        with self._reading() as session:
            scope = scope_of(session, self._number(session, study))
            return None if scope is None else issued_to(session, scope, key, commitment)

    def register(
        self,
        study: str,
        key: bytes,
        commitment: bytes,
        issued: bytes,
        invitation: bytes | None,
        nonce: bytes | None = None,
        expires: int = 0,
    ) -> tuple[str, bytes]:
        with self._writing() as session:
            number = self._number(session, study)
            (status,) = self._lock(session, number, "status")
            if nonce is not None and not use_nonces(session, number, [nonce], expires):
                raise RemoteProtocolError("AUTH-005", "This request came before.", fix="Sign it again.")
            return register(session, number, status == "open", key, _digest(key), commitment, issued, invitation)

    def members(self, study: str, after: bytes = b"", most: int = LARGEST) -> tuple[bytes, ...]:
        query = "SELECT member FROM registration WHERE scope = ? AND member > ? ORDER BY member LIMIT ?"
        with self._reading() as session:
            scope = scope_of(session, self._number(session, study))
            return tuple(bytes(key) for (key,) in session.rows(query, scope, after, most))

    def submitted(self, study: str, after: bytes = b"", most: int = LARGEST) -> tuple[bytes, ...]:
        query = "SELECT name FROM submission WHERE study = ? AND name > ? ORDER BY name LIMIT ?"
        with self._reading() as session:
            return tuple(bytes(name) for (name,) in session.rows(query, self._number(session, study), after, most))

    def told(self, study: str, number: int, after: bytes, most: int) -> tuple[bytes, ...]:
        with self._reading() as session:
            known = self._number(session, study)
            ((n_told,),) = session.rows("SELECT n_told FROM standing WHERE study = ?", known)
        if n_told < number:
            with self._writing() as session:
                tell(session, known, self._lock(session, known, "n_told")[0], number)
        query = "SELECT name FROM submission WHERE study = ? AND is_told AND name > ? ORDER BY name LIMIT ?"
        with self._reading() as session:
            return tuple(bytes(name) for (name,) in session.rows(query, known, after, most))

    def expected(self, study: str) -> tuple[int, Mapping[int, int]]:
        with self._reading() as session:
            number = self._number(session, study)
            if (scope := scope_of(session, number)) is not None:
                return _n_members(session, scope), {}
            ((enrolled,),) = session.rows("SELECT count(*) FROM enrolment WHERE study = ?", number)
            return int(enrolled), dict(session.rows("SELECT phase, n FROM expected WHERE study = ?", number))

    def name_of(self, study: str, key: bytes) -> str | None:
        query = "SELECT name FROM enrolment WHERE study = ? AND key_digest = ? AND NOT has_left"
        with self._reading() as session:
            found = session.rows(query, self._number(session, study), _digest(key))
        return str(found[0][0]) if found else None

    def leave(self, study: str, key: bytes, nonce: bytes, expires: int) -> bool:
        with self._writing() as session:
            number = self._number(session, study)
            self._lock(session, number, "status")
            if not use_nonces(session, number, [nonce], expires):
                return False
            session.change("UPDATE enrolment SET has_left = TRUE WHERE study = ? AND key_digest = ?", number, _digest(key))
        return True

    def use_many(self, study: str, named: Sequence[Named]) -> tuple[Accepted, ...]:
        with self._writing() as session:
            number = self._number(session, study)
            (status,) = self._lock(session, number, "status")
            return tuple(use_admitted(session, number, named)) if status == "open" else tuple("over" for _ in named)

    def accept(self, study: str, incoming: Sequence[Incoming], expires: int) -> tuple[Accepted, ...]:
        with self._writing() as session:
            number = self._number(session, study)
            (status,) = self._lock(session, number, "status")
            if status != "open":
                return tuple("over" for _ in incoming)
            return tuple(accept(session, number, incoming, expires))

    def refuse(self, study: str, code: str, n: int = 1) -> None:
        with self._writing() as session:
            count_refused(session, self._number(session, study), {code: n}.items())

    def due(self, now: int) -> tuple[str, ...]:
        query = """
            SELECT digest FROM study JOIN standing ON standing.study = number WHERE status = 'open' AND (
                NOT has_begun OR EXISTS (SELECT 1 FROM held WHERE held.study = study.number)
                OR EXISTS (SELECT 1 FROM alarm WHERE alarm.study = study.number AND at <= ?)
            ) ORDER BY number
        """
        with self._reading() as session:
            return tuple(digest for (digest,) in session.rows(query, now))

    def lease(self, study: str, holder: str, now: int, until: int) -> int | None:
        with self._writing() as session:
            number = self._number(session, study)
            status, held_by, held_until, term = self._lock(session, number, "status, holder, until, term")
            # One that would last twice as long as any does was taken by a clock that has been put back since, and its holder may be dead.
            is_held = held_by not in (None, holder) and now < held_until <= 2 * until - now
            if status != "open" or is_held:
                return None
            term += held_by != holder
            session.change("UPDATE standing SET holder = ?, until = ?, term = ? WHERE study = ?", holder, until, term, number)
        return int(term)

    def renew(self, study: str, holder: str, term: int, until: int) -> bool:
        put = "UPDATE standing SET until = ? WHERE study = ? AND holder = ? AND term = ?"
        with self._writing() as session:
            return session.change(put, until, self._number(session, study), holder, term) == 1

    def release(self, study: str, holder: str) -> None:
        with self._writing() as session:
            number = self._number(session, study)
            session.change("UPDATE standing SET holder = NULL WHERE study = ? AND holder = ?", number, holder)

    def load(self, study: str, now: int, most: int) -> Loaded:
        with self._reading() as session:
            number = self._number(session, study)
            state = session.rows("SELECT state FROM state WHERE study = ?", number)
            held = session.rows("SELECT number, sender, payload, name FROM held WHERE study = ? ORDER BY number LIMIT ?", number, most)
            alarms = session.rows("SELECT at FROM alarm WHERE study = ? AND at <= ? ORDER BY at", number, now)
        return Loaded(state[0][0] if state else None, tuple(Held(*row) for row in held), tuple(at for (at,) in alarms))

    def save(self, study: str, term: int, folded: Folded) -> bool:
        try:
            with self._writing() as session:
                number = self._number(session, study)
                status, current, n_letters = self._lock(session, number, "status, term, n_letters")
                if status != "open" or current != term:
                    return False
                _save(session, number, n_letters, folded)
        except _TakenBeforeError:
            return False
        return True

    def end(self, study: str, ending: Ending) -> bool:
        with self._writing() as session:
            number = self._number(session, study)
            (status,) = self._lock(session, number, "status")
            if status == "open":
                finish(session, number, ending)
        return bool(status == "open")

    def latest(self, study: str) -> int:
        with self._reading() as session:
            return int(session.rows("SELECT n_letters FROM standing WHERE study = ?", self._number(session, study))[0][0])

    def letters(self, study: str, name: str | None, after: int, most_bytes: int) -> tuple[Letter, ...]:
        query = """
            SELECT number, payload FROM (
                SELECT number, payload, sum(length(payload)) OVER (ORDER BY number) AS size
                FROM letter WHERE study = ? AND number > ? AND (recipient IS NULL OR recipient = ?)
            ) AS later WHERE size <= ? OR size = length(payload) ORDER BY number
        """
        with self._reading() as session:
            found = session.rows(query, self._number(session, study), min(after, LARGEST), name, most_bytes)
        return tuple(Letter(number=number, payload=payload) for number, payload in found)

    def acknowledge(self, study: str, name: str, upto: int, nonce: bytes, expires: int) -> bool:
        with self._writing() as session:
            number = self._number(session, study)
            if not use_nonces(session, number, [nonce], expires):
                return False
            session.change("DELETE FROM letter WHERE study = ? AND number <= ? AND recipient = ?", number, min(upto, LARGEST), name)
        return True

    def totals(self, study: str) -> Totals:
        with self._reading() as session:
            number = self._number(session, study)
            if (scope := scope_of(session, number)) is not None:
                enrolled = _n_members(session, scope)
            else:
                ((enrolled,),) = session.rows("SELECT count(*) FROM enrolment WHERE study = ? AND NOT has_left", number)
            ((accepted,),) = session.rows("SELECT n_accepted FROM standing WHERE study = ?", number)
            ((waiting,),) = session.rows("SELECT count(*) FROM held WHERE study = ?", number)
            refused = session.rows("SELECT code, n FROM refusal WHERE study = ? ORDER BY code", number)
        return Totals(enrolled, accepted, waiting, dict(refused))

    def tidy(self, now: int) -> None:
        query = """
            SELECT study FROM standing WHERE NOT is_mixed
            OR EXISTS (SELECT 1 FROM nonce WHERE nonce.study = standing.study AND expires <= ?)
        """
        with self._reading() as session:
            untidy = session.rows(query, now)
        for (number,) in untidy:
            with self._writing() as session:
                (is_mixed,) = self._lock(session, number, "is_mixed")
                session.change("DELETE FROM nonce WHERE study = ? AND expires <= ?", number, now)
                if not is_mixed:
                    mix(session, number)
        self._clear_disk()

    def _lock(self, session: Session, number: int, columns: str) -> tuple[Any, ...]:
        """Columns of a study's standing, which nobody else changes before the transaction ends."""
        return session.rows(f"SELECT {columns} FROM standing WHERE study = ?{self.row_lock}", number)[0]

    def _number(self, session: Session, study: str) -> int:
        """The short name of a study in the tables; it never changes."""
        if study not in self._numbers:
            found = session.rows("SELECT number FROM study WHERE digest = ?", study)
            if not found:
                raise RemoteProtocolError("HOST-001", "The coordinator does not have this study.")
            self._numbers[study] = found[0][0]
        return self._numbers[study]
