"""The driver with a peer made for the test: alarms by a clock that jumps, failures, and joint computations that broke off."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from participants import COORDINATOR, URL, Desk, manifest_of
from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import encode
from shoal.participant import course
from shoal.participant.course import Course, Finished
from shoal.participant.journal import Joined, Journal, Step
from shoal.participant.wires import Anonymous
from shoal.privacy.events import Event
from shoal.protocols.anonml.messages import MESSAGES, Ask, Publication
from shoal.protocols.base import Abort, Account, Compute, Effects, Finish, MemoryLedger, Peer, PeerState, Progress, WakeAt, unpriced

MANIFEST = manifest_of("anonml")
STUDY = MANIFEST.digest.hex()


class Sleeper(Peer[PeerState]):
    """Wakes once, and notes what it hears in its state."""

    messages = MESSAGES
    study = MANIFEST.digest

    def initial(self) -> PeerState:
        return PeerState()

    def price(self, question: str) -> Event:
        raise unpriced(question)

    def answer(self, state: PeerState, question: str, entropy: Entropy) -> Message:
        raise unpriced(question)

    def started(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (WakeAt(now + timedelta(minutes=1)),)

    def ticked(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (Finish(now),)

    def received(self, state: PeerState, message: Message, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        raise ZeroDivisionError("a private value")

    def computing(self, state: PeerState, given: Progress, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state.replace(asked=(type(given).__name__, given.task)), (Finish(0),)


class Asker(Sleeper):
    """Asks for a joint computation that nobody runs."""

    def started(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (Compute("choice", "argmax", 0, 3),)


class Quitter(Sleeper):
    def started(self, state: PeerState, now: datetime, entropy: Entropy) -> tuple[PeerState, Effects]:
        return state, (Abort(LocalProtocolError("PROTO-001", "No more.")),)


def take(path: Path, peer: Peer[PeerState], clock: ManualClock, desk: Desk, said: list[str] | None = None) -> Finished:
    async def go(journal: Journal) -> Finished:
        joined = journal.study(STUDY)
        assert joined is not None
        account = Account(MemoryLedger(), MANIFEST.digest, "rows", URL, "t")
        tell = (said if said is not None else []).append
        return await Course(journal, joined, peer, account, Anonymous(desk, STUDY), desk, clock, SeededEntropy(1), None, tell).run()

    with Journal(path, clock) as journal:
        journal.enter(Joined(STUDY, URL, URL, COORDINATOR.public, MANIFEST.to_bytes(), "t", "rows", standing="agreed"))
        return asyncio.run(go(journal))


class Silent(Desk):
    """Moves the participant's clock each time it is asked, and has nothing to say."""

    moves: list[float]
    others: ManualClock

    def _letters(self, name: str, after: int) -> course.Any:
        if self.moves:
            self.others.advance(self.moves.pop(0))
        return super()._letters(name, 1 << 40)


def test_an_alarm_rings_by_the_clock_even_if_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "LONGEST_LOOK", 0.001)
    clock, desk = ManualClock(), Silent(MANIFEST)
    start = clock.now()
    desk.moves, desk.others, desk.is_hasty = [50.0, -1e6, 1e6, 5.0, 4.0, 2.0], clock, False
    end = take(tmp_path / "ledger.db", Sleeper(), clock, desk)
    assert end.standing == "finished"
    assert isinstance(end.result, datetime)
    assert end.result >= start + timedelta(minutes=1)
    with Journal(tmp_path / "ledger.db", clock) as journal:
        assert journal.load(STUDY).alarms == ()


def test_a_peer_that_fails_gives_up_without_a_private_word(tmp_path: Path) -> None:
    desk, said = Desk(MANIFEST), list[str]()
    desk.letters.append((9, "*", encode(Ask(study=MANIFEST.digest, phase=0, publication=Publication()))))
    end = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk, said)
    assert end.standing == "aborted"
    assert "PROTO-005" in (end.reason or "")
    assert "private" not in (end.reason or "") + "".join(said)
    again = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk)
    assert (again.standing, again.reason) == (end.standing, end.reason)


def test_what_cannot_be_read_is_taken_and_told(tmp_path: Path) -> None:
    desk, said = Desk(MANIFEST), list[str]()
    desk.letters[:] = [(1, "*", b"rubbish")]
    desk.status = "closed"
    end = take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk, said)
    assert end.standing == "over"
    assert any("MSG-002" in line for line in said)
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        assert journal.load(STUDY).cursor == 1


def test_a_peer_may_give_up(tmp_path: Path) -> None:
    end = take(tmp_path / "ledger.db", Quitter(), ManualClock(), Desk(MANIFEST))
    assert (end.standing, end.reason) == ("aborted", "PROTO-001  No more.")


def test_a_computation_that_was_under_way_has_broken_off(tmp_path: Path) -> None:
    path, desk = tmp_path / "ledger.db", Silent(MANIFEST)
    desk.moves = []
    with pytest.raises(LocalProtocolError, match="nothing here that computes"):
        take(path, Asker(), ManualClock(), desk)
    end = take(path, Asker(), ManualClock(), desk)
    assert end.state.asked == ("Broken", "choice")
    with Journal(path, ManualClock()) as journal:
        assert journal.load(STUDY).tasks == ()
        assert journal.save(STUDY, Step(b"x")) == ()


class Quick(Silent):
    """Says at once that there is nothing, so often, and then that the study is closed."""

    n_asked = 0

    async def board(self, study: str, after: int, wait: int = 0) -> course.Any:
        self.n_asked += 1
        self.status = "open" if self.n_asked <= 12 else "closed"
        return await super().board(study, after, wait)

    async def pause(self, n: int) -> None:
        self.pauses.append(n)

    pauses: list[int]


def test_a_coordinator_that_does_not_wait_is_asked_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "SHORTEST_WAIT", 1e9)
    desk = Quick(MANIFEST)
    desk.moves, desk.pauses = [], []
    assert take(tmp_path / "ledger.db", Sleeper(), ManualClock(), desk).standing == "over"
    assert desk.pauses == list(range(1, 13))
    monkeypatch.setattr(course, "SHORTEST_WAIT", 0.0)
    desk = Quick(MANIFEST)
    desk.moves, desk.pauses = [], []
    assert take(tmp_path / "again.db", Sleeper(), ManualClock(), desk).standing == "over"
    assert desk.pauses == []
