"""Models as ONNX: onnxruntime predicts the same as shoal for any schema and row."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.errors import ShoalError, format_install_command
from shoal.models import Model, export, export_onnx, read_model, to_onnx
from shoal.models.onnx.graph import IR_VERSION, OPSETS
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.model import DecisionTree
from tests.unit.models.model_cases import (
    KINDS,
    STATEMENT,
    assert_same,
    draw_columns,
    make_session,
    models,
    run_onnx,
)

ILL = Categorical("ill", ["no", "yes"], missing=False)


def make_additive(schema: Schema) -> AdditiveModel:
    return AdditiveModel(
        schema,
        np.array([0.5, 0.5]),
        tuple(np.zeros((2, one.n_bins or 0)) for one in schema.features),
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_onnx_predicts_the_same_as_the_model(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    assert model.kind == kind
    columns = data.draw(draw_columns(model.schema))
    assert_same(model, columns, run_onnx(model, columns))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_onnx_accepts_zero_rows_and_one_row(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    for n in (0, 1):
        columns = data.draw(draw_columns(model.schema, n))
        outputs = run_onnx(model, columns)
        assert [len(output) for output in outputs] == [n] * len(outputs)
        assert_same(model, columns, outputs)


def test_onnx_outputs_never_have_names_of_inputs() -> None:
    schema = Schema([Numeric("label", 0, 10, [5]), Categorical("probabilities", ["a", "b"])], ILL)
    made = make_session(Model(make_additive(schema)))
    assert [(one.name, one.type, one.shape) for one in made.get_inputs()] == [
        ("label", "tensor(double)", ["rows", 1]),
        ("probabilities", "tensor(string)", ["rows", 1]),
    ]
    assert [(one.name, one.type, one.shape) for one in made.get_outputs()] == [
        ("label_", "tensor(string)", ["rows"]),
        ("probabilities_", "tensor(double)", ["rows", 2]),
    ]


def test_onnx_has_a_fixed_ir_version_and_opsets() -> None:
    proto = to_onnx(Model(make_additive(Schema([Numeric("age", 0, 10, [5])], ILL))))
    assert proto.ir_version == IR_VERSION == 8
    assert {one.domain: one.version for one in proto.opset_import} == OPSETS
    assert (
        proto.producer_name == "shoal"
        and "a number from 0 to 10" in proto.graph.input[0].doc_string
    )


def test_onnx_metadata_contains_study_and_guarantee() -> None:
    plain = make_additive(Schema([Numeric("age", 0, 10, [5])], ILL)).to_plain()
    digest = "ab" * 32
    document = {
        "simulated": True,
        "protocol": "sdq",
        "study": digest,
        "statement": STATEMENT,
        "model": plain,
    }
    said = make_session(read_model(document)).get_modelmeta().custom_metadata_map
    assert {
        name: said[name] for name in ("title", "digest", "protocol", "kind", "simulated", "label")
    } == {
        "title": "Who is ill?",
        "digest": digest,
        "protocol": "sdq",
        "kind": "additive",
        "simulated": "true",
        "label": "ill",
    }
    assert (
        said["guarantee"]
        == "epsilon 2.0, delta 0 (plain sum of 1 release; unit person, relation replace, against "
        "everyone)"
    )
    assert json.loads(said["classes"]) == ["no", "yes"]
    bare = make_session(read_model(plain)).get_modelmeta().custom_metadata_map
    assert (bare["simulated"], bare["guarantee"], bare["title"], bare["protocol"]) == (
        "unknown",
        "",
        "",
        "",
    )


def test_onnx_decides_ties_as_the_model_does() -> None:
    """Equal scores give the first class, except in the paper's vote between two classes."""
    schema = Schema([Categorical("town", ["x", "y"], missing=False)], ILL)
    even = np.full((2, 2), 0.5)
    node = np.array([-1])
    cases: list[tuple[Any, str]] = [
        (make_additive(schema), "no"),
        (DecisionTree(schema, node, node, even[:1], even[:1]), "no"),
        (GLM(schema, "logit", (), np.zeros((1, 2))), "no"),
        (
            PooledModel(
                PFDSParams(schema, math.inf, 1),
                np.zeros((2, 1)),
                np.zeros(1),
                np.zeros((2, 1)),
                even[0],
            ),
            "no",
        ),
        (VoteModel(schema, WeightedVote((), 2)), "yes"),
        (VoteModel(schema, WeightedVote((PartitionClassifier((0,), (2,), even, 0.0),), 2)), "yes"),
    ]
    columns = {"town": np.array(["x", "y", "?"], object)}
    for learned, wins in cases:
        model = read_model(learned.to_plain())
        assert model.predict(columns).tolist() == run_onnx(model, columns)[0].tolist() == [wins] * 3


