"""URLs of stores."""

from __future__ import annotations

import pytest

from shoal.coordinator.store import open_store
from shoal.errors import UsageError


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:",
        "postgresql:",
        "postgresql:hidden",
        "mysql://user:hidden@host/db",
        "hidden.db",
        "memory:",
    ],
)
def test_open_store_rejects_other_urls_without_quoting_password(url: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001") as caught:
        open_store(url)
    assert ":hidden" not in str(caught.value)
