"""How ``shoal simulate`` shows what came of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from shoal.cli.simulate_models import model_lines, per_cent, tree_lines
from shoal.names import counted, shown
from shoal.privacy.rounding import show
from shoal.report.details import Mean
from shoal.report.figures import NAMES
from shoal.report.sections.verdicts import beside_guessing, told_apart
from shoal.sim.sweep import plain, settings_name

_FAR = 2
"""From this factor on, a declared size is far from the number of rows."""
_NAMED = 4
"""So many points of a sweep are named in a warning."""
_YARDSTICKS = {
    "most_common": "most common class",
    "mean_label": "mean of the label",
    "id3": "ID3 without privacy",
    "naive_bayes": "naive Bayes without privacy",
    "without_privacy": "without privacy",
}
_SHARES = ("accuracy", "auc", "f1", "r_squared")
_WHO = {"anonml": "people", "ddml": "devices", "sdq": "databases", "pfds": "holders"}
_CHOSEN = {
    "anonml": "questions and bins are",
    "ddml": "learning rate and clip, unless given, are",
    "sdq": "how much is asked, and of how many cells, is",
    "pfds": "what is asked of each holder is",
}


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for people."""
    points = result["points"]
    lines = [
        f"study     {result['title']}   digest {result['short']}",
        f"note      {result['remark']}",
        f"rows      {_rows(result)}",
        *(f"WARNING   {warning}" for warning in [*_warnings(result), *_below_guessing(result)]),
        *model_lines(result),
        f"price     {_price(points)}",
        *([f"answers   {_answers(points[0])}"] if len(points) == 1 else []),
        "",
        *_table(result),
        "",
        *(tree_lines(points[0]) if len(points) == 1 else []),
        f"measures  {_measures(result)}",
        f"seconds   {result['seconds']:.1f} for {counted(len(points) * result['repeats'], 'run')}"
        + ("; ± is the standard error over runs, on the same rows for testing" if result["repeats"] > 1 else ""),
    ]
    return "\n".join(lines)


def _rows(result: Mapping[str, Any]) -> str:
    points = result["points"]
    people, declared = (_span([point[key] for point in points]) for key in ("people", "declared"))
    first = " in the first run" if result["dropout"] else ""
    who = _WHO[result["protocol"]]
    counted_rows = f" with {_span([point['n_rows'] for point in points])} rows" if "n_rows" in points[0] else ""
    aside = f"{result['rows']['unseen']:,} rows were set aside for testing"
    return f"{people} {who}{counted_rows} took part{first}, {aside}; declared size {declared}"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _warnings(result: Mapping[str, Any]) -> list[str]:
    """What makes a simulation tell little about the study that it stands for."""
    points, found = result["points"], []
    who, chosen = _WHO[result["protocol"]], _CHOSEN[result["protocol"]]
    size = "people"
    if result["protocol"] in ("sdq", "pfds"):
        # There a size counts rows, and too few who answer learn nothing at all.
        who, size = "rows", "n_rows"
    far = [point for point in points if not point[size] / _FAR <= point["declared"] <= point[size] * _FAR]
    if far:
        people = far[0][size]
        fewer = f" --sweep n_instances={people}" if far[0].get("n_instances", 0) > people else ""
        found.append(
            f"{_who(far, points, 'declare')} {_span([point['declared'] for point in far])} {who}, and {people:,} took part: "
            f"{chosen} chosen for the declared size. Try --sweep size={people}{fewer}"
        )
    few = [point for point in points if point["people"] < point["minimum"]]
    if few:
        minimum = max(point["minimum"] for point in few)
        none = "; nothing is released" if result["protocol"] == "pfds" else ""
        found.append(
            f"{_who(few, points, 'learn')} nothing from fewer than {counted(minimum, 'participant')}{none}; "
            "this is what it would have learned."
        )
    return found


def _who(some: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], verb: str) -> str:
    """The subject of a warning, with its verb: the study, or as many points of a sweep."""
    if len(points) == 1 or len(some) == len(points):
        return f"The study {verb}s"
    return f"{len(some)} of {len(points)} points {verb}{'s' if len(some) == 1 else ''}"


