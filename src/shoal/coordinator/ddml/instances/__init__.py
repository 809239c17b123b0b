"""Instance stores for DDML's models: in the coordinator's database, in memory or in Redis.

The worker opens one with `open_instance_store`; `shoal.coordinator.ddml.instances.base` is the
interface.
"""

from __future__ import annotations

from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.errors import UsageError


def open_instance_store(url: str | None, store_url: str) -> InstanceStore:
    """Open an instance store.

    Parameters
    ----------
    url
        ``memory:``, ``redis://HOST:PORT/DB``, ``rediss://..`` or ``unix://SOCKET``; None uses the
        database of the coordinator's store.
    store_url
        URL of the coordinator's store: ``sqlite:PATH`` or ``postgresql://..``.

    Examples
    --------
    >>> open_instance_store("memory:", "sqlite:coordinator.db").find_shape("s")
    """
    address = store_url if url is None else url
    scheme, _, rest = address.partition(":")
    if scheme == "memory" and not rest:
        from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore

        return MemoryInstanceStore()
    if scheme == "sqlite" and rest:
        from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore

        return SqliteInstanceStore(rest)
    if scheme in ("postgresql", "postgres") and rest:
        from shoal.coordinator.ddml.instances.postgres import PostgresInstanceStore

        return PostgresInstanceStore(address)
    if scheme in ("redis", "rediss", "unix") and rest:
        from shoal.coordinator.ddml.instances.redis import RedisInstanceStore

        return RedisInstanceStore(address)
    # The rest of the URL may contain a password.
    raise UsageError(
        "USAGE-001",
        f"{scheme!r:.40} is not the beginning of an instance store's address.",
        fix="Give memory:, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://SOCKET; or leave "
        "it out to use the coordinator's store.",
    )
