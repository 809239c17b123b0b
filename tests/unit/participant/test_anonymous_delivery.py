"""Packets with tokens: random times, the same bytes on every retry, one arrival after crashes."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.messages.codec import decode, encode
from shoal.participant.client import Client, RefusedError
from shoal.participant.driver import ParticipationResult
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.network.base import DirectPath
from shoal.participant.network.tor import TorPath
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import Enrolled, Enrolment, MessagePage, QueuedMessage
from shoal.transport.signing import sign_broadcast
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
    times = [time - window.sends_from.timestamp() for time, _ in desk.packets]
    length = (window.collects_until - window.sends_from).total_seconds()
    assert len(set(times)) == 12 and min(times) >= 0 and max(times) < length
    # Of twelve uniform draws all in one half, whichever: once in 2,048 for other seeds; this one is
    # fixed.
    assert min(times) < length / 2 < max(times)


class SlowBoard:
    """Broadcasts that are answered late or not at all, and when each read began."""

    def __init__(self, desk: TokenDesk, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.begun: list[float] = []
        self._desk, self._board = desk, desk.fetch_broadcasts
        self._delays = SeededEntropy(f"delays {seed}")
        monkeypatch.setattr(desk, "fetch_broadcasts", self.board)

    async def board(self, study: str, after: int, wait: int = 0) -> MessagePage:
        assert wait == 0, "the coordinator must not decide how long a read takes"
        self.begun.append((self._desk.time.now() - self._desk.window().opened).total_seconds())
        fate = self._delays.below(12)
        await self._desk._wait(fate)
        if fate > 8:
            raise TransportError("NET-001", "Lost.")
        return await self._board(study, after, wait)


@pytest.mark.parametrize("seed", range(3))
def test_reads_and_packet_do_not_depend_on_responses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Reads begin at a fixed cadence and end at a time drawn before, whatever is answered."""
    desk = TokenDesk(token_manifest(n=1))
    board, window = SlowBoard(desk, monkeypatch, seed), desk.window()
    (person,) = holders(folder, desk, 1, f"readings {seed}")
    assert standings(play(desk, [person])) == ["finished"]
    ((time, _),) = desk.packets
    assert window.sends_from.timestamp() <= time < window.collects_until.timestamp()
    cadence = desk.manifest.schedule.cadence.total_seconds()  # type: ignore[union-attr]
    assert 0 <= board.begun[0] < cadence
    assert board.begun == pytest.approx(
        [board.begun[0] + cadence * i for i in range(len(board.begun))], abs=1e-6
    )
    assert window.resends_until <= desk.time.now() < window.closes
    ended = (desk.time.now() - window.opened).total_seconds()
    assert ended - cadence <= board.begun[-1] < ended


