"""`shoal relay`: refusals before anything is bound or made, what it says when it listens, and that it ends in good order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificates
from live import live
from shoal.cli import relay as command
from shoal.cli.main import run
from shoal.entropy import SystemEntropy
from shoal.relay.spool import Spool
from shoal.transport.connections import Server
from shoal.transport.listening import listen, tls_context, url_of

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def relay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, str]:
    """What a relay says that is told to end as soon as it listens."""
    show = command.Notice.show

    def show_and_end(notice: command.Notice, studies: list[str]) -> None:
        show(notice, studies)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(command.Notice, "show", show_and_end)
        assert run(["relay", "--port", "0", *arguments]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--to", "nothing"], "USAGE-001"),
        (["--to", "http://example.org"], "USAGE-001"),
        (["--to", NOWHERE, "--port", "70000"], "USAGE-001"),
        (["--to", NOWHERE, "--ca", "nothing"], "USAGE-001"),
        (["--to", NOWHERE, "--host", "0.0.0.0"], "SERVE-001"),
        (["--to", NOWHERE, "--host", "no such host"], "SERVE-001"),
        (["--to", NOWHERE, "--tls-cert", "nothing"], "SERVE-002"),
        (["--to", NOWHERE, "--tls-cert", "nothing", "--tls-key", "nothing"], "SERVE-002"),
        (["--to", NOWHERE, "--spool", "nowhere/relay.db"], "RELAY-002"),
        ([], "USAGE-001"),
    ],
)
def test_refusals_leave_nothing_behind(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert run(["relay", *(arguments if "--port" in arguments else ["--port", "0", *arguments])]) > 0
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.split()[0] == code and "Traceback" not in printed.err
    assert list(Path().iterdir()) == []


def test_a_relay_says_what_it_does_and_what_comes_next(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = relay(capsys, monkeypatch, "--to", NOWHERE)
    assert out.splitlines()[0].startswith("listens     http://127.0.0.1:")
    assert f"relays to   {NOWHERE}" in out and "serves      0 open studies" in out
    assert out.splitlines()[-1].startswith("shoal serve STUDY --relay http://127.0.0.1:")
    assert "NET-001" in err and err.count("NET-001") == 1, "that nobody is there is said once, and it goes on"
    assert stat.S_IMODE(Path("relay.db").stat().st_mode) == 0o600
    assert {path.name for path in Path().iterdir()} == {"relay.db"}


def test_a_relay_for_programs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "coordinator").mkdir()
    with live(home / "coordinator") as coordinator:
        out, err = relay(capsys, monkeypatch, "--to", f"{coordinator.url}/", "--json", "--spool", "other.db")
    told: dict[str, Any] = json.loads(out)
    assert told == {"address": told["address"], "reached_at": told["address"], "to": coordinator.url, "studies": []}
    assert err == "" and Path("other.db").exists()


def test_a_relay_behind_tls(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    made = make_certificates(home)
    out, _ = relay(
        capsys, monkeypatch, "--to", NOWHERE, "--host", "0.0.0.0", "--tls-cert", str(made.certificate), "--tls-key", str(made.key)
    )
    assert "https://HOST:" in out.splitlines()[-1] and "HOST stands for" in out


async def no_studies(_scope: Any, _receive: Any, send: Any) -> None:
    """All that a relay asks of a coordinator without studies."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"[]"})


def test_the_coordinators_certificate_is_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    made, ready = make_certificates(home), threading.Event()
    listener = listen("127.0.0.1", 0)
    server = Server(no_studies, tls_context(made.certificate, made.key), ready.set)
    # Signals are for the main thread alone.
    thread = threading.Thread(target=lambda: asyncio.run(server._serve([listener])))
    thread.start()
    try:
        assert ready.wait(60)
        to = url_of("localhost", listener, has_tls=True)
        assert "NET-003" in relay(capsys, monkeypatch, "--to", to)[1]
        assert relay(capsys, monkeypatch, "--to", to, "--ca", str(made.ca))[1] == ""
    finally:
        server.should_exit = True
        thread.join()


def test_two_relays_do_not_share_a_spool(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr("shoal.relay.spool_file._BUSY_SECONDS", 0.0)
    with Spool(home / "relay.db", SystemEntropy()):
        assert run(["relay", "--port", "0", "--to", NOWHERE]) > 0
    assert "RELAY-002  Another process has the spool" in capsys.readouterr().err
