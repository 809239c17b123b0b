"""Which protocols can be simulated on a table, and where each of them does it."""

from __future__ import annotations

from typing import Any

from shoal.errors import UsageError
from shoal.protocols.ddml.params import Params as DDMLParams
from shoal.sim import anonml, ddml
from shoal.sim.runs import Outcome, Params, Split, Task
from shoal.sim.scores import Yardsticks
from shoal.study.spec import Study

SIMULATED = ("anonml", "ddml")


def params_for(study: Study, *, without_perturbation: bool = False) -> Params:
    """The parameters of a study that is to be simulated, with or without noise.

    Raises
    ------
    UsageError
        ``SIM-002``: this study cannot be simulated, or not without noise.
    """
    if study.protocol not in SIMULATED:
        raise UsageError(
            "SIM-002",
            f"This version simulates {' and '.join(SIMULATED)} studies only; this one is of {study.protocol}.",
            fix="shoal check prices studies of every protocol.",
        )
    if study.protocol == "ddml":
        return ddml.params_for(study, without_perturbation=without_perturbation)
    return anonml.params_for(study, without_perturbation=without_perturbation)


def facts(params: Params) -> dict[str, Any]:
    """What the parameters of a protocol say about a run, as plain data."""
    return ddml.facts(params) if isinstance(params, DDMLParams) else anonml.facts(params)


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """What a model is held against: a trivial predictor, and one that learns from the rows themselves."""
    return ddml.yardsticks(params, split) if isinstance(params, DDMLParams) else anonml.yardsticks(params, split)


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run."""
    return ddml.run(task, split) if isinstance(task.params, DDMLParams) else anonml.run(task, split)
