"""One suite for both stores of a coordinator, SQLite and a real PostgreSQL: what a store owes, at the same moment and across crashes."""

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

import store_child
from processes import PROCESSES, child
from servers import Postgres, postgres
from shoal.coordinator.store.base import Ending, Folded, Hosted, Incoming, Loaded, Named, Secrets, Store, Totals
from shoal.coordinator.store.opening import open_store
from shoal.coordinator.store.statements import EMPTIED
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.study.anonymity import scope_of_study
from store_child import FAR, HOSTED, STUDY, accept, answer, digest, fold, state_of

PROCESSES.set_forkserver_preload(["shoal.coordinator.store.sqlite", "shoal.coordinator.store.postgres"])

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
    """The same store, as another process sees it."""
    with open_store(url) as made:
        yield made


def at_once(*calls: Callable[[], T]) -> list[T | str]:
    """What calls of several threads that begin at the same moment return, or the code of the error that they raise."""
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


def saved(store: Store, folded: Folded, holder: str = "a") -> bool:
    term = store.lease(STUDY, holder, 0, 10)
    assert term is not None
    return store.save(STUDY, term, folded)


def is_new(store: Store, nonce: bytes, expires: int = FAR) -> bool:
    """Use a nonce, with a request that asks for nothing else."""
    return store.acknowledge(STUDY, "nobody", 0, nonce, expires)


def is_issued(store: Store, ticket: str, study: str = STUDY) -> bool:
    return store.use_many(study, [Named(b"a name", b"a digest", digest(ticket))]) != ("unissued",)


def enrol(store: Store, key: str, *, name: str | None = None, ticket: str | None = None, invitation: str | None = None) -> str:
    return store.enrol(
        STUDY, key.encode(), name, None if ticket is None else digest(ticket), None if invitation is None else digest(invitation)
    )


def test_it_answers(store: Store) -> None:
    store.ping()


def test_the_first_secrets_stay(store: Store, other: Store) -> None:
    first = Secrets(b"\x00" * 32, b"\xff" * 32)
    assert store.secrets(first) == first
    assert other.secrets(Secrets(b"b" * 32, b"c" * 32)) == first


def test_a_study_is_as_it_was_published(store: Store, other: Store) -> None:
    second = Hosted(OTHER, bytes(range(256)), 5, 6, by_invitation=True, seats=("holder-0", "größe"), queries=b"\x00q")
    assert not store.publish(HOSTED)
    assert store.publish(second, [digest("code")])
    assert not other.publish(second)
    assert other.studies() == (HOSTED, second)
    assert other.study(OTHER) == second
    assert other.study("7" * 64) is None


def test_a_study_that_is_not_here(store: Store) -> None:
    for call in (lambda: store.latest(OTHER), lambda: store.accept(OTHER, [answer(1)], FAR), lambda: store.refuse(OTHER, "MSG-001")):
        with pytest.raises(RemoteProtocolError, match="HOST-001"):
            call()


def test_an_enrolment_that_comes_again_does_not_undo_a_leave(store: Store, other: Store) -> None:
    def request(nonce: bytes) -> str:
        return other.enrol(STUDY, b"anna", None, None, None, nonce, FAR)

    name = request(b"first")
    assert store.leave(STUDY, b"anna", b"second", FAR)
    with pytest.raises(RemoteProtocolError, match="AUTH-005"):
        request(b"first")
    assert store.name_of(STUDY, b"anna") is None
    assert request(b"third") == name == store.name_of(STUDY, b"anna")


def test_whoever_enrols_has_one_name(store: Store, other: Store) -> None:
    name = enrol(store, "anna")
    assert enrol(other, "anna") == name
    assert store.name_of(STUDY, b"anna") == name
    assert enrol(store, "bert") != name
    assert enrol(store, "clara", name="hospital") == "hospital"
    assert store.name_of(STUDY, b"clara") == "hospital"
    assert store.name_of(STUDY, b"dora") is None
    assert store.totals(STUDY).enrolled == 3


def test_seats_are_taken_in_order_and_stay_taken(url: str) -> None:
    with open_store(url) as store:
        store.publish(Hosted(STUDY, b"m", 0, 1, seats=("holder-0", "holder-1", "holder-2")))
        assert [enrol(store, key) for key in "abab"] == ["holder-0", "holder-1", "holder-0", "holder-1"]
        assert store.leave(STUDY, b"a", b"nonce", FAR)
        assert store.name_of(STUDY, b"a") is None
        assert enrol(store, "c") == "holder-2"
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*3 seats"):
            enrol(store, "d")
        assert enrol(store, "a") == "holder-0"
        assert store.name_of(STUDY, b"a") == "holder-0"
        assert store.totals(STUDY).enrolled == 3


def test_leaving_twice_with_one_request_is_a_replay(store: Store) -> None:
    enrol(store, "anna")
    assert store.leave(STUDY, b"anna", b"first", FAR)
    enrol(store, "anna")
    assert not store.leave(STUDY, b"anna", b"first", FAR)
    assert store.name_of(STUDY, b"anna") is not None
    assert store.leave(STUDY, b"anna", b"second", FAR)
    assert store.totals(STUDY).enrolled == 0


def test_an_invitation_admits_one(url: str) -> None:
    with open_store(url) as store:
        store.publish(Hosted(STUDY, b"m", 0, 1, by_invitation=True, seats=("one",)), [digest("x"), digest("y"), digest("x")])
        for code in (None, "z"):
            with pytest.raises(RemoteProtocolError, match="ENROL-001"):
                enrol(store, "anna", invitation=code)
        assert enrol(store, "anna", invitation="x") == "one"
        assert enrol(store, "anna", invitation="x") == "one"
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*invitation"):
            enrol(store, "bert", invitation="x")
        # Where there is no seat, the invitation is not used up either.
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*seats"):
                enrol(store, "bert", invitation="y")
        assert store.leave(STUDY, b"anna", b"nonce", FAR)
        assert enrol(store, "anna") == "one"


