"""Which of a study's figures matter: each doubled by itself, and what that does to the forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.sim.forecast_points import Points, is_possible
from shoal.sim.protocols import params_for
from shoal.sim.scores import Mean, mean_of
from shoal.sim.sweep import SWEPT, Settings
from shoal.study.spec import Study

_ALWAYS = ("epsilon", "size")
_SMALL = "delta"
"""It is small, and a factor of two would be nothing to it."""
_FACTORS = (2, 0.5)
_TENFOLD = (10, 0.1)


@dataclass(frozen=True)
class Change:
    """One figure of a study, changed by a factor; halved where its double is impossible."""

    key: str
    before: float
    after: float

    @property
    def settings(self) -> Settings:
        """What is replaced in the study."""
        return {self.key: self.after}


def changes_of(study: Study) -> list[Change]:
    """The changes of all figures that the study has and a sweep knows, one at a time.

    Examples
    --------
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> [(change.key, change.before, change.after) for change in changes_of(parse(study_text("sdq")))]
    [('epsilon', 1.0, 2.0), ('size', 20000, 40000), ('n_databases', 10, 20), ('max_colluders', 3, 6), ('depth', 4, 8)]
    """
    found = []
    for key in [*_ALWAYS, *(key for key in SWEPT if key not in _ALWAYS)]:
        before = _value(study, key)
        for factor in _TENFOLD if key == _SMALL else _FACTORS:
            after = SWEPT[key][1](before * factor) if before else 0
            if after and after != before and is_possible(study, {key: after}):
                found.append(Change(key, before, after))
                break
    return found


def _value(study: Study, key: str) -> float:
    """A figure of the study, as written or as its rule gives it; 0 where the study has none."""
    places: list[Any] = [study.privacy, study.participation]
    if study.protocol in SWEPT[key][0]:
        params: Any = params_for(study)
        places += [getattr(study, study.protocol), params, getattr(params, "rates", None)]
    found = (getattr(place, key, None) for place in places)
    return next((value for value in found if value is not None), 0)


def effects(points: Points, changes: Sequence[Change], measure: str) -> list[tuple[Change, Mean]]:
    """What each change does to the expected measure, the largest first, with the standard error over runs on the same parts."""
    base = points[{}].runs.scores(measure)
    found = [(change, mean_of((points[change.settings].runs.scores(measure) - base).tolist())) for change in changes]
    return sorted(found, key=lambda pair: -float(np.abs(pair[1].value)))
