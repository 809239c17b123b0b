"""Output files of ``shoal simulate``: a record of each point, and the files of ``--out``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.cli.model import format_tree
from shoal.cli.simulate.sdq import read_tree
from shoal.simulation.metrics import (
    ClassificationScores,
    PersonalModelScores,
    RegressionScores,
    compute_mean,
)
from shoal.simulation.registry import describe_params
from shoal.simulation.run import ProtocolParams, RunOutcome
from shoal.simulation.sweep import SweepPoint, summarise
from shoal.study.manifest import Manifest


def make_point_record(
    point: SweepPoint, params: ProtocolParams, price: dict[str, Any], outcomes: Sequence[RunOutcome]
) -> dict[str, Any]:
    """Return the results of a point as plain data.

    Participants, answers, rows, tree and details are those of the first run.
    """
    first = outcomes[0]
    tree = read_tree(params, first)
    return {
        "settings": point.settings,
        "minimum": point.study.participation.minimum,
        "declared": point.study.participation.size,
        "people": first.n_participants,
        **describe_params(params),
        "answers": first.answers,
        **({} if first.n_rows is None else {"n_rows": first.n_rows}),
        **price,
        "scores": _summarise_scores([outcome.scores for outcome in outcomes]),
        "runs": [asdict(outcome.scores) for outcome in outcomes],
        **_summarise_personal_models(
            [outcome.personal_scores for outcome in outcomes if outcome.personal_scores is not None]
        ),
        "model": _make_file_name(point, "model.json"),
        **({} if tree is None else {"tree": format_tree(tree)}),
        "details": first.details,
    }


def _summarise_scores(
    several: Sequence[ClassificationScores | RegressionScores],
) -> dict[str, dict[str, Any]]:
    return {measure: asdict(mean) for measure, mean in summarise(several).items()}


def _summarise_personal_models(runs: Sequence[PersonalModelScores]) -> dict[str, Any]:
    """Return the means of personal models over runs; empty without personal models."""
    if not runs:
        return {}
    return {
        "at_home": {
            "home": _summarise_scores([run.home for run in runs]),
            "own": _summarise_scores([run.own for run in runs]),
            "gain": asdict(compute_mean([run.gain for run in runs])),
            "n_holders": runs[0].n_holders,
            "runs": [asdict(run) for run in runs],
        }
    }


def make_files(
    result: dict[str, Any],
    points: Sequence[SweepPoint],
    params: Sequence[ProtocolParams],
    runs: Sequence[Sequence[RunOutcome]],
) -> dict[str, str]:
    """Return the files by their names: the result, and the first model of each point."""
    files = {"run.json": _dump_json(result)}
    for point, each, outcomes in zip(points, params, runs, strict=True):
        # The note is next to the model, not inside it: model files are parsed strictly.
        files[_make_file_name(point, "model.json")] = _dump_json(
            {"simulated": True, **_make_origin(point), "model": outcomes[0].model}
        )
        tree = read_tree(each, outcomes[0])
        if tree is not None:
            files |= {
                _make_file_name(point, "tree.txt"): tree.to_text(width=None, n_classes=None) + "\n",
                _make_file_name(point, "tree.svg"): tree.to_svg(),
            }
    return files


def _make_origin(point: SweepPoint) -> dict[str, str]:
    """Return the origin of a model: the varied study and its digest."""
    study = point.study
    return {
        "protocol": study.protocol,
        "variant": study.variant,
        "title": study.title,
        "study": Manifest(study).digest.hex(),
    }


def _make_file_name(point: SweepPoint, file: str) -> str:
    return f"{point.name}/{file}" if point.settings else file


def _dump_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
