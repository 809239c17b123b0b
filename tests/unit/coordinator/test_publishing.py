"""Keys of a coordinator, and publication of studies with timeouts, seats and invitations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import (
    DAY_MILLISECONDS,
    add_schedule,
    compute_phase_timeout,
    describe_end,
    draw_invitations,
    hash_key,
    hash_ticket,
    load_or_create_secrets,
    publish,
)
from shoal.coordinator.store.base import NewEnrolment, Store
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, SpecError, UsageError
from shoal.protocols.sdq.queries import HistogramQuery
from shoal.study.delivery import compute_scope
from shoal.study.handle import StudyHandle
from shoal.study.schedule import Schedule
from shoal.study.sdq import decode_queries
from tests.support.coordinator import NOW, QUERIES, make_manifest, publish_manifest
from tests.support.credentials import KEYS, make_study, tokened

ENTROPY = SeededEntropy(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "store.db") as opened:
        yield opened


def test_analyst_key_is_returned_once_and_stored_as_digest(store: Store, tmp_path: Path) -> None:
    secrets, key = load_or_create_secrets(store, ENTROPY)
    assert key is not None
    assert len(bytes.fromhex(key.replace("-", ""))) == 32
    assert secrets.analyst_digest == hash_key(key)
    assert load_or_create_secrets(store, ENTROPY) == (secrets, None)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secrets.analyst_digest in kept
    assert key.encode() not in kept
    assert bytes.fromhex(key.replace("-", "")) not in kept


def test_hash_key_ignores_case_spaces_and_hyphens() -> None:
    assert hash_key("AB-cd 12\n") == hash_key("abcd12")
    assert hash_key("abcd13") != hash_key("abcd12")
    assert hash_ticket(b"a") != hash_ticket(b"b")


def test_publish_stores_study_once(store: Store) -> None:
    record, is_new = publish_manifest(store, make_manifest("pfds"), NOW, phase_timeout=5)
    again = publish_manifest(store, make_manifest("pfds"), NOW + 9, phase_timeout=7)
    assert is_new
    assert again == (record, False)
    assert (record.opened, record.phase_timeout, record.seats) == (
        NOW,
        5,
        tuple(f"holder-{i}" for i in range(4)),
    )
    assert store.list_studies() == (record,)


def test_publish_stores_queries(store: Store) -> None:
    record, _ = publish_manifest(store, make_manifest("sdq"), NOW, queries=QUERIES)
    assert decode_queries(record.queries) == QUERIES
    assert record.phase_timeout == DAY_MILLISECONDS


def test_publish_stores_digests_of_invitations(store: Store) -> None:
    codes = draw_invitations(3, ENTROPY)
    record, _ = publish_manifest(store, make_manifest("anonml"), NOW, invitations=codes)
    assert len(set(codes)) == 3
    assert record.by_invitation
    assert store.enrol(
        record.digest,
        NewEnrolment(b"k" * 32, ticket=hash_ticket(b"t"), invitation=hash_key(codes[1].upper())),
    )


@pytest.mark.parametrize(
    ("name", "how", "code"),
    [
        ("shuffled", {}, "HOST-003"),
        ("sdq", {"queries": (HistogramQuery(features=("age",)),)}, "SDQ-002"),
        ("sdq", {"invitations": ("a code",)}, "USAGE-001"),
        ("anonml", {"phase_timeout": 0}, "USAGE-001"),
        ("anonml", {"phase_timeout": 400 * DAY_MILLISECONDS}, "USAGE-001"),
    ],
)
def test_publish_rejects_unservable_study_and_stores_nothing(
    store: Store, name: str, how: dict[str, object], code: str
) -> None:
    with pytest.raises(ShoalError) as caught:
        publish_manifest(store, make_manifest(name), NOW, **how)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert store.list_studies() == ()


def test_record_of_study_with_tokens_has_scope(store: Store) -> None:
    alone, shared, devices = (
        make_study("anonml"),
        make_study("anonml", epoch="2030"),
        make_study("ddml", epoch="2030"),
    )
    scopes = [
        publish_manifest(store, manifest, NOW, issuing=KEYS.public_keys)[0].scope
        for manifest in (alone, shared, devices)
    ]
    assert (
        scopes == [compute_scope(alone), compute_scope(shared), compute_scope(shared)]
        and len(set(scopes)) == 2
    )
    assert publish_manifest(store, make_manifest("anonml"), NOW)[0].scope is None


def test_publish_rejects_mixed_admission_in_epoch(store: Store) -> None:
    first, second, others = (
        make_study("anonml", epoch="2030"),
        make_study("ddml", epoch="2030"),
        make_study("ddml", epoch="2031"),
    )
    publish_manifest(store, first, NOW, issuing=KEYS.public_keys, invitations=("a code",))
    # Who is a member needs no code, and another one would make another member of the same person:
    # so there need be none.
    assert publish_manifest(store, second, NOW, issuing=KEYS.public_keys)[0].by_invitation
    assert not publish_manifest(store, others, NOW, issuing=KEYS.public_keys)[0].by_invitation
    with pytest.raises(
        SpecError, match=r"HOST-003.*by invitation, but other studies of its epoch are open to all"
    ):
        publish_manifest(
            store,
            make_study("anonml", epoch="2031"),
            NOW,
            issuing=KEYS.public_keys,
            invitations=("another",),
        )
    assert len(store.list_studies()) == 2 + 1
    # The same one again goes on, whatever is said of it.
    assert not publish_manifest(store, first, NOW, issuing=KEYS.public_keys)[1]


def test_coordinator_keys_are_derived_from_seed() -> None:
    one, same, other = (
        CoordinatorKeys(bytes(32)),
        CoordinatorKeys(bytes(32)),
        CoordinatorKeys(bytes(31) + b"\1"),
    )
    assert one.public_keys == same.public_keys
    secrets = {
        bytes.fromhex(one.public_keys.issuer_key),
        one.gateway_secret,
        one.gateway_key,
        bytes(32),
        Identity.from_seed(bytes(32)).public_key,
    }
    assert (
        len(secrets) == 5
        and other.public_keys.issuer_key != one.public_keys.issuer_key
        and other.gateway_secret != one.gateway_secret
    )


def test_publish_rejects_study_without_roster(store: Store) -> None:
    with pytest.raises(SpecError, match="roster"):
        publish_manifest(store, replace(make_manifest("pfds sum"), roster=()), NOW)
    with pytest.raises(UsageError, match="invitations"):
        publish_manifest(store, make_manifest("pfds sum"), NOW, invitations=("a",))


CLOSES = "2030-01-02T00:00:00Z"
"""A day after `NOW`."""


@pytest.mark.parametrize(
    ("name", "closes", "patience"),
    [
        ("anonml", None, DAY_MILLISECONDS),
        ("anonml", CLOSES, DAY_MILLISECONDS),
        ("anonml phases", CLOSES, DAY_MILLISECONDS // 13),
        ("pfds", CLOSES, DAY_MILLISECONDS),
        ("pfds paper", CLOSES, DAY_MILLISECONDS // 2),
        ("ddml", "2030-01-05T00:00:00Z", 4 * DAY_MILLISECONDS),
        ("anonml", "2050-01-05T00:00:00Z", 366 * DAY_MILLISECONDS),
        ("sdq", "2030-01-05T00:00:00Z", DAY_MILLISECONDS),
    ],
)
def test_phase_timeout_shares_time_until_close(
    name: str, closes: str | None, patience: int
) -> None:
    assert compute_phase_timeout(StudyHandle(make_manifest(name, closes=closes)), NOW) == patience


@pytest.mark.parametrize(
    ("name", "wished", "patience"),
    [
        ("anonml", DAY_MILLISECONDS // 3, DAY_MILLISECONDS // 3),
        ("anonml", 2 * DAY_MILLISECONDS, DAY_MILLISECONDS),
        ("anonml phases", DAY_MILLISECONDS // 2, DAY_MILLISECONDS // 13),
        ("sdq", 3 * DAY_MILLISECONDS, DAY_MILLISECONDS),
        ("sdq", 1_000, 1_000),
        ("ddml", 2 * DAY_MILLISECONDS, DAY_MILLISECONDS),
    ],
)
def test_phase_timeout_ends_before_close(name: str, wished: int, patience: int) -> None:
    assert (
        compute_phase_timeout(StudyHandle(make_manifest(name, closes=CLOSES)), NOW, wished)
        == patience
    )


@pytest.mark.parametrize("wished", [None, DAY_MILLISECONDS])
@pytest.mark.parametrize("name", ["anonml", "sdq"])
def test_publish_rejects_closed_study(name: str, wished: int | None) -> None:
    with pytest.raises(SpecError) as caught:
        compute_phase_timeout(
            StudyHandle(make_manifest(name, closes="2029-12-31T00:00:00Z")), NOW, wished
        )
    assert caught.value.code == "HOST-003"


@pytest.mark.parametrize(
    ("name", "patience", "ends"),
    [
        (
            "anonml",
            2_500,
            "when all {size:,} have answered, or after 2.5 s, at 2030-01-01 00:00 UTC; it fails "
            "with fewer than {minimum}",
        ),
        (
            "anonml phases",
            90_000,
            "after 13 phases, each when all {size:,} have answered or after 1.5 minutes; it fails "
            "with fewer than {minimum}",
        ),
        (
            "pfds",
            DAY_MILLISECONDS,
            "when all 4 have answered, or after 1 day, at 2030-01-02 00:00 UTC; it fails with "
            "fewer than {minimum}",
        ),
        (
            "pfds paper",
            DAY_MILLISECONDS // 2,
            "after 2 phases, each when all 4 have answered or after 12 hours; it fails with fewer "
            "than {minimum}",
        ),
        (
            "pfds sum",
            DAY_MILLISECONDS,
            "after its steps, each when all {members} have answered or after 1 day; it fails with "
            "fewer than {minimum}",
        ),
        (
            "sdq",
            2 * DAY_MILLISECONDS,
            "after its steps, each when all {members} have answered or after 2 days; it fails "
            "with fewer than {minimum}",
        ),
        (
            "ddml",
            DAY_MILLISECONDS,
            "with {size:,} updates, or after 1 day, at 2030-01-02 00:00 UTC; it fails with fewer "
            "than {minimum}",
        ),
    ],
)
def test_describe_end_states_when_study_ends(
    store: Store, name: str, patience: int, ends: str
) -> None:
    manifest = make_manifest(name)
    record, _ = publish_manifest(store, manifest, NOW, phase_timeout=patience)
    participation = manifest.study.participation
    assert describe_end(StudyHandle(manifest), record) == ends.format(
        size=participation.size, minimum=f"{participation.minimum:,}", members=len(manifest.roster)
    )


def test_describe_end_states_closing_time(store: Store) -> None:
    manifest = make_manifest("sdq", closes="2030-01-05T00:00:00Z")
    assert ", or when it closes, at 2030-01-05 00:00 UTC; it fails" in describe_end(
        StudyHandle(manifest), publish_manifest(store, manifest, NOW)[0]
    )


def test_add_schedule_opens_study_with_packets_now_and_once(store: Store) -> None:
    manifest = replace(make_study("anonml phases"), schedule=None)
    first = add_schedule(StudyHandle(manifest), NOW, 60_000, store)
    assert first.manifest.schedule == Schedule(NOW, 60_000)
    record, is_new = publish(store, first, NOW, issuing=KEYS.public_keys)
    assert is_new and (record.opened, record.phase_timeout) == (NOW, 60_000)
    # The same command later continues the study, and does not begin another one.
    again = add_schedule(StudyHandle(manifest), NOW + 5, 70_000, store)
    assert again.manifest == first.manifest
    assert add_schedule(again, NOW + 5, None, store) is again
    other = StudyHandle(make_study("ddml"))
    assert add_schedule(other, NOW, None, store) is other


def test_add_schedule_shares_time_until_close() -> None:
    manifest = tokened(make_manifest("anonml phases", closes=CLOSES))
    handle = add_schedule(StudyHandle(replace(manifest, schedule=None)), NOW, None)
    n_phases, closes = handle.protocol.count_phases(handle), manifest.study.participation.closes
    assert n_phases is not None and closes is not None
    assert handle.schedule.get_window(n_phases - 1).closes <= closes


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (None, "has no schedule"),
        (Schedule(NOW - 60_000, 60_000), "nobody can join after"),
        (Schedule(NOW, 5 * DAY_MILLISECONDS), "after it closes"),
    ],
)
def test_publish_rejects_study_that_nobody_could_join_in_time(
    store: Store, schedule: Schedule | None, words: str
) -> None:
    manifest = tokened(make_manifest("anonml", closes=CLOSES))
    with pytest.raises(SpecError, match=f"HOST-003.*{words}"):
        publish_manifest(store, replace(manifest, schedule=schedule), NOW, issuing=KEYS.public_keys)
