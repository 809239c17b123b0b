"""The forecast of ``shoal check`` as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.privacy.rounding import format_epsilon
from shoal.report.formatting import get_measure_name, is_lower_better
from shoal.simulation.sweep import format_value
from shoal.study.registry import PROTOCOLS
from shoal.text import escape_text, format_count, wrap_text

_BASELINES = {
    "most_common": "guessing the most common class",
    "mean_label": "guessing the mean",
    "id3": "ID3 without privacy",
    "naive_bayes": "naive Bayes without privacy",
    "without_privacy": "regression without privacy",
}
_SHARES = ("accuracy", "auc", "f1", "r_squared")
_CLEAR_EFFECT = 2.0
"""Standard errors from which on an effect is clear."""
_INDENT = " " * 10
_COLUMNS = 100


def format_forecast(forecast: Mapping[str, Any], protocol: str) -> list[str]:
    """Return the lines of a forecast."""
    who = PROTOCOLS[protocol].holders.size_noun
    if forecast["from"]["kind"] == "figures":
        what = f"{forecast['what']}; from public figures alone, which give no accuracy"
        return [
            *_format_paragraph("error", what),
            *_format_grid(forecast, who),
            *_format_target(forecast, who),
        ]
    interval = (
        f"in brackets a {100 * forecast['level']:g} % prediction interval; "
        f"{format_count(forecast['repeats'], 'run')} each"
    )
    return [
        *_format_paragraph("learns", _describe_source(forecast)),
        *_format_paragraph(
            "",
            f"expected {get_measure_name(forecast['measure'])} on unseen rows; {interval}",
        ),
        *_format_grid(forecast, who),
        *_format_study_scores(forecast, who),
        *_format_target(forecast, who),
        *_format_effects(forecast),
        *_format_list("assumes", forecast["assumes"]),
    ]


def _format_paragraph(head: str, text: str) -> list[str]:
    """Return a heading and its text, in lines that fit a terminal."""
    first, *more = wrap_text(text, _COLUMNS - len(_INDENT))
    return [f"{head:<{len(_INDENT)}}{first}", *(f"{_INDENT}{line}" for line in more)]


def _format_list(head: str, texts: Sequence[str]) -> list[str]:
    """Return several texts under one heading."""
    return [
        line for i, text in enumerate(texts) for line in _format_paragraph("" if i else head, text)
    ]


def list_assumptions(forecast: Mapping[str, Any], protocol: str) -> list[str]:
    """Return the assumptions of a forecast, as sentences."""
    sentences = []
    if forecast["from"]["kind"] == "tables":
        sentences.append(
            "Features are independent given the label, since tables of single features contain no "
            "more. Real rows may give better or worse results than any interval here."
        )
    else:
        sentences.append("Participants are like the public rows, drawn from them at random.")
    sentences.append("Everyone in the size takes part and answers, and the study declares it.")
    holders = PROTOCOLS[protocol].holders
    if holders.are_organisations:
        sentences.append(
            f"Rows are distributed to {holders.plural} at random; real {holders.plural} differ "
            "from each other."
        )
    if forecast["pessimistic_by"] is not None:
        min_rows = min(
            point["rows"] for point in [forecast["study"], *forecast["points"]] if point["repeated"]
        )
        by = forecast["pessimistic_by"][forecast["measure"]]
        moved = (
            f"by about {_format_score(forecast['measure'], by)}"
            if by
            else "by too little to be visible here"
        )
        sentences.append(
            f"Populations of {min_rows:,} rows and more are drawn with replacement from too few "
            f"public rows, which makes the forecast worse {moved}: the better end of their "
            "intervals is moved by this difference, and the expected value by half of it."
        )
    if forecast["study"]["size"] != forecast["declared"]:
        sentences.append(
            f"The declared size of {forecast['declared']:,} is not simulated: "
            f"{forecast['study']['size']:,} replace it."
        )
    return sentences


def _describe_source(forecast: Mapping[str, Any]) -> str:
    source = forecast["from"]
    if source["kind"] == "tables":
        return (
            "simulated on made-up rows that have the public tables of "
            f"{escape_text(source['file'])}; nothing private was read"
        )
    return (
        f"simulated on {format_count(source['rows'], 'public row')} of "
        f"{escape_text(source['file'])}; nothing private was read"
    )


def _format_grid(forecast: Mapping[str, Any], who: str) -> list[str]:
    """Return a table with sizes in rows and epsilons in columns."""
    points, measure = forecast["points"], forecast["measure"]
    epsilons = list(dict.fromkeys(point["epsilon"] for point in points))
    heads = [who, *(f"epsilon {format_epsilon(epsilon)}" for epsilon in epsilons)]
    body = [
        [f"{size:,}", *(_format_cell(point, measure) for point in points if point["size"] == size)]
        for size in dict.fromkeys(p["size"] for p in points)
    ]
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    total = points[0]["total"]
    scope = (
        f"epsilon: the total of one {total['unit']}, relation {total['relation']}, against "
        f"{total['adversary']}"
    )
    rows = [
        "  ".join(
            [
                row[0].rjust(widths[0]),
                *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in [heads, *body]
    ]
    return ["", *(f"{_INDENT}{row}".rstrip() for row in rows), "", *_format_paragraph("", scope)]


def _format_cell(point: Mapping[str, Any], measure: str) -> str:
    return (
        format_epsilon(point[measure], 3)
        if measure == "error"
        else _format_interval(measure, point["scores"][measure])
    )


def _format_interval(measure: str, score: Mapping[str, float]) -> str:
    return (
        f"{_format_score(measure, score['value'])} ({_format_score(measure, score['low'])} to "
        f"{_format_score(measure, score['high'])})"
    )


def _format_study_scores(forecast: Mapping[str, Any], who: str) -> list[str]:
    """Return all measures of the study unchanged, and those of the baselines."""
    study, compared = forecast["study"], forecast["yardsticks"]
    own = f"unchanged ({study['size']:,} {who}, epsilon {format_epsilon(study['epsilon'])})"
    scores = {own: {name: _format_interval(name, score) for name, score in study["scores"].items()}}
    scores |= {
        _BASELINES[name]: {measure: _format_score(measure, one) for measure, one in found.items()}
        for name, found in compared.items()
    }
    return _format_list(
        "study",
        [
            f"{name}: {', '.join(f'{get_measure_name(key)} {figure}' for key, figure in f.items())}"
            for name, f in scores.items()
        ],
    )


def _format_target(forecast: Mapping[str, Any], who: str) -> list[str]:
    target = forecast["target"]
    return (
        []
        if target is None
        else _format_paragraph(
            "to reach", f"{_describe_target(target)}: {_describe_required_size(target, who)}"
        )
    )


def _describe_target(target: Mapping[str, Any]) -> str:
    measure = target["measure"]
    return f"{get_measure_name(measure)} {format_value(target['value'])}"


def _describe_required_size(target: Mapping[str, Any], who: str) -> str:
    n, low, high, smallest, largest = (
        target[key] for key in ("n", "low", "high", "smallest", "largest")
    )
    if n is None:
        known = target["without_privacy"]
        compared = (
            ""
            if known is None
            else f"; without privacy it is {_format_score(target['measure'], known)}"
        )
        if target["is_beyond"]:
            return f"not reached at any number of {who}{compared}"
        chance = "" if low is None else ", but possible within the interval"
        return f"not expected with up to {largest:,} {who}{chance}{compared}"
    if target["measure"] == "error":
        return f"about {_format_rounded(n)} {who}"
    surely = f"more than {largest:,}" if high is None else _format_rounded(high)
    if n == smallest:
        return f"{smallest:,} {who} or fewer; at most {surely}"
    return (
        f"about {_format_rounded(n)} {who} "
        f"({f'fewer than {smallest:,}' if low == smallest else _format_rounded(low)} to {surely})"
    )


def _format_rounded(n: int) -> str:
    """Return a number of people with two significant digits."""
    digits = max(0, len(str(n)) - 2)
    return f"{round(n, -digits):,}"


def _format_effects(forecast: Mapping[str, Any]) -> list[str]:
    """Return the effect of a change of each figure, the largest first."""
    measure = forecast["measure"]
    lines = []
    for change in forecast["matters"]:
        effect, error = change["effect"], change["error"]
        better = (effect < 0) == (is_lower_better(measure))
        what = (
            "no clear effect"
            if abs(effect) < _CLEAR_EFFECT * error
            else "better"
            if better
            else "worse"
        )
        lines.append(
            f"{change['key']} {_format_number(change['before'])} -> "
            f"{_format_number(change['after'])}: {what}, {get_measure_name(measure)} "
            f"{'+' if effect >= 0 else '-'}{_format_score(measure, abs(effect))} ± "
            f"{_format_score(measure, error)}"
        )
    return _format_list("matters", lines)


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _format_score(measure: str, value: float) -> str:
    """Return a share with three decimals, as for --target, or a quantity with four digits."""
    return f"{value:.3f}" if measure in _SHARES else f"{value:.4g}"


def is_promising(forecast: Mapping[str, Any]) -> bool:
    """Return whether the worse end of the study's interval is better than guessing."""
    measure, compared = forecast["measure"], forecast["yardsticks"]
    score = forecast["study"]["scores"][measure]
    guessed: Sequence[float] = [
        compared[name][measure] for name in ("most_common", "mean_label") if name in compared
    ]
    if is_lower_better(measure):
        return all(score["high"] < guess for guess in guessed)
    return all(score["low"] > guess for guess in guessed)
