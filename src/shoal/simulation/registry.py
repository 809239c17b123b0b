"""The table of simulated protocols, and the functions that dispatch to them.

Sweeps, forecasts, comparisons, engines and the commands ``simulate`` and ``compare`` call these
functions. A protocol is found by the name in its study, or by the class of its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.simulation import anonml, ddml, pfds, sdq
from shoal.simulation.metrics import BaselineScores
from shoal.simulation.protocol import SimulatedProtocol
from shoal.simulation.run import ProtocolParams, RunOutcome, RunTask, Split
from shoal.study.spec import Study

SIMULATED: Mapping[str, SimulatedProtocol] = {
    protocol.name: protocol
    for protocol in (anonml.PROTOCOL, ddml.PROTOCOL, sdq.PROTOCOL, pfds.PROTOCOL)
}
"""Name in the study file -> the simulated protocol."""


def get_simulated(study: Study) -> SimulatedProtocol:
    """Return the simulated protocol of a study."""
    return SIMULATED[study.protocol]


def find_simulated(params: ProtocolParams) -> SimulatedProtocol:
    """Return the simulated protocol to which parameters belong."""
    return next(
        simulated for simulated in SIMULATED.values() if isinstance(params, simulated.params_types)
    )


def make_simulation_params(study: Study, *, without_perturbation: bool = False) -> ProtocolParams:
    """Return the parameters for a simulation of a study, with or without noise.

    Raises
    ------
    UsageError
        ``SIM-002``: this study cannot be simulated without noise.
    """
    params: ProtocolParams = get_simulated(study).make_params(
        study, without_perturbation=without_perturbation
    )
    return params


def describe_params(params: ProtocolParams) -> dict[str, Any]:
    """Return the facts about a run that follow from its parameters, as plain data."""
    return find_simulated(params).describe_params(params)


def score_baselines(params: ProtocolParams, split: Split) -> BaselineScores:
    """Return the scores of a trivial predictor and of models trained without privacy."""
    return find_simulated(params).score_baselines(params, split)


def run(task: RunTask, split: Split) -> RunOutcome:
    """Simulate one run."""
    return find_simulated(task.params).run(task, split)
