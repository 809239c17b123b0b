"""The result of every protocol is JSON that its own reader takes, with counts and the label's statement."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from coordinator_cases import HOSTED, aggregator_of, hosted_of, manifest_of, peers_of
from shoal.coordinator.results import Merged, result_of
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.anonml.model import from_plain as additive
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.model import from_plain as linear
from shoal.protocols.pfds.model import from_plain as pooled
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.sdq.model import from_plain as tree
from shoal.study.ddml import params_of

READERS: dict[str, Any] = {"anonml": additive, "sdq": tree, "pfds": pooled}


def document(name: str, result: object) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(result_of(manifest_of(name), result))
    return written


def finished(name: str) -> Any:
    aggregator = aggregator_of(manifest_of(name), hosted_of(name))
    assert aggregator is not None
    return run_local(aggregator, peers_of(name), SeededEntropy(3)).results[AGGREGATOR]


@pytest.mark.parametrize("name", HOSTED)
def test_each_protocol_reads_its_own_model_again(name: str) -> None:
    written, manifest = document(name, finished(name)), manifest_of(name)
    assert READERS[manifest.study.protocol](written["model"]).to_plain() == written["model"]
    assert (written["study"], written["title"]) == (manifest.digest.hex(), "A study")
    assert (written["protocol"], written["variant"]) == (manifest.study.protocol, manifest.study.variant)
    assert written["statement"]["epsilon"] >= manifest.study.privacy.epsilon * 0.99
    assert written["statement"]["digest"] == manifest.short


def test_free_counts_are_told_with_their_noise() -> None:
    [[towns, _]] = document("sdq", finished("sdq"))["queries"]
    assert towns["features"] == ["town"]
    assert [row["cells"] for row in towns["counts"]] == [["x"], ["y"], ["z"]]
    assert towns["deviation"] > 0


def test_shared_rows_and_trees_are_told_by_holder() -> None:
    result = finished("pfds paper")
    written = document("pfds paper", result)
    assert list(written["datasets"]) == list(written["trees"]) == [f"holder-{i}" for i in range(4)]
    rows = written["datasets"]["holder-1"]
    assert len(rows["town"]) == written["counts"]["datasets"]["holder-1"]
    assert set(rows["town"]) <= {"x", "y", "z"}
    assert set(rows["ill"]) <= {"no", "yes"}
    assert len(written["trees"]["holder-0"]["levels"]) == 1


def test_without_anyone_s_rows_there_is_no_model() -> None:
    written = document("pfds paper", PublishedTrees({}, {}, ()))
    assert (written["model"], written["counts"]) == (None, {"trees": 0, "datasets": {}, "left_out": []})


def test_a_missing_number_is_null() -> None:
    result = finished("pfds paper")
    first = result.datasets["holder-0"]
    first.columns["age"][:2] = np.nan
    assert document("pfds paper", result)["datasets"]["holder-0"]["age"][:3].count(None) == 2


def test_updates_are_told_with_what_was_refused() -> None:
    params = params_of(manifest_of("ddml").study)
    model = GLM.of(params, np.arange(params.n_weights))
    written = document("ddml", Merged(model, 17, {"MSG-005": 2}))
    assert linear(written["model"]).to_plain() == model.to_plain()
    assert written["counts"] == {"merged": 17, "refused": {"MSG-005": 2}}


def test_nothing_else_is_a_result() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        result_of(manifest_of("anonml"), object())
    assert caught.value.code == "PROTO-001"
