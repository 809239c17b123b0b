"""The model reader accepts every form of a model, and rejects everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.coordinator.studies import encode_result
from shoal.data.schema import Numeric
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, SpecError
from shoal.models import Model, export_json, load_model, read_model, reader
from shoal.models.model import MODEL_KINDS as ALL_KINDS
from shoal.models.model import Guarantee
from shoal.privacy.events import Relation, Unit
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.ddml.model import GLM
from shoal.releases.artifact import DOCUMENT, write_signed_release
from shoal.study.ddml import DDMLResult, build_params
from shoal.study.handle import StudyHandle
from tests.support.coordinator import (
    HOSTED,
    make_aggregator,
    make_manifest,
    make_peers,
    make_record,
)
from tests.support.hostile import at, read_with_garbage
from tests.support.releases import NORTH, make_release
from tests.unit.models.model_cases import KINDS, draw_columns, models

PLAIN: dict[str, Any] = {
    "kind": "additive",
    "features": [{"name": "age", "missing": False, "range": [17, 90], "bins": [40]}],
    "label": {"name": "ill", "missing": False, "values": ["no", "yes"], "groups": None},
    "label_shares": [0.5, 0.5],
    "scores": [[[0.2, -0.3], [-0.2, 0.3]]],
}
STATEMENT: dict[str, Any] = {
    "title": "Who is ill?",
    "unit": "weight",
    "relation": "replace",
    "adversary": "everyone",
    "epsilon": 0.5,
    "delta": 0.0,
    "how": "plain sum",
    "everything": {"epsilon": 12.0, "delta": 0.0},
    "simulated": False,
}


def catch_error(document: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_model(document)
    assert caught.value.code == "MODEL-001" and caught.value.fix
    return caught.value


def test_every_model_kind_has_a_case() -> None:
    assert set(KINDS) == set(ALL_KINDS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_read_model_accepts_bare_models_of_any_kind(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    again = read_model(json.loads(json.dumps(model.to_plain())))
    assert (
        again.kind == kind and again.schema == model.schema and again.to_plain() == model.to_plain()
    )
    assert (again.is_simulated, again.statement, again.title, again.digest) == (
        None,
        None,
        None,
        None,
    )
    columns = data.draw(draw_columns(model.schema))
    encoded = model.schema.encode(columns, outside="clip")
    if isinstance(model.label, Numeric):
        assert (again.predict(columns) == model.protocol_model.predict(encoded)).all()  # type: ignore[union-attr]
        with pytest.raises(ShoalError) as caught:
            again.probabilities(columns)
        assert caught.value.code == "USAGE-001"
    else:
        assert again.predict(columns).tolist() == [
            again.classes[i] for i in model.protocol_model.decide(encoded)
        ]
        assert (again.probabilities(columns) == model.protocol_model.probabilities(encoded)).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_read_model_rejects_garbage_or_returns_a_model(kind: str, data: st.DataObject) -> None:
    model = data.draw(models(kind))
    document = model.to_document()
    found = read_with_garbage(document, read_model, data)
    assert found is None or isinstance(found, Model)


@pytest.mark.parametrize("name", HOSTED)
def test_read_model_accepts_results_of_a_coordinator(name: str) -> None:
    manifest = make_manifest(name)
    aggregator = make_aggregator(manifest, make_record(name))
    assert aggregator is not None
    document = json.loads(
        encode_result(
            StudyHandle(manifest),
            run_local(aggregator, make_peers(name), SeededEntropy(3)).results[AGGREGATOR],
        )
    )
    model = read_model(document)
    assert (model.protocol, model.variant, model.title) == (
        manifest.study.protocol,
        manifest.study.variant,
        "A study",
    )
    assert model.digest == manifest.digest.hex() and model.is_simulated is False
    assert model.statement == document["statement"] and model.to_plain() == document["model"]


def test_read_model_accepts_result_of_ddml() -> None:
    manifest = make_manifest("ddml")
    params = build_params(manifest.study)
    document = json.loads(
        encode_result(
            StudyHandle(manifest),
            DDMLResult(
                GLM.from_grid_weights(params, np.arange(params.n_weights)), 17, {"MSG-005": 2}
            ),
        )
    )
    model = read_model(document)
    assert (model.protocol, model.kind, model.is_simulated) == ("ddml", "linear", False)


def test_load_model_accepts_signed_releases(tmp_path: Path) -> None:
    for is_simulated in (False, True):
        release = make_release(is_simulated=is_simulated)
        write_signed_release(
            tmp_path / str(is_simulated), release, "north", NORTH, is_inferred=False
        )
        model = load_model(tmp_path / str(is_simulated) / DOCUMENT)
        assert (model.protocol, model.is_simulated, model.digest) == (
            "pfds",
            is_simulated,
            release.manifest.digest.hex(),
        )


def test_read_model_recognises_simulations() -> None:
    model = read_model({"simulated": True, "model": PLAIN})
    assert model.is_simulated is True and model.protocol is None and model.statement is None
    # Either part of the file may state it.
    assert (
        read_model({"model": PLAIN, "statement": STATEMENT | {"simulated": True}}).is_simulated
        is True
    )
    assert (
        read_model({"simulated": True, "model": PLAIN, "statement": STATEMENT}).is_simulated is True
    )


@settings(max_examples=30)
@given(data=st.data())
def test_read_model_inverts_to_document(data: st.DataObject) -> None:
    model = data.draw(models(data.draw(st.sampled_from(KINDS))))
    owner = ALL_KINDS[model.kind].protocols[-1]
    document = {
        "simulated": False,
        "protocol": owner,
        "title": "T",
        "study": "0f" * 32,
        "statement": STATEMENT,
        "model": model.to_plain(),
    }
    first = read_model(document)
    assert (
        read_model(json.loads(json.dumps(first.to_document()))).to_document() == first.to_document()
    )


def test_load_model_checks_all_fields_of_an_exported_file(tmp_path: Path) -> None:
    model = read_model(
        {
            "simulated": True,
            "protocol": "sdq",
            "title": "Größe",
            "statement": STATEMENT,
            "model": PLAIN,
        }
    )
    export_json(model, tmp_path / "it.json")
    assert load_model(str(tmp_path / "it.json")).to_document() == model.to_document()
    document = json.loads((tmp_path / "it.json").read_text("utf-8"))
    assert "more" in catch_error(document | {"more": 1}).what
    assert "Upgrade" in str(catch_error(document | {"version": 2}))
    del document["study"]
    assert "study" in catch_error(document).what


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "not a JSON object"),
        ("model", "not a JSON object"),
        ({}, "neither a kind nor a model"),
        ({"points": [], "model": 1}, "record of a run"),
        ({"model": None}, "without a model"),
        ({"model": "model.json"}, "its kind is not one of"),
        ({"model": {"kind": ["additive"]}}, "its kind is not one of"),
        ({"kind": "forest"}, "its kind is not one of additive, vote"),
        ({"model": PLAIN, "protocol": "ddml"}, "ddml does not learn models of the kind additive"),
        ({"model": PLAIN, "protocol": "fl"}, "protocol"),
        ({"model": PLAIN, "simulated": 1}, "simulated"),
        ({"model": PLAIN, "study": "xyz"}, "study"),
        ({"model": PLAIN, "title": "x" * 1001}, "title"),
        ({"model": PLAIN, "statement": {}}, "epsilon"),
        ({"model": PLAIN, "statement": []}, "body"),
        ({"model": PLAIN, "statement": STATEMENT | {"unit": "day"}}, "unit"),
        ({"model": PLAIN, "statement": STATEMENT | {"epsilon": -1.0}}, "epsilon"),
        (PLAIN | {"features": PLAIN["features"] * 2}, "twice"),
        (at(PLAIN, ("label_shares", 0), 1.0), "add up"),
        (at(PLAIN, ("features", 0, "range"), [10**400, 10**401]), "range"),
        (at(PLAIN, ("label", "values", 0), "\ud800"), "a lone surrogate"),
        (PLAIN | {"\udfff": 1}, "a lone surrogate"),
        (PLAIN | {"code": "print()"}, "code"),
    ],
)
def test_read_model_explains_why_it_rejects_a_document(document: Any, words: str) -> None:
    assert words in catch_error(document).what


def test_read_model_limits_depth_and_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    assert "are nested more than" in catch_error(PLAIN | {"scores": deep}).what
    monkeypatch.setattr(reader, "MAX_VALUES", 30)
    assert "more than 30 values" in catch_error(PLAIN | {"scores": [0.0] * 31}).what
    # Parts that are not needed are not checked.
    monkeypatch.setattr(reader, "MAX_VALUES", 100)
    assert read_model({"model": PLAIN, "datasets": [0] * 1000, "trees": deep}).kind == "additive"


def test_read_model_limits_columns_and_lengths_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("features", "texts", "crosses"):
        many = [["a", "b"]] * (reader.MAX_COLUMNS + 1)
        assert (
            f"more than 20,000 {name}" in catch_error(PLAIN | {"kind": "linear", name: many}).what
        )
    long = at(PLAIN, ("label", "values", 0), "x" * (reader.MAX_CHARACTERS + 1))
    assert "a text of more than 10,000 characters" in catch_error(long).what
    assert (
        read_model(at(PLAIN, ("label", "values", 0), "x" * reader.MAX_CHARACTERS)).classes[1]
        == "yes"
    )
    # The texts of a statement have no length limit.
    assert (
        read_model({"model": PLAIN, "statement": STATEMENT | {"leaves": "x" * 20_000}}).statement
        is not None
    )


def test_load_model_rejects_too_many_values_before_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it.json"
    path.write_text(json.dumps({"model": PLAIN, "trees": [[]] * 50}))
    assert load_model(path).kind == "additive"
    monkeypatch.setattr(reader, "MAX_PARSED", 100)
    monkeypatch.setattr(
        reader.json, "loads", lambda *_, **__: pytest.fail("It is refused before it is parsed.")
    )
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert (
        caught.value.code == "MODEL-001" and "it.json has more than 100 values" in caught.value.what
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"PK\x03\x04",
        b'{"model": NaN}',
        b'{"kind": "tree", "kind": "additive"}',
        b"[" * 200_000,
        b'{"a": 1',
    ],
)
def test_load_model_rejects_json_that_is_not_strict(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_model(tmp_path / "it.json")
    assert caught.value.code == "MODEL-001" and "it.json is not strict JSON" in caught.value.what


def test_load_model_names_unreadable_and_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, words in (
        (tmp_path, "is a directory"),
        (tmp_path / "no.json", "No such file"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(SpecError) as caught:
            load_model(path)
        assert caught.value.code == "MODEL-001" and words in caught.value.what
    (tmp_path / "large.json").write_text(json.dumps(PLAIN))
    monkeypatch.setattr(reader, "MAX_BYTES", 20)
    with pytest.raises(SpecError) as caught:
        load_model(tmp_path / "large.json")
    assert "more than 20 bytes" in caught.value.what


def test_predict_rejects_missing_columns() -> None:
    with pytest.raises(SpecError) as caught:
        read_model(PLAIN).predict({"height": np.array([1.0])})
    assert caught.value.code == "DATA-001" and "age" in caught.value.what


def test_guarantee_text_contains_its_scope() -> None:
    assert set(Guarantee.model_fields["unit"].annotation.__args__) == {unit.value for unit in Unit}  # type: ignore[union-attr]
    assert set(Guarantee.model_fields["relation"].annotation.__args__) == {
        one.value for one in Relation
    }  # type: ignore[union-attr]
    by_weight = str(Guarantee.model_validate(STATEMENT))
    assert by_weight == (
        "epsilon 12.0, delta 0 for everything that one participant sends; epsilon 0.5, delta 0 for "
        "each single weight "
        "(unit weight, relation replace, against everyone)"
    )
    crowd = STATEMENT | {
        "unit": "person",
        "shuffled": {"n": 1000, "epsilon": 0.1, "delta": 1e-6},
        "provided": "nobody tells",
    }
    assert str(Guarantee.model_validate(crowd)) == (
        "epsilon 0.5, delta 0 (plain sum; unit person, relation replace, against everyone); "
        "epsilon 0.1, delta 1e-06 against those who see only a shuffled batch of 1,000 honest "
        "messages; provided that nobody tells"
    )