def test_a_ticket_is_issued_once_and_never_changed(store: Store) -> None:
    assert not is_issued(store, "t")
    name = enrol(store, "anna", ticket="t")
    assert is_issued(store, "t")
    assert enrol(store, "anna", ticket="t") == name
    for key, ticket in (("anna", "other"), ("bert", "t")):
        with pytest.raises(RemoteProtocolError, match="ENROL-002"):
            enrol(store, key, ticket=ticket)
    assert store.name_of(STUDY, b"bert") is None
    assert not is_issued(store, "other")
    store.leave(STUDY, b"anna", b"nonce", FAR)
    with pytest.raises(RemoteProtocolError, match="ENROL-002"):
        enrol(store, "anna", ticket="other")
    assert store.name_of(STUDY, b"anna") is None
    assert enrol(store, "anna", ticket="t") == name
    assert is_issued(store, "t")


def test_answers_are_expected_of_all_who_have_enrolled(store: Store, other: Store) -> None:
    saved(store, Folded(b"state"))
    assert store.expected(STUDY) == (0, {}) and store.due(1000) == ()
    for key, answers in ((b"a", (0, 2)), (b"b", (1, 0)), (b"a", (0, 2)), (b"c", (0, 3))):
        store.enrol(STUDY, key, None, digest(key.hex()), None, answers=answers)
    assert other.expected(STUDY) == (3, {0: 1, 1: 5})
    assert other.due(1000) == (STUDY,), "whoever enrols wakes the study"
    alarms = other.load(STUDY, 1000, 10).alarms
    store.enrol(STUDY, b"d", None, digest("d"), None, answers=(1, 0))
    saved(store, Folded(b"state", rung=alarms))
    assert other.due(1000) == (STUDY,), "and is not forgotten by a step that began before"


SCOPE = digest("a scope")
FIRST, SECOND = Hosted(digest("first").hex(), b"m", 0, 1, scope=SCOPE), Hosted(digest("second").hex(), b"m", 0, 1, scope=SCOPE)
ALONE = Hosted(digest("alone").hex(), b"m", 0, 1, scope=digest("another scope"))


def register(store: Store, key: str, *, study: Hosted = FIRST, commitment: str = "c", issued: bytes = b"signed", **how: Any) -> bytes:
    """Register a key; what is issued to it."""
    name, found = store.register(study.digest, key.encode(), digest(commitment), issued, None, **how)
    assert name == hashlib.sha256(key.encode()).hexdigest()[:32]
    return found


@pytest.fixture
def epoch(store: Store) -> Store:
    """Two studies of one scope, and one of another."""
    for hosted in (FIRST, SECOND, ALONE):
        store.publish(hosted)
    return store


def test_a_scope_is_as_it_was_published(epoch: Store, other: Store) -> None:
    assert other.studies() == (HOSTED, FIRST, SECOND, ALONE)


def test_whoever_registers_is_issued_the_same_for_ever(epoch: Store, other: Store) -> None:
    assert epoch.registered(FIRST.digest, b"anna", digest("c")) is None
    assert register(epoch, "anna") == b"signed"
    assert register(other, "anna", issued=b"signed anew") == b"signed"
    assert register(other, "anna", study=SECOND, issued=b"and in another study") == b"signed"
    assert other.registered(SECOND.digest, b"anna", digest("c")) == b"signed"
    # Scopes have nothing to do with each other.
    assert other.registered(ALONE.digest, b"anna", digest("c")) is None
    assert register(other, "anna", study=ALONE, commitment="d", issued=b"elsewhere") == b"elsewhere"
    assert epoch.registered(STUDY, b"anna", digest("c")) is None


@pytest.mark.parametrize("study", [FIRST, SECOND])
def test_another_commitment_is_refused_for_ever(epoch: Store, other: Store, study: Hosted) -> None:
    register(epoch, "anna")
    assert epoch.leave(FIRST.digest, b"anna", b"a nonce", FAR)
    assert epoch.name_of(FIRST.digest, b"anna") is None
    for call in (
        lambda: register(other, "anna", study=study, commitment="d"),
        lambda: other.registered(study.digest, b"anna", digest("d")),
    ):
        with pytest.raises(RemoteProtocolError, match="ENROL-002"):
            call()
    assert epoch.members(FIRST.digest) == (b"anna",)
    assert register(other, "anna") == b"signed" and epoch.name_of(FIRST.digest, b"anna") is not None


def test_members_are_those_of_the_scope(epoch: Store, other: Store) -> None:
    for key in ("zoe", "anna", "bert"):
        register(epoch, key, commitment=key)
    register(epoch, "carl", study=SECOND)
    register(epoch, "dora", study=ALONE)
    for study in (FIRST, SECOND):
        assert other.members(study.digest) == (b"anna", b"bert", b"carl", b"zoe")
        assert other.expected(study.digest) == (4, {}) and other.totals(study.digest).enrolled == 4
    assert other.members(ALONE.digest) == (b"dora",) and other.members(STUDY) == ()
    # A member of the scope is enrolled where it asked to be.
    assert other.name_of(FIRST.digest, b"carl") is None


