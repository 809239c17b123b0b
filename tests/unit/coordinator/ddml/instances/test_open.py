"""URLs of instance stores, and stores that cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore
from shoal.errors import StoreError, UsageError, format_install_command


def test_open_instance_store_chooses_store_by_url(tmp_path: Path) -> None:
    beside = f"sqlite:{tmp_path / 'coordinator.db'}"
    assert isinstance(open_instance_store("memory:", beside), MemoryInstanceStore)
    assert isinstance(open_instance_store("memory", beside), MemoryInstanceStore)
    assert list(tmp_path.iterdir()) == []
    with open_instance_store(None, beside) as store:
        assert isinstance(store, SqliteInstanceStore)
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.db"]


@pytest.mark.parametrize(
    "address", ["", "memory:x", "sqlite:", "redis:", "postgresql:", "mysql://host/db", "models.db"]
)
def test_open_instance_store_rejects_invalid_url(address: str) -> None:
    with pytest.raises(UsageError, match="is not the beginning"):
        open_instance_store(address, "memory:")
    with pytest.raises(UsageError, match="is not the beginning"):
        open_instance_store(None, address)


@pytest.mark.parametrize(
    "address",
    [
        "redis://:secret@127.0.0.1:1/0",
        "unix:///nowhere/secret",
        "redis://secret:port",
        "postgresql://me:secret@127.0.0.1:1/db",
        "postgresql://me@/db?host=/nowhere/secret",
        "postgresql://secret:port:more/",
    ],
)
def test_open_instance_store_reports_unreachable_server(address: str) -> None:
    with pytest.raises(StoreError, match="STORE-001") as error:
        open_instance_store(address, "memory:")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("library", "extra", "address"),
    [("redis", "redis", "redis://localhost"), ("psycopg", "postgres", "postgresql://localhost/db")],
)
def test_open_instance_store_reports_missing_extra(library: str, extra: str, address: str) -> None:
    """Without them the modules can be imported, and say what is missing."""
    program = f"""
import sys
sys.modules["{library}"] = None
from shoal.coordinator.ddml.instances import open_instance_store
from shoal.errors import UsageError
try:
    open_instance_store("{address}", "memory:")
except UsageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "USAGE-002" in done.stdout
    assert format_install_command(extra) in done.stdout
