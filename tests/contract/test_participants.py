"""Participants against the real application of a coordinator with its SQLite file: every protocol to its end, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from participants import URL, Person, folder, manifest_of, people, seeded, table_of
from shoal.clock import SystemClock
from shoal.coordinator.app import make_app
from shoal.coordinator.models import open_models
from shoal.coordinator.office import Office
from shoal.coordinator.store.opening import open_store
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.participant.client import Client
from shoal.participant.offers import fetch
from shoal.participant.runner import Finished
from shoal.study.manifest import Manifest

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


async def take_part(office: Office, manifest: Manifest, everyone: list[Person]) -> list[Finished]:
    app = make_app(office)

    async def one(person: Person) -> Finished:
        async with Client(URL, SystemClock(), SystemEntropy(), transport=lambda: httpx2.ASGITransport(app)) as client:
            offer = await fetch(client)
            return await person.join(client, offer.manifest, offer.key)

    await office.publish(manifest.to_bytes(), patience=None)
    async with asyncio.timeout(60):
        return await asyncio.gather(*map(one, everyone))


@pytest.mark.parametrize("case", CASES)
def test_a_study_comes_to_its_end(folder: Path, seeded: Seeded, case: str) -> None:
    protocol, more = CASES[case]
    everyone = people(folder, [table_of(1 if protocol == "anonml" else 20, i) for i in range(3)])
    keys = tuple(person.public() for person in everyone) if protocol == "sdq" or "trust" in more else ()
    manifest = manifest_of(protocol, 3, keys, **more)

    async def go() -> list[Finished]:
        url = f"sqlite:{folder}/coordinator.db"
        with open_store(url) as store, open_models(None, url) as models:
            office = Office(store, models, SystemClock(), SystemEntropy(), "worker")
            await office.start()
            try:
                ends = await take_part(office, manifest, everyone)
                assert store.totals(manifest.digest.hex()).refused == {}
                return ends
            finally:
                await office.stop()

    ends = asyncio.run(go())
    assert [end.standing for end in ends] == ["finished"] * 3, [end.reason for end in ends]
