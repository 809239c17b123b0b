"""The tables of a coordinator's store, version by version: for each database a folder of numbered scripts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal


@cache
def migrations(database: Literal["sqlite", "postgres"]) -> tuple[str, ...]:
    """The scripts in order; a store of version n has had the first n of them.

    Examples
    --------
    >>> "CREATE TABLE study" in migrations("sqlite")[0]
    True
    """
    scripts = files("shoal.coordinator.store").joinpath("migrations", database).iterdir()
    return tuple(script.read_text("utf-8") for script in sorted(scripts, key=lambda script: script.name))
