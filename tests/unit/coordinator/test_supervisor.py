"""The supervisor replaces dead workers, gives up if all die, and leaves none behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.coordinator import supervisor
from shoal.coordinator.supervisor import MAX_AT_ONCE, STEADY_SECONDS, RestartBackoff, Supervisor
from shoal.coordinator.worker import WorkerSettings
from shoal.errors import ShoalError
from shoal.transport.server import open_listener

SECRET = "postgresql://user:a-password@host/db"
ANSWERS = """
import json, os, socket, sys
settings = json.loads(sys.stdin.readline())
listener = socket.socket(fileno=settings["listener"])
while True:
    connection, _ = listener.accept()
    values = [os.getpid(), settings["store"], sys.argv, dict(os.environ)]
    connection.sendall(json.dumps(values).encode())
    connection.close()
"""
STUBBORN = f"import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ANSWERS}"
IMPATIENT = STUBBORN.replace("signal.SIG_IGN", "lambda *_: os.kill(os.getppid(), signal.SIGINT)")
"""Asked to end, it does not, and its parent is told to end a second time."""


@pytest.fixture
def listener() -> socket.socket:
    return open_listener("127.0.0.1", 0)


def ask(listener: socket.socket) -> str:
    with (
        socket.create_connection(listener.getsockname(), timeout=20) as connection,
        connection.makefile() as file,
    ):
        return file.read()


def pid_of(answer: str) -> int:
    return int(answer[1 : answer.index(",")])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def supervise(
    monkeypatch: pytest.MonkeyPatch,
    listener: socket.socket,
    program: str,
    act: Callable[[], object],
    n_workers: int = 1,
) -> None:
    """Run a supervisor of some program while another thread does something; its last act is a
    signal to end.
    """
    monkeypatch.setattr(Supervisor, "command", (sys.executable, "-c", program))
    failures: list[BaseException] = []

    def meanwhile() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=meanwhile)
    # Where the supervisor has given up before, the signal must not end the tests.
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handlers = [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    ]
    try:
        with listener:
            Supervisor(n_workers, listener, WorkerSettings(SECRET)).run(thread.start)
    finally:
        thread.join()
        assert [
            signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        ] == handlers
        signal.signal(signal.SIGTERM, handler)
    assert failures == []


def test_backoff_grows_after_short_lives_and_gives_up() -> None:
    deaths = RestartBackoff()
    pauses = [deaths.next_pause(0.5) for _ in range(MAX_AT_ONCE - 1)]
    assert pauses == sorted(set(pauses)) and pauses[0] > 0
    assert deaths.next_pause(STEADY_SECONDS) == 0
    for _ in range(MAX_AT_ONCE - 1):
        deaths.next_pause(0.5)
    with pytest.raises(ShoalError, match="SERVE-003"):
        deaths.next_pause(0.5)


def test_supervisor_replaces_killed_worker_and_ends_all(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    pids: list[int] = []

    def act() -> None:
        for _ in range(3):
            pids.append(pid_of(ask(listener)))
            os.kill(pids[-1], signal.SIGKILL)
            # Until it is dead it may take the next question with it.
            until = time.monotonic() + 60
            while is_alive(pids[-1]) and time.monotonic() < until:
                time.sleep(0.01)
        pids.append(pid_of(ask(listener)))

    supervise(monkeypatch, listener, ANSWERS, act)
    assert len(set(pids)) == 4 and not any(map(is_alive, pids))


def test_settings_reach_worker_only_by_pipe(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    answers: list[str] = []

    def act() -> None:
        answers.append(ask(listener))
        pid = pid_of(answers[0])
        answers.extend(
            Path(f"/proc/{pid}/{name}").read_text(errors="replace")
            for name in ("cmdline", "environ")
        )

    supervise(monkeypatch, listener, ANSWERS, act)
    answer, *seen = answers
    assert (
        answer.count(SECRET) == 1
        and len(seen) == 2
        and not any("a-password" in text for text in seen)
    )


def test_core_dumps_are_disabled(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    if limits[1] == 0:
        pytest.skip("core dumps are forbidden here already")
    found: list[tuple[int, int]] = []

    def act() -> None:
        found.extend(
            resource.prlimit(pid, resource.RLIMIT_CORE)
            for pid in (pid_of(ask(listener)), os.getpid())
        )

    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        supervise(monkeypatch, listener, ANSWERS, act)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)
    assert [soft for soft, _ in found] == [0, 0]


def test_workers_ignore_interrupt_at_terminal(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    """It comes to a worker before that has got anywhere, and would be a traceback."""
    answers: list[str] = []
    supervise(
        monkeypatch,
        listener,
        f"import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n{ANSWERS}",
        lambda: answers.append(ask(listener)),
    )
    assert len(answers) == 1 and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_supervisor_gives_up_if_all_workers_die(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(
        Supervisor,
        "command",
        (sys.executable, "-S", "-c", f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"),
    )
    with listener, pytest.raises(ShoalError, match="SERVE-003"):
        Supervisor(1, listener, WorkerSettings(SECRET)).run()
    assert (tmp_path / "starts").read_text() == "x" * MAX_AT_ONCE


@pytest.mark.parametrize(("program", "seconds"), [(STUBBORN, 0.2), (IMPATIENT, 600.0)])
def test_supervisor_kills_worker_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, program: str, seconds: float
) -> None:
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", seconds)
    pids: list[int] = []
    supervise(monkeypatch, listener, program, lambda: pids.append(pid_of(ask(listener))))
    assert pids and not any(map(is_alive, pids))


def test_workers_share_socket(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    pids: list[int] = []

    def act() -> None:
        pids.extend(pid_of(ask(listener)) for _ in range(2))

    supervise(
        monkeypatch,
        listener,
        ANSWERS.replace("connection.close()", "connection.close(); sys.stdin.read()"),
        act,
        n_workers=2,
    )
    assert len(set(pids)) == 2 and not any(map(is_alive, pids))
