"""Text output of ``shoal simulate``: rows, warnings, model, price and the table of scores.

The command passes the object that ``--json`` prints. Lines about the model come from the view of
the study's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from shoal.cli.simulate import ddml, pfds, sdq
from shoal.cli.simulate.protocol import ProtocolView, format_percent
from shoal.privacy.rounding import format_epsilon
from shoal.report.documents import ScoreMean
from shoal.report.formatting import MEASURE_NAMES, compare_with_guessing, format_distinct
from shoal.simulation.registry import SIMULATED
from shoal.simulation.sweep import format_settings, format_value
from shoal.study.registry import PROTOCOLS
from shoal.text import escape_text, format_count

VIEWS: Mapping[str, ProtocolView] = {view.name: view for view in (ddml.VIEW, sdq.VIEW, pfds.VIEW)}
"""Name in the study file -> its view; AnonML has none."""


def format_tree_lines(point: Mapping[str, Any]) -> list[str]:
    """Return the tree of a point under a line that explains it; empty without a tree."""
    lines = point.get("tree", "").splitlines()
    return (
        [
            "tree      of the first run, upper levels; --out writes the whole tree",
            *(f"  {line}" for line in lines),
            "",
        ]
        if lines
        else []
    )


_FAR_FACTOR = 2
"""From this factor on, a declared size is far from the number of rows."""
_MAX_NAMED = 4
"""Most points of a sweep that a warning names."""
_BASELINES = {
    "most_common": "most common class",
    "mean_label": "mean of the label",
    "id3": "ID3 without privacy",
    "naive_bayes": "naive Bayes without privacy",
    "without_privacy": "without privacy",
}
_SHARES = ("accuracy", "auc", "f1", "r_squared")


def format_runs(result: Mapping[str, Any]) -> str:
    """Return the result as text for people."""
    points, view = result["points"], VIEWS.get(result["protocol"])
    lines = [
        f"study     {result['title']}   digest {result['short']}",
        f"note      {result['remark']}",
        f"rows      {_describe_rows(result)}",
        *(
            f"WARNING   {warning}"
            for warning in [*_list_warnings(result), *_warn_about_guessing(result)]
        ),
        *([] if view is None else view.format_model_lines(result)),
        f"price     {_describe_price(points)}",
        *([f"answers   {_describe_answers(points[0])}"] if len(points) == 1 else []),
        "",
        *_format_table(result),
        "",
        *(format_tree_lines(points[0]) if len(points) == 1 else []),
        f"measures  {_describe_measures(result)}",
        f"seconds   {result['seconds']:.1f} for "
        f"{format_count(len(points) * result['repeats'], 'run')}"
        + (
            "; ± is the standard error over runs, on the same rows for testing"
            if result["repeats"] > 1
            else ""
        ),
    ]
    return "\n".join(lines)


def _describe_rows(result: Mapping[str, Any]) -> str:
    points = result["points"]
    people, declared = (
        _format_span([point[key] for point in points]) for key in ("people", "declared")
    )
    first = " in the first run" if result["dropout"] else ""
    who = PROTOCOLS[result["protocol"]].holders.plural
    counted_rows = (
        f" with {_format_span([point['n_rows'] for point in points])} rows"
        if "n_rows" in points[0]
        else ""
    )
    aside = f"{result['rows']['unseen']:,} rows were set aside for testing"
    return f"{people} {who}{counted_rows} took part{first}, {aside}; declared size {declared}"


def _format_span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _list_warnings(result: Mapping[str, Any]) -> list[str]:
    """Return the reasons for which a simulation may differ from the real study."""
    points, warnings = result["points"], []
    name = result["protocol"]
    holders, sized = PROTOCOLS[name].holders, SIMULATED[name].sized_settings
    size = "n_rows" if holders.are_organisations else "people"
    far = [
        point
        for point in points
        if not point[size] / _FAR_FACTOR <= point["declared"] <= point[size] * _FAR_FACTOR
    ]
    if far:
        people = far[0][size]
        fewer = f" --sweep n_instances={people}" if far[0].get("n_instances", 0) > people else ""
        warnings.append(
            f"{_name_points(far, points, 'declare')} "
            f"{_format_span([point['declared'] for point in far])} {holders.size_noun}, and "
            f"{people:,} took part: {sized} chosen for the declared size. Try --sweep "
            f"size={people}{fewer}"
        )
    few = [point for point in points if point["people"] < point["minimum"]]
    if few:
        minimum = max(point["minimum"] for point in few)
        view = VIEWS.get(name)
        none = "; nothing is released" if view is not None and view.write_releases else ""
        warnings.append(
            f"{_name_points(few, points, 'learn')} nothing from fewer than "
            f"{format_count(minimum, 'participant')}{none}; "
            "the scores are those of a study without a minimum."
        )
    return warnings


def _name_points(
    some: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], verb: str
) -> str:
    """Return the subject of a warning, with its verb: the study, or some points of a sweep."""
    if len(points) == 1 or len(some) == len(points):
        return f"The study {verb}s"
    return f"{len(some)} of {len(points)} points {verb}{'s' if len(some) == 1 else ''}"


def _warn_about_guessing(result: Mapping[str, Any]) -> list[str]:
    """Return warnings about models that are not shown to be better than guessing.

    A model of classes may still rank people well.
    """
    is_class = "most_common" in result
    measure, name = ("accuracy", "most_common") if is_class else ("rmse", "mean_label")
    guessing, n_runs, points = result[name][measure], result["repeats"], result["points"]
    verdicts = [
        compare_with_guessing(measure, ScoreMean(**point["scores"][measure]), n_runs, guessing)
        for point in points
    ]
    worse, unsure = (
        [point for point, outcome in zip(points, verdicts, strict=True) if outcome == verdict]
        for verdict in ("worse", "unsure")
    )
    what = "guessing the most common class" if is_class else "that of the label's mean"
    warnings = []
    if worse:
        evidence = (
            f"{what}, {_describe_points(measure, guessing, worse)}, with all of the 95 % "
            f"interval over {format_count(n_runs, 'run')}"
        )
        warnings.append(
            f"Accuracy is below {evidence}: decide by rank if the AUC is well above 0.5; otherwise "
            "do not use the model."
            if is_class
            else f"RMSE is above {evidence}: nothing was learned."
        )
    if unsure:
        evidence = (
            f"{what}, {_describe_points(measure, guessing, unsure)}, by the evidence of "
            f"{format_count(n_runs, 'run')}"
        )
        is_below = (
            any(point["scores"][measure]["value"] <= guessing for point in unsure) and is_class
        )
        advice = (
            "decide by rank if the AUC is well above 0.5; otherwise do not use the model"
            if is_below
            else "more --repeats may show a difference"
        )
        name = "Accuracy" if is_class else "RMSE"
        warnings.append(f"{name} is no better than {evidence}: {advice}.")
    return warnings


def _describe_points(measure: str, guessing: float, points: Sequence[Mapping[str, Any]]) -> str:
    """Return the score of guessing and of each point, with enough digits to differ."""
    named = points[:_MAX_NAMED]
    first, *values = format_distinct(
        [guessing, *(point["scores"][measure]["value"] for point in named)],
        lambda value, n_more: _format_score(measure, value, n_more),
    )
    each = [
        (f"{format_settings(point['settings'])}: " if point["settings"] else "")
        + value
        + (
            f", with an AUC of {point['scores']['auc']['value']:.3f}"
            if measure == "accuracy"
            else ""
        )
        for point, value in zip(named, values, strict=True)
    ]
    more = (
        f"; and {format_count(len(points) - _MAX_NAMED, 'other point')}"
        if len(points) > _MAX_NAMED
        else ""
    )
    return f"{first} ({'; '.join(each)}{more})"


def _describe_measures(result: Mapping[str, Any]) -> str:
    f1_of = result["f1_of"]
    units = (
        "RMSE and the mean absolute error are in the units of the label"
        if "mean_label" in result
        else _describe_class_measures(f1_of)
    )
    return units + (
        "; the baselines use all rows, including those of participants that dropped out"
        if result["dropout"]
        else ""
    )


def _describe_class_measures(f1_of: str | None) -> str:
    return (
        "AUC and f1 are means over the classes, each against the rest"
        if f1_of is None
        else f"f1 is that of class {escape_text(f1_of)}"
    )


def _describe_price(points: Sequence[Mapping[str, Any]]) -> str:
    total, paper = points[0]["total"], points[0]["paper_epsilon"]
    if total is None:
        return "none: without perturbation nothing is protected, and no real study can run"
    scope = f"unit {total['unit']}, relation {total['relation']}, against {total['adversary']}"
    if len(points) > 1:
        central = ", and central epsilon" if points[0]["central"] else ""
        whole = (
            "; the ledger charges more, for everything that a device sends"
            if _has_other_unit(points)
            else ""
        )
        if "mechanism" in points[0]:
            return f"epsilon as below ({scope}){whole}"
        return (
            f"epsilon by {_describe_composition(points)}"
            f"{'' if paper is None else ', and by equation 6'}{central}, as below ({scope})"
        )
    by_paper = (
        ""
        if paper is None
        else f"; by equation 6, which takes features for independent, {format_epsilon(paper)}"
    )
    central, charged = points[0]["central"], points[0]["charged"]
    whole = (
        f"; the ledger charges epsilon {format_epsilon(charged['epsilon'])} for everything that a "
        "device sends"
        if _has_other_unit(points)
        else ""
    )
    shuffled = (
        f"; central: epsilon {format_epsilon(central['epsilon'])}, delta "
        f"{format_epsilon(central['delta'])}"
        if central
        else ""
    )
    delta = f", delta {format_epsilon(total['delta'])}" if total["delta"] else ""
    return (
        f"epsilon {format_epsilon(total['epsilon'])}{delta} by {total['how']} "
        f"({scope}){whole}{by_paper}{shuffled}"
    )


def _describe_composition(points: Sequence[Mapping[str, Any]]) -> str:
    """Return how the releases are composed; points with and without a delta may differ."""
    return " or ".join(
        dict.fromkeys(point["total"]["how"].partition(" of ")[0] for point in points)
    )


def _has_other_unit(points: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the ledger charges for another unit: the whole update, not each weight."""
    return bool(points[0]["charged"]["unit"] != points[0]["total"]["unit"])


