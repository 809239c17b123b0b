"""Why a PostgreSQL database cannot be used, in words of our own: the database's may quote a row, an address or a password."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import StoreError

if TYPE_CHECKING:
    import psycopg

_SEE = "See to the database. What was not acknowledged will come again."
_PASSWORD = "Keep the right one in ~/.pgpass, or give it in the address: postgresql://USER:PASSWORD@HOST/DATABASE"

_BY_STATE = {
    "25006": ("it can only be read", "Give the address of the server that takes changes, not of a replica."),
    "42501": ("this user may not make tables in it", "GRANT CREATE ON SCHEMA public TO the user; or give a database that the user owns."),
    "53100": ("its disk is full", _SEE),
    "53300": ("too many are connected to it", "Give it more max_connections, or the coordinator fewer --workers."),
    "55P03": ("a row stayed locked for too long", _SEE),
    "57014": ("it took too long", _SEE),
    "57P01": ("its server stops", _SEE),
}

_BY_WORDS = (
    ("pg_hba.conf", "its pg_hba.conf does not let this user in from here", "Add a line for this user, database and machine to it."),
    ("password authentication failed", "this user and this password do not belong together", _PASSWORD),
    ("no password supplied", "it wants a password, and there is none", _PASSWORD),
    ("database", "there is no database of this name", "Make it first: createdb NAME"),
    ("role", "it does not let this user in", "Give the name of a role that may log in: postgresql://USER@HOST/DATABASE"),
    ("resolve host", "there is no host of this name", "See to the address: postgresql://USER@HOST:PORT/DATABASE"),
    ("Is the server running", "no server answers there", "Start it, or see to the address: postgresql://USER@HOST:PORT/DATABASE"),
    ("timeout", "no server answers there", "See to the address, and to what is on the way."),
    ("closed the connection", "its server has broken off", _SEE),
    ("starting up", "it is starting", "Try again in a moment."),
    ("SSL", "it and the address do not agree about TLS", "See to sslmode in the address, and to the server's ssl."),
)
"""Of a connection that was not made: libpq has no code for those, but words. What comes first is looked for first."""


def fault(error: psycopg.Error) -> StoreError:
    """``STORE-001`` for an error of the database."""
    reason, fix = _reason(error)
    if reason is not None:
        return StoreError("STORE-001", f"The PostgreSQL database cannot be used: {reason}.", fix=fix)
    return StoreError(
        "STORE-001",
        f"The PostgreSQL database cannot be used: {error.sqlstate or type(error).__name__}.",
        why="It cannot be reached, has no room, does not let this user in, or keeps a row locked for too long.",
        fix=_SEE,
    )


def _reason(error: psycopg.Error) -> tuple[str | None, str]:
    if error.sqlstate is not None:
        return _BY_STATE.get(error.sqlstate, (None, _SEE))
    if type(error).__name__ == "ProgrammingError":
        return "its address cannot be read", "Give postgresql://USER@HOST:PORT/DATABASE"
    # The first line has the address, whose parts could be any of these words.
    said = str(error).rpartition(" failed: ")[2]
    return next(((reason, fix) for words, reason, fix in _BY_WORDS if words in said), (None, _SEE))
