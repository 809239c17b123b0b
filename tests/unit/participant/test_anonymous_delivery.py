"""Packets with tokens: random times, the same bytes on every retry, one arrival after crashes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.participant import driver
from shoal.participant.client import Client, RefusedError
from shoal.participant.driver import ParticipationResult
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.network.base import DirectPath
from shoal.participant.network.tor import TorPath
from shoal.study.manifest import Manifest
from shoal.transport.api import Enrolled, Enrolment, MessagePage
from tests.support.credentials import Holder, TokenDesk, derive_key, play, token_manifest, tokens
from tests.support.participants import compute_packet_size, folder, make_table

__all__ = ["folder", "tokens"]

pytestmark = pytest.mark.usefixtures("tokens")


PAPER = {"n_partitions": 2, "n_subsets": 2, "subset_size": 1}


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collect futures of interrupted runs here.

    asyncio reports them when they are collected. If that happens while another test imports a
    module, the report's own use of `ast` makes the import fail (CPython issue 106905).
    """
    gc.freeze()  # what earlier tests left is not searched
    yield
    gc.collect()
    gc.unfreeze()


def holders(folder: Path, desk: TokenDesk, n: int, seed: int | str = 0) -> list[Holder]:
    entropy = SeededEntropy(seed)
    return [
        Holder(folder / f"{i}.db", make_table(1, i), entropy.spawn("person", i), clock=desk.time)
        for i in range(n)
    ]


def states(person: Holder) -> list[str]:
    with LedgerFile(person.path, person.clock) as ledger:
        ledger.verify()
        return [entry.state for entry in ledger.entries()]


def standings(ends: Sequence[Any]) -> list[object]:
    return [getattr(one, "status", one) for one in ends]


def is_counted_once(desk: TokenDesk, everyone: list[Holder]) -> None:
    """Check that each person has one answer under one pseudonym, sent as the same bytes."""
    assert len(desk.answers) == len(everyone) and {
        len(answers) for answers in desk.answers.values()
    } == {1}
    assert len({packet for _, packet in desk.packets}) == len(everyone)
    assert len(set(desk.sealed)) in (0, len(everyone))
    assert {len(packet) for _, packet in desk.packets} == {compute_packet_size(desk.manifest)}
    assert desk.bad == desk.rejected == []


@pytest.mark.parametrize("has_relay", [False, True])
@pytest.mark.parametrize("loss", [0, 3])
def test_each_participant_is_counted_once(folder: Path, has_relay: bool, loss: int) -> None:
    desk = TokenDesk(token_manifest(n=4), has_relay=has_relay, loss=loss)
    everyone = holders(folder, desk, 4)
    assert standings(play(desk, everyone)) == ["finished"] * 4
    assert [states(one) for one in everyone] == [["sent"]] * 4
    is_counted_once(desk, everyone)
    assert all("you are one of 4 members" in " ".join(one.told) for one in everyone)
    assert all(one.told[-2:] == ["answer delivered", "all questions answered"] for one in everyone)
    # By a relay whoever has a packet in its list is done; without one, whoever was acknowledged.
    assert (desk.n_looks >= 4) is has_relay


def test_packets_leave_at_random_times_in_window(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=12))
    window, everyone = desk.window(), holders(folder, desk, 12, "times")
    play(desk, everyone)
    times = [time - window.opened.timestamp() for time, _ in desk.packets]
    length = (window.collects_until - window.opened).total_seconds()
    assert len(set(times)) == 12 and min(times) >= 0 and max(times) < length
    # Of twelve uniform draws all in one half, whichever: once in 2,048 for other seeds; this one is
    # fixed.
    assert min(times) < length / 2 < max(times)


