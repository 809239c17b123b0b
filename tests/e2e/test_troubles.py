"""A full disk, clocks that jump, slow and half-open connections, two coordinators: nothing is lost, counted twice or spent in vain."""

from __future__ import annotations

import queue
import signal
import socket
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from e2e.children import PATIENCE, Ahead, Process
from e2e.crash_cases import DEVICE, MATRIX
from e2e.crashing import Scene, check
from e2e.troubles import Passage, small_disk, small_files
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SeededEntropy
from shoal.privacy.ledger import SPENT
from shoal.privacy.records import State

DAY = 86_400


def hear(scene: Scene, process: Process, words: str) -> None:
    """Wait until a process that goes on has said something."""
    while words not in process.said:
        assert process.is_alive, process.said
        scene.heard.get(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["files", "disk"])
def test_a_coordinator_without_room_stores_nothing_and_says_so(kind: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    disk = stack.enter_context(small_disk(scene.disk, 1 << 24)) if kind == "disk" else None
    scene.coordinator.start()
    (device,) = scene.gather()
    device.start("die=sent:2")
    assert device.wait() == -signal.SIGKILL
    with small_files(scene.coordinator.pid, 4096) if disk is None else disk.filled():
        device.start()
        hear(scene, device, "(HOST-004): The coordinator says, with status 503: ")
        states = [entry.state for entry in scene.entries()[0]]
        assert states.count(State.SENT) == 2 and states.count(State.SENDING) <= 1
    scene.run()
    check(scene)


@pytest.mark.parametrize("kind", ["files", "disk"])
def test_a_participant_without_room_sends_nothing_and_says_so(kind: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """At first it can write nothing; when it has sent two answers, nothing or, into the file as it is, a little more."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    (ledger,) = scene.ledger_files
    content = ledger.read_bytes()
    disk = stack.enter_context(small_disk(scene.ledgers, 1 << 20)) if kind == "disk" else None
    ledger.write_bytes(content)
    scene.coordinator.start()
    (device,) = scene.gather()
    for n_sent in (0, 2):
        if n_sent:
            device.start(f"die=sent:{n_sent}")
            assert device.wait() == -signal.SIGKILL, device.said
        with nullcontext() if disk is None else disk.filled():
            device.start(*([f"file={ledger.stat().st_size if n_sent else 4096}"] if disk is None else []))
            assert device.wait() == 1 and "LEDGER-00" in device.said and "Traceback" not in device.said, device.said
        n_spent = sum(entry.state in SPENT for entry in scene.entries()[0])
        assert n_sent <= scene.n_merged() <= n_spent and (n_sent == n_spent or (disk is None and n_sent > 0))
    device.start()
    scene.run()
    check(scene)


def test_clocks_that_are_a_day_off(tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """Of two coordinators on one store one is a day ahead, and so is one holder; another is a day behind."""
    scene = Scene(replace(MATRIX["pfds, trees"], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    ahead = scene.second()
    ahead.clock.put(DAY)
    ahead.start()
    participants = scene.gather()
    participants[1].command[2] = ahead.url
    for i, (participant, seconds) in enumerate(zip(participants, (0, -DAY, DAY), strict=True)):
        participant.start(Ahead(scene.folder / f"clock {i}", seconds).word)
    scene.run()
    assert ahead.end(signal.SIGTERM) == 0
    check(scene, "AUTH-003")


@pytest.mark.parametrize("name", ["anonml", *(pytest.param(name, marks=pytest.mark.soak) for name in ("ddml by tokens", "sdq by sums"))])
def test_clocks_that_jump(name: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """Forward and back by a day, whenever somebody has said something, on both sides."""
    scene = Scene(replace(MATRIX[name], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    theirs = Ahead(scene.folder / "clock of the participants")
    for participant in scene.gather():
        participant.start(theirs.word)
    jumps = cycle([(scene.coordinator.clock, DAY), (theirs, -DAY), (scene.coordinator.clock, -DAY), (theirs, DAY), (theirs, 0)])
    n_jumps, n_silent, deadline = 0, 0, time.monotonic() + PATIENCE
    while scene.is_under_way:
        assert time.monotonic() < deadline, [(one.name, one.said) for one in scene.participants]
        try:
            scene.heard.get(timeout=1.0)
            clock, seconds = next(jumps)
            clock.put(seconds)
            n_jumps, n_silent = n_jumps + 1, 0
        except queue.Empty:
            n_silent += 1
        for one in scene.participants:
            # Some have given up before they enrolled, and the others in their process wait for them.
            if n_silent >= 5 and one.is_alive and "AUTH-003" in one.said:
                one.end(signal.SIGTERM)
        # Between a refusal, which tells the right time, and the next try the clock may jump again.
        scene.start_again("AUTH-003")
    assert n_jumps >= 3
    scene.run()
    check(scene, "AUTH-003")


def test_a_clock_that_is_put_back_after_a_crash(tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """Whoever was a day ahead has left a lease that lasts for a day: nobody waits for it."""
    scene = Scene(replace(MATRIX["anonml"], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.clock.put(DAY)
    scene.coordinator.start("die=folded:2")
    (crew,) = scene.gather()
    crew.start()
    assert scene.coordinator.wait() == -signal.SIGKILL
    scene.coordinator.clock.put(0)
    scene.coordinator.start()
    scene.run()
    check(scene)


def test_two_coordinators_of_one_study(tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """An answer goes to one of them, whatever happens in between."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    other = scene.second(store=f"sqlite:{tmp_path / 'other.db'}")
    other.start()
    assert other.notice["studies"][0]["digest"] == scene.digest
    (device,) = scene.gather()
    device.start("die=sending:2")
    assert device.wait() == -signal.SIGKILL
    url, before = device.command[2], scene.entries()
    device.command[2] = other.url
    device.start()
    assert device.wait() != 0 and "CONSENT-001" in device.said
    assert scene.entries() == before
    device.command[2] = url
    device.start()
    scene.run()
    check(scene)
    with open_store(f"sqlite:{tmp_path / 'other.db'}") as store:
        assert store.totals(scene.digest).enrolled == 0
    assert other.end(signal.SIGTERM) == 0


def test_answers_that_are_lost_on_connections_that_stay_open(tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """What was acknowledged, and is sent again because nobody has heard it, is counted once."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    passage = Passage(scene.coordinator.port, stack)
    (device,) = scene.gather()
    device.command[2] = passage.url
    device.start("answer=2")
    scene.run()
    # Updates that the coordinator has acknowledged; draws are answered with 200.
    assert any(" 202 " in answer for answer in passage.unanswered)
    check(scene)


def test_slow_and_silent_connections_hold_up_nobody(tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """They are cut off after a time, while others are served."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start("read=4")
    before = memory_of(scene.coordinator.pid)
    silent, slow, begun = (
        [stack.enter_context(socket.create_connection(("127.0.0.1", scene.coordinator.port))) for _ in range(n)] for n in (200, 50, 50)
    )
    for one in begun:
        one.sendall(f"POST /v1/studies/{scene.digest}/update HTTP/1.1\r\nhost: a\r\ncontent-length: 36\r\n\r\n".encode())
    (device,) = scene.gather()
    device.start()
    while device.is_alive:
        for one in slow:
            with suppress(OSError):
                one.send(b"G")
        with suppress(queue.Empty):
            scene.heard.get(timeout=1.0)
    for one in (*silent, *slow, *begun):
        one.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            while one.recv(1000):
                pass
    assert memory_of(scene.coordinator.pid) < before + 64 * 1024
    scene.run()
    check(scene)


def memory_of(pid: int) -> int:
    """Kilobytes of it that are in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
