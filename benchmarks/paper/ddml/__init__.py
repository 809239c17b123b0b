"""Accuracy of DDML: MNIST, theory, known weights, protected whole updates, and spam.

``--only`` takes the beginning of a name: ``mnist``, ``mnist_log3_chosen``, ``update_adult``. Names
begin with their part.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.measure import Measure, table

PARTS = {
    "mnist": "mnist",
    "mnist_log3": "mnist_log3",
    "theory": "theory",
    "known": "known_weights",
    "update": "whole_update",
    "spam": "spam",
}
"""The module of each part."""


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """Yield all measures with names that begin with ``only``.

    Without ``seeds`` each part has a default number of runs.
    """
    for part in _chosen(only):
        yield from _call(part.measures, seeds, only)


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """Yield a table of each part."""
    for part in _chosen(only):
        if hasattr(part, "markdown"):
            yield from _call(part.markdown, seeds, only)
        else:
            found = _call(part.measures, seeds, only)
            yield from refusals(found) if part.__name__.endswith("spam") else table(found)
        yield ""


def refusals(measures: Iterator[Measure]) -> Iterator[str]:
    """Yield spam in few rows: the smallest and largest rejected share of each kind of update."""
    shares: dict[str, list[float]] = {}
    for one in measures:
        shares.setdefault(re.sub(r".*_in_flight_\d+_", "", one.measure), []).append(one.value)
    yield "| sent | refused, least | refused, most | settings |"
    yield "|---|---:|---:|---:|"
    for sent, values in shares.items():
        yield (
            f"| {sent.replace('_', ' ')} | {min(values):.4f} | {max(values):.4f} | {len(values)} |"
        )


def _chosen(only: str) -> Iterator[ModuleType]:
    return (
        import_module(f"benchmarks.paper.ddml.{module}")
        for part, module in PARTS.items()
        if part.startswith(only) or only.startswith(part)
    )


def _call(function: Callable[..., Iterator[Any]], seeds: int | None, only: str) -> Iterator[Any]:
    """Call a function with those of the options that the part has."""
    options = {"seeds": seeds, "only": only}
    taken = inspect.signature(function).parameters
    return function(
        **{name: value for name, value in options.items() if name in taken and value is not None}
    )
