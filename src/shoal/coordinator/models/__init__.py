"""Where the instances of DDML's models are kept: where the coordinator's store is, in memory or in Redis, behind one contract."""

from __future__ import annotations

from shoal.coordinator.models.base import ModelStore
from shoal.errors import UsageError


def open_models(url: str | None, store_url: str) -> ModelStore:
    """Open a store of model instances.

    Parameters
    ----------
    url
        ``memory:``, ``redis://HOST:PORT/DB``, ``rediss://..`` or ``unix://SOCKET``; None keeps them where the coordinator's store is.
    store_url
        That of the coordinator's store: ``sqlite:PATH`` or ``postgresql://..``.

    Examples
    --------
    >>> open_models("memory:", "sqlite:coordinator.db").shape("s")
    """
    address = store_url if url is None else url
    scheme, _, rest = address.partition(":")
    if scheme == "memory" and not rest:
        from shoal.coordinator.models.memory import MemoryModels

        return MemoryModels()
    if scheme == "sqlite" and rest:
        from shoal.coordinator.models.sqlite import SqliteModels

        return SqliteModels(rest)
    if scheme in ("postgresql", "postgres") and rest:
        from shoal.coordinator.models.postgres import PostgresModels

        return PostgresModels(address)
    if scheme in ("redis", "rediss", "unix") and rest:
        from shoal.coordinator.models.redis import RedisModels

        return RedisModels(address)
    # What comes after the scheme may hold a password.
    raise UsageError(
        "USAGE-001",
        f"{scheme!r:.40} does not begin the address of a store of model instances.",
        fix="Give memory:, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://SOCKET, or none: then they are where the store is.",
    )
