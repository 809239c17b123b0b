"""The ledger file: order of steps, reopening, and an error code for each fault."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.errors import (
    BudgetError,
    IntegrityError,
    LocalProtocolError,
    ShoalError,
    StoreError,
    UsageError,
)
from shoal.participant import ledger_storage
from shoal.participant.ledger_file import (
    MAX_PAYLOAD_BYTES,
    LedgerFile,
    ReservedRelease,
    StoredRelease,
)
from shoal.participant.ledger_storage import find_ledger_path
from shoal.privacy.accountant import rho_to_epsilon
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import DEFAULT_LIMITS, Limit
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.rounding import grains_down, grains_up

EVENT = Event("random-response", {"m": 16}, LOCAL_PERSON, 0.5, reads=("age",))
CLOCK = ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.db"


def open_ledger(path: Path, clock: ManualClock = CLOCK) -> LedgerFile:
    return LedgerFile(path, clock)


def reserve(
    ledger: LedgerFile, question: str = "q1", event: Event = EVENT, **changes: str
) -> ReservedRelease | StoredRelease:
    return ledger.reserve(
        "d1",
        question,
        event,
        **{"source": "me.csv", "recipient": "https://x.org", "title": "Sleep", **changes},
    )


def walk(ledger: LedgerFile, question: str, state: ReleaseState) -> None:
    """Bring a question to a state."""
    reserve(ledger, question)
    if state is not ReleaseState.RESERVED:
        ledger.store("d1", question, f"noise for {question}".encode())
    if state in (ReleaseState.SENDING, ReleaseState.SENT):
        ledger.mark_sending("d1", question)
    if state is ReleaseState.SENT:
        ledger.mark_sent("d1", question)
    if state is ReleaseState.VOIDED:
        ledger.void("d1", question)


def remaining(ledger: LedgerFile) -> int | None:
    """Return what is left of the only limit."""
    [usage] = ledger.limits()
    return usage.remaining


def edit(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


def outcome(path: Path, act: Callable[[LedgerFile], object]) -> ShoalError:
    with pytest.raises(ShoalError) as error, open_ledger(path) as ledger:
        act(ledger)
    assert error.value.what.endswith(".")
    return error.value


def test_new_ledger_is_private_and_has_default_limits(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert [usage.limit for usage in ledger.limits()] == list(DEFAULT_LIMITS)
        with pytest.raises(BudgetError, match="BUDGET-002"):
            reserve(ledger, event=Event("test", {}, LOCAL_PERSON, 4.1))
        assert ledger.entries() == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_release_states_persist_after_reopening(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock) as ledger:
        asked = reserve(ledger)
        assert isinstance(asked, ReservedRelease)
        assert asked.entry.state is ReleaseState.RESERVED
        ledger.store("d1", "q1", b"noisy")
        assert ledger.read_payload("d1", "q1") == b"noisy"
        clock.advance(60)
        assert ledger.mark_sending("d1", "q1") == b"noisy"
        ledger.mark_sent("d1", "q1")
        head = ledger.read_head()
    with open_ledger(path, clock) as ledger:
        assert ledger.read_head() == head == ledger.verify(str(head))
        (entry,) = ledger.list_history()
        assert (entry.state, entry.size, entry.spent_at) == (ReleaseState.SENT, 5, clock.now())
        assert (entry.release.recipient, entry.release.title) == ("https://x.org", "Sleep")
        assert [(total.spent, total.held) for total in ledger.totals()] == [(grains_up(0.5), 0)]
        assert remaining(ledger) == grains_down(3.5)
        assert ledger.list_pending() == ()


@pytest.mark.parametrize("state", [ReleaseState.STORED, ReleaseState.SENDING, ReleaseState.SENT])
def test_reserve_again_returns_stored_bytes(path: Path, state: ReleaseState) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", state)
        head = ledger.read_head()
        again = reserve(ledger)
        assert isinstance(again, StoredRelease)
        assert (again.payload, again.entry.state) == (b"noise for q1", state)
        ledger.store("d1", "q1", b"noise for q1")
        with pytest.raises(LocalProtocolError, match="LEDGER-008"):
            ledger.store("d1", "q1", b"fresh noise")
        assert ledger.read_head() == head
        assert ledger.mark_sending("d1", "q1") == b"noise for q1"


def test_reserve_again_charges_once(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        assert isinstance(reserve(ledger, title="Sleep, second wave"), ReservedRelease)
        assert ledger.totals()[0].held == grains_up(0.5)
        assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "change",
    [{"event": EVENT.with_reads("sex")}, {"source": "you.csv"}, {"recipient": "https://y.org"}],
)
def test_reserve_rejects_question_with_other_terms(path: Path, change: dict[str, Any]) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        head = ledger.read_head()
        with pytest.raises(BudgetError, match="BUDGET-004"):
            reserve(ledger, **change)
        assert ledger.read_head() == head


def test_marking_again_appends_no_record(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
        walk(ledger, "q2", ReleaseState.VOIDED)
        head = ledger.read_head()
        ledger.mark_sent("d1", "q1")
        ledger.void("d1", "q2")
        assert ledger.read_head() == head


def test_void_frees_cost_and_deletes_bytes(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state, question in ((ReleaseState.RESERVED, "q1"), (ReleaseState.STORED, "q2")):
            walk(ledger, question, state)
            ledger.void("d1", question)
            with pytest.raises(BudgetError, match="BUDGET-005"):
                reserve(ledger, question)
            with pytest.raises(LocalProtocolError, match="has no stored bytes"):
                ledger.read_payload("d1", question)
            with pytest.raises(LocalProtocolError, match="is voided and cannot become stored"):
                ledger.store("d1", question, b"noise for q2")
        assert ledger.totals() == ledger.list_pending() == ledger.list_history() == ()
        assert remaining(ledger) == grains_down(4.0)
    assert b"noise for q2" not in path.read_bytes()


def test_void_rejects_release_that_may_have_left(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state, question in ((ReleaseState.SENDING, "q1"), (ReleaseState.SENT, "q2")):
            walk(ledger, question, state)
            with pytest.raises(LocalProtocolError, match="cannot become voided"):
                ledger.void("d1", question)
            assert ledger.read_payload("d1", question) == f"noise for {question}".encode()


def test_steps_out_of_order_raise(path: Path) -> None:
    with open_ledger(path) as ledger:
        for act in (
            ledger.mark_sending,
            ledger.mark_sent,
            ledger.void,
            ledger.read_payload,
            ledger.find_entry,
        ):
            with pytest.raises(LocalProtocolError, match="'q1' of this study was never reserved"):
                act("d1", "q1")
        reserve(ledger)
        with pytest.raises(LocalProtocolError, match="has no stored bytes"):
            ledger.mark_sending("d1", "q1")
        ledger.store("d1", "q1", b"")
        with pytest.raises(LocalProtocolError, match="is stored and cannot become sent"):
            ledger.mark_sent("d1", "q1")
        assert ledger.mark_sending("d1", "q1") == b""


def test_store_rejects_too_large_release(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        with pytest.raises(UsageError, match="the limit is 268435456 bytes"):
            ledger.store("d1", "q1", bytes(MAX_PAYLOAD_BYTES + 1))
        assert ledger.find_entry("d1", "q1").state is ReleaseState.RESERVED


def test_list_pending_returns_unfinished_releases(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state in ReleaseState:
            walk(ledger, state.value, state)
        assert [entry.release.question for entry in ledger.list_pending()] == [
            "reserved",
            "stored",
            "sending",
        ]
        assert [entry.release.question for entry in ledger.list_history()] == ["sending", "sent"]


def test_mark_sending_obeys_changed_limit(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.STORED)
        ledger.set_limit(Limit(Unit.PERSON, grains_down(0.25)))
        with pytest.raises(BudgetError, match="BUDGET-002"):
            ledger.mark_sending("d1", "q1")
        assert ledger.find_entry("d1", "q1").state is ReleaseState.STORED
        ledger.set_limit(Limit(Unit.PERSON, grains_down(0.5)))
        assert ledger.mark_sending("d1", "q1") == b"noise for q1"


def test_new_year_frees_spent_amount_but_not_held_amount(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
        walk(ledger, "q2", ReleaseState.STORED)
        assert remaining(ledger) == grains_down(3.0)
        clock.advance(366 * 24 * 3600)
        ledger.confirm_date()
        assert remaining(ledger) == grains_down(3.5)
        ledger.mark_sending("d1", "q2")
        assert remaining(ledger) == grains_down(3.5)


def test_two_open_ledgers_see_each_others_records(path: Path) -> None:
    with open_ledger(path) as one, open_ledger(path) as two:
        reserve(one, "q1")
        assert isinstance(reserve(two, "q1"), ReservedRelease)
        two.store("d1", "q1", b"first draw")
        with pytest.raises(LocalProtocolError, match="cannot become stored"):
            one.store("d1", "q1", b"second draw")
        assert one.mark_sending("d1", "q1") == b"first draw"
        assert one.read_head() == two.read_head() == one.verify()


def test_locked_ledger_raises_ledger_003(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_storage, "_BUSY_SECONDS", 0.0)
    with open_ledger(path) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="LEDGER-003"):
            reserve(ledger)
        other.execute("ROLLBACK")
        reserve(ledger)


def test_write_on_full_disk_changes_nothing(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        head, pages = ledger.read_head(), ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="LEDGER-002"):
            ledger.store("d1", "q1", bytes(100_000))
        assert ledger.read_head() == head == ledger.verify()
        assert ledger.find_entry("d1", "q1").state is ReleaseState.RESERVED
        ledger._db.execute("PRAGMA max_page_count = 1000000")
        ledger.store("d1", "q1", bytes(100_000))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "LEDGER-006"),
    "text": (lambda path: path.write_text("not a ledger\n" * 100), "LEDGER-004"),
    "a few bytes": (lambda path: path.write_bytes(b"SQL"), "LEDGER-004"),
    "another database": (
        lambda path: (path.unlink(), edit(path, "CREATE TABLE log (seq)")),
        "LEDGER-004",
    ),
    "newer": (lambda path: edit(path, "PRAGMA user_version = 5"), "LEDGER-005"),
    "older": (lambda path: edit(path, "PRAGMA user_version = 0"), "LEDGER-006"),
    "another table": (lambda path: edit(path, "CREATE TABLE extra (x)"), "LEDGER-006"),
    "no outbox": (lambda path: edit(path, "DROP TABLE outbox"), "LEDGER-006"),
    "a trigger": (
        lambda path: edit(path, "CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM log; END"),
        "LEDGER-006",
    ),
    "no records": (lambda path: edit(path, "DELETE FROM log"), "LEDGER-006"),
    "no head": (lambda path: edit(path, "DELETE FROM head"), "LEDGER-006"),
    "no end": (
        lambda path: edit(path, "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)"),
        "LEDGER-006",
    ),
    "a record before the first": (
        lambda path: edit(path, "INSERT INTO log VALUES (-5, x'', x'', x'')"),
        "LEDGER-006",
    ),
    "text for bytes": (
        lambda path: edit(path, "UPDATE log SET body = 'text' WHERE seq = 6"),
        "LEDGER-006",
    ),
    "strange names": (
        lambda path: path.write_bytes(
            path.read_bytes().replace(b"TABLE outbox", b"TABLE outb\x80x")
        ),
        "LEDGER-006",
    ),
    "strange text": (
        lambda path: path.write_bytes(
            path.read_bytes().replace(b"study TEXT NOT", b"study TEXT\x80NOT")
        ),
        "LEDGER-006",
    ),
    "a lost page": (
        lambda path: path.write_bytes(
            path.read_bytes()[:28] + b"\0\0\0\x01" + path.read_bytes()[32:]
        ),
        "LEDGER-006",
    ),
    "half a file": (lambda path: os.truncate(path, path.stat().st_size // 2), "LEDGER-006"),
    "a page less": (lambda path: os.truncate(path, path.stat().st_size - 4096), "LEDGER-006"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "LEDGER-001"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "LEDGER-001"),
    "a link to nothing": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "LEDGER-001"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_file_raises_error_with_code(path: Path, name: str) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
    spoil, code = FAULTS[name]
    spoil(path)
    error = outcome(path, lambda ledger: ledger.read_head())
    assert error.code == code
    assert isinstance(error, IntegrityError) is (code == "LEDGER-006")


def test_file_in_place_of_directory_raises_ledger_001(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert outcome(tmp_path / "file" / "ledger.db", LedgerFile.read_head).code == "LEDGER-001"
    assert outcome(Path("bad\0path"), LedgerFile.read_head).code == "LEDGER-001"
    assert outcome(tmp_path / ("x" * 300), LedgerFile.read_head).code == "LEDGER-001"


@pytest.mark.parametrize("column", ["seq", "prev", "hash", "body"])
def test_verify_detects_change_of_any_row(path: Path, column: str) -> None:
    with open_ledger(path) as ledger:
        for state in ReleaseState:
            walk(ledger, state.value, state)
        n_rows = ledger.read_head().seq
    good = path.read_bytes()
    for seq in range(1, n_rows + 1):
        path.write_bytes(good)
        with closing(sqlite3.connect(path)) as db, db:
            (value,) = db.execute(f"SELECT {column} FROM log WHERE seq = ?", (seq,)).fetchone()
            changed = 1000 + seq if column == "seq" else bytes([value[0] ^ 0x40]) + value[1:]
            db.execute(f"UPDATE log SET {column} = ? WHERE seq = ?", (changed, seq))
        assert outcome(path, LedgerFile.totals).code == "LEDGER-006"


def test_damaged_ledger_is_unlocked_while_error_exists(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
    edit(path, "DELETE FROM log WHERE seq = 5")
    with pytest.raises(IntegrityError):
        open_ledger(path)
    with closing(sqlite3.connect(path, timeout=0)) as db:
        db.execute("BEGIN EXCLUSIVE")


def test_verify_detects_deleted_and_exchanged_rows(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
    good = path.read_bytes()
    edit(path, "DELETE FROM log WHERE seq = 5")
    assert outcome(path, LedgerFile.totals).code == "LEDGER-006"
    path.write_bytes(good)
    for sql in (
        "UPDATE log SET seq = -1 WHERE seq = 5",
        "UPDATE log SET seq = 5 WHERE seq = 6",
        "UPDATE log SET seq = 6 WHERE seq = -1",
    ):
        edit(path, sql)
    assert outcome(path, LedgerFile.totals).code == "LEDGER-006"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE outbox SET bytes = x'00' || substr(bytes, 2)",
        "UPDATE outbox SET bytes = CAST(bytes AS TEXT)",
        "DELETE FROM outbox",
        "UPDATE outbox SET question = 'q9'",
    ],
)
def test_changed_bytes_are_not_sent_or_drawn_again(path: Path, sql: str) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.STORED)
    edit(path, sql)
    for act in (reserve, lambda ledger: ledger.mark_sending("d1", "q1"), LedgerFile.verify):
        assert outcome(path, act).code == "LEDGER-006"
    with open_ledger(path) as ledger:
        assert ledger.find_entry("d1", "q1").state is ReleaseState.STORED


def test_verify_detects_bytes_without_record(path: Path) -> None:
    open_ledger(path).close()
    edit(path, "INSERT INTO outbox VALUES ('d1', 'q1', x'00')")
    assert outcome(path, LedgerFile.verify).what.endswith(
        "its outbox has 1 items without a record."
    )


def test_verify_detects_older_copy_with_noted_head(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
        early = str(ledger.read_head())
    shutil.copy(path, tmp_path / "copy.db")
    with open_ledger(path) as ledger:
        walk(ledger, "q2", ReleaseState.SENT)
        late = str(ledger.verify(early))
    shutil.copy(tmp_path / "copy.db", path)
    with open_ledger(path) as ledger:
        ledger.verify(early)
        with pytest.raises(IntegrityError, match="rolled back") as error:
            ledger.verify(late)
    assert error.value.code == "LEDGER-007"


def test_older_copy_restored_while_open_is_detected(path: Path) -> None:
    with open_ledger(path) as ledger:
        early = path.read_bytes()
        walk(ledger, "q1", ReleaseState.SENT)
        path.write_bytes(early)
        with pytest.raises(IntegrityError, match="LEDGER-007"):
            reserve(ledger, "q2")


@pytest.mark.parametrize("replace", [False, True])
def test_moved_ledger_accepts_no_records(path: Path, replace: bool) -> None:
    with open_ledger(path) as ledger:
        path.rename(path.with_name("moved.db"))
        if replace:
            open_ledger(path).close()
        with pytest.raises(
            StoreError,
            match="was moved or replaced while it was in use" if replace else "No such file",
        ):
            reserve(ledger)
    with open_ledger(path.with_name("moved.db")) as ledger:
        assert ledger.entries() == ()


def test_open_switches_write_ahead_log_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ledger(path).close()
    monkeypatch.setattr(ledger_storage, "_BUSY_SECONDS", 0.0)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN")
        other.execute("SELECT * FROM log").fetchall()
        assert outcome(path, LedgerFile.read_head).code == "LEDGER-003"
    with open_ledger(path) as ledger:
        reserve(ledger)
        assert sorted(item.name for item in path.parent.iterdir()) == ["ledger.db"]


def test_closed_ledger_raises_error_with_code(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.close()
    with pytest.raises(StoreError, match="LEDGER-001"):
        ledger.read_head()


def test_second_creator_uses_ledger_of_first(path: Path) -> None:
    open_ledger(path).close()
    before = path.read_bytes()
    ledger_storage.create_ledger(path, CLOCK)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_find_ledger_path_follows_environment() -> None:
    assert find_ledger_path(
        {"SHOAL_LEDGER": "/a/b.db", "XDG_DATA_HOME": "/x", "HOME": "/h"}
    ) == Path("/a/b.db")
    assert find_ledger_path({"XDG_DATA_HOME": "/x", "HOME": "/h"}) == Path("/x/shoal/ledger.db")
    assert find_ledger_path({"XDG_DATA_HOME": "relative", "HOME": "/h"}) == Path(
        "/h/.local/share/shoal/ledger.db"
    )
    assert find_ledger_path({"HOME": "/h"}) == Path("/h/.local/share/shoal/ledger.db")
    with pytest.raises(StoreError, match="HOME is not set"):
        find_ledger_path({})


def test_child_process_must_open_ledger_again(path: Path) -> None:
    with open_ledger(path) as ledger:
        child = os.fork()
        if child == 0:
            try:
                reserve(ledger)
                os._exit(1)
            except LocalProtocolError as error:
                os._exit(0 if error.code == "LEDGER-011" else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert isinstance(reserve(ledger), ReservedRelease)


def test_mark_sending_rejects_voided_release(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.STORED)
        ledger.void("d1", "q1")
        with pytest.raises(BudgetError) as caught:
            ledger.mark_sending("d1", "q1")
        assert caught.value.code == "BUDGET-005"


def test_reserve_returns_entry_equal_to_stored_entry(path: Path) -> None:
    with open_ledger(path) as ledger:
        fresh = reserve(ledger)
        assert fresh == reserve(ledger)
        assert fresh.entry == ledger.find_entry("d1", "q1")


def test_reserve_uses_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process cannot change a reservation between the write and its result."""
    with open_ledger(path) as ledger:
        walk(ledger, "q1", ReleaseState.STORED)
        for question in ("q1", "q2"):
            begun: list[str] = []
            honest = ledger._transaction
            monkeypatch.setattr(
                ledger,
                "_transaction",
                lambda begin, honest=honest, begun=begun: (begun.append(begin), honest(begin))[1],
            )
            reserve(ledger, question)
            monkeypatch.undo()
            assert begun == ["BEGIN IMMEDIATE"]


