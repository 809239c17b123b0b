"""`shoal simulate` of DDML: devices, noise, price and numeric labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.simulate.view import format_runs
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.model import from_plain
from shoal.study.loader import load_study, parse_study_text
from shoal.study.plan import make_plan
from shoal.study.starters import make_example_csv, read_starter
from tests.support.simulation import edited, simulate, told

BATCH = ("batch_size = 10", "batch_size = 2")
FITTING = (("size = 50000", "size = 300"), ("minimum = 1000", "minimum = 100"), BATCH)
NUMBER = ('values = ["no", "yes"]', "range = [10, 20]")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, *FITTING)
    return tmp_path


def write(home: Path, *edits: tuple[str, str]) -> None:
    text = edited(read_starter("ddml"), *edits)
    (home / "study.toml").write_text(text)
    (home / "rows.csv").write_text(make_example_csv(parse_study_text(text), 800, SeededEntropy(1)))


def test_ddml_prints_devices_noise_and_price(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--in-flight", "3") == 0
    printed = capsys.readouterr().out
    result = told(home, capsys, "--in-flight", "3")
    [point] = result["points"]
    assert (
        "rows      300 devices took part, 200 rows were set aside for testing; declared size 300"
        in printed
    )
    assert (
        f"model     {point['weights']} weights in 20 instances (blend); learning rate "
        f"{point['learning_rate']:.4g}, clip" in printed
    )
    assert ", noise by k-closest\n" in printed
    assert "traffic   devices arrive in random order, with 3 other updates in flight" in printed
    assert (
        "price     epsilon 4.0 by plain sum of 1 release (unit update, relation replace, against "
        "everyone who sees an update" in printed
    )
    assert "everything that a device sends" not in printed
    assert "answers   updates 300 (first run)" in printed and "WARNING" not in printed.replace(
        "WARNING   Accuracy is", ""
    )
    rows = [
        line
        for line in printed.splitlines()
        if line.startswith(("this study ", "most common class ", "without privacy "))
    ]
    assert len(rows) == 3 and (point["people"], point["answers"]) == (300, [300])
    assert (result["in_flight"], result["order"]) == (3, "shuffled") and result["command"].endswith(
        "--in-flight 3"
    )


def test_unit_weight_prints_the_price_of_a_weight_and_of_everything(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        home, *FITTING, ('unit = "update"', 'unit = "weight"'), ("n_updates = 1", "n_updates = 2")
    )
    p = make_plan(load_study(home / "study.toml")).make_statement().n_weights
    assert p is not None
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert "epsilon 2.0 by plain sum of 1 release (unit weight, relation replace" in printed
    assert f"; the ledger charges epsilon {4 * p}.0 for everything that a device sends" in printed
    assert "answers   updates 600 (first run)" in printed and "noise by discrete-laplace" in printed
    assert simulate(home, "--sweep", "epsilon=1,2") == 0
    printed = capsys.readouterr().out
    assert f"model     {p} weights; noise as below" in printed
    assert "the ledger charges more, for everything" in printed
    rows = [
        line.split() for line in printed.splitlines() if line.startswith(("epsilon ", "1 ", "2 "))
    ]
    assert rows[0][:5] == ["epsilon", "each", "weight", "everything", "noise"]
    assert [row[:4] for row in rows[1:]] == [
        ["1", "0.5", f"{p}.0", "discrete-laplace"],
        ["2", "1.0", f"{2 * p}.0", "discrete-laplace"],
    ]


def test_sweep_names_the_noise_of_each_point(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--sweep", "batch_size=1,3") == 0
    printed = capsys.readouterr().out
    rows = [
        line.split()[:3]
        for line in printed.splitlines()
        if line.startswith(("batch_size ", "1 ", "3 "))
    ]
    assert rows == [
        ["batch_size", "everything", "noise"],
        ["1", "4.0", "k-closest"],
        ["3", "4.0", "k-closest"],
    ]
    assert (
        "200 to 600 devices took part" in printed
        and "price     epsilon as below (unit update" in printed
    )


def test_ddml_without_perturbation_has_no_noise(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(home, "--without-perturbation") == 0
    printed = capsys.readouterr().out
    assert (
        "price     none: without perturbation nothing is protected" in printed
        and ", no noise\n" in printed
    )
    assert simulate(home, "--without-perturbation", "--sweep", "n_instances=1,5") == 0
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines() if line.startswith(("1 ", "5 "))] == [
        ["1", "none"],
        ["5", "none"],
    ]


def test_ddml_uses_the_order_of_the_table_and_devices_by_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (home / "rows.csv").read_text().splitlines()
    named = [rows[0] + ",phone", *(f"{row},p{i % 80}" for i, row in enumerate(rows[1:]))]
    (home / "rows.csv").write_text("\n".join(named) + "\n")
    result = told(home, capsys, "--order", "given", "--device", "phone")
    assert (result["points"][0]["people"], result["rows"]["unseen"]) == (60, 200)
    assert result["command"].endswith("--order given --device phone")
    assert simulate(home, "--order", "given", "--device", "phone") == 0
    assert (
        "traffic   devices arrive in the order of the table, with 0 other updates in flight"
        in capsys.readouterr().out
    )
    assert simulate(home, "--device", "tablet") == 3
    assert "DATA-001  The data has no column tablet." in capsys.readouterr().err


def test_ddml_dropout_removes_devices(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 80 < told(home, capsys, "--dropout", "0.5")["points"][0]["people"] < 220
    assert simulate(home, "--dropout", "0.5", "--sweep", "size=5000") == 0
    printed = capsys.readouterr().out
    assert "devices took part in the first run" in printed
    assert (
        "WARNING   The study declares 5,000 devices, and 1" in printed
        and "learning rate and clip, unless given, are chosen" in printed
    )


def test_numeric_label_has_errors_in_its_own_units(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, *FITTING, NUMBER)
    result = told(home, capsys, "--sweep", "epsilon=20", "--out", str(home / "one"))
    [point] = result["points"]
    assert (
        set(point["scores"]) == {"rmse", "mean_absolute_error", "r_squared"}
        and "most_common" not in result
    )
    assert 0 < result["without_privacy"]["rmse"] < result["mean_label"]["rmse"] < 10
    model = json.loads((home / "one" / point["model"]).read_text())
    assert model["simulated"] is True and from_plain(model["model"]).link == "identity"
    assert simulate(home) == 0
    printed = capsys.readouterr().out
    assert "RMSE" in printed and "mean of the label" in printed and "R squared" in printed
    assert "measures  RMSE and the mean absolute error are in the units of the label\n" in printed


@pytest.mark.parametrize(
    ("rmse", "repeats", "said"),
    [
        (
            2.5,
            3,
            "RMSE is above that of the label's mean, 2 (2.5), with all of the 95 % interval over "
            "3 runs: nothing was learned.",
        ),
        (
            2.05,
            3,
            "RMSE is no better than that of the label's mean, 2 (2.05), by the evidence of 3 "
            "runs: more --repeats may show a difference.",
        ),
        (
            2.00001,
            1,
            "RMSE is no better than that of the label's mean, 2 (2.00001), by the evidence of 1 "
            "run",
        ),
        (1.5, 1, None),
        (1.5, 3, None),
    ],
)
def test_error_above_that_of_the_mean_has_a_warning(
    rmse: float, repeats: int, said: str | None
) -> None:
    error = 0.05 if repeats > 1 else None
    scores = {
        name: {"value": value, "error": error}
        for name, value in (("rmse", rmse), ("mean_absolute_error", 1.0), ("r_squared", 0.1))
    }
    yardstick = {"rmse": 2.0, "mean_absolute_error": 1.0, "r_squared": 0.0}
    point = {
        "settings": {},
        "scores": scores,
        "people": 10,
        "declared": 10,
        "minimum": 1,
        "phases": ["updates"],
        "answers": [10],
    }
    point |= dict.fromkeys(("total", "charged", "paper_epsilon", "central", "mechanism"))
    point |= {"weights": 3, "n_instances": 1, "merge": "blend", "learning_rate": 1.0, "clip": 1.0}
    told = {
        "title": "t",
        "protocol": "ddml",
        "short": "d",
        "remark": "r",
        "rows": {"unseen": 3},
        "dropout": 0.0,
        "repeats": repeats,
    }
    told |= {"in_flight": 1, "order": "given", "seconds": 1.0, "points": [point], "f1_of": None}
    printed = format_runs(told | {"mean_label": yardstick, "without_privacy": yardstick})
    assert ("WARNING" in printed) is (said is not None) and (
        said is None or f"WARNING   {said}" in printed
    )


def test_ddml_rejects_invalid_options(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(home, "--in-flight", "-1") == 2
    assert capsys.readouterr().err.startswith("USAGE-001")
    assert simulate(home, "--sweep", "n_partitions=2") == 3
    assert capsys.readouterr().err.startswith("SPEC-022")
