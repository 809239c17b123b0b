"""Stores of a coordinator, and `open_store`, which opens one by its URL.

`shoal.coordinator.store.base` is the interface; SQLite and PostgreSQL implement it.
"""

from __future__ import annotations

from shoal.coordinator.store.base import Store
from shoal.errors import UsageError


def open_store(url: str) -> Store:
    """Open the store at a URL.

    It is ``sqlite:PATH`` or ``postgresql://[user[:password]@]host[:port]/database``.

    Examples
    --------
    >>> import tempfile
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     open_store(f"sqlite:{folder}/store.db") as store,
    ... ):
    ...     store.list_studies()
    ()
    """
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        from shoal.coordinator.store.sqlite import SqliteStore

        return SqliteStore(rest)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from shoal.coordinator.store.postgres import PostgresStore

        return PostgresStore(url)
    # The rest of the URL may contain a password.
    raise UsageError(
        "USAGE-001",
        f"{scheme!r:.40} is not the beginning of a store's address.",
        fix="Give sqlite:PATH or postgresql://USER@HOST/DATABASE.",
    )
