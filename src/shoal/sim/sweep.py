"""Grids over a study: some of its figures varied, every combination of them a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from pydantic import ValidationError

from shoal.errors import SpecError, UsageError
from shoal.names import shown
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.sdq.params import default_choice
from shoal.sim.scores import Errors, Mean, Scores, mean_of
from shoal.study.explain import explain
from shoal.study.rules import UNITS, default_colluders
from shoal.study.settings import PFDS, SDQ
from shoal.study.spec import Study

SWEPT: dict[str, tuple[tuple[str, ...], type[float]]] = {
    "epsilon": (("privacy",), float),
    "delta": (("privacy",), float),
    "n_updates": (("privacy",), int),
    "size": (("participation",), int),
    "n_partitions": (("anonml",), int),
    "n_subsets": (("anonml",), int),
    "subset_size": (("anonml",), int),
    "n_instances": (("ddml",), int),
    "learning_rate": (("ddml",), float),
    "clip": (("ddml",), float),
    "batch_size": (("ddml",), int),
    "n_databases": (("sdq",), int),
    "n_holders": (("pfds",), int),
    "max_colluders": (("sdq", "pfds"), int),
    "depth": (("sdq",), int),
    "max_depth": (("pfds",), int),
}
"""What may be varied: key -> its table in the study file, which may be that of either of two protocols, and its kind."""

_MEMBERS = {"sdq": "n_databases", "pfds": "n_holders"}
"""Protocols whose minimum counts members, and the key that says how many there are."""

Settings = dict[str, float]


@dataclass(frozen=True)
class Point:
    """One combination of a sweep, and the study that it makes."""

    settings: Settings
    study: Study

    @property
    def name(self) -> str:
        """The settings in short, also as the name of a directory; empty for the study as it is."""
        return settings_name(self.settings)


def plain(value: float) -> str:
    """A value of a sweep with all its digits, as it may be typed again.

    Examples
    --------
    >>> plain(1234567), plain(2.0), plain(0.123456789)
    ('1234567', '2', '0.123456789')
    """
    return str(value).removesuffix(".0")


def settings_name(settings: Settings) -> str:
    """Settings in short: ``epsilon=0.5,size=1000``."""
    return ",".join(f"{key}={plain(value)}" for key, value in settings.items())


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[float]]:
    """The values of each key that is varied.

    Examples
    --------
    >>> parse_sweeps(["epsilon=0.5,1", "size=1000"])
    {'epsilon': [0.5, 1.0], 'size': [1000]}
    """
    found: dict[str, list[float]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        if key not in SWEPT or key in found:
            trouble = "is given twice" if key in found else "cannot be varied"
            raise UsageError("SIM-004", f"A sweep: {shown(key[:60])} {trouble}.", fix=f"Choose among: {', '.join(SWEPT)}, each once.")
        kind = SWEPT[key][1]
        try:
            found[key] = [_number(kind, value) for value in values.split(",")]
        except ValueError:
            wanted = "whole numbers" if kind is int else "numbers"
            fix = f"--sweep {key}={'1,2' if kind is int else '0.5,1,2'}"
            given = f", not {shown(values[:60])}" if values else "; none is given"
            raise UsageError("SIM-004", f"A sweep: {key} takes {wanted} with commas between{given}.", fix=fix) from None
    return found


def _number(kind: type[float], text: str) -> float:
    """A number as people write it; Python would also read 1_0 as ten."""
    if "_" in text:
        raise ValueError
    return kind(text)


def grid(study: Study, sweeps: dict[str, list[float]]) -> list[Point]:
    """Every combination of the values, the first key varying slowest; one point, the study itself, where nothing is varied."""
    combinations = [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]
    if len({tuple(settings.values()) for settings in combinations}) < len(combinations):
        raise UsageError("SIM-004", "A sweep names the same value twice.", fix="Give each value once.")
    return [Point(settings, vary(study, settings)) for settings in combinations]


def vary(study: Study, settings: Settings) -> Study:
    """The study with some figures replaced; an error where that breaks a rule of the study file."""
    content = study.content()
    for key, value in settings.items():
        table = _table(study, key)
        content[table] = {**(content[table] or {}), key: value}
    asked, before = content["participation"], study.sdq or study.pfds
    if before is not None:
        # As many databases or holders as before may drop out.
        n = _MEMBERS[study.protocol]
        asked["minimum"] = max(1, asked["minimum"] + content[study.protocol][n] - getattr(before, n))
        content[study.protocol] = _by_their_rules(before, content[study.protocol], settings)
    else:
        # Whoever varies the size does not ask for a minimum that it cannot reach.
        asked["minimum"] = min(asked["minimum"], max(1, asked["size"]))
    try:
        return Study.from_content(content)
    except ValidationError as error:
        first = explain(error)[0]
        raise SpecError(first.code, f"sweep  {first.what}", fix=first.fix) from None


def _table(study: Study, key: str) -> str:
    """Where the study has a key; an error where it is one of other protocols."""
    tables = SWEPT[key][0]
    if study.protocol in tables or tables[0] not in UNITS:
        return study.protocol if study.protocol in tables else tables[0]
    own = [name for name, (places, _) in SWEPT.items() if study.protocol in places]
    what = f"sweep  {key} is a figure of {' and '.join(tables)}, and the study is of {study.protocol}."
    raise SpecError("SPEC-022", what, fix=f"Vary epsilon, size, or one of {study.protocol}'s own: {', '.join(own)}.")


def _by_their_rules(before: SDQ | PFDS, varied: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The table of a protocol without the figures that were what their rule gives, so that it gives them anew."""
    c = before.max_colluders
    if isinstance(before, SDQ):
        n = before.n_databases
        follows = {"choice": before.choice == default_choice(n, c)}
    else:
        n = before.n_holders
        follows = {"n_levels": before.n_levels == min(PFDSParams.n_levels, before.max_depth or 0)}
    follows["max_colluders"] = c == default_colluders(n)
    return {key: value for key, value in varied.items() if key in settings or not follows.get(key)}


def summary(several: Sequence[Scores | Errors]) -> dict[str, Mean]:
    """Mean and standard error of each measure over the repeats of a point."""
    return {measure.name: mean_of([getattr(one, measure.name) for one in several]) for measure in fields(several[0])}
