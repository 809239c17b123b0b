"""`SqlStore`: the store interface in SQL, shared by SQLite and PostgreSQL.

Differences between the databases are in `shoal.coordinator.store.sqlite` and ``.postgres``.

A writer of a study locks its row in ``standing`` first, so writers of one study run one after
another. The number of a message is therefore assigned and made visible in one step: a reader that
has seen number 7 never finds a new number 6. Inputs are deleted by their numbers, never by "up
to", so the order in which writers of inputs commit does not matter.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.resources import files
from time import monotonic
from typing import Any, ClassVar, Literal

from shoal.coordinator.store.base import (
    LARGEST_NUMBER,
    CoordinatorSecrets,
    NewEnrolment,
    NewRegistration,
    PendingInput,
    StepResult,
    Store,
    StudyOutcome,
    StudyRecord,
    StudySnapshot,
    StudyTotals,
    Submission,
    SubmissionName,
    SubmissionOutcome,
    do_not_wait,
)
from shoal.coordinator.store.rewriting import RewritePosition, list_row_sets, rewrite_slice
from shoal.coordinator.store.statements import (
    SqlSession,
    accept_submissions,
    attempt,
    check_registration,
    count_members,
    count_rejections,
    end_study,
    enrol,
    find_scope,
    freeze_list,
    hash_key,
    insert_new_rows,
    insert_rows,
    register,
    use_admitted_names,
    use_nonces,
)
from shoal.errors import RemoteProtocolError
from shoal.transport.api import QueuedMessage

_STUDY = """
    SELECT digest, manifest, opened, patience, by_invitation, seats, queries, status, result,
        reason, scope
    FROM study JOIN standing ON standing.study = number LEFT JOIN ending ON ending.study = number
