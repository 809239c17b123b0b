"""``shoal simulate``: what a study would learn from a table whose rows are people, beside guessing and beside no privacy at all."""

from __future__ import annotations

import json as json_format
import os
import platform
import shlex
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from shoal import __version__
from shoal.cli.check import read_table
from shoal.cli.new import write_directory
from shoal.cli.output import emit
from shoal.cli.simulate_view import describe
from shoal.clock import SystemClock
from shoal.errors import ShoalError, UsageError
from shoal.names import shell_word, shown
from shoal.protocols.anonml.analysis import phase_names
from shoal.protocols.anonml.params import Params
from shoal.protocols.anonml.population import make_script
from shoal.sim.anonml import Outcome, Split, Task, params_for, split_rows
from shoal.sim.engines import check_engine, run_all
from shoal.sim.scores import Scores, most_common, without_privacy
from shoal.sim.sweep import Point, grid, parse_sweeps, summary
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.spec import Study

MAX_REPEATS = 10_000
REMARK = (
    "a simulation: nothing was sent, and these rows are not protected by it; scores and yardsticks were computed on the rows themselves"
)


def simulate(
    study: Path,
    /,
    *,
    data: str,
    seed: int = 0,
    sweep: list[str] | None = None,
    repeats: int = 5,
    jobs: int = 1,
    engine: str = "local",
    out: Path | None = None,
    dropout: float = 0.0,
    without_perturbation: bool = False,
    json: bool = False,
) -> None:
    """Simulate an AnonML study on a table, one row a person, and score what is learned on a quarter of the rows set aside.

    Nothing is protected by a simulation: it reads the rows themselves, here, and so do the scores and yardsticks that it prints.

    Parameters
    ----------
    study
        The study file.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that fits the study.
    seed
        All randomness follows from it: which rows are set aside, who is asked what, and the noise.
    sweep
        Values to vary, such as epsilon=0.5,1,2: epsilon, size, n_partitions, n_subsets, subset_size. Several make a grid.
    repeats
        Runs of each point, for the standard error.
    jobs
        Processes to use; the result is the same for any number.
    engine
        local, or dask:ADDRESS of a cluster on this machine or behind tls://, inside your own trust domain: the rows travel to it.
    out
        A new directory for run.json, which is what --json prints, and model.json: simulated, true, and model, that of the first run.
    dropout
        Share of the people who do not answer.
    without_perturbation
        Variant paper: without any noise, to see what the noise costs.
    json
        Print one JSON object.
    """
    spec, sweeps = load(study), parse_sweeps(sweep or [])
    _check(repeats, dropout, without_perturbation and "epsilon" in sweeps)
    check_engine(jobs, engine)
    if out is not None:
        _try_out(out)
    points = grid(spec, sweeps)
    params = [params_for(point.study, without_perturbation=without_perturbation) for point in points]
    prices = [_price(point.study, without_perturbation) for point in points]
    split = split_rows(spec.schema(), read_table(data), seed)
    yardsticks = _yardsticks(spec, split)
    clock = SystemClock()
    begun = clock.now()
    tasks = [Task(one, seed, repeat, dropout) for one in params for repeat in range(repeats)]
    outcomes = run_all(tasks, split, jobs, engine)
    seconds = (clock.now() - begun).total_seconds()
    runs = [outcomes[i * repeats : (i + 1) * repeats] for i in range(len(points))]
    command = ["shoal", "simulate", str(study), "--data", data, "--seed", str(seed), "--repeats", str(repeats)]
    command += [word for text in sweep or [] for word in ("--sweep", text)]
    command += ["--dropout", str(dropout)] if dropout else []
    command += ["--without-perturbation"] if without_perturbation else []
    result = {
        "simulated": True,
        "remark": REMARK,
        "command": shlex.join(command),
        "title": spec.title,
        "digest": Manifest(spec).digest.hex(),
        "short": Manifest(spec).short,
        "study": spec.content(),
        "seed": seed,
        "repeats": repeats,
        "dropout": dropout,
        "versions": _versions(),
        "rows": {"asked": len(split.labels), "unseen": len(split.unseen_labels), "declared": spec.participation.size},
        "points": [_record(*each) for each in zip(points, params, prices, runs, strict=True)],
        **{name: asdict(scores) for name, scores in yardsticks.items()},
        "f1_of": _f1_of(spec),
        "jobs": jobs,
        "engine": engine,
        "seconds": seconds,
    }
    failure = None if out is None else _write(out, _files(result, points, runs))
    base = f"shoal simulate {shell_word(study)} --data {shell_word(data)}"
    next_command = f"{base} --sweep epsilon=0.5,1,2,4" if not sweeps else f"shoal check {shell_word(study)}"
    text = describe(result) + ("" if out is None or failure else f"\nwrote     {shown(str(out / 'run.json'))}")
    # What took hours is told even where it could not be kept.
    emit(result | ({"error": failure.to_dict()} if failure else {}), text, json=json, next_command=next_command)
    if failure and json:
        raise SystemExit(failure.exit_code)
    if failure:
        raise failure


