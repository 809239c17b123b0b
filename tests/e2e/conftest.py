"""What suites of processes share: certificates, and one PostgreSQL and one Redis server for those that need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from certificates import Certificates, make_certificates
from servers import Postgres, Redis, postgres, redis


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with redis() as server:
        yield server
