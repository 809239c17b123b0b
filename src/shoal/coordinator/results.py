"""What a study has come to, as the bytes that everyone may fetch: a model in plain numbers, counts, and the label's statement.

JSON, in the words of ``to_plain`` of each protocol's model: nothing in it can run, and each protocol's ``from_plain`` reads its model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.errors import LocalProtocolError
from shoal.protocols.anonml.aggregator import Learned
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.fitting import released_model
from shoal.protocols.pfds.messages import Left
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.publishing import Published
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.pfds.tree import PrivateTree
from shoal.protocols.sdq.aggregator import Mined
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of
from shoal.study.wording_tokens import statement_of


@dataclass(frozen=True)
class Merged:
    """What a study of DDML has come to: the model, how many updates are in it, and how many were refused, by reason."""

    model: GLM
    n_merged: int
    refused: Mapping[str, int] = field(default_factory=dict)


def result_of(manifest: Manifest, result: object) -> bytes:
    """The JSON of what an aggregator has finished with.

    Parameters
    ----------
    manifest
        Of the study.
    result
        `Learned`, `Mined`, `Published`, `PublishedTrees` or `Merged`.
    """
    statement = statement_of(manifest).to_dict()
    document = {
        "study": manifest.digest.hex(),
        "title": manifest.study.title,
        "protocol": manifest.study.protocol,
        "variant": manifest.study.variant,
        **_content(manifest, result),
        "statement": statement,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _content(manifest: Manifest, result: object) -> dict[str, Any]:
    match result:
        case Learned(model, answers, late):
            return {"model": model.to_plain(), "counts": {"answers": list(answers), "late": late}}
        case Mined(model, _, _, counted, n_answering):
            tables = [[table.to_dict() for table in tables] for tables in counted]
            return {"model": model.to_plain(), "counts": {"answering": list(n_answering)}, "queries": tables}
        case Published(shared, _, n_answering, left_out):
            return {"model": shared.to_plain(), "counts": {"answering": list(n_answering), "left_out": _left(left_out)}}
        case PublishedTrees():
            return _shared(manifest, result)
        case Merged(linear, n_merged, refused):
            return {"model": linear.to_plain(), "counts": {"merged": n_merged, "refused": dict(refused)}}
    raise LocalProtocolError("PROTO-001", f"A {type(result).__name__} is not what any protocol finishes with.")


def _left(left_out: tuple[Left, ...]) -> list[dict[str, str]]:
    return [{"holder": left.holder, "reason": left.reason} for left in left_out]


def _shared(manifest: Manifest, result: PublishedTrees) -> dict[str, Any]:
    """Trees and rows of every holder, and what anyone would learn from all of the rows."""
    params, schema = params_of(manifest.study), manifest.study.schema()
    parts = [Rows.of(params, one.columns, one.labels) for one in result.datasets.values()]
    rows = Rows(np.concatenate([one.cells for one in parts]), np.concatenate([one.sides for one in parts])) if parts else None
    return {
        "model": None if rows is None else released_model(params, rows).to_plain(),
        "counts": {
            "trees": len(result.trees),
            "datasets": {name: len(one) for name, one in result.datasets.items()},
            "left_out": _left(result.left_out),
        },
        "trees": {name: _tree(tree) for name, tree in result.trees.items()},
        "datasets": {name: _rows(one.decoded(schema)) for name, one in result.datasets.items()},
    }


def _tree(tree: PrivateTree) -> dict[str, Any]:
    levels = [{"attributes": level.attributes.tolist(), "splits": level.splits.tolist()} for level in tree.levels]
    return {"levels": levels, "labels": tree.labels.tolist()}


def _rows(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns as JSON has them: what is missing is null."""
    return {
        name: [None if isinstance(value, float) and math.isnan(value) else value for value in column.tolist()]
        for name, column in columns.items()
    }
