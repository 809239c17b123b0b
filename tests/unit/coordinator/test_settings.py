"""What workers are told: all of it by one line, and no address where it could be read by others."""

from __future__ import annotations

from shoal.coordinator.settings import Settings


def test_one_line_there_and_back() -> None:
    settings = Settings("postgresql://me:secret\n@host/db", "redis://:secret@host", "c.pem", "k.pem")
    line = settings.to_line(12)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert Settings.from_line(line) == (settings, 12)


def test_shows_no_address() -> None:
    assert "secret" not in repr(Settings("postgresql://me:secret@host/db", "redis://:secret@host"))
