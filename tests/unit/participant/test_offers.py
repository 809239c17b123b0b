"""Offers: the choice of a study, and checks of its digest and signature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, UsageError
from shoal.participant.journal import JoinedStudy, Journal
from shoal.participant.offers import Offer, fetch_offer, record_consent
from shoal.study.handle import StudyHandle
from shoal.transport.api import SignedManifest
from shoal.transport.signing import sign_manifest
from tests.support.credentials import token_manifest
from tests.support.participants import COORDINATOR, URL, Desk, make_manifest

MANIFEST = make_manifest("anonml")
DIGEST = MANIFEST.digest.hex()


@pytest.mark.parametrize(
    "study", [None, DIGEST, DIGEST[:5], MANIFEST.short_digest, MANIFEST.short_digest.upper()]
)
def test_fetch_offer_finds_study_by_digest_or_only_open_one(study: str | None) -> None:
    assert asyncio.run(fetch_offer(Desk(MANIFEST), study)) == Offer(
        URL, StudyHandle(MANIFEST), COORDINATOR.public_key
    )


class SeveralStudies(Desk):
    """A coordinator with several studies."""

    listed: tuple[dict[str, Any], ...] = ()

    async def fetch_studies(self) -> list[dict[str, Any]]:
        return [*await super().fetch_studies(), *self.listed]


def test_fetch_offer_raises_if_no_or_several_studies_match() -> None:
    desk = SeveralStudies(MANIFEST)
    desk.listed = (
        {"digest": "ab" * 32, "title": "Another \x1b[2J", "status": "open"},
        {"digest": "x", "title": "No", "status": "open"},
    )
    with pytest.raises(UsageError, match="offers 2 studies") as error:
        asyncio.run(fetch_offer(desk))
    assert MANIFEST.short_digest in error.value.what
    assert "\x1b" not in error.value.what
    with pytest.raises(UsageError, match=r"No study at .* begins with '123'"):
        asyncio.run(fetch_offer(desk, "123"))
    desk.status = "done"
    desk.listed = ()
    with pytest.raises(UsageError, match=r"No study at .* is open") as error:
        asyncio.run(fetch_offer(desk))
    assert (
        MANIFEST.short_digest in (error.value.why or "")
        and error.value.fix == "Choose one: --study DIGEST"
    )
    assert asyncio.run(fetch_offer(desk, DIGEST)).digest == DIGEST


def other(published: SignedManifest) -> SignedManifest:
    manifest = make_manifest("pfds", pfds={"n_holders": 3})
    return published.replace(
        manifest=manifest.to_bytes(), signature=sign_manifest(COORDINATOR, manifest.digest)
    )


LIES: dict[str, Callable[[SignedManifest], SignedManifest]] = {
    "another study": other,
    "no manifest": lambda published: published.replace(manifest=b"\xa0"),
    "no signature": lambda published: published.replace(signature=bytes(64)),
    "another key": lambda published: published.replace(
        key=Identity.from_seed(bytes(32)).public_key
    ),
    "a key that signs anything": lambda published: published.replace(key=bytes(31) + b"\x80"),
}


SHUFFLED = make_manifest(
    "anonml",
    trust="shuffled",
    privacy={"epsilon": 2.0, "delta": 1e-6},
    participation={"minimum": 1000, "size": 1000, "honest_share": 0.9},
)
UNFIT = {
    "shuffled without tokens": replace(
        SHUFFLED, gateway_key=bytes([9]) + bytes(31), relay="https://relay.example"
    ),
    "a place in all studies of an epoch": token_manifest(
        variant="paper", anonml={"n_partitions": 2, "n_subsets": 2, "subset_size": 1}, epoch="2026"
    ),
}


@pytest.mark.parametrize("how", UNFIT)
def test_offer_of_less_anonymous_study_is_refused(how: str) -> None:
    manifest = UNFIT[how]
    with pytest.raises(
        RemoteProtocolError, match=r"HOST-003.*cannot be joined as it is offered"
    ) as error:
        asyncio.run(fetch_offer(Desk(manifest), manifest.digest.hex()))
    assert error.value.why and error.value.fix
    joined = JoinedStudy(
        manifest.digest.hex(),
        URL,
        URL,
        COORDINATOR.public_key,
        manifest.to_bytes(),
        "Wind",
        "rows.csv",
    )
    with pytest.raises(RemoteProtocolError, match="HOST-003"):
        Offer.from_joined(joined)


@pytest.mark.parametrize("lie", LIES)
def test_fetch_offer_rejects_changed_or_unsigned_manifest(lie: str) -> None:
    class Liar(Desk):
        async def fetch_manifest(self, study: str) -> SignedManifest:
            return LIES[lie](await super().fetch_manifest(study))

    with pytest.raises(RemoteProtocolError, match="AUTH-004"):
        asyncio.run(fetch_offer(Liar(MANIFEST), DIGEST))


def test_fetch_offer_rejects_other_key_than_pinned() -> None:
    assert (
        asyncio.run(fetch_offer(Desk(MANIFEST), None, COORDINATOR.public_key)).key
        == COORDINATOR.public_key
    )
    with pytest.raises(RemoteProtocolError, match="has a different key than before"):
        asyncio.run(fetch_offer(Desk(MANIFEST), None, bytes(32)))


@pytest.mark.parametrize(
    "relay",
    [
        "http://127.0.0.1:8080",
        "http://localhost:8080",
        "http://[::1]:8080",
        "https://127.1",
        "https://2130706433/relay",
        "https://0.0.0.0",
        "https://localhost.",
        "https://box.localhost",
        "https://[::ffff:127.0.0.1]",
    ],
)
def test_fetch_offer_rejects_relay_on_own_machine_of_other_coordinator(relay: str) -> None:
    manifest = replace(token_manifest(), gateway_key=bytes([9]) * 32, relay=relay)
    with pytest.raises(RemoteProtocolError, match="is an address of this computer") as refused:
        asyncio.run(fetch_offer(Desk(manifest, url="https://study.example"), None))
    assert refused.value.code == "NET-005"
    # A coordinator on this machine may have its relay here too.
    for url in (URL, "http://localhost:8700", "https://127.0.0.1:8700"):
        assert asyncio.run(fetch_offer(Desk(manifest, url=url), None)).manifest == manifest


def test_fetch_offer_accepts_relay_elsewhere() -> None:
    manifest = replace(
        token_manifest(), gateway_key=bytes([9]) * 32, relay="https://relay.example/a"
    )
    desk = Desk(manifest, url="https://study.example")
    assert asyncio.run(fetch_offer(desk, None)).manifest == manifest


def test_record_consent_stores_study_with_ticket(tmp_path: Path) -> None:
    offer = Offer(URL, StudyHandle(MANIFEST), COORDINATOR.public_key)
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            record_consent(journal, offer, "me.csv", SeededEntropy(1))
        first = record_consent(journal, offer, "me.csv", SystemEntropy())
        joined = record_consent(journal, offer, "me.csv", SystemEntropy(), invitation="code")
        assert (joined.standing, joined.invitation) == ("agreed", "code")
        assert joined.ticket == first.ticket
        assert len(set(joined.ticket)) > 8
        assert Offer.from_joined(joined) == offer
        assert "code" not in repr(joined)


def test_record_consent_draws_ticket_only_if_study_has_tickets(tmp_path: Path) -> None:
    settings = {"n_instances": 2, "admission": "token"}
    cases = [
        (make_manifest("anonml"), 32),
        (make_manifest("ddml", ddml=settings), 32),
        (make_manifest("ddml", ddml={**settings, "admission": "signed"}), 0),
        (make_manifest("pfds", pfds={"n_holders": 3}), 0),
        (token_manifest(), 0),
        (token_manifest("ddml", ddml=settings), 0),
    ]
    for i, (manifest, n) in enumerate(cases):
        with Journal(tmp_path / f"{i}.db", ManualClock()) as journal:
            joined = record_consent(
                journal,
                Offer(URL, StudyHandle(manifest), COORDINATOR.public_key),
                "me.csv",
                SystemEntropy(),
            )
            assert len(joined.ticket) == n


def test_fetch_offer_without_studies_suggests_asking_analyst() -> None:
    class Empty(Desk):
        async def fetch_studies(self) -> list[dict[str, Any]]:
            return []

    with pytest.raises(UsageError, match=r"No study at .* is open") as error:
        asyncio.run(fetch_offer(Empty(MANIFEST)))
    assert "offers no studies" in (error.value.why or "") and "Ask the analyst" in (
        error.value.fix or ""
    )
