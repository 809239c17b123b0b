"""One worker in this process: requests, signals, the end of its parent, its store."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.coordinator import worker
from shoal.coordinator.store import open_store
from shoal.coordinator.store.sql import SqlStore
from shoal.coordinator.worker import RETRY_SECONDS, WorkerSettings, run, run_with_retries
from shoal.errors import StoreError, UsageError
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.transport import connections
from shoal.transport.api import study_route
from shoal.transport.server import format_url, open_listener
from tests.support.coordinator import publish_manifest
from tests.support.tls import make_certificates


def test_worker_answers_until_parent_ends(tmp_path: Path) -> None:
    parent, held = os.pipe()
    listener = open_listener("127.0.0.1", 0)
    url = format_url("127.0.0.1", listener, has_tls=False)
    answers: list[int] = []

    def ask() -> None:
        try:
            answers.extend(
                httpx2.get(f"{url}/{path}", timeout=20).status_code
                for path in ("healthz", "readyz", "nothing")
            )
        finally:
            os.close(held)

    thread = threading.Thread(target=ask)
    run(WorkerSettings(f"sqlite:{tmp_path}/store.db"), listener, thread.start, parent)
    thread.join()
    os.close(parent)
    assert answers == [200, 200, 404]
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def test_signal_stops_worker_and_closes_files(tmp_path: Path) -> None:
    listener = open_listener("127.0.0.1", 0)
    run(
        WorkerSettings(f"sqlite:{tmp_path}/store.db", "memory:"),
        listener,
        lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def test_worker_has_random_lease_name_and_no_core_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, limits = f"sqlite:{tmp_path}/store.db", resource.getrlimit(resource.RLIMIT_CORE)
    with open_store(url) as store:
        publish_manifest(
            store, Manifest(parse_study_text(read_starter("anonml"))), 1_800_000_000_000
        )
    holders: list[str] = []
    lease, is_leased = SqlStore.lease, threading.Event()

    def noted(store: SqlStore, study: str, holder: str, now: int, until: int) -> int | None:
        holders.append(holder)
        is_leased.set()
        return lease(store, study, holder, now, until)

    def end_it() -> None:
        # Studies are stepped before signals are heard: one that came earlier would end the tests.
        assert is_leased.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SqlStore, "lease", noted)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        for _ in range(2):
            with open_store(url) as store, store._write_transaction() as session:
                session.execute("UPDATE standing SET has_begun = FALSE")
            is_leased.clear()
            run(
                WorkerSettings(url),
                open_listener("127.0.0.1", 0),
                threading.Thread(target=end_it).start,
            )
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)
    assert len(set(holders)) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", holder) for holder in holders)


@pytest.mark.parametrize("path", ["{study}/submissions", "{study}/messages", "{devices}/update"])
def test_worker_closes_slow_request(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.1)
    digests = []
    with open_store(f"sqlite:{tmp_path}/store.db") as store:
        for protocol in ("anonml", "ddml"):
            record, _ = publish_manifest(
                store, Manifest(parse_study_text(read_starter(protocol))), 1_800_000_000_000
            )
            digests.append(study_route(record.digest))
    route = path.format(study=digests[0], devices=digests[1])
    parent, held = os.pipe()
    listener = open_listener("127.0.0.1", 0)
    answers: list[bytes] = []

    def ask() -> None:
        try:
            with socket.create_connection(listener.getsockname(), timeout=20) as connection:
                head = (
                    f"POST {route} HTTP/1.1\r\nhost: a\r\ncontent-type: "
                    "application/cbor\r\ncontent-length: 24\r\n\r\n"
                )
                connection.sendall(head.encode() + b"half")
                answers.append(connection.recv(12))
        finally:
            os.close(held)

    thread = threading.Thread(target=ask)
    run(WorkerSettings(f"sqlite:{tmp_path}/store.db"), listener, thread.start, parent)
    thread.join()
    os.close(parent)
    assert answers == [b"HTTP/1.1 408"] and capsys.readouterr().err == ""


def test_worker_reports_unusable_store(tmp_path: Path) -> None:
    with open_listener("127.0.0.1", 0) as listener, pytest.raises(StoreError):
        run(WorkerSettings(f"sqlite:{tmp_path}/no/such/folder/store.db"), listener)


def test_worker_waits_for_unavailable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parent, held = os.pipe()
    listener = open_listener("127.0.0.1", 0)
    waited: list[float] = []
    look = select.select

    def looked(*given: Any) -> Any:
        waited.append(given[3])
        if len(waited) == 3:
            (tmp_path / "folder").mkdir()
        return look(*given[:3], 0)

    def ask() -> None:
        try:
            answers.append(
                httpx2.get(
                    f"{format_url('127.0.0.1', listener, has_tls=False)}/readyz", timeout=60
                ).status_code
            )
        finally:
            os.close(held)

    answers: list[int] = []
    thread = threading.Thread(target=ask)
    monkeypatch.setattr(worker.select, "select", looked)
    thread.start()
    run_with_retries(WorkerSettings(f"sqlite:{tmp_path}/folder/store.db"), listener, parent)
    thread.join()
    assert (answers, waited) == ([200], [RETRY_SECONDS] * 3)
    assert capsys.readouterr().err.count("STORE-001") == 1
    os.close(parent)


def test_worker_without_parent_does_not_wait_for_store(tmp_path: Path) -> None:
    parent, held = os.pipe()
    os.close(held)
    with open_listener("127.0.0.1", 0) as listener:
        run_with_retries(
            WorkerSettings(f"sqlite:{tmp_path}/no/such/folder/store.db"), listener, parent
        )
    os.close(parent)


def test_worker_reports_invalid_tls_files(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    with open_listener("127.0.0.1", 0) as listener, pytest.raises(UsageError, match="SERVE-002"):
        run(
            WorkerSettings(f"sqlite:{tmp_path}/store.db", None, str(made.ca), str(made.key)),
            listener,
        )


def test_worker_reads_only_its_settings_line() -> None:
    source, sink = os.pipe()
    os.write(sink, b'{"store": "x"}\nrest')
    os.close(sink)
    assert worker._read_first_line(source) == b'{"store": "x"}\n' and os.read(source, 10) == b"rest"
    assert worker._read_first_line(source) == b""
    os.close(source)


def test_worker_process_prints_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    listener = open_listener("127.0.0.1", 0)
    (tmp_path / "notes.txt").write_text("Dear Anna,")
    line = WorkerSettings(f"sqlite:{tmp_path}/notes.txt").to_line(listener.detach())
    try:
        monkeypatch.setattr(worker, "_read_first_line", lambda source: line)
        assert worker.main() == 1
        assert capsys.readouterr().err.startswith("STORE-003  ")
        monkeypatch.setattr(worker, "_read_first_line", lambda source: b"")
        assert worker.main() == 0
    finally:
        signal.signal(signal.SIGINT, handler)
