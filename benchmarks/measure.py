"""Measures: one measured value with its target, and how to take it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """A measured value, with its target and its competitor if it has them.

    Parameters
    ----------
    bench, measure
        Name of the benchmark and of the measure.
    value, unit, better
        The measured value, and the direction that is good.
    target
        The value that the project aims at.
    competitor, ratio
        Another program measured in the same run, and our value divided by its value.
    """

    bench: str
    measure: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    target: float | None = None
    competitor: str | None = None
    ratio: float | None = None

    def to_json(self) -> str:
        return json.dumps(
            {"peer" if key == "competitor" else key: value for key, value in asdict(self).items()}
        )

    def to_text(self) -> str:
        parts = [f"{self.measure:44} {self.value:>14,.4g} {self.unit:10}"]
        if self.competitor is not None and self.ratio is not None:
            parts.append(f"{self.ratio:,.3g} x {self.competitor}")
        if self.target is not None:
            met = (
                self.value >= self.target if self.better == "higher" else self.value <= self.target
            )
            parts.append(f"target {self.target:,.4g} {'met' if met else 'NOT MET'}")
        return "  ".join(parts)


def table(measures: Iterator[Measure]) -> Iterator[str]:
    """Yield the measures as a table for the documentation."""
    yield "| measure | value | unit | target |"
    yield "|---|---:|---|---:|"
    for one in measures:
        target = (
            ""
            if one.target is None
            else f"{'at least' if one.better == 'higher' else 'at most'} {one.target:,.4g}"
        )
        yield f"| {one.measure.replace('_', ' ')} | {one.value:,.4g} | {one.unit} | {target} |"


def rate(work: Callable[[], object], amount: int, *, seconds: float = 1.0) -> float:
    """Return the amount of work done in a second of processor time.

    It is the best of repeated runs, after one warm-up run.
    """
    work()
    best, spent = float("inf"), 0.0
    while spent < seconds:
        start = time.process_time()
        work()
        took = time.process_time() - start
        best, spent = min(best, took), spent + took
    return amount / best
