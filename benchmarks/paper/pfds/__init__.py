"""Errors of PFDS: variant plus on six tables, and the paper's table with variant paper.

``--only`` takes the beginning of a name: ``plus``, ``plus_adult``, ``paper_bike``. Names begin with
their part.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from benchmarks.measure import Measure

PARTS = {"plus": "plus", "paper": "table2"}
"""The module of each part."""


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """Yield all measures with names that begin with ``only``.

    Without ``seeds`` each part has a default number of splits.
    """
    for part in _chosen(only):
        yield from part.measures(only=only, **_given(seeds))


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """Yield the tables of each part."""
    for part in _chosen(only):
        yield from part.markdown(only=only, **_given(seeds))


def _chosen(only: str) -> Iterator[ModuleType]:
    return (
        import_module(f"benchmarks.paper.pfds.{module}")
        for part, module in PARTS.items()
        if part.startswith(only) or only.startswith(part)
    )


def _given(seeds: int | None) -> dict[str, int]:
    return {} if seeds is None else {"seeds": seeds}
