"""``shoal check``: validate, price and forecast a study, check data, and print the label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cli.arguments import parse_numbers, read_table
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.data import tables as table_files
from shoal.privacy.rounding import format_epsilon
from shoal.study.delivery import explain_draft_digest, make_draft_statement
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, find_warnings, make_plan
from shoal.study.spec import Study
from shoal.study.starters.drafts import find_unfinished
from shoal.text import escape_text, format_count, shell_quote

_MAX_FORECASTS = 4

_MAX_AUDITED_WEIGHTS = 1_000
"""Weights of a model with updates that are audited in minutes."""


def check(
    study: Path,
    /,
    *,
    data: str | None = None,
    like: str | None = None,
    tables: Path | None = None,
    target: str | None = None,
    sizes: str | None = None,
    epsilons: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    jobs: int | None = None,
    tickets: bool = False,
    json: bool = False,
) -> None:
    """Validate a study, price every release, forecast what it learns, print its label.

    With public rows (--like) or public tables (--tables) the study is simulated on them, as a
    function of its size and of epsilon. Without either, only the error of its tables or weights is
    known in advance, not how well it predicts.

    Parameters
    ----------
    study
        The study file.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that should fit the study. It is read on this
        machine only; no forecast uses it.
    like
        A public table of the same form: the forecast assumes that participants are like its rows.
    tables
        A TOML file of public tables of each feature and the label, instead of rows. Features are
        then assumed to be independent given the label.
    target
        A measure to reach, such as accuracy=0.8 (auc, f1; for a number rmse, mean_absolute_error,
        r_squared): prints the size that it needs. Without rows or tables: error=0.05, the error of
        the worst table.
    sizes
        Sizes to forecast, such as 1000,10000; by default some around the declared one.
    epsilons
        Values of epsilon to forecast, such as 0.5,1,2; by default some around the study's own.
    level
        Probability that an interval covers the result of the real study.
    seed
        Seed of all randomness of a forecast.
    jobs
        Processes to use; the result is the same for any number. By default two for large
        populations.
    tickets
        Word the label for a study that will be served with --tickets.
    json
        Print one JSON object.
    """
    # Imported late: `shoal new` checks tables with this module and makes no forecasts.
    from shoal.cli.check.forecast import ForecastOptions, forecast_study
    from shoal.cli.check.view import format_forecast

    spec = load_study(study)
    manifest = Manifest(spec)
    plan = make_plan(spec, manifest.digest)
    # Before the forecast, which may be slow.
    statement, remark = (
        make_draft_statement(manifest, plan, uses_tickets=tickets),
        explain_draft_digest(manifest, uses_tickets=tickets),
    )
    options = ForecastOptions(
        like,
        tables,
        target,
        parse_numbers("sizes", sizes, int),
        parse_numbers("epsilons", epsilons, float),
        level,
        seed,
        jobs,
    )
    fits = {
        role: check_table(spec, source)
        for role, source in (("data", data), ("like", like))
        if source is not None
    }
    forecast = forecast_study(spec, options)
    warnings = (*find_warnings(plan, SystemClock().now()), *find_unfinished(study))
    result = {
        "study": str(study),
        "title": spec.title,
        "digest": manifest.digest.hex(),
        "short": manifest.short_digest,
        "digest_remark": remark,
        "warnings": list(warnings),
        "plan": plan.to_dict(),
        "forecast": forecast,
        "label": statement.to_dict(),
        **fits,
    }
    lines = [
        f"{escape_text(str(study))}  ok   digest {manifest.short_digest}",
        *([] if remark is None else [f"digest    {remark}"]),
    ]
    lines += [f"WARNING   {warning}" for warning in warnings]
    lines += [
        *_format_prices(plan),
        *_format_fits({"data": data, "like": like}, fits),
        "",
        *format_forecast(forecast, spec.protocol),
    ]
    emit(
        result,
        "\n".join([*lines, "", str(statement)]),
        json=json,
        next_command=_suggest_next(study, data, plan, forecast, " --tickets" * tickets),
    )


def _suggest_next(
    study: Path, data: str | None, plan: Plan, forecast: Mapping[str, Any], serve_options: str
) -> str:
    if data is not None:
        return f"shoal simulate {shell_quote(study)} --data {shell_quote(data)}"
    if forecast["is_promising"]:
        return f"shoal serve {shell_quote(study)}{serve_options}"
    if forecast["from"]["kind"] == "like":
        return f"shoal simulate {shell_quote(study)} --data {shell_quote(forecast['from']['file'])}"
    # An audit of thousands of updates of a large model takes an hour. Its mechanism is the same as
    # that of a small one.
    if getattr(plan.params, "n_weights", 0) <= _MAX_AUDITED_WEIGHTS:
        return f"shoal audit study {shell_quote(study)}"
    return f"shoal audit mechanism {plan.releases[0].event.mechanism}"


def check_table(study: Study, source: str) -> dict[str, int]:
    """Return how many rows of a table fit the study, and how many the limit per person drops.

    A cell that does not fit is an error.
    """
    columns = read_table(source)
    schema = study.schema()
    # Before rows are left out, so that an error has the row numbers of the file.
    schema.encode(columns)
    schema.encode_label(columns)
    n_left_out = 0
    if study.data is not None:
        columns, n_left_out = table_files.limit_rows(
            columns, study.data.person, study.data.max_rows_per_person
        )
    return {"rows": table_files.count_rows(columns), "left_out": n_left_out}


def _format_prices(plan: Plan) -> list[str]:
    lines = [
        f"protocol  {plan.study.protocol}, variant {plan.study.variant}, trust {plan.study.trust}"
    ]
    for release in plan.releases:
        event = release.event
        delta = f", delta {format_epsilon(event.delta)}" if event.delta else ""
        lines.append(
            f"release   {release.count} x {release.name}: epsilon "
            f"{format_epsilon(event.epsilon)}{delta} each ({event.mechanism})"
        )
    lines.append(f"total     {plan.total_loss}")
    lines += [f"shuffled  {plan.central_loss}"] if plan.central_loss is not None else []
    # The last ones are the largest.
    lines += [
        f"forecast  {forecast.what}: {format_epsilon(forecast.value, 3)}"
        for forecast in plan.forecasts[-_MAX_FORECASTS:]
    ]
    lines += [f"note      {note}" for note in plan.notes]
    return lines


def _format_fits(sources: dict[str, str | None], fits: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{role:<10}{escape_text(sources[role] or '')}: {format_count(fit['rows'], 'row')} "
        f"{'fits' if fit['rows'] == 1 else 'fit'} the study"
        + (f"; the limit per person leaves out {fit['left_out']:,} more" if fit["left_out"] else "")
        for role, fit in fits.items()
    ]
