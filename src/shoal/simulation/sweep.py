"""Grids over a study: each combination of varied settings is a point.

``simulate`` makes a grid from ``--sweep``; forecasts, comparisons and reports call `vary`. A varied
study is validated again, so that each point is a study that could be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product

from pydantic import ValidationError

from shoal.errors import SpecError, UsageError
from shoal.simulation.metrics import ClassificationScores, RegressionScores, RunMean, compute_mean
from shoal.simulation.registry import SIMULATED, get_simulated
from shoal.study.explain import explain
from shoal.study.registry import PROTOCOLS, get_protocol
from shoal.study.spec import Study
from shoal.study.validation import parse_content
from shoal.text import escape_text

Settings = dict[str, float]
"""Key of the study file -> value."""

_COMMON_KEYS: dict[str, tuple[str, type[float]]] = {
    "epsilon": ("privacy", float),
    "delta": ("privacy", float),
    "n_updates": ("privacy", int),
    "size": ("participation", int),
}
"""Keys of tables that every study has."""


def _list_sweep_keys() -> dict[str, tuple[tuple[str, ...], type[float]]]:
    keys: dict[str, tuple[tuple[str, ...], type[float]]] = {
        key: ((table,), kind) for key, (table, kind) in _COMMON_KEYS.items()
    }
    for protocol in SIMULATED.values():
        for key, kind in protocol.sweep_keys.items():
            tables, _ = keys.get(key, ((), kind))
            keys[key] = ((*tables, protocol.name), kind)
    return keys


SWEEP_KEYS = _list_sweep_keys()
"""Key that may be varied -> the tables of the study file that may have it, and its type."""


@dataclass(frozen=True)
class SweepPoint:
    """One combination of a sweep, and its study."""

    settings: Settings
    study: Study

    @property
    def name(self) -> str:
        """The settings, also the name of a directory; empty for the unchanged study."""
        return format_settings(self.settings)


def format_value(value: float) -> str:
    """Return a value of a sweep with all its digits, in a form that `parse_sweeps` reads.

    Examples
    --------
    >>> format_value(1234567), format_value(2.0), format_value(0.123456789)
    ('1234567', '2', '0.123456789')
    """
    return str(value).removesuffix(".0")


def format_settings(settings: Settings) -> str:
    """Return settings as text, such as ``epsilon=0.5,size=1000``."""
    return ",".join(f"{key}={format_value(value)}" for key, value in settings.items())


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[float]]:
    """Parse the values of each varied key.

    Raises
    ------
    UsageError
        ``SIM-004``: a key is unknown or given twice, or a value is not a number.

    Examples
    --------
    >>> parse_sweeps(["epsilon=0.5,1", "size=1000"])
    {'epsilon': [0.5, 1.0], 'size': [1000]}
    """
    sweeps: dict[str, list[float]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        if key not in SWEEP_KEYS or key in sweeps:
            trouble = "is given twice" if key in sweeps else "cannot be varied"
            raise UsageError(
                "SIM-004",
                f"--sweep: {escape_text(key[:60])} {trouble}.",
                fix=f"Choose among these keys, each once: {', '.join(SWEEP_KEYS)}.",
            )
        kind = SWEEP_KEYS[key][1]
        try:
            sweeps[key] = [_parse_number(kind, value) for value in values.split(",")]
        except ValueError:
            wanted = "whole numbers" if kind is int else "numbers"
            fix = f"--sweep {key}={'1,2' if kind is int else '0.5,1,2'}"
            given = f", not {escape_text(values[:60])}" if values else "; no value is given"
            raise UsageError(
                "SIM-004", f"--sweep: {key} takes {wanted} with commas between{given}.", fix=fix
            ) from None
    return sweeps


def _parse_number(kind: type[float], text: str) -> float:
    """Parse a number without underscores; Python would read 1_0 as ten."""
    if "_" in text:
        raise ValueError
    return kind(text)


def make_grid(study: Study, sweeps: dict[str, list[float]]) -> list[SweepPoint]:
    """Return a point for each combination of values; the first key varies slowest.

    Without sweeps the only point is the study itself.
    """
    combinations = [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]
    if len({tuple(settings.values()) for settings in combinations}) < len(combinations):
        raise UsageError(
            "SIM-004", "--sweep names the same value twice.", fix="Give each value once."
        )
    return [SweepPoint(settings, vary(study, settings)) for settings in combinations]


def vary(study: Study, settings: Settings) -> Study:
    """Return the study with some settings replaced.

    Raises
    ------
    SpecError
        The settings break a rule of the study file.
    """
    content = study.to_content()
    for key, value in settings.items():
        table = _find_table(study, key)
        content[table] = {**(content[table] or {}), key: value}
    name, protocol, participation = study.protocol, get_protocol(study), content["participation"]
    count_key = protocol.holders.count_key
    if count_key is None:
        # A smaller study must still be able to reach its minimum.
        participation["minimum"] = min(participation["minimum"], max(1, participation["size"]))
    else:
        # The number of members that may drop out stays the same.
        more = content[name][count_key] - protocol.count_members(study)
        participation["minimum"] = max(1, participation["minimum"] + more)
        derived = get_simulated(study).list_derived_keys(study) - settings.keys()
        content[name] = {key: value for key, value in content[name].items() if key not in derived}
    try:
        return parse_content(content)
    except ValidationError as error:
        first = explain(error)[0]
        raise SpecError(first.code, f"sweep  {first.what}", fix=first.fix) from None


def _find_table(study: Study, key: str) -> str:
    """Return the table of a study that has a key.

    Raises
    ------
    SpecError
        ``SPEC-022``: only other protocols have the key.
    """
    tables = SWEEP_KEYS[key][0]
    if study.protocol in tables:
        return study.protocol
    if tables[0] not in PROTOCOLS:
        return tables[0]
    keys = ", ".join(get_simulated(study).sweep_keys)
    raise SpecError(
        "SPEC-022",
        f"sweep  {key} is a setting of {' and '.join(tables)}; the protocol of this study is "
        f"{study.protocol}.",
        fix=f"Vary epsilon, size, or a setting of {study.protocol}: {keys}.",
    )


def summarise(several: Sequence[ClassificationScores | RegressionScores]) -> dict[str, RunMean]:
    """Return mean and standard error of each measure over the repeats of a point."""
    return {
        measure.name: compute_mean([getattr(scores, measure.name) for scores in several])
        for measure in fields(several[0])
    }
