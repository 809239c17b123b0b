"""The JSON result of each protocol can be read again; it has counts and the statement."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from shoal.coordinator.studies import encode_result
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.anonml.model import from_plain as additive
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.model import from_plain as linear
from shoal.protocols.pfds.model import from_plain as pooled
from shoal.protocols.pfds.paper.aggregator import PFDSPaperResult
from shoal.protocols.sdq.model import from_plain as tree
from shoal.study.ddml import DDMLResult, build_params
from shoal.study.handle import StudyHandle
from tests.support.coordinator import (
    HOSTED,
    make_aggregator,
    make_manifest,
    make_peers,
    make_record,
)

READERS: dict[str, Any] = {"anonml": additive, "sdq": tree, "pfds": pooled}


def document(name: str, result: object) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(encode_result(StudyHandle(make_manifest(name)), result))
    return written


def finished(name: str) -> Any:
    aggregator = make_aggregator(make_manifest(name), make_record(name))
    assert aggregator is not None
    return run_local(aggregator, make_peers(name), SeededEntropy(3)).results[AGGREGATOR]


@pytest.mark.parametrize("name", HOSTED)
def test_encoded_model_of_each_protocol_can_be_read(name: str) -> None:
    written, manifest = document(name, finished(name)), make_manifest(name)
    assert READERS[manifest.study.protocol](written["model"]).to_plain() == written["model"]
    assert (written["study"], written["title"]) == (manifest.digest.hex(), "A study")
    assert (written["protocol"], written["variant"]) == (
        manifest.study.protocol,
        manifest.study.variant,
    )
    assert written["statement"]["epsilon"] >= manifest.study.privacy.epsilon * 0.99
    assert written["statement"]["digest"] == manifest.short_digest


def test_result_contains_free_counts_with_noise() -> None:
    [[towns, _]] = document("sdq", finished("sdq"))["queries"]
    assert towns["features"] == ["town"]
    assert [row["cells"] for row in towns["counts"]] == [["x"], ["y"], ["z"]]
    assert towns["deviation"] > 0


def test_result_contains_rows_and_trees_by_holder() -> None:
    result = finished("pfds paper")
    written = document("pfds paper", result)
    assert list(written["datasets"]) == list(written["trees"]) == [f"holder-{i}" for i in range(4)]
    rows = written["datasets"]["holder-1"]
    assert len(rows["town"]) == written["counts"]["datasets"]["holder-1"]
    assert set(rows["town"]) <= {"x", "y", "z"}
    assert set(rows["ill"]) <= {"no", "yes"}
    assert len(written["trees"]["holder-0"]["levels"]) == 1


def test_result_without_rows_has_no_model() -> None:
    written = document("pfds paper", PFDSPaperResult({}, {}, ()))
    assert (written["model"], written["counts"]) == (
        None,
        {"trees": 0, "datasets": {}, "left_out": []},
    )


def test_missing_number_is_null() -> None:
    result = finished("pfds paper")
    first = result.datasets["holder-0"]
    first.columns["age"][:2] = np.nan
    assert document("pfds paper", result)["datasets"]["holder-0"]["age"][:3].count(None) == 2


def test_result_contains_merged_and_rejected_updates() -> None:
    params = build_params(make_manifest("ddml").study)
    model = GLM.from_grid_weights(params, np.arange(params.n_weights))
    written = document("ddml", DDMLResult(model, 17, {"MSG-005": 2}))
    assert linear(written["model"]).to_plain() == model.to_plain()
    assert written["counts"] == {"merged": 17, "refused": {"MSG-005": 2}}


def test_encode_result_rejects_result_of_other_protocol() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode_result(StudyHandle(make_manifest("anonml")), object())
    assert caught.value.code == "PROTO-001"
