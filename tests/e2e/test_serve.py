"""`shoal serve` as real processes: TLS, a clean end, workers that are killed and replaced, and a parent that is killed."""

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

from certificates import Certificates
from served import ENVIRONMENT, PATIENCE, Coordinator
from servers import postgres, redis
from shoal.study.templates import study_text


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for protocol in ("anonml", "ddml"):
        (tmp_path / f"{protocol}.toml").write_text(study_text(protocol))
    return tmp_path


def started(stack: ExitStack, home: Path, *arguments: str) -> Coordinator:
    return stack.enter_context(Coordinator(home, *arguments))


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so in time."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], PATIENCE)[0])
    finally:
        os.close(end)


def is_well(url: str, verify: ssl.SSLContext | bool = True) -> bool:
    with httpx2.Client(verify=verify, timeout=PATIENCE) as http:
        return http.get(f"{url}/healthz").status_code == 200 and http.get(f"{url}/readyz").status_code == 200


def test_over_tls_until_told_to_stop(stack: ExitStack, home: Path, certificates: Certificates) -> None:
    files = ("--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key))
    first = started(stack, home, "anonml.toml", "ddml.toml", "--port", "0", *files)
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    assert first.url.startswith("https://127.0.0.1:") and is_well(first.url, trust)
    with httpx2.Client(verify=trust) as http:
        listed = http.get(f"{first.url}/v1/studies").text
    assert all(study["digest"] in listed for study in first.said["studies"]) and len(first.said["studies"]) == 2
    assert first.end() == (0, "")
    assert sorted(path.name for path in home.iterdir()) == ["anonml.toml", "coordinator.db", "ddml.toml"]
    second = started(stack, home, "--port", "0", *files)
    assert "analyst_key" in first.said and "analyst_key" not in second.said
    assert [study["digest"] for study in second.said["studies"]] == [study["digest"] for study in first.said["studies"]]
    assert second.end(signal.SIGINT) == (0, "")


def test_one_who_waits_does_not_hold_up_the_end(stack: ExitStack, home: Path) -> None:
    coordinator = started(stack, home, "anonml.toml", "--port", "0")
    board = f"/v1/studies/{coordinator.said['studies'][0]['digest']}/board"
    port = int(coordinator.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as waiting:
        waiting.sendall(f"GET {board}?after=1000&wait=30 HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        assert is_well(coordinator.url)
        assert coordinator.end() == (0, "")
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")


def test_killed_and_started_again_on_the_same_port(stack: ExitStack, home: Path) -> None:
    first = started(stack, home, "anonml.toml", "--port", "0", "--workers", "2")
    assert is_well(first.url)
    workers = first.workers
    assert len(workers) == 2
    first.end(signal.SIGKILL)
    second = started(stack, home, "anonml.toml", "--port", first.url.rpartition(":")[2])
    assert all(map(gone, workers)) and is_well(second.url)
    assert second.end() == (0, "")


def test_a_worker_that_is_killed_is_replaced(stack: ExitStack, home: Path) -> None:
    coordinator = started(stack, home, "anonml.toml", "--port", "0", "--workers", "2")
    assert is_well(coordinator.url)
    before = coordinator.workers
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert is_well(coordinator.url)
    after = coordinator.workers
    assert after and not set(before) & set(after)
    assert coordinator.end() == (0, "")
    assert all(map(gone, after))
    assert not list(home.glob("*-wal"))


def test_workers_on_postgresql_and_redis(stack: ExitStack, home: Path) -> None:
    database, instances = stack.enter_context(postgres()), stack.enter_context(redis())
    options = ("--store", database.url, "--models", instances.url, "--workers", "2", "--port", "0")
    first = started(stack, home, "anonml.toml", "ddml.toml", *options)
    draw = f"{first.url}/v1/studies/{first.said['studies'][1]['digest']}/draw"
    assert is_well(first.url) and httpx2.post(draw, timeout=PATIENCE).status_code == 200
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in first.workers]
    assert len(commands) == 2 and not any(database.url in command or instances.url in command for command in commands)
    assert first.end() == (0, "")
    second = started(stack, home, *options)
    assert [study["standing"] for study in second.said["studies"]] == ["goes on", "goes on"] and "analyst_key" not in second.said
    assert second.end() == (0, "")


def test_a_refusal_is_a_sentence_and_leaves_nothing(home: Path) -> None:
    command = [sys.executable, "-m", "shoal", "serve", "anonml.toml", "--host", "0.0.0.0"]
    done = subprocess.run(command, cwd=home, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and done.stderr.startswith("SERVE-001  ") and done.stdout == ""
    assert sorted(path.name for path in home.iterdir()) == ["anonml.toml", "ddml.toml"]
