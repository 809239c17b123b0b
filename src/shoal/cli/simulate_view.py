"""How ``shoal simulate`` shows what came of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.sim.scores import MEASURES

_FAR = 2
"""From this factor on, a declared size is far from the number of rows."""
_HEADS = {"accuracy": "accuracy", "auc": "AUC", "f1": "f1"}


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for people."""
    rows, points = result["rows"], result["points"]
    took_part = points[0]["people"]
    lines = [
        f"study     {result['title']}   digest {result['short']}",
        f"rows      {took_part:,} people took part, {rows['unseen']:,} rows were set aside for testing; declared size {rows['declared']:,}",
        *(f"WARNING   {warning}" for warning in _warnings(points)),
        f"price     {_price(points)}",
        f"answers   {_answers(points[0])}",
        "",
        *_table(result),
        "",
        f"seconds   {result['seconds']:.1f} for {counted(len(points) * result['repeats'], 'run')}"
        + ("; ± is the standard error over runs, on the same rows for testing" if result["repeats"] > 1 else ""),
    ]
    return "\n".join(lines)


def _warnings(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes a simulation tell little about the study that it stands for."""
    people = points[0]["people"]
    found = []
    far = [point["declared"] for point in points if not people / _FAR <= point["declared"] <= people * _FAR]
    if far:
        found.append(
            f"The study declares {far[0]:,} people, and {people:,} took part: questions and bins are chosen for the declared size. "
            f"Try --sweep size={people}"
        )
    minimum = max(point["minimum"] for point in points)
    if people < minimum:
        found.append(f"The study learns nothing from fewer than {counted(minimum, 'participant')}; this is what it would have learned.")
    return found


def _price(points: Sequence[Mapping[str, Any]]) -> str:
    total, paper = points[0]["total"], points[0]["paper_epsilon"]
    if total is None:
        return "none: without perturbation nothing is protected, and no participant can agree to it"
    scope = f"unit {total['unit']}, relation {total['relation']}, against {total['adversary']}"
    if len(points) > 1:
        return f"epsilon by plain sum{'' if paper is None else ', and by equation 6'}, as below ({scope})"
    by_paper = "" if paper is None else f"; by equation 6, which takes features for independent, {show(paper)}"
    central = points[0]["central"]
    crowd = f"; in the crowd epsilon {show(central['epsilon'])}, delta {show(central['delta'])}" if central else ""
    return f"epsilon {show(total['epsilon'])} by {total['how']} ({scope}){by_paper}{crowd}"


def _answers(point: Mapping[str, Any]) -> str:
    """How many answers each kind of phase had."""
    parts = []
    for name, group in groupby(zip(point["phases"], point["answers"], strict=True), key=lambda pair: pair[0]):
        counts = [n for _, n in group]
        parts.append(f"{name} {sum(counts):,}" + (f" in {len(counts)} phases" if len(counts) > 1 else ""))
    return ", ".join(parts) + " (first run)"


def _table(result: Mapping[str, Any]) -> list[str]:
    points = result["points"]
    keys = list(points[0]["settings"])
    has_paper = len(points) > 1 and points[0]["paper_epsilon"] is not None
    heads = [*(keys or [""]), *(["plain sum", "equation 6"] if has_paper else []), *(_HEADS[measure] for measure in MEASURES)]
    body = [
        [
            *([f"{point['settings'][key]:g}" for key in keys] or ["this study"]),
            *([show(point["total"]["epsilon"]), show(point["paper_epsilon"])] if has_paper else []),
            *(_mean(point["scores"][measure]) for measure in MEASURES),
        ]
        for point in points
    ]
    n_blank = len(heads) - len(MEASURES) - 1
    for name, words in (("most_common", "most common class"), ("without_privacy", "without privacy")):
        body.append([words, *[""] * n_blank, *(f"{result[name][measure]:.3f}" for measure in MEASURES)])
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *body]]


def _mean(score: Mapping[str, float | None]) -> str:
    error = "" if score["error"] is None else f" ± {score['error']:.3f}"
    return f"{score['value']:.3f}{error}"
