"""How ``shoal check`` shows what a study may be expected to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.names import counted, shown
from shoal.privacy.rounding import show
from shoal.report.figures import is_falling, name_of
from shoal.sim.sweep import plain
from shoal.study.typeset import wrap

_WHO = {"anonml": "people", "ddml": "devices", "sdq": "rows", "pfds": "rows"}
_YARDSTICKS = {
    "most_common": "guessing the most common class",
    "mean_label": "guessing the mean",
    "id3": "ID3 without privacy",
    "naive_bayes": "naive Bayes without privacy",
    "without_privacy": "regression without privacy",
}
_SHARES = ("accuracy", "auc", "f1", "r_squared")
_CLEAR = 2.0
"""Standard errors from which on a change has an effect."""
_INDENT = " " * 10
_COLUMNS = 100


def forecast_lines(told: Mapping[str, Any], protocol: str) -> list[str]:
    """A forecast in lines for people."""
    who = _WHO[protocol]
    if told["from"]["kind"] == "figures":
        what = f"{told['what']}; from public figures alone: no accuracy can be said"
        return [*_lines("error", what), *_grid(told, who), *_target(told, who)]
    interval = f"in brackets a {100 * told['level']:g} % prediction interval; {counted(told['repeats'], 'run')} each"
    return [
        *_lines("learns", _made_from(told)),
        *_lines("", f"{name_of(told['measure'])} on rows that it has not seen, expected, and {interval}"),
        *_grid(told, who),
        *_study(told, who),
        *_target(told, who),
        *_matters(told),
        *_listed("assumes", told["assumes"]),
    ]


def _lines(head: str, text: str) -> list[str]:
    """A text beside its head, in lines that fit a terminal."""
    first, *more = wrap(text, _COLUMNS - len(_INDENT))
    return [f"{head:<{len(_INDENT)}}{first}", *(f"{_INDENT}{line}" for line in more)]


def _listed(head: str, texts: Sequence[str]) -> list[str]:
    """Several texts under one head."""
    return [line for i, text in enumerate(texts) for line in _lines("" if i else head, text)]


def assumptions(told: Mapping[str, Any], protocol: str) -> list[str]:
    """What a forecast rests on, in sentences."""
    sentences = []
    if told["from"]["kind"] == "tables":
        sentences.append(
            "Features are taken as independent given the label, since tables of single features say no more: what real rows give may be "
            "better or worse than any interval here."
        )
    else:
        sentences.append("Those who take part are like the public rows, drawn from them at random.")
    sentences.append("All whom the size counts take part and answer; each size is what the study then declares.")
    if protocol in ("sdq", "pfds"):
        sentences.append("Rows are dealt to databases and holders at random; real ones differ from each other.")
    if told["pessimistic_by"] is not None:
        least = min(point["rows"] for point in [told["study"], *told["points"]] if point["repeated"])
        by = told["pessimistic_by"][told["measure"]]
        moved = f"by about {_figure(told['measure'], by)}" if by else "by too little to be seen here"
        sentences.append(
            f"Populations of {least:,} rows and more are drawn with replacement from too few public ones, and so forecast too bad, "
            f"{moved}: the better end of their intervals is moved by that much, and what is expected by half of it."
        )
    if told["study"]["size"] != told["declared"]:
        sentences.append(f"The declared size of {told['declared']:,} is not simulated: {told['study']['size']:,} stand for it.")
    return sentences


def _made_from(told: Mapping[str, Any]) -> str:
    source = told["from"]
    if source["kind"] == "tables":
        return f"simulated on made-up rows that have the public tables of {shown(source['file'])}; nothing private was read"
    return f"simulated on {counted(source['rows'], 'public row')} of {shown(source['file'])}; nothing private was read"


def _grid(told: Mapping[str, Any], who: str) -> list[str]:
    """Sizes down, epsilons across."""
    points, measure = told["points"], told["measure"]
    epsilons = list(dict.fromkeys(point["epsilon"] for point in points))
    heads = [who, *(f"epsilon {show(epsilon)}" for epsilon in epsilons)]
    body = [
        [f"{size:,}", *(_cell(point, measure) for point in points if point["size"] == size)]
        for size in dict.fromkeys(p["size"] for p in points)
    ]
    widths = [max(len(row[i]) for row in [heads, *body]) for i in range(len(heads))]
    total = points[0]["total"]
    scope = f"epsilon: all of it, of one {total['unit']}, relation {total['relation']}, against {total['adversary']}"
    rows = [
        "  ".join([row[0].rjust(widths[0]), *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in [heads, *body]
    ]
    return ["", *(f"{_INDENT}{row}".rstrip() for row in rows), "", *_lines("", scope)]


def _cell(point: Mapping[str, Any], measure: str) -> str:
    return show(point[measure], 3) if measure == "error" else _interval(measure, point["scores"][measure])


def _interval(measure: str, score: Mapping[str, float]) -> str:
    return f"{_figure(measure, score['value'])} ({_figure(measure, score['low'])} to {_figure(measure, score['high'])})"


def _study(told: Mapping[str, Any], who: str) -> list[str]:
    """All measures of the study as it is, and what they are held against."""
    study, compared = told["study"], told["yardsticks"]
    own = f"as it is ({study['size']:,} {who}, epsilon {show(study['epsilon'])})"
    scores = {own: {name: _interval(name, score) for name, score in study["scores"].items()}}
    scores |= {_YARDSTICKS[name]: {measure: _figure(measure, one) for measure, one in found.items()} for name, found in compared.items()}
    return _listed(
        "study", [f"{whose}: {', '.join(f'{name_of(name)} {figure}' for name, figure in f.items())}" for whose, f in scores.items()]
    )


def _target(told: Mapping[str, Any], who: str) -> list[str]:
    target = told["target"]
    return [] if target is None else _lines("to reach", f"{_wanted(target)}: {_needed(target, who)}")


def _wanted(target: Mapping[str, Any]) -> str:
    measure = target["measure"]
    return f"{name_of(measure)} {plain(target['value'])}"


def _needed(target: Mapping[str, Any], who: str) -> str:
    n, low, high, smallest, largest = (target[key] for key in ("n", "low", "high", "smallest", "largest"))
    if n is None:
        known = target["without_privacy"]
        beside = "" if known is None else f"; without privacy it has {_figure(target['measure'], known)}"
        if target["is_beyond"]:
            return f"not reached at any number of {who}{beside}"
        chance = "" if low is None else ", though within the interval"
        return f"not expected of up to {largest:,} {who}{chance}{beside}"
    if target["measure"] == "error":
        return f"about {_rounded(n)} {who}"
    surely = f"more than {largest:,}" if high is None else _rounded(high)
    if n == smallest:
        return f"{smallest:,} {who} or fewer; surely {surely}"
    return f"about {_rounded(n)} {who} ({f'fewer than {smallest:,}' if low == smallest else _rounded(low)} to {surely})"


def _rounded(n: int) -> str:
    """A number of people to two digits that count."""
    digits = max(0, len(str(n)) - 2)
    return f"{round(n, -digits):,}"


def _matters(told: Mapping[str, Any]) -> list[str]:
    """What a change of each figure does, those that matter most first."""
    measure = told["measure"]
    lines = []
    for change in told["matters"]:
        effect, error = change["effect"], change["error"]
        better = (effect < 0) == (is_falling(measure))
        what = "no clear effect" if abs(effect) < _CLEAR * error else "better" if better else "worse"
        lines.append(
            f"{change['key']} {_number(change['before'])} -> {_number(change['after'])}: {what}, {name_of(measure)} "
            f"{'+' if effect >= 0 else '-'}{_figure(measure, abs(effect))} ± {_figure(measure, error)}"
        )
    return _listed("matters", lines)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _figure(measure: str, value: float) -> str:
    """Three digits after the point for a share, as it may be typed after --target; four that count for what has units."""
    return f"{value:.3f}" if measure in _SHARES else f"{value:.4g}"


def is_promising(told: Mapping[str, Any]) -> bool:
    """Whether even the worse end of the study's interval is better than guessing."""
    measure, compared = told["measure"], told["yardsticks"]
    score = told["study"]["scores"][measure]
    guessed: Sequence[float] = [compared[name][measure] for name in ("most_common", "mean_label") if name in compared]
    if is_falling(measure):
        return all(score["high"] < one for one in guessed)
    return all(score["low"] > one for one in guessed)
