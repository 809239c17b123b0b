"""``shoal hello``: a demonstration in four steps, on this machine alone.

One synthetic person answers, the four protocols are compared, a real study runs, and a report is
written. Lines are printed as soon as they are known; a terminal also shows progress. A step with
missing extras is left out with a line that says what to install.
"""

from __future__ import annotations

import importlib.util
import io
import json as json_format
import os
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any

from cyclopts import Parameter

from shoal import __version__
from shoal.cli.hello.files import check_output_directory, make_workspace, move_into_place
from shoal.cli.hello.one_person import describe_person, run_one_person
from shoal.cli.hello.population import (
    REPEATS,
    ROWS,
    SEED,
    DemoPopulation,
    compare_protocols,
    count_comparison_steps,
    describe_comparison,
    format_csv,
    make_population,
)
from shoal.cli.hello.processes import interrupt_on_hangup
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy, require_system
from shoal.errors import UsageError, format_install_command
from shoal.privacy.rounding import format_epsilon
from shoal.text import escape_text, format_count, shell_quote

N_STEPS = 4
_INDENT, _LABEL_WIDTH = 5, 15
_MIN_WIDTH = 60
"""On a narrower terminal lines are not wrapped here."""


@dataclass
class DemoScreen:
    """The output of the demonstration.

    Parameters
    ----------
    is_quiet
        Whether only one JSON object is printed, at the end.
    width
        Characters of a line at a terminal; None for no limit.
    """

    is_quiet: bool
    on_progress: Callable[[str], None]
    width: int | None = None

    def begin_step(self, number: int, title: str) -> None:
        """Begin a step."""
        self.on_progress(title)
        self._print_line(f"\n{number}/{N_STEPS}  {title}")

    def print_lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print the results of a step, each with its label."""
        indent = " " * (_INDENT + _LABEL_WIDTH)
        for label, line in lines:
            text = f"{' ' * _INDENT}{label:<{_LABEL_WIDTH}}{line}".rstrip()
            wrapped = (
                [text]
                if self.width is None
                else wrap(text, self.width, subsequent_indent=indent, break_long_words=False)
            )
            self._print_line("\n".join(wrapped))

    def _print_line(self, line: str) -> None:
        if not self.is_quiet:
            # A reader of a pipe must see each line immediately.
            print(line, flush=True)


@contextmanager
def open_screen(head: str, *, is_quiet: bool) -> Iterator[DemoScreen]:
    """Open the output; progress goes to standard error, and only at a terminal."""
    if not is_quiet:
        print(head, flush=True)
    columns = get_terminal_size().columns
    width = columns if sys.stdout.isatty() and columns >= _MIN_WIDTH else None
    if is_quiet or not sys.stderr.isatty():
        yield DemoScreen(is_quiet, lambda _: None, width)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    # If both streams are on one terminal, lines are printed above the progress line.
    with Live(
        spinner,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=False,
    ):
        yield DemoScreen(is_quiet, lambda line: spinner.update(text=Text(escape_text(line))), width)


MIN_EPSILON, MAX_EPSILON = 0.1, 4.0
"""Below, a population of this size is too small to learn from; above, a new ledger refuses."""
SWEEP_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
_EXTRA_MODULES = {
    "learn": ("sklearn", "scipy"),
    "serve": ("uvicorn", "uvloop", "httptools", "starlette", "prometheus_client", "jinja2"),
    "anonymous": ("pyblst", "py_arkworks_bls12381"),
}
"""Extra -> the modules that it installs."""


@dataclass
class _DemoResults:
    """Results so far: documents for the report, and data for ``--json``."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def hello(
    *,
    epsilon: float = 1.0,
    out: Path = Path("shoal-hello"),
    open_: Annotated[bool | None, Parameter(name="--open", negative="--no-open")] = None,
    json: bool = False,
) -> None:
    """Show what shoal does, in about a minute: one answer, four protocols, a real study, a report.

    Nothing leaves this machine, and you need not enter anything. The people are synthetic. The
    coordinator, the participants, their ledgers, the tokens and the noise are real. Your own ledger
    is not used.

    Parameters
    ----------
    epsilon
        Budget of one person, device or record, 0.1 to 4.
    out
        A directory for the report and its data. The directory of an earlier demonstration is
        replaced if it is unchanged.
    open_
        Show the report in a browser, or do not. By default it is shown if there is a display and a
        terminal.
    json
        Print one JSON object.
    """
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        what = (
            f"The epsilon of the demonstration is from {MIN_EPSILON} to {MAX_EPSILON}, not "
            f"{epsilon}."
        )
        raise UsageError("USAGE-001", what, fix="shoal hello --epsilon 2")
    target = Path(os.path.abspath(out))  # noqa: PTH100 - a link is not followed
    check_output_directory(target)
    clock = SystemClock()
    begun = clock.now()
    head = f"shoal {__version__}  learn from the shoal, not the fish"
    with (
        interrupt_on_hangup(),
        make_workspace() as name,
        open_screen(head, is_quiet=json) as screen,
    ):
        home, staging, results = Path(name), Path(name) / "made", _DemoResults()
        staging.mkdir()
        population = _show_population(screen, results, home, staging, epsilon)
        _show_comparison(screen, results, population, staging, out)
        _show_live_study(screen, results, population, home, staging, epsilon)
        _write_report(screen, results, staging)
        seconds = (clock.now() - begun).total_seconds()
        data = {
            "version": __version__,
            "epsilon": epsilon,
            **results.data,
            "left_out": results.left_out,
            "seconds": seconds,
        }
        move_into_place(staging, target, data)
    has_report = bool(results.documents)
    is_shown = (
        has_report
        and _is_browser_wanted(open_)
        and webbrowser.open((target / "report.html").as_uri())
    )
    place = {
        "directory": str(out),
        "report": str(out / "report.html") if has_report else None,
        "opened": is_shown,
    }
    text = (
        f"     {'wrote':<15}{escape_text(str(out))}: "
        f"report.html{' (opened)' if is_shown else ''}, study.toml, people.csv and the runs"
    )
    text = (
        text if has_report else f"     {'wrote':<15}{escape_text(str(out))}: study.toml, people.csv"
    )
    note = (
        f"It took {seconds:.0f} s. Nothing left this machine. The people are synthetic, and a "
        "simulation protects no data."
    )
    example = (
        f"shoal compare {shell_quote(out / 'study.toml')} --data "
        f"{shell_quote(out / 'people.csv')} --epsilon 0.5,2"
    )
    emit(
        data | place,
        f"{text}\n\n{note}\nmore      {example}",
        json=json,
        next_command="shoal new my-study --protocol anonml --from rows.csv",
    )