def _check(repeats: int, dropout: float, is_contradiction: bool) -> None:
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError("USAGE-001", f"--repeats {repeats} cannot be run.", fix=f"Give a number from 1 to {MAX_REPEATS:,}.")
    if not 0 <= dropout < 1:
        raise UsageError("USAGE-001", f"--dropout {dropout} is not a share of people of whom some answer.", fix="--dropout 0.2")
    if is_contradiction:
        what = "Without perturbation there is no epsilon that could be varied."
        raise UsageError("USAGE-001", what, fix="Leave out --without-perturbation, or the sweep of epsilon.")


def _try_out(out: Path) -> None:
    """Before hours are spent: write the directory as it will be written at the end, with nothing in it, and take it away again."""
    is_new = not os.path.lexists(out)
    write_directory(out, {})
    if is_new:
        out.rmdir()


def _write(out: Path, files: dict[str, str]) -> ShoalError | None:
    try:
        write_directory(out, files)
    except ShoalError as error:
        return error
    return None


def _price(study: Study, without_perturbation: bool) -> dict[str, Any]:
    if without_perturbation:
        return {"total": None, "paper_epsilon": None, "central": None}
    plan = make_plan(study).to_dict()
    return {name: plan[name] for name in ("total", "paper_epsilon", "central")}


def _yardsticks(study: Study, split: Split) -> dict[str, Scores]:
    n_classes = len(study.label.values or ())
    return {
        "most_common": most_common(n_classes, split.labels, split.unseen_labels),
        "without_privacy": without_privacy(study.schema(), split.asked, split.labels, split.unseen, split.unseen_labels),
    }


def _f1_of(study: Study) -> str | None:
    """The class whose f1 is given; None for the mean over several."""
    values = study.label.values or ()
    return str(values[1]) if len(values) == 2 else None


def _record(point: Point, params: Params, price: dict[str, Any], outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "settings": point.settings,
        "minimum": point.study.participation.minimum,
        "declared": point.study.participation.size,
        "people": outcomes[0].people,
        "phases": phase_names(make_script(params, b"")),
        "answers": outcomes[0].answers,
        **price,
        "scores": {measure: asdict(mean) for measure, mean in summary(outcomes).items()},
        "runs": [asdict(outcome.scores) for outcome in outcomes],
        "model": _model_name(point),
    }


def _model_name(point: Point) -> str:
    return f"{point.name}/model.json" if point.settings else "model.json"


def _files(result: dict[str, Any], points: list[Point], runs: list[list[Outcome]]) -> dict[str, str]:
    # Beside the model, not inside: a model's own file is read strictly.
    models = {_model_name(point): {"simulated": True, "model": outcomes[0].model} for point, outcomes in zip(points, runs, strict=True)}
    return {name: json_format.dumps(content, indent=1, allow_nan=False) + "\n" for name, content in {"run.json": result, **models}.items()}


def _versions() -> dict[str, str]:
    versions = {"shoal": __version__, "python": platform.python_version(), "numpy": np.__version__}
    for name in ("scikit-learn", "distributed"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