def test_reported_end_stops_neither_reads_nor_packet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that tells some readers that the study has ended isolates nobody."""
    desk = TokenDesk(token_manifest(n=1))
    board, window = SlowBoard(desk, monkeypatch, 0), desk.window()
    (person,) = holders(folder, desk, 1, "told")
    original = board._board

    async def ended(study: str, after: int, wait: int = 0) -> MessagePage:
        return (await original(study, after, wait)).replace(status="closed")

    board._board = ended
    assert standings(play(desk, [person])) == ["finished"]
    is_counted_once(desk, [person])
    assert desk.time.now() >= window.resends_until


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda one: one.replace(signature=None), "AUTH-004"),
        (lambda one: one.replace(number=one.number + 1), "AUTH-004"),
        (lambda one: one.replace(payload=one.payload + b"\0"), "AUTH-004"),
        ("earlier", "ANONML-003"),
        ("shorter", "ANONML-003"),
    ],
)
def test_question_without_signature_or_with_other_times_is_not_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Any, code: str
) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    read = desk.fetch_broadcasts

    def altered(one: QueuedMessage) -> QueuedMessage:
        if callable(change):
            return change(one)
        ask = decode(one.payload, MESSAGES, desk.manifest.digest)
        assert isinstance(ask, AnonMLAsk)
        by = timedelta(milliseconds=1)
        opened = ask.opened - by if change == "earlier" else ask.opened
        payload = encode(ask.replace(opened=opened, closes=ask.closes - by))
        return sign(desk, one.number, payload)

    async def board(study: str, after: int, wait: int = 0) -> MessagePage:
        page = await read(study, after, wait)
        return page.replace(letters=tuple(map(altered, page.letters)))

    monkeypatch.setattr(desk, "fetch_broadcasts", board)
    (end,) = play(desk, [person])
    assert isinstance(end, ParticipationResult) and end.status == "aborted"
    assert "sent you no valid question in time" in (end.reason or "")
    rejected = f"rejected a message of the coordinator ({code})"
    assert sum(rejected in line for line in person.told) == 1
    assert desk.packets == [] and states(person) == []


def sign(desk: TokenDesk, number: int, payload: bytes) -> QueuedMessage:
    signature = sign_broadcast(desk.identity, desk.manifest.digest, number, payload)
    return QueuedMessage(number=number, payload=payload, signature=signature)


@pytest.mark.parametrize("seconds", [20.0, 31.0])
def test_second_signed_question_before_deadline_stops_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Before ``joins_until``, at 30 s, nothing is sent; later a dispute must not steer anything."""
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    read, opened = desk.fetch_broadcasts, desk.window().opened

    async def board(study: str, after: int, wait: int = 0) -> MessagePage:
        page = await read(study, after, wait)
        if (desk.time.now() - opened).total_seconds() < seconds:
            return page
        ask = decode(desk.letters[0][2], MESSAGES, desk.manifest.digest)
        assert isinstance(ask, AnonMLAsk)
        other = ask.replace(publication=ask.publication.replace(points=(1.0,)))
        return page.replace(letters=(sign(desk, 9, encode(other)),))

    monkeypatch.setattr(desk, "fetch_broadcasts", board)
    (end,) = play(desk, [person])
    assert sum("signed two different questions for phase 0" in line for line in person.told) >= 1
    assert (len(desk.packets), standings([end])) == (
        (0, ["aborted"]) if seconds < 30 else (1, ["finished"])
    )


def test_question_that_comes_late_is_not_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    read, window = desk.fetch_broadcasts, desk.window()

    async def board(study: str, after: int, wait: int = 0) -> MessagePage:
        page = await read(study, after, wait)
        return page if desk.time.now() >= window.joins_until else page.replace(letters=())

    monkeypatch.setattr(desk, "fetch_broadcasts", board)
    assert standings(play(desk, [person])) == ["aborted"]
    assert desk.packets == [] and states(person) == []
    assert any("The question of phase 0 came after 2030-01-01 00:00:30" in x for x in person.told)


def test_relay_with_another_question_stops_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    (person,) = holders(folder, desk, 1)
    asked: list[tuple[int, bytes]] = []

    async def confirm(_study: StudyHandle, phase: int, digest: bytes) -> bool:
        asked.append((phase, digest))
        if len(asked) == 1:
            return False
        if len(asked) == 2:
            raise TransportError("NET-001", "The relay does not answer.")
        raise RemoteProtocolError("ANONML-003", "The relay was shown another question.")

    monkeypatch.setattr(desk.network_path, "confirm_ask", confirm)
    assert standings(play(desk, [person])) == ["aborted"]
    assert asked == [(0, hashlib.sha256(desk.letters[0][2]).digest())] * 3
    assert desk.sealed == [] and states(person) == [], "nothing was drawn"


def test_relay_that_has_the_question_later_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=True)
    (person,) = holders(folder, desk, 1)
    answers = iter([False, False, True])

    async def confirm(_study: StudyHandle, _phase: int, _digest: bytes) -> bool:
        return next(answers)

    monkeypatch.setattr(desk.network_path, "confirm_ask", confirm)
    assert standings(play(desk, [person])) == ["finished"]
    is_counted_once(desk, [person])


def test_too_few_members_stop_the_packet(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=3))
    everyone = holders(folder, desk, 2)
    ends = play(desk, everyone)
    assert all(isinstance(end, ConsentError) for end in ends)
    sentence = "You would be one of 2 members; the study's minimum is 3: nothing is sent."
    assert sentence in str(ends[0])
    assert desk.packets == [] and [states(one) for one in everyone] == [["stored"]] * 2


