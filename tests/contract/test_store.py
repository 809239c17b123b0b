"""One suite for both stores of a coordinator, SQLite and a real PostgreSQL.

It checks the contract of a store, with concurrent calls and across crashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, TypeVar

import psycopg
import pytest

from shoal.coordinator.store import open_store, rewriting
from shoal.coordinator.store.base import (
    CoordinatorSecrets,
    NewEnrolment,
    NewRegistration,
    StepResult,
    Store,
    StudyOutcome,
    StudyRecord,
    StudySnapshot,
    StudyTotals,
    Submission,
    SubmissionName,
)
from shoal.coordinator.store.statements import EMPTIED_TABLES
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.study.delivery import compute_study_scope
from tests.support import store_child
from tests.support.participants import PROCESSES, child
from tests.support.servers import Postgres, postgres
from tests.support.store_child import FAR, HOSTED, STUDY, accept, answer, digest, fold, read_state

PROCESSES.set_forkserver_preload(
    ["shoal.coordinator.store.sqlite", "shoal.coordinator.store.postgres"]
)

T = TypeVar("T")
OTHER = "6" * 64
MINUTE = 60_000


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'store.db'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as made:
        made.publish(HOSTED)
        yield made


@pytest.fixture
def other(store: Store, url: str) -> Iterator[Store]:
    """Yield the same store, as another process sees it."""
    with open_store(url) as made:
        yield made


def run_concurrently(*calls: Callable[[], T]) -> list[T | str]:
    """Return the results of calls in threads that begin at the same moment.

    If a call raises an error, its result is the error code.
    """
    barrier, results = Barrier(len(calls)), {}

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = calls[i]()
        except RemoteProtocolError as error:
            results[i] = error.code

    threads = [Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[i] for i in range(len(calls))]


def save(store: Store, step_result: StepResult, holder: str = "a") -> bool:
    term = store.lease(STUDY, holder, 0, 10)
    assert term is not None
    return store.save(STUDY, term, step_result)


def is_new(store: Store, nonce: bytes, expires: int = FAR) -> bool:
    """Use a nonce, with a request that does nothing else."""
    return store.acknowledge(STUDY, "nobody", 0, nonce, expires)


def is_issued(store: Store, ticket: str, study: str = STUDY) -> bool:
    return store.use_names(study, [SubmissionName(b"a name", b"a digest", digest(ticket))]) != (
        "unissued",
    )


def enrol(
    store: Store,
    key: str,
    *,
    name: str | None = None,
    ticket: str | None = None,
    invitation: str | None = None,
) -> str:
    return store.enrol(
        STUDY,
        NewEnrolment(
            key.encode(),
            name,
            None if ticket is None else digest(ticket),
            None if invitation is None else digest(invitation),
        ),
    )


def test_store_answers_ping(store: Store) -> None:
    store.ping()


def test_store_keeps_first_secrets(store: Store, other: Store) -> None:
    first = CoordinatorSecrets(b"\x00" * 32, b"\xff" * 32)
    assert store.keep_secrets(first) == first
    assert other.keep_secrets(CoordinatorSecrets(b"b" * 32, b"c" * 32)) == first


def test_store_returns_study_as_published(store: Store, other: Store) -> None:
    second = StudyRecord(
        OTHER,
        bytes(range(256)),
        5,
        6,
        by_invitation=True,
        seats=("holder-0", "größe"),
        queries=b"\x00q",
    )
    assert not store.publish(HOSTED)
    assert store.publish(second, [digest("code")])
    assert not other.publish(second)
    assert other.list_studies() == (HOSTED, second)
    assert other.find_study(OTHER) == second
    assert other.find_study("7" * 64) is None


def test_store_reports_unknown_study(store: Store) -> None:
    for call in (
        lambda: store.find_last_number(OTHER),
        lambda: store.accept(OTHER, [answer(1)], FAR),
        lambda: store.count_rejections(OTHER, "MSG-001"),
    ):
        with pytest.raises(RemoteProtocolError, match="HOST-001"):
            call()


def test_repeated_enrolment_does_not_undo_leave(store: Store, other: Store) -> None:
    def request(nonce: bytes) -> str:
        return other.enrol(STUDY, NewEnrolment(b"anna", nonce=nonce, expires=FAR))

    name = request(b"first")
    assert store.leave(STUDY, b"anna", b"second", FAR)
    with pytest.raises(RemoteProtocolError, match="AUTH-005"):
        request(b"first")
    assert store.find_name(STUDY, b"anna") is None
    assert request(b"third") == name == store.find_name(STUDY, b"anna")


def test_enrolled_key_has_one_name(store: Store, other: Store) -> None:
    name = enrol(store, "anna")
    assert enrol(other, "anna") == name
    assert store.find_name(STUDY, b"anna") == name
    assert enrol(store, "bert") != name
    assert enrol(store, "clara", name="hospital") == "hospital"
    assert store.find_name(STUDY, b"clara") == "hospital"
    assert store.find_name(STUDY, b"dora") is None
    assert store.count_totals(STUDY).enrolled == 3


def test_seats_are_assigned_in_order_and_stay_assigned(url: str) -> None:
    with open_store(url) as store:
        store.publish(StudyRecord(STUDY, b"m", 0, 1, seats=("holder-0", "holder-1", "holder-2")))
        assert [enrol(store, key) for key in "abab"] == [
            "holder-0",
            "holder-1",
            "holder-0",
            "holder-1",
        ]
        assert store.leave(STUDY, b"a", b"nonce", FAR)
        assert store.find_name(STUDY, b"a") is None
        assert enrol(store, "c") == "holder-2"
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*3 seats"):
            enrol(store, "d")
        assert enrol(store, "a") == "holder-0"
        assert store.find_name(STUDY, b"a") == "holder-0"
        assert store.count_totals(STUDY).enrolled == 3


def test_leave_rejects_replayed_request(store: Store) -> None:
    enrol(store, "anna")
    assert store.leave(STUDY, b"anna", b"first", FAR)
    enrol(store, "anna")
    assert not store.leave(STUDY, b"anna", b"first", FAR)
    assert store.find_name(STUDY, b"anna") is not None
    assert store.leave(STUDY, b"anna", b"second", FAR)
    assert store.count_totals(STUDY).enrolled == 0


def test_invitation_admits_one_participant(url: str) -> None:
    with open_store(url) as store:
        store.publish(
            StudyRecord(STUDY, b"m", 0, 1, by_invitation=True, seats=("one",)),
            [digest("x"), digest("y"), digest("x")],
        )
        for code in (None, "z"):
            with pytest.raises(RemoteProtocolError, match="ENROL-001"):
                enrol(store, "anna", invitation=code)
        assert enrol(store, "anna", invitation="x") == "one"
        assert enrol(store, "anna", invitation="x") == "one"
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*invitation"):
            enrol(store, "bert", invitation="x")
        # If there is no free seat, the invitation stays valid.
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*seats"):
                enrol(store, "bert", invitation="y")
        assert store.leave(STUDY, b"anna", b"nonce", FAR)
        assert enrol(store, "anna") == "one"


def test_ticket_is_issued_once_and_never_changed(store: Store) -> None:
    assert not is_issued(store, "t")
    name = enrol(store, "anna", ticket="t")
    assert is_issued(store, "t")
    assert enrol(store, "anna", ticket="t") == name
    for key, ticket in (("anna", "other"), ("bert", "t")):
        with pytest.raises(RemoteProtocolError, match="ENROL-002"):
            enrol(store, key, ticket=ticket)
    assert store.find_name(STUDY, b"bert") is None
    assert not is_issued(store, "other")
    store.leave(STUDY, b"anna", b"nonce", FAR)
    with pytest.raises(RemoteProtocolError, match="ENROL-002"):
        enrol(store, "anna", ticket="other")
    assert store.find_name(STUDY, b"anna") is None
    assert enrol(store, "anna", ticket="t") == name
    assert is_issued(store, "t")


def test_answers_are_expected_from_all_enrolled(store: Store, other: Store) -> None:
    save(store, StepResult(b"state"))
    assert store.count_expected(STUDY) == (0, {}) and store.list_due(1000) == ()
    for key, answers in ((b"a", (0, 2)), (b"b", (1, 0)), (b"a", (0, 2)), (b"c", (0, 3))):
        store.enrol(STUDY, NewEnrolment(key, ticket=digest(key.hex()), answers=answers))
    assert other.count_expected(STUDY) == (3, {0: 1, 1: 5})
    assert other.list_due(1000) == (STUDY,), "an enrolment makes the study due"
    alarms = other.load(STUDY, 1000, 10).alarms
    store.enrol(STUDY, NewEnrolment(b"d", ticket=digest("d"), answers=(1, 0)))
    save(store, StepResult(b"state", fired_alarms=alarms))
    assert other.list_due(1000) == (STUDY,), "and is not forgotten by a step that began before"


SCOPE = digest("a scope")
FIRST, SECOND = (
    StudyRecord(digest("first").hex(), b"m", 0, 1, scope=SCOPE),
    StudyRecord(digest("second").hex(), b"m", 0, 1, scope=SCOPE),
)
ALONE = StudyRecord(digest("alone").hex(), b"m", 0, 1, scope=digest("another scope"))


def register(
    store: Store,
    key: str,
    *,
    study: StudyRecord = FIRST,
    commitment: str | None = None,
    issued: bytes = b"signed",
    **how: Any,
) -> bytes:
    """Register a key and return the issued credential."""
    name, found = store.register(
        study.digest, NewRegistration(key.encode(), digest(commitment or key), issued, **how)
    )
    assert name == hashlib.sha256(key.encode()).hexdigest()[:32]
    return found


def check(
    store: Store, key: str, *, study: StudyRecord = FIRST, commitment: str | None = None, **how: Any
) -> bytes | None:
    """Check a registration before a credential is issued."""
    return store.check_registration(
        study.digest, NewRegistration(key.encode(), digest(commitment or key), **how)
    )


@pytest.fixture
def epoch(store: Store) -> Store:
    """Return a store with two studies of one scope, and one of another."""
    for hosted in (FIRST, SECOND, ALONE):
        store.publish(hosted)
    return store


def test_store_returns_scope_as_published(epoch: Store, other: Store) -> None:
    assert other.list_studies() == (HOSTED, FIRST, SECOND, ALONE)


def test_repeated_registration_returns_same_credential(epoch: Store, other: Store) -> None:
    assert check(epoch, "anna") is None
    assert register(epoch, "anna") == b"signed"
    assert register(other, "anna", issued=b"signed again") == b"signed"
    assert register(other, "anna", study=SECOND, issued=b"and in another study") == b"signed"
    assert check(other, "anna", study=SECOND) == b"signed"
    # Scopes are independent.
    assert check(other, "anna", study=ALONE) is None
    assert register(other, "anna", study=ALONE, commitment="d", issued=b"elsewhere") == b"elsewhere"


@pytest.mark.parametrize("study", [FIRST, SECOND])
def test_registration_rejects_other_commitment(
    epoch: Store, other: Store, study: StudyRecord
) -> None:
    register(epoch, "anna")
    assert epoch.leave(FIRST.digest, b"anna", b"a nonce", FAR)
    assert epoch.find_name(FIRST.digest, b"anna") is None
    for call in (
        lambda: register(other, "anna", study=study, commitment="d"),
        lambda: check(other, "anna", study=study, commitment="d"),
    ):
        with pytest.raises(RemoteProtocolError, match="ENROL-002"):
            call()
    assert epoch.list_members(FIRST.digest) == (b"anna",)
    assert (
        register(other, "anna") == b"signed" and epoch.find_name(FIRST.digest, b"anna") is not None
    )


def test_members_are_listed_by_scope(epoch: Store, other: Store) -> None:
    for key in ("zoe", "anna", "bert"):
        register(epoch, key, commitment=key)
    register(epoch, "carl", study=SECOND)
    register(epoch, "dora", study=ALONE)
    for study in (FIRST, SECOND):
        assert other.list_members(study.digest) == (b"anna", b"bert", b"carl", b"zoe")
        assert (
            other.count_expected(study.digest) == (4, {})
            and other.count_totals(study.digest).enrolled == 4
        )
    assert other.list_members(ALONE.digest) == (b"dora",) and other.list_members(STUDY) == ()
    # A member of the scope is enrolled in the studies that it asked for.
    assert other.find_name(FIRST.digest, b"carl") is None


def test_registration_needs_open_study_and_credential_stays(epoch: Store, other: Store) -> None:
    register(epoch, "anna")
    epoch.end(FIRST.digest, StudyOutcome("closed"))
    assert register(other, "anna") == b"signed"
    with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*ended"):
        register(other, "bert")
    assert register(other, "bert", study=SECOND) == b"signed" and other.list_members(
        FIRST.digest
    ) == (b"anna", b"bert")


def test_invitation_registers_one_member(store: Store, other: Store) -> None:
    store.publish(replace(FIRST, by_invitation=True), [digest(code) for code in "xz"])
    store.publish(replace(SECOND, by_invitation=True))
    store.publish(replace(ALONE, by_invitation=True), [digest("alone")])

    def register_invited(key: bytes, study: StudyRecord, code: str | None) -> bytes:
        return other.register(
            study.digest,
            NewRegistration(
                key, digest(key.hex()), b"signed " + key, None if code is None else digest(code)
            ),
        )[1]

    for code in (None, "y"):
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            register_invited(b"anna", FIRST, code)
    assert store.list_members(FIRST.digest) == (), "what was refused has left nothing"
    assert register_invited(b"anna", FIRST, "x") == b"signed anna"
    assert (
        register_invited(b"anna", FIRST, None)
        == register_invited(b"anna", SECOND, None)
        == b"signed anna"
    ), "a member needs no second one"
    # A code is valid in all studies of the scope, once, and in no other scope.
    for study, code in ((FIRST, "x"), (SECOND, "x"), (SECOND, "alone"), (ALONE, "z")):
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            register_invited(b"bert", study, code)
    # It is also valid if its first study has ended: the epoch continues.
    store.end(FIRST.digest, StudyOutcome("closed"))
    assert register_invited(b"bert", SECOND, "z") == b"signed bert"
    with pytest.raises(RemoteProtocolError, match="ENROL-001"):
        register_invited(b"carl", SECOND, "z")


def test_invitations_to_study_without_epoch_end_with_study(store: Store) -> None:
    alone = StudyRecord(
        digest("alone").hex(),
        b"m",
        0,
        1,
        by_invitation=True,
        scope=compute_study_scope(digest("alone")),
    )
    second = StudyRecord(
        digest("by another").hex(), b"m", 0, 1, by_invitation=True, scope=alone.scope
    )
    for hosted in (alone, second):
        store.publish(hosted, [digest("x")] if hosted is alone else ())
    store.end(alone.digest, StudyOutcome("closed"))
    with pytest.raises(RemoteProtocolError, match="ENROL-001"):
        store.register(second.digest, NewRegistration(b"anna", digest("c"), b"signed", digest("x")))


def test_invitation_code_is_used_once_across_studies(store: Store, other: Store) -> None:
    store.publish(replace(FIRST, by_invitation=True), [digest("x")])
    store.publish(replace(SECOND, by_invitation=True))

    def use_code(each: Store, study: StudyRecord, key: bytes) -> str:
        try:
            each.register(
                study.digest, NewRegistration(key, digest(key.hex()), b"signed", digest("x"))
            )
        except RemoteProtocolError as error:
            return error.code
        return "in"

    outcomes = run_concurrently(
        *[
            lambda i=i: use_code((store, other)[i % 2], (FIRST, SECOND)[i % 2], b"key %d" % i)
            for i in range(6)
        ]
    )
    assert (
        sorted(outcomes) == ["ENROL-001"] * 5 + ["in"]
        and len(other.list_members(FIRST.digest)) == 1
    )


def test_members_and_submissions_are_listed_in_pages(epoch: Store, other: Store) -> None:
    for key in ("anna", "bert", "carl"):
        register(epoch, key, commitment=key)
    assert other.list_members(FIRST.digest, most=2) == (b"anna", b"bert") and other.list_members(
        FIRST.digest, b"bert", 2
    ) == (b"carl",)
    names = sorted(digest(i) for i in range(3))
    epoch.accept(FIRST.digest, [Submission("", b"answer", name, name) for name in names], FAR)
    assert other.list_submissions(FIRST.digest, most=2) == tuple(
        names[:2]
    ) and other.list_submissions(FIRST.digest, names[1], 2) == (names[2],)


def test_frozen_list_is_constant_until_next_version(epoch: Store, other: Store) -> None:
    names = [digest(i) for i in range(4)]

    def arrive(i: int) -> None:
        epoch.accept(FIRST.digest, [Submission("", b"answer", names[i], names[i])], FAR)

    arrive(0)
    for store in (epoch, other):
        assert store.list_frozen_submissions(FIRST.digest, 1, b"", 10) == (names[0],)
    arrive(1)
    assert other.list_frozen_submissions(FIRST.digest, 1, b"", 10) == (names[0],)
    assert other.list_frozen_submissions(FIRST.digest, 2, b"", 10) == tuple(sorted(names[:2]))
    arrive(2)
    # A late request for the first list gets the second.
    assert (
        epoch.list_frozen_submissions(FIRST.digest, 1, b"", 10)
        == epoch.list_frozen_submissions(FIRST.digest, 2, b"", 10)
        == tuple(sorted(names[:2]))
    )
    assert epoch.list_frozen_submissions(FIRST.digest, 2, min(names[:2]), 10) == (max(names[:2]),)
    epoch.end(FIRST.digest, StudyOutcome("closed"))
    assert other.list_submissions(FIRST.digest) == tuple(sorted(names[:3]))


def test_repeated_registration_does_not_undo_leave(epoch: Store) -> None:
    register(epoch, "anna", nonce=b"1", expires=FAR)
    assert epoch.leave(FIRST.digest, b"anna", b"2", FAR)
    with pytest.raises(RemoteProtocolError, match="AUTH-005"):
        register(epoch, "anna", nonce=b"1", expires=FAR)
    assert epoch.find_name(FIRST.digest, b"anna") is None


def test_commitment_registers_one_key(epoch: Store, other: Store) -> None:
    register(epoch, "anna", commitment="c")
    for study in (FIRST, SECOND):
        for call in (register, check):
            with pytest.raises(RemoteProtocolError, match=r"ENROL-002.*[Aa]nother participant"):
                call(other, "bert", study=study, commitment="c")
    assert other.list_members(FIRST.digest) == (b"anna",) and other.count_members(FIRST.digest) == 1
    assert register(other, "bert", study=ALONE, commitment="c") == b"signed"

    def use(each: Store, study: StudyRecord, key: str) -> bool:
        try:
            return bool(register(each, key, study=study, commitment="d"))
        except RemoteProtocolError:
            return False

    outcomes = run_concurrently(
        *[
            lambda i=i: use((epoch, other)[i % 2], (FIRST, SECOND)[i % 2], f"key {i}")
            for i in range(6)
        ]
    )
    assert sum(outcomes) == 1 and epoch.count_members(SECOND.digest) == 2


def test_registration_stops_at_capacity_of_scope(epoch: Store, other: Store) -> None:
    for i in range(5):
        register((epoch, other)[i % 2], f"{i}", study=(FIRST, SECOND)[i % 2], capacity=5)
    for call in (register, check):
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*has 5 members"):
            call(other, "one more", study=SECOND, capacity=5)
    assert len(epoch.list_members(FIRST.digest)) == epoch.count_members(FIRST.digest) == 5
    # A member is still answered, and a larger study of the scope adds to the capacity.
    assert register(other, "0", capacity=5) == check(epoch, "0", capacity=5) == b"signed"
    assert register(epoch, "one more", capacity=6) == b"signed" and epoch.count_members(STUDY) == 0


def test_nonce_of_rejected_request_is_used_up(epoch: Store, other: Store) -> None:
    how = {"nonce": b"1", "expires": FAR}
    with pytest.raises(RemoteProtocolError, match="ENROL-001"):
        register(epoch, "anna", capacity=0, **how)
    for call in (register, check):
        with pytest.raises(RemoteProtocolError, match="AUTH-005"):
            call(other, "anna", **how)
    assert other.list_members(FIRST.digest) == () and register(other, "anna") == b"signed"
    epoch.end(STUDY, StudyOutcome("closed"))
    for code in ("ENROL-001", "AUTH-005"):
        with pytest.raises(RemoteProtocolError, match=code):
            other.enrol(STUDY, NewEnrolment(b"anna", nonce=b"2", expires=FAR))


def test_one_of_concurrent_registrations_counts(epoch: Store, other: Store) -> None:
    pairs = [(each, study) for each in (epoch, other) for study in (FIRST, SECOND)]
    same = run_concurrently(
        *[
            lambda e=e, s=s, i=i: register(e, "anna", study=s, issued=bytes([i]))
            for i, (e, s) in enumerate(pairs)
        ]
    )
    assert len(set(same)) == 1 and same[0] in [bytes([i]) for i in range(4)]
    others = run_concurrently(
        *[
            lambda e=e, s=s, i=i: register(e, "bert", study=s, commitment=str(i))
            for i, (e, s) in enumerate(pairs)
        ]
    )
    assert sorted(map(str, others)) == ["ENROL-002"] * 3 + [str(b"signed")]


def test_names_of_token_packets_stay_after_end_of_study(epoch: Store, other: Store) -> None:
    named = [Submission("", b"packet", digest(i), digest("bytes")) for i in range(5)]
    for hosted in (HOSTED, FIRST):
        assert epoch.accept(hosted.digest, named, FAR) == ("accepted",) * 5
        assert other.list_submissions(hosted.digest) == tuple(sorted(digest(i) for i in range(5)))
        epoch.end(hosted.digest, StudyOutcome("closed"))
    assert other.list_submissions(HOSTED.digest) == ()
    assert (
        other.list_submissions(FIRST.digest) == tuple(sorted(digest(i) for i in range(5)))
        and other.list_submissions(SECOND.digest) == ()
    )


def test_rejected_submission_is_not_listed(epoch: Store) -> None:
    epoch.accept(
        FIRST.digest, [Submission("", b"packet", digest(i), digest("bytes")) for i in range(2)], FAR
    )
    held, term = epoch.load(FIRST.digest, 0, 10).inputs, epoch.lease(FIRST.digest, "a", 0, 10)
    assert term is not None
    assert epoch.save(
        FIRST.digest,
        term,
        StepResult(
            b"state", input_numbers=tuple(one.number for one in held), freed_names=(digest(0),)
        ),
    )
    assert epoch.list_submissions(FIRST.digest) == (digest(1),)


def test_pending_inputs_are_late_if_study_ends(store: Store) -> None:
    store.accept(STUDY, [answer(1), answer(2)], FAR)
    held = store.load(STUDY, 0, 1).inputs
    save(
        store,
        StepResult(b"state", input_numbers=(held[0].number,), outcome=StudyOutcome("done", b"{}")),
    )
    assert store.count_totals(STUDY) == StudyTotals(0, 2, 0, {"HOST-002": 1})


def test_use_names_records_names_of_updates_that_are_not_stored(store: Store, other: Store) -> None:
    assert store.use_names(STUDY, [SubmissionName(b"n", b"d")]) == ("accepted",)
    assert other.use_names(STUDY, [SubmissionName(b"n", b"d")]) == ("repeated",)
    assert other.use_names(STUDY, [SubmissionName(b"n", b"e")]) == ("conflict",)
    assert store.use_names(
        STUDY,
        [
            SubmissionName(b"m", b"d"),
            SubmissionName(b"n", b"d"),
            SubmissionName(b"m", b"d"),
            SubmissionName(b"m", b"e"),
        ],
    ) == (
        "accepted",
        "repeated",
        "repeated",
        "conflict",
    )
    assert store.use_names(STUDY, ()) == ()
    assert store.load(STUDY, 0, 10).inputs == ()
    store.end(STUDY, StudyOutcome("closed"))
    assert store.use_names(STUDY, [SubmissionName(b"m", b"d"), SubmissionName(b"o", b"d")]) == (
        "over",
        "over",
    )


def test_submission_with_ticket_needs_issued_ticket(store: Store, other: Store) -> None:
    enrol(store, "anna", ticket="t")
    mine, strange = digest("t"), digest("another")
    named = [
        SubmissionName(b"n", b"d", strange),
        SubmissionName(b"n", b"e", mine),
        SubmissionName(b"m", b"d"),
        SubmissionName(b"n", b"d", mine),
    ]
    assert other.use_names(STUDY, named) == ("unissued", "accepted", "accepted", "conflict")
    packets = [
        replace(answer(i), ticket=ticket)
        for i, ticket in ((1, mine), (2, strange), (1, mine), (3, None))
    ]
    assert store.accept(STUDY, packets, FAR) == ("accepted", "unissued", "repeated", "accepted")
    assert [held.payload for held in store.load(STUDY, 0, 10).inputs] == [b"1", b"3"]
    # A submission that was not accepted has used no name.
    assert store.accept(STUDY, [answer(2)], FAR) == ("accepted",)
    store.end(STUDY, StudyOutcome("closed"))
    # Tickets are deleted at the end, and every later submission is late.
    assert store.accept(STUDY, packets, FAR) == ("over",) * 4


def test_accepted_submissions_are_pending_in_order(store: Store, other: Store) -> None:
    assert accept(store, 3, 1) == ("accepted", "accepted")
    assert (
        other.accept(STUDY, [Submission("anna", b"\x00\xff", nonce=b"1"), Submission("", b"")], FAR)
        == ("accepted",) * 2
    )
    held = store.load(STUDY, 0, 10).inputs
    assert [(each.sender, each.payload, each.name) for each in held] == [
        ("", b"3", digest(3)),
        ("", b"1", digest(1)),
        ("anna", b"\x00\xff", None),
        ("", b"", None),
    ]
    assert [each.number for each in held] == sorted({each.number for each in held})
    assert store.load(STUDY, 0, 2).inputs == held[:2]
    totals = store.count_totals(STUDY)
    assert (totals.accepted, totals.waiting, totals.refused) == (4, 4, {})
    assert accept(store) == ()


def test_name_counts_once_and_only_for_its_bytes(store: Store, other: Store) -> None:
    assert accept(store, 1) == ("accepted",)
    assert other.accept(
        STUDY, [answer(1), answer(1, "else"), answer(2), answer(2), answer(2, "else")], FAR
    ) == (
        "repeated",
        "conflict",
        "accepted",
        "repeated",
        "conflict",
    )
    assert [held.payload for held in store.load(STUDY, 0, 10).inputs] == [b"1", b"2"]
    assert fold(store, "a")
    assert accept(other, 1, 2) == ("repeated", "repeated")
    assert read_state(store) == [1, 2]


def test_messages_without_name_may_be_repeated(store: Store) -> None:
    assert store.accept(STUDY, [Submission("anna", b"x"), Submission("anna", b"x")], FAR) == (
        "accepted",
        "accepted",
    )
    assert len(store.load(STUDY, 0, 10).inputs) == 2


def test_nonce_counts_once(store: Store, other: Store) -> None:
    one, two = answer(1, nonce=b"n" * 16), answer(2, nonce=b"n" * 16)
    assert store.accept(STUDY, [one, two, answer(3, nonce=b"m" * 16)], FAR) == (
        "accepted",
        "replayed",
        "accepted",
    )
    assert other.accept(STUDY, [two], FAR) == ("replayed",)
    assert not is_new(other, b"m" * 16)
    assert is_new(other, b"o" * 16)
    assert not is_new(store, b"o" * 16)
    # A submission that was rejected as a replay has not used its name.
    assert accept(store, 2) == ("accepted",)


def test_nonces_are_remembered_until_expiry(store: Store) -> None:
    assert is_new(store, b"soon", 10 * MINUTE)
    assert is_new(store, b"later", 11 * MINUTE + 1)
    # A request that was intercepted before the end of a study must not be accepted after it.
    store.end(STUDY, StudyOutcome("closed"))
    store.tidy(10 * MINUTE - 1)
    assert not is_new(store, b"soon")
    store.tidy(11 * MINUTE + 1)
    assert not is_new(store, b"later")
    assert is_new(store, b"soon", 10 * MINUTE)
    store.tidy(12 * MINUTE)
    assert is_new(store, b"later")


def test_batch_larger_than_one_sql_statement_is_accepted(store: Store) -> None:
    numbers = range(1_203)
    batch = [answer(i, nonce=digest(("nonce", i))) for i in numbers]
    assert set(store.accept(STUDY, batch, FAR)) == {"accepted"}
    assert store.accept(STUDY, [answer(i) for i in numbers], FAR) == ("repeated",) * len(numbers)
    held = store.load(STUDY, 0, 5_000).inputs
    assert [json.loads(each.payload) for each in held] == list(numbers)
    assert save(
        store,
        StepResult(
            b"s", tuple(each.number for each in held), freed_names=tuple(digest(i) for i in numbers)
        ),
    )
    assert store.count_totals(STUDY).waiting == 0
    assert set(store.accept(STUDY, [answer(i) for i in numbers], FAR)) == {"accepted"}


def test_rejections_are_counted_by_code(store: Store, other: Store) -> None:
    store.count_rejections(STUDY, "MSG-001")
    other.count_rejections(STUDY, "MSG-001", 4)
    other.count_rejections(STUDY, "AUTH-002")
    assert save(store, StepResult(b"s", rejection_counts={"MSG-001": 2, "PROTO-005": 1}))
    assert store.count_totals(STUDY).refused == {"AUTH-002": 1, "MSG-001": 7, "PROTO-005": 1}


def test_study_is_due_until_started_and_if_work_is_pending(
    store: Store,
) -> None:
    store.publish(StudyRecord(OTHER, b"m", 0, 1))
    assert store.list_due(0) == (STUDY, OTHER)
    assert save(store, StepResult(b"s", alarms=(100, 200, 200)))
    assert store.list_due(99) == (OTHER,)
    assert store.list_due(100) == (STUDY, OTHER)
    assert store.load(STUDY, 150, 10) == StudySnapshot(b"s", (), (100,))
    assert save(store, StepResult(b"s", fired_alarms=(100,)))
    assert store.list_due(199) == (OTHER,)
    assert store.load(STUDY, 200, 10).alarms == (200,)
    # An alarm that fired and was set again for the same time fires again.
    assert save(store, StepResult(b"s", alarms=(200,), fired_alarms=(200,)))
    assert store.list_due(200) == (STUDY, OTHER)
    assert save(store, StepResult(b"s", fired_alarms=(200,)))
    accept(store, 1)
    assert store.list_due(0) == (STUDY, OTHER)
    store.end(STUDY, StudyOutcome("closed"))
    assert store.list_due(1 << 40) == (OTHER,)


def test_lease_has_one_holder_until_it_expires(store: Store, other: Store) -> None:
    first = store.lease(STUDY, "a", now=0, until=10)
    assert first is not None
    assert other.lease(STUDY, "b", now=9, until=20) is None
    assert store.lease(STUDY, "a", now=9, until=20) == first
    assert other.lease(STUDY, "b", now=19, until=30) is None
    second = other.lease(STUDY, "b", now=20, until=30)
    assert second == first + 1
    store.release(STUDY, "a")
    assert store.lease(STUDY, "a", now=25, until=40) is None
    other.release(STUDY, "b")
    assert store.lease(STUDY, "a", now=25, until=40) == second + 1


def test_lease_is_renewed_only_by_its_holder(store: Store, other: Store) -> None:
    first = store.lease(STUDY, "a", now=0, until=10)
    assert first is not None
    assert store.renew(STUDY, "a", first, until=15)
    assert not other.renew(STUDY, "b", first, until=99)
    assert other.lease(STUDY, "b", now=14, until=24) is None
    second = other.lease(STUDY, "b", now=15, until=25)
    assert second is not None
    # The lease has another holder, or none, and that does not change.
    assert not store.renew(STUDY, "a", first, until=99)
    other.release(STUDY, "b")
    assert not other.renew(STUDY, "b", second, until=99)
    assert store.lease(STUDY, "a", now=16, until=26) == second + 1


@pytest.mark.parametrize("jump", [-(10**9), 10**9])
def test_clock_jump_neither_blocks_study_nor_allows_two_writers(
    store: Store, other: Store, jump: int
) -> None:
    held = store.lease(STUDY, "dead", now=10**12, until=10**12 + 10)
    now = 10**12 + jump
    # A lease from a time far in the past or future is free.
    taken = other.lease(STUDY, "b", now, now + 10)
    assert held is not None and taken == held + 1
    accept(store, 1)
    number = store.load(STUDY, now, 1).inputs[0].number
    # The previous holder is still alive, with another clock, which does not matter.
    assert not store.save(STUDY, held, StepResult(b"old", (number,)))
    assert other.save(STUDY, taken, StepResult(b"new", (number,)))
    assert store.load(STUDY, now, 1) == StudySnapshot(b"new", (), ())


def test_save_rejects_old_term(store: Store, other: Store) -> None:
    old = store.lease(STUDY, "a", 0, 10)
    assert old is not None
    accept(store, 1)
    stale = store.load(STUDY, 0, 10)
    new = other.lease(STUDY, "b", 10, 20)
    assert new is not None
    ending = StudyOutcome("done", b"{}")
    took = StepResult(
        b"old",
        (stale.inputs[0].number,),
        (digest(1),),
        ((None, b"x"),),
        (5,),
        (),
        {"MSG-001": 1},
        ending,
    )
    assert not store.save(STUDY, old, took)
    assert store.load(STUDY, 10, 10) == stale
    assert (
        store.find_last_number(STUDY),
        store.count_totals(STUDY).refused,
        store.find_study(STUDY),
    ) == (0, {}, HOSTED)
    assert accept(store, 1) == ("repeated",)
    assert other.save(STUDY, new, StepResult(b"new", (stale.inputs[0].number,)))
    assert store.load(STUDY, 10, 10) == StudySnapshot(b"new", (), ())
    # A lease that was released and taken again by the same process is a new one.
    store.release(STUDY, "b")
    assert store.lease(STUDY, "b", 10, 20) == new + 1
    assert not other.save(STUDY, new, StepResult(b"late"))


def test_input_is_applied_once_even_under_one_lease(store: Store) -> None:
    accept(store, 1, 2)
    loaded = store.load(STUDY, 0, 10)
    numbers = tuple(held.number for held in loaded.inputs)
    assert save(store, StepResult(b"once", numbers[:1]))
    assert not save(store, StepResult(b"twice", numbers, messages=((None, b"x"),)))
    after = store.load(STUDY, 0, 10)
    assert (after.state, after.inputs, store.find_last_number(STUDY)) == (
        b"once",
        loaded.inputs[1:],
        0,
    )
    accept(store, 3)
    assert numbers[0] not in {held.number for held in store.load(STUDY, 0, 10).inputs}


def test_rejected_submission_frees_its_name(store: Store) -> None:
    accept(store, 1, 2)
    numbers = tuple(held.number for held in store.load(STUDY, 0, 10).inputs)
    assert save(
        store, StepResult(b"s", numbers, freed_names=(digest(1),), rejection_counts={"MSG-001": 1})
    )
    assert store.accept(STUDY, [answer(1, "else"), answer(2, "else")], FAR) == (
        "accepted",
        "conflict",
    )


def test_queued_messages_are_numbered_and_found_by_recipients(store: Store, other: Store) -> None:
    assert save(
        store, StepResult(b"s", messages=((None, b"all"), ("anna", b"for anna"), ("bert", b"")))
    )
    assert save(store, StepResult(b"s", messages=((None, b"\x00again"),)))
    assert other.find_last_number(STUDY) == 4
    read = [
        (message.number, message.payload)
        for message in other.list_messages(STUDY, "anna", 0, 1_000)
    ]
    assert read == [(1, b"all"), (2, b"for anna"), (4, b"\x00again")]
    assert [message.number for message in other.list_messages(STUDY, None, 0, 1_000)] == [1, 4]
    assert [message.number for message in other.list_messages(STUDY, "anna", 2, 1_000)] == [4]
    assert [message.number for message in other.list_messages(STUDY, "bert", 1, 1_000)] == [3, 4]
    assert other.list_messages(STUDY, "anna", 1 << 70, 1_000) == ()
    assert store.list_messages(STUDY, "anna", 4, 1_000) == ()


@pytest.mark.parametrize(
    ("most", "numbers"),
    [(0, [1]), (99, [1]), (100, [1]), (199, [1]), (200, [1, 2]), (299, [1, 2]), (300, [1, 2, 3])],
)
def test_queued_messages_are_returned_in_pages(store: Store, most: int, numbers: list[int]) -> None:
    assert save(store, StepResult(b"s", messages=((None, b"a" * 100),) * 3))
    assert [message.number for message in store.list_messages(STUDY, None, 0, most)] == numbers


def test_personal_messages_are_deleted_when_acknowledged(store: Store) -> None:
    assert save(
        store,
        StepResult(b"s", messages=((None, b"1"), ("anna", b"2"), ("bert", b"3"), ("anna", b"4"))),
    )
    assert store.acknowledge(STUDY, "anna", 3, b"n", FAR)
    assert [message.number for message in store.list_messages(STUDY, "anna", 0, 100)] == [1, 4]
    assert [message.number for message in store.list_messages(STUDY, "bert", 0, 100)] == [1, 3]
    # An earlier request deletes nothing.
    assert not store.acknowledge(STUDY, "anna", 1 << 70, b"n", FAR)
    assert [message.number for message in store.list_messages(STUDY, "anna", 0, 100)] == [1, 4]
    assert store.acknowledge(STUDY, "anna", 1 << 70, b"m", FAR)
    assert [message.number for message in store.list_messages(STUDY, "anna", 0, 100)] == [1]
    assert store.find_last_number(STUDY) == 4


@pytest.mark.parametrize("how", ["save", "end"])
def test_ended_study_keeps_only_outcome_and_broadcasts(
    store: Store, other: Store, how: str
) -> None:
    enrol(store, "anna", ticket="t")
    enrol(store, "bert")
    store.leave(STUDY, b"bert", b"nonce", FAR)
    store.enrol(STUDY, NewEnrolment(b"dora", ticket=digest("another"), answers=(2, 1)))
    store.leave(STUDY, b"dora", b"another", FAR)
    assert save(store, StepResult(b"s", messages=((None, b"1"),), alarms=(7,)))
    accept(store, 1, 2)
    taken = store.load(STUDY, 0, 1).inputs[0].number
    ending = (
        StudyOutcome("done", b'{"model": 1}')
        if how == "save"
        else StudyOutcome("closed", reason="The analyst has closed it.")
    )
    term = store.lease(STUDY, "a", 0, 10)
    assert term is not None
    messages = ((None, b"2"),) if how == "save" else ()
    assert (
        store.save(STUDY, term, StepResult(b"t", (taken,), messages=messages, outcome=ending))
        if how == "save"
        else store.end(STUDY, ending)
    )

    ended = other.find_study(STUDY)
    assert ended is not None
    assert (ended.status, ended.result, ended.reason) == (
        ending.status,
        ending.result,
        ending.reason,
    )
    assert other.load(STUDY, FAR, 10) == StudySnapshot(None, (), ())
    assert other.count_expected(STUDY) == (3, {})
    assert [message.payload for message in other.list_messages(STUDY, None, 0, 100)] == [
        b"1",
        *(payload for _, payload in messages),
    ]
    assert (
        other.count_totals(STUDY).accepted,
        other.count_totals(STUDY).waiting,
        other.count_totals(STUDY).enrolled,
    ) == (2, 0, 1)

    assert not other.end(STUDY, StudyOutcome("failed"))
    assert not store.save(STUDY, term, StepResult(b"u"))
    assert store.lease(STUDY, "a", 0, 10) is None
    assert accept(store, 1, 3) == ("over", "over")
    assert enrol(store, "anna", ticket="t") == store.find_name(STUDY, b"anna")
    for key in ("bert", "clara"):
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*ended"):
            enrol(store, key)
    assert store.list_due(FAR) == ()


def test_store_separates_studies(store: Store) -> None:
    store.publish(StudyRecord(OTHER, b"m", 0, 1))
    accept(store, 1)
    enrol(store, "anna", ticket="t")
    assert is_new(store, b"nonce")
    assert save(
        store,
        StepResult(b"s", messages=((None, b"1"),), alarms=(1,), rejection_counts={"MSG-001": 1}),
    )
    assert (
        store.find_last_number(OTHER),
        store.list_messages(OTHER, None, 0, 10),
        store.load(OTHER, 5, 5),
    ) == (
        0,
        (),
        StudySnapshot(None, (), ()),
    )
    assert (store.count_totals(OTHER).accepted, store.count_totals(OTHER).refused) == (0, {})
    assert store.find_name(OTHER, b"anna") is None
    assert not is_issued(store, "t", OTHER)
    assert store.acknowledge(OTHER, "nobody", 0, b"nonce", FAR)
    assert store.accept(OTHER, [answer(1, "else")], FAR) == ("accepted",)
    store.end(STUDY, StudyOutcome("closed"))
    assert len(store.load(OTHER, 5, 5).inputs) == 1
    term = store.lease(OTHER, "a", 0, 1)
    assert term is not None
    assert not store.save(OTHER, term, StepResult(b"s", input_numbers=(1,)))


def test_tidy_keeps_all_answers(store: Store) -> None:
    names = [enrol(store, key, ticket=f"ticket of {key}") for key in "zyxabc"]
    store.leave(STUDY, b"x", b"nonce", FAR)
    accept(store, 1)
    for _ in range(2):
        store.tidy(0)
        assert all(is_issued(store, f"ticket of {key}") for key in "abcxyz")
        assert [store.find_name(STUDY, key.encode()) for key in "zyxabc"] == [
            *names[:2],
            None,
            *names[3:],
        ]
        assert store.count_totals(STUDY).enrolled == 5
        assert not is_new(store, b"nonce")
    assert enrol(store, "d", ticket="another") not in names


def test_tidy_keeps_registrations(epoch: Store, other: Store) -> None:
    issued = [register(epoch, key, commitment=key, issued=key.encode() * 5) for key in "zyxabc"]
    for _ in range(2):
        epoch.tidy(0)
        assert [register(other, key, commitment=key) for key in "zyxabc"] == issued
        assert other.list_members(SECOND.digest) == (b"a", b"b", b"c", b"x", b"y", b"z")


def test_tidy_rewrites_members_in_short_transactions(
    epoch: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write between two slices; members who come meanwhile are not lost."""
    monkeypatch.setattr(rewriting, "SLICE_ROWS", 20)
    monkeypatch.setattr(rewriting, "OVERLAP_ROWS", 4)
    keys = [f"{i:03}" for i in range(100)]
    for key in keys:
        register(epoch, key)
    paused: list[float] = []

    def wait(seconds: float) -> bool:
        paused.append(seconds)
        key = f"{len(paused):03} came later"
        keys.append(key)
        return register(other, key, study=(FIRST, SECOND)[len(paused) % 2]) != b"signed"

    epoch.tidy(0, wait)
    # At least 100 enrolments, registrations and commitments, with 16 new rows in each slice.
    assert len(paused) >= 3 * 100 // 16
    assert other.list_members(SECOND.digest) == tuple(sorted(key.encode() for key in keys))
    assert other.count_members(FIRST.digest) == len(keys)
    assert all(check(other, key) == b"signed" for key in keys)
    # Those who came later are rewritten by the next call, an interrupted rewrite by the one after.
    n_before, paused = len(paused), []
    epoch.tidy(0, lambda seconds: paused.append(seconds) is None)
    assert len(paused) == 1 < n_before
    paused.clear()
    epoch.tidy(0, lambda seconds: paused.append(seconds) is not None)
    assert len(paused) > 1
    paused.clear()
    epoch.tidy(0, lambda seconds: paused.append(seconds) is not None)
    assert paused == [] and len(other.list_members(FIRST.digest)) == len(keys)