def _describe_answers(point: Mapping[str, Any]) -> str:
    """Return the number of answers of each phase, of learned sums, or of shared values."""
    if point.get("trust") == "local":
        what = (
            "synthetic row"
            if point["variant"] == "paper"
            else "figure"
            if point["noise"] is None
            else "noisy figure"
        )
        return (
            f"{format_count(sum(point['answers']), what)} shared by "
            f"{format_count(len(point['answers']), 'holder')} (first run)"
        )
    if "phases" not in point:
        figure = "figure" if point["noise"] is None else "noisy figure"
        return (
            f"{format_count(sum(point['answers']), figure)} learned in "
            f"{format_count(len(point['answers']), 'round')} (first run)"
        )
    parts = []
    for name, group in groupby(
        zip(point["phases"], point["answers"], strict=True), key=lambda pair: pair[0]
    ):
        counts = [n for _, n in group]
        parts.append(
            f"{name} {sum(counts):,}" + (f" in {len(counts)} phases" if len(counts) > 1 else "")
        )
    return ", ".join(parts) + " (first run)"


def _format_table(result: Mapping[str, Any]) -> list[str]:
    points = result["points"]
    keys = list(points[0]["settings"])
    prices = [_format_price_cells(point, points) for point in points] if len(points) > 1 else [{}]
    measures = list(points[0]["scores"])
    homes = (
        [_format_personal_cells(point, measures[0]) for point in points]
        if len(points) > 1
        else [{}]
    )
    heads = [
        *(keys or [""]),
        *prices[0],
        *(MEASURE_NAMES[measure] for measure in measures),
        *homes[0],
    ]
    body = [
        [
            *([format_value(point["settings"][key]) for key in keys] or ["this study"]),
            *price.values(),
            *(_format_mean(measure, point["scores"][measure]) for measure in measures),
            *home.values(),
        ]
        for point, price, home in zip(points, prices, homes, strict=True)
    ]
    body += _format_personal_rows(points[0], measures) if len(points) == 1 else []
    n_blank, n_after = len(heads) - len(measures) - len(homes[0]) - 1, len(homes[0])
    for name in [name for name in _BASELINES if name in result]:
        # Next to another learner without privacy, the name must say which one this is.
        is_ambiguous = "id3" in result or "naive_bayes" in result
        by = "logistic regression " if name == "without_privacy" and is_ambiguous else ""
        figures = [_format_score(measure, result[name][measure]) for measure in measures]
        body.append([by + _BASELINES[name], *[""] * n_blank, *figures, *[""] * n_after])
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *body]
    ]


