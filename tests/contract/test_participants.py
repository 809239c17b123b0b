"""Participants against a coordinator application with its SQLite file.

Every protocol runs to its end, request by request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store import open_store
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.participant.client import Client
from shoal.participant.offers import fetch_offer
from shoal.participant.runner import ParticipationResult
from shoal.study.manifest import Manifest
from tests.support.participants import (
    URL,
    Person,
    folder,
    make_manifest,
    make_table,
    people,
    seeded,
)

__all__ = ["folder", "seeded"]

Seeded = Callable[[int | str], SeededEntropy]

EXPECTED = {"minimum": 3, "size": 3}
DDML = {"participation": EXPECTED, "privacy": {"epsilon": 4.0, "n_updates": 2}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "anonml": ("anonml", {"participation": EXPECTED}),
    "ddml, signed": ("ddml", {**DDML, "ddml": {"n_instances": 2, "admission": "signed"}}),
    "ddml, token": ("ddml", {**DDML, "ddml": {"n_instances": 2, "admission": "token"}}),
    "sdq": ("sdq", {"sdq": {"n_databases": 3, "max_colluders": 1, "depth": 1, "choice": "sums"}}),
    "pfds": ("pfds", {"pfds": {"n_holders": 3}}),
    "pfds, sums": ("pfds", {"trust": "secure-sum", "pfds": {"n_holders": 3}}),
}


async def take_part(
    service: CoordinatorService, manifest: Manifest, everyone: list[Person]
) -> list[ParticipationResult]:
    app = make_app(service)

    async def one(person: Person) -> ParticipationResult:
        async with Client(
            URL, SystemClock(), SystemEntropy(), make_transport=lambda: httpx2.ASGITransport(app)
        ) as client:
            offer = await fetch_offer(client)
            return await person.join(client, offer.manifest, offer.key)

    await service.publish(manifest.to_bytes(), phase_timeout=None)
    async with asyncio.timeout(60):
        return await asyncio.gather(*map(one, everyone))


@pytest.mark.parametrize("case", CASES)
def test_study_with_real_participants_ends(folder: Path, seeded: Seeded, case: str) -> None:
    protocol, more = CASES[case]
    everyone = people(folder, [make_table(1 if protocol == "anonml" else 20, i) for i in range(3)])
    keys = (
        tuple(person.public() for person in everyone)
        if protocol == "sdq" or "trust" in more
        else ()
    )
    manifest = make_manifest(protocol, 3, keys, **more)

    async def take_part_all() -> list[ParticipationResult]:
        url = f"sqlite:{folder}/coordinator.db"
        with open_store(url) as store, open_instance_store(None, url) as models:
            service = CoordinatorService(store, models, SystemClock(), SystemEntropy(), "worker")
            await service.start()
            try:
                ends = await take_part(service, manifest, everyone)
                assert store.count_totals(manifest.digest.hex()).refused == {}
                return ends
            finally:
                await service.stop()

    ends = asyncio.run(take_part_all())
    assert [end.status for end in ends] == ["finished"] * 3, [end.reason for end in ends]