def test_list_unsent_returns_bytes_of_unacknowledged_answers(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state in (
            ReleaseState.RESERVED,
            ReleaseState.STORED,
            ReleaseState.SENDING,
            ReleaseState.SENT,
            ReleaseState.VOIDED,
        ):
            walk(ledger, state.value, state)
        found = ledger.list_unsent("d1")
        assert list(found) == ["stored", "sending"]
        assert found == {question: ledger.read_payload("d1", question) for question in found}
        assert ledger.list_unsent("d2") == {}


def make_version_3(path: Path) -> None:
    """Write the ledger of an earlier version: three limits for single units, one of them raised."""
    path.parent.mkdir(mode=0o700)
    script = Path(__file__).parents[2] / "vectors" / "ledger_version_3.sql"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script.read_text("utf-8"))


def test_ledger_of_version_3_gets_limit_on_all_units_and_counts_no_less(path: Path) -> None:
    make_version_3(path)
    with open_ledger(path) as ledger:
        ledger.verify("22:1d691fd62151d44a3b43a68ee33da3e4")
        assert [entry.state.value for entry in ledger.entries()] == [
            "sent",
            "sent",
            "sent",
            "stored",
            "voided",
        ]
        usages = {usage.limit.unit: usage for usage in ledger.limits()}
        assert {unit: usage.limit.grains for unit, usage in usages.items()} == {
            Unit.PERSON: grains_down(6.0),
            Unit.RECORD: grains_down(4.0),
            Unit.UPDATE: grains_down(4.0),
            None: grains_down(6.0),
        }, "the owner's limits stay, and the sum has the largest of them"
        # Releases of an older version have a rho but no budget, and are added plainly.
        assert usages[None].spent == grains_up(1.5 + 2.0 + 2 * 0.5)
        assert usages[None].held == grains_up(2 * 0.5)
        update = Event("k-closest", {}, Scope(Unit.UPDATE, Relation.REPLACE, "everyone"), 0.6)
        with pytest.raises(BudgetError, match=r"BUDGET-002.*0\.5 of your yearly limit of 6\.0"):
            reserve(ledger, event=update)
        ledger.set_limit(Limit(Unit.UPDATE, grains_down(2.0)))
        with pytest.raises(BudgetError, match=r"BUDGET-002.*0 of your yearly limit of 2\.0"):
            reserve(ledger, event=Event("k-closest", {}, update.scope, 0.1))
        head = ledger.read_head()
    with open_ledger(path) as ledger:
        assert ledger.read_head() == head, "the limit is added once"