def test_a_registration_needs_an_open_study_and_what_was_issued_stays(epoch: Store, other: Store) -> None:
    register(epoch, "anna")
    epoch.end(FIRST.digest, Ending("closed"))
    assert register(other, "anna") == b"signed"
    with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*ended"):
        register(other, "bert")
    assert register(other, "bert", study=SECOND) == b"signed" and other.members(FIRST.digest) == (b"anna", b"bert")


def test_an_invitation_makes_one_member(store: Store, other: Store) -> None:
    store.publish(replace(FIRST, by_invitation=True), [digest(code) for code in "xz"])
    store.publish(replace(SECOND, by_invitation=True))
    store.publish(replace(ALONE, by_invitation=True), [digest("alone")])

    def invited(key: bytes, study: Hosted, code: str | None) -> bytes:
        return other.register(study.digest, key, digest("c"), b"signed " + key, None if code is None else digest(code))[1]

    for code in (None, "y"):
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            invited(b"anna", FIRST, code)
    assert store.members(FIRST.digest) == (), "what was refused has left nothing"
    assert invited(b"anna", FIRST, "x") == b"signed anna"
    assert invited(b"anna", FIRST, None) == invited(b"anna", SECOND, None) == b"signed anna", "a member needs no second one"
    # A code is good in all studies of the scope, once, and in no other.
    for study, code in ((FIRST, "x"), (SECOND, "x"), (SECOND, "alone"), (ALONE, "z")):
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            invited(b"bert", study, code)
    # Also when the one that it came with has ended: the epoch goes on.
    store.end(FIRST.digest, Ending("closed"))
    assert invited(b"bert", SECOND, "z") == b"signed bert"
    with pytest.raises(RemoteProtocolError, match="ENROL-001"):
        invited(b"carl", SECOND, "z")


def test_invitations_to_a_study_that_is_of_no_epoch_end_with_it(store: Store) -> None:
    alone = Hosted(digest("by itself").hex(), b"m", 0, 1, by_invitation=True, scope=scope_of_study(digest("by itself")))
    second = Hosted(digest("by another").hex(), b"m", 0, 1, by_invitation=True, scope=alone.scope)
    for hosted in (alone, second):
        store.publish(hosted, [digest("x")] if hosted is alone else ())
    store.end(alone.digest, Ending("closed"))
    with pytest.raises(RemoteProtocolError, match="ENROL-001"):
        store.register(second.digest, b"anna", digest("c"), b"signed", digest("x"))


def test_codes_are_used_once_at_whichever_study(store: Store, other: Store) -> None:
    store.publish(replace(FIRST, by_invitation=True), [digest("x")])
    store.publish(replace(SECOND, by_invitation=True))

    def use(each: Store, study: Hosted, key: bytes) -> str:
        try:
            each.register(study.digest, key, digest("c"), b"signed", digest("x"))
        except RemoteProtocolError as error:
            return error.code
        return "in"

    outcomes = at_once(*[lambda i=i: use((store, other)[i % 2], (FIRST, SECOND)[i % 2], b"key %d" % i) for i in range(6)])
    assert sorted(outcomes) == ["ENROL-001"] * 5 + ["in"] and len(other.members(FIRST.digest)) == 1


def test_lists_are_told_a_page_at_a_time(epoch: Store, other: Store) -> None:
    for key in ("anna", "bert", "carl"):
        register(epoch, key, commitment=key)
    assert other.members(FIRST.digest, most=2) == (b"anna", b"bert") and other.members(FIRST.digest, b"bert", 2) == (b"carl",)
    names = sorted(digest(i) for i in range(3))
    epoch.accept(FIRST.digest, [Incoming("", b"answer", name, name) for name in names], FAR)
    assert other.submitted(FIRST.digest, most=2) == tuple(names[:2]) and other.submitted(FIRST.digest, names[1], 2) == (names[2],)


def test_a_list_stands_still_until_the_next(epoch: Store, other: Store) -> None:
    names = [digest(i) for i in range(4)]

    def arrive(i: int) -> None:
        epoch.accept(FIRST.digest, [Incoming("", b"answer", names[i], names[i])], FAR)

    arrive(0)
    for store in (epoch, other):
        assert store.told(FIRST.digest, 1, b"", 10) == (names[0],)
    arrive(1)
    assert other.told(FIRST.digest, 1, b"", 10) == (names[0],)
    assert other.told(FIRST.digest, 2, b"", 10) == tuple(sorted(names[:2]))
    arrive(2)
    # Whoever is late with the first list is told the second.
    assert epoch.told(FIRST.digest, 1, b"", 10) == epoch.told(FIRST.digest, 2, b"", 10) == tuple(sorted(names[:2]))
    assert epoch.told(FIRST.digest, 2, min(names[:2]), 10) == (max(names[:2]),)
    epoch.end(FIRST.digest, Ending("closed"))
    assert other.submitted(FIRST.digest) == tuple(sorted(names[:3]))


def test_a_registration_that_comes_again_does_not_undo_a_leave(epoch: Store) -> None:
    register(epoch, "anna", nonce=b"1", expires=FAR)
    assert epoch.leave(FIRST.digest, b"anna", b"2", FAR)
    with pytest.raises(RemoteProtocolError, match="AUTH-005"):
        register(epoch, "anna", nonce=b"1", expires=FAR)
    assert epoch.name_of(FIRST.digest, b"anna") is None


def test_of_several_registrations_at_once_one_counts(epoch: Store, other: Store) -> None:
    pairs = [(each, study) for each in (epoch, other) for study in (FIRST, SECOND)]
    same = at_once(*[lambda e=e, s=s, i=i: register(e, "anna", study=s, issued=bytes([i])) for i, (e, s) in enumerate(pairs)])
    assert len(set(same)) == 1 and same[0] in [bytes([i]) for i in range(4)]
    others = at_once(*[lambda e=e, s=s, i=i: register(e, "bert", study=s, commitment=str(i)) for i, (e, s) in enumerate(pairs)])
    assert sorted(map(str, others)) == ["ENROL-002"] * 3 + [str(b"signed")]


