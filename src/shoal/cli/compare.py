"""``shoal compare``: all protocols and trust levels that fit a study, on the same rows.

The command simulates each alternative, and prints a table of a hundred columns. With ``--out`` it
writes ``compare.json`` and a chart. The table and the chart are made from the result that
``--json`` prints, so a saved comparison can be shown again.
"""

from __future__ import annotations

import json as json_format
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from shoal.cli.arguments import parse_numbers, read_table
from shoal.cli.output import emit, show_progress_bar
from shoal.cli.simulate import MAX_REPEATS, list_versions, try_output_directory
from shoal.errors import ShoalError, UsageError
from shoal.files import write_directory
from shoal.mechanisms.base import MAX_EPSILON, MIN_EPSILON
from shoal.privacy.rounding import format_epsilon
from shoal.report.charts import IntervalRow, ReferenceLine, draw_intervals
from shoal.report.documents import ScoreMean
from shoal.report.formatting import (
    GREY,
    compare_with_guessing,
    compute_interval,
    explain_above_no_privacy,
    format_measure,
    format_measures,
    get_measure_name,
    get_protocol_colour,
    is_lower_better,
    make_measure_axis,
)
from shoal.simulation.compare import ComparisonOptions, compare_study, count_steps
from shoal.simulation.engines import check_engine
from shoal.simulation.run import split_rows
from shoal.study.loader import load_study
from shoal.study.plan import make_plan
from shoal.study.settings import MAX_DATABASES
from shoal.text import escape_text, format_count, shell_quote, wrap_text

COLUMNS = 100
_FAR_FACTOR = 2
"""Factor between the declared size and the number of rows that causes a warning."""
_NAME_WIDTH = 34
_SHORT_NAMES = {"mean_absolute_error": "MAE", "r_squared": "R²"}
_BASELINES = {
    "most_common": "most common class",
    "mean_label": "mean of the label",
    "without_privacy": "without privacy",
}
_SHORT_BASELINES = {
    "most_common": "guessing",
    "mean_label": "guessing",
    "without_privacy": "without privacy",
}
_KILO = 1000
_MIN_SECONDS = 0.01

ComparisonRecord = Mapping[str, Any]


def format_comparison(result: Mapping[str, Any]) -> str:
    """Return the result as text for people."""
    letters = _assign_letters(result["entries"])
    lines = [
        f"study     {escape_text(result['title'])}   digest {result['short']}",
        *_format_paragraph("note      ", result["remark"]),
        f"rows      {_describe_rows(result['rows'])}",
        *(
            line
            for warning in _list_warnings(result)
            for line in _format_paragraph("WARNING   ", warning)
        ),
        "",
        *_format_table(result, letters),
        "",
        *_format_paragraph("trust     ", "who must be trusted, with what:"),
        *(
            line
            for text, letter in letters.items()
            for line in _format_paragraph(f"      ({letter}) ", text)
        ),
        *(
            line
            for text in _describe_best(result)
            for line in _format_paragraph("best      ", text)
        ),
        *(
            line
            for text in _describe_left_out(result["left_out"])
            for line in _format_paragraph("left out  ", text)
        ),
        *_format_paragraph("measures  ", _describe_measures(result)),
    ]
    return "\n".join(lines)


def draw_comparison(result: Mapping[str, Any]) -> str:
    """Return a chart of all entries with their intervals, guessing and no privacy, as SVG."""
    measure = result["measure"]
    rows = [
        IntervalRow(
            _format_short_name(entry),
            entry["scores"][measure]["value"],
            get_protocol_colour(entry["protocol"]),
            _compute_entry_interval(measure, entry, result["repeats"]),
            format_measure(measure, entry["scores"][measure]["value"]),
        )
        for entry in result["entries"]
    ]
    levels = [
        ReferenceLine(
            _BASELINES[name],
            scores[measure],
            "dashed" if name == "without_privacy" else "dotted",
            GREY,
        )
        for name, scores in result["yardsticks"].items()
    ]
    return str(
        draw_intervals(
            f"{get_measure_name(measure)} of {format_count(len(rows), 'alternative')} on the "
            "same rows (simulated)",
            rows,
            axis=make_measure_axis(measure, is_whole=False),
            description="; ".join(f"{row.name}: {row.text}" for row in rows),
            reference_lines=levels,
        )
    )


def _format_short_name(entry: ComparisonRecord) -> str:
    """Return a name with epsilon and unit, short enough for a line of the chart."""
    name = entry["name"].replace("secure sums", "sums")
    return f"{name}: ε {format_epsilon(entry['epsilon'])} per {entry['unit']} ({entry['relation']})"


