"""How ``shoal compare`` shows protocols side by side: a table of a hundred columns, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from string import ascii_lowercase
from typing import Any

from shoal.names import counted, shown
from shoal.privacy.rounding import show
from shoal.report.charts import Interval, Level, intervals
from shoal.report.colours import GREY, colour_of
from shoal.report.details import Mean
from shoal.report.figures import figure, interval, is_falling, measure_axis, name_of
from shoal.report.sections.verdicts import above_no_privacy, beside_guessing, figures
from shoal.study.typeset import wrap

COLUMNS = 100
_FAR = 2
"""From this factor on, a declared size is far from the number of rows."""
_NAME = 34
_SHORT = {"mean_absolute_error": "MAE", "r_squared": "R²"}
_YARDSTICKS = {"most_common": "most common class", "mean_label": "mean of the label", "without_privacy": "without privacy"}
_BESIDE = {"most_common": "guessing", "mean_label": "guessing", "without_privacy": "without privacy"}
_KILO = 1000
_SHORTEST = 0.01

Entry = Mapping[str, Any]


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for people."""
    letters = _letters(result["entries"])
    lines = [
        f"study     {shown(result['title'])}   digest {result['short']}",
        *_paragraph("note      ", result["remark"]),
        f"rows      {_rows(result['rows'])}",
        *(line for warning in _warnings(result) for line in _paragraph("WARNING   ", warning)),
        "",
        *_table(result, letters),
        "",
        *_paragraph("trust     ", "who must be trusted, with what:"),
        *(line for words, letter in letters.items() for line in _paragraph(f"      ({letter}) ", words)),
        *(line for words in _best(result) for line in _paragraph("best      ", words)),
        *(line for words in _left_out(result["left_out"]) for line in _paragraph("left out  ", words)),
        *_paragraph("measures  ", _measures(result)),
    ]
    return "\n".join(lines)


def picture(result: Mapping[str, Any]) -> str:
    """Every entry with its interval as SVG, held against guessing and no privacy."""
    measure = result["measure"]
    rows = [
        Interval(
            _in_short(entry),
            entry["scores"][measure]["value"],
            colour_of(entry["protocol"]),
            _interval(measure, entry, result["repeats"]),
            figure(measure, entry["scores"][measure]["value"]),
        )
        for entry in result["entries"]
    ]
    levels = [
        Level(_YARDSTICKS[name], found[measure], "dashed" if name == "without_privacy" else "dotted", GREY)
        for name, found in result["yardsticks"].items()
    ]
    return str(
        intervals(
            f"{name_of(measure)} of {counted(len(rows), 'way')} to learn from the same rows (simulated)",
            rows,
            axis=measure_axis(measure, is_whole=False),
            description="; ".join(f"{row.name}: {row.text}" for row in rows),
            levels=levels,
        )
    )


def _in_short(entry: Entry) -> str:
    """A name with what its epsilon speaks about, short enough for a line of the picture."""
    name = entry["name"].replace("secure sums", "sums")
    return f"{name}: ε {show(entry['epsilon'])} per {entry['unit']} ({entry['relation']})"


def _paragraph(head: str, text: str) -> list[str]:
    first, *others = wrap(text, COLUMNS - len(head))
    return [head + first, *(" " * len(head) + line for line in others)]


def _rows(rows: Mapping[str, int]) -> str:
    return (
        f"{rows['asked']:,} to learn from, {rows['unseen']:,} set aside for testing, the same for all; declared size {rows['declared']:,}"
    )


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    for entry in result["entries"][:1]:
        declared, asked = entry["study"]["participation"]["size"], result["rows"]["asked"]
        if not asked / _FAR <= declared <= asked * _FAR:
            yield (
                f"The study declares {result['rows']['declared']:,}, and there are {asked:,} rows to learn from: what is asked, and how "
                "much noise is expected, follow from the declared size."
            )
    if result["repeats"] == 1:
        yield "One run says nothing about how much another would differ. Try --repeats 5"


def _letters(entries: Sequence[Entry]) -> dict[str, str]:
    """A letter for each sentence that says who must be trusted; several ways share one."""
    return dict(zip(dict.fromkeys(entry["trusted"] for entry in entries), ascii_lowercase, strict=False))


def _table(result: Mapping[str, Any], letters: Mapping[str, str]) -> Iterator[str]:
    measures = list(result["entries"][0]["scores"])
    heads = [f"{name_of(measures[0])}, 95 % interval", *(_SHORT.get(name, name_of(name)) for name in measures[1:])]
    body = [(entry, _cells(entry, measures, result["repeats"])) for entry in result["entries"]]
    beside = {_YARDSTICKS[name]: [figure(one, found[one]) for one in measures] for name, found in result["yardsticks"].items()}
    heads += ["sends", "messages", "CPU s"]
    rows = [heads, *(cells for _, cells in body), *([*cells, "", "", ""] for cells in beside.values())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]

    def line(name: str, cells: Sequence[str]) -> str:
        first, *others = (cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(cells))
        return "  ".join([name.ljust(_NAME), first, *others]).rstrip()

    yield line("", heads)
    for epsilon, group in groupby(body, key=lambda pair: pair[0]["study"]["privacy"]["epsilon"]):
        yield from [f"epsilon {show(epsilon)} of each unit"] if len({one["study"]["privacy"]["epsilon"] for one, _ in body}) > 1 else []
        for entry, cells in group:
            yield line(entry["name"], cells)
            yield from _paragraph("    ", f"{_guarantee(entry)}; trust ({letters[entry['trusted']]}){_worse(result, entry)}")
    yield from (line(name, [*cells, "", "", ""]) for name, cells in beside.items())