def test_names_of_what_came_with_tokens_stay_after_the_end(epoch: Store, other: Store) -> None:
    named = [Incoming("", b"packet", digest(i), digest("bytes")) for i in range(5)]
    for hosted in (HOSTED, FIRST):
        assert epoch.accept(hosted.digest, named, FAR) == ("accepted",) * 5
        assert other.submitted(hosted.digest) == tuple(sorted(digest(i) for i in range(5)))
        epoch.end(hosted.digest, Ending("closed"))
    assert other.submitted(HOSTED.digest) == ()
    assert other.submitted(FIRST.digest) == tuple(sorted(digest(i) for i in range(5))) and other.submitted(SECOND.digest) == ()


def test_what_was_rejected_is_not_among_what_was_submitted(epoch: Store) -> None:
    epoch.accept(FIRST.digest, [Incoming("", b"packet", digest(i), digest("bytes")) for i in range(2)], FAR)
    held, term = epoch.load(FIRST.digest, 0, 10).held, epoch.lease(FIRST.digest, "a", 0, 10)
    assert term is not None
    assert epoch.save(FIRST.digest, term, Folded(b"state", taken=tuple(one.number for one in held), freed=(digest(0),)))
    assert epoch.submitted(FIRST.digest) == (digest(1),)


def test_what_is_held_when_a_study_ends_is_late(store: Store) -> None:
    store.accept(STUDY, [answer(1), answer(2)], FAR)
    held = store.load(STUDY, 0, 1).held
    saved(store, Folded(b"state", taken=(held[0].number,), ending=Ending("done", b"{}")))
    assert store.totals(STUDY) == Totals(0, 2, 0, {"HOST-002": 1})


def test_names_for_updates_that_are_not_kept(store: Store, other: Store) -> None:
    assert store.use_many(STUDY, [Named(b"n", b"d")]) == ("accepted",)
    assert other.use_many(STUDY, [Named(b"n", b"d")]) == ("repeated",)
    assert other.use_many(STUDY, [Named(b"n", b"e")]) == ("conflict",)
    assert store.use_many(STUDY, [Named(b"m", b"d"), Named(b"n", b"d"), Named(b"m", b"d"), Named(b"m", b"e")]) == (
        "accepted",
        "repeated",
        "repeated",
        "conflict",
    )
    assert store.use_many(STUDY, ()) == ()
    assert store.load(STUDY, 0, 10).held == ()
    store.end(STUDY, Ending("closed"))
    assert store.use_many(STUDY, [Named(b"m", b"d"), Named(b"o", b"d")]) == ("over", "over")


def test_what_needs_a_ticket_is_let_in_with_one_that_was_issued(store: Store, other: Store) -> None:
    enrol(store, "anna", ticket="t")
    mine, strange = digest("t"), digest("another")
    named = [Named(b"n", b"d", strange), Named(b"n", b"e", mine), Named(b"m", b"d"), Named(b"n", b"d", mine)]
    assert other.use_many(STUDY, named) == ("unissued", "accepted", "accepted", "conflict")
    packets = [replace(answer(i), ticket=ticket) for i, ticket in ((1, mine), (2, strange), (1, mine), (3, None))]
    assert store.accept(STUDY, packets, FAR) == ("accepted", "unissued", "repeated", "accepted")
    assert [held.payload for held in store.load(STUDY, 0, 10).held] == [b"1", b"3"]
    # What was not let in has used no name.
    assert store.accept(STUDY, [answer(2)], FAR) == ("accepted",)
    store.end(STUDY, Ending("closed"))
    # Tickets are forgotten, and what is late is late whoever sends it.
    assert store.accept(STUDY, packets, FAR) == ("over",) * 4


def test_what_is_accepted_is_held_in_order(store: Store, other: Store) -> None:
    assert accept(store, 3, 1) == ("accepted", "accepted")
    assert other.accept(STUDY, [Incoming("anna", b"\x00\xff", nonce=b"1"), Incoming("", b"")], FAR) == ("accepted",) * 2
    held = store.load(STUDY, 0, 10).held
    assert [(each.sender, each.payload, each.name) for each in held] == [
        ("", b"3", digest(3)),
        ("", b"1", digest(1)),
        ("anna", b"\x00\xff", None),
        ("", b"", None),
    ]
    assert [each.number for each in held] == sorted({each.number for each in held})
    assert store.load(STUDY, 0, 2).held == held[:2]
    totals = store.totals(STUDY)
    assert (totals.accepted, totals.waiting, totals.refused) == (4, 4, {})
    assert accept(store) == ()


def test_a_name_counts_once_and_for_its_bytes_alone(store: Store, other: Store) -> None:
    assert accept(store, 1) == ("accepted",)
    assert other.accept(STUDY, [answer(1), answer(1, "else"), answer(2), answer(2), answer(2, "else")], FAR) == (
        "repeated",
        "conflict",
        "accepted",
        "repeated",
        "conflict",
    )
    assert [held.payload for held in store.load(STUDY, 0, 10).held] == [b"1", b"2"]
    assert fold(store, "a")
    assert accept(other, 1, 2) == ("repeated", "repeated")
    assert state_of(store) == [1, 2]


def test_messages_without_a_name_may_come_as_often_as_they_like(store: Store) -> None:
    assert store.accept(STUDY, [Incoming("anna", b"x"), Incoming("anna", b"x")], FAR) == ("accepted", "accepted")
    assert len(store.load(STUDY, 0, 10).held) == 2