def _format_paragraph(head: str, text: str) -> list[str]:
    first, *others = wrap_text(text, COLUMNS - len(head))
    return [head + first, *(" " * len(head) + line for line in others)]


def _describe_rows(rows: Mapping[str, int]) -> str:
    return (
        f"{rows['asked']:,} to learn from, {rows['unseen']:,} set aside for testing, the same "
        f"for all; declared size {rows['declared']:,}"
    )


def _list_warnings(result: Mapping[str, Any]) -> Iterator[str]:
    for entry in result["entries"][:1]:
        declared, asked = entry["study"]["participation"]["size"], result["rows"]["asked"]
        if not asked / _FAR_FACTOR <= declared <= asked * _FAR_FACTOR:
            yield (
                f"The study declares {result['rows']['declared']:,}, and the table has {asked:,} "
                "rows to learn from. The questions and the expected noise follow from the "
                "declared size."
            )
    if result["repeats"] == 1:
        yield "One run does not show how much runs differ. Try --repeats 5"


def _assign_letters(entries: Sequence[ComparisonRecord]) -> dict[str, str]:
    """Return a letter for each sentence about trust; several entries may share one."""
    return dict(
        zip(dict.fromkeys(entry["trusted"] for entry in entries), ascii_lowercase, strict=False)
    )


def _format_table(result: Mapping[str, Any], letters: Mapping[str, str]) -> Iterator[str]:
    measures = list(result["entries"][0]["scores"])
    heads = [
        f"{get_measure_name(measures[0])}, 95 % interval",
        *(_SHORT_NAMES.get(name, get_measure_name(name)) for name in measures[1:]),
    ]
    body = [
        (entry, _format_cells(entry, measures, result["repeats"])) for entry in result["entries"]
    ]
    baselines = {
        _BASELINES[name]: [format_measure(one, scores[one]) for one in measures]
        for name, scores in result["yardsticks"].items()
    }
    heads += ["sends", "messages", "CPU s"]
    rows = [
        heads,
        *(cells for _, cells in body),
        *([*cells, "", "", ""] for cells in baselines.values()),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]

    def format_line(name: str, cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i])
            for i, cell in enumerate(cells)
        )
        return "  ".join([name.ljust(_NAME_WIDTH), first, *others]).rstrip()

    yield format_line("", heads)
    for epsilon, group in groupby(body, key=lambda pair: pair[0]["study"]["privacy"]["epsilon"]):
        yield from (
            [f"epsilon {format_epsilon(epsilon)} per unit"]
            if len({one["study"]["privacy"]["epsilon"] for one, _ in body}) > 1
            else []
        )
        for entry, cells in group:
            yield format_line(entry["name"], cells)
            yield from _format_paragraph(
                "    ",
                f"{_describe_guarantee(entry)}; trust "
                f"({letters[entry['trusted']]}){_describe_shortfall(result, entry)}",
            )
    yield from (format_line(name, [*cells, "", "", ""]) for name, cells in baselines.items())


def _format_cells(entry: ComparisonRecord, measures: Sequence[str], n_runs: int) -> list[str]:
    interval = _compute_entry_interval(measures[0], entry, n_runs)
    low_high = (
        ""
        if interval is None
        else f"  {format_measure(measures[0], interval[0]).removesuffix(' %')} to "
        f"{format_measure(measures[0], interval[1])}"
    )
    first, *others = (format_measure(name, entry["scores"][name]["value"]) for name in measures)
    messages = "?" if entry["messages"] is None else f"{entry['messages']:,.4g}"
    return [
        first + low_high,
        *others,
        _format_bytes(entry["bytes"]),
        messages,
        _format_seconds(entry["cpu_seconds"]),
    ]


def _compute_entry_interval(
    measure: str, entry: ComparisonRecord, n_runs: int
) -> tuple[float, float] | None:
    return compute_interval(measure, ScoreMean(**entry["scores"][measure]), n_runs)


def _format_bytes(n: float | None) -> str:
    if n is None:
        return "?"
    if n < _KILO:
        return f"{n:.0f} B"
    return f"{n / _KILO:.3g} kB" if n < _KILO**2 else f"{n / _KILO**2:.3g} MB"


def _format_seconds(time: float) -> str:
    return f"{time:.2f}" if time >= _MIN_SECONDS else f"<{_MIN_SECONDS}"


