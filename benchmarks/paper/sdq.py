"""What SDQ reaches: Nursery, Adult and made-up rows at several budgets, exactness without noise, and what collusion takes away.

``--only`` takes the beginning of a name: ``nursery``, ``nursery_plus``, ``synthetic_sulq``. Names begin with their part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.measure import Measure

PARTS = {
    "exact": "sdq_exact",
    "nursery": "sdq_budgets",
    "adult": "sdq_budgets",
    "held_out": "sdq_held_out",
    "declared": "sdq_declared",
    "synthetic": "sdq_synthetic",
    "collusion": "sdq_collusion",
}
"""The module of each part."""


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """All that begins with ``only``; without ``seeds`` each part has its own number of runs."""
    for part in _chosen(only):
        yield from _call(part.measures, seeds, only)


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """Tables of each part."""
    for part in _chosen(only):
        yield from _call(part.markdown, seeds, only)
        yield ""


def _chosen(only: str) -> Iterator[ModuleType]:
    modules = dict.fromkeys(module for part, module in PARTS.items() if part.startswith(only) or only.startswith(part))
    return (import_module(f"benchmarks.paper.{module}") for module in modules)


def _call(function: Callable[..., Iterator[Any]], seeds: int | None, only: str) -> Iterator[Any]:
    """With a number of runs, if there is one and the part can take it."""
    takes_seeds = seeds is not None and "seeds" in inspect.signature(function).parameters
    return function(only=only, seeds=seeds) if takes_seeds else function(only=only)