def test_a_nonce_counts_once(store: Store, other: Store) -> None:
    one, two = answer(1, nonce=b"n" * 16), answer(2, nonce=b"n" * 16)
    assert store.accept(STUDY, [one, two, answer(3, nonce=b"m" * 16)], FAR) == ("accepted", "replayed", "accepted")
    assert other.accept(STUDY, [two], FAR) == ("replayed",)
    assert not is_new(other, b"m" * 16)
    assert is_new(other, b"o" * 16)
    assert not is_new(store, b"o" * 16)
    # What was refused as a replay has not used its name.
    assert accept(store, 2) == ("accepted",)


def test_nonces_are_remembered_until_they_expire(store: Store) -> None:
    assert is_new(store, b"soon", 10 * MINUTE)
    assert is_new(store, b"later", 11 * MINUTE + 1)
    # What was caught before the end of a study must not come after it.
    store.end(STUDY, Ending("closed"))
    store.tidy(10 * MINUTE - 1)
    assert not is_new(store, b"soon")
    store.tidy(11 * MINUTE + 1)
    assert not is_new(store, b"later")
    assert is_new(store, b"soon", 10 * MINUTE)
    store.tidy(12 * MINUTE)
    assert is_new(store, b"later")


def test_more_than_fits_into_one_statement(store: Store) -> None:
    numbers = range(1_203)
    batch = [answer(i, nonce=digest(("nonce", i))) for i in numbers]
    assert set(store.accept(STUDY, batch, FAR)) == {"accepted"}
    assert store.accept(STUDY, [answer(i) for i in numbers], FAR) == ("repeated",) * len(numbers)
    held = store.load(STUDY, 0, 5_000).held
    assert [json.loads(each.payload) for each in held] == list(numbers)
    assert saved(store, Folded(b"s", tuple(each.number for each in held), freed=tuple(digest(i) for i in numbers)))
    assert store.totals(STUDY).waiting == 0
    assert set(store.accept(STUDY, [answer(i) for i in numbers], FAR)) == {"accepted"}


def test_refusals_are_counted_by_code(store: Store, other: Store) -> None:
    store.refuse(STUDY, "MSG-001")
    other.refuse(STUDY, "MSG-001", 4)
    other.refuse(STUDY, "AUTH-002")
    assert saved(store, Folded(b"s", rejected={"MSG-001": 2, "PROTO-005": 1}))
    assert store.totals(STUDY).refused == {"AUTH-002": 1, "MSG-001": 7, "PROTO-005": 1}


def test_a_study_is_due_until_it_has_begun_and_whenever_there_is_something_to_do(store: Store) -> None:
    store.publish(Hosted(OTHER, b"m", 0, 1))
    assert store.due(0) == (STUDY, OTHER)
    assert saved(store, Folded(b"s", alarms=(100, 200, 200)))
    assert store.due(99) == (OTHER,)
    assert store.due(100) == (STUDY, OTHER)
    assert store.load(STUDY, 150, 10) == Loaded(b"s", (), (100,))
    assert saved(store, Folded(b"s", rung=(100,)))
    assert store.due(199) == (OTHER,)
    assert store.load(STUDY, 200, 10).alarms == (200,)
    # An alarm that rang and was set again for the same time rings again.
    assert saved(store, Folded(b"s", alarms=(200,), rung=(200,)))
    assert store.due(200) == (STUDY, OTHER)
    assert saved(store, Folded(b"s", rung=(200,)))
    accept(store, 1)
    assert store.due(0) == (STUDY, OTHER)
    store.end(STUDY, Ending("closed"))
    assert store.due(1 << 40) == (OTHER,)


def test_a_lease_is_held_by_one_until_its_end(store: Store, other: Store) -> None:
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


def test_a_lease_is_renewed_by_who_has_it(store: Store, other: Store) -> None:
    first = store.lease(STUDY, "a", now=0, until=10)
    assert first is not None
    assert store.renew(STUDY, "a", first, until=15)
    assert not other.renew(STUDY, "b", first, until=99)
    assert other.lease(STUDY, "b", now=14, until=24) is None
    second = other.lease(STUDY, "b", now=15, until=25)
    assert second is not None
    # It is another's, or nobody's, and stays so.
    assert not store.renew(STUDY, "a", first, until=99)
    other.release(STUDY, "b")
    assert not other.renew(STUDY, "b", second, until=99)
    assert store.lease(STUDY, "a", now=16, until=26) == second + 1


@pytest.mark.parametrize("jump", [-(10**9), 10**9])
def test_a_clock_that_jumps_neither_blocks_a_study_nor_lets_two_write(store: Store, other: Store, jump: int) -> None:
    held = store.lease(STUDY, "dead", now=10**12, until=10**12 + 10)
    now = 10**12 + jump
    # A lease from a time that is far away, before or after, is nobody's any more.
    taken = other.lease(STUDY, "b", now, now + 10)
    assert held is not None and taken == held + 1
    accept(store, 1)
    number = store.load(STUDY, now, 1).held[0].number
    # The one that held it is alive after all, by a clock that does not matter.
    assert not store.save(STUDY, held, Folded(b"old", (number,)))
    assert other.save(STUDY, taken, Folded(b"new", (number,)))
    assert store.load(STUDY, now, 1) == Loaded(b"new", (), ())


