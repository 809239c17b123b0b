"""A session: which study is meant when the coordinator does not say, and which studies compute jointly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from live import live
from participants import folder, manifest_of
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.participant.session import computes, opened

__all__ = ["folder"]

PFDS = manifest_of("pfds", 3, pfds={"n_holders": 3})


def test_whoever_agreed_goes_on_while_the_coordinator_is_away(folder: Path) -> None:
    async def visit(url: str, *, agrees: bool) -> str:
        async with opened(folder / "me.db", url, SystemClock(), SystemEntropy()) as session:
            offer = await session.offer(None)
            if agrees:
                session.agree(offer, "rows.csv")
            return offer.digest

    with live(folder, PFDS) as coordinator:
        assert asyncio.run(visit(coordinator.url, agrees=False)) == PFDS.digest.hex()
    with pytest.raises(TransportError):
        asyncio.run(visit(coordinator.url, agrees=False))
    (folder / "again").mkdir()
    with live(folder / "again", PFDS) as second:
        asyncio.run(visit(second.url, agrees=True))
    assert asyncio.run(visit(second.url, agrees=False)) == PFDS.digest.hex()


def test_only_some_studies_of_sdq_compute_jointly() -> None:
    assert not computes(PFDS) and computes(manifest_of("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "mpc"}))
    assert not computes(manifest_of("sdq", 4, sdq={"n_databases": 5, "max_colluders": 1, "choice": "sums"}))
