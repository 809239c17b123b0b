"""Addresses of stores."""

from __future__ import annotations

import pytest

from shoal.coordinator.store.opening import open_store
from shoal.errors import UsageError


@pytest.mark.parametrize("url", ["", "sqlite:", "postgresql:", "postgresql:hidden", "mysql://user:hidden@host/db", "hidden.db", "memory:"])
def test_other_addresses_are_refused_without_quoting_what_may_be_a_password(url: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001") as caught:
        open_store(url)
    assert ":hidden" not in str(caught.value)
