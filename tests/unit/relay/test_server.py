"""Periodic work of a relay: error lines and rewrites of the spool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.relay import server
from shoal.relay.batches import BatchReleaser
from shoal.relay.spool import SealedPacket, Spool
from shoal.transport.server import open_listener
from tests.support.relay_child import STUDY, packet


def test_error_reporter_prints_each_code_once_until_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = ["NET-001", "NET-001", "NET-002", "NET-001", None, "NET-001"]

    async def work() -> None:
        code = outcomes.pop(0)
        if code is not None:
            raise TransportError(code, "Nobody answers.")

    async def main() -> None:
        told = server._ErrorReporter(work)
        while outcomes:
            await told()

    asyncio.run(main())
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "NET-001",
        "NET-002",
        "NET-001",
    ]


def test_relay_releases_batches_if_poll_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STEP_SECONDS", 0.0)
    released: list[int] = []

    async def look() -> None:
        raise TransportError("NET-001", "Nobody answers.")

    async def release() -> None:
        released.append(1)
        if len(released) == 5:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(
            server._poll_and_release(server._ErrorReporter(look), server._ErrorReporter(release))
        )
    assert len(released) == 5
    assert capsys.readouterr().err.count("NET-001") == 1


def test_relay_rewrites_spool_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REWRITE_SECONDS", 0.0)
    monkeypatch.setattr(server, "REWRITE_SHARE", 0)

    async def main() -> None:
        with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
            spool.put([SealedPacket(STUDY, 0, packet(i), 100) for i in range(9)])
            task = asyncio.create_task(server._rewrite_periodically(spool))
            while Path(f"{spool.path}-wal").stat().st_size:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())


def test_relay_stops_if_release_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: BatchReleaser) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BatchReleaser, "run_due", broken)
    with open_listener("127.0.0.1", 0) as listener, pytest.raises(ZeroDivisionError):
        server.run_relay(
            server.RelaySettings("http://127.0.0.1:9", tmp_path / "relay.db"), listener
        )
