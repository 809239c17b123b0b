"""``shoal hello`` as a real process: its output, its report, and that no process outlives it."""

from __future__ import annotations

import html
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import format_install_command

PATIENCE = 300.0
MARK = "SHOAL_TEST_MARK"
HEADS = [
    "1/4  one of 24,000 synthetic people answers a question",
    "2/4  the four protocols learn who sleeps badly, simulated on 18,000 people, each at "
    "epsilon 1.0",
    "3/4  a real study: 60 participants, and a coordinator they need not trust (AnonML)",
    "4/4  the report",
]
COMMAND = [sys.executable, "-m", "shoal", "hello"]


@pytest.fixture
def mark() -> Iterator[str]:
    """Yield a value for the environment of all processes of a run; kill what is left at the end."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in _processes(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def work() -> Iterator[Path]:
    """Yield a directory in memory if possible: ledgers synchronise their files at each step."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def without_learn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an import path on which the extra `learn` is missing; step 2 is left out then."""
    place = tmp_path_factory.mktemp("site")
    (place / "sitecustomize.py").write_text("import sys\n\nsys.modules['sklearn'] = None\n")
    return str(place)


def _environment(mark: str, home: Path, work: Path, *places: str) -> dict[str, str]:
    # A test must not open a browser on the user's display.
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    path = os.pathsep.join([*places, *sys.path])
    own = {
        "TMPDIR": str(work),
        "SHOAL_LEDGER": str(home / "mine.db"),
        "TERM": "xterm",
        "COLUMNS": "200",
    }
    return {**known, **own, MARK: mark, "PYTHONPATH": path}