def _show_population(
    screen: DemoScreen, results: _DemoResults, home: Path, staging: Path, epsilon: float
) -> DemoPopulation:
    """Run step 1: make the people, and show what one of them would send."""
    screen.begin_step(1, f"one of {ROWS:,} synthetic people answers a question")
    population = make_population(epsilon)
    (staging / "study.toml").write_text(population.text, "utf-8")
    (staging / "people.csv").write_text(format_csv(population.table), "utf-8")
    person = run_one_person(epsilon, require_system(SystemEntropy()), home / "ledger.db")
    screen.print_lines(describe_person(person))
    rows = {
        "asked": len(population.split.train_labels),
        "unseen": len(population.split.test_labels),
    }
    results.data |= {
        "person": person,
        "rows": rows,
        "guessing": population.guessing_accuracy,
        "truth": population.best_accuracy,
    }
    return population


def _show_comparison(
    screen: DemoScreen, results: _DemoResults, population: DemoPopulation, staging: Path, out: Path
) -> None:
    """Run step 2: all protocols at the same epsilon on the same rows.

    One of them also runs at other epsilons, for the curve of the report.
    """
    price = format_epsilon(population.study.privacy.epsilon)
    screen.begin_step(
        2,
        "the four protocols learn who sleeps badly, simulated on "
        f"{len(population.split.train_labels):,} people, each at epsilon {price}",
    )
    if _skip_without_extras(screen, results, 2, "learn"):
        return
    total, n = count_comparison_steps(population), 0

    def done() -> None:
        nonlocal n
        n += 1
        screen.on_progress(f"{n} of {total} runs")

    comparison = compare_protocols(population, out / "study.toml", out / "people.csv", done)
    screen.print_lines(describe_comparison(comparison, population.best_accuracy))
    screen.on_progress("the same at other epsilons")
    run = _simulate_sweep(staging, out, sorted({*SWEEP_EPSILONS, population.study.privacy.epsilon}))
    (staging / "compare").mkdir()
    (staging / "compare" / "compare.json").write_text(
        json_format.dumps(comparison, indent=1, allow_nan=False) + "\n", "utf-8"
    )
    results.documents += [comparison, run]
    names = (
        "name",
        "protocol",
        "variant",
        "trust",
        "epsilon",
        "delta",
        "unit",
        "relation",
        "adversary",
        "scores",
    )
    results.data |= {
        "compared": [{name: entry[name] for name in names} for entry in comparison["entries"]],
        "yardsticks": comparison["yardsticks"],
    }


