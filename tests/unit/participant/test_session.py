"""Sessions: choosing a study, previews, consent, and roles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.clock import ManualClock, SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import ConsentError, StoreError, TransportError
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer
from shoal.participant.session import ParticipantSession, open_session
from shoal.privacy.ledger.records import ReleaseState
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from tests.support.credentials import TokenDesk, token_manifest, tokens
from tests.support.participants import COORDINATOR, URL, Desk, folder, make_manifest, make_table
from tests.support.servers import live

__all__ = ["folder", "tokens"]

PFDS = make_manifest("pfds", 3, pfds={"n_holders": 3})


def test_fetch_offer_uses_journal_while_coordinator_is_unreachable(folder: Path) -> None:
    async def visit(url: str, *, agrees: bool) -> str:
        async with open_session(folder / "me.db", url, SystemClock(), SystemEntropy()) as session:
            offer = await session.fetch_offer(None)
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


def test_only_sdq_with_mpc_has_joint_computations() -> None:
    def has_joint_computations(manifest: Manifest) -> bool:
        study = StudyHandle(manifest)
        return study.protocol.has_joint_computations(study.study)

    assert not has_joint_computations(PFDS) and has_joint_computations(
        make_manifest("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "mpc"})
    )
    assert not has_joint_computations(
        make_manifest("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "sums"})
    )


def test_example_with_tokens_does_not_register_or_store(folder: Path, tokens: None) -> None:
    """Registering names the participant. An example needs no credential: its ticket is made up."""
    desk = TokenDesk(token_manifest(n=1))
    offer = make_offer(desk.manifest)
    with (
        LedgerFile(folder / "me.db", desk.time) as ledger,
        Journal(folder / "me.db", desk.time) as journal,
    ):
        session = ParticipantSession(ledger, journal, desk, desk.time, SystemEntropy())
        rows = offer.study.encode_rows(make_table(1))
        first, second = (session.draw_example(offer, rows) for _ in range(2))
        assert first and first != second
        assert not desk.registered and desk.packets == []
        assert ledger.entries() == () and journal.list_studies() == ()
        assert session.list_sent_answers(offer) == ((), 0)


OTHER = make_manifest("pfds", 3, title="Another", pfds={"n_holders": 3})
CHANGED = make_manifest("pfds", 3, purpose="Another purpose.", pfds={"n_holders": 3})


def make_offer(manifest: Manifest) -> Offer:
    return Offer(URL, StudyHandle(manifest), COORDINATOR.public_key)


@contextmanager
def session_at(folder: Path) -> Iterator[ParticipantSession]:
    """Return a session with a coordinator that is not asked."""
    path, clock = folder / "me.db", ManualClock()
    with LedgerFile(path, clock) as ledger, Journal(path, clock) as journal:
        yield ParticipantSession(ledger, journal, Desk(PFDS), clock, SystemEntropy())


def hold_answer(session: ParticipantSession, manifest: Manifest) -> None:
    """Store an answer to a study in the ledger."""
    study, event = manifest.digest.hex(), make_plan(manifest.study, manifest.digest).charges[0]
    session.ledger.reserve(
        study, "tables", event, source="rows.csv", recipient=URL, title=manifest.study.title
    )
    session.ledger.store(study, "tables", b"drawn")


def test_refuse_if_not_named_raises_for_new_study_of_known_coordinator(folder: Path) -> None:
    digest = OTHER.digest.hex()
    with session_at(folder) as session:
        session.refuse_if_not_named(make_offer(OTHER), None)
        session.agree(make_offer(PFDS), "rows.csv")
        session.refuse_if_not_named(make_offer(PFDS), None)
        for vague in (None, "", digest[:11], OTHER.short_digest[:13]):
            with pytest.raises(ConsentError, match="that is new to you: Another") as refused:
                session.refuse_if_not_named(make_offer(OTHER), vague)
            assert refused.value.fix is not None and refused.value.fix.endswith(
                f"--study {digest[:12]}"
            )
        for named in (digest[:12], OTHER.short_digest, digest):
            session.refuse_if_not_named(make_offer(OTHER), named)
        moved = Offer("http://127.0.0.1:9", StudyHandle(OTHER), COORDINATOR.public_key)
        with pytest.raises(ConsentError, match="that is new to you"):
            session.refuse_if_not_named(moved, None)


def test_refuse_if_not_named_raises_for_study_that_was_left(folder: Path) -> None:
    with session_at(folder) as session:
        session.agree(make_offer(PFDS), "rows.csv")
        session.journal.set_status(PFDS.digest.hex(), "left")
        with pytest.raises(ConsentError, match="that you have left: Wind"):
            session.refuse_if_not_named(make_offer(PFDS), None)
        session.refuse_if_not_named(make_offer(PFDS), PFDS.short_digest)


def test_agree_after_review_voids_answers_of_earlier_version(folder: Path) -> None:
    with session_at(folder) as session:
        session.agree(make_offer(PFDS), "rows.csv")
        hold_answer(session, PFDS)
        session.agree(make_offer(CHANGED), "rows.csv", is_reviewed=True)
        assert [entry.state for entry in session.ledger.entries()] == [ReleaseState.VOIDED]
        assert [one.standing for one in session.journal.list_studies()] == ["left", "agreed"]


def test_agree_after_review_raises_while_earlier_version_is_locked(folder: Path) -> None:
    with session_at(folder) as session, session_at(folder) as other:
        session.agree(make_offer(PFDS), "rows.csv")
        hold_answer(session, PFDS)
        with (
            other.journal.lock_study(PFDS.digest.hex()),
            pytest.raises(StoreError, match="LEDGER-003"),
        ):
            session.agree(make_offer(CHANGED), "rows.csv", is_reviewed=True)
        assert [entry.state for entry in session.ledger.entries()] == [ReleaseState.STORED]
        assert [one.standing for one in session.journal.list_studies()] == ["agreed"]


def test_refuse_role_raises_for_reader_who_shares_or_has_answers(folder: Path) -> None:
    with session_at(folder) as session:
        session.refuse_role(make_offer(PFDS), "reader")
        hold_answer(session, PFDS)
        with pytest.raises(ConsentError, match="from an earlier --preview"):
            session.refuse_role(make_offer(PFDS), "reader")
        session.refuse_role(make_offer(PFDS), "sharer")
        session.agree(make_offer(OTHER), "rows.csv")
        with pytest.raises(ConsentError, match="you agreed to share data"):
            session.refuse_role(make_offer(OTHER), "reader")
        session.agree(make_offer(CHANGED), "", role="reader", is_reviewed=True)
        with pytest.raises(ConsentError, match="you agreed to read only"):
            session.refuse_role(make_offer(CHANGED), "sharer")
