"""Refusals are counted in memory, and written together; a store that is away loses none of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator_cases import NOW, manifest_of
from shoal.coordinator.publishing import publish
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import StoreError


class Away(SqliteStore):
    """A store that cannot be written for a while."""

    is_away = True

    def refuse(self, study: str, code: str, n: int = 1) -> None:
        if self.is_away:
            raise StoreError("STORE-001", "It is away.")
        super().refuse(study, code, n)


def test_what_was_counted_is_written_once_also_when_the_store_was_away(tmp_path: Path) -> None:
    with Away(tmp_path / "store.db") as store:
        study = publish(store, manifest_of("anonml"), NOW)[0].digest
        refusals = Refusals()
        for code in ("MSG-002", "AUTH-002", "MSG-002"):
            refusals.count(study, code)
        with pytest.raises(StoreError):
            asyncio.run(refusals.flush(store))
        refusals.count(study, "MSG-002")
        store.is_away = False
        asyncio.run(refusals.flush(store))
        asyncio.run(refusals.flush(store))
        assert store.totals(study).refused == {"AUTH-002": 1, "MSG-002": 3}
