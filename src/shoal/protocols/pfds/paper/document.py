"""The published document of a study of variant ``paper``: trees, datasets and a model.

`shoal.study.pfds` calls it when a study has ended. The model is fitted to the released rows alone,
so that every reader of the release would learn the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.data.schema import Schema
from shoal.protocols.pfds.fitting import fit_released_model
from shoal.protocols.pfds.messages import LeftOutHolder
from shoal.protocols.pfds.paper.aggregator import PFDSPaperResult
from shoal.protocols.pfds.paper.tree import PrivateTree
from shoal.protocols.pfds.params import PFDSParams, PFDSRows


def make_paper_document(
    params: PFDSParams, schema: Schema, result: PFDSPaperResult
) -> dict[str, Any]:
    """Return the trees and rows of every holder, and the model that follows from all rows."""
    parts = [
        PFDSRows.from_columns(params, dataset.columns, dataset.labels)
        for dataset in result.datasets.values()
    ]
    rows = (
        PFDSRows(
            np.concatenate([dataset.cells for dataset in parts]),
            np.concatenate([dataset.sides for dataset in parts]),
        )
        if parts
        else None
    )
    return {
        "model": None if rows is None else fit_released_model(params, rows).to_plain(),
        "counts": {
            "trees": len(result.trees),
            "datasets": {name: len(dataset) for name, dataset in result.datasets.items()},
            "left_out": list_left_out(result.left_out),
        },
        "trees": {name: _encode_tree(tree) for name, tree in result.trees.items()},
        "datasets": {
            name: _encode_columns(dataset.decode(schema))
            for name, dataset in result.datasets.items()
        },
    }


def list_left_out(left_out: Sequence[LeftOutHolder]) -> list[dict[str, str]]:
    """Return the holders that are not in the release, each with the reason."""
    return [{"holder": left.holder, "reason": left.reason} for left in left_out]


def _encode_tree(tree: PrivateTree) -> dict[str, Any]:
    levels = [
        {"attributes": level.attributes.tolist(), "splits": level.splits.tolist()}
        for level in tree.levels
    ]
    return {"levels": levels, "labels": tree.labels.tolist()}


def _encode_columns(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns for JSON, with null for missing numbers."""
    return {
        name: [
            None if isinstance(value, float) and math.isnan(value) else value
            for value in column.tolist()
        ]
        for name, column in columns.items()
    }
