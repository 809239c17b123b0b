"""Settings of workers: one line, and no URL in a repr."""

from __future__ import annotations

from shoal.coordinator.worker import WorkerSettings


def test_settings_round_trip() -> None:
    settings = WorkerSettings(
        "postgresql://me:secret\n@host/db", "redis://:secret@host", "c.pem", "k.pem"
    )
    line = settings.to_line(12)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert WorkerSettings.from_line(line) == (settings, 12)


def test_repr_contains_no_url() -> None:
    assert "secret" not in repr(
        WorkerSettings("postgresql://me:secret@host/db", "redis://:secret@host")
    )
