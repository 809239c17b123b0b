"""``shoal hello``: the demonstration. Made-up people, the four protocols on them, a real study on this machine, and a report of it all."""

from __future__ import annotations

import importlib.util
import io
import json as json_format
import os
import sys
import webbrowser
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shoal import __version__
from shoal.cli.hello_children import heeding_hang_up
from shoal.cli.hello_files import check_target, publish, working_directory
from shoal.cli.hello_person import one_person, person_lines
from shoal.cli.hello_population import REPEATS, ROWS, SEED, Population, compared, compared_lines, csv_of, make_population, n_steps
from shoal.cli.hello_view import Stage, on_stage
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy, require_system
from shoal.errors import UsageError
from shoal.names import counted, shell_word, shown
from shoal.privacy.rounding import show

LEAST, MOST = 0.1, 4.0
"""Below, a crowd of this size says nothing; above, a new ledger refuses."""
SWEPT = (0.25, 0.5, 1.0, 2.0, 4.0)
_NEEDED = {
    "learn": ("sklearn", "scipy"),
    "serve": ("uvicorn", "uvloop", "httptools", "starlette", "prometheus_client", "jinja2"),
    "anonymous": ("pyblst", "py_arkworks_bls12381"),
}
"""Extras, and what they install."""


@dataclass
class _Shown:
    """What the demonstration has come to so far: documents for the report, and figures for programs."""

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
    """Show what shoal does, in half a minute: one person's answer, four protocols on one population, a real study, a report.

    Nothing leaves this machine and nothing is asked of you. The people are made up; the coordinator, the participants, their ledgers,
    the tokens and the noise of what they send are real. Your own ledger is not touched.

    Parameters
    ----------
    epsilon
        Budget of one person, device or record, 0.1 to 4.
    out
        A directory for the report and what it is made of. One that an earlier demonstration has written is replaced, if it is unchanged.
    open_
        Show the report in a browser, or do not; by default where there is a display and a terminal.
    json
        Print one JSON object.
    """
    if not LEAST <= epsilon <= MOST:
        what = f"The demonstration takes an epsilon from {LEAST} to {MOST}, not {epsilon}."
        raise UsageError("USAGE-001", what, fix="shoal hello --epsilon 2")
    target = Path(os.path.abspath(out))  # noqa: PTH100 - a link is not followed
    check_target(target)
    clock = SystemClock()
    begun = clock.now()
    head = f"shoal {__version__}  learn from the shoal, not the fish"
    with heeding_hang_up(), working_directory() as name, on_stage(head, is_quiet=json) as stage:
        home, made, told = Path(name), Path(name) / "made", _Shown()
        made.mkdir()
        population = _population(stage, told, home, made, epsilon)
        _compare(stage, told, population, made, out)
        _serve(stage, told, population, home, made, epsilon)
        _report(stage, told, made)
        seconds = (clock.now() - begun).total_seconds()
        data = {"version": __version__, "epsilon": epsilon, **told.data, "left_out": told.left_out, "seconds": seconds}
        publish(made, target, data)
    has_report = bool(told.documents)
    is_shown = has_report and _is_wanted(open_) and webbrowser.open((target / "report.html").as_uri())
    place = {"directory": str(out), "report": str(out / "report.html") if has_report else None, "opened": is_shown}
    text = f"     {'wrote':<15}{shown(str(out))}: report.html{' (opened)' if is_shown else ''}, study.toml, people.csv and the runs"
    text = text if has_report else f"     {'wrote':<15}{shown(str(out))}: study.toml, people.csv"
    note = f"It took {seconds:.0f} s. Nothing has left this machine; the people are made up, and a simulation protects nobody."
    tried = f"shoal compare {shell_word(out / 'study.toml')} --data {shell_word(out / 'people.csv')} --epsilon 0.5,2"
    emit(
        data | place, f"{text}\n\n{note}\nmore      {tried}", json=json, next_command="shoal new my-study --protocol anonml --from rows.csv"
    )


def _population(stage: Stage, told: _Shown, home: Path, made: Path, epsilon: float) -> Population:
    """Step 1: who they are, and what would leave one of them."""
    stage.step(1, f"{ROWS:,} made-up people, 6 features, and who of them sleeps badly")
    population = make_population(epsilon)
    (made / "study.toml").write_text(population.text, "utf-8")
    (made / "people.csv").write_text(csv_of(population.table), "utf-8")
    person = one_person(epsilon, require_system(SystemEntropy()), home / "ledger.db")
    stage.lines(person_lines(person))
    rows = {"asked": len(population.split.labels), "unseen": len(population.split.unseen_labels)}
    told.data |= {"person": person, "rows": rows, "guessing": population.guessing, "truth": population.truth}
    return population


