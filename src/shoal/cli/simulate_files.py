"""What ``shoal simulate`` keeps of its runs: a record of each point, and the files of a directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.cli.model_view import in_short
from shoal.protocols.sdq.model import Tree, from_plain
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.sim.protocols import facts
from shoal.sim.runs import Outcome, Params
from shoal.sim.scores import AtHome, Errors, Scores, mean_of
from shoal.sim.sweep import Point, summary
from shoal.study.manifest import Manifest


def record_of(point: Point, params: Params, price: dict[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What came of a point's runs, as plain data; people, answers, rows, tree and details are those of the first."""
    first = outcomes[0]
    tree = tree_of(params, first)
    return {
        "settings": point.settings,
        "minimum": point.study.participation.minimum,
        "declared": point.study.participation.size,
        "people": first.people,
        **facts(params),
        "answers": first.answers,
        **({} if first.n_rows is None else {"n_rows": first.n_rows}),
        **price,
        "scores": _means([outcome.scores for outcome in outcomes]),
        "runs": [asdict(outcome.scores) for outcome in outcomes],
        **_at_home([outcome.at_home for outcome in outcomes if outcome.at_home is not None]),
        "model": _name(point, "model.json"),
        **({} if tree is None else {"tree": in_short(tree)}),
        "details": first.details,
    }


def _means(several: Sequence[Scores | Errors]) -> dict[str, dict[str, Any]]:
    return {measure: asdict(mean) for measure, mean in summary(several).items()}


def _at_home(runs: Sequence[AtHome]) -> dict[str, Any]:
    """What holders have at home; nothing where there are none."""
    if not runs:
        return {}
    told = {"home": _means([one.home for one in runs]), "own": _means([one.own for one in runs])}
    gain = asdict(mean_of([one.gain for one in runs]))
    return {"at_home": {**told, "gain": gain, "n_holders": runs[0].n_holders, "runs": [asdict(one) for one in runs]}}


def files_of(
    result: dict[str, Any], points: Sequence[Point], params: Sequence[Params], runs: Sequence[Sequence[Outcome]]
) -> dict[str, str]:
    """The files of a directory by their names: the result, and of each point the model of its first run."""
    files = {"run.json": _json(result)}
    for point, each, outcomes in zip(points, params, runs, strict=True):
        # Beside the model, not inside: a model's own file is read strictly.
        files[_name(point, "model.json")] = _json({"simulated": True, **_origin(point), "model": outcomes[0].model})
        tree = tree_of(each, outcomes[0])
        if tree is not None:
            files |= {_name(point, "tree.txt"): tree.to_text(width=None, n_classes=None) + "\n", _name(point, "tree.svg"): tree.to_svg()}
    return files


def _origin(point: Point) -> dict[str, str]:
    """Which study a model is of: the study as the point varies it, by its digest."""
    study = point.study
    return {"protocol": study.protocol, "variant": study.variant, "title": study.title, "study": Manifest(study).digest.hex()}


def tree_of(params: Params, outcome: Outcome) -> Tree | None:
    """The tree that was learned; None where it is none."""
    return from_plain(outcome.model) if isinstance(params, SDQParams) and params.learner == "tree" else None


def _name(point: Point, file: str) -> str:
    return f"{point.name}/{file}" if point.settings else file


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
