"""A newcomer's way through the real command line: from a CSV to a report, mistakes, tutorial."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.study.starters.drafts import find_unfinished

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
EXIT = {"usage": 2, "study": 3, "consent": 5, "other": 1}
_ERROR = re.compile(r"[A-Z]+-\d{3}  \S")
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")


class Done(NamedTuple):
    code: int
    out: str
    trouble: str


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(rows(1500))
    return tmp_path


def rows(n: int) -> str:
    """Return a table with an identifier, a date, a constant, a note, gaps, and a signal."""
    chance = random.Random(7)
    lines = ["id,joined,age,country,city,visits,note,came_back"]
    for i in range(n):
        age, visits = chance.randint(18, 80), chance.choice(["", 1, 2, 3, 5, 8])
        back = "yes" if chance.random() < (0.8 if age > 45 else 0.25) else "no"
        note = f'"said that nr. {i} was fine, mostly"'
        lines.append(
            f"{9000 + 13 * i},2025-0{i % 9 + 1}-1{i % 9},{age},NO,"
            f"{chance.choice(['Oslo', 'Bergen'])},{visits},{note},{back}"
        )
    return "\n".join(lines) + "\n"


def environment(home: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    return {
        **known,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SHOAL_LEDGER": str(home / "ledger.db"),
        "OMP_NUM_THREADS": "1",
    }


def shoal(home: Path, *words: str) -> Done:
    command = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(
        command,
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_command(home: Path, *words: str) -> str:
    done = shoal(home, *words)
    assert done.code == 0, done.out + done.trouble
    return done.out


def check_rejected(home: Path, code: str, exit_code: int, *words: str) -> str:
    """Run a command that fails; check its code and fix, and that it changes no file."""
    before = files(home)
    done = shoal(home, *words)
    assert done.trouble.startswith(f"{code}  ") and "\n  fix " in done.trouble, done.trouble
    assert done.code == exit_code and "Traceback" not in done.trouble + done.out
    assert files(home) == before
    return done.trouble


def files(home: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(home)): path.read_bytes() if path.is_file() else None
        for path in home.rglob("*")
    }


def edit(path: Path, pattern: str, new: str) -> None:
    text, n = re.subn(pattern, new, path.read_text(), flags=re.MULTILINE)
    assert n, f"{pattern} is not in {path.name}"
    path.write_text(text)


def test_commands_lead_from_table_to_report(home: Path) -> None:
    said = run_command(home, "new", "my", "--protocol", "anonml", "--from", "rows.csv")
    for warning in (
        "Left out, because most rows have a different number, as in identifiers: id.",
        "Left out, because they are dates or times: joined.",
        "Left out, because every row has the same value: country.",
        "Left out, because they are free text: note.",
    ):
        assert warning in said
    assert said.endswith("next      shoal check my/study.toml --data rows.csv\n")
    readme = (home / "my" / "README.md").read_text()
    steps = [
        "shoal check study.toml",
        "shoal simulate study.toml",
        "shoal report run",
        "shoal serve study.toml",
    ]
    assert [readme.index(step) for step in steps] == sorted(readme.index(step) for step in steps)
    said = check_rejected(home, "SERVE-005", EXIT["study"], "serve", "my/study.toml", "--port", "0")
    assert (
        "The values on lines" in said
        and "The purpose and the contact still have their placeholders" in said
    )
    edit(home / "my/study.toml", r"^range = \[18, 80\].*", "range = [0, 120]")
    assert "1,500 rows fit the study" in run_command(
        home, "check", "my/study.toml", "--data", "rows.csv"
    )
    sweep = ("--sweep", "epsilon=0.5,1,2,4", "--out", "run")
    said = run_command(home, "simulate", "my/study.toml", "--data", "rows.csv", *sweep)
    assert (
        "most common class" in said
        and "without privacy" in said
        and said.endswith("next      shoal report run\n")
    )
    assert "wrote     run/report.html" in run_command(home, "report", "run")
    page = (home / "run" / "report.html").read_text()
    assert (
        page.startswith("<!doctype html>")
        and "Predict came_back" in page
        and "epsilon per person (replace one)" in page
    )
    assert not any(cell in page for cell in ("9013", "2025-01", "mostly"))


def test_commands_of_starter_readme_succeed(home: Path) -> None:
    run_command(home, "new", "my", "--protocol", "sdq")
    block = (home / "my" / "README.md").read_text().split("```")[1]
    for line in block.strip().splitlines()[:3]:
        run_command(home / "my", *line.split()[1:])
    assert (home / "my" / "run" / "report.html").is_file()


class TestMistakes:
    @pytest.fixture(autouse=True)
    def _study(self, home: Path) -> None:
        run_command(home, "new", "my", "--protocol", "anonml", "--from", "rows.csv")
        edit(home / "my/study.toml", " *# READ FROM THE DATA.*", "")
        edit(home / "my/study.toml", r'"\(write .*"', '"Ask the desk."')

    def test_missing_column_is_reported(self, home: Path) -> None:
        assert "no column surname" in check_rejected(
            home,
            "DATA-001",
            EXIT["study"],
            "new",
            "x",
            "--protocol",
            "anonml",
            "--from",
            "rows.csv",
            "--label",
            "surname",
        )
        edit(home / "my/study.toml", '"age"', '"years"')
        assert "no column years" in check_rejected(
            home, "DATA-001", EXIT["study"], "check", "my/study.toml", "--data", "rows.csv"
        )
        check_rejected(
            home,
            "DATA-001",
            EXIT["study"],
            "simulate",
            "my/study.toml",
            "--data",
            "rows.csv",
            "--out",
            "run",
        )

    def test_missing_file_is_reported(self, home: Path) -> None:
        for words in (
            ("check", "my/study.toml"),
            ("simulate", "my/study.toml", "--out", "run"),
            ("compare", "my/study.toml"),
        ):
            assert "no such file" in check_rejected(
                home, "DATA-006", EXIT["study"], *words, "--data", "none.csv"
            )
        assert "none.toml" in check_rejected(home, "SPEC-001", EXIT["study"], "check", "none.toml")
        check_rejected(home, "REPORT-001", EXIT["study"], "report", "none")

    def test_text_in_numeric_column_is_reported(self, home: Path) -> None:
        lines = (home / "rows.csv").read_text().splitlines()
        cells = lines[17].split(",")
        lines[17] = ",".join([*cells[:2], "SECRET", *cells[3:]])
        (home / "bad.csv").write_text("\n".join(lines))
        said = check_rejected(
            home,
            "DATA-004",
            EXIT["study"],
            "simulate",
            "my/study.toml",
            "--data",
            "bad.csv",
            "--out",
            "run",
        )
        assert "age: row 17" in said and "SECRET" not in said

    def test_epsilon_zero_is_rejected(self, home: Path) -> None:
        check_rejected(
            home,
            "SPEC-013",
            EXIT["study"],
            "simulate",
            "my/study.toml",
            "--data",
            "rows.csv",
            "--sweep",
            "epsilon=0",
            "--out",
            "run",
        )
        check_rejected(home, "USAGE-001", EXIT["usage"], "hello", "--epsilon", "0")
        edit(home / "my/study.toml", r"^epsilon = .*", "epsilon = 0")
        assert "epsilon" in check_rejected(
            home, "SPEC-013", EXIT["study"], "check", "my/study.toml"
        )

    def test_port_in_use_is_reported(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            assert port in check_rejected(
                home, "SERVE-001", EXIT["usage"], "serve", "my/study.toml", "--port", port
            )

    @pytest.mark.parametrize("place", ["/proc/x", "rows.csv/x", "rows.csv"])
    def test_unwritable_path_is_reported(self, place: str, home: Path) -> None:
        before = files(home)
        for words in (
            ("new", place, "--protocol", "anonml"),
            ("simulate", "my/study.toml", "--data", "rows.csv", "--out", place),
            ("compare", "my/study.toml", "--data", "rows.csv", "--out", place),
            ("hello", "--out", place),
            ("serve", "my/study.toml", "--port", "0", "--store", f"sqlite:{place}"),
        ):
            done = shoal(home, *words)
            assert done.code in (EXIT["other"], EXIT["usage"]) and _ERROR.match(done.trouble), (
                done.trouble
            )
            assert (
                "Traceback" not in done.trouble
                and "\n  fix " in done.trouble
                and files(home) == before
            )

    def test_join_without_terminal_requires_options(self, home: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "shoal",
            "serve",
            "my/study.toml",
            "--port",
            "0",
            "--tickets",
            "--json",
        ]
        with subprocess.Popen(
            command, cwd=home, env=environment(home), stdout=subprocess.PIPE, text=True
        ) as coordinator:
            try:
                assert coordinator.stdout is not None
                address = re.search(r"http://127\.0\.0\.1:\d+", coordinator.stdout.readline())
                assert address is not None
                (home / "me.csv").write_text(
                    "\n".join((home / "rows.csv").read_text().splitlines()[:2]) + "\n"
                )
                done = shoal(home, "join", address[0], "--data", "me.csv")
                assert done.code == 1 and done.trouble.startswith("LEDGER-010  ")
                assert "--new-ledger" in done.trouble
                done = shoal(home, "join", address[0], "--data", "me.csv", "--new-ledger")
                started, _, trouble = done.trouble.partition("\n")
                assert started.startswith("A new ledger starts at ")
                assert (
                    done.code == EXIT["consent"]
                    and trouble.startswith("CONSENT-001  ")
                    and "PRIVACY LABEL" in done.out
                )
                assert "--yes --max-epsilon" in done.trouble
            finally:
                coordinator.terminate()

    def test_interrupted_simulation_writes_nothing(self, home: Path) -> None:
        before = files(home)
        words = (
            "simulate",
            "my/study.toml",
            "--data",
            "rows.csv",
            "--repeats",
            "10000",
            "--out",
            "run",
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words],
            cwd=home,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _work(process.pid, 4.0)
        process.send_signal(signal.SIGINT)
        _, trouble = process.communicate(timeout=PATIENCE)
        assert (
            process.returncode == 128 + signal.SIGINT
            and trouble.startswith("USAGE-003  ")
            and "Traceback" not in trouble
        )
        assert files(home) == before


def _work(pid: int, seconds: float) -> None:
    """Wait until a process has used some seconds of processor time."""
    deadline = time.monotonic() + PATIENCE
    ticks = os.sysconf("SC_CLK_TCK")
    while (
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) < seconds * ticks
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Step(NamedTuple):
    command: str
    shown: list[str]


def steps(page: str) -> list[Step]:
    """Return the commands of a page's console blocks, each with the shown output."""
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def missing(shown: list[str], output: list[str]) -> str | None:
    """Return the first shown line that is not in the output, in order, or None.

    Figures may differ a little, and ... matches anything.
    """
    at, is_gap = 0, False
    for line in shown:
        if line.strip() == "...":
            is_gap = True
            continue
        found = next((i for i in range(at, len(output)) if _alike(line, output[i])), None)
        if found is None or (not is_gap and found != at):
            return line
        at, is_gap = found + 1, False
    return (
        None
        if is_gap or at == len(output)
        else f"(the end, after {output[at - 1] if at else 'nothing'})"
    )


