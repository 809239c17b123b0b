"""The command line: help, exit codes, errors in sentences, late imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import __version__
from shoal.cli.main import COMMANDS, run
from shoal.study.templates import study_text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"shoal {command}" in capsys.readouterr().out


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    "arguments", [["swim"], ["hello", "--loudly"], ["check"], ["audit", "mechanism"], ["ledger", "limit", "--epsilon", "many"]]
)
def test_a_wrong_command_line_gets_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("USAGE-001  ")
    assert "Traceback" not in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "study.toml", "--data", "rows.csv", "--repeats", "2.7"],
        ["simulate", "study.toml", "--data", "rows.csv", "--jobs", "1.9"],
        ["simulate", "study.toml", "--data", "rows.csv", "--seed=1.5"],
        ["audit", "mechanism", "pq", "--samples", "1000.6"],
        ["audit", "study", "study.toml", "--samples", "1000.6"],
    ],
)
def test_no_fraction_is_rounded_to_a_whole_number(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("USAGE-001  ") and "is not a whole number" in error


def test_an_audit_of_a_study_leads_on_to_another_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_text("anonml"))
    # At this confidence an honest study is called broken at most once in a billion runs.
    assert run(["audit", "study", str(path), "--samples", "1000", "--confidence", "0.999999999"]) == 0
    assert capsys.readouterr().out.endswith(f"\nnext      shoal check {path}\n")


def test_errors_are_objects_for_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["check", str(tmp_path / "none.toml"), "--json"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"].startswith("SPEC-")
    assert printed.err == ""


def test_import_and_help_stay_light() -> None:
    script = "import sys; from shoal.cli.main import run; run(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    assert not {"scipy", "sklearn", "pandas", "polars", "matplotlib", "pyarrow", "numpy", "pydantic", "httpx2", "asyncio"} & set(loaded)
    # No command is loaded either.
    ours = {name for name in loaded if name.startswith("shoal.")}
    assert ours == {"shoal.cli", "shoal.cli.main", "shoal.cli.output", "shoal.command_lines", "shoal.errors", "shoal.names"}


def test_module_and_command_are_the_same() -> None:
    done = subprocess.run([sys.executable, "-m", "shoal", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_a_closed_pipe_ends_it_quietly() -> None:
    command = f"{sys.executable} -m shoal --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), ("2>&-", 0), (">/dev/full", 1)],
)
def test_a_closed_or_full_output_is_no_traceback(redirection: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(study_text("anonml"))
    command = f"{sys.executable} -m shoal check {tmp_path}/study.toml {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_terminal_without_our_letters_gets_others(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(study_text("anonml"))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "shoal", "check", tmp_path / "study.toml"], capture_output=True, text=True, env=env)
    assert done.returncode == 0
    assert "\\u250c PRIVACY LABEL" in done.stdout


@pytest.mark.parametrize(("arguments", "is_json"), [(["--json=true"], True), (["--", "--json"], False)])
def test_only_an_option_asks_for_json(arguments: list[str], is_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "mechanism", "nothing", *arguments]) == 2
    assert bool(capsys.readouterr().out) is is_json