@pytest.mark.parametrize(
    ("share", "part"), [(0.75, (0.9, 1.0)), (0.95, (0.95, 1.0)), (2.0, (2.0, 2.0))]
)
def test_polling_continues_after_arrival_and_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, part: tuple[float, float]
) -> None:
    desk = TokenDesk(token_manifest(n=1))
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
    desk.time.advance((window.joins_until - window.opened).total_seconds())
    (end,) = play(desk, [late])
    assert isinstance(end, ConsentError)
    assert "could be joined until 2030-01-01 00:00:30 UTC" in str(end)
    assert desk.packets == [] and desk.registered == {} and states(late) == []


def interrupt_at(words: str, desk: TokenDesk, person: Holder) -> None:
    """Play until a line of progress contains some words, and stop there."""

    def interrupted(line: str) -> None:
        person.said.append(line)
        if words in line:
            raise KeyboardInterrupt

    person.told = Lines(interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(desk, [person])
    person.told = []


@pytest.mark.parametrize("has_relay", [False, True])
def test_participant_resumed_after_collection_sends_before_resends_end(
    folder: Path, has_relay: bool
) -> None:
    desk = TokenDesk(token_manifest(n=1), has_relay=has_relay)
    window = desk.window()
    (person,) = holders(folder, desk, 1)
    interrupt_at("will be sent at", desk, person)
    desk.time.advance((window.collects_until - desk.time.now()).total_seconds() + 1)
    before = desk.time.now()
    assert standings(play(desk, [person])) == ["finished"]
    is_counted_once(desk, [person])
    assert "answer delivered" in person.told
    allowance = (window.sends_from - window.joins_until) / 4
    (time, *_) = [time for time, _ in desk.packets]
    assert time >= (before + allowance).timestamp()


def test_missed_time_is_drawn_again(folder: Path) -> None:
    """A restarted participant does not send immediately: the time would identify it."""
    desk = TokenDesk(token_manifest(n=1))
    window = desk.window()
    (person,) = holders(folder, desk, 1, "anew")
    interrupt_at("will be sent at", desk, person)
    (first,) = [line for line in person.said if "will be sent at" in line]
    desk.time.advance((window.closes - desk.time.now()).total_seconds() * 0.75)
    before = desk.time.now()
    assert standings(play(desk, [person])) == ["finished"]
    ((time, _),) = desk.packets
    assert before.timestamp() < time < window.collects_until.timestamp()
    (line,) = [line for line in person.told if "will be sent at" in line]
    assert line != first
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
    interrupt_at("is at the relay", desk, person)


SHUFFLED = {
    "trust": "shuffled",
    "privacy": {"epsilon": 2.0, "delta": 1e-6},
    "participation": {"minimum": 1000, "size": 1000, "honest_share": 0.9},
}


def test_shuffled_packet_is_not_sent_directly_after_restart(folder: Path) -> None:
    desk = TokenDesk(token_manifest(n=100, **SHUFFLED), has_relay=True)
    desk.lost = set(range(99))
    desk.others = [i.to_bytes(32, "big") for i in range(1000)]
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
    desk = TokenDesk(token_manifest(n=1))
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


def test_packet_to_closed_study_is_sent_once_and_refused(folder: Path) -> None:
    """The packet leaves at its time, since the end may be reported to some people only."""
    desk = TokenDesk(token_manifest(n=1))
    (person,) = holders(folder, desk, 1)
    window, wait = desk.window(), desk._wait

    async def closing(seconds: float) -> None:
        await wait(seconds)
        if desk.time.now() >= window.joins_until:
            desk.status = "closed"

    desk._sleep = closing
    assert standings(play(desk, [person])) == ["finished"]
    assert len(desk.packets) == 1 and states(person) == ["sent"]
    assert window.resends_until <= desk.time.now() < window.closes


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
    interrupt_at("registered", desk, person)
    with Journal(person.path, person.clock) as journal, journal.begin_write() as db:
        db.execute("DELETE FROM credentials")
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


def test_study_with_one_unsent_packet_is_not_fully_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = TokenDesk(token_manifest(n=1, variant="paper", anonml=PAPER))
    (person,) = holders(folder, desk, 1)
    submit, window = desk.submit_packet, desk.window()

    async def last(study: str, packet: bytes) -> None:
        await submit(study, packet)
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
    why = "the time for sending it has passed"
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
