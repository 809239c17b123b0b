"""What a relay does again and again: trouble is told once, and what came is mixed on the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay_child import STUDY, packet
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.relay import running
from shoal.relay.releasing import Releasing
from shoal.relay.spool import Sealed, Spool
from shoal.transport.listening import listen


def test_trouble_is_told_once_until_all_is_well_again(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = ["NET-001", "NET-001", "NET-002", "NET-001", None, "NET-001"]

    async def work() -> None:
        code = outcomes.pop(0)
        if code is not None:
            raise TransportError(code, "Nobody answers.")

    async def main() -> None:
        told = running._Told(work)
        while outcomes:
            await told()

    asyncio.run(main())
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["NET-001", "NET-002", "NET-001"]


def test_what_fails_does_not_keep_the_other_from_being_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STEP_SECONDS", 0.0)
    released: list[int] = []

    async def look() -> None:
        raise TransportError("NET-001", "Nobody answers.")

    async def release() -> None:
        released.append(1)
        if len(released) == 5:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(running._step(running._Told(look), running._Told(release)))
    assert len(released) == 5
    assert capsys.readouterr().err.count("NET-001") == 1


def test_the_spool_is_tidied_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "TIDY_SECONDS", 0.0)
    monkeypatch.setattr(running, "TIDY_SHARE", 0)

    async def main() -> None:
        with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
            spool.put([Sealed(STUDY, 0, packet(i), 100) for i in range(9)])
            task = asyncio.create_task(running._tidy(spool))
            while Path(f"{spool.path}-wal").stat().st_size:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())


def test_a_relay_that_cannot_release_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Releasing) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Releasing, "step", broken)
    with listen("127.0.0.1", 0) as listener, pytest.raises(ZeroDivisionError):
        running.run(running.Settings("http://127.0.0.1:9", tmp_path / "relay.db"), listener)
