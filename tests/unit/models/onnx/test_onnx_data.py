"""Models learned from real rows, as ONNX: the same predictions for the same rows."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.anonml.data import DATA, ROOT
from shoal.cli.main import run
from shoal.data.tables import read_table_file
from shoal.models import load_model
from tests.unit.models.model_cases import assert_same, make_onnx_inputs, run_onnx

N_ROWS = 1500

STUDIES = {
    "adult": ("adult", "additive"),
    "adult-paper": ("adult", "vote"),
    "adult-ddml": ("adult", "linear"),
    "adult-sdq": ("adult", "tree"),
    "adult-pfds": ("adult", "pooled"),
    "adult-pfds-paper": ("adult", "pooled"),
    "nursery": ("nursery", "additive"),
    "nursery-sdq": ("nursery", "tree"),
    "bike-pfds": ("bike_sharing_hour", "pooled"),
    "phishing-ddml": ("phishing_websites", "linear"),
}


@pytest.mark.parametrize("study", STUDIES)
def test_onnx_of_a_simulated_study_predicts_the_same(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, kind = STUDIES[study]
    source = DATA / f"{table}.csv.gz"
    if not source.exists():
        pytest.skip(
            f"{source.name} is not in $SHOAL_DATA or ../shared/data; `make data` fetches it"
        )
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        (tmp_path / "rows.csv").write_text("".join(islice(lines, N_ROWS + 1)))
    options = [
        "--data",
        str(tmp_path / "rows.csv"),
        "--repeats",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert run(["simulate", str(ROOT / "examples" / f"{study}.toml"), *options]) == 0
    capsys.readouterr()
    model = load_model(tmp_path / "out" / "model.json")
    assert model.kind == kind and model.is_simulated
    rows = read_table_file(tmp_path / "rows.csv")
    columns = make_onnx_inputs(model.schema, rows)
    outputs = run_onnx(model, columns)
    assert_same(model, columns, outputs)
    assert len(np.unique(outputs[-1])) > 2
    predicted = model.predict(rows)
    assert len(predicted) == N_ROWS and (predicted == model.predict(columns)).all()
