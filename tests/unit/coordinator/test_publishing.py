"""A coordinator makes its keys once; a study is published once, with time, seats and invitations, or is refused before that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator_cases import NOW, QUERIES, manifest_of
from shoal.coordinator.aggregators import queries_of
from shoal.coordinator.keys import Keys
from shoal.coordinator.publishing import A_DAY, draw_invitations, end_of, first_start, key_digest, patience_of, publish, ticket_digest
from shoal.coordinator.store.base import Store
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, SpecError, UsageError
from shoal.protocols.sdq.queries import Histogram
from shoal.study.anonymity import scope_of
from token_cases import KEYS, study_of

ENTROPY = SeededEntropy(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "store.db") as opened:
        yield opened


def test_the_analyst_s_key_is_told_once_and_kept_as_a_digest(store: Store, tmp_path: Path) -> None:
    secrets, key = first_start(store, ENTROPY)
    assert key is not None
    assert len(bytes.fromhex(key.replace("-", ""))) == 32
    assert secrets.analyst_digest == key_digest(key)
    assert first_start(store, ENTROPY) == (secrets, None)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secrets.analyst_digest in kept
    assert key.encode() not in kept
    assert bytes.fromhex(key.replace("-", "")) not in kept


def test_a_key_is_the_same_however_it_is_typed() -> None:
    assert key_digest("AB-cd 12\n") == key_digest("abcd12")
    assert key_digest("abcd13") != key_digest("abcd12")
    assert ticket_digest(b"a") != ticket_digest(b"b")


def test_a_study_is_published_once(store: Store) -> None:
    hosted, is_new = publish(store, manifest_of("pfds"), NOW, patience=5)
    again = publish(store, manifest_of("pfds"), NOW + 9, patience=7)
    assert is_new
    assert again == (hosted, False)
    assert (hosted.opened, hosted.patience, hosted.seats) == (NOW, 5, tuple(f"holder-{i}" for i in range(4)))
    assert store.studies() == (hosted,)


def test_queries_are_kept_with_the_study(store: Store) -> None:
    hosted, _ = publish(store, manifest_of("sdq"), NOW, queries=QUERIES)
    assert queries_of(hosted) == QUERIES
    assert hosted.patience == A_DAY


def test_invitations_are_kept_as_digests(store: Store) -> None:
    codes = draw_invitations(3, ENTROPY)
    hosted, _ = publish(store, manifest_of("anonml"), NOW, invitations=codes)
    assert len(set(codes)) == 3
    assert hosted.by_invitation
    assert store.enrol(hosted.digest, b"k" * 32, None, ticket_digest(b"t"), key_digest(codes[1].upper()))


@pytest.mark.parametrize(
    ("name", "how", "code"),
    [
        ("shuffled", {}, "HOST-003"),
        ("sdq", {"queries": (Histogram(features=("age",)),)}, "SDQ-002"),
        ("sdq", {"invitations": ("a code",)}, "USAGE-001"),
        ("anonml", {"patience": 0}, "USAGE-001"),
        ("anonml", {"patience": 400 * A_DAY}, "USAGE-001"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_is_stored(store: Store, name: str, how: dict[str, object], code: str) -> None:
    with pytest.raises(ShoalError) as caught:
        publish(store, manifest_of(name), NOW, **how)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert store.studies() == ()


def test_a_study_with_tokens_has_a_scope(store: Store) -> None:
    alone, shared, devices = study_of("anonml"), study_of("anonml", epoch="2030"), study_of("ddml", epoch="2030")
    scopes = [publish(store, manifest, NOW, issuing=KEYS.issuing)[0].scope for manifest in (alone, shared, devices)]
    assert scopes == [scope_of(alone), scope_of(shared), scope_of(shared)] and len(set(scopes)) == 2
    assert publish(store, manifest_of("anonml"), NOW)[0].scope is None


def test_studies_of_an_epoch_are_all_by_invitation_or_none_is(store: Store) -> None:
    first, second, others = study_of("anonml", epoch="2030"), study_of("ddml", epoch="2030"), study_of("ddml", epoch="2031")
    publish(store, first, NOW, issuing=KEYS.issuing, invitations=("a code",))
    # Who is a member needs no code, and another one would make another member of the same person: so there need be none.
    assert publish(store, second, NOW, issuing=KEYS.issuing)[0].by_invitation
    assert not publish(store, others, NOW, issuing=KEYS.issuing)[0].by_invitation
    with pytest.raises(SpecError, match=r"HOST-003.*by invitation, and others of its epoch are open to all"):
        publish(store, study_of("anonml", epoch="2031"), NOW, issuing=KEYS.issuing, invitations=("another",))
    assert len(store.studies()) == 2 + 1
    # The same one again goes on, whatever is said of it.
    assert not publish(store, first, NOW, issuing=KEYS.issuing)[1]


def test_keys_are_made_of_the_one_secret_that_is_kept() -> None:
    one, same, other = Keys(bytes(32)), Keys(bytes(32)), Keys(bytes(31) + b"\1")
    assert one.issuing == same.issuing
    secrets = {bytes.fromhex(one.issuing.issuer_key), one.gateway, one.gateway_key, bytes(32), Identity.from_seed(bytes(32)).public}
    assert len(secrets) == 5 and other.issuing.issuer_key != one.issuing.issuer_key and other.gateway != one.gateway


def test_a_study_without_its_roster_is_refused(store: Store) -> None:
    with pytest.raises(SpecError, match="roster"):
        publish(store, replace(manifest_of("pfds sum"), roster=()), NOW)
    with pytest.raises(UsageError, match="invitations"):
        publish(store, manifest_of("pfds sum"), NOW, invitations=("a",))


CLOSES = "2030-01-02T00:00:00Z"
"""A day after `NOW`."""


@pytest.mark.parametrize(
    ("name", "closes", "patience"),
    [
        ("anonml", None, A_DAY),
        ("anonml", CLOSES, A_DAY),
        ("anonml phases", CLOSES, A_DAY // 13),
        ("pfds", CLOSES, A_DAY),
        ("pfds paper", CLOSES, A_DAY // 2),
        ("ddml", "2030-01-05T00:00:00Z", 4 * A_DAY),
        ("anonml", "2050-01-05T00:00:00Z", 366 * A_DAY),
        ("sdq", "2030-01-05T00:00:00Z", A_DAY),
    ],
)
def test_phases_share_the_time_until_the_study_closes(name: str, closes: str | None, patience: int) -> None:
    assert patience_of(manifest_of(name, closes=closes), NOW) == patience


@pytest.mark.parametrize(
    ("name", "wished", "patience"),
    [
        ("anonml", A_DAY // 3, A_DAY // 3),
        ("anonml", 2 * A_DAY, A_DAY),
        ("anonml phases", A_DAY // 2, A_DAY // 13),
        ("sdq", 3 * A_DAY, A_DAY),
        ("sdq", 1_000, 1_000),
        ("ddml", 2 * A_DAY, A_DAY),
    ],
)
def test_nobody_is_waited_for_after_the_study_has_closed(name: str, wished: int, patience: int) -> None:
    assert patience_of(manifest_of(name, closes=CLOSES), NOW, wished) == patience


@pytest.mark.parametrize("wished", [None, A_DAY])
@pytest.mark.parametrize("name", ["anonml", "sdq"])
def test_a_study_that_has_closed_is_not_published(name: str, wished: int | None) -> None:
    with pytest.raises(SpecError) as caught:
        patience_of(manifest_of(name, closes="2029-12-31T00:00:00Z"), NOW, wished)
    assert caught.value.code == "HOST-003"


@pytest.mark.parametrize(
    ("name", "patience", "ends"),
    [
        ("anonml", 2_500, "when all {size:,} have answered, or after 2.5 s, at 2030-01-01 00:00 UTC; it fails with fewer than {minimum}"),
        (
            "anonml phases",
            90_000,
            "after 13 phases, each when all {size:,} have answered or after 1.5 minutes; it fails with fewer than {minimum}",
        ),
        ("pfds", A_DAY, "when all 4 have answered, or after 1 day, at 2030-01-02 00:00 UTC; it fails with fewer than {minimum}"),
        ("pfds paper", A_DAY // 2, "after 2 phases, each when all 4 have answered or after 12 hours; it fails with fewer than {minimum}"),
        ("pfds sum", A_DAY, "after its steps, each when all {members} have answered or after 1 day; it fails with fewer than {minimum}"),
        ("sdq", 2 * A_DAY, "after its steps, each when all {members} have answered or after 2 days; it fails with fewer than {minimum}"),
        ("ddml", A_DAY, "with {size:,} updates, or after 1 day, at 2030-01-02 00:00 UTC; it fails with fewer than {minimum}"),
    ],
)
def test_the_end_is_told_beforehand(store: Store, name: str, patience: int, ends: str) -> None:
    manifest = manifest_of(name)
    hosted, _ = publish(store, manifest, NOW, patience=patience)
    participation = manifest.study.participation
    assert end_of(manifest, hosted) == ends.format(
        size=participation.size, minimum=f"{participation.minimum:,}", members=len(manifest.roster)
    )


def test_the_end_is_told_with_the_time_at_which_a_study_closes(store: Store) -> None:
    manifest = manifest_of("sdq", closes="2030-01-05T00:00:00Z")
    assert ", or when it closes, at 2030-01-05 00:00 UTC; it fails" in end_of(manifest, publish(store, manifest, NOW)[0])