class Polls:
    """Broadcasts without messages, and when each poll began and ended: answered, or broken off."""

    length = 0.5

    def __init__(self, desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[float] = []
        self.begun: list[float] = []
        self.cut: list[float] = []
        self._desk, self._opened, self._board = desk, desk.window().opened, desk.fetch_broadcasts
        monkeypatch.setattr(desk, "fetch_broadcasts", self.board)
        # The loop's time stands still here, and all answers seem to come at once.
        monkeypatch.setattr(driver, "MIN_POLL_SECONDS", 0.0)

    def now(self) -> float:
        return (self._desk.time.now() - self._opened).total_seconds()

    async def board(self, study: str, after: int, wait: int = 0) -> MessagePage:
        self.begun.append(self.now())
        try:
            letters = await self._board(study, after, wait)
            if not letters.letters and letters.status == "open":
                await self._desk._wait(self.length)
            return letters
        except asyncio.CancelledError:
            self.cut.append(self.now())
            raise
        finally:
            self.ended.append(self.now())


@pytest.mark.parametrize("seed", range(3))
def test_polling_does_not_depend_on_packets(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """An observer of polls after a registration must not learn from them when a packet arrived."""
    desk = TokenDesk(token_manifest(n=2))
    polls, window = Polls(desk, monkeypatch), desk.window()
    (person,) = holders(folder, desk, 1, f"readings {seed}")
    assert standings(play(desk, [person])) == ["finished"]
    ((time, _),) = desk.packets
    sent, last = time - window.opened.timestamp(), polls.ended[-1]
    collects, resends = (
        (when - window.opened).total_seconds()
        for when in (window.collects_until, window.resends_until)
    )
    assert sent < collects <= last < resends
    # Each reading begins when the one before it has ended, by the clock of the board alone; the
    # last one is broken off.
    assert polls.begun[1:] == polls.ended[:-1]
    assert polls.begun[1:] == pytest.approx(
        [polls.length * i for i in range(len(polls.begun) - 1)], abs=1e-6
    )
    assert polls.cut == [last]


def test_end_of_polling_does_not_depend_on_time_of_packet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=8))
    polls, window = Polls(desk, monkeypatch), desk.window()
    everyone = holders(folder, desk, 7, "ends")
    assert standings(play(desk, everyone)) == ["finished"] * 7
    assert len(set(polls.cut)) == len(polls.cut) == 7
    assert min(polls.cut) >= (window.collects_until - window.opened).total_seconds()


