"""The driver with test peers: alarms with a changed clock, failures, joint computations."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import encode
from shoal.participant import driver
from shoal.participant.delivery import AnonymousDelivery, StudyContext
from shoal.participant.driver import ParticipationResult, StudyDriver
from shoal.participant.journal import JoinedStudy, Journal, JournalUpdate
from shoal.privacy.events import Event
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk, AnonMLPublication
from shoal.protocols.base import (
    Abort,
    ComputationInput,
    Compute,
    Effects,
    Finish,
    MemoryLedger,
    Peer,
    PeerState,
    WakeAt,
    unpriced_question_error,
)
from shoal.study.handle import StudyHandle
from tests.support.participants import COORDINATOR, URL, Desk, make_manifest

MANIFEST = make_manifest("anonml")
STUDY = MANIFEST.digest.hex()


class Sleeper(Peer[PeerState]):
    """A peer that wakes once, and notes its inputs in its state."""

    messages = MESSAGES
    study = MANIFEST.digest

    def initial_state(self) -> PeerState:
        return PeerState()

    def price(self, question: str) -> Event:
        raise unpriced_question_error(question)

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        raise unpriced_question_error(question)

    def on_start(
        self, state: PeerState, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (WakeAt(now + timedelta(minutes=1)),)

    def on_tick(
        self, state: PeerState, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (Finish(now),)

    def on_message(
        self, state: PeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        raise ZeroDivisionError("a private value")

    def on_computation(
        self, state: PeerState, given: ComputationInput, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state.replace(asked=(type(given).__name__, given.task)), (Finish(0),)


class Asker(Sleeper):
    """A peer that starts a joint computation that is never run."""

    def on_start(
        self, state: PeerState, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (Compute("choice", "argmax", 0, 3),)


class Quitter(Sleeper):
    def on_start(
        self, state: PeerState, now: datetime, entropy: Entropy
    ) -> tuple[PeerState, Effects]:
        return state, (Abort(LocalProtocolError("PROTO-001", "No more.")),)


def take(
    path: Path, peer: Peer[PeerState], clock: ManualClock, desk: Desk, said: list[str] | None = None
) -> ParticipationResult:
    async def go(journal: Journal) -> ParticipationResult:
        joined = journal.find_study(STUDY)
        assert joined is not None
        on_progress = (said if said is not None else []).append
        context = StudyContext(
            StudyHandle(MANIFEST),
            joined,
            journal,
            MemoryLedger(),
            desk,
            clock,
            SeededEntropy(1),
            on_progress,
        )
        return await StudyDriver(context, peer, AnonymousDelivery(desk, STUDY)).run()

    with Journal(path, clock) as journal:
        journal.record_study(
            JoinedStudy(
                STUDY,
                URL,
                URL,
                COORDINATOR.public_key,
                MANIFEST.to_bytes(),
                "t",
                "rows",
                standing="agreed",
            )
        )
        return asyncio.run(go(journal))


class Silent(Desk):
    """A coordinator without messages that moves the participant's clock at each poll."""

    moves: list[float]
    others: ManualClock

    def _letters(self, name: str, after: int) -> driver.Any:
        if self.moves:
            self.others.advance(self.moves.pop(0))
        return super()._letters(name, 1 << 40)


def test_alarm_follows_clock_that_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CLOCK_CHECK_SECONDS", 0.001)
    clock, desk = ManualClock(), Silent(MANIFEST)
    start = clock.now()
    desk.moves, desk.others, desk.is_hasty = [50.0, -1e6, 1e6, 5.0, 4.0, 2.0], clock, False
    end = take(tmp_path / "ledger.db", Sleeper(), clock, desk)
    assert end.status == "finished"
    assert isinstance(end.result, datetime)
    assert end.result >= start + timedelta(minutes=1)
    with Journal(tmp_path / "ledger.db", clock) as journal:
        assert journal.load(STUDY).alarms == ()


def test_failing_peer_aborts_without_private_values(tmp_path: Path) -> None:
    desk, said = Desk(MANIFEST), list[str]()
    desk.letters.append(
        (9, "*", encode(AnonMLAsk(study=MANIFEST.digest, phase=0, publication=AnonMLPublication())))
    )
    end = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk, said)
    assert end.status == "aborted"
    assert "PROTO-005" in (end.reason or "")
    assert "private" not in (end.reason or "") + "".join(said)
    again = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk)
    assert (again.status, again.reason) == (end.status, end.reason)


def test_undecodable_message_is_processed_and_reported(tmp_path: Path) -> None:
    desk, said = Desk(MANIFEST), list[str]()
    desk.letters[:] = [(1, "*", b"rubbish")]
    desk.status = "closed"
    end = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk, said)
    assert end.status == "over"
    assert any("MSG-002" in line for line in said)
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        assert journal.load(STUDY).cursor == 1


def test_peer_may_abort(tmp_path: Path) -> None:
    end = take(tmp_path / "ledger.db", Quitter(), ManualClock(), Desk(MANIFEST))
    assert (end.status, end.reason) == ("aborted", "PROTO-001  No more.")


def test_unfinished_computation_is_broken_after_restart(tmp_path: Path) -> None:
    path, desk = tmp_path / "ledger.db", Silent(MANIFEST)
    desk.moves = []
    with pytest.raises(LocalProtocolError, match="has no worker for it"):
        take(path, Asker(), ManualClock(), desk)
    end = take(path, Asker(), ManualClock(), desk)
    assert end.state.asked == ("Broken", "choice")
    with Journal(path, ManualClock()) as journal:
        assert journal.load(STUDY).tasks == ()
        assert journal.save(STUDY, JournalUpdate(b"x")) == ()


class Quick(Silent):
    """A coordinator that answers some polls without waiting, and then closes the study."""

    n_asked = 0

    async def fetch_broadcasts(self, study: str, after: int, wait: int = 0) -> driver.Any:
        self.n_asked += 1
        self.status = "open" if self.n_asked <= 12 else "closed"
        return await super().fetch_broadcasts(study, after, wait)

    async def back_off(self, n: int) -> None:
        self.pauses.append(n)

    pauses: list[int]


def test_coordinator_without_long_polling_is_polled_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MIN_POLL_SECONDS", 1e9)
    desk = Quick(MANIFEST)
    desk.moves, desk.pauses = [], []
    assert take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk).status == "over"
    assert desk.pauses == list(range(1, 13))
    monkeypatch.setattr(driver, "MIN_POLL_SECONDS", 0.0)
    desk = Quick(MANIFEST)
    desk.moves, desk.pauses = [], []
    assert take(tmp_path / "again.db", Sleeper(), ManualClock(), desk).status == "over"
    assert desk.pauses == []