def test_closed_store_raises_error(url: str) -> None:
    store = open_store(url)
    store.publish(HOSTED)
    store.close()
    with open_store(url) as again:
        assert again.list_studies() == (HOSTED,)


def test_one_of_concurrent_equal_submissions_is_accepted(store: Store, other: Store) -> None:
    for i in range(5):
        outcomes = run_concurrently(
            *[lambda each=each, i=i: accept(each, i) for each in (store, other, store, other)]
        )
        assert sorted(outcomes) == [("accepted",), ("repeated",), ("repeated",), ("repeated",)]
        outcomes = run_concurrently(
            lambda i=i: is_new(store, digest(i)), lambda i=i: is_new(other, digest(i))
        )
        assert sorted(outcomes) == [False, True]
    assert store.count_totals(STUDY).accepted == 5


def test_crossing_batches_do_not_deadlock(store: Store, other: Store) -> None:
    up = [answer(i, nonce=digest(("up", i))) for i in range(200)]
    down = [answer(i, nonce=digest(("down", i))) for i in reversed(range(200))]
    one, another = run_concurrently(
        lambda: store.accept(STUDY, up, FAR), lambda: other.accept(STUDY, down, FAR)
    )
    assert {one, another} == {("accepted",) * 200, ("repeated",) * 200}


