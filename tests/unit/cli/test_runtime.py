"""Exit codes and error sentences of commands, also after a signal during a wait."""

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

from shoal.cli import runtime
from shoal.errors import ShoalError, SpecError
from tests.support.servers import ENVIRONMENT, FLEET, PATIENCE, SHOAL, Process

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def run_work(work: Callable[..., object], *arguments: str) -> tuple[int, list[ShoalError]]:
    """Run a function as a command; return its exit code and the reported errors."""
    app, errors = runtime.make_app("swim"), list[ShoalError]()
    app.default(work)
    return runtime.run_app(app, arguments, errors.append, "swim --help"), errors


def test_run_app_reports_error_and_returns_its_exit_code() -> None:
    def work() -> None:
        raise SpecError("SPEC-001", "Nothing is there.")

    code, (error,) = run_work(work)
    assert (code, error.code) == (3, "SPEC-001")


@pytest.mark.parametrize(
    "arguments", [(), ("--n", "2.7"), ("--n", "many"), ("--n", "1", "more"), ("--m", "1")]
)
def test_run_app_reports_unparsable_arguments_as_usage_001(arguments: tuple[str, ...]) -> None:
    def work(*, n: int) -> None:
        raise AssertionError(n)

    code, (error,) = run_work(work, *arguments)
    assert (code, error.code, error.fix) == (
        2,
        "USAGE-001",
        "swim --help",
    ) and "\n" not in error.what


def test_run_app_returns_code_of_system_exit_without_error() -> None:
    def work() -> None:
        raise SystemExit(9)

    assert run_work(work) == (9, [])
    assert run_work(lambda: None) == (0, [])


def stop_process(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Send a signal to a process; return its exit code and its output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number and "Traceback" not in err
    return process.returncode, out, err


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *SHOAL, *words]
    return subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@SIGNALS
@pytest.mark.parametrize("json_words", [(), ("--json",)])
def test_signal_ends_a_command_that_waits_for_a_file(
    number: signal.Signals, json_words: tuple[str, ...], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "key")
    process = start(
        "close", "http://127.0.0.1:1", "7f", "--key-file", str(tmp_path / "key"), *json_words
    )
    # Opening a FIFO to write blocks until a process has opened it to read.
    with (tmp_path / "key").open("w"):
        _, out, err = stop_process(process, number)
    if json_words:
        assert json.loads(out)["error"]["code"] == "USAGE-003" and err == ""
    else:
        assert err.startswith("USAGE-003  Interrupted.") and out == ""


@SIGNALS
def test_signal_ends_join_that_waits_for_a_coordinator(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("age\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = start(
            "join",
            url,
            "--data",
            str(tmp_path / "rows.csv"),
            "--ledger",
            str(tmp_path / "me.db"),
            "--new-ledger",
            "--json",
        )
        accepted, _ = silent.accept()
        with accepted:
            assert accepted.recv(1)
            _, out, err = stop_process(process, number)
    assert json.loads(out)["error"]["code"] == "USAGE-003"
    assert err.startswith("A new ledger starts at ") and err.count("\n") == 1


@SIGNALS
def test_signal_ends_a_waiting_fleet(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        words = [
            f"http://127.0.0.1:{silent.getsockname()[1]}",
            "--data",
            tmp_path / "rows.csv",
            "--participants",
            "1",
        ]
        fleet = Process(tmp_path / "log", [*words, "--directory", tmp_path / "fleet"], FLEET)
        try:
            accepted, _ = silent.accept()
            with accepted:
                assert accepted.recv(1)
                fleet.process.send_signal(number)
                assert fleet.wait() == 128 + number
        finally:
            fleet.kill()
    output = fleet.read_output()
    assert "USAGE-003  Interrupted." in output and "Traceback" not in output