def test_release_reserved_by_older_version_is_resumed_with_budget(path: Path) -> None:
    """A study is resumed after an upgrade: the old releases are part of its budget."""
    make_version_3(path)
    with open_ledger(path) as ledger:
        old = ledger.find_entry("p1", "tables/1")
        budget = StudyBudget(0.024, 1e-6)
        again = ledger.reserve(
            "p1",
            "tables/1",
            old.event,
            source="me.csv",
            recipient="https://x.org",
            title="A study",
            budget=budget,
        )
        assert isinstance(again, StoredRelease) and again.payload == b"noisy tables/1"
        ledger.reserve(
            "p1",
            "tables/2",
            old.event,
            source="me.csv",
            recipient="https://x.org",
            title="A study",
            budget=budget,
        )
        after, whole = ledger.limits()[-1], grains_up(rho_to_epsilon(*budget))
        assert after.limit.unit is None
        assert after.spent + after.held == grains_up(1.5 + 2.0) + 2 * whole


DAY = 24 * 3600


def test_clock_that_runs_ahead_does_not_free_budget(path: Path) -> None:
    """Attack: the clock is set to the next year, and the yearly budget is full again."""
    clock = ManualClock(datetime(2030, 11, 1, tzinfo=UTC))
    with open_ledger(path, clock) as ledger:
        walk(ledger, "q1", ReleaseState.SENT)
        walk(ledger, "q2", ReleaseState.STORED)
        clock.advance(30 * DAY)
        ledger.check_clock()
        clock.advance(32 * DAY)
        for act in (
            ledger.check_clock,
            lambda: reserve(ledger, "q3"),
            lambda: ledger.mark_sending("d1", "q2"),
        ):
            with pytest.raises(StoreError, match="LEDGER-012") as refused:
                act()
        assert refused.value.what == (
            "Your clock shows 2031-01-02, 62 days after the last record of the ledger, 2030-11-01."
        )
        assert (refused.value.fix or "").endswith("--date 2031-01-02")
        assert ledger.find_entry("d1", "q2").state is ReleaseState.STORED
        assert ledger.mark_sending("d1", "q1") == b"noise for q1", "spent already"
        # Records that need no budget do not show the date.
        ledger.set_limit(Limit(None, grains_down(3.0)))
        ledger.void("d1", "q2")
        with pytest.raises(StoreError, match="LEDGER-012"):
            ledger.check_clock()
        ledger.confirm_date()
        head = ledger.read_head()
        ledger.confirm_date()
        assert ledger.read_head() == head, "nothing to confirm"
        reserve(ledger, "q3")
    with open_ledger(path, clock) as ledger:
        ledger.check_clock()


def test_each_release_moves_the_date_of_the_ledger(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock) as ledger:
        for i in range(4):
            clock.advance(20 * DAY)
            reserve(ledger, f"q{i}")
            clock.advance(20 * DAY)
            ledger.store("d1", f"q{i}", b"noisy")
            ledger.mark_sending("d1", f"q{i}")