def test_nobody_saves_under_an_old_term(store: Store, other: Store) -> None:
    old = store.lease(STUDY, "a", 0, 10)
    assert old is not None
    accept(store, 1)
    stale = store.load(STUDY, 0, 10)
    new = other.lease(STUDY, "b", 10, 20)
    assert new is not None
    ending = Ending("done", b"{}")
    took = Folded(b"old", (stale.held[0].number,), (digest(1),), ((None, b"x"),), (5,), (), {"MSG-001": 1}, ending)
    assert not store.save(STUDY, old, took)
    assert store.load(STUDY, 10, 10) == stale
    assert (store.latest(STUDY), store.totals(STUDY).refused, store.study(STUDY)) == (0, {}, HOSTED)
    assert accept(store, 1) == ("repeated",)
    assert other.save(STUDY, new, Folded(b"new", (stale.held[0].number,)))
    assert store.load(STUDY, 10, 10) == Loaded(b"new", (), ())
    # A lease that was given back and taken again by the same process is another one.
    store.release(STUDY, "b")
    assert store.lease(STUDY, "b", 10, 20) == new + 1
    assert not other.save(STUDY, new, Folded(b"late"))


def test_nothing_is_folded_in_twice_even_under_one_lease(store: Store) -> None:
    accept(store, 1, 2)
    loaded = store.load(STUDY, 0, 10)
    numbers = tuple(held.number for held in loaded.held)
    assert saved(store, Folded(b"once", numbers[:1]))
    assert not saved(store, Folded(b"twice", numbers, letters=((None, b"x"),)))
    after = store.load(STUDY, 0, 10)
    assert (after.state, after.held, store.latest(STUDY)) == (b"once", loaded.held[1:], 0)
    accept(store, 3)
    assert numbers[0] not in {held.number for held in store.load(STUDY, 0, 10).held}


def test_a_rejected_submission_frees_its_name(store: Store) -> None:
    accept(store, 1, 2)
    numbers = tuple(held.number for held in store.load(STUDY, 0, 10).held)
    assert saved(store, Folded(b"s", numbers, freed=(digest(1),), rejected={"MSG-001": 1}))
    assert store.accept(STUDY, [answer(1, "else"), answer(2, "else")], FAR) == ("accepted", "conflict")


def test_letters_are_numbered_and_found_by_those_they_are_for(store: Store, other: Store) -> None:
    assert saved(store, Folded(b"s", letters=((None, b"all"), ("anna", b"for anna"), ("bert", b""))))
    assert saved(store, Folded(b"s", letters=((None, b"\x00again"),)))
    assert other.latest(STUDY) == 4
    read = [(letter.number, letter.payload) for letter in other.letters(STUDY, "anna", 0, 1_000)]
    assert read == [(1, b"all"), (2, b"for anna"), (4, b"\x00again")]
    assert [letter.number for letter in other.letters(STUDY, None, 0, 1_000)] == [1, 4]
    assert [letter.number for letter in other.letters(STUDY, "anna", 2, 1_000)] == [4]
    assert [letter.number for letter in other.letters(STUDY, "bert", 1, 1_000)] == [3, 4]
    assert other.letters(STUDY, "anna", 1 << 70, 1_000) == ()
    assert store.letters(STUDY, "anna", 4, 1_000) == ()


@pytest.mark.parametrize(("most", "numbers"), [(0, [1]), (99, [1]), (100, [1]), (199, [1]), (200, [1, 2]), (299, [1, 2]), (300, [1, 2, 3])])
def test_letters_come_in_portions(store: Store, most: int, numbers: list[int]) -> None:
    assert saved(store, Folded(b"s", letters=((None, b"a" * 100),) * 3))
    assert [letter.number for letter in store.letters(STUDY, None, 0, most)] == numbers


def test_own_letters_are_deleted_when_they_are_acknowledged(store: Store) -> None:
    assert saved(store, Folded(b"s", letters=((None, b"1"), ("anna", b"2"), ("bert", b"3"), ("anna", b"4"))))
    assert store.acknowledge(STUDY, "anna", 3, b"n", FAR)
    assert [letter.number for letter in store.letters(STUDY, "anna", 0, 100)] == [1, 4]
    assert [letter.number for letter in store.letters(STUDY, "bert", 0, 100)] == [1, 3]
    # A request that came before deletes nothing.
    assert not store.acknowledge(STUDY, "anna", 1 << 70, b"n", FAR)
    assert [letter.number for letter in store.letters(STUDY, "anna", 0, 100)] == [1, 4]
    assert store.acknowledge(STUDY, "anna", 1 << 70, b"m", FAR)
    assert [letter.number for letter in store.letters(STUDY, "anna", 0, 100)] == [1]
    assert store.latest(STUDY) == 4


@pytest.mark.parametrize("how", ["save", "end"])
def test_what_a_study_leaves_when_it_ends(store: Store, other: Store, how: str) -> None:
    enrol(store, "anna", ticket="t")
    enrol(store, "bert")
    store.leave(STUDY, b"bert", b"nonce", FAR)
    store.enrol(STUDY, b"dora", None, digest("another"), None, answers=(2, 1))
    store.leave(STUDY, b"dora", b"another", FAR)
    assert saved(store, Folded(b"s", letters=((None, b"1"),), alarms=(7,)))
    accept(store, 1, 2)
    taken = store.load(STUDY, 0, 1).held[0].number
    ending = Ending("done", b'{"model": 1}') if how == "save" else Ending("closed", reason="The analyst has closed it.")
    term = store.lease(STUDY, "a", 0, 10)
    assert term is not None
    letters = ((None, b"2"),) if how == "save" else ()
    assert store.save(STUDY, term, Folded(b"t", (taken,), letters=letters, ending=ending)) if how == "save" else store.end(STUDY, ending)

    ended = other.study(STUDY)
    assert ended is not None
    assert (ended.status, ended.result, ended.reason) == (ending.status, ending.result, ending.reason)
    assert other.load(STUDY, FAR, 10) == Loaded(None, (), ())
    assert other.expected(STUDY) == (3, {})
    assert [letter.payload for letter in other.letters(STUDY, None, 0, 100)] == [b"1", *(payload for _, payload in letters)]
    assert (other.totals(STUDY).accepted, other.totals(STUDY).waiting, other.totals(STUDY).enrolled) == (2, 0, 1)

    assert not other.end(STUDY, Ending("failed"))
    assert not store.save(STUDY, term, Folded(b"u"))
    assert store.lease(STUDY, "a", 0, 10) is None
    assert accept(store, 1, 3) == ("over", "over")
    assert enrol(store, "anna", ticket="t") == store.name_of(STUDY, b"anna")
    for key in ("bert", "clara"):
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*ended"):
            enrol(store, key)
    assert store.due(FAR) == ()


