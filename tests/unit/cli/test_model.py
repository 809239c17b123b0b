"""`shoal model`: what it says of a model, what it predicts and writes, and what it refuses with a sentence."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from shoal.cli.main import run
from shoal.cli.model_view import in_short
from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.models import read_model
from shoal.protocols.anonml.model import AdditiveModel
from shoal.protocols.ddml.design import Design
from shoal.protocols.ddml.model import GLM
from shoal.protocols.sdq.model import Tree
from unit.models.model_cases import STATEMENT

AGE, TOWN = Numeric("age", 0, 90, [30, 60]), Categorical("town", ["x", "y"], missing=False)
ILL, HEIGHT = Categorical("ill", ["no", "yes"], missing=False), Numeric("height", 0, 2, missing=False)
SAID = {**STATEMENT, "simulated": False}
ILL_PLAIN = {"name": "ill", "missing": False, "values": ["no", "yes"], "groups": None}
ROWS = "town,age,other\nx,20,1\ny,70,2\nz,400,3\nx,,4\n"


def additive() -> dict[str, Any]:
    scores = (np.array([[0.0, 0.5, -1.0, 0.0], [0.0, 0.0, 2.0, 0.25]]), np.array([[0.5, 0.0], [0.0, -3.0]]))
    return AdditiveModel(Schema([AGE, TOWN], ILL), np.array([0.75, 0.25]), scores).to_plain()


def linear() -> dict[str, Any]:
    return GLM(Schema([AGE, TOWN], HEIGHT), "identity", (), np.array([[0.1, 0.25, -2.0, 0.0, 0.5]])).to_plain()


def tree() -> dict[str, Any]:
    counts = np.array([[6.0, 8.0], [2.0, 6.0], [4.0, 2.0]])
    chances = counts / counts.sum(axis=1, keepdims=True)
    return Tree(Schema([AGE, TOWN], ILL), np.array([1, -1, -1]), np.array([1, -1, -1]), counts, chances, (4.0, 9.0)).to_plain()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, model in (("additive", additive()), ("linear", linear()), ("tree", tree())):
        Path(f"{name}.json").write_text(json.dumps(model))
    real = {"study": "ab" * 32, "title": "Who is ill?", "protocol": "anonml", "variant": "plus", "statement": SAID}
    Path("real.json").write_text(json.dumps(real | {"model": additive(), "counts": {}}))
    Path("simulated.json").write_text(json.dumps({"simulated": True, "model": additive(), "statement": SAID}))
    Path("rows.csv").write_text(ROWS)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["model", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["model", *arguments, "--json"]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_shows_a_result_in_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "real.json")
    assert text.startswith("model     real.json: scores of cells that add up to log-odds (as naive Bayes) (kind additive)\n")
    assert "study     Who is ill?\n" in text and f"digest    {'ab' * 32}\n" in text and "protocol  anonml, variant plus\n" in text
    assert "predicts  ill (no, yes)\n" in text and "from      2 columns: age (0 to 90), town (x, y)\n" in text
    assert (
        "guarantee epsilon 2.0, delta 0 (plain sum of 1 release; unit person, relation replace, against everyone); by the file's own word"
    ) in text
    assert "shares    no 75.0 %, yes 25.0 %\n" in text and "  -3.0000  yes  town = y\n" in text
    assert "WARNING" not in text and "note" not in text
    assert text.endswith("next      shoal model predict real.json --data rows.csv\n")


def test_says_what_a_simulation_and_a_bare_model_do_not_guarantee(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "simulated.json")
    assert "WARNING   a simulation: nothing was protected by it\n" in text
    assert "guarantee none, for nothing was protected; a real run of this study would state epsilon 2.0" in text
    assert "protocol  anonml or sdq (the file does not say which)\n" in text
    bare = printed(capsys, "show", "additive.json")
    assert "note      the file does not say whether it comes of a simulation" in bare and "guarantee none is stated" in bare


def test_shows_weights_of_a_number_and_a_tree(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "linear.json")
    assert "predicts  height (0 to 2)\n" in text and "in shares of the label's range\n  +0.1000  constant\n  -2.0000  age > 60\n" in text
    text = printed(capsys, "show", "tree.json")
    assert "tree      3 nodes\n  town?  [no 6, yes 8]\n  ├─ x → yes  [no 2, yes 6]\n  └─ y → no  [no 4, yes 2]\n" in text


def test_tells_programs_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "show", "real.json")
    assert (shown["kind"], shown["protocol"], shown["simulated"], shown["digest"]) == ("additive", "anonml", False, "ab" * 32)
    assert shown["statement"] == SAID and shown["weights"][0] == {"name": "town = y", "class": "yes", "value": -3.0, "error": None}
    assert shown["features"] == additive()["features"] and shown["tree"] is None
    assert told(capsys, "show", "tree.json")["tree"].startswith("town?  [no 6, yes 8]\n")


def chain(n: int) -> dict[str, Any]:
    """A tree that is nothing but deep, as a file may have it and nobody learns it."""
    features = [{"name": f"f{i}", "missing": False, "values": ["x", "y"], "groups": None} for i in range(n)]
    # The root, and then of each pair of children the second goes on.
    splits = ["f0", *(name for i in range(1, n) for name in (None, f"f{i}")), None, None]
    firsts = [1, *(first for i in range(1, n) for first in (-1, 2 * i + 1)), -1, -1]
    shares = [[0.5, 0.5]] * (2 * n + 1)
    plain = {"kind": "tree", "features": features, "label": ILL_PLAIN, "splits": splits, "firsts": firsts}
    return plain | {"counts": [None] * (2 * n + 1), "chances": shares, "deviation": None}


def test_a_deep_tree_is_not_written_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep.json").write_text(json.dumps(chain(3000)))
    text = told(capsys, "show", "deep.json")["tree"]
    assert text.startswith("f0?\n├─ x → no\n└─ y: f1?\n") and len(text) < 1_000_000
    assert "nodes below" in text.splitlines()[-1]
    assert "tree      6,001 nodes\n" in printed(capsys, "show", "deep.json")


def test_as_much_of_a_tree_as_fits() -> None:
    tree = read_model(chain(30)).learned
    assert isinstance(tree, Tree)
    assert in_short(tree, 61) == tree.to_text() and len(in_short(tree, 60).splitlines()) == 59
    assert in_short(tree, 1) == tree.to_text(max_depth=0)


def test_draws_a_tree_and_nothing_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote     it.svg\n" in printed(capsys, "show", "tree.json", "--svg", "it.svg")
    drawn = Path("it.svg").read_text("utf-8")
    assert drawn.startswith("<svg ") and "A decision tree for ill" in drawn
    assert printed(capsys, "show", "tree.json", "--svg", "it.svg", code=2).startswith("NEW-001  it.svg is already there")
    assert printed(capsys, "show", "linear.json", "--svg", "other.svg", code=3).startswith(
        "MODEL-002  A model of the kind linear has no picture"
    )
    assert not Path("other.svg").exists() and Path("it.svg").read_text("utf-8") == drawn


def test_words_of_strangers_are_harmless(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"title": "\x1b[2J\u202eevil", "model": additive(), "statement": SAID | {"adversary": "no\x1bbody"}}
    document["model"]["label"]["values"] = ["no\x1b[1m", "yes\u202e"]
    Path("bad.json").write_text(json.dumps(document))
    for arguments in (
        ["show", "bad.json"],
        ["predict", "bad.json", "--data", "rows.csv"],
        ["export", "bad.json", "--to", "json", "--out", "o"],
    ):
        text = printed(capsys, *arguments)
        assert "\x1b" not in text and "\u202e" not in text


def test_predicts_in_short(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "predict", "simulated.json", "--data", "rows.csv")
    assert text.startswith("rows      4 rows of rows.csv\npredicted ill: no 3 times, yes 1 times\n")
    assert "WARNING   cells outside what the model knows were clipped or taken for unknown: age 1, town 1\n" in text
    assert "WARNING   the model comes of a simulation" in text
    assert "\npredicted,chance of no,chance of yes\nno,0.8318,0.1682\n" in text
    assert text.endswith("next      shoal model predict simulated.json --data rows.csv --out predictions.csv\n")


def test_predicts_into_a_new_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote     out.csv\n" in printed(capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "out.csv")
    with Path("out.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    columns = {"age": [20, 70, 400, None], "town": ["x", "y", "z", "x"]}
    model = read_model(additive())
    assert head == ["predicted", "chance of no", "chance of yes"]
    assert [line[0] for line in lines] == model.predict(columns).tolist() == ["no", "no", "yes", "no"]
    assert [[float(cell) for cell in line[1:]] for line in lines] == model.probabilities(columns).tolist()
    written = Path("out.csv").read_bytes()
    refused = printed(capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "out.csv", code=2)
    assert refused.startswith("NEW-001  out.csv is already there") and Path("out.csv").read_bytes() == written
    assert printed(capsys, "predict", "additive.json", "--data", "rows.csv", "--out", "no/out.csv", code=1).startswith(
        "NEW-001  no/out.csv"
    )


def test_warns_of_classes_that_a_spreadsheet_would_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for classes, warned in ((["=1+1", "@SUM(1)"], True), (["+", "-"], False), (["-1", "+1"], False)):
        model = additive() | {"label": ILL_PLAIN | {"values": classes}}
        Path("odd.json").write_text(json.dumps(model))
        Path("odd.csv").unlink(missing_ok=True)
        text = printed(capsys, "predict", "odd.json", "--data", "rows.csv", "--out", "odd.csv")
        assert (f"WARNING   a spreadsheet may run classes as formulas ({', '.join(classes)})" in text) is warned
        with Path("odd.csv").open(newline="") as file:
            # Programs hold it against labels: it is written as it is.
            assert {line["predicted"] for line in csv.DictReader(file)} == set(classes)


def test_predicts_numbers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(capsys, "predict", "linear.json", "--data", "rows.csv", "--out", "out.csv")
    # 0.1 of a range of 2; then far below it; the unknown town is as the first.
    assert Path("out.csv").read_text() == "predicted\n0.2\n0.0\n0.0\n0.2\n"
    assert result["predicted"] == {"least": 0.0, "mean": 0.1, "largest": 0.2} and result["strange"] == {"age": 1, "town": 1}
    assert result["first"][0] == {"predicted": 0.2, "chances": None} and result["rows"] == 4
    assert "predicted height: least 0, mean 0.1, largest 0.2\n" in printed(capsys, "predict", "linear.json", "--data", "rows.csv")


def test_predicts_nothing_of_no_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("none.csv").write_text("town,age\n")
    for model in ("additive.json", "linear.json", "tree.json"):
        assert told(capsys, "predict", model, "--data", "none.csv")["rows"] == 0
        assert "rows      0 rows of none.csv" in printed(capsys, "predict", model, "--data", "none.csv")


@pytest.mark.parametrize(
    ("rows", "code"),
    [("age\n1\n", "DATA-001"), ("age,town\nelderly,x\n", "DATA-004"), ("age,town\n1,\n", "DATA-005"), ("age,town\n1\n", "DATA-007")],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    rows: str, code: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.csv").write_text(rows)
    result = told(capsys, "predict", "additive.json", "--data", "bad.csv", "--out", "out.csv", code=3)
    assert result["error"]["code"] == code and "elderly" not in json.dumps(result) and not Path("out.csv").exists()


def test_exports_json_that_is_read_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "export", "real.json", "--to", "json", "--out", "it.json")
    assert text.endswith("as JSON\n\nnext      shoal model show it.json\n")
    document = json.loads(Path("it.json").read_text())
    assert document["format"] == "shoal model" and document["statement"] == SAID and document["model"] == additive()
    again, first = told(capsys, "show", "it.json"), told(capsys, "show", "real.json")
    assert again | {"file": ""} == first | {"file": ""}


def test_exports_onnx(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(capsys, "export", "simulated.json", "--to", "onnx", "--out", "it.onnx")
    assert result["bytes"] == Path("it.onnx").stat().st_size and result["simulated"] is True
    session = onnxruntime.InferenceSession("it.onnx", providers=["CPUExecutionProvider"])
    label, _ = session.run(None, {"age": np.array([[20.0], [400.0]]), "town": np.array([["x"], ["z"]], object)})
    assert label.tolist() == ["no", "yes"] and session.get_modelmeta().custom_metadata_map["simulated"] == "true"
    text = printed(capsys, "export", "linear.json", "--to", "onnx", "--out", "number.onnx")
    assert "inputs    2 columns: age, town; of shape (rows, 1), numbers as doubles\noutputs   label\n" in text
    assert printed(capsys, "export", "linear.json", "--to", "onnx", "--out", "number.onnx", code=2).startswith("NEW-001")


def test_words_are_shown_and_read_but_not_exported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema([TOWN], ILL, [Text("query", 4, 1)])
    Path("words.json").write_text(json.dumps(GLM(schema, "logit", (), np.ones((1, Design(schema).width))).to_plain()))
    assert "from      2 columns: town (x, y), query (words)\n" in printed(capsys, "show", "words.json")
    Path("words.csv").write_text("town,query\nx,red fish\n")
    assert told(capsys, "predict", "words.json", "--data", "words.csv")["predicted"] == {"no": 0, "yes": 1}
    refused = printed(capsys, "export", "words.json", "--to", "onnx", "--out", "words.onnx", code=3)
    assert refused.startswith("MODEL-002  This model reads texts (query)") and not Path("words.onnx").exists()


def test_what_is_not_a_model_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text("{}")
    for arguments in (["show"], ["predict", "--data", "rows.csv"], ["export", "--to", "json", "--out", "new.json"]):
        assert printed(capsys, arguments[0], "bad.json", *arguments[1:], code=3).startswith("MODEL-001  ")
    assert "No such file" in printed(capsys, "show", "none.json", code=3)
    assert str(Path("model.json")) in printed(capsys, "show", ".", code=3)
    assert printed(capsys, "export", "tree.json", "--to", "pmml", "--out", "x", code=2).startswith("USAGE-001")
    assert not Path("new.json").exists() and not Path("x").exists()