def _cells(entry: Entry, measures: Sequence[str], n_runs: int) -> list[str]:
    reach = _interval(measures[0], entry, n_runs)
    low_high = "" if reach is None else f"  {figure(measures[0], reach[0]).removesuffix(' %')} to {figure(measures[0], reach[1])}"
    first, *others = (figure(name, entry["scores"][name]["value"]) for name in measures)
    messages = "?" if entry["messages"] is None else f"{entry['messages']:,.4g}"
    return [first + low_high, *others, _bytes(entry["bytes"]), messages, _seconds(entry["cpu_seconds"])]


def _interval(measure: str, entry: Entry, n_runs: int) -> tuple[float, float] | None:
    return interval(measure, Mean(**entry["scores"][measure]), n_runs)


def _bytes(n: float | None) -> str:
    if n is None:
        return "?"
    if n < _KILO:
        return f"{n:.0f} B"
    return f"{n / _KILO:.3g} kB" if n < _KILO**2 else f"{n / _KILO**2:.3g} MB"


def _seconds(time: float) -> str:
    return f"{time:.2f}" if time >= _SHORTEST else f"<{_SHORTEST}"


def _epsilon(entry: Entry) -> str:
    delta = f", delta {show(entry['delta'])}" if entry["delta"] else ""
    return f"epsilon {show(entry['epsilon'])}{delta} per {entry['unit']} ({entry['relation']})"


def _guarantee(entry: Entry) -> str:
    crowd = entry["central"]
    besides = f"; epsilon {show(crowd['epsilon'])}, delta {show(crowd['delta'])} against {crowd['adversary']}" if crowd else ""
    return f"{_epsilon(entry)}, against {entry['adversary']}{besides}; {entry['n_participants']:,} take part"


def _worse(result: Mapping[str, Any], entry: Entry) -> str:
    """Said of what is not shown to do better than whoever looks at no row; worse is only what has all of its interval there."""
    measure = result["measure"]
    name = _guessing(result)
    guess, mean = result["yardsticks"][name][measure], Mean(**entry["scores"][measure])
    verdict = beside_guessing(measure, mean, result["repeats"], guess)
    if verdict == "better":
        return ""
    value, beside = figures(measure, mean.value, guess)
    against = f"({_YARDSTICKS[name]}): {value} against {beside}"
    if verdict == "worse":
        return f"; WORSE THAN GUESSING {against}"
    return f"; no better than guessing {against}, as far as {counted(result['repeats'], 'run')} can show"


def _guessing(result: Mapping[str, Any]) -> str:
    return next(name for name in _YARDSTICKS if name in result["yardsticks"])


def _best(result: Mapping[str, Any]) -> Iterator[str]:
    """Which way does best, and which where nobody need be trusted; epsilons apart, since they are not one scale."""
    measure = result["measure"]
    sign = -1 if is_falling(measure) else 1
    alone = [entry for entry in result["entries"] if entry["trusted"].startswith("nobody")]
    for head, some in (("of all", result["entries"]), ("where nobody need be trusted", alone)):
        if some:
            best = max(some, key=lambda entry: sign * entry["scores"][measure]["value"])
            yield f"{head}: {best['name']}, {_epsilon(best)}: {name_of(measure)} {_beside(result, best['scores'][measure]['value'])}"


def _beside(result: Mapping[str, Any], value: float) -> str:
    """A figure with guessing and no privacy beside it, in digits that tell them apart."""
    measure, held_against = result["measure"], result["yardsticks"]
    known = {words: held_against[name][measure] for name, words in _BESIDE.items() if name in held_against}
    own, *others = figures(measure, value, *known.values())
    said = f"{own}; {', '.join(f'{words} {text}' for words, text in zip(known, others, strict=True))}"
    free = known.get("without privacy")
    above = "" if free is None else above_no_privacy(measure, value, free, result["rows"]["unseen"])
    return f"{said}; {above}" if above else said


def _left_out(left_out: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What does not fit, by its reason."""
    for why in dict.fromkeys(one["why"] for one in left_out):
        yield f"{'; '.join(one['name'] for one in left_out if one['why'] == why)}: {shown(why)}"


def _measures(result: Mapping[str, Any]) -> str:
    over = f"intervals are Student's t over {counted(result['repeats'], 'run')} on the same rows; " if result["repeats"] > 1 else ""
    over = f"MAE is the mean absolute error; {over}" if result["measure"] == "rmse" else over
    return (
        f"{over}sends: what one participant sends on average, as messages are encoded, ? where that was not measured; CPU s: processor "
        "time of one simulated run of everyone, on one thread"
    )
