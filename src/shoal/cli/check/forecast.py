"""Forecasts of ``shoal check``: from public rows, public tables, or figures alone.

`shoal.cli.check` calls `forecast_study`, and `shoal.cli.check.view` prints its result. A forecast
reads public data only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli.check.view import is_promising, list_assumptions
from shoal.data import tables as table_files
from shoal.errors import UsageError
from shoal.simulation.forecast import forecast
from shoal.simulation.forecast.closed_form import ERROR, forecast_closed_form
from shoal.simulation.forecast.points import ForecastConfig, choose_repeats, is_large, list_measures
from shoal.simulation.forecast.sources import PublicRows, load_tables
from shoal.simulation.forecast.target import parse_target
from shoal.study.spec import Study


@dataclass(frozen=True)
class ForecastOptions:
    """The options of a forecast; see `shoal.cli.check.check`.

    Parameters
    ----------
    like, tables
        Public rows or public tables; at most one of them.
    sizes, epsilons
        Empty for values around the study's own.
    """

    like: str | None = None
    tables: Path | None = None
    target: str | None = None
    sizes: Sequence[int] = ()
    epsilons: Sequence[float] = ()
    level: float = 0.9
    seed: int = 0
    jobs: int | None = None


def forecast_study(study: Study, options: ForecastOptions) -> dict[str, Any]:
    """Return the forecast of a study as plain data.

    ``from`` is its source and ``assumes`` its assumptions. ``is_promising`` is true if the worse
    end of the study's interval is better than guessing; None if that is not known.
    """
    _check_options(options)
    if options.like is None and options.tables is None:
        wanted = None if options.target is None else parse_target(options.target, [ERROR])
        return {
            "from": {"kind": "figures"},
            "is_promising": None,
            **forecast_closed_form(study, options.sizes, options.epsilons, wanted),
        }
    result = _simulate_forecast(study, options)
    return {
        **result,
        "is_promising": is_promising(result),
        "assumes": list_assumptions(result, study.protocol),
    }


def _check_options(options: ForecastOptions) -> None:
    if options.like is not None and options.tables is not None:
        raise UsageError(
            "USAGE-001",
            "--like and --tables cannot be used together.",
            fix="Leave one of them out.",
        )
    if not 0.5 <= options.level <= 0.999:
        raise UsageError(
            "USAGE-001",
            f"--level {options.level:g} is not between 0.5 and 0.999.",
            why="It is the probability that an interval covers the result.",
            fix="--level 0.9",
        )
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(
            "USAGE-001",
            f"--jobs {options.jobs} is less than 1.",
            fix="--jobs 1",
        )


def _simulate_forecast(study: Study, options: ForecastOptions) -> dict[str, Any]:
    target = None if options.target is None else parse_target(options.target, list_measures(study))
    source, made_from = _read_source(study, options)
    # For small studies, starting a process takes longer than many runs.
    jobs = options.jobs or (min(2, os.cpu_count() or 1) if is_large(study) else 1)
    with _show_progress() as on_progress:
        result = forecast(
            study,
            source,
            sizes=options.sizes,
            epsilons=options.epsilons,
            target=target,
            config=ForecastConfig(options.level, choose_repeats(study), options.seed, jobs=jobs),
            on_progress=on_progress,
        )
    return {"from": made_from, **result}


def _read_source(study: Study, options: ForecastOptions) -> tuple[Any, dict[str, Any]]:
    """Return the source of populations, and its description in the result."""
    if options.like is None:
        assert options.tables is not None
        return load_tables(options.tables, study, options.seed), {
            "kind": "tables",
            "file": str(options.tables),
        }
    rows = PublicRows.from_table(study, table_files.read_table_file(options.like), options.seed)
    return rows, {"kind": "like", "file": options.like, "rows": len(rows.labels)}


@contextmanager
def _show_progress() -> Iterator[Callable[[int, int], None]]:
    """Show the number of runs on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.console import Console

    with Console(stderr=True).status("forecast") as status:
        yield lambda done, of: status.update(f"forecast: {done:,} of {of:,} runs")