def _alike(shown: str, line: str) -> bool:
    if shown.rstrip().endswith("..."):
        return line.startswith(shown.rstrip().removesuffix("..."))
    words, others = shown.split(), line.split()
    return len(words) == len(others) and all(map(_same, words, others))


def _same(word: str, other: str) -> bool:
    if word == other:
        return True
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(other)) or "." not in word:
        return False
    return abs(float(word.replace(",", "")) - float(other.replace(",", ""))) <= 0.02


def test_missing_finds_different_output() -> None:
    output = ["one 1.500", "two", "three"]
    assert (
        missing(["one 1.505", "...", "three"], output) is None and missing(["..."], output) is None
    )
    assert (
        missing(["one 1.6", "..."], output) == "one 1.6"
        and missing(["two", "..."], output) == "two"
    )
    assert (
        missing(["one 1.5", "three"], output) == "three"
        and missing(["one ...", "two"], output) == "(the end, after two)"
    )
    assert steps("x\n```console\n$ a\nb\n$ c\n```\n```\n$ d\n```\n") == [
        Step("a", ["b"]),
        Step("c", []),
    ]


def test_tutorial_commands_print_shown_output(tmp_path: Path) -> None:
    found = steps((ROOT / "docs" / "tutorial.md").read_text())
    assert len(found) >= 10
    for step in found:
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        assert missing(step.shown, done.stdout.splitlines()) is None, (
            f"$ {step.command}\n{done.stdout}"
        )
        is_error = any(_ERROR.match(line) for line in step.shown)
        assert (done.returncode != 0) == is_error, f"$ {step.command}\n{done.stdout}"
    assert (tmp_path / "run" / "report.html").is_file() and (
        tmp_path / "shoal-hello" / "report.html"
    ).is_file()
    left = (tmp_path / "my" / "study.toml").read_text()
    assert find_unfinished(tmp_path / "my" / "study.toml") == [] and "range = [18, 120]" in left
