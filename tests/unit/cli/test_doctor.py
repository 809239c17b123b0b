"""`shoal doctor`: each thing that can be wrong with a machine is found and has a fix, and nothing is changed by looking."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli import doctor_checks
from shoal.cli.doctor_checks import BROKEN, MISSING, OK
from shoal.cli.main import run
from shoal.clock import SystemClock
from shoal.participant.ledger_file import LedgerFile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_LEDGER", str(tmp_path / "ledger.db"))
    return tmp_path


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """A port of this machine at which one visitor is told something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            visitor, _ = server.accept()
            with visitor:
                visitor.recv(16)
                visitor.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def examined(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = run(["doctor", "--port", "0", *options, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (code == 0)
    return code, {check["name"]: check for check in told["checks"]}


def test_a_healthy_machine_is_told_so_and_left_as_it_was(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = examined(capsys)
    assert code == 0 and list(home.iterdir()) == []
    names = ["python", "shoal", "clock", "entropy", "disk", "ledger", "port 0", "sqlite", "tor", "core dumps", "memory"]
    assert [name for name in checks if not name.startswith("[")] == names
    assert {"[learn]", "[serve]", "[mpc]"} <= checks.keys() and "[all]" not in checks
    assert all(check["state"] in (OK, MISSING) for check in checks.values())
    assert all((check["fix"] is None) == (check["state"] == OK) for check in checks.values())


def test_people_are_told_the_same_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert "\nok       sqlite" in out and "next      shoal hello" in out and "broken" not in out
    assert max(map(len, out.splitlines())) <= 110


def test_the_ledger_is_verified_and_not_spent_from(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LedgerFile(home / "ledger.db", SystemClock()) as book:
        head = book.head()
    assert examined(capsys)[1]["ledger"]["state"] == OK
    with LedgerFile(home / "ledger.db", SystemClock()) as book:
        assert book.head() == head
    (home / "ledger.db").chmod(0o644)
    code, checks = examined(capsys)
    assert (
        code == 1 and checks["ledger"]["fix"] == f"chmod 600 {shlex.quote(str(home / 'ledger.db'))}" and "644" in checks["ledger"]["what"]
    )


def test_a_ledger_that_is_none_or_damaged_is_broken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "other.db").write_bytes(b"not a database at all, and long enough to be looked at" * 40)
    code, checks = examined(capsys, "--ledger", str(home / "other.db"))
    assert code == 1 and checks["ledger"]["state"] == BROKEN and "LEDGER-004" in checks["ledger"]["what"]
    with LedgerFile(home / "ledger.db", SystemClock()):
        pass
    with sqlite3.connect(home / "ledger.db") as db:
        db.execute("UPDATE log SET body = x'00' WHERE seq = 2")
    code, checks = examined(capsys)
    assert code == 1 and checks["ledger"]["state"] == BROKEN and checks["ledger"]["fix"]
    assert run(["doctor", "--port", "0"]) == 1
    assert f"next      {checks['ledger']['fix']}" in capsys.readouterr().out


def test_a_ledger_that_cannot_be_made_is_broken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file").write_text("")
    for path in (Path("/proc/x"), Path("/proc/deep/er/x"), home / "file" / "ledger.db"):
        code, checks = examined(capsys, "--ledger", str(path))
        assert code == 1 and checks["ledger"]["state"] == BROKEN and checks["ledger"]["fix"]
        assert str(path) in checks["ledger"]["what"] and "cannot be written to" in checks["ledger"]["what"]
    assert examined(capsys, "--ledger", str(home / "new" / "er" / "ledger.db"))[1]["ledger"]["state"] == OK
    assert [path.name for path in home.iterdir()] == ["file"]


def test_a_port_that_is_taken_is_named_with_a_way_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(["doctor", "--port", str(port), "--json"]) == 0
        [check] = [one for one in json.loads(capsys.readouterr().out)["checks"] if one["name"] == f"port {port}"]
    assert check["state"] == MISSING and check["fix"] == "shoal serve STUDY --port 0"
    assert doctor_checks.port_is_free(70_000).state == BROKEN


@pytest.mark.parametrize(("words", "state"), [(b"\x05\x00", OK), (b"HTTP/1.1 400", MISSING), (b"", MISSING)])
def test_tor_is_there_where_a_socks_port_answers(words: bytes, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(words) as port:
        monkeypatch.setattr(doctor_checks, "TOR", ("127.0.0.1", port))
        assert doctor_checks.tor().state == state
    assert doctor_checks.tor().state == MISSING


def test_a_directory_that_cannot_be_written_to_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/proc")))
    assert doctor_checks.working_directory().state == BROKEN
    assert doctor_checks.sqlite().state == BROKEN


def test_a_full_disk_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 2**20))
    found = doctor_checks.working_directory()
    assert found.state == BROKEN and "0.0 GB free" in found.what


def test_sqlite_that_is_old_or_has_no_write_ahead_log_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Networked(sqlite3.Connection):
        """A database on a drive that cannot share memory: the mode stays what it was."""

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("WAL", "DELETE"), *parameters)

    monkeypatch.setattr(doctor_checks, "_database", lambda folder: sqlite3.connect(Path(folder) / "store.db", factory=Networked))
    found = doctor_checks.sqlite()
    assert found.state == BROKEN and "mode delete" in found.what
    monkeypatch.setattr(doctor_checks.sqlite3, "sqlite_version_info", (3, 7, 0))
    assert doctor_checks.sqlite().state == BROKEN


def test_a_clock_that_jumps_or_is_behind_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_checks.clock().state == OK

    class Jumping(SystemClock):
        times = iter([timedelta(0), timedelta(hours=1)])

        def now(self) -> Any:
            return super().now() + next(self.times)

    monkeypatch.setattr(doctor_checks, "SystemClock", Jumping)
    assert "jumped by +3600" in doctor_checks.clock().what

    class Behind(SystemClock):
        def now(self) -> Any:
            return super().now() - timedelta(days=10_000)

    monkeypatch.setattr(doctor_checks, "SystemClock", Behind)
    found = doctor_checks.clock()
    assert found.state == BROKEN and "after that" in found.what


def test_a_source_of_randomness_that_repeats_itself_or_is_silent_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def bytes(self, n: int) -> bytes:
            return bytes(n)

    monkeypatch.setattr(doctor_checks, "SystemEntropy", Stuck)
    assert "the same twice" in doctor_checks.entropy().what

    def silent(*_: object) -> bytes:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(doctor_checks.os, "getrandom", silent)
    assert doctor_checks.entropy().state == BROKEN
    monkeypatch.undo()
    monkeypatch.delattr(os, "getrandom")
    assert doctor_checks.entropy().state == OK


def test_core_dumps_that_are_on_are_a_thing_to_switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    try:
        assert doctor_checks.core_dumps().state == OK
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert doctor_checks.core_dumps().fix == "ulimit -c 0"
    monkeypatch.setitem(sys.modules, "resource", None)
    assert doctor_checks.core_dumps().state == OK


def test_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_checks.memory().state == OK
    monkeypatch.setattr(doctor_checks.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 50_000)
    assert doctor_checks.memory().state == MISSING

    def unknown(_: str) -> int:
        raise ValueError

    monkeypatch.setattr(doctor_checks.os, "sysconf", unknown)
    assert doctor_checks.memory().state == OK


def test_an_extra_that_is_not_there_is_missing_and_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    honest = importlib.metadata.version

    def version(name: str) -> str:
        if name == "mpyc":
            raise importlib.metadata.PackageNotFoundError(name)
        return honest(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, checks = examined(capsys)
    assert code == 0 and checks["[mpc]"]["state"] == MISSING
    assert checks["[mpc]"]["what"] == "not installed: mpyc" and checks["[mpc]"]["fix"] == "pip install 'shoal[mpc]'"

    def nowhere(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nowhere)
    [found] = doctor_checks.extras()
    assert found.state == MISSING and found.fix == "pip install 'shoal[all]'"


def test_requirements_of_other_systems_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=2",
        "uvloop>=0.21; (sys_platform != 'win32') and extra == 'serve'",
        "jinja2>=3 ; extra == 'serve'",
        "shoal[learn]; extra == 'all'",
    ]
    assert doctor_checks._needs(lines) == {"serve": ["uvloop", "jinja2"]}
    monkeypatch.setattr(sys, "platform", "win32")
    assert doctor_checks._needs(lines) == {"serve": ["jinja2"]}


def test_an_old_python_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "OLDEST_PYTHON", (99, 0))
    assert doctor_checks.python().state == BROKEN


def recounted(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "epsilon", *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


FLOWER = ("--clip", "1", "--epsilon", "1", "--delta", "1e-5")


def test_the_flower_example_is_recounted(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = recounted(capsys, *FLOWER)
    assert code == 7 and told["epsilon"] == pytest.approx(1.61, abs=5e-3) and told["noise"] == pytest.approx(4.845, abs=1e-3)
    code, told = recounted(capsys, *FLOWER, "--rounds", "25")
    assert code == 7 and told["epsilon"] == pytest.approx(10.4, abs=0.05) and told["factor"] == told["epsilon"]
    assert told["sensitivity"] == {"real": 2.0, "told": 1.0} and 0.5 < told["delta_at_claimed"] < 0.6
    assert {"unit", "relation", "adversary"} <= told.keys()


def test_the_hospital_example_is_recounted(capsys: pytest.CaptureFixture[str]) -> None:
    hospital = ("--clip", "1", "--sensitivity", "1e-4", "--epsilon", "10", "--delta", "1e-5", "--relation", "add-remove")
    code, told = recounted(capsys, *hospital)
    assert code == 7 and told["noise"] == pytest.approx(4.845e-5, rel=1e-3)
    assert told["mu"] == pytest.approx(20_640, rel=1e-4) and told["epsilon"] == pytest.approx(2.13e8, rel=1e-2)
    assert run(["doctor", "epsilon", *hospital]) == 7
    out = " ".join(capsys.readouterr().out.split())
    assert "epsilon 2.14e+08 for one message" in out and "the framework was told 0.0001" in out and "fails with chance 1.0," in out


@pytest.mark.parametrize(
    "options",
    [
        (*FLOWER, "--rounds", "25"),
        ("--clip", "0.5", "--epsilon", "0.5", "--mechanism", "laplace", "--rounds", "4"),
        ("--clip", "1", "--sensitivity", "0.1", "--epsilon", "2", "--delta", "1e-6", "--relation", "add-remove", "--sampling", "0.5"),
    ],
)
def test_the_next_command_is_one_whose_claim_holds(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "epsilon", *options]) == 7
    out = capsys.readouterr().out
    assert "to change" in out and max(map(len, out.split("\nnext")[0].splitlines())) <= 100
    again = shlex.split(out.rsplit("next      ", 1)[1])[1:]
    assert run(again) == 0
    assert "the claim holds" in capsys.readouterr().out


def test_a_bound_breaks_no_claim_but_does_not_show_it_either(capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ("--clip", "1", "--epsilon", "0.5", "--delta", "1e-5", "--relation", "add-remove", "--sampling", "0.5", "--rounds", "900")
    code, told = recounted(capsys, *sampled)
    assert code == 7 and not told["is_exact"] and told["delta_at_claimed"] is None and told["mu"] is None
    assert run(["doctor", "epsilon", *sampled]) == 7
    out = " ".join(capsys.readouterr().out.split())
    assert "the claim is not shown to hold" in out and "an upper bound" in out and "is at most" in out
    pure = ("--clip", "1", "--epsilon", "1", "--mechanism", "laplace")
    assert recounted(capsys, *pure)[1]["is_exact"] and not recounted(capsys, *pure, "--delta", "1e-6")[1]["is_exact"]


def test_without_noise_it_is_said_that_there_is_no_privacy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "epsilon", "--clip", "1", "--noise", "0", "--delta", "1e-5"]) == 0
    assert "no privacy at all" in capsys.readouterr().out
    code, told = recounted(capsys, "--clip", "1", "--noise", "0", "--delta", "1e-5", "--rounds", "3")
    assert code == 0 and told["epsilon"] is None and told["mu"] is None


def test_noise_that_is_given_has_no_claim_to_be_held_against(capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ("--clip", "1", "--noise", "1.1", "--delta", "1e-5", "--rounds", "1000", "--relation", "add-remove", "--sampling", "0.01")
    code, told = recounted(capsys, *sampled)
    assert code == 0 and told["claimed"] is None and 1.4 < told["epsilon"] < 1.8 and not told["is_exact"]
    assert run(["doctor", "epsilon", *sampled]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not who was sampled" in out and "claimed" not in out and "at most" in out


def test_more_than_a_number_can_hold_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    huge = ("--clip", "1e300", "--sensitivity", "1e-300", "--epsilon", "1", "--delta", "1e-5")
    code, told = recounted(capsys, *huge)
    assert code == 7 and told["epsilon"] is None and told["factor"] is None
    assert run(["doctor", "epsilon", *huge]) == 7
    out = capsys.readouterr().out
    assert "no epsilon that a number could hold" in out and "nothing of the claim is left" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--clip", "0", "--epsilon", "1", "--delta", "1e-5"), "--clip 0"),
        (("--clip", "nan", "--epsilon", "1", "--delta", "1e-5"), "--clip nan"),
        (("--clip", "1", "--epsilon", "-1", "--delta", "1e-5"), "--epsilon -1"),
        (("--clip", "1", "--sensitivity", "inf", "--epsilon", "1", "--delta", "1e-5"), "--sensitivity inf"),
        (("--clip", "1", "--delta", "1e-5"), "Nothing says how much noise"),
        (("--clip", "1", "--noise", "1", "--epsilon", "1", "--delta", "1e-5"), "Noise is given, and an epsilon"),
        (("--clip", "1", "--noise", "-1", "--delta", "1e-5"), "--noise -1"),
        (("--clip", "1", "--noise", "1", "--sensitivity", "1", "--delta", "1e-5"), "A sensitivity is what noise is derived from"),
        (("--clip", "1", "--epsilon", "1"), "--delta is needed"),
        (("--clip", "1", "--noise", "1"), "--delta is needed"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1.5"), "--delta 1.5"),
        (("--clip", "1", "--epsilon", "1", "--delta", "2", "--mechanism", "laplace"), "--delta 2"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--rounds", "0"), "--rounds 0"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--rounds", "2.5"), "2.5 is not a whole number"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--sampling", "0"), "--sampling 0"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--sampling", "0.5"), "counted under add-remove"),
        (("--epsilon", "1"), "clip"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "epsilon", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err and "Traceback" not in told.err and not told.out


def test_it_answers_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert run(["doctor", "--port", "0"]) in (0, 1) and sum(waits) < 1
    capsys.readouterr()
