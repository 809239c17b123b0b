"""Accuracy of SDQ: Nursery, Adult and synthetic rows at several budgets.

It also measures exactness without noise, and the effect of collusion. ``--only`` takes the
beginning of a name: ``nursery``, ``nursery_plus``, ``synthetic_sulq``. Names begin with their part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.measure import Measure

PARTS = {
    "exact": "exactness",
    "nursery": "budgets",
    "adult": "budgets",
    "held_out": "held_out",
    "declared": "declared_size",
    "synthetic": "synthetic",
    "collusion": "collusion",
}
"""The module of each part."""


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """Yield all measures with names that begin with ``only``.

    Without ``seeds`` each part has a default number of runs.
    """
    for part in _chosen(only):
        yield from _call(part.measures, seeds, only)


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """Yield the tables of each part."""
    for part in _chosen(only):
        yield from _call(part.markdown, seeds, only)
        yield ""


def _chosen(only: str) -> Iterator[ModuleType]:
    modules = dict.fromkeys(
        module for part, module in PARTS.items() if part.startswith(only) or only.startswith(part)
    )
    return (import_module(f"benchmarks.paper.sdq.{module}") for module in modules)


def _call(function: Callable[..., Iterator[Any]], seeds: int | None, only: str) -> Iterator[Any]:
    """Call a function with the number of runs, if there is one and the part accepts it."""
    takes_seeds = seeds is not None and "seeds" in inspect.signature(function).parameters
    return function(only=only, seeds=seeds) if takes_seeds else function(only=only)