def test_one_of_concurrent_processes_gets_lease(store: Store, other: Store) -> None:
    for i in range(5):
        terms = run_concurrently(
            *[
                lambda each=each, j=j, i=i: each.lease(STUDY, f"{i} {j}", 10 * i, 10 * i + 10)
                for j, each in enumerate((store, other) * 2)
            ]
        )
        assert sorted(term or 0 for term in terms) == [0, 0, 0, i + 1]


def test_last_seat_goes_to_one_of_concurrent_enrolments(url: str) -> None:
    with open_store(url) as store, open_store(url) as other:
        store.publish(StudyRecord(STUDY, b"m", 0, 1, seats=("one", "two", "three")))
        found = run_concurrently(
            *[
                lambda each=each, key=key: enrol(each, key)
                for key, each in zip("abcdef", (store, other) * 3, strict=True)
            ]
        )
        assert sorted(found) == ["ENROL-001", "ENROL-001", "ENROL-001", "one", "three", "two"]


def test_invitation_and_ticket_are_used_by_one_of_concurrent_enrolments(url: str) -> None:
    with open_store(url) as store, open_store(url) as other:
        store.publish(
            StudyRecord(STUDY, b"m", 0, 1, by_invitation=True),
            [digest("x"), digest("y"), digest("z")],
        )
        found = run_concurrently(
            *[
                lambda each=each, key=key: enrol(each, key, invitation="x")
                for key, each in zip("ab", (store, other), strict=True)
            ]
        )
        assert found.count("ENROL-001") == 1
        found = run_concurrently(
            lambda: enrol(store, "c", ticket="t", invitation="y"),
            lambda: enrol(other, "d", ticket="t", invitation="z"),
        )
        assert found.count("ENROL-002") == 1
        assert store.count_totals(STUDY).enrolled == 2


