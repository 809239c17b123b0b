"""How ``shoal simulate`` shows what came of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from shoal.names import counted, shown
from shoal.privacy.rounding import show
from shoal.sim.scores import MEASURES
from shoal.sim.sweep import plain, settings_name

_FAR = 2
"""From this factor on, a declared size is far from the number of rows."""
_NAMED = 4
"""So many points of a sweep are named in a warning."""
_HEADS = {"accuracy": "accuracy", "auc": "AUC", "f1": "f1"}


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for people."""
    points = result["points"]
    lines = [
        f"study     {result['title']}   digest {result['short']}",
        f"note      {result['remark']}",
        f"rows      {_rows(result)}",
        *(f"WARNING   {warning}" for warning in [*_warnings(points), *_below_guessing(result)]),
        f"price     {_price(points)}",
        *([f"answers   {_answers(points[0])}"] if len(points) == 1 else []),
        "",
        *_table(result),
        "",
        f"measures  {_measures(result)}",
        f"seconds   {result['seconds']:.1f} for {counted(len(points) * result['repeats'], 'run')}"
        + ("; ± is the standard error over runs, on the same rows for testing" if result["repeats"] > 1 else ""),
    ]
    return "\n".join(lines)


def _rows(result: Mapping[str, Any]) -> str:
    points = result["points"]
    people, declared = (_span([point[key] for point in points]) for key in ("people", "declared"))
    first = " in the first run" if result["dropout"] else ""
    return f"{people} people took part{first}, {result['rows']['unseen']:,} rows were set aside for testing; declared size {declared}"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _warnings(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes a simulation tell little about the study that it stands for."""
    found = []
    far = [point for point in points if not point["people"] / _FAR <= point["declared"] <= point["people"] * _FAR]
    if far:
        people = far[0]["people"]
        found.append(
            f"{_who(far, points, 'declare')} {_span([point['declared'] for point in far])} people, and {people:,} took part: "
            f"questions and bins are chosen for the declared size. Try --sweep size={people}"
        )
    few = [point for point in points if point["people"] < point["minimum"]]
    if few:
        minimum = max(point["minimum"] for point in few)
        found.append(
            f"{_who(few, points, 'learn')} nothing from fewer than {counted(minimum, 'participant')}; this is what it would have learned."
        )
    return found


def _who(some: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], verb: str) -> str:
    """The subject of a warning, with its verb: the study, or as many points of a sweep."""
    if len(points) == 1 or len(some) == len(points):
        return f"The study {verb}s"
    return f"{len(some)} of {len(points)} points {verb}{'s' if len(some) == 1 else ''}"


def _below_guessing(result: Mapping[str, Any]) -> list[str]:
    """Where a model decides worse than whoever looks at no row, though it may well rank people."""
    guessing = result["most_common"]["accuracy"]
    reached = [point["scores"]["accuracy"]["value"] + (point["scores"]["accuracy"]["error"] or 0.0) for point in result["points"]]
    below = [point for point, most in zip(result["points"], reached, strict=True) if most < guessing]
    if not below:
        return []
    each = [
        (f"{settings_name(point['settings'])}: " if point["settings"] else "")
        + f"{point['scores']['accuracy']['value']:.3f}, with an AUC of {point['scores']['auc']['value']:.3f}"
        for point in below[:_NAMED]
    ]
    more = f"; and {counted(len(below) - _NAMED, 'other point')}" if len(below) > _NAMED else ""
    by = " by more than its standard error" if result["repeats"] > 1 else ""
    return [
        f"Accuracy is below guessing the most common class, {guessing:.3f},{by} ({'; '.join(each)}{more}): "
        "decide by rank, if the AUC is well above 0.5, or not at all."
    ]


def _measures(result: Mapping[str, Any]) -> str:
    f1_of = result["f1_of"]
    told = "AUC and f1 are means over the classes, each against the rest" if f1_of is None else f"f1 is that of class {shown(f1_of)}"
    return told + ("; the yardsticks use everyone, also those who dropped out" if result["dropout"] else "")


def _price(points: Sequence[Mapping[str, Any]]) -> str:
    total, paper = points[0]["total"], points[0]["paper_epsilon"]
    if total is None:
        return "none: without perturbation nothing is protected, and no participant can agree to it"
    scope = f"unit {total['unit']}, relation {total['relation']}, against {total['adversary']}"
    if len(points) > 1:
        crowd = ", and in the crowd" if points[0]["central"] else ""
        return f"epsilon by plain sum{'' if paper is None else ', and by equation 6'}{crowd}, as below ({scope})"
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
    prices = [_price_cells(point) for point in points] if len(points) > 1 else [{}]
    heads = [*(keys or [""]), *prices[0], *(_HEADS[measure] for measure in MEASURES)]
    body = [
        [
            *([plain(point["settings"][key]) for key in keys] or ["this study"]),
            *price.values(),
            *(_mean(point["scores"][measure]) for measure in MEASURES),
        ]
        for point, price in zip(points, prices, strict=True)
    ]
    n_blank = len(heads) - len(MEASURES) - 1
    for name, words in (("most_common", "most common class"), ("without_privacy", "without privacy")):
        body.append([words, *[""] * n_blank, *(f"{result[name][measure]:.3f}" for measure in MEASURES)])
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *body]]


def _price_cells(point: Mapping[str, Any]) -> dict[str, str]:
    """What a point of a sweep costs, by the heads of its columns."""
    total, paper, central = point["total"], point["paper_epsilon"], point["central"]
    return {
        **({} if total is None else {"plain sum": show(total["epsilon"])}),
        **({} if paper is None else {"equation 6": show(paper)}),
        **({} if central is None else {"crowd epsilon": show(central["epsilon"]), "crowd delta": show(central["delta"])}),
    }


def _mean(score: Mapping[str, float | None]) -> str:
    error = "" if score["error"] is None else f" ± {score['error']:.3f}"
    return f"{score['value']:.3f}{error}"
