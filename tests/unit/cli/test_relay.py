"""`shoal relay`: rejections before anything is bound or created; output and end."""

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

from shoal.cli import relay as command
from shoal.cli.main import run
from shoal.entropy import SystemEntropy
from shoal.relay.spool import Spool
from shoal.transport.server import Server, format_url, load_server_tls_context, open_listener
from tests.support.servers import live
from tests.support.tls import make_certificates

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def relay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[str, str]:
    """What a relay says that is told to end as soon as it listens."""
    show = command.RelayNotice.show

    def show_and_end(notice: command.RelayNotice, studies: list[str]) -> None:
        show(notice, studies)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(command.RelayNotice, "show", show_and_end)
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
def test_relay_rejects_bad_options_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert (
        run(["relay", *(arguments if "--port" in arguments else ["--port", "0", *arguments])]) > 0
    )
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.split()[0] == code and "Traceback" not in printed.err
    assert list(Path().iterdir()) == []


def test_relay_prints_notice_with_next_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = relay(capsys, monkeypatch, "--to", NOWHERE)
    assert out.splitlines()[0].startswith("listens     http://127.0.0.1:")
    assert f"relays to   {NOWHERE}" in out and "serves      0 open studies" in out
    assert out.splitlines()[-1].startswith("shoal serve STUDY --relay http://127.0.0.1:")
    assert "NET-001" in err and err.count("NET-001") == 1, (
        "that nobody is there is said once, and it goes on"
    )
    assert stat.S_IMODE(Path("relay.db").stat().st_mode) == 0o600
    assert {path.name for path in Path().iterdir()} == {"relay.db"}


def test_relay_prints_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "coordinator").mkdir()
    with live(home / "coordinator") as coordinator:
        out, err = relay(
            capsys, monkeypatch, "--to", f"{coordinator.url}/", "--json", "--spool", "other.db"
        )
    told: dict[str, Any] = json.loads(out)
    assert told == {
        "address": told["address"],
        "reached_at": told["address"],
        "to": coordinator.url,
        "studies": [],
    }
    assert err == "" and Path("other.db").exists()


def test_relay_serves_tls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    made = make_certificates(home)
    out, _ = relay(
        capsys,
        monkeypatch,
        "--to",
        NOWHERE,
        "--host",
        "0.0.0.0",
        "--tls-cert",
        str(made.certificate),
        "--tls-key",
        str(made.key),
    )
    assert "https://HOST:" in out.splitlines()[-1] and "Replace HOST by" in out


async def no_studies(_scope: Any, _receive: Any, send: Any) -> None:
    """All that a relay asks of a coordinator without studies."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"[]"})


def test_relay_verifies_certificate_of_coordinator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    made, ready = make_certificates(home), threading.Event()
    listener = open_listener("127.0.0.1", 0)
    server = Server(no_studies, load_server_tls_context(made.certificate, made.key), ready.set)
    # Signals are for the main thread alone.
    thread = threading.Thread(target=lambda: asyncio.run(server._serve([listener])))
    thread.start()
    try:
        assert ready.wait(60)
        to = format_url("localhost", listener, has_tls=True)
        assert "NET-003" in relay(capsys, monkeypatch, "--to", to)[1]
        assert relay(capsys, monkeypatch, "--to", to, "--ca", str(made.ca))[1] == ""
    finally:
        server.should_exit = True
        thread.join()


def test_relay_rejects_spool_of_running_relay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr("shoal.relay.spool._BUSY_SECONDS", 0.0)
    with Spool(home / "relay.db", SystemEntropy()):
        assert run(["relay", "--port", "0", "--to", NOWHERE]) > 0
    assert "RELAY-002  Another process has the spool" in capsys.readouterr().err