def _simulate_sweep(staging: Path, out: Path, epsilons: list[float]) -> dict[str, Any]:
    """Return the document of ``shoal simulate --sweep epsilon=...``.

    Its command names the final paths of the files.
    """
    from shoal.cli.simulate import simulate

    sweep = f"epsilon={','.join(f'{epsilon:g}' for epsilon in epsilons)}"
    study, data = staging / "study.toml", str(staging / "people.csv")
    # Its text and its progress bar are for users who run it alone.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        simulate(
            study,
            data=data,
            seed=SEED,
            sweep=[sweep],
            repeats=REPEATS,
            out=staging / "run",
            json=True,
        )
    file = staging / "run" / "run.json"
    run: dict[str, Any] = json_format.loads(file.read_text("utf-8"))
    run["command"] = run["command"].replace(str(staging), shell_quote(out))
    file.write_text(json_format.dumps(run, indent=1, allow_nan=False) + "\n", "utf-8")
    return run


def _show_live_study(
    screen: DemoScreen,
    results: _DemoResults,
    population: DemoPopulation,
    home: Path,
    staging: Path,
    epsilon: float,
) -> None:
    """Run step 3: a real study with a coordinator and participants."""
    from shoal.cli.hello.live_study import (
        PEOPLE,
        compute_accuracy,
        describe_live_study,
        run_live_study,
    )

    screen.begin_step(
        3,
        f"a real study: {PEOPLE} participants, and a coordinator they need not trust (AnonML)",
    )
    if _skip_without_extras(screen, results, 3, "serve", "anonymous"):
        return
    place = home / "served"
    place.mkdir()
    served = run_live_study(place, epsilon, screen.on_progress)
    result = served.pop("result", None)
    if result is not None:
        yardsticks = results.data.get("yardsticks", {})
        exact = (
            {"without privacy, from the crowd": yardsticks["without_privacy"]["accuracy"]}
            if yardsticks
            else {}
        )
        served["scores"] = {
            "this model": compute_accuracy(result, population.make_test_table()),
            "guessing": population.guessing_accuracy,
            **exact,
        }
        (staging / "result").mkdir()
        (staging / "result" / "model.json").write_text(
            json_format.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8"
        )
        results.documents.append(result)
    else:
        results.left_out.append(
            {
                "step": 3,
                "why": f"This machine is too busy: {served['reason']}",
                "fix": "shoal hello",
            }
        )
    screen.print_lines(describe_live_study(served))
    results.data["served"] = served


def _write_report(screen: DemoScreen, results: _DemoResults, staging: Path) -> None:
    """Run step 4: write the report."""
    screen.begin_step(4, "the report")
    if not results.documents:
        what = "There is nothing to report, because the steps before were left out."
        screen.print_lines([("left out", what)])
        results.left_out.append({"step": 4, "why": what})
        return
    from shoal.report import make_report

    (staging / "report.html").write_text(make_report(results.documents), "utf-8")


def _skip_without_extras(
    screen: DemoScreen, results: _DemoResults, step: int, *extras: str
) -> bool:
    """Return whether a step needs missing extras, and print what to install."""
    missing = [
        extra
        for extra in extras
        if any(importlib.util.find_spec(name) is None for name in _EXTRA_MODULES[extra])
    ]
    if not missing:
        return False
    fix = format_install_command(*missing)
    why = (
        f"{format_count(len(missing), 'extra')} {'is' if len(missing) == 1 else 'are'} not "
        f"installed: {', '.join(missing)}"
    )
    screen.print_lines([("left out", f"{why}. To see it: {fix}")])
    results.left_out.append({"step": step, "why": why, "fix": fix})
    return True


def _is_browser_wanted(open_: bool | None) -> bool:
    from shoal.cli.report import has_display

    return has_display() and (sys.stdout.isatty() if open_ is None else open_)
