"""Any bytes as a ledger file: it opens with the written state, or raises a `ShoalError`.

It never opens with less than was written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.cli.main import run
from shoal.clock import ManualClock
from shoal.errors import ShoalError
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.events import LOCAL_PERSON, Event
from tests.support.hostile import hostile

EVENT = Event("test", {"m": 16}, LOCAL_PERSON, 0.5)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def good(folder: Path) -> Path:
    """Return a ledger of several pages, with an entry in every state."""
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


def read_state(path: Path) -> object:
    with LedgerFile(path, ManualClock()) as ledger:
        return ledger.read_head(), ledger.totals(), ledger.entries(), ledger.limits()


def check_opens_or_raises(folder: Path, good: Path, bad: bytes) -> None:
    path = folder / "bad.db"
    for left in folder.glob("bad.db*"):
        left.unlink()
    shutil.copyfile(good, path)
    before = read_state(path)
    path.write_bytes(bad)
    try:
        assert read_state(path) == before
        with LedgerFile(path, ManualClock()) as ledger:
            ledger.reserve(
                "e" * 64, "new", EVENT, source="me.csv", recipient="https://x.org", title="Sleep"
            )
            ledger.store("e" * 64, "new", bytes(5000))
            ledger.verify()
    except ShoalError as error:
        assert error.what.endswith(".")
    assert run(["ledger", "show", "--ledger", str(path), "--json"]) in (0, 1)


CHANGES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=4)


def change_bytes(good: Path, changes: list[tuple[int, int]], places: Sequence[int]) -> bytes:
    bad = bytearray(good.read_bytes())
    for place, value in changes:
        bad[places[place % len(places)]] = value
    return bytes(bad)


def list_structure_positions(good: Path) -> list[int]:
    """Return the positions of the file's header and of each page's header.

    A changed byte does the most harm there.
    """
    return [
        *range(100),
        *(page + i for page in range(0, good.stat().st_size, 4096) for i in range(24)),
    ]


@given(changes=CHANGES)
@hostile(200)
def test_ledger_with_changed_bytes_opens_or_raises(
    folder: Path, good: Path, changes: list[tuple[int, int]]
) -> None:
    check_opens_or_raises(folder, good, change_bytes(good, changes, range(good.stat().st_size)))


@given(changes=CHANGES)
@hostile(200)
def test_ledger_with_changed_page_headers_opens_or_raises(
    folder: Path, good: Path, changes: list[tuple[int, int]]
) -> None:
    check_opens_or_raises(folder, good, change_bytes(good, changes, list_structure_positions(good)))


@given(cut=st.integers(0, 10**9), tail=st.binary(max_size=50))
@hostile(150)
def test_truncated_ledger_opens_or_raises(folder: Path, good: Path, cut: int, tail: bytes) -> None:
    check_opens_or_raises(folder, good, good.read_bytes()[: cut % good.stat().st_size] + tail)


@given(bad=st.binary(max_size=300))
@hostile(150)
def test_any_bytes_as_ledger_raise(folder: Path, good: Path, bad: bytes) -> None:
    check_opens_or_raises(folder, good, bad)
    check_opens_or_raises(folder, good, b"SQLite format 3\0" + bad)


@given(bad=st.binary(min_size=1, max_size=600))
@hostile(150)
def test_ledger_with_any_sqlite_journal_opens_or_raises(
    folder: Path, good: Path, bad: bytes
) -> None:
    path = folder / "bad.db"
    shutil.copyfile(good, path)
    before = read_state(path)
    for name in ("bad.db-journal", "bad.db-wal"):
        (folder / name).write_bytes(bad)
    try:
        assert read_state(path) == before
    except ShoalError as error:
        assert error.what.endswith(".")
    for name in ("bad.db-journal", "bad.db-wal"):
        (folder / name).unlink(missing_ok=True)