def _describe_epsilon(entry: ComparisonRecord) -> str:
    delta = f", delta {format_epsilon(entry['delta'])}" if entry["delta"] else ""
    return (
        f"epsilon {format_epsilon(entry['epsilon'])}{delta} per {entry['unit']} "
        f"({entry['relation']})"
    )


def _describe_guarantee(entry: ComparisonRecord) -> str:
    central = entry["central"]
    addition = (
        f"; epsilon {format_epsilon(central['epsilon'])}, delta "
        f"{format_epsilon(central['delta'])} against {central['adversary']}"
        if central
        else ""
    )
    return (
        f"{_describe_epsilon(entry)}, against {entry['adversary']}{addition}; "
        f"{entry['n_participants']:,} take part"
    )


def _describe_shortfall(result: Mapping[str, Any], entry: ComparisonRecord) -> str:
    """Return a warning if an entry is not shown to be better than guessing without any row.

    It is worse only if its whole interval is worse.
    """
    measure = result["measure"]
    name = _find_guessing_baseline(result)
    guess, mean = result["yardsticks"][name][measure], ScoreMean(**entry["scores"][measure])
    verdict = compare_with_guessing(measure, mean, result["repeats"], guess)
    if verdict == "better":
        return ""
    value, baseline = format_measures(measure, mean.value, guess)
    figures = f"({_BASELINES[name]}): {value} against {baseline}"
    if verdict == "worse":
        return f"; WORSE THAN GUESSING {figures}"
    return (
        f"; not shown to be better than guessing {figures}, over "
        f"{format_count(result['repeats'], 'run')}"
    )


def _find_guessing_baseline(result: Mapping[str, Any]) -> str:
    return next(name for name in _BASELINES if name in result["yardsticks"])


