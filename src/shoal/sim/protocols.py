"""Where each protocol is simulated on a table."""

from __future__ import annotations

from typing import Any

from shoal.protocols.ddml.params import Params as DDMLParams
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.sim import anonml, ddml, pfds, sdq
from shoal.sim.runs import Outcome, Params, Split, Task
from shoal.sim.scores import Yardsticks
from shoal.study.spec import Study

_MODULES: dict[str, Any] = {"anonml": anonml, "ddml": ddml, "sdq": sdq, "pfds": pfds}
_KINDS: dict[type[Any], Any] = {DDMLParams: ddml, SDQParams: sdq, PFDSParams: pfds}


def params_for(study: Study, *, without_perturbation: bool = False) -> Params:
    """The parameters of a study that is to be simulated, with or without noise.

    Raises
    ------
    UsageError
        ``SIM-002``: this study cannot be simulated without noise.
    """
    params: Params = _MODULES[study.protocol].params_for(study, without_perturbation=without_perturbation)
    return params


def facts(params: Params) -> dict[str, Any]:
    """What the parameters of a protocol say about a run, as plain data."""
    told: dict[str, Any] = _module(params).facts(params)
    return told


def yardsticks(params: Params, split: Split) -> Yardsticks:
    """What a model is held against: a trivial predictor, and some that learn from the rows themselves."""
    found: Yardsticks = _module(params).yardsticks(params, split)
    return found


def run(task: Task, split: Split) -> Outcome:
    """Simulate one run."""
    outcome: Outcome = _module(task.params).run(task, split)
    return outcome


def _module(params: Params) -> Any:
    return _KINDS.get(type(params), anonml)