def test_onnx_treats_missing_cells_as_unknown() -> None:
    schema = Schema(
        [Numeric("age", 0, 10, missing=False), Categorical("town", ["x", "y"], missing=False)], ILL
    )
    model = read_model(GLM(schema, "logit", (), np.array([[0.25, 2.0, 1.0]])).to_plain())
    gone = {"age": np.array([math.nan]), "town": np.array([""], object)}
    with pytest.raises(ShoalError) as caught:
        model.predict(gone)
    assert caught.value.code == "DATA-005"
    np.testing.assert_allclose(run_onnx(model, gone)[1][0, 1], 1 / (1 + math.exp(-0.25)))


def test_to_onnx_computes_the_design_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing the design again for each input would take quadratic time."""
    schema = Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(50)], ILL)
    model = read_model(GLM(schema, "logit", (), np.zeros((1, 51))).to_plain())
    made: list[InputDesign] = []
    real = GLM.design.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(GLM, "design", property(lambda self: made.append(real(self)) or made[-1]))
    to_onnx(model)
    assert len(made) == 1


def test_to_onnx_rejects_text_features() -> None:
    schema = Schema([Numeric("age", 0, 10)], ILL, [Text("query", 10)])
    model = read_model(
        GLM(schema, "logit", (), np.zeros((1, InputDesign(schema).width))).to_plain()
    )
    with pytest.raises(ShoalError) as caught:
        to_onnx(model)
    assert (
        caught.value.code == "MODEL-002"
        and "(query)" in caught.value.what
        and caught.value.why
        and caught.value.fix
    )


def test_to_onnx_rejects_models_above_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_ONNX_BYTES", 100)
    with pytest.raises(ShoalError) as caught:
        to_onnx(Model(make_additive(Schema([Numeric("age", 0, 10, [5])], ILL))))
    assert caught.value.code == "MODEL-002" and "bytes as ONNX" in caught.value.what


def test_to_onnx_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ShoalError) as caught:
        to_onnx(Model(make_additive(Schema([Numeric("age", 0, 10, [5])], ILL))))
    assert caught.value.code == "USAGE-002" and caught.value.fix == format_install_command("onnx")


def test_export_onnx_writes_a_new_file_only(tmp_path: Path) -> None:
    model = Model(make_additive(Schema([Numeric("age", 0, 10, [5])], ILL)))
    export_onnx(model, tmp_path / "it.onnx")
    written = (tmp_path / "it.onnx").read_bytes()
    onnx.checker.check_model(onnx.load_model_from_string(written))
    assert onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"]).run(
        None, {"age": np.array([[3.0]])}
    )[0].tolist() == ["no"]
    with pytest.raises(ShoalError) as caught:
        export_onnx(model, str(tmp_path / "it.onnx"))
    assert caught.value.code == "NEW-001" and (tmp_path / "it.onnx").read_bytes() == written
    with pytest.raises(ShoalError) as caught:
        export_onnx(model, tmp_path / "none" / "it.onnx")
    assert caught.value.code == "NEW-001"
    assert [path.name for path in tmp_path.iterdir()] == ["it.onnx"]
