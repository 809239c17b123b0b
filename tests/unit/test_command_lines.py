"""A command line ends with a sentence and an exit code, also where a signal ends it: while it waits for a file, and for a coordinator."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from served import ENVIRONMENT, FLEET, PATIENCE, SHOAL, Process
from shoal import command_lines
from shoal.errors import ShoalError, SpecError

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def told_of(work: Callable[..., object], *arguments: str) -> tuple[int, list[ShoalError]]:
    """The exit code of a command line for a function, and the errors of which was told."""
    app, told = command_lines.make_app("swim"), list[ShoalError]()
    app.default(work)
    return command_lines.run(app, arguments, told.append, "swim --help"), told


def test_an_error_is_told_and_has_its_own_exit_code() -> None:
    def work() -> None:
        raise SpecError("SPEC-001", "Nothing is there.")

    code, (error,) = told_of(work)
    assert (code, error.code) == (3, "SPEC-001")


@pytest.mark.parametrize("arguments", [(), ("--n", "2.7"), ("--n", "many"), ("--n", "1", "more"), ("--m", "1")])
def test_a_line_that_cannot_be_read_is_told(arguments: tuple[str, ...]) -> None:
    def work(*, n: int) -> None:
        raise AssertionError(n)

    code, (error,) = told_of(work, *arguments)
    assert (code, error.code, error.fix) == (2, "USAGE-001", "swim --help") and "\n" not in error.what


def test_a_verdict_is_no_error() -> None:
    def work() -> None:
        raise SystemExit(9)

    assert told_of(work) == (9, [])
    assert told_of(lambda: None) == (0, [])


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """The exit code of a process that gets a signal, and what it said."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number and "Traceback" not in err
    return process.returncode, out, err


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *SHOAL, *words]
    return subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@SIGNALS
@pytest.mark.parametrize("json_words", [(), ("--json",)])
def test_while_it_waits_for_a_file(number: signal.Signals, json_words: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    process = start("close", "http://127.0.0.1:1", "7f", "--key-file", str(tmp_path / "key"), *json_words)
    # Whoever opens it to write waits until somebody has opened it to read.
    with (tmp_path / "key").open("w"):
        _, out, err = ended(process, number)
    if json_words:
        assert json.loads(out)["error"]["code"] == "USAGE-003" and err == ""
    else:
        assert err.startswith("USAGE-003  Interrupted.") and out == ""


@SIGNALS
def test_while_it_waits_for_a_coordinator(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = start("join", url, "--data", str(tmp_path / "rows.csv"), "--ledger", str(tmp_path / "me.db"), "--json")
        accepted, _ = silent.accept()
        with accepted:
            assert accepted.recv(1)
            _, out, err = ended(process, number)
    assert json.loads(out)["error"]["code"] == "USAGE-003" and err == ""


@SIGNALS
def test_a_fleet_too(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        words = [f"http://127.0.0.1:{silent.getsockname()[1]}", "--data", tmp_path / "rows.csv", "--participants", "1"]
        fleet = Process(tmp_path / "log", [*words, "--directory", tmp_path / "fleet"], FLEET)
        try:
            accepted, _ = silent.accept()
            with accepted:
                assert accepted.recv(1)
                fleet.process.send_signal(number)
                assert fleet.code() == 128 + number
        finally:
            fleet.kill()
    assert "USAGE-003  Interrupted." in fleet.words() and "Traceback" not in fleet.words()
