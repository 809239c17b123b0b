"""A session: which study is meant when the coordinator does not say, and which studies compute jointly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live import live
from participants import COORDINATOR, URL, Desk, folder, manifest_of, table_of
from shoal.clock import ManualClock, SystemClock
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import ConsentError, StoreError, TransportError
from shoal.participant.credentials import NOTHING_BEFORE
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer
from shoal.participant.session import Session, computes, opened
from shoal.privacy.records import State
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from token_desk import Holder, TokenDesk, play, token_manifest, tokens

__all__ = ["folder", "tokens"]

PFDS = manifest_of("pfds", 3, pfds={"n_holders": 3})


def test_whoever_agreed_goes_on_while_the_coordinator_is_away(folder: Path) -> None:
    async def visit(url: str, *, agrees: bool) -> str:
        async with opened(folder / "me.db", url, SystemClock(), SystemEntropy()) as session:
            offer = await session.offer(None)
            if agrees:
                session.agree(offer, "rows.csv")
            return offer.digest

    with live(folder, PFDS) as coordinator:
        assert asyncio.run(visit(coordinator.url, agrees=False)) == PFDS.digest.hex()
    with pytest.raises(TransportError):
        asyncio.run(visit(coordinator.url, agrees=False))
    (folder / "again").mkdir()
    with live(folder / "again", PFDS) as second:
        asyncio.run(visit(second.url, agrees=True))
    assert asyncio.run(visit(second.url, agrees=False)) == PFDS.digest.hex()


def test_only_some_studies_of_sdq_compute_jointly() -> None:
    assert not computes(PFDS) and computes(manifest_of("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "mpc"}))
    assert not computes(manifest_of("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "sums"}))


def test_a_preview_of_a_study_with_tokens_names_nobody(folder: Path, tokens: None) -> None:
    """To register is to be named: whoever looks has no credential, is shown nothing, and is told why. One that an epoch gave shows it."""
    first, second = (TokenDesk(token_manifest(n=1, epoch="2026", title=title)) for title in ("One", "Two"))
    person = Holder(folder / "me.db", table_of(1), SeededEntropy(1), clock=first.time)

    def preview(desk: TokenDesk) -> tuple[list[bytes], str | None]:
        offer = offer_of(desk.manifest)
        with LedgerFile(person.path, desk.time) as ledger, Journal(person.path, desk.time) as journal:
            session = Session(ledger, journal, desk, desk.time, SystemEntropy())
            drawn = asyncio.run(session.preview(offer, table_of(1), "rows.csv"))
            return [one.payload for one in drawn], session.nothing_to_show(offer)

    drawn, why = preview(first)
    assert drawn == [] and why == NOTHING_BEFORE and not first.registered
    assert [getattr(one, "standing", one) for one in play(first, [person])] == ["finished"]
    assert preview(second)[1] is None and preview(second)[0] == preview(second)[0]
    assert not second.registered and second.packets == []
    # What was shown is what is sent.
    (shown,), _ = preview(second)
    second.registered, person.clock = first.registered, second.time
    assert [getattr(one, "standing", one) for one in play(second, [person])] == ["finished"]
    assert list(second.answers.values()) == [{shown}]


OTHER = manifest_of("pfds", 3, title="Another", pfds={"n_holders": 3})
CHANGED = manifest_of("pfds", 3, purpose="Another purpose.", pfds={"n_holders": 3})


def offer_of(manifest: Manifest) -> Offer:
    return Offer(URL, manifest, manifest.digest.hex(), COORDINATOR.public)


@contextmanager
def session_at(folder: Path) -> Iterator[Session]:
    """A session with a coordinator that is not asked."""
    path, clock = folder / "me.db", ManualClock()
    with LedgerFile(path, clock) as ledger, Journal(path, clock) as journal:
        yield Session(ledger, journal, Desk(PFDS), clock, SystemEntropy())


def hold_answer(session: Session, manifest: Manifest) -> None:
    """Have the ledger hold an answer to a study."""
    study, event = manifest.digest.hex(), make_plan(manifest.study, manifest.digest).charges[0]
    session.ledger.reserve(study, "tables", event, source="rows.csv", recipient=URL, title=manifest.study.title)
    session.ledger.store(study, "tables", b"drawn")


def test_unasked_another_study_of_a_known_coordinator_has_to_be_named(folder: Path) -> None:
    digest = OTHER.digest.hex()
    with session_at(folder) as session:
        session.refuse_if_not_named(offer_of(OTHER), None)
        session.agree(offer_of(PFDS), "rows.csv")
        session.refuse_if_not_named(offer_of(PFDS), None)
        for vague in (None, "", digest[:11], OTHER.short[:13]):
            with pytest.raises(ConsentError, match="that you do not know: Another") as refused:
                session.refuse_if_not_named(offer_of(OTHER), vague)
            assert refused.value.fix is not None and refused.value.fix.endswith(f"--study {digest[:12]}")
        for named in (digest[:12], OTHER.short, digest):
            session.refuse_if_not_named(offer_of(OTHER), named)
        moved = Offer("http://127.0.0.1:9", OTHER, digest, COORDINATOR.public)
        with pytest.raises(ConsentError, match="that you do not know"):
            session.refuse_if_not_named(moved, None)


def test_unasked_nobody_comes_back_to_a_study_that_was_left(folder: Path) -> None:
    with session_at(folder) as session:
        session.agree(offer_of(PFDS), "rows.csv")
        session.journal.stand(PFDS.digest.hex(), "left")
        with pytest.raises(ConsentError, match="that you have left: Wind"):
            session.refuse_if_not_named(offer_of(PFDS), None)
        session.refuse_if_not_named(offer_of(PFDS), PFDS.short)


def test_a_review_voids_what_is_held_for_the_first_form(folder: Path) -> None:
    with session_at(folder) as session:
        session.agree(offer_of(PFDS), "rows.csv")
        hold_answer(session, PFDS)
        session.agree(offer_of(CHANGED), "rows.csv", is_reviewed=True)
        assert [entry.state for entry in session.ledger.entries()] == [State.VOIDED]
        assert [one.standing for one in session.journal.studies()] == ["left", "agreed"]


def test_nothing_is_reviewed_while_another_process_takes_part(folder: Path) -> None:
    with session_at(folder) as session, session_at(folder) as other:
        session.agree(offer_of(PFDS), "rows.csv")
        hold_answer(session, PFDS)
        with other.journal.hold(PFDS.digest.hex()), pytest.raises(StoreError, match="LEDGER-003"):
            session.agree(offer_of(CHANGED), "rows.csv", is_reviewed=True)
        assert [entry.state for entry in session.ledger.entries()] == [State.STORED]
        assert [one.standing for one in session.journal.studies()] == ["agreed"]


def test_who_shares_or_holds_an_answer_does_not_only_read(folder: Path) -> None:
    with session_at(folder) as session:
        session.refuse_role(offer_of(PFDS), "reader")
        hold_answer(session, PFDS)
        with pytest.raises(ConsentError, match="drawn for a preview"):
            session.refuse_role(offer_of(PFDS), "reader")
        session.refuse_role(offer_of(PFDS), "sharer")
        session.agree(offer_of(OTHER), "rows.csv")
        with pytest.raises(ConsentError, match="you share, and not otherwise"):
            session.refuse_role(offer_of(OTHER), "reader")
        session.agree(offer_of(CHANGED), "", role="reader", is_reviewed=True)
        with pytest.raises(ConsentError, match="you only read, and not otherwise"):
            session.refuse_role(offer_of(CHANGED), "sharer")
