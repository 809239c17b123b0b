"""``shoal serve`` as real processes: TLS, a clean end, killed workers, and a killed supervisor."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from shoal.study.starters import read_starter
from tests.support.servers import ENVIRONMENT, PATIENCE, Coordinator, postgres, redis
from tests.support.tls import Certificates


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for protocol in ("anonml", "ddml"):
        (tmp_path / f"{protocol}.toml").write_text(read_starter(protocol))
    return tmp_path


def start(stack: ExitStack, home: Path, *arguments: str) -> Coordinator:
    return stack.enter_context(Coordinator(home, *arguments))


def wait_for_end(pid: int) -> bool:
    """Return True if a process has ended or ends before the deadline."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], PATIENCE)[0])
    finally:
        os.close(end)


def is_healthy(url: str, verify: ssl.SSLContext | bool = True) -> bool:
    with httpx2.Client(verify=verify, timeout=PATIENCE) as http:
        return (
            http.get(f"{url}/healthz").status_code == 200
            and http.get(f"{url}/readyz").status_code == 200
        )


def test_serve_over_tls_stops_after_signal(
    stack: ExitStack, home: Path, certificates: Certificates
) -> None:
    files = ("--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key))
    first = start(stack, home, "anonml.toml", "ddml.toml", "--port", "0", *files)
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    assert first.url.startswith("https://127.0.0.1:") and is_healthy(first.url, trust)
    with httpx2.Client(verify=trust) as http:
        listed = http.get(f"{first.url}/v1/studies").text
    assert (
        all(study["digest"] in listed for study in first.notice["studies"])
        and len(first.notice["studies"]) == 2
    )
    assert first.end() == (0, "")
    assert sorted(path.name for path in home.iterdir()) == [
        "anonml.toml",
        "coordinator.db",
        "ddml.toml",
    ]
    second = start(stack, home, "--port", "0", *files)
    assert "analyst_key" in first.notice and "analyst_key" not in second.notice
    assert [study["digest"] for study in second.notice["studies"]] == [
        study["digest"] for study in first.notice["studies"]
    ]
    assert second.end(signal.SIGINT) == (0, "")


def test_serve_stops_during_long_poll(stack: ExitStack, home: Path) -> None:
    coordinator = start(stack, home, "anonml.toml", "--port", "0")
    board = f"/v1/studies/{coordinator.notice['studies'][0]['digest']}/board"
    port = int(coordinator.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as waiting:
        waiting.sendall(f"GET {board}?after=1000&wait=30 HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        assert is_healthy(coordinator.url)
        assert coordinator.end() == (0, "")
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")


def test_serve_restarts_on_same_port_after_kill(stack: ExitStack, home: Path) -> None:
    first = start(stack, home, "anonml.toml", "--port", "0", "--workers", "2")
    assert is_healthy(first.url)
    workers = first.workers
    assert len(workers) == 2
    first.end(signal.SIGKILL)
    second = start(stack, home, "anonml.toml", "--port", first.url.rpartition(":")[2])
    assert all(map(wait_for_end, workers)) and is_healthy(second.url)
    assert second.end() == (0, "")


def test_serve_replaces_killed_workers(stack: ExitStack, home: Path) -> None:
    coordinator = start(stack, home, "anonml.toml", "--port", "0", "--workers", "2")
    assert is_healthy(coordinator.url)
    before = coordinator.workers
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert is_healthy(coordinator.url)
    after = coordinator.workers
    assert after and not set(before) & set(after)
    assert coordinator.end() == (0, "")
    assert all(map(wait_for_end, after))
    assert not list(home.glob("*-wal"))


def test_serve_with_workers_on_postgresql_and_redis(stack: ExitStack, home: Path) -> None:
    database, instances = stack.enter_context(postgres()), stack.enter_context(redis())
    options = ("--store", database.url, "--models", instances.url, "--workers", "2", "--port", "0")
    first = start(stack, home, "anonml.toml", "ddml.toml", *options)
    draw = f"{first.url}/v1/studies/{first.notice['studies'][1]['digest']}/draw"
    assert is_healthy(first.url) and httpx2.post(draw, timeout=PATIENCE).status_code == 200
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in first.workers]
    assert len(commands) == 2 and not any(
        database.url in command or instances.url in command for command in commands
    )
    assert first.end() == (0, "")
    second = start(stack, home, *options)
    assert [study["standing"] for study in second.notice["studies"]] == ["goes on", "goes on"]
    assert "analyst_key" not in second.notice
    assert second.end() == (0, "")


def test_serve_rejects_exposed_host_and_writes_nothing(home: Path) -> None:
    command = [sys.executable, "-m", "shoal", "serve", "anonml.toml", "--host", "0.0.0.0"]
    done = subprocess.run(
        command, cwd=home, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2 and done.stderr.startswith("SERVE-001  ") and done.stdout == ""
    assert sorted(path.name for path in home.iterdir()) == ["anonml.toml", "ddml.toml"]
