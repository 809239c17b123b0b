"""One PostgreSQL server for all suites of this folder, with a new database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Postgres, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server