def test_no_submission_is_accepted_into_ending_study(store: Store, other: Store) -> None:
    publishers = [StudyRecord(digest(i).hex(), b"m", 0, 1) for i in range(5)]
    for hosted in publishers:
        store.publish(hosted)
        outcomes, _ = run_concurrently(
            lambda hosted=hosted: store.accept(hosted.digest, [answer(1)], FAR),
            lambda hosted=hosted: other.end(hosted.digest, StudyOutcome("closed")),
        )
        assert outcomes in (("accepted",), ("over",))
        assert store.load(hosted.digest, 0, 1).inputs == ()


def test_reader_of_message_never_finds_earlier_number_later(store: Store, other: Store) -> None:
    """Let two processes save in turn while a third reads from the last number it saw."""
    n, seen = 40, []

    def write(each: Store, holder: str) -> None:
        done = 0
        while done < n:
            term = each.lease(STUDY, holder, 0, 10)
            if term is not None:
                done += each.save(
                    STUDY, term, StepResult(b"s", messages=((None, b"x"), (None, b"y")))
                )
                each.release(STUDY, holder)

    def read() -> None:
        while len(seen) < 4 * n:
            seen.extend(
                message.number
                for message in other.list_messages(STUDY, None, seen[-1] if seen else 0, 1_000)
            )
            assert other.find_last_number(STUDY) >= len(seen)

    run_concurrently(lambda: write(store, "a"), lambda: write(other, "b"), read)
    assert seen == list(range(1, 4 * n + 1))


