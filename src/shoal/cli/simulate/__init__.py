"""``shoal simulate``: what a study would learn from a table, compared with baselines.

Options are checked and the output directory is tried before the runs start, because runs may take
hours. A result that cannot be written is still printed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal import __version__
from shoal.cli.arguments import read_table
from shoal.cli.output import emit, show_progress_bar
from shoal.cli.simulate.files import make_files, make_point_record
from shoal.cli.simulate.protocol import ProtocolView
from shoal.cli.simulate.view import VIEWS, format_runs
from shoal.clock import SystemClock
from shoal.errors import ShoalError, UsageError
from shoal.files import write_directory
from shoal.protocols.ddml.population import Traffic
from shoal.releases.artifact import DOCUMENT
from shoal.simulation.engines import check_engine, delay_interrupts, run_all
from shoal.simulation.registry import make_simulation_params, score_baselines
from shoal.simulation.run import RunTask, Split, split_rows
from shoal.simulation.sweep import SweepPoint, make_grid, parse_sweeps
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.registry import get_protocol
from shoal.study.spec import Study
from shoal.text import escape_text, shell_quote

MAX_REPEATS = 10_000
MAX_IN_FLIGHT = 10_000
_BUDGET_KEYS = ("epsilon", "delta")
_PRICE_KEYS = ("total", "charged", "paper_epsilon", "central")
REMARK = (
    "this is a simulation: nothing was sent, and it does not protect these rows; "
    "scores, baselines and details were computed on the rows themselves"
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
    """Simulate a study on a table, and score the model on a quarter of the rows.

    A row is a person of anonml. batch_size consecutive rows are a device of ddml, unless --device
    names a column with the device. Rows are assigned to the databases of sdq and the holders of
    pfds at random, unless --holder names a column with the holder. A simulation protects nothing:
    it reads the rows on this machine, and so do the scores and baselines that it prints.

    Parameters
    ----------
    study
        The study file.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that fits the study.
    seed
        Source of all randomness: the test rows, the questions to each participant, and the noise.
    sweep
        Values to vary, such as epsilon=0.5,1,2: epsilon, delta and size; n_partitions, n_subsets
        and subset_size of anonml; n_updates, n_instances, learning_rate, clip and batch_size of
        ddml; n_databases, max_colluders and depth of sdq; n_holders, max_colluders and max_depth of
        pfds. Several --sweep options make a grid.
    repeats
        Runs of each point, for the standard error.
    jobs
        Processes to use; the result is the same for any number.
    engine
        local, or dask:ADDRESS of a cluster on this machine or behind tls://, inside your trust
        domain: the rows are sent to it.
    out
        A new directory for run.json, which is the output of --json, and model.json, the model of
        the first run with its study and a mark as simulated. run.json has the diagnostics of the
        first run of each point under details, from which shoal report draws charts. A tree is also
        written as tree.txt and tree.svg. A release of pfds is signed and marked as a simulation;
        with fewer participants than the study's minimum there is none.
    dropout
        Share of the people, devices, databases or holders that do not answer. Databases of sdq and
        holders of pfds, rounded up, are absent from the start; none drops out later, for example as
        a member of the committee.
    without_perturbation
        Simulate without noise, to see its cost: ddml, sdq, pfds, and variant paper of anonml.
        Nothing is released then.
    in_flight
        ddml: other updates that arrive while a device computes its update, so that the model has
        changed when the update is merged.
    order
        ddml: order of the devices, at random or as in the table.
    device
        ddml: a column that names the device of a row. It does not leave this machine.
    holder
        sdq and pfds: a column that names the holder of a row. The number of different names must be
        that of the study's databases or holders. It does not leave this machine.
    json
        Print one JSON object.
    """
    spec, sweeps = load_study(study), parse_sweeps(sweep or [])
    _check_options(
        repeats, dropout, without_perturbation and not sweeps.keys().isdisjoint(_BUDGET_KEYS)
    )
    view = VIEWS.get(spec.protocol)
    _check_device_options(spec, view, in_flight, order, device)
    if holder is not None and not get_protocol(spec).holders.are_organisations:
        what = (
            "--holder is for studies of sdq and pfds; the protocol of this study is "
            f"{spec.protocol}."
        )
        raise UsageError("USAGE-001", what, fix="Remove --holder.")
    check_engine(jobs, engine)
    if out is not None:
        try_output_directory(out)
    points = make_grid(spec, sweeps)
    params = [
        make_simulation_params(point.study, without_perturbation=without_perturbation)
        for point in points
    ]
    prices = [_compute_price(point.study, without_perturbation) for point in points]
    person = device if spec.data is None else spec.data.person
    split = split_rows(spec.schema(), read_table(data), seed, device or holder, person)
    baselines = score_baselines(params[0], split)
    clock = SystemClock()
    begun = clock.now()
    traffic = Traffic(in_flight, order)
    tasks = [
        RunTask(settings, seed, repeat, dropout, traffic)
        for settings in params
        for repeat in range(repeats)
    ]
    with show_progress_bar("runs", len(tasks)) as done:
        outcomes = run_all(tasks, split, jobs, engine, done)
    seconds = (clock.now() - begun).total_seconds()
    runs = [outcomes[i * repeats : (i + 1) * repeats] for i in range(len(points))]
    command = [
        "shoal",
        "simulate",
        str(study),
        "--data",
        data,
        "--seed",
        str(seed),
        "--repeats",
        str(repeats),
    ]
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
        "short": Manifest(spec).short_digest,
        "study": spec.to_content(),
        "seed": seed,
        "repeats": repeats,
        "dropout": dropout,
        "in_flight": in_flight,
        "order": order,
        "device": device,
        "holder": holder,
        "versions": list_versions(),
        "rows": {
            "asked": len(split.train_labels),
            "unseen": len(split.test_labels),
            "declared": spec.participation.size,
        },
        "points": [
            make_point_record(*each) for each in zip(points, params, prices, runs, strict=True)
        ],
        **{name: asdict(scores) for name, scores in baselines.items()},
        "f1_of": _find_f1_class(spec),
        "jobs": jobs,
        "engine": engine,
        "seconds": seconds,
    }
    files = make_files(result, points, params, runs)
    # A study with too few participants releases nothing.
    enough = [
        outcomes[0].n_participants >= point.study.participation.minimum
        for point, outcomes in zip(points, runs, strict=True)
    ]
    releases = list(compress(zip(points, tasks[::repeats], strict=True), enough))
    released = _ReleaseWriter(view, [] if without_perturbation else releases, split)
    failure = None if out is None else _write_files(out, files, released)
    next_command = _suggest_next(study, data, None if failure else out, is_sweep=bool(sweeps))
    text = format_runs(result) + (
        "" if out is None or failure else f"\nwrote     {_describe_files(out, files)}"
    )
    # Print a result that took hours even if it could not be written.
    emit(
        result | ({"error": failure.to_dict()} if failure else {}),
        text,
        json=json,
        next_command=next_command,
    )
    if failure and json:
        raise SystemExit(failure.exit_code)
    if failure:
        raise failure


def _check_options(repeats: int, dropout: float, is_contradiction: bool) -> None:
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError(
            "USAGE-001",
            f"--repeats {repeats} is out of range.",
            fix=f"Give a number from 1 to {MAX_REPEATS:,}.",
        )
    if not 0 <= dropout < 1:
        raise UsageError(
            "USAGE-001",
            f"--dropout {dropout} is not a share from 0 to less than 1.",
            fix="Try --dropout 0.2",
        )
    if is_contradiction:
        what = "Without perturbation there is no epsilon or delta to vary."
        raise UsageError(
            "USAGE-001",
            what,
            fix="Remove --without-perturbation, or the sweep of epsilon or delta.",
        )


def _check_device_options(
    study: Study, view: ProtocolView | None, in_flight: int, order: str, device: str | None
) -> None:
    if not 0 <= in_flight <= MAX_IN_FLIGHT:
        raise UsageError(
            "USAGE-001",
            f"--in-flight {in_flight} is out of range.",
            fix=f"Give a number from 0 to {MAX_IN_FLIGHT:,}.",
        )
    has_devices = view is not None and view.has_devices
    if not has_devices and (in_flight or order != "shuffled" or device is not None):
        what = (
            "--in-flight, --order and --device are for studies of ddml; the protocol of this study "
            f"is {study.protocol}."
        )
        raise UsageError("USAGE-001", what, fix="Remove them.")


def try_output_directory(out: Path) -> None:
    """Create the output directory without files, and remove it again if it is new.

    Runs may take hours, so a directory that cannot be written is reported before them.
    """
    is_new = not os.path.lexists(out)
    write_directory(out, {})
    if is_new:
        out.rmdir()


def _suggest_next(study: Path, data: str, out: Path | None, *, is_sweep: bool) -> str:
    if out is not None:
        return f"shoal report {shell_quote(out)}"
    if is_sweep:
        return f"shoal check {shell_quote(study)}"
    return (
        f"shoal simulate {shell_quote(study)} --data {shell_quote(data)} --sweep epsilon=0.5,1,2,4"
    )


@dataclass(frozen=True)
class _ReleaseWriter:
    """The releases of points that have enough participants."""

    view: ProtocolView | None
    points: Sequence[tuple[SweepPoint, RunTask]]
    split: Split

    def write(self, out: Path) -> None:
        """Write the releases of each point, if the protocol has releases."""
        write = None if self.view is None else self.view.write_releases
        for point, task in self.points if write is not None else ():
            assert write is not None
            write(out / point.name, point.study, task, self.split)


def _write_files(out: Path, files: dict[str, str], releases: _ReleaseWriter) -> ShoalError | None:
    is_new = not os.path.lexists(out)
    try:
        write_directory(out, files)
        try:
            releases.write(out)
        except BaseException:
            # A run without its releases would look like a study with too few participants.
            with delay_interrupts():
                _remove_output(out, is_new)
            raise
    except ShoalError as error:
        return error
    return None


def _remove_output(out: Path, is_new: bool) -> None:
    """Remove the files of a directory, and the directory itself if it is new."""
    for entry in out.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if is_new:
        out.rmdir()


def _describe_files(out: Path, files: dict[str, str]) -> str:
    """Return the names of the files of a run, or of each point, and of the releases."""
    releases = sorted(
        {path.parent.name for path in out.rglob(DOCUMENT)}, key=lambda name: (len(name), name)
    )
    made = releases if len(releases) < 2 else [f"{releases[0]} to {releases[-1]}"]
    alone = [name for name in files if "/" not in name]
    kinds = sorted({name.partition("/")[2] for name in files if "/" in name})
    # Releases are in the directory of a point; with one point that is the output directory.
    (kinds or alone).extend(made)
    of_points = f"; for each point a directory with {', '.join(kinds)}" if kinds else ""
    return f"{escape_text(str(out))}: {', '.join(alone)}{of_points}"


def _compute_price(study: Study, without_perturbation: bool) -> dict[str, Any]:
    if without_perturbation:
        return dict.fromkeys(_PRICE_KEYS)
    plan = make_plan(study).to_dict()
    return {name: plan[name] for name in _PRICE_KEYS}


def _find_f1_class(study: Study) -> str | None:
    """Return the class of the f1 score; None for a mean over several classes, or a number."""
    values = study.label.values or ()
    return str(values[1]) if len(values) == 2 else None


def list_versions() -> dict[str, str]:
    """Return the versions of Python, shoal and the libraries that affect a result."""
    versions = {"shoal": __version__, "python": platform.python_version(), "numpy": np.__version__}
    for name in ("scikit-learn", "numba", "distributed"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
