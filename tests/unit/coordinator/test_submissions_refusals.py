"""Rejections are counted in memory and written together; none is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.coordinator.rejections import RejectionCounter
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import StoreError
from tests.support.coordinator import NOW, make_manifest, publish_manifest


class Away(SqliteStore):
    """A store that cannot be written for a while."""

    is_away = True

    def count_rejections(self, study: str, code: str, n: int = 1) -> None:
        if self.is_away:
            raise StoreError("STORE-001", "It is away.")
        super().count_rejections(study, code, n)


def test_counts_are_written_once_after_store_failure(tmp_path: Path) -> None:
    with Away(tmp_path / "store.db") as store:
        study = publish_manifest(store, make_manifest("anonml"), NOW)[0].digest
        refusals = RejectionCounter()
        for code in ("MSG-002", "AUTH-002", "MSG-002"):
            refusals.count(study, code)
        with pytest.raises(StoreError):
            asyncio.run(refusals.flush(store))
        refusals.count(study, "MSG-002")
        store.is_away = False
        asyncio.run(refusals.flush(store))
        asyncio.run(refusals.flush(store))
        assert store.count_totals(study).refused == {"AUTH-002": 1, "MSG-002": 3}
