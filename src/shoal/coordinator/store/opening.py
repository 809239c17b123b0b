"""Where the store is: an address."""

from __future__ import annotations

from shoal.coordinator.store.base import Store
from shoal.errors import UsageError


def open_store(url: str) -> Store:
    """The store that an address names: ``sqlite:PATH`` or ``postgresql://[user[:password]@]host[:port]/database``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:{folder}/store.db") as store:
    ...     store.studies()
    ()
    """
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        from shoal.coordinator.store.sqlite import SqliteStore

        return SqliteStore(rest)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from shoal.coordinator.store.postgres import PostgresStore

        return PostgresStore(url)
    # What comes after the scheme may hold a password.
    raise UsageError(
        "USAGE-001",
        f"{scheme!r:.40} does not begin the address of a coordinator's store.",
        fix="Give sqlite:PATH or postgresql://USER@HOST/DATABASE.",
    )
