"""The published document of a study of variant paper."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from shoal.protocols.pfds.messages import LeftOutHolder
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.paper.aggregator import PFDSPaperResult
from shoal.protocols.pfds.paper.document import make_paper_document
from tests.support.pfds_paper import NAMES, STUDIES, logged


def test_document_contains_trees_rows_and_the_model_of_all_rows() -> None:
    params, result = STUDIES["classes"], logged("classes")[2]
    document = json.loads(json.dumps(make_paper_document(params, params.schema, result)))
    assert set(document["trees"]) == set(document["datasets"]) == set(NAMES)
    for name, dataset in result.datasets.items():
        assert document["counts"]["datasets"][name] == len(dataset)
        for column in document["datasets"][name].values():
            assert len(column) == len(dataset)
        tree, written = result.trees[name], document["trees"][name]
        assert written["labels"] == tree.labels.tolist()
        assert len(written["levels"]) == len(tree.levels)
    assert from_plain(document["model"]).to_plain() == document["model"]


def test_document_has_null_for_missing_numbers() -> None:
    params, result = STUDIES["classes"], logged("classes")[2]
    name = NAMES[0]
    column = next(
        one for one, values in result.datasets[name].columns.items() if values.dtype.kind == "f"
    )
    values = result.datasets[name].columns[column].copy()
    values[:2] = np.nan
    dataset = replace(
        result.datasets[name], columns={**result.datasets[name].columns, column: values}
    )
    changed = replace(result, datasets={**result.datasets, name: dataset})
    document = make_paper_document(params, params.schema, changed)
    assert document["datasets"][name][column][:2] == [None, None]


def test_document_without_rows_has_no_model_and_names_absent_holders() -> None:
    params = STUDIES["classes"]
    empty = PFDSPaperResult({}, {}, (LeftOutHolder(holder="peer-1", reason="no tree"),))
    document = make_paper_document(params, params.schema, empty)
    assert document["model"] is None
    assert document["counts"] == {
        "trees": 0,
        "datasets": {},
        "left_out": [{"holder": "peer-1", "reason": "no tree"}],
    }
