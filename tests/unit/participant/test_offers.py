"""Offers: which study is meant, that it is the one that its digest names, and by whom it is signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from participants import COORDINATOR, URL, Desk, manifest_of
from shoal.clock import ManualClock
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, UsageError
from shoal.participant.journal import Joined, Journal
from shoal.participant.offers import Offer, fetch, take_up
from shoal.transport.forms import Published
from shoal.transport.signing import sign_published
from token_desk import token_manifest

MANIFEST = manifest_of("anonml")
DIGEST = MANIFEST.digest.hex()


@pytest.mark.parametrize("study", [None, DIGEST, DIGEST[:5], MANIFEST.short, MANIFEST.short.upper()])
def test_a_study_is_found_by_its_digest_or_alone(study: str | None) -> None:
    assert asyncio.run(fetch(Desk(MANIFEST), study)) == Offer(URL, MANIFEST, DIGEST, COORDINATOR.public)


class Many(Desk):
    """A coordinator of several studies."""

    listed: tuple[dict[str, Any], ...] = ()

    async def studies(self) -> list[dict[str, Any]]:
        return [*await super().studies(), *self.listed]


def test_which_study_is_meant_must_be_clear() -> None:
    desk = Many(MANIFEST)
    desk.listed = ({"digest": "ab" * 32, "title": "Another \x1b[2J", "status": "open"}, {"digest": "x", "title": "No", "status": "open"})
    with pytest.raises(UsageError, match="are 2 studies") as error:
        asyncio.run(fetch(desk))
    assert MANIFEST.short in error.value.what
    assert "\x1b" not in error.value.what
    with pytest.raises(UsageError, match="no study begins with '123'"):
        asyncio.run(fetch(desk, "123"))
    desk.status = "done"
    desk.listed = ()
    with pytest.raises(UsageError, match="no study is open") as error:
        asyncio.run(fetch(desk))
    assert MANIFEST.short in (error.value.why or "") and error.value.fix == "Name one: --study DIGEST"
    assert asyncio.run(fetch(desk, DIGEST)).digest == DIGEST


def other(published: Published) -> Published:
    manifest = manifest_of("pfds", pfds={"n_holders": 3})
    return published.replace(manifest=manifest.to_bytes(), signature=sign_published(COORDINATOR, manifest.digest))


LIES: dict[str, Callable[[Published], Published]] = {
    "another study": other,
    "no manifest": lambda published: published.replace(manifest=b"\xa0"),
    "no signature": lambda published: published.replace(signature=bytes(64)),
    "another key": lambda published: published.replace(key=Identity.from_seed(bytes(32)).public),
    "a key that signs anything": lambda published: published.replace(key=bytes(31) + b"\x80"),
}


SHUFFLED = manifest_of(
    "anonml",
    trust="shuffled",
    privacy={"epsilon": 2.0, "delta": 1e-6},
    participation={"minimum": 1000, "size": 1000, "honest_share": 0.9},
)
UNFIT = {
    "shuffled without tokens": replace(SHUFFLED, gateway_key=bytes([9]) + bytes(31), relay="https://relay.example"),
    "a place in all studies of an epoch": token_manifest(
        variant="paper", anonml={"n_partitions": 2, "n_subsets": 2, "subset_size": 1}, epoch="2026"
    ),
}


@pytest.mark.parametrize("how", UNFIT)
def test_a_study_that_is_less_anonymous_than_it_says_is_refused_whoever_offers_it(how: str) -> None:
    manifest = UNFIT[how]
    with pytest.raises(RemoteProtocolError, match=r"HOST-003.*cannot be joined as it is offered") as error:
        asyncio.run(fetch(Desk(manifest), manifest.digest.hex()))
    assert error.value.why and error.value.fix
    joined = Joined(manifest.digest.hex(), URL, URL, COORDINATOR.public, manifest.to_bytes(), "Wind", "rows.csv")
    with pytest.raises(RemoteProtocolError, match="HOST-003"):
        Offer.of(joined)


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_is_not_what_it_says_is_refused(lie: str) -> None:
    class Liar(Desk):
        async def published(self, study: str) -> Published:
            return LIES[lie](await super().published(study))

    with pytest.raises(RemoteProtocolError, match="AUTH-004"):
        asyncio.run(fetch(Liar(MANIFEST), DIGEST))


def test_the_key_is_the_one_that_was_seen_first() -> None:
    assert asyncio.run(fetch(Desk(MANIFEST), None, COORDINATOR.public)).key == COORDINATOR.public
    with pytest.raises(RemoteProtocolError, match="has another key than before"):
        asyncio.run(fetch(Desk(MANIFEST), None, bytes(32)))


def test_taking_up_a_study_writes_it_down_with_a_ticket(tmp_path: Path) -> None:
    offer = Offer(URL, MANIFEST, DIGEST, COORDINATOR.public)
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            take_up(journal, offer, "me.csv", SeededEntropy(1))
        looked = take_up(journal, offer, "me.csv", SystemEntropy(), standing="previewed")
        joined = take_up(journal, offer, "me.csv", SystemEntropy(), invitation="code")
        assert (looked.standing, joined.standing, joined.invitation) == ("previewed", "agreed", "code")
        assert joined.ticket == looked.ticket
        assert len(set(joined.ticket)) > 8
        assert Offer.of(joined) == offer
        assert "code" not in repr(joined)


def test_a_ticket_is_drawn_where_tickets_admit_and_nowhere_else(tmp_path: Path) -> None:
    settings = {"n_instances": 2, "admission": "token"}
    cases = [
        (manifest_of("anonml"), 32),
        (manifest_of("ddml", ddml=settings), 32),
        (manifest_of("ddml", ddml={**settings, "admission": "signed"}), 0),
        (manifest_of("pfds", pfds={"n_holders": 3}), 0),
        (token_manifest(), 0),
        (token_manifest("ddml", ddml=settings), 0),
    ]
    for i, (manifest, n) in enumerate(cases):
        with Journal(tmp_path / f"{i}.db", ManualClock()) as journal:
            joined = take_up(journal, Offer(URL, manifest, manifest.digest.hex(), COORDINATOR.public), "me.csv", SystemEntropy())
            assert len(joined.ticket) == n


def test_where_there_is_no_study_at_all_the_hint_is_another() -> None:
    class Empty(Desk):
        async def studies(self) -> list[dict[str, Any]]:
            return []

    with pytest.raises(UsageError, match="no study is open") as error:
        asyncio.run(fetch(Empty(MANIFEST)))
    assert "none at all" in (error.value.why or "") and "Ask the analyst" in (error.value.fix or "")
