"""``shoal compare``: every protocol and trust that fits a study, side by side on the same rows."""

from __future__ import annotations

import json as json_format
import math
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.cli.check import read_table
from shoal.cli.compare_view import describe, picture
from shoal.cli.new import write_directory
from shoal.cli.output import emit
from shoal.cli.progress import counting
from shoal.cli.simulate import MAX_REPEATS, try_out, versions
from shoal.errors import ShoalError, UsageError
from shoal.mechanisms.base import MAX_EPSILON, MIN_EPSILON
from shoal.names import shell_word, shown
from shoal.sim.comparing import compare_study, n_steps
from shoal.sim.engines import check_engine
from shoal.sim.runs import split_rows
from shoal.study.load import load
from shoal.study.plan import make_plan
from shoal.study.settings import MAX_DATABASES

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
    """Simulate every protocol, variant and trust that fits a study, on the same rows, and print them side by side.

    A row is a person of anonml and a device of ddml (where the study has a [data] table, a device is a person's); sdq and pfds deal the
    rows to databases and organisations, or take --holder's word. All are given the same epsilon, which means something else in each: unit,
    neighbouring relation and adversary stand beside it. Nothing is protected by this: it reads the rows themselves, here.

    Parameters
    ----------
    study
        The study file: its columns, label, declared size and epsilon, and what it says of its own protocol.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that fits the study.
    epsilon
        One or more, such as 0.5,1,2; by default the study's.
    repeats
        Runs of each, for the standard error and the interval.
    seed
        All randomness follows from it; the same rows are set aside as by shoal simulate.
    jobs
        Processes to use; the result is the same for any number.
    holder
        A column that names the database or organisation that holds a row. It is read here alone.
    holders
        How many databases or organisations rows are dealt to; by default as many as the study says, or 10.
    out
        A new directory for compare.json, which is what --json prints, and compare.svg.
    json
        Print one JSON object.
    """
    spec = load(study)
    epsilons = [spec.privacy.epsilon] if epsilon is None else _epsilons(epsilon)
    _check(repeats, holder, holders)
    check_engine(jobs, "local")
    make_plan(spec)
    if out is not None:
        try_out(out)
    split = split_rows(spec.schema(), read_table(data), seed, holder, None if spec.data is None else spec.data.person)
    with counting("runs", n_steps(spec, epsilons, repeats)) as done:
        found = compare_study(
            spec,
            split,
            epsilons=epsilons,
            repeats=repeats,
            seed=seed,
            jobs=jobs,
            n_holders=holders,
            joint=find_spec("mpyc") is not None,
            done=done,
        )
    command = ["shoal", "compare", str(study), "--data", data, "--seed", str(seed), "--repeats", str(repeats)]
    command += ["--epsilon", epsilon] if epsilon is not None else []
    command += ["--holder", holder] if holder is not None else []
    command += ["--holders", str(holders)] if holders is not None else []
    result = found | {"command": shlex.join(command), "versions": versions()}
    failure = None if out is None else _written(out, result)
    text = describe(result) + ("" if out is None or failure else f"\nwrote     {shown(str(out))}: compare.json, compare.svg")
    # What took minutes is told even where it could not be kept.
    emit(result | ({"error": failure.to_dict()} if failure else {}), text, json=json, next_command=_next(study, data, out, failure))
    if failure and json:
        raise SystemExit(failure.exit_code)
    if failure:
        raise failure


def _epsilons(text: str) -> list[float]:
    """The epsilons that are typed with commas between them."""
    try:
        found = [_number(part) for part in text.split(",")]
    except ValueError:
        what = f"--epsilon takes numbers with commas between, not {shown(text[:60])}." if text.strip() else "--epsilon is empty."
        raise UsageError("USAGE-001", what, fix="--epsilon 0.5,1,2") from None
    if len(set(found)) < len(found) or len(found) > MAX_EPSILONS:
        what = f"--epsilon {shown(text[:60])} names {'the same value twice' if len(found) <= MAX_EPSILONS else 'too many values'}."
        raise UsageError("USAGE-001", what, fix=f"Give each value once, at most {MAX_EPSILONS}.")
    strange = [value for value in found if not (math.isfinite(value) and MIN_EPSILON <= value <= MAX_EPSILON)]
    if strange:
        fix = f"Give values from {MIN_EPSILON:g} to {MAX_EPSILON:g}."
        raise UsageError("USAGE-001", f"An epsilon of {strange[0]:g} cannot be compared at.", fix=fix)
    return found


def _number(text: str) -> float:
    """A number as people write it; Python would also read 1_0 as ten."""
    if "_" in text:
        raise ValueError
    return float(text)


def _check(repeats: int, holder: str | None, holders: int | None) -> None:
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError("USAGE-001", f"--repeats {repeats} cannot be run.", fix=f"Give a number from 1 to {MAX_REPEATS:,}.")
    if holder is not None and holders is not None:
        what = "--holder says who holds each row, and --holders how many rows are dealt to: one of them is enough."
        raise UsageError("USAGE-001", what, fix="Leave one of them out.")
    if holders is not None and not 1 <= holders <= MAX_DATABASES:
        raise UsageError("USAGE-001", f"Rows cannot be dealt to --holders {holders}.", fix=f"Give a number from 3 to {MAX_DATABASES:,}.")


def _written(out: Path, result: dict[str, Any]) -> ShoalError | None:
    try:
        write_directory(out, {"compare.json": json_format.dumps(result, indent=1, allow_nan=False) + "\n", "compare.svg": picture(result)})
    except ShoalError as error:
        return error
    return None


def _next(study: Path, data: str, out: Path | None, failure: ShoalError | None) -> str:
    if out is not None and failure is None:
        return f"shoal report {shell_word(out)}"
    return f"shoal compare {shell_word(study)} --data {shell_word(data)} --out compared"
