"""One PostgreSQL server for all suites of this folder; each test has a database of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers import Postgres, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server