def _below_guessing(result: Mapping[str, Any]) -> list[str]:
    """Where a model is not shown to do better than whoever looks at no row; one of classes may well rank people."""
    is_class = "most_common" in result
    measure, name = ("accuracy", "most_common") if is_class else ("rmse", "mean_label")
    guessing, n_runs, points = result[name][measure], result["repeats"], result["points"]
    verdicts = [beside_guessing(measure, Mean(**point["scores"][measure]), n_runs, guessing) for point in points]
    worse, unsure = ([point for point, one in zip(points, verdicts, strict=True) if one == verdict] for verdict in ("worse", "unsure"))
    what = "guessing the most common class" if is_class else "that of the label's mean"
    found = []
    if worse:
        told = f"{what}, {_beside(measure, guessing, worse)}, with all of the 95 % interval over {counted(n_runs, 'run')}"
        found.append(
            f"Accuracy is below {told}: decide by rank, if the AUC is well above 0.5, or not at all."
            if is_class
            else f"RMSE is above {told}: nothing was learned."
        )
    if unsure:
        told = f"{what}, {_beside(measure, guessing, unsure)}, as far as {counted(n_runs, 'run')} can show"
        is_below = any(point["scores"][measure]["value"] <= guessing for point in unsure) and is_class
        advice = "decide by rank, if the AUC is well above 0.5, or not at all" if is_below else "more --repeats might show more"
        found.append(f"{'Accuracy' if is_class else 'RMSE'} is no better than {told}: {advice}.")
    return found


def _beside(measure: str, guessing: float, points: Sequence[Mapping[str, Any]]) -> str:
    """What guessing reaches, and what each point does, in digits that tell them apart."""
    named = points[:_NAMED]
    first, *values = told_apart(
        [guessing, *(point["scores"][measure]["value"] for point in named)], lambda value, n_more: _figure(measure, value, n_more)
    )
    each = [
        (f"{settings_name(point['settings'])}: " if point["settings"] else "")
        + value
        + (f", with an AUC of {point['scores']['auc']['value']:.3f}" if measure == "accuracy" else "")
        for point, value in zip(named, values, strict=True)
    ]
    more = f"; and {counted(len(points) - _NAMED, 'other point')}" if len(points) > _NAMED else ""
    return f"{first} ({'; '.join(each)}{more})"


def _measures(result: Mapping[str, Any]) -> str:
    f1_of = result["f1_of"]
    told = "RMSE and the mean absolute error are in the label's own units" if "mean_label" in result else _told_of_classes(f1_of)
    return told + ("; the yardsticks use everyone, also those who dropped out" if result["dropout"] else "")


def _told_of_classes(f1_of: str | None) -> str:
    return "AUC and f1 are means over the classes, each against the rest" if f1_of is None else f"f1 is that of class {shown(f1_of)}"


def _price(points: Sequence[Mapping[str, Any]]) -> str:
    total, paper = points[0]["total"], points[0]["paper_epsilon"]
    if total is None:
        return "none: without perturbation nothing is protected, and no participant can agree to it"
    scope = f"unit {total['unit']}, relation {total['relation']}, against {total['adversary']}"
    if len(points) > 1:
        crowd = ", and in the crowd" if points[0]["central"] else ""
        whole = "; everything that a device sends, which its ledger counts, costs more" if _is_whole(points) else ""
        if "mechanism" in points[0]:
            return f"epsilon as below ({scope}){whole}"
        return f"epsilon by {_kinds_of_sum(points)}{'' if paper is None else ', and by equation 6'}{crowd}, as below ({scope})"
    by_paper = "" if paper is None else f"; by equation 6, which takes features for independent, {show(paper)}"
    central, charged = points[0]["central"], points[0]["charged"]
    whole = f"; everything that a device sends: epsilon {show(charged['epsilon'])}, which its ledger counts" if _is_whole(points) else ""
    crowd = f"; in the crowd epsilon {show(central['epsilon'])}, delta {show(central['delta'])}" if central else ""
    delta = f", delta {show(total['delta'])}" if total["delta"] else ""
    return f"epsilon {show(total['epsilon'])}{delta} by {total['how']} ({scope}){whole}{by_paper}{crowd}"


def _kinds_of_sum(points: Sequence[Mapping[str, Any]]) -> str:
    """How the releases add up: plainly, or in a sum of another kind that a delta allows; some points may have one and some none."""
    return " or ".join(dict.fromkeys(point["total"]["how"].partition(" of ")[0] for point in points))