def run_processes(
    url: str, n_processes: int, work: Callable[..., None], *arguments: object
) -> list[object]:
    with ExitStack() as stack:
        links = [stack.enter_context(child(work, url, *arguments))[0] for _ in range(n_processes)]
        assert [link.recv() for link in links] == ["ready"] * n_processes
        for link in links:
            link.send("go")
        return [link.recv() for link in links]


def test_concurrently_started_processes_share_store(url: str) -> None:
    assert sorted(map(bool, run_processes(url, 4, store_child.begin))) == [
        False,
        False,
        False,
        True,
    ]
    with open_store(url) as store:
        assert store.list_studies() == (HOSTED,)


def test_processes_accept_and_step_same_study(store: Store, url: str) -> None:
    counts = run_processes(url, 3, store_child.accept_the_same, 40)
    assert sum(int(str(count)) for count in counts) == 40
    assert fold(store, "last", now=100, until=200)
    assert sorted(read_state(store)) == list(range(40))


def kill_and_check(
    url: str, entropy: SeededEntropy, n_kills: int, server: Postgres | None = None
) -> None:
    """Kill the writer or the server repeatedly and check the store after each kill.

    Acknowledged submissions are applied once, requested ones at most once, and message numbers have
    no gaps.
    """
    first, sure, perhaps = 0, set[int](), set[int]()
    for round_ in range(n_kills):
        with child(store_child.work_without_end, url, first, f"process {round_}") as (link, kill):
            reports = [link.recv() for _ in range(3 + entropy.below(40))]
            if server is not None:
                server.kill()
            kill()
            with suppress(EOFError):
                while True:
                    reports.append(link.recv())
        if server is not None:
            server.restart()
        perhaps |= {i + j for what, i in reports if what == "asked" for j in (0, 1)}
        sure |= {i + j for what, i in reports if what == "accepted" for j in (0, 1)}
        with open_store(url) as store:
            # The lease of the killed process expires.
            assert fold(store, f"after {round_}", now=100 * round_ + 50, until=100 * round_ + 51)
            store.release(STUDY, f"after {round_}")
            state = read_state(store)
            assert len(state) == len(set(state))
            assert sure <= set(state) <= perhaps
            numbers = [message.number for message in store.list_messages(STUDY, None, 0, 1 << 20)]
            assert numbers == list(range(1, store.find_last_number(STUDY) + 1))
            assert store.count_totals(STUDY).accepted == len(state)
        first = max(perhaps) + 1
    assert len(sure) >= n_kills