def test_studies_have_nothing_to_do_with_each_other(store: Store) -> None:
    store.publish(Hosted(OTHER, b"m", 0, 1))
    accept(store, 1)
    enrol(store, "anna", ticket="t")
    assert is_new(store, b"nonce")
    assert saved(store, Folded(b"s", letters=((None, b"1"),), alarms=(1,), rejected={"MSG-001": 1}))
    assert (store.latest(OTHER), store.letters(OTHER, None, 0, 10), store.load(OTHER, 5, 5)) == (0, (), Loaded(None, (), ()))
    assert (store.totals(OTHER).accepted, store.totals(OTHER).refused) == (0, {})
    assert store.name_of(OTHER, b"anna") is None
    assert not is_issued(store, "t", OTHER)
    assert store.acknowledge(OTHER, "nobody", 0, b"nonce", FAR)
    assert store.accept(OTHER, [answer(1, "else")], FAR) == ("accepted",)
    store.end(STUDY, Ending("closed"))
    assert len(store.load(OTHER, 5, 5).held) == 1
    term = store.lease(OTHER, "a", 0, 1)
    assert term is not None
    assert not store.save(OTHER, term, Folded(b"s", taken=(1,)))


def test_tidying_changes_nothing_that_can_be_asked_for(store: Store) -> None:
    names = [enrol(store, key, ticket=f"ticket of {key}") for key in "zyxabc"]
    store.leave(STUDY, b"x", b"nonce", FAR)
    accept(store, 1)
    for _ in range(2):
        store.tidy(0)
        assert all(is_issued(store, f"ticket of {key}") for key in "abcxyz")
        assert [store.name_of(STUDY, key.encode()) for key in "zyxabc"] == [*names[:2], None, *names[3:]]
        assert store.totals(STUDY).enrolled == 5
        assert not is_new(store, b"nonce")
    assert enrol(store, "d", ticket="another") not in names


def test_tidying_changes_no_registration(epoch: Store, other: Store) -> None:
    issued = [register(epoch, key, commitment=key, issued=key.encode() * 5) for key in "zyxabc"]
    for _ in range(2):
        epoch.tidy(0)
        assert [register(other, key, commitment=key) for key in "zyxabc"] == issued
        assert other.members(SECOND.digest) == (b"a", b"b", b"c", b"x", b"y", b"z")


def test_a_store_that_is_closed(url: str) -> None:
    store = open_store(url)
    store.publish(HOSTED)
    store.close()
    with open_store(url) as again:
        assert again.studies() == (HOSTED,)


def test_one_of_several_that_send_the_same_is_first(store: Store, other: Store) -> None:
    for i in range(5):
        outcomes = at_once(*[lambda each=each, i=i: accept(each, i) for each in (store, other, store, other)])
        assert sorted(outcomes) == [("accepted",), ("repeated",), ("repeated",), ("repeated",)]
        outcomes = at_once(lambda i=i: is_new(store, digest(i)), lambda i=i: is_new(other, digest(i)))
        assert sorted(outcomes) == [False, True]
    assert store.totals(STUDY).accepted == 5


def test_batches_that_cross_each_other_do_not_block(store: Store, other: Store) -> None:
    up = [answer(i, nonce=digest(("up", i))) for i in range(200)]
    down = [answer(i, nonce=digest(("down", i))) for i in reversed(range(200))]
    one, another = at_once(lambda: store.accept(STUDY, up, FAR), lambda: other.accept(STUDY, down, FAR))
    assert {one, another} == {("accepted",) * 200, ("repeated",) * 200}


def test_one_of_several_has_the_lease(store: Store, other: Store) -> None:
    for i in range(5):
        terms = at_once(
            *[lambda each=each, j=j, i=i: each.lease(STUDY, f"{i} {j}", 10 * i, 10 * i + 10) for j, each in enumerate((store, other) * 2)]
        )
        assert sorted(term or 0 for term in terms) == [0, 0, 0, i + 1]


def test_the_last_seat_goes_to_one(url: str) -> None:
    with open_store(url) as store, open_store(url) as other:
        store.publish(Hosted(STUDY, b"m", 0, 1, seats=("one", "two", "three")))
        found = at_once(*[lambda each=each, key=key: enrol(each, key) for key, each in zip("abcdef", (store, other) * 3, strict=True)])
        assert sorted(found) == ["ENROL-001", "ENROL-001", "ENROL-001", "one", "three", "two"]


def test_an_invitation_and_a_ticket_are_used_by_one(url: str) -> None:
    with open_store(url) as store, open_store(url) as other:
        store.publish(Hosted(STUDY, b"m", 0, 1, by_invitation=True), [digest("x"), digest("y"), digest("z")])
        found = at_once(
            *[lambda each=each, key=key: enrol(each, key, invitation="x") for key, each in zip("ab", (store, other), strict=True)]
        )
        assert found.count("ENROL-001") == 1
        found = at_once(
            lambda: enrol(store, "c", ticket="t", invitation="y"),
            lambda: enrol(other, "d", ticket="t", invitation="z"),
        )
        assert found.count("ENROL-002") == 1
        assert store.totals(STUDY).enrolled == 2


