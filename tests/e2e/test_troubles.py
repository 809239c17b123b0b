"""Full disks, wrong clocks, slow and half-open connections, and two coordinators.

Nothing is lost, counted twice or spent in vain.
"""

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

from shoal.coordinator.store import open_store
from shoal.entropy import SeededEntropy
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from tests.e2e.children import PATIENCE, Ahead, Process
from tests.e2e.crash_cases import DEVICE, MATRIX
from tests.e2e.crashing import Scene, check
from tests.e2e.troubles import LossyProxy, small_disk, small_files

DAY = 86_400


def wait_for_output(scene: Scene, process: Process, words: str) -> None:
    """Wait until a running process has printed some words."""
    while words not in process.output:
        assert process.is_alive, process.output
        scene.events.get(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["files", "disk"])
def test_coordinator_on_full_disk_rejects_updates(
    kind: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    disk = stack.enter_context(small_disk(scene.disk, 1 << 24)) if kind == "disk" else None
    scene.coordinator.start()
    (device,) = scene.make_participants()
    device.start("die=sent:2")
    assert device.wait() == -signal.SIGKILL
    with small_files(scene.coordinator.pid, 4096) if disk is None else disk.fill():
        device.start()
        wait_for_output(scene, device, "(HOST-004): The coordinator says, with status 503: ")
        states = [entry.state for entry in scene.entries()[0]]
        assert states.count(ReleaseState.SENT) == 2 and states.count(ReleaseState.SENDING) <= 1
    scene.run()
    check(scene)


@pytest.mark.parametrize("kind", ["files", "disk"])
def test_participant_on_full_disk_sends_nothing(
    kind: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """First it can write nothing; after two answers nothing, or only into existing pages."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    (ledger,) = scene.ledger_files
    content = ledger.read_bytes()
    disk = stack.enter_context(small_disk(scene.ledgers, 1 << 20)) if kind == "disk" else None
    ledger.write_bytes(content)
    scene.coordinator.start()
    (device,) = scene.make_participants()
    for n_sent in (0, 2):
        if n_sent:
            device.start(f"die=sent:{n_sent}")
            assert device.wait() == -signal.SIGKILL, device.output
        with nullcontext() if disk is None else disk.fill():
            device.start(
                *([f"file={ledger.stat().st_size if n_sent else 4096}"] if disk is None else [])
            )
            assert (
                device.wait() == 1
                and "LEDGER-00" in device.output
                and "Traceback" not in device.output
            ), device.output
        n_spent = sum(entry.state in SPENT_STATES for entry in scene.entries()[0])
        assert n_sent <= scene.count_merged() <= n_spent and (
            n_sent == n_spent or (disk is None and n_sent > 0)
        )
    device.start()
    scene.run()
    check(scene)


def test_study_completes_if_clocks_differ_by_a_day(
    tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """One of two coordinators on a store is a day ahead, one holder a day ahead, one behind."""
    scene = Scene(
        replace(MATRIX["pfds, trees"], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack
    )
    scene.coordinator.start()
    ahead = scene.make_second_coordinator()
    ahead.clock.put(DAY)
    ahead.start()
    participants = scene.make_participants()
    participants[1].command[2] = ahead.url
    for i, (participant, seconds) in enumerate(zip(participants, (0, -DAY, DAY), strict=True)):
        participant.start(Ahead(scene.folder / f"clock {i}", seconds).word)
    scene.run()
    assert ahead.end(signal.SIGTERM) == 0
    check(scene, "AUTH-003")


@pytest.mark.parametrize(
    "name",
    [
        "anonml",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("ddml by tokens", "sdq by sums")),
    ],
)
def test_study_completes_if_clocks_jump(
    name: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """Clocks on both sides jump by a day at each line of output."""
    scene = Scene(replace(MATRIX[name], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    theirs = Ahead(scene.folder / "clock of the participants")
    for participant in scene.make_participants():
        participant.start(theirs.word)
    jumps = cycle(
        [
            (scene.coordinator.clock, DAY),
            (theirs, -DAY),
            (scene.coordinator.clock, -DAY),
            (theirs, DAY),
            (theirs, 0),
        ]
    )
    n_jumps, n_silent, deadline = 0, 0, time.monotonic() + PATIENCE
    while scene.is_under_way:
        assert time.monotonic() < deadline, [(one.name, one.output) for one in scene.participants]
        try:
            scene.events.get(timeout=1.0)
            clock, seconds = next(jumps)
            clock.put(seconds)
            n_jumps, n_silent = n_jumps + 1, 0
        except queue.Empty:
            n_silent += 1
        for one in scene.participants:
            # Some stopped before they enrolled, and others in the same process wait for them.
            if n_silent >= 5 and one.is_alive and "AUTH-003" in one.output:
                one.end(signal.SIGTERM)
        # Between a rejection, which carries the right time, and the retry the clock may jump again.
        scene.start_again("AUTH-003")
    assert n_jumps >= 3
    scene.run()
    check(scene, "AUTH-003")


def test_lease_from_the_future_does_not_block_study(
    tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """A coordinator that was a day ahead left a lease for a day; the next one does not wait."""
    scene = Scene(
        replace(MATRIX["anonml"], patience=3 * DAY), tmp_path / "scene", entropy, {}, stack
    )
    scene.coordinator.clock.put(DAY)
    scene.coordinator.start("die=step saved:2")
    (fleet,) = scene.make_participants()
    fleet.start()
    assert scene.coordinator.wait() == -signal.SIGKILL
    scene.coordinator.clock.put(0)
    scene.coordinator.start()
    scene.run()
    check(scene)


def test_participant_stays_with_first_coordinator(
    tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """An answer that may have left goes to the first coordinator only."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    other = scene.make_second_coordinator(store=f"sqlite:{tmp_path / 'other.db'}")
    other.start()
    assert other.notice["studies"][0]["digest"] == scene.digest
    (device,) = scene.make_participants()
    device.start("die=sending:2")
    assert device.wait() == -signal.SIGKILL
    url, before = device.command[2], scene.entries()
    device.command[2] = other.url
    device.start()
    assert device.wait() != 0 and "CONSENT-001" in device.output
    assert scene.entries() == before
    device.command[2] = url
    device.start()
    scene.run()
    check(scene)
    with open_store(f"sqlite:{tmp_path / 'other.db'}") as store:
        assert store.count_totals(scene.digest).enrolled == 0
    assert other.end(signal.SIGTERM) == 0


def test_update_with_lost_response_counts_once(
    tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """An acknowledged update that is sent again, since its response was lost, counts once."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    proxy = LossyProxy(scene.coordinator.port, stack)
    (device,) = scene.make_participants()
    device.command[2] = proxy.url
    device.start("answer=2")
    scene.run()
    # Acknowledged updates have status 202; draws have 200.
    assert any(" 202 " in answer for answer in proxy.unanswered)
    check(scene)


def test_slow_and_silent_connections_are_closed(
    tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """The server closes them after a time and serves others in between."""
    scene = Scene(DEVICE, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start("read=4")
    before = read_memory(scene.coordinator.pid)
    silent, slow, begun = (
        [
            stack.enter_context(socket.create_connection(("127.0.0.1", scene.coordinator.port)))
            for _ in range(n)
        ]
        for n in (200, 50, 50)
    )
    for one in begun:
        one.sendall(
            f"POST /v1/studies/{scene.digest}/update HTTP/1.1\r\nhost: a\r\ncontent-length: "
            "36\r\n\r\n".encode()
        )
    (device,) = scene.make_participants()
    device.start()
    while device.is_alive:
        for one in slow:
            with suppress(OSError):
                one.send(b"G")
        with suppress(queue.Empty):
            scene.events.get(timeout=1.0)
    for one in (*silent, *slow, *begun):
        one.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            while one.recv(1000):
                pass
    assert read_memory(scene.coordinator.pid) < before + 64 * 1024
    scene.run()
    check(scene)


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in kilobytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
