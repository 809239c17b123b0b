"""Addresses of stores, and what cannot be reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.coordinator.models import open_models
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.models.sqlite import SqliteModels
from shoal.errors import StoreError, UsageError


def test_addresses(tmp_path: Path) -> None:
    beside = f"sqlite:{tmp_path / 'coordinator.db'}"
    assert isinstance(open_models("memory:", beside), MemoryModels)
    assert isinstance(open_models("memory", beside), MemoryModels)
    assert list(tmp_path.iterdir()) == []
    with open_models(None, beside) as store:
        assert isinstance(store, SqliteModels)
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.db"]


@pytest.mark.parametrize("address", ["", "memory:x", "sqlite:", "redis:", "postgresql:", "mysql://host/db", "models.db"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="does not begin the address"):
        open_models(address, "memory:")
    with pytest.raises(UsageError, match="does not begin the address"):
        open_models(None, address)


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
def test_nothing_there(address: str) -> None:
    with pytest.raises(StoreError, match="STORE-001") as error:
        open_models(address, "memory:")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("library", "extra", "address"), [("redis", "redis", "redis://localhost"), ("psycopg", "postgres", "postgresql://localhost/db")]
)
def test_databases_are_extras(library: str, extra: str, address: str) -> None:
    """Without them the modules can be imported, and say what is missing."""
    program = f"""
import sys
sys.modules["{library}"] = None
from shoal.coordinator.models import open_models
from shoal.errors import UsageError
try:
    open_models("{address}", "memory:")
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "USAGE-002" in done.stdout
    assert f"pip install 'shoal[{extra}]'" in done.stdout
