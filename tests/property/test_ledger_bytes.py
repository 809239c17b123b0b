"""Any bytes in place of a ledger: it opens with the state that was written, or says what is wrong; never a traceback, never less."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hostile import hostile
from shoal.cli.main import run
from shoal.clock import ManualClock
from shoal.errors import ShoalError
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event

EVENT = Event("test", {"m": 16}, LOCAL_PERSON, 0.5)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def good(folder: Path) -> Path:
    """A ledger of several pages, with an entry in every state."""
    path = folder / "good.db"
    with LedgerFile(path, ManualClock()) as ledger:
        for i in range(7):
            name = ("d" * 64, f"q{i}")
            ledger.reserve(*name, EVENT, source="me.csv", recipient="https://x.org", title="Sleep")
            if i % 4 > 0:
                ledger.store(*name, bytes(600 * i))
            if i % 4 > 1:
                ledger.mark_sending(*name)
            if i % 4 > 2:
                ledger.mark_sent(*name)
        ledger.void("d" * 64, "q4")
    return path


def folded(path: Path) -> object:
    with LedgerFile(path, ManualClock()) as ledger:
        return ledger.head(), ledger.totals(), ledger.entries(), ledger.limits()


def holds_or_says(folder: Path, good: Path, bad: bytes) -> None:
    path = folder / "bad.db"
    for left in folder.glob("bad.db*"):
        left.unlink()
    shutil.copyfile(good, path)
    before = folded(path)
    path.write_bytes(bad)
    try:
        assert folded(path) == before
        with LedgerFile(path, ManualClock()) as ledger:
            ledger.reserve("e" * 64, "new", EVENT, source="me.csv", recipient="https://x.org", title="Sleep")
            ledger.store("e" * 64, "new", bytes(5000))
            ledger.verify()
    except ShoalError as error:
        assert error.what.endswith(".")
    assert run(["ledger", "show", "--ledger", str(path), "--json"]) in (0, 1)


CHANGES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=4)


def changed(good: Path, changes: list[tuple[int, int]], places: Sequence[int]) -> bytes:
    bad = bytearray(good.read_bytes())
    for place, value in changes:
        bad[places[place % len(places)]] = value
    return bytes(bad)


def structure(good: Path) -> list[int]:
    """The file's header, and the head of each page: where a byte does the most harm."""
    return [*range(100), *(page + i for page in range(0, good.stat().st_size, 4096) for i in range(24))]


@given(changes=CHANGES)
@hostile(200)
def test_changed_bytes(folder: Path, good: Path, changes: list[tuple[int, int]]) -> None:
    holds_or_says(folder, good, changed(good, changes, range(good.stat().st_size)))


@given(changes=CHANGES)
@hostile(200)
def test_changed_bytes_of_the_structure(folder: Path, good: Path, changes: list[tuple[int, int]]) -> None:
    holds_or_says(folder, good, changed(good, changes, structure(good)))


@given(cut=st.integers(0, 10**9), tail=st.binary(max_size=50))
@hostile(150)
def test_a_file_cut_short(folder: Path, good: Path, cut: int, tail: bytes) -> None:
    holds_or_says(folder, good, good.read_bytes()[: cut % good.stat().st_size] + tail)


@given(bad=st.binary(max_size=300))
@hostile(150)
def test_any_bytes_at_all(folder: Path, good: Path, bad: bytes) -> None:
    holds_or_says(folder, good, bad)
    holds_or_says(folder, good, b"SQLite format 3\0" + bad)


@given(bad=st.binary(min_size=1, max_size=600))
@hostile(150)
def test_any_journal_beside_it(folder: Path, good: Path, bad: bytes) -> None:
    path = folder / "bad.db"
    shutil.copyfile(good, path)
    before = folded(path)
    for name in ("bad.db-journal", "bad.db-wal"):
        (folder / name).write_bytes(bad)
    try:
        assert folded(path) == before
    except ShoalError as error:
        assert error.what.endswith(".")
    for name in ("bad.db-journal", "bad.db-wal"):
        (folder / name).unlink(missing_ok=True)
