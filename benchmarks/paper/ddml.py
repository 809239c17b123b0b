"""What DDML reaches: MNIST, theory, a model with known weights, whole updates protected, and spam.

``--only`` takes the beginning of a name: ``mnist``, ``mnist_log3_chosen``, ``update_adult``. Names begin with their part.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.measure import Measure, table

PARTS = ("mnist", "mnist_log3", "theory", "known", "update", "spam")


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """All that begins with ``only``; without ``seeds`` each part has its own number of runs."""
    for part in _chosen(only):
        yield from _call(part.measures, seeds, only)


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """A table of each part."""
    for part in _chosen(only):
        if hasattr(part, "markdown"):
            yield from _call(part.markdown, seeds, only)
        else:
            found = _call(part.measures, seeds, only)
            yield from refusals(found) if part.__name__.endswith("spam") else table(found)
        yield ""


def refusals(measures: Iterator[Measure]) -> Iterator[str]:
    """Spam in few rows: the share that is refused in the settings where it is least and most, by what is sent."""
    shares: dict[str, list[float]] = {}
    for one in measures:
        shares.setdefault(re.sub(r".*_in_flight_\d+_", "", one.measure), []).append(one.value)
    yield "| sent | refused, least | refused, most | settings |"
    yield "|---|---:|---:|---:|"
    for sent, values in shares.items():
        yield f"| {sent.replace('_', ' ')} | {min(values):.4f} | {max(values):.4f} | {len(values)} |"


def _chosen(only: str) -> Iterator[ModuleType]:
    return (import_module(f"benchmarks.paper.ddml_{part}") for part in PARTS if part.startswith(only) or only.startswith(part))


def _call(function: Callable[..., Iterator[Any]], seeds: int | None, only: str) -> Iterator[Any]:
    """With those of the options that the part has."""
    options = {"seeds": seeds, "only": only}
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in options.items() if name in taken and value is not None})
