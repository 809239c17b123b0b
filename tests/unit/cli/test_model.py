"""`shoal model`: description, predictions, exports, and errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from shoal.cli.main import run
from shoal.cli.model import format_tree
from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.models import read_model
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.model import GLM
from shoal.protocols.sdq.model import DecisionTree
from tests.unit.models.model_cases import STATEMENT

AGE, TOWN = Numeric("age", 0, 90, [30, 60]), Categorical("town", ["x", "y"], missing=False)
ILL, HEIGHT = (
    Categorical("ill", ["no", "yes"], missing=False),
    Numeric("height", 0, 2, missing=False),
)
SAID = {**STATEMENT, "simulated": False}
ILL_PLAIN = {"name": "ill", "missing": False, "values": ["no", "yes"], "groups": None}
ROWS = "town,age,other\nx,20,1\ny,70,2\nz,400,3\nx,,4\n"


def make_additive() -> dict[str, Any]:
    scores = (
        np.array([[0.0, 0.5, -1.0, 0.0], [0.0, 0.0, 2.0, 0.25]]),
        np.array([[0.5, 0.0], [0.0, -3.0]]),
    )
    return AdditiveModel(Schema([AGE, TOWN], ILL), np.array([0.75, 0.25]), scores).to_plain()


def make_linear() -> dict[str, Any]:
    return GLM(
        Schema([AGE, TOWN], HEIGHT), "identity", (), np.array([[0.1, 0.25, -2.0, 0.0, 0.5]])
    ).to_plain()


def make_tree() -> dict[str, Any]:
    counts = np.array([[6.0, 8.0], [2.0, 6.0], [4.0, 2.0]])
    chances = counts / counts.sum(axis=1, keepdims=True)
    return DecisionTree(
        Schema([AGE, TOWN], ILL),
        np.array([1, -1, -1]),
        np.array([1, -1, -1]),
        counts,
        chances,
        (4.0, 9.0),
    ).to_plain()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, model in (
        ("additive", make_additive()),
        ("linear", make_linear()),
        ("tree", make_tree()),
    ):
        Path(f"{name}.json").write_text(json.dumps(model))
    real = {
        "study": "ab" * 32,
        "title": "Who is ill?",
        "protocol": "anonml",
        "variant": "plus",
        "statement": SAID,
    }
    Path("real.json").write_text(json.dumps(real | {"model": make_additive(), "counts": {}}))
    Path("simulated.json").write_text(
        json.dumps({"simulated": True, "model": make_additive(), "statement": SAID})
    )
    Path("rows.csv").write_text(ROWS)
    return tmp_path


def run_printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["model", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["model", *arguments, "--json"]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_show_prints_study_guarantee_and_weights(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_printed(capsys, "show", "real.json")
    assert text.startswith(
        "model     real.json: scores of cells that add up to log-odds (as naive Bayes) (kind "
        "additive)\n"
    )
    assert (
        "study     Who is ill?\n" in text
        and f"digest    {'ab' * 32}\n" in text
        and "protocol  anonml, variant plus\n" in text
    )
    assert (
        "predicts  ill (no, yes)\n" in text
        and "from      2 columns: age (0 to 90), town (x, y)\n" in text
    )
    assert (
        "guarantee epsilon 2.0, delta 0 (plain sum of 1 release; unit person, relation replace, "
        "against everyone); as stated in the file; not verified"
    ) in text
    assert "shares    no 75.0 %, yes 25.0 %\n" in text and "  -3.0000  yes  town = y\n" in text
    assert "WARNING" not in text and "note" not in text
    assert text.endswith("next      shoal model predict real.json --data rows.csv\n")


def test_show_says_that_simulated_and_bare_models_guarantee_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_printed(capsys, "show", "simulated.json")
    assert "WARNING   a simulation: it protects nothing\n" in text
    assert (
        "guarantee none: this is a simulation; a real run of this study would state epsilon "
        "2.0" in text
    )
    assert "protocol  anonml or sdq (the file does not say which)\n" in text
    bare = run_printed(capsys, "show", "additive.json")
    assert (
        "note      the file does not say if the model is simulated" in bare
        and "guarantee none: the file contains no privacy statement" in bare
    )


def test_show_prints_linear_weights_and_a_tree(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_printed(capsys, "show", "linear.json")
    assert (
        "predicts  height (0 to 2)\n" in text
        and "as shares of the label's range\n  +0.1000  constant\n  -2.0000  age > 60\n" in text
    )
    text = run_printed(capsys, "show", "tree.json")
    assert (
        "tree      3 nodes\n  town?  [no 6, yes 8]\n  ├─ x → yes  [no 2, yes 6]\n  └─ y → no  [no "
        "4, yes 2]\n" in text
    )


def test_show_json_has_the_same_content(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_json(capsys, "show", "real.json")
    assert (shown["kind"], shown["protocol"], shown["simulated"], shown["digest"]) == (
        "additive",
        "anonml",
        False,
        "ab" * 32,
    )
    assert shown["statement"] == SAID and shown["weights"][0] == {
        "name": "town = y",
        "class": "yes",
        "value": -3.0,
        "error": None,
    }
    assert shown["features"] == make_additive()["features"] and shown["tree"] is None
    assert run_json(capsys, "show", "tree.json")["tree"].startswith("town?  [no 6, yes 8]\n")


def make_chain(n: int) -> dict[str, Any]:
    """Return a tree with one deep path, which a file may contain but no protocol learns."""
    features = [
        {"name": f"f{i}", "missing": False, "values": ["x", "y"], "groups": None} for i in range(n)
    ]
    # The root, then pairs of children; the second of each pair is split again.
    splits = ["f0", *(name for i in range(1, n) for name in (None, f"f{i}")), None, None]
    firsts = [1, *(first for i in range(1, n) for first in (-1, 2 * i + 1)), -1, -1]
    shares = [[0.5, 0.5]] * (2 * n + 1)
    plain = {
        "kind": "tree",
        "features": features,
        "label": ILL_PLAIN,
        "splits": splits,
        "firsts": firsts,
    }
    return plain | {"counts": [None] * (2 * n + 1), "chances": shares, "deviation": None}


def test_show_cuts_a_deep_tree(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep.json").write_text(json.dumps(make_chain(3000)))
    text = run_json(capsys, "show", "deep.json")["tree"]
    assert text.startswith("f0?\n├─ x → no\n└─ y: f1?\n") and len(text) < 1_000_000
    assert "nodes below" in text.splitlines()[-1]
    assert "tree      6,001 nodes\n" in run_printed(capsys, "show", "deep.json")


def test_format_tree_prints_as_many_levels_as_fit() -> None:
    tree = read_model(make_chain(30)).protocol_model
    assert isinstance(tree, DecisionTree)
    assert format_tree(tree, 61) == tree.to_text() and len(format_tree(tree, 60).splitlines()) == 59
    assert format_tree(tree, 1) == tree.to_text(max_depth=0)


def test_show_svg_draws_trees_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote     it.svg\n" in run_printed(capsys, "show", "tree.json", "--svg", "it.svg")
    drawn = Path("it.svg").read_text("utf-8")
    assert drawn.startswith("<svg ") and "A decision tree for ill" in drawn
    assert run_printed(capsys, "show", "tree.json", "--svg", "it.svg", code=2).startswith(
        "NEW-001  it.svg already exists"
    )
    assert run_printed(capsys, "show", "linear.json", "--svg", "other.svg", code=3).startswith(
        "MODEL-002  A model of the kind linear has no picture"
    )
    assert not Path("other.svg").exists() and Path("it.svg").read_text("utf-8") == drawn


def test_model_commands_escape_hostile_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "title": "\x1b[2J\u202eevil",
        "model": make_additive(),
        "statement": SAID | {"adversary": "no\x1bbody"},
    }
    document["model"]["label"]["values"] = ["no\x1b[1m", "yes\u202e"]
    Path("bad.json").write_text(json.dumps(document))
    for arguments in (
        ["show", "bad.json"],
        ["predict", "bad.json", "--data", "rows.csv"],
        ["export", "bad.json", "--to", "json", "--out", "o"],
    ):
        text = run_printed(capsys, *arguments)
        assert "\x1b" not in text and "\u202e" not in text


def test_predict_prints_a_summary(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_printed(capsys, "predict", "simulated.json", "--data", "rows.csv")
    assert text.startswith("rows      4 rows of rows.csv\npredicted ill: no 3 times, yes 1 times\n")
    assert (
        "WARNING   cells outside the declared ranges and values were clipped or counted as "
        "unknown: age 1, town 1\n" in text
    )
    assert "WARNING   the model comes from a simulation" in text
    assert "\npredicted,chance of no,chance of yes\nno,0.8318,0.1682\n" in text
    assert text.endswith(
        "next      shoal model predict simulated.json --data rows.csv --out predictions.csv\n"
    )


def test_predict_writes_a_new_file_and_overwrites_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "wrote     out.csv\n" in run_printed(
        capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "out.csv"
    )
    with Path("out.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    columns = {"age": [20, 70, 400, None], "town": ["x", "y", "z", "x"]}
    model = read_model(make_additive())
    assert head == ["predicted", "chance of no", "chance of yes"]
    assert (
        [line[0] for line in lines] == model.predict(columns).tolist() == ["no", "no", "yes", "no"]
    )
    assert [[float(cell) for cell in line[1:]] for line in lines] == model.probabilities(
        columns
    ).tolist()
    written = Path("out.csv").read_bytes()
    refused = run_printed(
        capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "out.csv", code=2
    )
    assert (
        refused.startswith("NEW-001  out.csv already exists")
        and Path("out.csv").read_bytes() == written
    )
    assert run_printed(
        capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "no/out.csv", code=1
    ).startswith("NEW-001  no/out.csv")


def test_predict_warns_of_classes_that_look_like_formulas(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for classes, warned in (
        (["=1+1", "@SUM(1)"], True),
        (["+", "-"], False),
        (["-1", "+1"], False),
    ):
        model = make_additive() | {"label": ILL_PLAIN | {"values": classes}}
        Path("odd.json").write_text(json.dumps(model))
        Path("odd.csv").unlink(missing_ok=True)
        text = run_printed(capsys, "predict", "odd.json", "--data", "rows.csv", "--out", "odd.csv")
        assert (
            f"WARNING   a spreadsheet may execute classes as formulas ({', '.join(classes)})"
            in text
        ) is warned
        with Path("odd.csv").open(newline="") as file:
            # Programs compare it with labels, so it is written without change.
            assert {line["predicted"] for line in csv.DictReader(file)} == set(classes)


def test_predict_writes_numbers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "predict", "linear.json", "--data", "rows.csv", "--out", "out.csv")
    # 0.1 of a range of 2; then far below the range; an unknown town counts as the first.
    assert Path("out.csv").read_text() == "predicted\n0.2\n0.0\n0.0\n0.2\n"
    assert result["predicted"] == {"least": 0.0, "mean": 0.1, "largest": 0.2} and result[
        "strange"
    ] == {"age": 1, "town": 1}
    assert result["first"][0] == {"predicted": 0.2, "chances": None} and result["rows"] == 4
    assert "predicted height: least 0, mean 0.1, largest 0.2\n" in run_printed(
        capsys, "predict", "linear.json", "--data", "rows.csv"
    )


def test_predict_accepts_an_empty_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("none.csv").write_text("town,age\n")
    for model in ("additive.json", "linear.json", "tree.json"):
        assert run_json(capsys, "predict", model, "--data", "none.csv")["rows"] == 0
        assert "rows      0 rows of none.csv" in run_printed(
            capsys, "predict", model, "--data", "none.csv"
        )


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ("age\n1\n", "DATA-001"),
        ("age,town\nelderly,x\n", "DATA-004"),
        ("age,town\n1,\n", "DATA-005"),
        ("age,town\n1\n", "DATA-007"),
    ],
)
def test_predict_rejects_invalid_rows_and_writes_no_file(
    rows: str, code: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.csv").write_text(rows)
    result = run_json(
        capsys, "predict", "additive.json", "--data", "bad.csv", "--out", "out.csv", code=3
    )
    assert (
        result["error"]["code"] == code
        and "elderly" not in json.dumps(result)
        and not Path("out.csv").exists()
    )


def test_export_json_is_read_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_printed(capsys, "export", "real.json", "--to", "json", "--out", "it.json")
    assert text.endswith("as JSON\n\nnext      shoal model show it.json\n")
    document = json.loads(Path("it.json").read_text())
    assert (
        document["format"] == "shoal model"
        and document["statement"] == SAID
        and document["model"] == make_additive()
    )
    again, first = run_json(capsys, "show", "it.json"), run_json(capsys, "show", "real.json")
    assert again | {"file": ""} == first | {"file": ""}


def test_export_onnx_predicts_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "export", "simulated.json", "--to", "onnx", "--out", "it.onnx")
    assert result["bytes"] == Path("it.onnx").stat().st_size and result["simulated"] is True
    session = onnxruntime.InferenceSession("it.onnx", providers=["CPUExecutionProvider"])
    label, _ = session.run(
        None, {"age": np.array([[20.0], [400.0]]), "town": np.array([["x"], ["z"]], object)}
    )
    assert (
        label.tolist() == ["no", "yes"]
        and session.get_modelmeta().custom_metadata_map["simulated"] == "true"
    )
    text = run_printed(capsys, "export", "linear.json", "--to", "onnx", "--out", "number.onnx")
    assert (
        "inputs    2 columns: age, town; shape (rows, 1), numbers as doubles\noutputs   label\n"
        in text
    )
    assert run_printed(
        capsys, "export", "linear.json", "--to", "onnx", "--out", "number.onnx", code=2
    ).startswith("NEW-001")


def test_text_model_is_shown_and_predicts_but_is_not_exported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema([TOWN], ILL, [Text("query", 4, 1)])
    Path("words.json").write_text(
        json.dumps(GLM(schema, "logit", (), np.ones((1, InputDesign(schema).width))).to_plain())
    )
    assert "from      2 columns: town (x, y), query (words)\n" in run_printed(
        capsys, "show", "words.json"
    )
    Path("words.csv").write_text("town,query\nx,red fish\n")
    assert run_json(capsys, "predict", "words.json", "--data", "words.csv")["predicted"] == {
        "no": 0,
        "yes": 1,
    }
    refused = run_printed(
        capsys, "export", "words.json", "--to", "onnx", "--out", "words.onnx", code=3
    )
    assert (
        refused.startswith("MODEL-002  This model has text features (query)")
        and not Path("words.onnx").exists()
    )


def test_model_commands_reject_files_that_are_not_models(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text("{}")
    for arguments in (
        ["show"],
        ["predict", "--data", "rows.csv"],
        ["export", "--to", "json", "--out", "new.json"],
    ):
        assert run_printed(capsys, arguments[0], "bad.json", *arguments[1:], code=3).startswith(
            "MODEL-001  "
        )
    assert "No such file" in run_printed(capsys, "show", "none.json", code=3)
    assert str(Path("model.json")) in run_printed(capsys, "show", ".", code=3)
    assert run_printed(
        capsys, "export", "tree.json", "--to", "pmml", "--out", "x", code=2
    ).startswith("USAGE-001")
    assert not Path("new.json").exists() and not Path("x").exists()
