"""The ledger file: the order of steps, what is read back, and a sentence for every fault of the file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, ShoalError, StoreError, UsageError
from shoal.participant import ledger_db
from shoal.participant.ledger_file import MAX_PAYLOAD, LedgerFile, Reserved, Stored, default_path
from shoal.privacy.events import LOCAL_PERSON, Event, Unit
from shoal.privacy.limits import DEFAULT_LIMITS, Limit
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_down, grains_up

EVENT = Event("random-response", {"m": 16}, LOCAL_PERSON, 0.5, reads=("age",))
CLOCK = ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.db"


def open_ledger(path: Path, clock: ManualClock = CLOCK) -> LedgerFile:
    return LedgerFile(path, clock)


def reserve(ledger: LedgerFile, question: str = "q1", event: Event = EVENT, **changes: str) -> Reserved | Stored:
    return ledger.reserve("d1", question, event, **{"source": "me.csv", "recipient": "https://x.org", "title": "Sleep", **changes})


def walk(ledger: LedgerFile, question: str, state: State) -> None:
    """Bring a question to a state."""
    reserve(ledger, question)
    if state is not State.RESERVED:
        ledger.store("d1", question, f"noise for {question}".encode())
    if state in (State.SENDING, State.SENT):
        ledger.mark_sending("d1", question)
    if state is State.SENT:
        ledger.mark_sent("d1", question)
    if state is State.VOIDED:
        ledger.void("d1", question)


def edit(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


def outcome(path: Path, act: Callable[[LedgerFile], object]) -> ShoalError:
    with pytest.raises(ShoalError) as error, open_ledger(path) as ledger:
        act(ledger)
    assert error.value.what.endswith(".")
    return error.value


def test_a_new_ledger_is_its_owners_alone_and_refuses_from_the_first_day(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert [usage.limit for usage in ledger.limits()] == list(DEFAULT_LIMITS)
        with pytest.raises(BudgetError, match="BUDGET-002"):
            reserve(ledger, event=Event("test", {}, LOCAL_PERSON, 4.1))
        assert ledger.entries() == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_release_goes_through_its_states_and_is_there_when_reopened(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock) as ledger:
        asked = reserve(ledger)
        assert isinstance(asked, Reserved)
        assert asked.entry.state is State.RESERVED
        ledger.store("d1", "q1", b"noisy")
        assert ledger.payload("d1", "q1") == b"noisy"
        clock.advance(60)
        assert ledger.mark_sending("d1", "q1") == b"noisy"
        ledger.mark_sent("d1", "q1")
        head = ledger.head()
    with open_ledger(path, clock) as ledger:
        assert ledger.head() == head == ledger.verify(str(head))
        (entry,) = ledger.history()
        assert (entry.state, entry.size, entry.spent_at) == (State.SENT, 5, clock.now())
        assert (entry.release.recipient, entry.release.title) == ("https://x.org", "Sleep")
        assert [(total.spent, total.held) for total in ledger.totals()] == [(grains_up(0.5), 0)]
        assert ledger.left(EVENT, "me.csv") == grains_down(3.5)
        assert ledger.pending() == ()


@pytest.mark.parametrize("state", [State.STORED, State.SENDING, State.SENT])
def test_reserving_again_gives_the_same_bytes_and_no_second_draw(path: Path, state: State) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", state)
        head = ledger.head()
        again = reserve(ledger)
        assert isinstance(again, Stored)
        assert (again.payload, again.entry.state) == (b"noise for q1", state)
        ledger.store("d1", "q1", b"noise for q1")
        with pytest.raises(LocalProtocolError, match="LEDGER-008"):
            ledger.store("d1", "q1", b"fresh noise")
        assert ledger.head() == head
        assert ledger.mark_sending("d1", "q1") == b"noise for q1"


def test_a_reserved_question_is_resumed_without_a_second_charge(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        assert isinstance(reserve(ledger, title="Sleep, second wave"), Reserved)
        assert ledger.totals()[0].held == grains_up(0.5)
        assert len(ledger.entries()) == 1


@pytest.mark.parametrize("change", [{"event": EVENT.reading("sex")}, {"source": "you.csv"}, {"recipient": "https://y.org"}])
def test_a_question_cannot_be_asked_again_on_other_terms(path: Path, change: dict[str, Any]) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        head = ledger.head()
        with pytest.raises(BudgetError, match="BUDGET-004"):
            reserve(ledger, **change)
        assert ledger.head() == head


def test_marking_again_writes_nothing(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.SENT)
        walk(ledger, "q2", State.VOIDED)
        head = ledger.head()
        ledger.mark_sent("d1", "q1")
        ledger.void("d1", "q2")
        assert ledger.head() == head


def test_voiding_frees_the_cost_deletes_the_bytes_and_is_final(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state, question in ((State.RESERVED, "q1"), (State.STORED, "q2")):
            walk(ledger, question, state)
            ledger.void("d1", question)
            with pytest.raises(BudgetError, match="BUDGET-005"):
                reserve(ledger, question)
            with pytest.raises(LocalProtocolError, match="has no stored bytes"):
                ledger.payload("d1", question)
            with pytest.raises(LocalProtocolError, match="is voided and cannot become stored"):
                ledger.store("d1", question, b"noise for q2")
        assert ledger.totals() == ledger.pending() == ledger.history() == ()
        assert ledger.left(EVENT, "me.csv") == grains_down(4.0)
    assert b"noise for q2" not in path.read_bytes()


def test_what_may_have_left_can_never_be_voided(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state, question in ((State.SENDING, "q1"), (State.SENT, "q2")):
            walk(ledger, question, state)
            with pytest.raises(LocalProtocolError, match="cannot become voided"):
                ledger.void("d1", question)
            assert ledger.payload("d1", question) == f"noise for {question}".encode()


def test_steps_out_of_order_are_refused(path: Path) -> None:
    with open_ledger(path) as ledger:
        for act in (ledger.mark_sending, ledger.mark_sent, ledger.void, ledger.payload, ledger.entry):
            with pytest.raises(LocalProtocolError, match="'q1' of this study was never reserved"):
                act("d1", "q1")
        reserve(ledger)
        with pytest.raises(LocalProtocolError, match="has no stored bytes"):
            ledger.mark_sending("d1", "q1")
        ledger.store("d1", "q1", b"")
        with pytest.raises(LocalProtocolError, match="is stored and cannot become sent"):
            ledger.mark_sent("d1", "q1")
        assert ledger.mark_sending("d1", "q1") == b""


def test_a_release_that_is_too_large_is_refused(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        with pytest.raises(UsageError, match="at most 268435456 can"):
            ledger.store("d1", "q1", bytes(MAX_PAYLOAD + 1))
        assert ledger.entry("d1", "q1").state is State.RESERVED


def test_pending_says_what_to_resume(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state in State:
            walk(ledger, state.value, state)
        assert [entry.release.question for entry in ledger.pending()] == ["reserved", "stored", "sending"]
        assert [entry.release.question for entry in ledger.history()] == ["sending", "sent"]


def test_a_lowered_limit_stops_what_is_held_and_a_raised_one_lets_it_go(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.STORED)
        ledger.set_limit(Limit(Unit.PERSON, grains_down(0.25)))
        with pytest.raises(BudgetError, match="BUDGET-002"):
            ledger.mark_sending("d1", "q1")
        assert ledger.entry("d1", "q1").state is State.STORED
        ledger.set_limit(Limit(Unit.PERSON, grains_down(0.5)))
        assert ledger.mark_sending("d1", "q1") == b"noise for q1"


def test_a_new_year_frees_what_was_spent_but_not_what_is_held(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock) as ledger:
        walk(ledger, "q1", State.SENT)
        walk(ledger, "q2", State.STORED)
        assert ledger.left(EVENT, "me.csv") == grains_down(3.0)
        clock.advance(366 * 24 * 3600)
        assert ledger.left(EVENT, "me.csv") == grains_down(3.5)
        ledger.mark_sending("d1", "q2")
        assert ledger.left(EVENT, "me.csv") == grains_down(3.5)


def test_two_handles_see_each_others_records(path: Path) -> None:
    with open_ledger(path) as one, open_ledger(path) as two:
        reserve(one, "q1")
        assert isinstance(reserve(two, "q1"), Reserved)
        two.store("d1", "q1", b"first draw")
        with pytest.raises(LocalProtocolError, match="cannot become stored"):
            one.store("d1", "q1", b"second draw")
        assert one.mark_sending("d1", "q1") == b"first draw"
        assert one.head() == two.head() == one.verify()


def test_a_locked_ledger_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_db, "_BUSY_SECONDS", 0.0)
    with open_ledger(path) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="LEDGER-003"):
            reserve(ledger)
        other.execute("ROLLBACK")
        reserve(ledger)


def test_a_full_disk_leaves_everything_as_it_was(path: Path) -> None:
    with open_ledger(path) as ledger:
        reserve(ledger)
        head, pages = ledger.head(), ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="LEDGER-002"):
            ledger.store("d1", "q1", bytes(100_000))
        assert ledger.head() == head == ledger.verify()
        assert ledger.entry("d1", "q1").state is State.RESERVED
        ledger._db.execute("PRAGMA max_page_count = 1000000")
        ledger.store("d1", "q1", bytes(100_000))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "LEDGER-006"),
    "text": (lambda path: path.write_text("not a ledger\n" * 100), "LEDGER-004"),
    "a few bytes": (lambda path: path.write_bytes(b"SQL"), "LEDGER-004"),
    "another database": (lambda path: (path.unlink(), edit(path, "CREATE TABLE log (seq)")), "LEDGER-004"),
    "newer": (lambda path: edit(path, "PRAGMA user_version = 4"), "LEDGER-005"),
    "older": (lambda path: edit(path, "PRAGMA user_version = 0"), "LEDGER-006"),
    "another table": (lambda path: edit(path, "CREATE TABLE extra (x)"), "LEDGER-006"),
    "no outbox": (lambda path: edit(path, "DROP TABLE outbox"), "LEDGER-006"),
    "a trigger": (lambda path: edit(path, "CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM log; END"), "LEDGER-006"),
    "no records": (lambda path: edit(path, "DELETE FROM log"), "LEDGER-006"),
    "no head": (lambda path: edit(path, "DELETE FROM head"), "LEDGER-006"),
    "no end": (lambda path: edit(path, "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)"), "LEDGER-006"),
    "a record before the first": (lambda path: edit(path, "INSERT INTO log VALUES (-5, x'', x'', x'')"), "LEDGER-006"),
    "text for bytes": (lambda path: edit(path, "UPDATE log SET body = 'text' WHERE seq = 6"), "LEDGER-006"),
    "strange names": (lambda path: path.write_bytes(path.read_bytes().replace(b"TABLE outbox", b"TABLE outb\x80x")), "LEDGER-006"),
    "strange text": (lambda path: path.write_bytes(path.read_bytes().replace(b"study TEXT NOT", b"study TEXT\x80NOT")), "LEDGER-006"),
    "a lost page": (lambda path: path.write_bytes(path.read_bytes()[:28] + b"\0\0\0\x01" + path.read_bytes()[32:]), "LEDGER-006"),
    "half a file": (lambda path: os.truncate(path, path.stat().st_size // 2), "LEDGER-006"),
    "a page less": (lambda path: os.truncate(path, path.stat().st_size - 4096), "LEDGER-006"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "LEDGER-001"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "LEDGER-001"),
    "a link to nothing": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "LEDGER-001"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_the_file_is_a_sentence(path: Path, name: str) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.SENT)
    spoil, code = FAULTS[name]
    spoil(path)
    error = outcome(path, lambda ledger: ledger.head())
    assert error.code == code
    assert isinstance(error, IntegrityError) is (code == "LEDGER-006")


def test_a_directory_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert outcome(tmp_path / "file" / "ledger.db", LedgerFile.head).code == "LEDGER-001"
    assert outcome(Path("bad\0path"), LedgerFile.head).code == "LEDGER-001"
    assert outcome(tmp_path / ("x" * 300), LedgerFile.head).code == "LEDGER-001"


@pytest.mark.parametrize("column", ["seq", "prev", "hash", "body"])
def test_a_change_to_any_row_of_the_file_is_found(path: Path, column: str) -> None:
    with open_ledger(path) as ledger:
        for state in State:
            walk(ledger, state.value, state)
        n_rows = ledger.head().seq
    good = path.read_bytes()
    for seq in range(1, n_rows + 1):
        path.write_bytes(good)
        with closing(sqlite3.connect(path)) as db, db:
            (value,) = db.execute(f"SELECT {column} FROM log WHERE seq = ?", (seq,)).fetchone()
            changed = 1000 + seq if column == "seq" else bytes([value[0] ^ 0x40]) + value[1:]
            db.execute(f"UPDATE log SET {column} = ? WHERE seq = ?", (changed, seq))
        assert outcome(path, LedgerFile.totals).code == "LEDGER-006"


def test_a_damaged_ledger_is_not_kept_locked_while_its_error_is_looked_at(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.SENT)
    edit(path, "DELETE FROM log WHERE seq = 7")
    with pytest.raises(IntegrityError):
        open_ledger(path)
    with closing(sqlite3.connect(path, timeout=0)) as db:
        db.execute("BEGIN EXCLUSIVE")


def test_deleted_and_exchanged_rows_are_found(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.SENT)
    good = path.read_bytes()
    edit(path, "DELETE FROM log WHERE seq = 7")
    assert outcome(path, LedgerFile.totals).code == "LEDGER-006"
    path.write_bytes(good)
    for sql in ("UPDATE log SET seq = -1 WHERE seq = 7", "UPDATE log SET seq = 7 WHERE seq = 8", "UPDATE log SET seq = 8 WHERE seq = -1"):
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
def test_changed_bytes_are_neither_sent_nor_drawn_again(path: Path, sql: str) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.STORED)
    edit(path, sql)
    for act in (reserve, lambda ledger: ledger.mark_sending("d1", "q1"), LedgerFile.verify):
        assert outcome(path, act).code == "LEDGER-006"
    with open_ledger(path) as ledger:
        assert ledger.entry("d1", "q1").state is State.STORED


def test_bytes_that_no_record_speaks_of_are_found(path: Path) -> None:
    open_ledger(path).close()
    edit(path, "INSERT INTO outbox VALUES ('d1', 'q1', x'00')")
    assert outcome(path, LedgerFile.verify).what.endswith("its outbox has 1 items that no record speaks of.")


def test_an_older_copy_is_found_by_a_noted_head(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.SENT)
        early = str(ledger.head())
    shutil.copy(path, tmp_path / "copy.db")
    with open_ledger(path) as ledger:
        walk(ledger, "q2", State.SENT)
        late = str(ledger.verify(early))
    shutil.copy(tmp_path / "copy.db", path)
    with open_ledger(path) as ledger:
        ledger.verify(early)
        with pytest.raises(IntegrityError, match="rolled back") as error:
            ledger.verify(late)
    assert error.value.code == "LEDGER-007"


def test_an_older_copy_put_in_place_while_open_is_found(path: Path) -> None:
    with open_ledger(path) as ledger:
        early = path.read_bytes()
        walk(ledger, "q1", State.SENT)
        path.write_bytes(early)
        with pytest.raises(IntegrityError, match="LEDGER-007"):
            reserve(ledger, "q2")


@pytest.mark.parametrize("replace", [False, True])
def test_a_ledger_that_was_moved_away_takes_no_more_records(path: Path, replace: bool) -> None:
    with open_ledger(path) as ledger:
        path.rename(path.with_name("moved.db"))
        if replace:
            open_ledger(path).close()
        with pytest.raises(StoreError, match="was moved or replaced while it was in use" if replace else "No such file"):
            reserve(ledger)
    with open_ledger(path.with_name("moved.db")) as ledger:
        assert ledger.entries() == ()


def test_a_ledger_in_write_ahead_mode_is_brought_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ledger(path).close()
    monkeypatch.setattr(ledger_db, "_BUSY_SECONDS", 0.0)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN")
        other.execute("SELECT * FROM log").fetchall()
        assert outcome(path, LedgerFile.head).code == "LEDGER-003"
    with open_ledger(path) as ledger:
        reserve(ledger)
        assert sorted(item.name for item in path.parent.iterdir()) == ["ledger.db"]


def test_a_closed_ledger_says_so(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.close()
    with pytest.raises(StoreError, match="LEDGER-001"):
        ledger.head()


def test_whoever_is_second_to_make_a_ledger_uses_the_first(path: Path) -> None:
    open_ledger(path).close()
    before = path.read_bytes()
    ledger_db.create(path, CLOCK)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_default_path_follows_the_environment() -> None:
    assert default_path({"SHOAL_LEDGER": "/a/b.db", "XDG_DATA_HOME": "/x", "HOME": "/h"}) == Path("/a/b.db")
    assert default_path({"XDG_DATA_HOME": "/x", "HOME": "/h"}) == Path("/x/shoal/ledger.db")
    assert default_path({"XDG_DATA_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/share/shoal/ledger.db")
    assert default_path({"HOME": "/h"}) == Path("/h/.local/share/shoal/ledger.db")
    with pytest.raises(StoreError, match="HOME is not set"):
        default_path({})


def test_a_child_process_must_open_it_anew(path: Path) -> None:
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
        assert isinstance(reserve(ledger), Reserved)


def test_a_voided_release_is_refused_when_it_is_to_leave(path: Path) -> None:
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.STORED)
        ledger.void("d1", "q1")
        with pytest.raises(BudgetError) as caught:
            ledger.mark_sending("d1", "q1")
        assert caught.value.code == "BUDGET-005"


def test_what_is_reserved_now_is_returned_as_it_is_read_later(path: Path) -> None:
    with open_ledger(path) as ledger:
        fresh = reserve(ledger)
        assert fresh == reserve(ledger)
        assert fresh.entry == ledger.entry("d1", "q1")


def test_reserving_is_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process does right after a reservation, such as to void it, cannot come between it and its result."""
    with open_ledger(path) as ledger:
        walk(ledger, "q1", State.STORED)
        for question in ("q1", "q2"):
            begun: list[str] = []
            honest = ledger._transaction
            monkeypatch.setattr(ledger, "_transaction", lambda begin, honest=honest, begun=begun: (begun.append(begin), honest(begin))[1])
            reserve(ledger, question)
            monkeypatch.undo()
            assert begun == ["BEGIN IMMEDIATE"]


def test_what_is_drawn_and_not_acknowledged_is_found_with_its_bytes(path: Path) -> None:
    with open_ledger(path) as ledger:
        for state in (State.RESERVED, State.STORED, State.SENDING, State.SENT, State.VOIDED):
            walk(ledger, state.value, state)
        found = ledger.unsent("d1")
        assert list(found) == ["stored", "sending"]
        assert found == {question: ledger.payload("d1", question) for question in found}
        assert ledger.unsent("d2") == {}
