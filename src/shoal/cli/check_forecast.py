"""How ``shoal check`` makes its forecast: from public rows, from public tables, or from the study's own figures."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import tables as table_files
from shoal.cli.check_view import assumptions, is_promising
from shoal.errors import UsageError
from shoal.names import shown
from shoal.sim.forecast import forecast
from shoal.sim.forecast_closed import ERROR, closed_forecast
from shoal.sim.forecast_points import Wanted, is_large, measures_of, usual_repeats
from shoal.sim.forecast_rows import PublicRows
from shoal.sim.forecast_tables import load_tables
from shoal.sim.forecast_target import parse_target
from shoal.study.spec import Study


@dataclass(frozen=True)
class Asked:
    """What a forecast is asked for, as it was typed.

    Parameters
    ----------
    like, tables
        Public rows or public tables; at most one of them.
    target
        A measure and its value; None for none.
    sizes, epsilons
        Empty for some around the study's own.
    level, seed, jobs
        As the command has them.
    """

    like: str | None = None
    tables: Path | None = None
    target: str | None = None
    sizes: Sequence[int] = ()
    epsilons: Sequence[float] = ()
    level: float = 0.9
    seed: int = 0
    jobs: int | None = None


def numbers(option: str, text: str | None, kind: type[Any]) -> list[Any]:
    """The numbers of an option with commas between, each more than 0.

    Examples
    --------
    >>> numbers("sizes", "1000,20000", int), numbers("sizes", None, int)
    ([1000, 20000], [])
    """
    try:
        # Python would read 1_0 as ten.
        found = [] if text is None else [kind(one if "_" not in one else "") for one in text.split(",")]
    except ValueError:
        found = [math.nan]
    if all(0 < one < math.inf for one in found):
        return found
    wanted, example = ("whole numbers", "1000,10000") if kind is int else ("numbers", "0.5,1,2")
    what = f"--{option} takes {wanted} above 0 with commas between, not {shown((text or '')[:60]) or 'nothing'}."
    raise UsageError("USAGE-001", what, fix=f"--{option} {example}")


def forecast_study(study: Study, asked: Asked) -> dict[str, Any]:
    """The forecast of a study as plain data; ``from`` says what it was made from, and ``assumes`` what it rests on.

    ``is_promising`` is whether even the worse end of the study's interval is better than guessing; None where nobody can know.
    """
    _check(asked)
    if asked.like is None and asked.tables is None:
        wanted = None if asked.target is None else parse_target(asked.target, [ERROR])
        return {"from": {"kind": "figures"}, "is_promising": None, **closed_forecast(study, asked.sizes, asked.epsilons, wanted)}
    told = _simulated(study, asked)
    return {**told, "is_promising": is_promising(told), "assumes": assumptions(told, study.protocol)}


def _check(asked: Asked) -> None:
    if asked.like is not None and asked.tables is not None:
        raise UsageError("USAGE-001", "A forecast is made from --like or from --tables, not from both.", fix="Leave one of them out.")
    if not 0.5 <= asked.level <= 0.999:
        what = f"--level {asked.level:g} is not a chance from 0.5 to 0.999 that an interval covers the result."
        raise UsageError("USAGE-001", what, fix="--level 0.9")
    if asked.jobs is not None and asked.jobs < 1:
        raise UsageError("USAGE-001", f"--jobs {asked.jobs} leaves nobody to do the work.", fix="--jobs 1, or more.")


def _simulated(study: Study, asked: Asked) -> dict[str, Any]:
    target = None if asked.target is None else parse_target(asked.target, measures_of(study))
    source, made_from = _source(study, asked)
    # Starting processes takes as long as many small runs.
    jobs = asked.jobs or (min(2, os.cpu_count() or 1) if is_large(study) else 1)
    with _progress() as say:
        told = forecast(
            study,
            source,
            sizes=asked.sizes,
            epsilons=asked.epsilons,
            target=target,
            wanted=Wanted(asked.level, usual_repeats(study), asked.seed),
            jobs=jobs,
            told=say,
        )
    return {"from": made_from, **told}


def _source(study: Study, asked: Asked) -> tuple[Any, dict[str, Any]]:
    """What populations are drawn from, and what is told of it."""
    if asked.like is None:
        assert asked.tables is not None
        return load_tables(asked.tables, study, asked.seed), {"kind": "tables", "file": str(asked.tables)}
    rows = PublicRows.of(study, table_files.read(asked.like), asked.seed)
    return rows, {"kind": "like", "file": asked.like, "rows": len(rows.labels)}


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Tells a person at a terminal how many runs are made, and nobody else."""
    if not sys.stderr.isatty():
        yield lambda done, of: None  # noqa: ARG005 - nobody is there
        return
    from rich.console import Console

    with Console(stderr=True).status("forecast") as status:
        yield lambda done, of: status.update(f"forecast: {done:,} of {of:,} runs")
