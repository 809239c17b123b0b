"""SDQ in the output of ``shoal simulate``: what is learned, its noise, and the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.simulate.protocol import ProtocolView
from shoal.protocols.sdq.model import DecisionTree, from_plain
from shoal.protocols.sdq.params import SDQParams
from shoal.simulation.run import ProtocolParams, RunOutcome

_SPLIT_TEXTS = {"mpc": ", splits chosen jointly", "sums": ", splits chosen by sums alone", None: ""}


def format_model_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the line about the model."""
    return [f"model     {_describe_learner(result['points'])}"]


def read_tree(params: ProtocolParams, outcome: RunOutcome) -> DecisionTree | None:
    """Return the learned tree; None if the model is not a tree."""
    return (
        from_plain(outcome.model)
        if isinstance(params, SDQParams) and params.learner == "tree"
        else None
    )


def _describe_learner(points: Sequence[Mapping[str, Any]]) -> str:
    """Return what is learned, how splits are chosen, and which databases add noise."""
    kinds = sorted({_describe_kind(point) for point in points})
    noises = sorted({_describe_noise(point) for point in points})
    return " or ".join(kinds) + (f"; {noises[0]}" if len(noises) == 1 else "")


def _describe_kind(point: Mapping[str, Any]) -> str:
    return (
        "naive Bayes"
        if point["depth"] is None
        else f"a tree of depth {point['depth']} at most{_SPLIT_TEXTS[point['choice']]}"
    )


def _describe_noise(point: Mapping[str, Any]) -> str:
    if point["noise"] is None:
        return "no noise"
    if point["noise"] == "two-selected":
        return "noise by two selected databases"
    n, n_honest = point["n_databases"], point["n_honest"]
    return (
        "all of the noise from each database"
        if n_honest == 1
        else f"a share of the noise from each of {n}, enough if {n_honest} are honest"
    )


VIEW = ProtocolView("sdq", format_model_lines)
