"""Who enrols gets a name, and gives a ticket that nothing links to it, or a commitment for which a credential is issued."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shoal.coordinator.store.statements import Session, put, put_new, scope_of
from shoal.errors import RemoteProtocolError

_EXPECT = "INSERT INTO expected (study, phase, n) VALUES (?, ?, ?) ON CONFLICT (study, phase) DO UPDATE SET n = expected.n + excluded.n"

_COME_BACK = """
    INSERT INTO enrolment (study, key_digest, name) VALUES (?, ?, ?) ON CONFLICT (study, key_digest) DO UPDATE SET has_left = FALSE
"""


def enrol(
    session: Session,
    study: int,
    is_open: bool,
    key_digest: bytes,
    name: str | None,
    ticket: bytes | None,
    invitation: bytes | None,
    answers: Sequence[int],
) -> str:
    """Enrol a key under a name, inside a transaction that has locked the study's standing.

    Notes
    -----
    Whoever has left and comes back gets the old name and needs no second invitation. The row stays for that: else each return would take
    another seat, or issue another ticket.
    """
    known = session.rows("SELECT name, has_left FROM enrolment WHERE study = ? AND key_digest = ?", study, key_digest)
    if not is_open and (not known or known[0][1]):
        raise RemoteProtocolError("ENROL-001", "The study has ended.")
    if known:
        if ticket is not None and is_open and not session.rows("SELECT 1 FROM ticket WHERE study = ? AND digest = ?", study, ticket):
            raise _other_ticket()
        session.change("UPDATE enrolment SET has_left = FALSE WHERE study = ? AND key_digest = ?", study, key_digest)
        return str(known[0][0])
    ((by_invitation, seats),) = session.rows("SELECT by_invitation, seats FROM study WHERE number = ?", study)
    if by_invitation:
        _use_up(session, "study = ?", study, invitation)
    if name is None:
        name = key_digest.hex()[:32] if seats is None else _next_seat(session, study, json.loads(seats))
    if ticket is not None:
        if not put_new(session, "ticket", ("study", "digest"), [(study, ticket)], "digest"):
            raise _other_ticket()
        session.change("UPDATE standing SET is_mixed = FALSE WHERE study = ?", study)
    put(session, "enrolment", ("study", "key_digest", "name"), [(study, key_digest, name)])
    for phase, n in enumerate(answers):
        if n:
            session.change(_EXPECT, study, phase, n)
    if answers:
        # Whether everyone has answered is another question now: wake at once, by an alarm that nobody else sets or takes.
        ((n_enrolled,),) = session.rows("SELECT count(*) FROM enrolment WHERE study = ?", study)
        put(session, "alarm", ("study", "at"), [(study, n_enrolled)])
    return name


def register(
    session: Session, study: int, is_open: bool, key: bytes, key_digest: bytes, commitment: bytes, issued: bytes, invitation: bytes | None
) -> tuple[str, bytes]:
    """Register a key in the study's scope, inside a transaction that has locked the study's standing; its name, and what is issued to it.

    Notes
    -----
    Another study of the scope may register the same key meanwhile: who comes second finds what the first has left.
    """
    scope, name = _scope(session, study), key_digest.hex()[:32]
    known = issued_to(session, scope, key, commitment)
    if known is None:
        if not is_open:
            raise RemoteProtocolError("ENROL-001", "The study has ended.")
        row = (scope, key, commitment, issued)
        if put_new(session, "registration", ("scope", "member", "commitment", "issued"), [row], "member"):
            ((by_invitation,),) = session.rows("SELECT by_invitation FROM study WHERE number = ?", study)
            if by_invitation:
                _use_up(session, "study IN (SELECT number FROM study WHERE scope = ?)", scope, invitation)
            session.change("UPDATE standing SET is_mixed = FALSE WHERE study = ?", study)
        known = issued_to(session, scope, key, commitment)
        assert known is not None, "it was put there"
    if is_open:
        session.change(_COME_BACK, study, key_digest, name)
    return name, known


def issued_to(session: Session, scope: bytes, key: bytes, commitment: bytes) -> bytes | None:
    """What was issued to a key of a scope for a commitment; ``ENROL-002`` where it was for another one."""
    found = session.rows("SELECT commitment, issued FROM registration WHERE scope = ? AND member = ?", scope, key)
    if not found:
        return None
    if bytes(found[0][0]) != commitment:
        raise RemoteProtocolError(
            "ENROL-002",
            "This participant has registered with another commitment.",
            why="Each has one credential, also after leaving: with two, one person could count twice.",
            fix="Send the first one again: it is in the participant's own files.",
        )
    return bytes(found[0][1])


def _scope(session: Session, study: int) -> bytes:
    scope = scope_of(session, study)
    assert scope is not None, "only studies with tokens have registrations"
    return scope


def _use_up(session: Session, where: str, whose: int | bytes, invitation: bytes | None) -> None:
    """Use up an invitation to a study, or to one of those of a scope."""
    if invitation is None or not session.change(f"DELETE FROM invitation WHERE {where} AND digest = ?", whose, invitation):
        raise RemoteProtocolError(
            "ENROL-001",
            "The study is by invitation, and this is none that can still be used.",
            why="Each code admits one participant.",
            fix="Ask the analyst for a code of your own.",
        )


def _next_seat(session: Session, study: int, seats: list[str]) -> str:
    ((n_taken,),) = session.rows("SELECT count(*) FROM enrolment WHERE study = ?", study)
    if n_taken >= len(seats):
        raise RemoteProtocolError("ENROL-001", f"All {len(seats)} seats of the study are taken.")
    return seats[int(n_taken)]


def _other_ticket() -> RemoteProtocolError:
    return RemoteProtocolError(
        "ENROL-002",
        "The ticket is not the one that this participant enrolled with, or somebody else has it.",
        fix="Send the first one again: it is in the participant's own files.",
    )