def test_nothing_is_accepted_into_a_study_that_ends(store: Store, other: Store) -> None:
    publishers = [Hosted(digest(i).hex(), b"m", 0, 1) for i in range(5)]
    for hosted in publishers:
        store.publish(hosted)
        outcomes, _ = at_once(
            lambda hosted=hosted: store.accept(hosted.digest, [answer(1)], FAR),
            lambda hosted=hosted: other.end(hosted.digest, Ending("closed")),
        )
        assert outcomes in (("accepted",), ("over",))
        assert store.load(hosted.digest, 0, 1).held == ()


def test_whoever_has_seen_a_letter_finds_no_earlier_one_later(store: Store, other: Store) -> None:
    """Two processes take turns to save, a third reads on from the last number that it saw."""
    n, seen = 40, []

    def write(each: Store, holder: str) -> None:
        done = 0
        while done < n:
            term = each.lease(STUDY, holder, 0, 10)
            if term is not None:
                done += each.save(STUDY, term, Folded(b"s", letters=((None, b"x"), (None, b"y"))))
                each.release(STUDY, holder)

    def read() -> None:
        while len(seen) < 4 * n:
            seen.extend(letter.number for letter in other.letters(STUDY, None, seen[-1] if seen else 0, 1_000))
            assert other.latest(STUDY) >= len(seen)

    at_once(lambda: write(store, "a"), lambda: write(other, "b"), read)
    assert seen == list(range(1, 4 * n + 1))


def run_at_once(url: str, n_processes: int, work: Callable[..., None], *arguments: object) -> list[object]:
    with ExitStack() as stack:
        links = [stack.enter_context(child(work, url, *arguments))[0] for _ in range(n_processes)]
        assert [link.recv() for link in links] == ["ready"] * n_processes
        for link in links:
            link.send("go")
        return [link.recv() for link in links]


def test_processes_that_start_at_the_same_moment(url: str) -> None:
    assert sorted(map(bool, run_at_once(url, 4, store_child.begin))) == [False, False, False, True]
    with open_store(url) as store:
        assert store.studies() == (HOSTED,)


def test_processes_that_accept_and_step_the_same_study(store: Store, url: str) -> None:
    counts = run_at_once(url, 3, store_child.accept_the_same, 40)
    assert sum(int(str(count)) for count in counts) == 40
    assert fold(store, "last", now=100, until=200)
    assert sorted(state_of(store)) == list(range(40))


def kill_and_check(url: str, entropy: SeededEntropy, n_kills: int, server: Postgres | None = None) -> None:
    """After each kill: what was acknowledged is folded in once, what was asked for at most once, and letters have no gaps."""
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
            # The lease of the one that died has an end.
            assert fold(store, f"after {round_}", now=100 * round_ + 50, until=100 * round_ + 51)
            store.release(STUDY, f"after {round_}")
            state = state_of(store)
            assert len(state) == len(set(state))
            assert sure <= set(state) <= perhaps
            numbers = [letter.number for letter in store.letters(STUDY, None, 0, 1 << 20)]
            assert numbers == list(range(1, store.latest(STUDY) + 1))
            assert store.totals(STUDY).accepted == len(state)
        first = max(perhaps) + 1
    assert len(sure) >= n_kills


def test_a_writer_is_killed_at_any_moment(url: str, entropy: SeededEntropy) -> None:
    kill_and_check(url, entropy, 6)


@pytest.mark.soak
def test_a_writer_is_killed_at_length(url: str, entropy: SeededEntropy) -> None:
    kill_and_check(url, entropy, 100)


def test_postgresql_is_killed_at_any_moment(entropy: SeededEntropy) -> None:
    with postgres() as server:
        kill_and_check(server.new_database(), entropy, 4, server)


def test_what_postgresql_has_emptied_it_gives_up(postgres_server: Postgres) -> None:
    """Of each table that is emptied at a study's end, the places of what was deleted are free to be written over."""
    url = postgres_server.new_database()
    with open_store(url) as store:
        store.publish(HOSTED)
        store.enrol(STUDY, b"anna", None, digest("t"), None, answers=(1,))
        accept(store, 1)
        assert saved(store, Folded(b"s", alarms=(7,)))
        store.end(STUDY, Ending("closed"))
        store.tidy(0)
    query = "SELECT relname FROM pg_stat_user_tables WHERE last_vacuum IS NOT NULL"
    with psycopg.connect(url, autocommit=True) as db:
        assert {name for (name,) in db.execute(query)} >= {*EMPTIED, "nonce", "enrolment", "letter"}


def test_a_store_goes_on_when_postgresql_is_back() -> None:
    with postgres() as server, open_store(server.new_database()) as store:
        store.publish(HOSTED)
        assert at_once(*[lambda i=i: accept(store, i) for i in range(4)]) == [("accepted",)] * 4
        server.kill()
        for call in (store.ping, lambda: accept(store, 9), lambda: store.tidy(0)):
            with pytest.raises(StoreError, match="STORE-001"):
                call()
        server.restart()
        store.ping()
        assert accept(store, 1, 9) == ("repeated", "accepted")
        # All connections broke at once; none of them is used again.
        server.kill()
        server.restart()
        assert at_once(*[lambda i=i: accept(store, i) for i in range(10, 14)]) == [("accepted",)] * 4
