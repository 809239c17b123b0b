"""DDML's speed: the simulation of a whole population, then draw and update on each store."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from benchmarks.measure import Measure

PARTS = ("benchmarks.speed.ddml.simulation", "benchmarks.speed.ddml.stores")


def measures(only: str = "") -> Iterator[Measure]:
    """Yield all figures, or those of the parts with a text in their name."""
    for part in PARTS:
        if only in part and find_spec(part):
            yield from import_module(part).measures()