def _format_personal_rows(point: Mapping[str, Any], measures: Sequence[str]) -> list[list[str]]:
    """Return the table rows of personal models, with the release and without."""
    if "at_home" not in point:
        return []
    scores = point["at_home"]
    who = f"mean of {format_count(scores['n_holders'], 'holder')}"
    names = {f"personal models, {who}": "home", f"own rows alone, {who}": "own"}
    return [
        [name, *(_format_mean(measure, scores[key][measure]) for measure in measures)]
        for name, key in names.items()
    ]


def _format_personal_cells(point: Mapping[str, Any], measure: str) -> dict[str, str]:
    """Return the cells of personal models for a point of a sweep: column -> text."""
    if "at_home" not in point:
        return {}
    scores = point["at_home"]
    personal, own = (_format_mean(measure, scores[key][measure]) for key in ("home", "own"))
    return {
        f"personal {MEASURE_NAMES[measure]}": personal,
        "own rows alone": own,
        "gain": format_percent(scores["gain"]["value"]),
    }


def _format_price_cells(
    point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the cells with the cost of a point of a sweep: column -> text."""
    total, paper, central = point["total"], point["paper_epsilon"], point["central"]
    if "mechanism" in point:
        whole = (
            {"everything": format_epsilon(point["charged"]["epsilon"])} if total is not None else {}
        )
        alone = (
            {"each weight": format_epsilon(total["epsilon"])}
            if whole and _has_other_unit([point])
            else {}
        )
        return {**alone, **whole, "noise": point["mechanism"] or "none"}
    return {
        **(
            {}
            if total is None
            else {_describe_composition(points): format_epsilon(total["epsilon"])}
        ),
        **({} if paper is None else {"equation 6": format_epsilon(paper)}),
        **(
            {}
            if central is None
            else {
                "central epsilon": format_epsilon(central["epsilon"]),
                "central delta": format_epsilon(central["delta"]),
            }
        ),
    }


def _format_mean(measure: str, score: Mapping[str, float]) -> str:
    error = "" if score["error"] is None else f" ± {_format_score(measure, score['error'])}"
    return _format_score(measure, score["value"]) + error


def _format_score(measure: str, value: float, n_more: int = 0) -> str:
    """Return a share with three decimals, or a number with four significant digits.

    `n_more` adds digits.
    """
    return f"{value:.{3 + n_more}f}" if measure in _SHARES else f"{value:.{4 + n_more}g}"
