"""What a worker of a coordinator is told by the process that starts it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker is told.

    Parameters
    ----------
    store, models
        Addresses, which may hold passwords; ``models`` is None where instances of DDML are kept with the rest.
    tls_cert, tls_key
        Files, or None for no TLS.

    Examples
    --------
    >>> Settings.from_line(Settings("sqlite:coordinator.db").to_line(7))
    (Settings(tls_cert=None, tls_key=None), 7)
    """

    store: str = field(repr=False)
    models: str | None = field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None

    def to_line(self, listener: int) -> bytes:
        """One line, with the number of the listening socket."""
        return json.dumps({**asdict(self), "listener": listener}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> tuple[Settings, int]:
        """What `to_line` wrote."""
        content = json.loads(line)
        listener: int = content.pop("listener")
        return cls(**content), listener