@pytest.mark.parametrize(
    ("share", "part"), [(0.75, (0.9, 1.0)), (0.95, (0.95, 1.0)), (2.0, (2.0, 2.0))]
)
def test_polling_continues_after_arrival_and_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, part: tuple[float, float]
) -> None:
    desk = TokenDesk(token_manifest(n=2))
    window = desk.window()
    (person,) = holders(folder, desk, 1, "restarted")
    length = (window.closes - window.opened).total_seconds()
    submit = desk.submit_packet

    async def interrupted(study: str, packet: bytes) -> None:
        await submit(study, packet)
        desk._sleep = broken

    async def broken(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(desk, "submit_packet", interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(desk, [person])
    assert len(desk.packets) == 1
    desk._sleep, desk.alarms = desk._wait, []
    desk.time.advance(length * share - (desk.time.now() - window.opened).total_seconds())
    assert standings(play(desk, [person])) == ["finished"]
    ended = (desk.time.now() - window.opened).total_seconds() / length
    assert len(desk.packets) == 1
    assert part[0] <= ended <= part[1] + 1e-9


@pytest.mark.parametrize("has_relay", [pytest.param(False, marks=pytest.mark.soak), True])
def test_crash_at_any_step_sends_one_packet(folder: Path, has_relay: bool) -> None:
    """The process may end before or after each write. No crash adds or loses a packet."""
    n_steps = at = 0
    while at <= n_steps:
        desk = TokenDesk(token_manifest(n=1), has_relay=has_relay)
        (person,) = holders(folder / f"{at}", desk, 1)
        person.crash_at = at
        assert standings(play(desk, [person])) == ["finished"]
        assert person.n_crashes == (at > 0)
        assert states(person) == ["sent"]
        is_counted_once(desk, [person])
        assert len(desk.registered) == 1
        n_steps = n_steps or person.n_steps
        at += 1
    assert n_steps > 25


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_crashes_together_send_one_packet(folder: Path, seed: int) -> None:
    desk = TokenDesk(token_manifest(n=3), seed, loss=4, has_relay=seed % 2 == 1)
    everyone = holders(folder, desk, 3, f"crashes {seed}")
    for one in everyone:
        one.crash = 12
    assert standings(play(desk, everyone)) == ["finished"] * 3
    assert sum(one.n_crashes for one in everyone) > 2
    assert [states(one) for one in everyone] == [["sent"]] * 3
    is_counted_once(desk, everyone)


def test_packet_lost_by_relay_is_resent_with_same_bytes(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=2), has_relay=True)
    desk.lost = {0, 1}
    everyone = holders(folder, desk, 2)
    assert standings(play(desk, everyone)) == ["finished"] * 2
    assert len(desk.sealed) == 4 and len(set(desk.sealed)) == 2
    is_counted_once(desk, everyone)
    assert all("answer has not arrived and will be sent once more" in one.told for one in everyone)
    assert {"answer delivered"} <= set(everyone[0].told)


def test_packet_lost_twice_is_reported_as_unknown(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    desk.lost = set(range(9))
    (person,) = holders(folder, desk, 1)
    assert standings(play(desk, [person])) == ["finished"]
    assert desk.packets == [] and states(person) == ["sent"]
    assert "answer sent; not known whether it arrived" in person.told


def test_late_participant_sends_nothing(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=2))
    window = desk.window()
    (late,) = holders(folder, desk, 1)
    desk.time.advance((window.resends_until - window.opened).total_seconds() + 1)
    ends = play(desk, [late])
    assert standings(ends) == ["aborted"]
    reason = ends[0].reason or ""  # type: ignore[union-attr]
    assert "has passed, and your answer was not sent" in reason and "shoal leave" in reason
    assert desk.packets == [] and states(late) == ["stored"], "nothing is spent"


def test_participant_after_collection_sends_before_resends_end(
    folder: Path,
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    window = desk.window()
    desk.time.advance((window.collects_until - window.opened).total_seconds() + 1)
    (person,) = holders(folder, desk, 1)
    assert standings(play(desk, [person])) == ["finished"]
    is_counted_once(desk, [person])
    assert "answer delivered" in person.told


def test_missed_time_is_drawn_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted participant does not send immediately: the time would identify it."""
    desk = TokenDesk(token_manifest(n=1))
    window = desk.window()
    (person,) = holders(folder, desk, 1, "anew")
    slept = 0

    async def asleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 1:
            raise KeyboardInterrupt
        await TokenDesk._wait(desk, seconds)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(desk, "_sleep", asleep)
        play(desk, [person])
    desk.time.advance((window.collects_until - window.opened).total_seconds() * 0.9)
    before = desk.time.now()
    assert standings(play(desk, [person])) == ["finished"]
    ((time, _),) = desk.packets
    assert before.timestamp() < time < window.collects_until.timestamp()
    assert sum("will be sent at" in line for line in person.told) == 2
    is_counted_once(desk, [person])


@pytest.mark.parametrize(
    ("wakes_at", "fate"), [(0.6, "finished"), (0.8, "finished"), (0.95, "aborted")]
)
def test_packet_is_rescheduled_after_sleep(folder: Path, wakes_at: float, fate: str) -> None:
    desk = TokenDesk(token_manifest(n=1))
    window, has_slept = desk.window(), False
    (person,) = holders(folder, desk, 1, "asleep1")
    wakes = window.opened + (window.closes - window.opened) * wakes_at

    async def asleep(seconds: float) -> None:
        nonlocal has_slept
        # A packet waits longer than anything else does.
        if not has_slept and seconds > 3:
            has_slept = True
            desk.time.advance((wakes - desk.time.now()).total_seconds())
        else:
            await desk._wait(seconds)

    desk._sleep = asleep
    assert standings(play(desk, [person])) == [fate]
    assert has_slept
    if fate == "aborted":
        assert desk.packets == [] and states(person) == ["stored"]
        return
    ((time, _),) = desk.packets
    end = window.collects_until if wakes < window.collects_until else window.resends_until
    assert wakes.timestamp() < time < end.timestamp()
    is_counted_once(desk, [person])


def test_packet_at_relay_is_confirmed_over_any_later_path(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    (person,) = holders(folder, desk, 1)
    relayed, looks = desk.network_path, []

    def interrupted(line: str) -> None:
        person.said.append(line)
        if "is at the relay" in line and not looks:
            looks.append(line)
            raise KeyboardInterrupt

    person.told = Lines(interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(desk, [person])
    desk.network_path = DirectPath(desk.url)
    desk.lost = set()
    assert standings(play(desk, [person])) == ["finished"] and desk.n_looks > 0
    assert len(desk.answers) == 1 and len({packet for _, packet in desk.packets}) == 1
    assert relayed.name == "ohttp"


def given_to_the_relay(desk: TokenDesk, person: Holder) -> None:
    """Play until the relay has a person's packet, and stop there."""

    def interrupted(line: str) -> None:
        person.said.append(line)
        if "is at the relay" in line:
            raise KeyboardInterrupt

    person.told = Lines(interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(desk, [person])
    person.told = []


SHUFFLED = {
    "trust": "shuffled",
    "privacy": {"epsilon": 2.0, "delta": 1e-6},
    "participation": {"minimum": 1000, "size": 1000, "honest_share": 0.9},
}


def test_shuffled_packet_is_not_sent_directly_after_restart(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=100, **SHUFFLED), has_relay=True)
    desk.lost = set(range(99))
    (person,) = holders(folder, desk, 1)
    given_to_the_relay(desk, person)
    relayed, n_looks = desk.network_path, desk.n_looks
    for way in (DirectPath(desk.url), TorPath(desk.url, SeededEntropy(1))):
        desk.network_path = way
        (end,) = play(desk, [person])
        assert isinstance(end, UsageError) and f"not with --via {way.name}" in end.what
    assert desk.packets == [] and desk.n_looks == n_looks
    desk.network_path = relayed
    assert standings(play(desk, [person])) == ["finished"]
    # What is done can be looked at any way.
    desk.network_path = DirectPath(desk.url)
    assert standings(play(desk, [person])) == ["finished"] and desk.packets == []


def test_resend_checks_path_and_anonymity_set_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    desk.lost = set(range(9))
    (person,) = holders(folder, desk, 1)
    given_to_the_relay(desk, person)

    async def check(_: Manifest) -> None:
        raise RemoteProtocolError("NET-005", "Another gateway.")

    with monkeypatch.context() as patch:
        patch.setattr(desk.network_path, "check", check)
        (end,) = play(desk, [person])
    assert isinstance(end, RemoteProtocolError) and end.code == "NET-005"
    assert len(desk.sealed) == 1


def test_acknowledgement_of_relay_does_not_count_as_arrival(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash during a resend over another path, it is not known whether the packet left."""
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    desk.lost = {0}
    (person,) = holders(folder, desk, 1)
    given_to_the_relay(desk, person)
    desk.network_path = DirectPath(desk.url)

    async def broken(study: str, packet: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(desk, "submit_packet", broken)
        play(desk, [person])
    assert desk.packets == []
    assert standings(play(desk, [person])) == ["finished"] and "answer delivered" in person.told
    is_counted_once(desk, [person])


def test_relay_that_just_started_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    (person,) = holders(folder, desk, 1)
    post, n_asked = desk.network_path.post_packet, 0

    async def starting(study: str, sealed: bytes, client: Client) -> None:
        nonlocal n_asked
        n_asked += 1
        if n_asked < 3:
            raise TransportError("NET-005", "The relay does not serve the study.")
        await post(study, sealed, client)

    monkeypatch.setattr(desk.network_path, "post_packet", starting)
    assert standings(play(desk, [person])) == ["finished"]
    is_counted_once(desk, [person])


class Lines(list[str]):
    """Lines of progress, and a callback for each of them."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__()
        self.append = heard  # type: ignore[method-assign,assignment]


def test_participant_missing_from_member_list_sends_nothing(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=2))
    everyone = holders(folder, desk, 2)
    hidden = everyone[0]
    original = desk._enrol

    def enrol(key: bytes, form: Enrolment) -> Enrolled:
        enrolled = original(key, form)
        if derive_key(hidden, desk.manifest).public_key == key:
            desk.hidden.add(key)
        return enrolled

    desk._enrol = enrol  # type: ignore[method-assign]
    first, second = play(desk, everyone)
    assert isinstance(first, ConsentError) and first.code == "CONSENT-001"
    assert "Your key is not on the list" in str(first)
    assert standings([second]) == ["finished"]
    assert len(desk.packets) == 1
    assert states(hidden) == ["stored"]
    with Journal(hidden.path, hidden.clock) as journal, journal.begin_read() as db:
        assert db.execute("SELECT standing, sealed FROM packets").fetchall() == [("minted", None)]


def test_closed_study_leaves_unsent_packets_stored(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    wait = desk._wait

    async def closing(seconds: float) -> None:
        desk.status = "closed"
        await wait(seconds)

    desk._sleep = closing
    ends = play(desk, [person])
    assert standings(ends) == ["aborted"]
    reason = ends[0].reason or ""  # type: ignore[union-attr]
    assert (
        "Nothing was sent" in reason
        and "has ended, and your answer was not sent" in reason
        and "has passed" not in reason
    )
    assert desk.packets == [] and states(person) == ["stored"]


def test_relay_without_study_is_asked_until_window_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    (person,) = holders(folder, desk, 1)
    n_asked = 0

    async def check(manifest: Manifest) -> None:
        nonlocal n_asked
        n_asked += 1
        if desk.registered:
            raise TransportError("NET-005", "Not served.")

    monkeypatch.setattr(desk.network_path, "check", check)
    ends = play(desk, [person])
    assert standings(ends) == ["aborted"] and n_asked > 3
    assert desk.sealed == [] and states(person) == ["stored"]


def test_second_run_sends_no_request(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    play(desk, [person])
    n = desk.n_members
    assert standings(play(desk, [person])) == ["finished"]
    assert (len(desk.packets), desk.n_members) == (1, n)


def test_credential_of_epoch_is_used_without_issuer(folder: Path) -> None:
    first, other = (
        TokenDesk(token_manifest(n=1, epoch="2026", title=title)) for title in ("One", "Two")
    )
    (person,) = holders(folder, first, 1)
    assert standings(play(first, [person])) == ["finished"]
    person.clock = other.time
    other.registered = dict(first.registered)
    other._enrol = None  # type: ignore[assignment,method-assign]
    assert standings(play(other, [person])) == ["finished"]
    assert (
        derive_key(person, first.manifest).public_key
        == derive_key(person, other.manifest).public_key
    )
    assert set(first.answers).isdisjoint(other.answers), "pseudonyms of two studies differ"
    with Journal(person.path, person.clock) as journal:
        assert [one.name is None for one in journal.list_studies()] == [False, True]


def test_key_belongs_to_study_or_epoch(folder: Path) -> None:
    plain, other = token_manifest(), token_manifest(title="Other")
    epochs = [
        token_manifest(epoch=epoch, title=title)
        for epoch, title in (("a", "One"), ("a", "Two"), ("b", "One"))
    ]
    desk = TokenDesk(plain)
    (person,) = holders(folder, desk, 1)
    play(desk, [person])
    keys = [derive_key(person, manifest).public_key for manifest in (plain, other, *epochs)]
    assert keys[2] == keys[3] and len(set(keys)) == 4


@pytest.mark.parametrize("place", [1, 7])
def test_unknown_partition_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    monkeypatch.setattr(desk.slots, "n_credential_partitions", place + 1)
    monkeypatch.setattr(desk.entropy, "below", lambda bound: bound - 1)
    (end,) = play(desk, [person])
    assert isinstance(end, RemoteProtocolError) and end.code == "TOKEN-003"
    assert desk.packets == [] and states(person) == []


def test_credential_of_other_issuer_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    original = desk._enrol

    def forged(key: bytes, form: Enrolment) -> Enrolled:
        enrolled = original(key, form)
        return enrolled.replace(
            issued=None if person.n_crashes else "00" * len(bytes.fromhex(enrolled.issued or ""))
        )

    desk._enrol = forged  # type: ignore[method-assign]
    for person.n_crashes in (0, 1):
        (end,) = play(desk, [person])
        assert isinstance(end, RemoteProtocolError) and end.code == "TOKEN-003"
    assert desk.packets == []


def test_second_ledger_of_one_person_is_not_registered(folder: Path) -> None:
    """A backup from before the registration draws another one, which is refused."""
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    play(desk, [person])
    with Journal(person.path, person.clock) as journal, journal.begin_write() as db:
        db.execute("DELETE FROM credentials")
        db.execute("UPDATE studies SET standing = 'agreed'")
    person.n_crashes = 1
    (end,) = play(desk, [person])
    assert isinstance(end, RefusedError) and end.code == "ENROL-002"


def test_packets_of_paper_variant_have_separate_times_and_pseudonyms(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=2, variant="paper", anonml=PAPER))
    everyone = holders(folder, desk, 2)
    ends = play(desk, everyone)
    assert standings(ends) == ["finished"] * 2
    assert (
        len(desk.answers)
        == 4
        == len({packet for _, packet in desk.packets})
        == len({time for time, _ in desk.packets})
    )
    assert desk.bad == []
    assert [states(one) for one in everyone] == [["sent", "sent"]] * 2


@pytest.mark.parametrize("is_closed", [False, True])
def test_study_with_one_unsent_packet_is_not_fully_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    desk = TokenDesk(token_manifest(n=2, variant="paper", anonml=PAPER))
    (person,) = holders(folder, desk, 1)
    submit, window = desk.submit_packet, desk.window()

    async def last(study: str, packet: bytes) -> None:
        await submit(study, packet)
        if is_closed:
            desk.status = "closed"
        else:
            desk.time.advance((window.resends_until - desk.time.now()).total_seconds() + 1)

    monkeypatch.setattr(desk, "submit_packet", last)
    for _ in range(2):
        (end,) = play(desk, [person])
        assert isinstance(end, ParticipationResult) and (end.status, end.n_unsent) == (
            "finished",
            1,
        )
        assert (
            end.description
            == "1 answer was not sent and will not be sent; all other questions answered"
        )
    assert len(desk.packets) == 1 and sorted(states(person)) == ["sent", "stored"]
    assert person.told[-1] == end.description and "all questions answered" not in person.told
    why = "the study has ended" if is_closed else "the time for sending it has passed"
    assert sum(line.endswith(f"was not sent: {why}") for line in person.told) == 1


def test_progress_describes_anonymity_set(folder: Path) -> None:
    """In variant paper a packet also shows its partition; a direct packet shows an IP address."""
    told = []
    for i, (has_relay, more) in enumerate(
        [(False, {}), (True, {}), (True, {"variant": "paper", "anonml": PAPER})]
    ):
        desk = TokenDesk(token_manifest(n=1, **more), has_relay=has_relay)
        (person,) = holders(folder / str(i), desk, 1)
        play(desk, [person])
        told += [line for line in person.told if "you are one of" in line]
    one = "you are one of 1 member; what you send shows that one of them sent it"
    assert told == [
        f"{one}; the coordinator sees your IP address",
        one,
        f"{one}, and which of 2 parts of the study you belong to: you hide among the members of "
        "your part",
    ]


def test_device_mints_one_token_per_update(folder: Path) -> None:
    settings = {"n_instances": 2, "admission": "token"}
    manifest = token_manifest(
        "ddml",
        2,
        ddml=settings,
        privacy={"epsilon": 4.0, "n_updates": 3},
        participation={"minimum": 2, "size": 2},
    )
    desk = TokenDesk(manifest, loss=4)
    everyone = holders(folder, desk, 2)
    for i, one in enumerate(everyone):
        one.table, one.crash = make_table(5, i), 10
    assert standings(play(desk, everyone)) == ["finished"] * 2
    assert sum(one.n_crashes for one in everyone) > 1
    proofs = {proof for _, proof in desk.updates}
    assert len(proofs) == 6, "one token for each number"
    assert len({(body, proof) for body, proof in desk.updates}) == 6
    assert len({str(proof)[:96] for proof in proofs}) == 6, "pseudonyms differ"
