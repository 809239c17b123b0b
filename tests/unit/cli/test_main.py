"""The command line: help, exit codes, error sentences, late imports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from shoal import __version__
from shoal.cli.main import COMMANDS, _make_app, run
from shoal.study.starters import read_starter


def list_commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield each command below an application with its path: groups only if they run alone."""
    for name in app:
        if not name.startswith("-"):
            command = app[name]
            if command.default_command is not None:
                yield (*path, name), command
            yield from list_commands(command, (*path, name))


def list_required_options(app: App) -> list[str]:
    """Return the required options of a command, each with a value."""
    return [
        token
        for argument in app.assemble_argument_collection()
        if argument.required and argument.name.startswith("--")
        for token in (argument.name, "1")
    ]


TREE = dict(list_commands(_make_app("")))


def test_command_tree_contains_groups_and_subcommands() -> None:
    assert {path[0] for path in TREE} == set(COMMANDS)
    assert {("doctor",), ("doctor", "epsilon"), ("ledger", "limit"), ("audit", "study")} <= set(
        TREE
    )


@pytest.mark.parametrize("path", TREE | {(name,): None for name in COMMANDS}, ids=" ".join)
def test_help_of_each_command_names_it(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    assert f"shoal {' '.join(path)}" in capsys.readouterr().out


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_no_command_has_generated_negative_options(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    negatives = {option for option in options if option.startswith(("--no-", "--empty-"))}
    assert negatives == ({"--no-open"} if path == ("hello",) else set())
    required = list_required_options(TREE[path])
    for option in options - negatives:
        for prefix in ("--no-", "--empty-"):
            generated = option.replace("--", prefix, 1)
            if generated not in negatives:
                assert run([*path, *required, generated]) == 2
                error = capsys.readouterr().err
                assert error.startswith(f"USAGE-001  Unknown option: {generated}."), error


def test_help_of_shoal_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [
        ["swim"],
        ["hello", "--loudly"],
        ["check"],
        ["audit", "mechanism"],
        ["ledger", "limit", "--epsilon", "many"],
    ],
)
def test_invalid_command_line_prints_usage_001(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_whole_number_options_reject_fractions(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("USAGE-001  ") and "is not a whole number" in error


def test_audit_study_prints_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(read_starter("anonml"))
    # At this confidence an honest study is called broken at most once in a billion runs.
    assert (
        run(["audit", "study", str(path), "--samples", "1000", "--confidence", "0.999999999"]) == 0
    )
    assert capsys.readouterr().out.endswith(f"\nnext      shoal check {path}\n")


def test_errors_are_json_objects_with_json_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["check", str(tmp_path / "none.toml"), "--json"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"].startswith("SPEC-")
    assert printed.err == ""


def test_help_imports_no_heavy_module_and_no_command() -> None:
    script = (
        "import sys; from shoal.cli.main import run; run(['--help']); "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stderr.split()
    assert not {
        "scipy",
        "sklearn",
        "pandas",
        "polars",
        "matplotlib",
        "pyarrow",
        "numpy",
        "pydantic",
        "httpx2",
        "asyncio",
    } & set(loaded)
    # No command is loaded either.
    ours = {name for name in loaded if name.startswith("shoal.")}
    assert ours == {
        "shoal.cli",
        "shoal.cli.main",
        "shoal.cli.output",
        "shoal.cli.runtime",
        "shoal.errors",
        "shoal.text",
    }


def test_python_m_shoal_runs_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_closed_pipe_prints_no_traceback() -> None:
    command = f"{sys.executable} -m shoal --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), ("2>&-", 0), (">/dev/full", 1)],
)
def test_closed_or_full_output_prints_no_traceback(
    redirection: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "study.toml").write_text(read_starter("anonml"))
    command = f"{sys.executable} -m shoal check {tmp_path}/study.toml {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_ascii_terminal_gets_escaped_characters(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(read_starter("anonml"))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "check", tmp_path / "study.toml"],
        capture_output=True,
        text=True,
        env=env,
    )
    assert done.returncode == 0
    assert "\\u250c PRIVACY LABEL" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "is_json"), [(["--json=true"], True), (["--", "--json"], False)]
)
def test_json_is_printed_only_for_the_option(
    arguments: list[str], is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "mechanism", "nothing", *arguments]) == 2
    assert bool(capsys.readouterr().out) is is_json