"""


@cache
def read_migrations(database: Literal["sqlite", "postgres"]) -> tuple[str, ...]:
    """Return the scripts in order; a store of version n has run the first n of them.

    Examples
    --------
    >>> "CREATE TABLE study" in read_migrations("sqlite")[0]
    True
    """
    scripts = files("shoal.coordinator.store").joinpath("migrations", database).iterdir()
    return tuple(
        script.read_text("utf-8") for script in sorted(scripts, key=lambda script: script.name)
    )


def _parse_record(row: tuple[Any, ...]) -> StudyRecord:
    (
        digest,
        manifest,
        opened,
        patience,
        by_invitation,
        seats,
        queries,
        status,
        result,
        reason,
        scope,
    ) = row
    names = None if seats is None else tuple(json.loads(seats))
    return StudyRecord(
        digest,
        manifest,
        opened,
        patience,
        bool(by_invitation),
        names,
        queries,
        status,
        result,
        reason,
        scope,
    )


def _save_result(session: SqlSession, study: int, n_messages: int, result: StepResult) -> None:
    # A holder of the lease that steps a study twice at the same moment must not apply an input
    # twice.
    if session.execute_many(
        "DELETE FROM held WHERE study = ? AND number = ?",
        [(study, n) for n in result.input_numbers],
    ) != len(result.input_numbers):
        raise _InputsConsumedError
    keep = (
        "INSERT INTO state (study, state) VALUES (?, ?) ON CONFLICT (study) DO UPDATE SET "
        "state = excluded.state"
    )
    session.execute(keep, study, result.state)
    session.execute_many(
        "DELETE FROM submission WHERE study = ? AND name = ?",
        [(study, name) for name in result.freed_names],
    )
    session.execute_many(
        "DELETE FROM alarm WHERE study = ? AND at = ?", [(study, at) for at in result.fired_alarms]
    )
    insert_new_rows(session, "alarm", ("study", "at"), [(study, at) for at in result.alarms], "at")
    messages = [
        (study, number, recipient, payload)
        for number, (recipient, payload) in enumerate(result.messages, n_messages + 1)
    ]
    insert_rows(session, "letter", ("study", "number", "recipient", "payload"), messages)
    session.execute(
        "UPDATE standing SET n_letters = ?, has_begun = TRUE WHERE study = ?",
        n_messages + len(messages),
        study,
    )
    count_rejections(session, study, result.rejection_counts.items())
    if result.outcome is not None:
        end_study(session, study, result.outcome)


def _replayed_error() -> RemoteProtocolError:
    return RemoteProtocolError(
        "AUTH-005", "This request was received before.", fix="Sign it again."
    )


class _InputsConsumedError(Exception):
    """An input of a step is not stored any more."""


class SqlStore(Store):
    """A store in an SQL database."""

    row_lock: ClassVar[str] = ""
    """End of a query that locks its rows until the transaction ends."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @abstractmethod
    def _read_transaction(self) -> AbstractContextManager[SqlSession]:
        """Return a transaction for reading; all its queries see the same moment."""

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[SqlSession]:
        """Return a transaction for writing: durable at its end, rolled back after an error."""

    @abstractmethod
    def _clear_disk(self) -> None:
        """Erase deleted data from the disk if the database can."""

    def _after_slice(self) -> None:
        """Do what a transaction of a rewrite leaves to do, while other writers may continue."""
        return

    def ping(self) -> None:
        with self._read_transaction() as session:
            session.fetch_rows("SELECT count(*) FROM secret")

    def keep_secrets(self, offered: CoordinatorSecrets) -> CoordinatorSecrets:
        with self._write_transaction() as session:
            values = (offered.analyst_digest, offered.signing_seed)
            session.execute(
                "INSERT INTO secret (id, analyst_digest, signing_seed) VALUES (1, ?, ?) ON "
                "CONFLICT DO NOTHING",
                *values,
            )
            return CoordinatorSecrets(
                *session.fetch_rows("SELECT analyst_digest, signing_seed FROM secret")[0]
            )

    def publish(self, record: StudyRecord, invitations: Sequence[bytes] = ()) -> bool:
        columns = (
            "digest",
            "manifest",
            "opened",
            "patience",
            "by_invitation",
            "seats",
            "queries",
            "scope",
        )
        seats = None if record.seats is None else json.dumps(record.seats)
        values = (
            record.digest,
            record.manifest,
            record.opened,
            record.phase_timeout,
            record.by_invitation,
            seats,
            record.queries,
            record.scope,
        )
        with self._write_transaction() as session:
            made = insert_new_rows(session, "study", columns, [values], "number")
            for (number,) in made:
                session.execute(
                    "INSERT INTO standing (study, status) VALUES (?, ?)", number, record.status
                )
                insert_rows(
                    session,
                    "invitation",
                    ("study", "digest"),
                    [(number, digest) for digest in sorted(set(invitations))],
                )
        return bool(made)

    def list_studies(self) -> tuple[StudyRecord, ...]:
        with self._read_transaction() as session:
            return tuple(
                _parse_record(row) for row in session.fetch_rows(f"{_STUDY} ORDER BY number")
            )

    def find_study(self, study: str) -> StudyRecord | None:
        with self._read_transaction() as session:
            found = session.fetch_rows(f"{_STUDY} WHERE digest = ?", study)
        return _parse_record(found[0]) if found else None

    def enrol(self, study: str, enrolment: NewEnrolment) -> str:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            is_open = self._check_request(session, number, enrolment)
            outcome = attempt(session, lambda: enrol(session, number, is_open, enrolment))
        if isinstance(outcome, RemoteProtocolError):
            raise outcome
        return outcome

    def check_registration(self, study: str, registration: NewRegistration) -> bytes | None:
        with self._read_transaction() as session:
            number = self._find_number(session, study)
            ((status,),) = session.fetch_rows("SELECT status FROM standing WHERE study = ?", number)
            if session.fetch_rows(
                "SELECT 1 FROM nonce WHERE study = ? AND nonce = ?", number, registration.nonce
            ):
                raise _replayed_error()
            return check_registration(session, number, status == "open", registration)

    def register(self, study: str, registration: NewRegistration) -> tuple[str, bytes]:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            is_open = self._check_request(session, number, registration)
            outcome = attempt(session, lambda: register(session, number, is_open, registration))
        if isinstance(outcome, RemoteProtocolError):
            raise outcome
        return outcome

    def count_members(self, study: str) -> int:
        with self._read_transaction() as session:
            scope = find_scope(session, self._find_number(session, study))
            return 0 if scope is None else count_members(session, scope)

    def list_members(
        self, study: str, after: bytes = b"", most: int = LARGEST_NUMBER
    ) -> tuple[bytes, ...]:
        query = (
            "SELECT member FROM registration WHERE scope = ? AND member > ? ORDER BY member LIMIT ?"
        )
        with self._read_transaction() as session:
            scope = find_scope(session, self._find_number(session, study))
            return tuple(bytes(key) for (key,) in session.fetch_rows(query, scope, after, most))

    def list_submissions(
        self, study: str, after: bytes = b"", most: int = LARGEST_NUMBER
    ) -> tuple[bytes, ...]:
        query = "SELECT name FROM submission WHERE study = ? AND name > ? ORDER BY name LIMIT ?"
        with self._read_transaction() as session:
            return tuple(
                bytes(name)
                for (name,) in session.fetch_rows(
                    query, self._find_number(session, study), after, most
                )
            )

    def list_frozen_submissions(
        self, study: str, number: int, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        with self._read_transaction() as session:
            known = self._find_number(session, study)
            ((n_told,),) = session.fetch_rows("SELECT n_told FROM standing WHERE study = ?", known)
        if n_told < number:
            with self._write_transaction() as session:
                freeze_list(session, known, self._lock_study(session, known, "n_told")[0], number)
        query = (
            "SELECT name FROM submission WHERE study = ? AND is_told AND name > ? ORDER BY "
            "name LIMIT ?"
        )
        with self._read_transaction() as session:
            return tuple(bytes(name) for (name,) in session.fetch_rows(query, known, after, most))

    def count_expected(self, study: str) -> tuple[int, Mapping[int, int]]:
        with self._read_transaction() as session:
            number = self._find_number(session, study)
            if (scope := find_scope(session, number)) is not None:
                return count_members(session, scope), {}
            ((enrolled,),) = session.fetch_rows(
                "SELECT count(*) FROM enrolment WHERE study = ?", number
            )
            return int(enrolled), dict(
                session.fetch_rows("SELECT phase, n FROM expected WHERE study = ?", number)
            )

    def find_name(self, study: str, key: bytes) -> str | None:
        query = "SELECT name FROM enrolment WHERE study = ? AND key_digest = ? AND NOT has_left"
        with self._read_transaction() as session:
            found = session.fetch_rows(query, self._find_number(session, study), hash_key(key))
        return str(found[0][0]) if found else None

    def leave(self, study: str, key: bytes, nonce: bytes, expires: int) -> bool:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            self._lock_study(session, number, "status")
            if not use_nonces(session, number, [nonce], expires):
                return False
            session.execute(
                "UPDATE enrolment SET has_left = TRUE WHERE study = ? AND key_digest = ?",
                number,
                hash_key(key),
            )
        return True

    def use_names(
        self, study: str, names: Sequence[SubmissionName]
    ) -> tuple[SubmissionOutcome, ...]:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            (status,) = self._lock_study(session, number, "status")
            return (
                tuple(use_admitted_names(session, number, names))
                if status == "open"
                else tuple("over" for _ in names)
            )

    def accept(
        self, study: str, submissions: Sequence[Submission], expires: int
    ) -> tuple[SubmissionOutcome, ...]:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            (status,) = self._lock_study(session, number, "status")
            if status != "open":
                return tuple("over" for _ in submissions)
            return tuple(accept_submissions(session, number, submissions, expires))

    def count_rejections(self, study: str, code: str, n: int = 1) -> None:
        with self._write_transaction() as session:
            count_rejections(session, self._find_number(session, study), {code: n}.items())

    def list_due(self, now: int) -> tuple[str, ...]:
        query = """
            SELECT digest FROM study JOIN standing ON standing.study = number
            WHERE status = 'open' AND (
                NOT has_begun OR EXISTS (SELECT 1 FROM held WHERE held.study = study.number)
                OR EXISTS (SELECT 1 FROM alarm WHERE alarm.study = study.number AND at <= ?)
            ) ORDER BY number
        """
        with self._read_transaction() as session:
            return tuple(digest for (digest,) in session.fetch_rows(query, now))

    def lease(self, study: str, holder: str, now: int, until: int) -> int | None:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            status, held_by, held_until, term = self._lock_study(
                session, number, "status, holder, until, term"
            )
            # A lease that would last more than twice the usual time was taken before the clock was
            # set back, and its holder may be dead.
            is_held = held_by not in (None, holder) and now < held_until <= 2 * until - now
            if status != "open" or is_held:
                return None
            term += held_by != holder
            session.execute(
                "UPDATE standing SET holder = ?, until = ?, term = ? WHERE study = ?",
                holder,
                until,
                term,
                number,
            )
        return int(term)

    def renew(self, study: str, holder: str, term: int, until: int) -> bool:
        put = "UPDATE standing SET until = ? WHERE study = ? AND holder = ? AND term = ?"
        with self._write_transaction() as session:
            return session.execute(put, until, self._find_number(session, study), holder, term) == 1

    def release(self, study: str, holder: str) -> None:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            session.execute(
                "UPDATE standing SET holder = NULL WHERE study = ? AND holder = ?", number, holder
            )

    def load(self, study: str, now: int, most: int) -> StudySnapshot:
        with self._read_transaction() as session:
            number = self._find_number(session, study)
            state = session.fetch_rows("SELECT state FROM state WHERE study = ?", number)
            inputs = session.fetch_rows(
                "SELECT number, sender, payload, name FROM held WHERE study = ? ORDER BY number "
                "LIMIT ?",
                number,
                most,
            )
            alarms = session.fetch_rows(
                "SELECT at FROM alarm WHERE study = ? AND at <= ? ORDER BY at", number, now
            )
        return StudySnapshot(
            state[0][0] if state else None,
            tuple(PendingInput(*row) for row in inputs),
            tuple(at for (at,) in alarms),
        )

    def save(self, study: str, term: int, result: StepResult) -> bool:
        try:
            with self._write_transaction() as session:
                number = self._find_number(session, study)
                status, current, n_messages = self._lock_study(
                    session, number, "status, term, n_letters"
                )
                if status != "open" or current != term:
                    return False
                _save_result(session, number, n_messages, result)
        except _InputsConsumedError:
            return False
        return True

    def end(self, study: str, outcome: StudyOutcome) -> bool:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            (status,) = self._lock_study(session, number, "status")
            if status == "open":
                end_study(session, number, outcome)
        return bool(status == "open")

    def find_last_number(self, study: str) -> int:
        with self._read_transaction() as session:
            return int(
                session.fetch_rows(
                    "SELECT n_letters FROM standing WHERE study = ?",
                    self._find_number(session, study),
                )[0][0]
            )

    def list_messages(
        self, study: str, name: str | None, after: int, most_bytes: int
    ) -> tuple[QueuedMessage, ...]:
        query = """
            SELECT number, payload FROM (
                SELECT number, payload, sum(length(payload)) OVER (ORDER BY number) AS size
                FROM letter WHERE study = ? AND number > ? AND (recipient IS NULL OR recipient = ?)
            ) AS later WHERE size <= ? OR size = length(payload) ORDER BY number
        """
        with self._read_transaction() as session:
            found = session.fetch_rows(
                query,
                self._find_number(session, study),
                min(after, LARGEST_NUMBER),
                name,
                most_bytes,
            )
        return tuple(QueuedMessage(number=number, payload=payload) for number, payload in found)

    def acknowledge(self, study: str, name: str, upto: int, nonce: bytes, expires: int) -> bool:
        with self._write_transaction() as session:
            number = self._find_number(session, study)
            if not use_nonces(session, number, [nonce], expires):
                return False
            session.execute(
                "DELETE FROM letter WHERE study = ? AND number <= ? AND recipient = ?",
                number,
                min(upto, LARGEST_NUMBER),
                name,
            )
        return True

    def count_totals(self, study: str) -> StudyTotals:
        with self._read_transaction() as session:
            number = self._find_number(session, study)
            if (scope := find_scope(session, number)) is not None:
                enrolled = count_members(session, scope)
            else:
                ((enrolled,),) = session.fetch_rows(
                    "SELECT count(*) FROM enrolment WHERE study = ? AND NOT has_left", number
                )
            ((accepted,),) = session.fetch_rows(
                "SELECT n_accepted FROM standing WHERE study = ?", number
            )
            ((waiting,),) = session.fetch_rows("SELECT count(*) FROM held WHERE study = ?", number)
            refused = session.fetch_rows(
                "SELECT code, n FROM refusal WHERE study = ? ORDER BY code", number
            )
        return StudyTotals(enrolled, accepted, waiting, dict(refused))

    def tidy(self, now: int, wait: Callable[[float], bool] = do_not_wait) -> None:
        query = """
            SELECT study FROM standing WHERE n_unsorted > 0
            OR EXISTS (SELECT 1 FROM nonce WHERE nonce.study = standing.study AND expires <= ?)
        """
        with self._read_transaction() as session:
            untidy = session.fetch_rows(query, now)
        for (number,) in untidy:
            with self._write_transaction() as session:
                session.execute("DELETE FROM nonce WHERE study = ? AND expires <= ?", number, now)
            if not self._rewrite_sorted(number, wait):
                break
        self._clear_disk()

    def _rewrite_sorted(self, number: int, wait: Callable[[float], bool]) -> bool:
        """Rewrite the rows of a study's participants; return False if ``wait`` ended it early."""
        with self._read_transaction() as session:
            ((n_unsorted,),) = session.fetch_rows(
                "SELECT n_unsorted FROM standing WHERE study = ?", number
            )
            row_sets = list_row_sets(number, find_scope(session, number))
        position: RewritePosition | None = RewritePosition() if n_unsorted else None
        while position is not None:
            begun = monotonic()
            with self._write_transaction() as session:
                self._lock_study(session, number, "status")
                position = rewrite_slice(session, row_sets, position)
                if position is None:
                    # Participants who came during the rewrite are left for the next one.
                    session.execute(
                        "UPDATE standing SET n_unsorted = n_unsorted - ? WHERE study = ?",
                        n_unsorted,
                        number,
                    )
            took = monotonic() - begun
            self._after_slice()
            if position is not None and wait(took):
                return False
        return True

    def _check_request(
        self, session: SqlSession, number: int, request: NewEnrolment | NewRegistration
    ) -> bool:
        """Lock a study and use the nonce of a request; return whether the study is open.

        Raise ``AUTH-005`` if the nonce was used.
        """
        (status,) = self._lock_study(session, number, "status")
        nonce = request.nonce
        if nonce is not None and not use_nonces(session, number, [nonce], request.expires):
            raise _replayed_error()
        return bool(status == "open")

    def _lock_study(self, session: SqlSession, number: int, columns: str) -> tuple[Any, ...]:
        """Return columns of a study's row in ``standing``, locked until the transaction ends."""
        return session.fetch_rows(
            f"SELECT {columns} FROM standing WHERE study = ?{self.row_lock}", number
        )[0]

    def _find_number(self, session: SqlSession, study: str) -> int:
        """Return the number of a study in the tables; it never changes."""
        if study not in self._numbers:
            found = session.fetch_rows("SELECT number FROM study WHERE digest = ?", study)
            if not found:
                raise RemoteProtocolError("HOST-001", "The coordinator does not have this study.")
            self._numbers[study] = found[0][0]
        return self._numbers[study]