def _compare(stage: Stage, told: _Shown, population: Population, made: Path, out: Path) -> None:
    """Step 2: all protocols at the same epsilon on the same rows; and one of them at others, for the curve."""
    price, asked = show(population.study.privacy.epsilon), len(population.split.labels)
    stage.step(2, f"the four protocols on the same {asked:,} of them, simulated, each at epsilon {price} of its own unit")
    if _lacks(stage, told, 2, "learn"):
        return
    total, n = n_steps(population), 0

    def done() -> None:
        nonlocal n
        n += 1
        stage.tell(f"{n} of {total} runs")

    found = compared(population, out / "study.toml", out / "people.csv", done)
    stage.lines(compared_lines(found, population.truth))
    stage.tell("the same at other epsilons")
    run = _swept(made, out, sorted({*SWEPT, population.study.privacy.epsilon}))
    (made / "compare").mkdir()
    (made / "compare" / "compare.json").write_text(json_format.dumps(found, indent=1, allow_nan=False) + "\n", "utf-8")
    told.documents += [found, run]
    names = ("name", "protocol", "variant", "trust", "epsilon", "delta", "unit", "relation", "adversary", "scores")
    told.data |= {"compared": [{name: entry[name] for name in names} for entry in found["entries"]], "yardsticks": found["yardsticks"]}


def _swept(made: Path, out: Path, epsilons: list[float]) -> dict[str, Any]:
    """What ``shoal simulate --sweep epsilon=...`` writes; its command names the files where they will be."""
    from shoal.cli.simulate import simulate

    sweep = f"epsilon={','.join(f'{epsilon:g}' for epsilon in epsilons)}"
    study, data = made / "study.toml", str(made / "people.csv")
    # Its own words and its own bar are for whoever runs it alone.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        simulate(study, data=data, seed=SEED, sweep=[sweep], repeats=REPEATS, out=made / "run", json=True)
    file = made / "run" / "run.json"
    run: dict[str, Any] = json_format.loads(file.read_text("utf-8"))
    run["command"] = run["command"].replace(str(made), shell_word(out))
    file.write_text(json_format.dumps(run, indent=1, allow_nan=False) + "\n", "utf-8")
    return run


def _serve(stage: Stage, told: _Shown, population: Population, home: Path, made: Path, epsilon: float) -> None:
    """Step 3: a coordinator and participants, for real."""
    from shoal.cli.hello_served import PEOPLE, right_answers, serve_once, served_lines

    stage.step(3, f"a real study: {PEOPLE} participants, and a coordinator that none of them trusts (AnonML)")
    if _lacks(stage, told, 3, "serve", "anonymous"):
        return
    place = home / "served"
    place.mkdir()
    served = serve_once(place, epsilon, stage.tell)
    result = served.pop("result", None)
    if result is not None:
        yardsticks = told.data.get("yardsticks", {})
        exact = {"without privacy, from the crowd": yardsticks["without_privacy"]["accuracy"]} if yardsticks else {}
        served["scores"] = {"this model": right_answers(result, population.unseen()), "guessing": population.guessing, **exact}
        (made / "result").mkdir()
        (made / "result" / "model.json").write_text(json_format.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8")
        told.documents.append(result)
    else:
        told.left_out.append({"step": 3, "why": f"This machine is too busy: {served['reason']}", "fix": "shoal hello"})
    stage.lines(served_lines(served))
    told.data["served"] = served


def _report(stage: Stage, told: _Shown, made: Path) -> None:
    """Step 4: all of it on one page."""
    stage.step(4, "the report")
    if not told.documents:
        what = "There is nothing to report on, since the steps before were left out."
        stage.lines([("left out", what)])
        told.left_out.append({"step": 4, "why": what})
        return
    from shoal.report import report_of

    (made / "report.html").write_text(report_of(told.documents), "utf-8")


def _lacks(stage: Stage, told: _Shown, step: int, *extras: str) -> bool:
    """Whether a step cannot be shown, which is said together with what to install."""
    lacking = [extra for extra in extras if any(importlib.util.find_spec(name) is None for name in _NEEDED[extra])]
    if not lacking:
        return False
    fix = f"pip install 'shoal[{','.join(lacking)}]'"
    why = f"{counted(len(lacking), 'extra')} {'is' if len(lacking) == 1 else 'are'} not installed: {', '.join(lacking)}"
    stage.lines([("left out", f"{why}. To see it: {fix}")])
    told.left_out.append({"step": step, "why": why, "fix": fix})
    return True


def _is_wanted(open_: bool | None) -> bool:
    from shoal.cli.report import has_display

    return has_display() and (sys.stdout.isatty() if open_ is None else open_)
