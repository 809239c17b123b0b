"""`shoal doctor`: each fault of a machine is found with a fix, and nothing is changed."""

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

from shoal.cli.doctor import machine
from shoal.cli.doctor.machine import BROKEN, MISSING, OK
from shoal.cli.main import run
from shoal.clock import SystemClock
from shoal.errors import format_install_command
from shoal.participant.ledger_file import LedgerFile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_LEDGER", str(tmp_path / "ledger.db"))
    return tmp_path


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """Listen on a local port, and send bytes to one client."""
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


def examined(
    capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    code = run(["doctor", "--port", "0", *options, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (code == 0)
    return code, {check["name"]: check for check in told["checks"]}


def test_healthy_machine_is_ok_and_unchanged(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = examined(capsys)
    assert code == 0 and list(home.iterdir()) == []
    names = [
        "python",
        "shoal",
        "clock",
        "entropy",
        "disk",
        "ledger",
        "port 0",
        "sqlite",
        "tor",
        "core dumps",
        "memory",
    ]
    assert [name for name in checks if not name.startswith("[")] == names
    assert {"[learn]", "[serve]", "[mpc]"} <= checks.keys() and "[all]" not in checks
    assert all(check["state"] in (OK, MISSING) for check in checks.values())
    assert all((check["fix"] is None) == (check["state"] == OK) for check in checks.values())


def test_text_has_the_same_findings_and_the_next_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert "\nok       sqlite" in out and "next      shoal hello" in out and "broken" not in out
    assert max(map(len, out.splitlines())) <= 110


def test_ledger_is_verified_and_not_charged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LedgerFile(home / "ledger.db", SystemClock()) as book:
        head = book.read_head()
    assert examined(capsys)[1]["ledger"]["state"] == OK
    with LedgerFile(home / "ledger.db", SystemClock()) as book:
        assert book.read_head() == head
    (home / "ledger.db").chmod(0o644)
    code, checks = examined(capsys)
    assert (
        code == 1
        and checks["ledger"]["fix"] == f"chmod 600 {shlex.quote(str(home / 'ledger.db'))}"
        and "644" in checks["ledger"]["what"]
    )


def test_invalid_or_damaged_ledger_is_broken(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "other.db").write_bytes(b"not a database at all, and long enough to be looked at" * 40)
    code, checks = examined(capsys, "--ledger", str(home / "other.db"))
    assert (
        code == 1
        and checks["ledger"]["state"] == BROKEN
        and "LEDGER-004" in checks["ledger"]["what"]
    )
    with LedgerFile(home / "ledger.db", SystemClock()):
        pass
    with sqlite3.connect(home / "ledger.db") as db:
        db.execute("UPDATE log SET body = x'00' WHERE seq = 2")
    code, checks = examined(capsys)
    assert code == 1 and checks["ledger"]["state"] == BROKEN and checks["ledger"]["fix"]
    assert run(["doctor", "--port", "0"]) == 1
    assert f"next      {checks['ledger']['fix']}" in capsys.readouterr().out


def test_ledger_that_cannot_be_created_is_broken(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "file").write_text("")
    for path in (Path("/proc/x"), Path("/proc/deep/er/x"), home / "file" / "ledger.db"):
        code, checks = examined(capsys, "--ledger", str(path))
        assert code == 1 and checks["ledger"]["state"] == BROKEN and checks["ledger"]["fix"]
        assert (
            str(path) in checks["ledger"]["what"]
            and "cannot be written to" in checks["ledger"]["what"]
        )
    assert (
        examined(capsys, "--ledger", str(home / "new" / "er" / "ledger.db"))[1]["ledger"]["state"]
        == OK
    )
    assert [path.name for path in home.iterdir()] == ["file"]


def test_used_port_is_missing_with_an_alternative(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(["doctor", "--port", str(port), "--json"]) == 0
        [check] = [
            one
            for one in json.loads(capsys.readouterr().out)["checks"]
            if one["name"] == f"port {port}"
        ]
    assert check["state"] == MISSING and check["fix"] == "shoal serve STUDY --port 0"
    assert machine.check_port(70_000).state == BROKEN


@pytest.mark.parametrize(
    ("words", "state"), [(b"\x05\x00", OK), (b"HTTP/1.1 400", MISSING), (b"", MISSING)]
)
def test_tor_is_ok_if_a_socks_proxy_answers(
    words: bytes, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(words) as port:
        monkeypatch.setattr(machine, "TOR_ADDRESS", ("127.0.0.1", port))
        assert machine.check_tor().state == state
    assert machine.check_tor().state == MISSING


def test_unwritable_directory_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/proc")))
    assert machine.check_working_directory().state == BROKEN
    assert machine.check_sqlite().state == BROKEN


def test_full_disk_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 2**20))
    found = machine.check_working_directory()
    assert found.state == BROKEN and "0.0 GB free" in found.what


def test_old_sqlite_or_no_write_ahead_log_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Networked(sqlite3.Connection):
        """A database on a drive that cannot share memory: the mode stays what it was."""

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("WAL", "DELETE"), *parameters)

    monkeypatch.setattr(
        machine,
        "_open_database",
        lambda folder: sqlite3.connect(Path(folder) / "store.db", factory=Networked),
    )
    found = machine.check_sqlite()
    assert found.state == BROKEN and "mode delete" in found.what
    monkeypatch.setattr(machine.sqlite3, "sqlite_version_info", (3, 7, 0))
    assert machine.check_sqlite().state == BROKEN


def test_clock_that_jumps_or_is_behind_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_clock().state == OK

    class Jumping(SystemClock):
        times = iter([timedelta(0), timedelta(hours=1)])

        def now(self) -> Any:
            return super().now() + next(self.times)

    monkeypatch.setattr(machine, "SystemClock", Jumping)
    assert "jumped by +3600" in machine.check_clock().what

    class Behind(SystemClock):
        def now(self) -> Any:
            return super().now() - timedelta(days=10_000)

    monkeypatch.setattr(machine, "SystemClock", Behind)
    found = machine.check_clock()
    assert found.state == BROKEN and "files are newer" in found.what


def test_random_source_that_repeats_or_is_silent_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck:
        def bytes(self, n: int) -> bytes:
            return bytes(n)

    monkeypatch.setattr(machine, "SystemEntropy", Stuck)
    assert "repeats itself" in machine.check_entropy().what

    def silent(*_: object) -> bytes:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(machine.os, "getrandom", silent)
    assert machine.check_entropy().state == BROKEN
    monkeypatch.undo()
    monkeypatch.delattr(os, "getrandom")
    assert machine.check_entropy().state == OK


def test_enabled_core_dumps_are_missing_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    try:
        assert machine.check_core_dumps().state == OK
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert machine.check_core_dumps().fix == "ulimit -c 0"
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine.check_core_dumps().state == OK


def test_little_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_memory().state == OK
    monkeypatch.setattr(
        machine.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 50_000
    )
    assert machine.check_memory().state == MISSING

    def unknown(_: str) -> int:
        raise ValueError

    monkeypatch.setattr(machine.os, "sysconf", unknown)
    assert machine.check_memory().state == OK


def test_absent_extra_is_missing_and_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = importlib.metadata.version

    def version(name: str) -> str:
        if name == "mpyc":
            raise importlib.metadata.PackageNotFoundError(name)
        return honest(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, checks = examined(capsys)
    assert code == 0 and checks["[mpc]"]["state"] == MISSING
    assert checks["[mpc]"]["what"] == "not installed: mpyc" and checks["[mpc]"][
        "fix"
    ] == format_install_command("mpc")

    def nowhere(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nowhere)
    [found] = machine.check_extras()
    assert found.state == MISSING and found.fix == "pip install -e '.[all]'"


def test_requirements_of_other_systems_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=2",
        "uvloop>=0.21; (sys_platform != 'win32') and extra == 'serve'",
        "jinja2>=3 ; extra == 'serve'",
        "shoal[learn]; extra == 'all'",
    ]
    assert machine._parse_requirements(lines) == {"serve": ["uvloop", "jinja2"]}
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine._parse_requirements(lines) == {"serve": ["jinja2"]}


def test_old_python_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "OLDEST_PYTHON", (99, 0))
    assert machine.check_python().state == BROKEN


def recounted(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "epsilon", *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


FLOWER = ("--clip", "1", "--epsilon", "1", "--delta", "1e-5")


def test_flower_example_is_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = recounted(capsys, *FLOWER)
    assert (
        code == 7
        and told["epsilon"] == pytest.approx(1.61, abs=5e-3)
        and told["noise"] == pytest.approx(4.845, abs=1e-3)
    )
    code, told = recounted(capsys, *FLOWER, "--rounds", "25")
    assert (
        code == 7
        and told["epsilon"] == pytest.approx(10.4, abs=0.05)
        and told["factor"] == told["epsilon"]
    )
    assert (
        told["sensitivity"] == {"real": 2.0, "told": 1.0} and 0.5 < told["delta_at_claimed"] < 0.6
    )
    assert {"unit", "relation", "adversary"} <= told.keys()


def test_hospital_example_is_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    hospital = (
        "--clip",
        "1",
        "--sensitivity",
        "1e-4",
        "--epsilon",
        "10",
        "--delta",
        "1e-5",
        "--relation",
        "add-remove",
    )
    code, told = recounted(capsys, *hospital)
    assert code == 7 and told["noise"] == pytest.approx(4.845e-5, rel=1e-3)
    assert told["mu"] == pytest.approx(20_640, rel=1e-4) and told["epsilon"] == pytest.approx(
        2.13e8, rel=1e-2
    )
    assert run(["doctor", "epsilon", *hospital]) == 7
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "epsilon 2.14e+08 for one message" in out
        and "the framework assumes 0.0001" in out
        and "fails with probability 1.0," in out
    )


@pytest.mark.parametrize(
    "options",
    [
        (*FLOWER, "--rounds", "25"),
        ("--clip", "0.5", "--epsilon", "0.5", "--mechanism", "laplace", "--rounds", "4"),
        (
            "--clip",
            "1",
            "--sensitivity",
            "0.1",
            "--epsilon",
            "2",
            "--delta",
            "1e-6",
            "--relation",
            "add-remove",
            "--sampling",
            "0.5",
        ),
    ],
)
def test_next_command_has_a_claim_that_holds(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "epsilon", *options]) == 7
    out = capsys.readouterr().out
    assert "to change" in out and max(map(len, out.split("\nnext")[0].splitlines())) <= 100
    again = shlex.split(out.rsplit("next      ", 1)[1])[1:]
    assert run(again) == 0
    assert "the claim holds" in capsys.readouterr().out


def test_upper_bound_above_the_claim_does_not_show_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampled = (
        "--clip",
        "1",
        "--epsilon",
        "0.5",
        "--delta",
        "1e-5",
        "--relation",
        "add-remove",
        "--sampling",
        "0.5",
        "--rounds",
        "900",
    )
    code, told = recounted(capsys, *sampled)
    assert (
        code == 7
        and not told["is_exact"]
        and told["delta_at_claimed"] is None
        and told["mu"] is None
    )
    assert run(["doctor", "epsilon", *sampled]) == 7
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "the claim is not shown to hold" in out and "an upper bound" in out and "is at most" in out
    )
    pure = ("--clip", "1", "--epsilon", "1", "--mechanism", "laplace")
    assert (
        recounted(capsys, *pure)[1]["is_exact"]
        and not recounted(capsys, *pure, "--delta", "1e-6")[1]["is_exact"]
    )