def test_store_is_consistent_if_writer_is_killed(url: str, entropy: SeededEntropy) -> None:
    kill_and_check(url, entropy, 6)


@pytest.mark.soak
def test_store_is_consistent_if_writer_is_killed_many_times(
    url: str, entropy: SeededEntropy
) -> None:
    kill_and_check(url, entropy, 100)


def test_store_is_consistent_if_postgresql_is_killed(entropy: SeededEntropy) -> None:
    with postgres() as server:
        kill_and_check(server.new_database(), entropy, 4, server)


def test_postgresql_reuses_space_of_deleted_rows(postgres_server: Postgres) -> None:
    """Check that the space of deleted rows is free, in each table emptied at a study's end."""
    url = postgres_server.new_database()
    with open_store(url) as store:
        store.publish(HOSTED)
        store.enrol(STUDY, NewEnrolment(b"anna", ticket=digest("t"), answers=(1,)))
        accept(store, 1)
        assert save(store, StepResult(b"s", alarms=(7,)))
        store.end(STUDY, StudyOutcome("closed"))
        store.tidy(0)
    query = "SELECT relname FROM pg_stat_user_tables WHERE last_vacuum IS NOT NULL"
    with psycopg.connect(url, autocommit=True) as db:
        assert {name for (name,) in db.execute(query)} >= {
            *EMPTIED_TABLES,
            "nonce",
            "enrolment",
            "letter",
        }


def test_store_works_again_after_postgresql_restart() -> None:
    with postgres() as server, open_store(server.new_database()) as store:
        store.publish(HOSTED)
        assert (
            run_concurrently(*[lambda i=i: accept(store, i) for i in range(4)])
            == [("accepted",)] * 4
        )
        server.kill()
        for call in (store.ping, lambda: accept(store, 9), lambda: store.tidy(0)):
            with pytest.raises(StoreError, match="STORE-001"):
                call()
        server.restart()
        store.ping()
        assert accept(store, 1, 9) == ("repeated", "accepted")
        # All connections broke together; none of them is used again.
        server.kill()
        server.restart()
        assert (
            run_concurrently(*[lambda i=i: accept(store, i) for i in range(10, 14)])
            == [("accepted",)] * 4
        )