def _describe_best(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the best entry of all, and the best that needs no trust.

    Each is printed with its epsilon, because epsilons of different units are not comparable.
    """
    measure = result["measure"]
    sign = -1 if is_lower_better(measure) else 1
    without_trust = [entry for entry in result["entries"] if entry["trusted"].startswith("nobody")]
    for head, entries in (("of all", result["entries"]), ("without any trust", without_trust)):
        if entries:
            best = max(entries, key=lambda entry: sign * entry["scores"][measure]["value"])
            yield (
                f"{head}: {best['name']}, {_describe_epsilon(best)}: "
                f"{get_measure_name(measure)} "
                f"{_compare_with_baselines(result, best['scores'][measure]['value'])}"
            )


def _compare_with_baselines(result: Mapping[str, Any], value: float) -> str:
    """Return a score, guessing and no privacy, with enough digits to distinguish them."""
    measure, baselines = result["measure"], result["yardsticks"]
    known = {
        name: baselines[key][measure] for key, name in _SHORT_BASELINES.items() if key in baselines
    }
    own, *others = format_measures(measure, value, *known.values())
    figures = ", ".join(f"{name} {text}" for name, text in zip(known, others, strict=True))
    without_privacy = known.get("without privacy")
    explanation = (
        ""
        if without_privacy is None
        else explain_above_no_privacy(measure, value, without_privacy, result["rows"]["unseen"])
    )
    return f"{own}; {figures}" + (f"; {explanation}" if explanation else "")


def _describe_left_out(left_out: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the alternatives that do not fit, by reason."""
    for why in dict.fromkeys(entry["why"] for entry in left_out):
        names = "; ".join(entry["name"] for entry in left_out if entry["why"] == why)
        yield f"{names}: {escape_text(why)}"


def _describe_measures(result: Mapping[str, Any]) -> str:
    over = (
        f"intervals are Student's t over {format_count(result['repeats'], 'run')} on the same "
        "rows; "
        if result["repeats"] > 1
        else ""
    )
    over = f"MAE is the mean absolute error; {over}" if result["measure"] == "rmse" else over
    return (
        f"{over}sends: encoded messages of one participant, on average, ? if not measured; CPU s: "
        "processor time of one simulated run with all participants, on one thread"
    )


MAX_EPSILONS = 20


def compare(
    study: Path,
    /,
    *,
    data: str,
    epsilon: str | None = None,
    repeats: int = 5,
    seed: int = 0,
    jobs: int = 1,
    holder: str | None = None,
    holders: int | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Simulate all protocols, variants and trust levels that fit a study, on the same rows.

    A row is a person in anonml and a device in ddml (if the study has a [data] table, a device has
    the rows of a person). sdq and pfds distribute the rows to databases and organisations, or read
    the column --holder. All have the same epsilon, which means something different in each: unit,
    neighbouring relation and adversary are printed with it. This command does not protect the rows:
    it reads them on this machine.

    Parameters
    ----------
    study
        The study file: its columns, label, declared size, epsilon and settings.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that fits the study.
    epsilon
        One or more, such as 0.5,1,2; by default the study's.
    repeats
        Runs of each alternative, for the standard error and the interval.
    seed
        Determines all randomness, and the test rows, as in shoal simulate.
    jobs
        Processes to use; the result is the same for any number.
    holder
        A column that names the database or organisation of each row. It is read only here.
    holders
        Number of databases or organisations to distribute rows to; by default the study's, or 10.
    out
        A new directory for compare.json, which is what --json prints, and compare.svg.
    json
        Print one JSON object.
    """
    spec = load_study(study)
    epsilons = [spec.privacy.epsilon] if epsilon is None else _parse_epsilons(epsilon)
    _check_options(repeats, holder, holders)
    check_engine(jobs, "local")
    make_plan(spec)
    if out is not None:
        try_output_directory(out)
    split = split_rows(
        spec.schema(),
        read_table(data),
        seed,
        holder,
        None if spec.data is None else spec.data.person,
    )
    with show_progress_bar("runs", count_steps(spec, epsilons, repeats)) as done:
        comparison = compare_study(
            spec,
            split,
            ComparisonOptions(
                epsilons,
                repeats,
                seed,
                jobs,
                n_holders=holders,
                joint=find_spec("mpyc") is not None,
            ),
            done,
        )
    command = [
        "shoal",
        "compare",
        str(study),
        "--data",
        data,
        "--seed",
        str(seed),
        "--repeats",
        str(repeats),
    ]
    command += ["--epsilon", epsilon] if epsilon is not None else []
    command += ["--holder", holder] if holder is not None else []
    command += ["--holders", str(holders)] if holders is not None else []
    result = comparison | {"command": shlex.join(command), "versions": list_versions()}
    failure = None if out is None else _write_files(out, result)
    text = format_comparison(result) + (
        ""
        if out is None or failure
        else f"\nwrote     {escape_text(str(out))}: compare.json, compare.svg"
    )
    # Print a result that took minutes even if it could not be written.
    emit(
        result | ({"error": failure.to_dict()} if failure else {}),
        text,
        json=json,
        next_command=_suggest_next(study, data, out, failure),
    )
    if failure and json:
        raise SystemExit(failure.exit_code)
    if failure:
        raise failure


def _parse_epsilons(text: str) -> list[float]:
    """Return the epsilons of ``--epsilon``, separated by commas."""
    epsilons: list[float] = parse_numbers("epsilon", text, float)
    if len(set(epsilons)) < len(epsilons) or len(epsilons) > MAX_EPSILONS:
        what = (
            f"--epsilon {escape_text(text[:60])} names "
            f"{'the same value twice' if len(epsilons) <= MAX_EPSILONS else 'too many values'}."
        )
        raise UsageError("USAGE-001", what, fix=f"Give each value once, at most {MAX_EPSILONS}.")
    for epsilon in epsilons:
        if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
            raise UsageError(
                "USAGE-001",
                f"--epsilon {epsilon:g} is out of range.",
                fix=f"Give values from {MIN_EPSILON:g} to {MAX_EPSILON:g}.",
            )
    return epsilons


def _check_options(repeats: int, holder: str | None, holders: int | None) -> None:
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError(
            "USAGE-001",
            f"--repeats {repeats} is out of range.",
            fix=f"Give a number from 1 to {MAX_REPEATS:,}.",
        )
    if holder is not None and holders is not None:
        raise UsageError(
            "USAGE-001",
            "--holder and --holders exclude each other.",
            why="--holder names the holder of each row; --holders distributes rows evenly.",
            fix="Give only one of them.",
        )
    if holders is not None and not 1 <= holders <= MAX_DATABASES:
        raise UsageError(
            "USAGE-001",
            f"--holders {holders} is out of range.",
            fix=f"Give a number from 1 to {MAX_DATABASES:,}.",
        )


def _write_files(out: Path, result: dict[str, Any]) -> ShoalError | None:
    try:
        write_directory(
            out,
            {
                "compare.json": json_format.dumps(result, indent=1, allow_nan=False) + "\n",
                "compare.svg": draw_comparison(result),
            },
        )
    except ShoalError as error:
        return error
    return None


def _suggest_next(study: Path, data: str, out: Path | None, failure: ShoalError | None) -> str:
    if out is not None and failure is None:
        return f"shoal report {shell_quote(out)}"
    return f"shoal compare {shell_quote(study)} --data {shell_quote(data)} --out compared"
