"""Ledgers of processes that are killed, race, or find no room on the disk.

The ledger never counts less than was sent, and no question gets new noise.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from shoal.clock import SystemClock
from shoal.entropy import SeededEntropy
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry
from shoal.privacy.rounding import grains_down, grains_up
from tests.e2e import ledger_child
from tests.e2e.ledger_child import STUDY
from tests.support.participants import PROCESSES, child

POINTS = ("begun", "reserved", "drawn", "stored", "sending", "half delivered", "delivered", "sent")
PROCESSES.set_forkserver_preload(["shoal.participant.ledger_file", "shoal.mechanisms.laplace"])


def open_ledger(path: Path) -> LedgerFile:
    return LedgerFile(path, SystemClock())


def new_ledger(path: Path, epsilon: float) -> None:
    with open_ledger(path) as ledger:
        ledger.set_limit(Limit(None, grains_down(epsilon)))


def read_delivered(network: Path) -> dict[str, set[str]]:
    """Return the different bytes sent for each question; a crash may leave part of a line."""
    seen: dict[str, set[str]] = {}
    for question, payload in re.findall(
        r"(q\d+) ([0-9a-f]*)", network.read_text() if network.exists() else ""
    ):
        seen.setdefault(question, set()).add(payload)
    return seen


def check_nothing_lost(path: Path, network: Path) -> dict[str, LedgerEntry]:
    """Check the chain, that all sent bytes are counted, and that they are the stored ones."""
    with open_ledger(path) as ledger:
        ledger.verify()
        entries = {entry.release.question: entry for entry in ledger.entries()}
        for question, payloads in read_delivered(network).items():
            assert entries[question].state in SPENT_STATES
            stored = ledger.read_payload(STUDY, question).hex()
            assert all(stored.startswith(payload) for payload in payloads)
        spent = sum(total.spent for total in ledger.totals())
        assert spent >= len(read_delivered(network)) * grains_up(0.25)
    return entries


@pytest.mark.parametrize("point", POINTS)
def test_ledger_is_whole_after_kill_between_steps(tmp_path: Path, point: str) -> None:
    path, network = tmp_path / "ledger.db", tmp_path / "network"
    with child(ledger_child.step_by_step, path, network, "q1") as (link, kill):
        while link.recv() != point:
            link.send("go on")
        kill()
    before = check_nothing_lost(path, network).get("q1")
    with open_ledger(path) as ledger:
        stored = ledger.read_payload(STUDY, "q1") if before and before.digest else None
    with child(ledger_child.step_by_step, path, network, "q1") as (link, kill):
        while link.recv() != "end":
            link.send("go on")
    after = check_nothing_lost(path, network)["q1"]
    assert after.state is ReleaseState.SENT
    with open_ledger(path) as ledger:
        assert stored in (None, ledger.read_payload(STUDY, "q1"))
        assert max(read_delivered(network)["q1"], key=len) == ledger.read_payload(STUDY, "q1").hex()
        (total,) = ledger.totals()
        assert (total.spent, total.held, total.releases) == (grains_up(0.25), 0, 1)


def kill_at_random(tmp_path: Path, entropy: SeededEntropy, n_kills: int) -> None:
    path, network = tmp_path / "ledger.db", tmp_path / "network"
    new_ledger(path, 1e6)
    heads: list[str] = []
    for _ in range(n_kills):
        with child(ledger_child.as_fast_as_it_can, path, network) as (link, kill):
            for _ in range(1 + entropy.below(40)):
                link.recv()
            _spin(entropy.below(4000))
            kill()
        entries = check_nothing_lost(path, network)
        with open_ledger(path) as ledger:
            heads.append(str(ledger.read_head()))
            ledger.verify(heads[entropy.below(len(heads))])
        assert (
            sum(
                entry.state not in (ReleaseState.SENT, ReleaseState.VOIDED)
                for entry in entries.values()
            )
            <= 1
        )
    assert len(entries) > n_kills / 2


def _spin(n: int) -> None:
    """Wait for a short, varying time, so that the kill falls into a step."""
    while n:
        n -= 1
        os.getppid()


def test_ledger_is_whole_after_random_kills(tmp_path: Path, entropy: SeededEntropy) -> None:
    kill_at_random(tmp_path, entropy, 30)


@pytest.mark.soak
def test_ledger_is_whole_after_many_random_kills(tmp_path: Path, entropy: SeededEntropy) -> None:
    kill_at_random(tmp_path, entropy, 400)


def kill_in_transactions(tmp_path: Path, entropy: SeededEntropy, n_kills: int) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path, 1e6)
    last, journals = "", 0
    for _ in range(n_kills):
        with child(ledger_child.churn, path) as (link, kill):
            reported = link.recv()
            _spin(entropy.below(30_000))
            kill()
        journals += path.with_name("ledger.db-journal").exists()
        with open_ledger(path) as ledger:
            last = str(ledger.verify(last or None))
            assert ledger.find_entry(STUDY, f"q{reported}").state is (
                ReleaseState.VOIDED if reported % 3 else ReleaseState.STORED
            )
    print(f"{journals} of {n_kills} kills left a transaction to be rolled back")


def test_ledger_is_whole_after_kills_in_transactions(
    tmp_path: Path, entropy: SeededEntropy
) -> None:
    kill_in_transactions(tmp_path, entropy, 25)


@pytest.mark.soak
def test_ledger_is_whole_after_many_kills_in_transactions(
    tmp_path: Path, entropy: SeededEntropy
) -> None:
    kill_in_transactions(tmp_path, entropy, 400)


def test_concurrent_processes_share_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path, 20.0)
    with _children(8, path, n_each=20) as links:
        for link in links:
            link.send("go")
        granted = [link.recv() for link in links]
    assert sum(granted) == 66
    with open_ledger(path) as ledger:
        ledger.verify()
        assert sum(total.held for total in ledger.totals()) == 66 * grains_up(0.3)


@contextmanager
def _children(n: int, path: Path, n_each: int = 10) -> Iterator[list[Connection]]:
    if n == 0:
        yield []
        return
    with (
        child(ledger_child.reserve_many, path, f"source{n}", n_each) as (link, _),
        _children(n - 1, path, n_each) as links,
    ):
        yield [link, *links]


def test_concurrent_processes_create_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.db"
    with _children(4, path) as links:
        for link in links:
            link.send("go")
        granted = sum(link.recv() for link in links)
    assert granted == 13
    assert [item.name for item in path.parent.iterdir()] == ["ledger.db"]


def test_ledger_reports_failed_write_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path, 10.0)
    with child(ledger_child.without_room, path) as (link, _):
        code, sentence = link.recv()
        assert code in ("LEDGER-001", "LEDGER-002")
        assert "cannot be used" in sentence or "no room" in sentence
        assert link.recv() is True
        assert link.recv() is True


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB; skip the test if that is not allowed."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_ledger_reports_full_disk_and_recovers(tiny_disk: Path) -> None:
    path, ballast = tiny_disk / "ledger.db", tiny_disk / "ballast"
    new_ledger(path, 10.0)
    with open_ledger(path) as ledger:
        ledger_child.reserve(ledger, "q0")
        before = ledger.verify()
        with pytest.raises(OSError) as full:
            ballast.write_bytes(bytes(300_000))
        assert full.value.errno == errno.ENOSPC
        with pytest.raises(Exception, match="LEDGER-002") as error:
            ledger.store(STUDY, "q0", bytes(20_000))
        assert "no room" in str(error.value)
        assert ledger.read_head() == before
        with pytest.raises(Exception, match="LEDGER-00"):
            open_ledger(tiny_disk / "another.db")
        assert sorted(item.name for item in tiny_disk.iterdir()) == ["ballast", "ledger.db"]
        ballast.unlink()
        ledger.store(STUDY, "q0", bytes(20_000))
        assert ledger.verify().seq == before.seq + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")
def test_read_only_ledger_shows_totals_and_rejects_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path, 10.0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    path.chmod(0o444)
    with child(ledger_child.without_rights, path) as (link, _):
        assert link.recv() == ()
        assert link.recv() == "LEDGER-001"


def test_ledger_show_works_after_crash(tmp_path: Path) -> None:
    path, network = tmp_path / "ledger.db", tmp_path / "network"
    with child(ledger_child.step_by_step, path, network, "q1") as (link, kill):
        while link.recv() != "sending":
            link.send("go on")
        kill()
    shown = subprocess.run(
        [sys.executable, "-m", "shoal", "ledger", "show", "--ledger", path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "epsilon 0.25 spent, 0 held" in shown.stdout
    assert "not acknowledged, so it may not have arrived" in shown.stdout
    assert shown.stderr == ""


def test_limit_is_exact_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path, 0.3)
    with _children(1, path) as (link,):
        link.send("go")
        assert link.recv() == 1
    with open_ledger(path) as ledger:
        assert [usage.remaining for usage in ledger.limits()] == [0]
