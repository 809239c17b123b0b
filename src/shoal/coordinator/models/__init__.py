"""Where the instances of DDML's models are kept: in memory, in a SQLite file or in Redis, behind one contract."""

from __future__ import annotations

from shoal.coordinator.models.base import ModelStore
from shoal.errors import UsageError


def open_models(address: str) -> ModelStore:
    """The store that an address names: ``memory:``, ``sqlite:PATH``, ``redis://HOST:PORT/DB``, ``rediss://..`` or ``unix://SOCKET``.

    Examples
    --------
    >>> open_models("memory:").shape("s")
    """
    scheme, _, rest = address.partition(":")
    if scheme == "memory" and not rest:
        from shoal.coordinator.models.memory import MemoryModels

        return MemoryModels()
    if scheme == "sqlite" and rest:
        from shoal.coordinator.models.sqlite import SqliteModels

        return SqliteModels(rest)
    if scheme in ("redis", "rediss", "unix") and rest:
        from shoal.coordinator.models.redis import RedisModels

        return RedisModels(address)
    # What comes after the scheme may hold a password.
    raise UsageError(
        "USAGE-001",
        f"{scheme!r:.40} does not begin the address of a store of model instances.",
        fix="Give memory:, sqlite:PATH, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://SOCKET.",
    )
