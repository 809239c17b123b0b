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
    assert isinstance(open_models("memory:"), MemoryModels)
    assert isinstance(open_models("memory"), MemoryModels)
    with open_models(f"sqlite:{tmp_path / 'models.db'}") as store:
        assert isinstance(store, SqliteModels)


@pytest.mark.parametrize("address", ["", "memory:x", "sqlite:", "redis:", "postgresql://host/db", "models.db"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="does not begin the address"):
        open_models(address)


@pytest.mark.parametrize("address", ["redis://:secret@127.0.0.1:1/0", "unix:///nowhere/secret", "redis://secret:port"])
def test_no_redis_there(address: str) -> None:
    with pytest.raises(StoreError, match="STORE-001") as error:
        open_models(address)
    assert "secret" not in str(error.value)


def test_redis_is_an_extra() -> None:
    """Without it the module can be imported, and says what is missing."""
    program = """
import sys
sys.modules["redis"] = None
from shoal.coordinator.models import open_models
from shoal.errors import UsageError
try:
    open_models("redis://localhost")
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "USAGE-002" in done.stdout
    assert "pip install 'shoal[redis]'" in done.stdout
