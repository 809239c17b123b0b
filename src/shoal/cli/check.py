"""``shoal check``: is this a study, what does it cost, what may be expected of it, and does the data fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import tables as table_files
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.errors import UsageError
from shoal.names import counted, shell_word, shown
from shoal.privacy.rounding import show
from shoal.study.doubts import doubts
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study
from shoal.study.unfinished import drafts_left
from shoal.study.wording_tokens import remark_on_digest, statement_of_draft
from shoal.table_files import Table

_SHOWN_FORECASTS = 4

_AUDITED = 1_000
"""Weights of a model whose updates are audited in minutes."""


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

    With public rows (--like) or public tables (--tables) the study is simulated on them, as a function of its size and of epsilon. Without
    either only the error of its tables or weights is known beforehand, and nothing is said about how well it predicts.

    Parameters
    ----------
    study
        The study file.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) that should fit the study. It is read here and goes nowhere; no forecast uses it.
    like
        A public table of the same form: the study is forecast as if those who take part were like its rows.
    tables
        A TOML file of public tables of each feature and the label, in the place of rows. Features are then taken as independent given the
        label.
    target
        What should be reached, such as accuracy=0.8 (auc, f1; for a number rmse, mean_absolute_error, r_squared): how many that takes.
        Without rows or tables: error=0.05, the error of the worst table.
    sizes
        Sizes to forecast, such as 1000,10000; by default some around the declared one.
    epsilons
        Values of epsilon to forecast, such as 0.5,1,2; by default some around the study's own.
    level
        Chance that an interval covers what the real study will have.
    seed
        All randomness of a forecast follows from it.
    jobs
        Processes to use; the result is the same for any number. By default two for large populations.
    tickets
        Word the label for a study that will be served with --tickets.
    json
        Print one JSON object.
    """
    # A participant's program reads tables by this module, and has no use for forecasts.
    from shoal.cli.check_forecast import Asked, forecast_study, numbers
    from shoal.cli.check_view import forecast_lines

    spec = load(study)
    manifest = Manifest(spec)
    plan = make_plan(spec, manifest.digest)
    # Before a forecast, which takes its time.
    statement, remark = statement_of_draft(manifest, plan, tickets=tickets), remark_on_digest(manifest, tickets=tickets)
    asked = Asked(like, tables, target, numbers("sizes", sizes, int), numbers("epsilons", epsilons, float), level, seed, jobs)
    fits = {role: fit_table(spec, source) for role, source in (("data", data), ("like", like)) if source is not None}
    told = forecast_study(spec, asked)
    warnings = (*doubts(plan, SystemClock().now()), *drafts_left(study))
    result = {
        "study": str(study),
        "title": spec.title,
        "digest": manifest.digest.hex(),
        "short": manifest.short,
        "digest_remark": remark,
        "warnings": list(warnings),
        "plan": plan.to_dict(),
        "forecast": told,
        "label": statement.to_dict(),
        **fits,
    }
    lines = [f"{shown(str(study))}  ok   digest {manifest.short}", *([] if remark is None else [f"digest    {remark}"])]
    lines += [f"WARNING   {warning}" for warning in warnings]
    lines += [*_price_lines(plan), *_fit_lines({"data": data, "like": like}, fits), "", *forecast_lines(told, spec.protocol)]
    emit(result, "\n".join([*lines, "", str(statement)]), json=json, next_command=_next(study, data, plan, told, " --tickets" * tickets))


def _next(study: Path, data: str | None, plan: Plan, told: Mapping[str, Any], serve_options: str) -> str:
    if data is not None:
        return f"shoal simulate {shell_word(study)} --data {shell_word(data)}"
    if told["is_promising"]:
        return f"shoal serve {shell_word(study)}{serve_options}"
    if told["from"]["kind"] == "like":
        return f"shoal simulate {shell_word(study)} --data {shell_word(told['from']['file'])}"
    # Thousands of updates of a large model take an hour to audit; its mechanism is the same for a small one.
    if plan.params is None or plan.params.n_weights <= _AUDITED:
        return f"shoal audit study {shell_word(study)}"
    return f"shoal audit mechanism {plan.releases[0].event.mechanism}"


def read_table(source: str) -> Table:
    """The table that an option names."""
    if not source.strip():
        raise UsageError("USAGE-001", "The name of the table is empty.", fix="--data rows.csv")
    return table_files.read(source)


def fit_table(study: Study, source: str) -> dict[str, int]:
    """How many rows of a table fit the study, and how many a person's limit leaves out; an error where a cell does not fit."""
    columns = read_table(source)
    schema = study.schema()
    # Before rows are left out, so that an error numbers them as the file does.
    schema.encode(columns)
    schema.encode_label(columns)
    n_left_out = 0
    if study.data is not None:
        columns, n_left_out = table_files.limit_rows(columns, study.data.person, study.data.max_rows_per_person)
    return {"rows": table_files.n_rows(columns), "left_out": n_left_out}


def _price_lines(plan: Plan) -> list[str]:
    lines = [f"protocol  {plan.study.protocol}, variant {plan.study.variant}, trust {plan.study.trust}"]
    for release in plan.releases:
        event = release.event
        delta = f", delta {show(event.delta)}" if event.delta else ""
        lines.append(f"release   {release.count} x {release.name}: epsilon {show(event.epsilon)}{delta} each ({event.mechanism})")
    lines.append(f"total     {plan.everything}")
    lines += [f"crowd     {plan.central}"] if plan.central is not None else []
    # The last are the worst.
    lines += [f"forecast  {forecast.what}: {show(forecast.value, 3)}" for forecast in plan.forecasts[-_SHOWN_FORECASTS:]]
    lines += [f"note      {note}" for note in plan.notes]
    return lines


def _fit_lines(sources: dict[str, str | None], fits: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{role:<10}{shown(sources[role] or '')}: {counted(fit['rows'], 'row')} {'fits' if fit['rows'] == 1 else 'fit'} the study"
        + (f"; left out by the limit per person: {fit['left_out']:,} more" if fit["left_out"] else "")
        for role, fit in fits.items()
    ]