def _processes(mark: str) -> dict[int, str]:
    """Return the command lines of all processes with a mark."""
    found = {}
    for place in Path("/proc").iterdir():
        try:
            if not place.name.isdigit() or mark.encode() not in (place / "environ").read_bytes():
                continue
            if (place / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found[int(place.name)] = (
                    (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            continue
    return found


def _until(what: Any, message: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def test_hello_shows_four_steps_and_writes_report(tmp_path: Path, work: Path, mark: str) -> None:
    done = subprocess.run(
        COMMAND,
        cwd=tmp_path,
        env=_environment(mark, tmp_path, work),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and not _processes(mark) and not list(work.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["shoal-hello"]
    for part in (
        *HEADS,
        "person, relation replace, against everyone",
        "AnonML plus, local ",
        "DDML plus, local ",
        "SDQ plus, secure sums, tree ",
        "PFDS plus, secure sums ",
        "without privacy ",
        "best possible ",
        "60 enrolled, 60 packets",
        "60 digests of keys, 60 names of packets, 0 answers; 0 of 60 sent answers are in its files",
        "spent 1.0 of 4.0 a year (person, replace, against everyone)",
        "report.html",
    ):
        assert part in done.stdout
    transcript = (Path(__file__).parents[2] / "docs" / "demo.txt").read_text()
    assert _heads(transcript) == _heads(done.stdout)
    home = tmp_path / "shoal-hello"
    page = (home / "report.html").read_text()
    for words in (
        "Who sleeps badly?",
        "Who sleeps badly? 60 answer for real",
        "AnonML plus, shuffled",
        "shoal compare shoal-hello/study.toml",
    ):
        assert words in html.unescape(page)
    assert "<script" not in page and str(work) not in page and str(tmp_path) not in page
    kept = json.loads((home / "hello.json").read_text())
    _check_figures(kept)
    # The command in run.json gives the figures of the report again, to the digit.
    again = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal",
            *json.loads((home / "run" / "run.json").read_text())["command"].split()[1:],
            "--json",
        ],
        cwd=tmp_path,
        env=_environment(mark, tmp_path, work),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (
        json.loads(again.stdout)["points"]
        == json.loads((home / "run" / "run.json").read_text())["points"]
    )


def _heads(text: str) -> list[str]:
    """Return the first words of each line, without figures."""
    return [line[:20] for line in text.splitlines()[1:] if not line.startswith("It took")]


def _check_figures(kept: dict[str, Any]) -> None:
    """Check that private models beat guessing, and that none beats the truth except by chance."""
    values = {entry["name"]: entry["scores"]["accuracy"]["value"] for entry in kept["compared"]}
    assert len(values) >= 8 and {entry["protocol"] for entry in kept["compared"]} == {
        "anonml",
        "ddml",
        "sdq",
        "pfds",
    }
    for name, value in values.items():
        assert value < kept["truth"] + 0.02
        assert value > kept["guessing"] + 0.01 or "paper" in name or "DDML" in name
    served = kept["served"]
    assert served["store"] == {"keys": 60, "names": 60, "answers": 0, "searched": 60, "found": 0}
    assert (
        served["ledger"]["state"] == "sent"
        and 0.3 < served["scores"]["this model"] < kept["truth"] + 0.02
    )


@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGINT, "multiprocessing.spawn"),
        (signal.SIGINT, "shoal.cli.fleet"),
        (signal.SIGTERM, "shoal.cli.fleet"),
        (signal.SIGKILL, "shoal.cli.fleet"),
    ],
    ids=["interrupted while it simulates", "interrupted", "terminated", "killed"],
)
def test_hello_ends_all_processes_after_signal(
    number: signal.Signals, at: str, tmp_path: Path, work: Path, mark: str, without_learn: str
) -> None:
    environment = _environment(mark, tmp_path, work, *([without_learn] if "fleet" in at else []))
    process = subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(
        lambda: process.poll() is not None or any(at in line for line in _processes(mark).values()),
        "it does not get there",
    )
    process.send_signal(number)
    said, trouble = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    _until(lambda: not _processes(mark), f"left behind: {_processes(mark)}")
    assert not list(tmp_path.iterdir()) and (format_install_command("learn") in said) == (
        "fleet" in at
    )
    if number != signal.SIGKILL:
        assert (
            trouble.startswith("USAGE-003")
            and "Traceback" not in trouble
            and not list(work.iterdir())
        )  # a killed process leaves its directory


def test_hello_ends_all_processes_if_terminal_closes(
    tmp_path: Path, work: Path, mark: str, without_learn: str
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, COMMAND, _environment(mark, tmp_path, work, without_learn))
    said = b""
    deadline = time.monotonic() + PATIENCE
    while b" enrolled, " not in said:
        assert time.monotonic() < deadline, said.decode()
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536)
    # Progress is shown in place below the lines of the steps; there is no prompt.
    assert b"1/4" in said and b"3/4" in said and b"true answer" in said
    os.close(terminal)
    os.waitpid(pid, 0)
    _until(lambda: not _processes(mark), f"left behind: {_processes(mark)}")
    assert not list(tmp_path.iterdir()) and not list(work.iterdir())


def test_hello_shows_progress_on_terminal_and_lines_in_file(
    tmp_path: Path, work: Path, mark: str, without_learn: str
) -> None:
    terminal, other_end = pty.openpty()
    with (tmp_path / "lines.txt").open("wb") as lines:
        process = subprocess.Popen(
            COMMAND,
            cwd=tmp_path,
            env=_environment(mark, tmp_path, work, without_learn),
            stdout=lines,
            stderr=other_end,
        )
    os.close(other_end)
    said = b""
    with suppress(OSError):  # when the other end is closed
        while part := os.read(terminal, 65536):
            said += part
    os.close(terminal)
    process.wait(PATIENCE)
    printed = (tmp_path / "lines.txt").read_text()
    assert process.returncode == 0 and b" enrolled, " in said and b"true answer" not in said
    assert "true answer" in printed and "60 enrolled" in printed and "\x1b" not in printed


def test_hello_rejects_directory_with_other_files(tmp_path: Path, work: Path, mark: str) -> None:
    (tmp_path / "shoal-hello").mkdir()
    (tmp_path / "shoal-hello" / "thesis.txt").write_text("mine")
    done = subprocess.run(
        COMMAND,
        cwd=tmp_path,
        env=_environment(mark, tmp_path, work),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (
        done.returncode == 2
        and done.stdout == ""
        and done.stderr.startswith("NEW-001")
        and "--out DIR" in done.stderr
    )
    assert [path.name for path in (tmp_path / "shoal-hello").iterdir()] == ["thesis.txt"]
