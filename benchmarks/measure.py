"""One measured figure, and how to take it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """A figure with its target and its peer, where it has them.

    Parameters
    ----------
    bench, measure
        Name of the benchmark and of the figure.
    value, unit, better
        What was measured, and which direction is good.
    target
        What the project aims at.
    peer, ratio
        Another program measured in the same run, and our value over its value.
    """

    bench: str
    measure: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    target: float | None = None
    peer: str | None = None
    ratio: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def to_text(self) -> str:
        parts = [f"{self.measure:44} {self.value:>14,.4g} {self.unit:10}"]
        if self.peer is not None and self.ratio is not None:
            parts.append(f"{self.ratio:,.3g} x {self.peer}")
        if self.target is not None:
            met = self.value >= self.target if self.better == "higher" else self.value <= self.target
            parts.append(f"target {self.target:,.4g} {'met' if met else 'NOT MET'}")
        return "  ".join(parts)


def table(measures: Iterator[Measure]) -> Iterator[str]:
    """Measures as a table for the documentation."""
    yield "| measure | value | unit | target |"
    yield "|---|---:|---|---:|"
    for one in measures:
        target = "" if one.target is None else f"{'at least' if one.better == 'higher' else 'at most'} {one.target:,.4g}"
        yield f"| {one.measure.replace('_', ' ')} | {one.value:,.4g} | {one.unit} | {target} |"


def rate(work: Callable[[], object], amount: int, *, seconds: float = 1.0) -> float:
    """How much work is done in a second of processor time: the best of repeated runs, after one to warm up."""
    work()
    best, spent = float("inf"), 0.0
    while spent < seconds:
        start = time.process_time()
        work()
        took = time.process_time() - start
        best, spent = min(best, took), spent + took
    return amount / best