def test_no_noise_is_reported_as_no_privacy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "epsilon", "--clip", "1", "--noise", "0", "--delta", "1e-5"]) == 0
    assert "no privacy at all" in capsys.readouterr().out
    code, told = recounted(
        capsys, "--clip", "1", "--noise", "0", "--delta", "1e-5", "--rounds", "3"
    )
    assert code == 0 and told["epsilon"] is None and told["mu"] is None


def test_given_noise_has_no_claim(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampled = (
        "--clip",
        "1",
        "--noise",
        "1.1",
        "--delta",
        "1e-5",
        "--rounds",
        "1000",
        "--relation",
        "add-remove",
        "--sampling",
        "0.01",
    )
    code, told = recounted(capsys, *sampled)
    assert (
        code == 0
        and told["claimed"] is None
        and 1.4 < told["epsilon"] < 1.8
        and not told["is_exact"]
    )
    assert run(["doctor", "epsilon", *sampled]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "who does not know which units were sampled" in out
        and "claimed" not in out
        and "at most" in out
    )


def test_infinite_epsilon_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    huge = ("--clip", "1e300", "--sensitivity", "1e-300", "--epsilon", "1", "--delta", "1e-5")
    code, told = recounted(capsys, *huge)
    assert code == 7 and told["epsilon"] is None and told["factor"] is None
    assert run(["doctor", "epsilon", *huge]) == 7
    out = capsys.readouterr().out
    assert (
        "too large for a floating-point number" in out
        and "the claim does not hold for any epsilon" in out
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--clip", "0", "--epsilon", "1", "--delta", "1e-5"), "--clip 0"),
        (("--clip", "nan", "--epsilon", "1", "--delta", "1e-5"), "--clip nan"),
        (("--clip", "1", "--epsilon", "-1", "--delta", "1e-5"), "--epsilon -1"),
        (
            ("--clip", "1", "--sensitivity", "inf", "--epsilon", "1", "--delta", "1e-5"),
            "--sensitivity inf",
        ),
        (("--clip", "1", "--delta", "1e-5"), "Neither --noise nor --epsilon"),
        (
            ("--clip", "1", "--noise", "1", "--epsilon", "1", "--delta", "1e-5"),
            "Both --noise and --epsilon",
        ),
        (("--clip", "1", "--noise", "-1", "--delta", "1e-5"), "--noise -1"),
        (
            ("--clip", "1", "--noise", "1", "--sensitivity", "1", "--delta", "1e-5"),
            "--sensitivity is used to derive the noise",
        ),
        (("--clip", "1", "--epsilon", "1"), "--delta is needed"),
        (("--clip", "1", "--noise", "1"), "--delta is needed"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1.5"), "--delta 1.5"),
        (("--clip", "1", "--epsilon", "1", "--delta", "2", "--mechanism", "laplace"), "--delta 2"),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--rounds", "0"), "--rounds 0"),
        (
            ("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--rounds", "2.5"),
            "2.5 is not a whole number",
        ),
        (("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--sampling", "0"), "--sampling 0"),
        (
            ("--clip", "1", "--epsilon", "1", "--delta", "1e-5", "--sampling", "0.5"),
            "accounted for under add-remove",
        ),
        (("--epsilon", "1"), "clip"),
    ],
)
def test_epsilon_rejects_invalid_options(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "epsilon", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err and "Traceback" not in told.err and not told.out


def test_epsilon_answers_quickly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert run(["doctor", "--port", "0"]) in (0, 1) and sum(waits) < 1
    capsys.readouterr()