def _is_whole(points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the ledger counts another unit than the study claims: the whole update rather than each weight."""
    return bool(points[0]["charged"]["unit"] != points[0]["total"]["unit"])


def _answers(point: Mapping[str, Any]) -> str:
    """How many answers each kind of phase had; of sums how many were learned, and in how many rounds; of shared data how much it is."""
    if point.get("trust") == "local":
        what = "made-up row" if point["variant"] == "paper" else "figure" if point["noise"] is None else "noisy figure"
        return f"{counted(sum(point['answers']), what)} shared by {counted(len(point['answers']), 'holder')} (first run)"
    if "phases" not in point:
        figure = "figure" if point["noise"] is None else "noisy figure"
        return f"{counted(sum(point['answers']), figure)} learned in {counted(len(point['answers']), 'round')} (first run)"
    parts = []
    for name, group in groupby(zip(point["phases"], point["answers"], strict=True), key=lambda pair: pair[0]):
        counts = [n for _, n in group]
        parts.append(f"{name} {sum(counts):,}" + (f" in {len(counts)} phases" if len(counts) > 1 else ""))
    return ", ".join(parts) + " (first run)"


def _table(result: Mapping[str, Any]) -> list[str]:
    points = result["points"]
    keys = list(points[0]["settings"])
    prices = [_price_cells(point, points) for point in points] if len(points) > 1 else [{}]
    measures = list(points[0]["scores"])
    homes = [_home_cells(point, measures[0]) for point in points] if len(points) > 1 else [{}]
    heads = [*(keys or [""]), *prices[0], *(NAMES[measure] for measure in measures), *homes[0]]
    body = [
        [
            *([plain(point["settings"][key]) for key in keys] or ["this study"]),
            *price.values(),
            *(_mean(measure, point["scores"][measure]) for measure in measures),
            *home.values(),
        ]
        for point, price, home in zip(points, prices, homes, strict=True)
    ]
    body += _home_rows(points[0], measures) if len(points) == 1 else []
    n_blank, n_after = len(heads) - len(measures) - len(homes[0]) - 1, len(homes[0])
    for name in [name for name in _YARDSTICKS if name in result]:
        # Beside another learner without privacy it has to be said which one this is.
        by = "logistic regression " if name == "without_privacy" and result["protocol"] == "sdq" else ""
        figures = [_figure(measure, result[name][measure]) for measure in measures]
        body.append([by + _YARDSTICKS[name], *[""] * n_blank, *figures, *[""] * n_after])
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *body]]


def _home_rows(point: Mapping[str, Any], measures: Sequence[str]) -> list[list[str]]:
    """What holders have at home, with the release and without."""
    if "at_home" not in point:
        return []
    told = point["at_home"]
    who = f"mean of {counted(told['n_holders'], 'holder')}"
    names = {f"home models, {who}": "home", f"own rows alone, {who}": "own"}
    return [[name, *(_mean(measure, told[key][measure]) for measure in measures)] for name, key in names.items()]


def _home_cells(point: Mapping[str, Any], measure: str) -> dict[str, str]:
    """The same of a point of a sweep, by the heads of its columns."""
    if "at_home" not in point:
        return {}
    told = point["at_home"]
    home, own = (_mean(measure, told[key][measure]) for key in ("home", "own"))
    return {f"{NAMES[measure]} at home": home, "by own rows alone": own, "gain": per_cent(told["gain"]["value"])}


def _price_cells(point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a point of a sweep costs, by the heads of its columns."""
    total, paper, central = point["total"], point["paper_epsilon"], point["central"]
    if "mechanism" in point:
        whole = {"everything": show(point["charged"]["epsilon"])} if total is not None else {}
        alone = {"each weight": show(total["epsilon"])} if whole and _is_whole([point]) else {}
        return {**alone, **whole, "noise": point["mechanism"] or "none"}
    return {
        **({} if total is None else {_kinds_of_sum(points): show(total["epsilon"])}),
        **({} if paper is None else {"equation 6": show(paper)}),
        **({} if central is None else {"crowd epsilon": show(central["epsilon"]), "crowd delta": show(central["delta"])}),
    }


def _mean(measure: str, score: Mapping[str, float]) -> str:
    error = "" if score["error"] is None else f" ± {_figure(measure, score['error'])}"
    return _figure(measure, score["value"]) + error


def _figure(measure: str, value: float, n_more: int = 0) -> str:
    """Three digits after the point for a share; four that count for what is in the label's own units; more where that is asked for."""
    return f"{value:.{3 + n_more}f}" if measure in _SHARES else f"{value:.{4 + n_more}g}"
