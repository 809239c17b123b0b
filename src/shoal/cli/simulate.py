"""``shoal simulate``: what a study would learn from a table, beside guessing and beside no privacy at all."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal import __version__
from shoal.cli.check import read_table
from shoal.cli.new import write_directory
from shoal.cli.output import emit
from shoal.cli.progress import counting
from shoal.cli.simulate_files import files_of, record_of
from shoal.cli.simulate_releases import write_releases
from shoal.cli.simulate_view import describe
from shoal.clock import SystemClock
from shoal.errors import ShoalError, UsageError
from shoal.names import shell_word, shown
from shoal.protocols.ddml.population import Traffic
from shoal.releases.artefact import DOCUMENT
from shoal.sim.engines import check_engine, interruptions_held, run_all
from shoal.sim.protocols import params_for, yardsticks
from shoal.sim.runs import Split, Task, split_rows
from shoal.sim.sweep import Point, grid, parse_sweeps
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.spec import Study

MAX_REPEATS = 10_000
MAX_IN_FLIGHT = 10_000
_BUDGET = ("epsilon", "delta")
_PRICES = ("total", "charged", "paper_epsilon", "central")
REMARK = (
    "a simulation: nothing was sent, and these rows are not protected by it; "
    "scores, yardsticks and details were computed on the rows themselves"
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
    in_flight: int = 0,
    order: Literal["shuffled", "given"] = "shuffled",
    device: str | None = None,
    holder: str | None = None,
    json: bool = False,
) -> None:
    """Simulate a study on a table, and score what is learned on a quarter of the rows set aside.

    A row is a person of anonml; batch_size rows that follow each other are a device of ddml, unless --device says whose they are. Rows
    are dealt to the databases of sdq and the holders of pfds at random, unless --holder says who holds them.
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
        Values to vary, such as epsilon=0.5,1,2: epsilon, delta and size; n_partitions, n_subsets and subset_size of anonml; n_updates,
        n_instances, learning_rate, clip and batch_size of ddml; n_databases, max_colluders and depth of sdq; n_holders,
        max_colluders and max_depth of pfds. Several make a grid.
    repeats
        Runs of each point, for the standard error.
    jobs
        Processes to use; the result is the same for any number.
    engine
        local, or dask:ADDRESS of a cluster on this machine or behind tls://, inside your own trust domain: the rows travel to it.
    out
        A new directory for run.json, which is what --json prints, and model.json: which study it is of, simulated, true, and
        model, that of the first run.
        What the first run of each point shows besides its scores is under details: what shoal report draws.
        A tree is there as tree.txt and tree.svg too, and what pfds releases as a signed release, marked as a simulation; there is none
        where fewer take part than the study's minimum.
    dropout
        Share of the people, devices, databases or holders that do not answer. Databases of sdq and holders of pfds, rounded up, are away
        before the study begins; none vanishes later, as one might that sits in the committee.
    without_perturbation
        Without any noise, to see what it costs: ddml, sdq, pfds, and anonml's variant paper. Nothing is released then.
    in_flight
        ddml: other updates that are under way while a device improves its own, so that it comes back to a model that has moved on.
    order
        ddml: in which order devices come, at random or as in the table.
    device
        ddml: a column that names the device of a row. It is read here alone.
    holder
        sdq and pfds: a column that names who holds a row, with as many names as the study has databases or holders. It is read here alone.
    json
        Print one JSON object.
    """
    spec, sweeps = load(study), parse_sweeps(sweep or [])
    _check(repeats, dropout, without_perturbation and not sweeps.keys().isdisjoint(_BUDGET))
    _check_devices(spec, in_flight, order, device)
    if holder is not None and spec.protocol not in ("sdq", "pfds"):
        what = f"--holder is about the databases of sdq and the holders of pfds; this study is of {spec.protocol}."
        raise UsageError("USAGE-001", what, fix="Leave it out.")
    check_engine(jobs, engine)
    if out is not None:
        try_out(out)
    points = grid(spec, sweeps)
    params = [params_for(point.study, without_perturbation=without_perturbation) for point in points]
    prices = [_price(point.study, without_perturbation) for point in points]
    person = device if spec.data is None else spec.data.person
    split = split_rows(spec.schema(), read_table(data), seed, device or holder, person)
    held_against = yardsticks(params[0], split)
    clock = SystemClock()
    begun = clock.now()
    traffic = Traffic(in_flight, order)
    tasks = [Task(one, seed, repeat, dropout, traffic) for one in params for repeat in range(repeats)]
    with counting("runs", len(tasks)) as done:
        outcomes = run_all(tasks, split, jobs, engine, done)
    seconds = (clock.now() - begun).total_seconds()
    runs = [outcomes[i * repeats : (i + 1) * repeats] for i in range(len(points))]
    command = ["shoal", "simulate", str(study), "--data", data, "--seed", str(seed), "--repeats", str(repeats)]
    command += [word for text in sweep or [] for word in ("--sweep", text)]
    command += ["--dropout", str(dropout)] if dropout else []
    command += ["--without-perturbation"] if without_perturbation else []
    command += ["--in-flight", str(in_flight)] if in_flight else []
    command += ["--order", order] if order != "shuffled" else []
    command += ["--device", device] if device is not None else []
    command += ["--holder", holder] if holder is not None else []
    result = {
        "simulated": True,
        "remark": REMARK,
        "command": shlex.join(command),
        "title": spec.title,
        "protocol": spec.protocol,
        "digest": Manifest(spec).digest.hex(),
        "short": Manifest(spec).short,
        "study": spec.content(),
        "seed": seed,
        "repeats": repeats,
        "dropout": dropout,
        "in_flight": in_flight,
        "order": order,
        "device": device,
        "holder": holder,
        "versions": versions(),
        "rows": {"asked": len(split.labels), "unseen": len(split.unseen_labels), "declared": spec.participation.size},
        "points": [record_of(*each) for each in zip(points, params, prices, runs, strict=True)],
        **{name: asdict(scores) for name, scores in held_against.items()},
        "f1_of": _f1_of(spec),
        "jobs": jobs,
        "engine": engine,
        "seconds": seconds,
    }
    files = files_of(result, points, params, runs)
    is_released = spec.protocol == "pfds" and not without_perturbation
    # A study that is given up releases nothing, whatever it would have learned.
    enough = [outcomes[0].people >= point.study.participation.minimum for point, outcomes in zip(points, runs, strict=True)]
    releases = list(compress(zip(points, tasks[::repeats], strict=True), enough)) if is_released else []
    failure = None if out is None else _write(out, files, releases, split)
    next_command = _next(study, data, None if failure else out, is_sweep=bool(sweeps))
    text = describe(result) + ("" if out is None or failure else f"\nwrote     {_written(out, files)}")
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
        raise UsageError("USAGE-001", f"--dropout {dropout} is not a share that leaves some who answer.", fix="--dropout 0.2")
    if is_contradiction:
        what = "Without perturbation there is no epsilon or delta that could be varied."
        raise UsageError("USAGE-001", what, fix="Leave out --without-perturbation, or the sweep of epsilon or delta.")


def _check_devices(study: Study, in_flight: int, order: str, device: str | None) -> None:
    if not 0 <= in_flight <= MAX_IN_FLIGHT:
        raise UsageError("USAGE-001", f"--in-flight {in_flight} cannot be run.", fix=f"Give a number from 0 to {MAX_IN_FLIGHT:,}.")
    if study.protocol != "ddml" and (in_flight or order != "shuffled" or device is not None):
        what = f"--in-flight, --order and --device are about the devices of ddml; this study is of {study.protocol}."
        raise UsageError("USAGE-001", what, fix="Leave them out.")


def try_out(out: Path) -> None:
    """Before hours are spent: write the directory as it will be written at the end, with nothing in it, and take it away again."""
    is_new = not os.path.lexists(out)
    write_directory(out, {})
    if is_new:
        out.rmdir()


def _next(study: Path, data: str, out: Path | None, *, is_sweep: bool) -> str:
    if out is not None:
        return f"shoal report {shell_word(out)}"
    if is_sweep:
        return f"shoal check {shell_word(study)}"
    return f"shoal simulate {shell_word(study)} --data {shell_word(data)} --sweep epsilon=0.5,1,2,4"


def _write(out: Path, files: dict[str, str], releases: Sequence[tuple[Point, Task]], split: Split) -> ShoalError | None:
    is_new = not os.path.lexists(out)
    try:
        write_directory(out, files)
        try:
            for point, task in releases:
                write_releases(out / point.name, point.study, task, split)
        except BaseException:
            # A run without its releases would be taken for a study that was given up.
            with interruptions_held():
                _take_away(out, is_new)
            raise
    except ShoalError as error:
        return error
    return None


def _take_away(out: Path, is_new: bool) -> None:
    """What was written into a directory, and the directory itself where it was not there before."""
    for entry in out.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if is_new:
        out.rmdir()


def _written(out: Path, files: dict[str, str]) -> str:
    """The files of a run, or of a sweep those of its points by their kinds; and the directories of releases."""
    releases = sorted({path.parent.name for path in out.rglob(DOCUMENT)}, key=lambda name: (len(name), name))
    made = releases if len(releases) < 2 else [f"{releases[0]} to {releases[-1]}"]
    alone = [name for name in files if "/" not in name]
    kinds = sorted({name.partition("/")[2] for name in files if "/" in name})
    # A point whose study was not given up has a release; where there is one point only, it is the directory itself.
    (kinds or alone).extend(made)
    of_points = f"; in a directory of each point {', '.join(kinds)}" if kinds else ""
    return f"{shown(str(out))}: {', '.join(alone)}{of_points}"


def _price(study: Study, without_perturbation: bool) -> dict[str, Any]:
    if without_perturbation:
        return dict.fromkeys(_PRICES)
    plan = make_plan(study).to_dict()
    return {name: plan[name] for name in _PRICES}


def _f1_of(study: Study) -> str | None:
    """The class whose f1 is given; None for the mean over several, and for a number."""
    values = study.label.values or ()
    return str(values[1]) if len(values) == 2 else None


def versions() -> dict[str, str]:
    versions = {"shoal": __version__, "python": platform.python_version(), "numpy": np.__version__}
    for name in ("scikit-learn", "numba", "distributed"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
